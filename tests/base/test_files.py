"""Files are found, read and written as a whole, or an error names them."""

import gzip
import os
import re
import resource
import subprocess
import sys

import pytest

from bert_tf.base import files
from bert_tf.data.tables import read_lines
from bert_tf.errors import InputError
from bert_tf.tokenization.vocabulary_file import read_tokens


def _touch(folder, *names):
    for name in names:
        (folder / name).write_bytes(name.encode())
    return [str(folder / name) for name in names]


def _write(path, data=b"data", error=None):
    with files.atomic_writer(str(path)) as file:
        file.write(data)
        if error:
            raise error


def _make(path, error=None):
    """Creates a directory with a file."""
    with files.atomic_directory(path) as folder:
        files.write_text(f"{folder}/a.txt", "a")
        if error:
            raise error


@pytest.fixture(params=["local", "remote"])
def root(request, tmp_path):
    """A folder of each kind."""
    is_remote = request.param == "remote"
    return f"ram://{tmp_path.name}" if is_remote else str(tmp_path)


def test_expand(root):
    """Patterns are sorted and keep their order; by-products are skipped."""
    for name in ("x-2", "x-1", "a"):
        _write(f"{root}/{name}")
    b, a, other = (f"{root}/{name}" for name in ("x-2", "x-1", "a"))
    assert files.expand(f"{root}/x*, {other}") == [a, b, other]
    assert files.expand(f"{b},{root}/x*,{a},") == [b, a]
    manifest = files.manifest_path(b)
    assert manifest == f"{root}/manifest.x-2.json"
    brackets = f"{root}/a[1].txt"
    for path in (manifest, f"{b}.tmp-4711-0123abcd", f"{root}/d/b", brackets):
        _write(path)
    assert files.expand(f"{root}/*") == [other, brackets, a, b]
    assert files.expand(f"{manifest},{brackets}") == [manifest, brackets]
    assert files.expand(f"{b}*") == [b]
    with pytest.raises(InputError, match=r"^`x` has '.*/m\*', which match"):
        files.expand(f"{a},{root}/m*", "x")
    with pytest.raises(InputError, match=r"^The list of files is empty"):
        files.expand(" , ")


def test_outputs_do_not_overwrite_inputs(tmp_path):
    (path,) = _touch(tmp_path, "a")
    os.symlink(tmp_path, tmp_path / "link")
    os.symlink(tmp_path / "a", tmp_path / "b")
    spellings = [f"{tmp_path}/{name}" for name in ("./a", "link/a", "b")]
    for name in (*spellings, f"file://{tmp_path}/a"):
        message = f"The output {name} would overwrite the text {path}."
        with pytest.raises(InputError, match=re.escape(message)):
            files.check_outputs({"output": ["x", name]}, {"text": ["y", path]})
    files.check_outputs({"output": ["x", "z"]}, {"text": ["y", path, "y"]})


def test_outputs_do_not_overwrite_each_other():
    for outputs in (
        {"output": ["x"], "manifest": ["./x"]},
        {"output": ["gs://b/x", "gs://b/x"]},
    ):
        with pytest.raises(InputError, match=r"x would overwrite the output"):
            files.check_outputs(outputs, {})
    files.check_outputs({"output": ["gs://a/x", "gs://b/x", "b/x"]}, {})


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_open_read_decompresses_by_name(root, suffix):
    path, text = f"{root}/f{suffix}", b"one\ntwo\nthree"
    _write(path, gzip.compress(text) if suffix else text)
    with files.open_read(path) as file:
        assert file.read(5) == text[:5]
        assert list(file) == [b"wo\n", b"three"]


@pytest.mark.parametrize("path", ["none.gz", "ram://none/a", "."])
def test_open_read_names_an_unreadable_file(tmp_path, path):
    path = path if "://" in path else str(tmp_path / path)
    with pytest.raises(InputError, match=f"^Cannot read {path}: .+$"):
        files.open_read(path)


def test_text_is_read_without_its_byte_order_mark(write):
    assert files.read_text(write(b"\xef\xbb\xbfa\xc3\xa9")) == "aé"
    with pytest.raises(InputError, match=r"a\.txt:2: byte 0xff is not UTF-8"):
        files.read_text(write(b"a\nb\xff"))


@pytest.mark.parametrize(
    "read", [files.read_text, read_tokens, lambda x: list(read_lines(x))]
)
def test_gzip_without_gz_in_its_name_is_named(write, read):
    with pytest.raises(InputError, match=r"with gzip; add \.gz to its name"):
        read(write(gzip.compress(b"a\n")))


def test_damaged_gzip_text(tmp_path):
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(b"text")[:-5])
    with pytest.raises(InputError, match="compression is damaged or truncated"):
        files.read_text(str(path))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[1]", "a.json: expected a JSON object; got"),
        ('{"a": 1,\n oops}', r"a\.json:2: invalid JSON at column 2"),
        ("[" * 99_999, r"a\.json: cannot parse"),
    ],
)
def test_json_must_be_one_object(write, content, message):
    assert files.read_json(write('{"a": 1}')) == {"a": 1}
    with pytest.raises(InputError, match=message):
        files.read_json(write(content, "a.json"))


def test_the_last_of_repeated_keys_counts(write, caplog):
    assert files.read_json(write('{"b": {"a": 1, "a": 2}}')) == {"b": {"a": 2}}
    [record] = caplog.records
    assert "'a' occurs twice" in record.getMessage()


