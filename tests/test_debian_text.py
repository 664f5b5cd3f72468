"""The program that makes text from Debian's packages: what it keeps."""

import gzip
import struct
import zlib

import paper_programs
import pytest

ONE = "It was the best of times that he would have of all of them."
TWO = "It was the worst of times, and they were not with us."


@pytest.fixture
def program():
    with paper_programs.importable() as load:
        yield load("debian_text")


def vector(*lines):
    """Returns strings as R stores them."""
    items = [b"\0\4\0\t" + struct.pack(">i", len(x)) + x for x in lines]
    data = zlib.compress(b"X\n" + b"".join(items))
    return struct.pack(">i", len(data)) + data


@pytest.mark.parametrize(
    ("name", "data"),
    [
        (
            "a.html",
            f"<title>{TWO}</title><!-- <p>{TWO} --><ul><li>{ONE[:20]}"
            f"<code>{ONE[20:26]}</code>{ONE[26:]}<pre>{TWO}</pre></ul>".encode(),
        ),
        ("a.pod", f"=head1 {TWO}\n\nB<< It >>{ONE[2:]}\n\n  {TWO}\n".encode()),
        (
            "a.dict.dz",
            # With the time of now, processes would collect different tests.
            gzip.compress(
                f"Times\n\n  {{It}} was [Obs.]{ONE[6:]}\n".encode(), mtime=0
            ),
        ),
        ("fortunes", f"Ha!\n%\n{ONE}\n%\nHa!\n".encode()),
        (
            "a.rdb",
            vector(b"EMMA", b"", ONE[:6].encode(), ONE[7:].encode(), b"")
            + vector(b"", b"No."),
        ),
    ],
)
def test_formats(program, name, data):
    found = [" ".join(text.split()) for text in program.paragraphs(name, data)]
    assert list(filter(program.is_prose, found)) == [ONE]


def test_documents(program, monkeypatch):
    """Pages are documents; a paragraph that comes again is left out."""
    pages = [("a", f"{ONE} {TWO} No.\n\n{ONE}"), ("b", f"{ONE}\n\n{TWO}")]
    read = [(name, text.encode()) for name, text in pages]
    monkeypatch.setattr(program, "read_package", lambda *_: read)
    found = program.documents("a.deb", "*", set())
    assert list(found) == [f"{ONE}\n{TWO}\n{ONE}\n", f"{TWO}\n"]
    many = "\n\n".join(f"{ONE} It is {'x' * n}." for n in range(1, 42))
    read = [("a", many.encode())]
    monkeypatch.setattr(program, "read_package", lambda *_: read)
    found = program.documents("a.deb", "*", set())
    assert [text.count(ONE) for text in found] == [40, 1]


@pytest.mark.parametrize("script", [None, "#!/bin/sh\nexit 100\n"])
def test_without_packages(program, monkeypatch, tmp_path, script):
    """apt-get is missing, or fails."""
    if script:
        (tmp_path / "apt-get").write_text(script)
        (tmp_path / "apt-get").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(program.InputError, match="apt-get could not"):
        program.run(program.TextOptions(output_dir=str(tmp_path / "text")))
