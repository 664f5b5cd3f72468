"""The program that makes text from Debian's packages: what it keeps."""

import gzip
import struct
import zlib

import paper_programs
import pytest

ONE = "It was the best of times that he would have of all of them."
TWO = "It was the worst of times, and they were not with us."


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
def test_formats(name, data):
    with paper_programs.importable() as load:
        program = load("debian_text")
        texts = program.paragraphs(name, data)
        found = [" ".join(text.split()) for text in texts]
        assert list(filter(program.is_prose, found)) == [ONE]