def test_atomic_writer_makes_directories_and_replaces(root):
    path = f"{root}/some/folder/f"
    for data in (b"first", b"second", b""):
        _write(path, data)
        with files.open_read(path) as file:
            assert file.read() == data
    assert files.expand(f"{root}/some/folder/*") == [path]


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_atomic_writer_keeps_the_old_file_on_errors(root, error):
    """The error may be about another file."""
    _write(f"{root}/f", b"old")
    with pytest.raises(error) as caught:
        _write(f"{root}/f", b"half", error)
    assert not isinstance(caught.value, InputError)
    assert files.listdir(root) == ["f"]
    assert files.read_text(f"{root}/f") == "old"


def test_atomic_writer_on_a_full_disk(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        with pytest.raises(InputError, match=r"Cannot write .*/f: File too"):
            _write(tmp_path / "f", b"x" * 10_001)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("link", ["links/relative", "links/twice", "folder/f"])
def test_atomic_writer_follows_links(tmp_path, link):
    (tmp_path / "real").mkdir()
    (tmp_path / "links").mkdir()
    target = tmp_path / "real" / "f"
    (tmp_path / "folder").symlink_to("real")
    (tmp_path / "links" / "relative").symlink_to("../real/f")
    (tmp_path / "links" / "twice").symlink_to("relative")
    for content in (b"old", b"new"):  # The first link leads nowhere.
        _write(tmp_path / link, content)
        assert target.read_bytes() == content
    assert [path.name for path in target.parent.iterdir()] == ["f"]
    assert (tmp_path / link.removesuffix("/f")).is_symlink()


def test_atomic_writer_replaces_only_files(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "folder").symlink_to("real")
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "pipe")
    before = sorted(tmp_path.iterdir())
    for name in ("folder", "loop", "pipe"):
        with pytest.raises(InputError, match="this is not a file"):
            _write(tmp_path / name)
        with pytest.raises(InputError, match="this is not a file"):
            files.check_outputs({"output": [str(tmp_path / name)]}, {})
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "pipe").is_fifo()


def test_atomic_writer_removes_files_of_killed_processes(tmp_path):
    with subprocess.Popen(["true"]) as gone:
        pass
    dead = f"tmp-{gone.pid}-0123abcd"
    kept = [
        f"a.tmp-{os.getpid()}-0123abcd",  # Of this process.
        "a.tmp-1-0123abcd",  # Of a process of another user.
        *("a.tmp-notes", f"b.{dead}", f"ba.{dead}"),
    ]
    _touch(tmp_path, f"a.{dead}", *kept)
    (tmp_path / f"a.tmp-{gone.pid}-0_23xyz0").mkdir()
    _touch(tmp_path / f"a.tmp-{gone.pid}-0_23xyz0", "spans")
    _write(tmp_path / "a")
    assert sorted(os.listdir(tmp_path)) == sorted(["a", *kept])


@pytest.mark.parametrize("path", ["file/f", "none://a/f"])
def test_atomic_writer_names_a_path_that_it_cannot_write(tmp_path, path):
    _touch(tmp_path, "file")
    path = path if "://" in path else str(tmp_path / path)
    with pytest.raises(InputError, match=f"^Cannot write {path}: [^\n]+$"):
        _write(path)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_directory_appears_when_it_is_complete(tmp_path, scheme):
    path = tmp_path / "new"
    with pytest.raises(KeyboardInterrupt):
        _make(f"{scheme}{path}/", KeyboardInterrupt)
    assert not [*tmp_path.rglob("*")]
    with files.atomic_directory(f"{scheme}{path}/") as folder:
        files.write_text(f"{folder}/a.txt", "a")
        assert not (path / "a.txt").exists()
    assert [p.name for p in tmp_path.rglob("*")] == ["new", "a.txt"]


def test_an_empty_directory_is_filled_not_replaced(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    _make(".")
    (tmp_path / "here" / "a.txt").unlink()
    _make(f"{tmp_path}/link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "here").stat().st_mode & 0o777 == 0o700
    assert [p.name for p in (tmp_path / "here").iterdir()] == ["a.txt"]
    assert len(list(tmp_path.iterdir())) == 2


def test_a_directory_replaces_nothing(root):
    """Not even files that are created meanwhile, on local disks."""
    _write(f"{root}/full/a.txt", b"mine")
    for name in ("full", "full/a.txt"):
        with pytest.raises(InputError, match=f"{name}.*new or empty"):
            _make(f"{root}/{name}")
    assert files.read_text(f"{root}/full/a.txt") == "mine"
    if not files.is_remote(root):
        with (
            pytest.raises(InputError, match="new or empty"),
            files.atomic_directory(f"{root}/new"),
        ):
            _write(f"{root}/new/mine.txt")
        assert files.listdir(f"{root}/new") == ["mine.txt"]
    assert {name.rstrip("/") for name in files.listdir(root)} <= {"full", "new"}
    _make(f"{root}/other")
    assert files.read_text(f"{root}/other/a.txt") == "a"


def test_an_unknown_scheme():
    path = "https://a.b/c"
    with pytest.raises(InputError, match=f"Cannot reach {path}: .*not impl"):
        files.exists(path)


def test_local_files_and_the_command_line_need_no_tensorflow(tmp_path):
    program = (
        "import sys; from bert_tf import cli; from bert_tf.base import files;"
        "from bert_tf.data import records;"
        f"records.write({str(tmp_path / 'f.gz')!r}, [b'x']);"
        f"records.verify(files.expand({str(tmp_path)!r} + '/*')[0]);"
        "assert not {'tensorflow', 'keras'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
