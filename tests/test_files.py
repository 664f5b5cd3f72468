"""Files are found, read and written as a whole, or an error names them."""

import errno
import gzip
import os
import re
import resource
import signal
import stat
import subprocess
import sys
import zipfile

import pytest

from bert_tf import files
from bert_tf.errors import InputError


def _touch(folder, *names):
    for name in names:
        (folder / name).write_bytes(name.encode())
    return [str(folder / name) for name in names]


def _write(path, data=b"data"):
    with files.atomic_writer(str(path)) as file:
        file.write(data)


def _fail_to_write(path, error):
    with files.atomic_writer(path) as file:
        file.write(b"half")
        raise error


def test_expand_sorts_each_pattern_and_keeps_their_order(tmp_path):
    b, a, other = _touch(tmp_path, "x-2", "x-1", "a")
    assert files.expand(f"{tmp_path}/x*, {other}") == [a, b, other]
    assert files.expand(f"{other},{tmp_path}/x*") == [other, a, b]
    assert files.expand(f"{b},{tmp_path}/x*,{a},") == [b, a]


def test_expand_skips_what_a_wildcard_matches_by_accident(tmp_path):
    (data,) = _touch(tmp_path, "out.tfrecord")
    _touch(tmp_path, "manifest.out.tfrecord.json")
    _touch(tmp_path, "out.tfrecord.tmp-4711-0123abcd")
    (tmp_path / "folder").mkdir()
    assert files.expand(f"{tmp_path}/*") == [data]
    names = _touch(tmp_path, "manifest.notes.json", "a[1].txt")
    assert files.expand(",".join(names)) == names


@pytest.mark.parametrize(
    ("flag", "place"), [(None, "The list of files"), ("x", "--x")]
)
def test_expand_needs_files(tmp_path, flag, place):
    (path,) = _touch(tmp_path, "a")
    _touch(tmp_path, "manifest.b.json")
    with pytest.raises(
        InputError, match=rf"^{place} has '.*/m\*', which match"
    ):
        files.expand(f"{path},{tmp_path}/m*", flag)
    for patterns in ("", " , "):
        with pytest.raises(InputError, match=f"^{place} is empty"):
            files.expand(patterns, flag)


def test_expand_remote():
    for name in ("ram://expand/b", "ram://expand/a", "ram://expand/c"):
        _write(name)
    assert files.expand("ram://expand/c,ram://expand/*") == [
        "ram://expand/c",
        "ram://expand/a",
        "ram://expand/b",
    ]


def test_globs_of_an_output_do_not_match_its_manifest(tmp_path):
    output = str(tmp_path / "out.tfrecord")
    _touch(tmp_path, "out.tfrecord", "out.tfrecord-00001")
    _touch(tmp_path, os.path.basename(files.manifest_path(output)))
    assert len(files.expand(output + "*")) == 2
    assert len(files.expand(f"{tmp_path}/*")) == 2
    assert files.manifest_path("gs://b/out") == "gs://b/manifest.out.json"
    assert files.manifest_path("out") == "manifest.out.json"


def _spellings(folder):
    """Other names of the file `a` in `folder`."""
    os.symlink(folder, folder / "link")
    os.symlink(folder / "a", folder / "b")
    names = ["a", "./a", "link/a", "b", "none/../a"]
    return [*(f"{folder}/{name}" for name in names), f"file://{folder}/a"]


def test_outputs_do_not_overwrite_inputs(tmp_path):
    (path,) = _touch(tmp_path, "a")
    for name in _spellings(tmp_path):
        message = f"The output {name} would overwrite the text {path}."
        with pytest.raises(InputError, match=re.escape(message)):
            files.check_outputs({"output": ["x", name]}, {"text": ["y", path]})
    files.check_outputs({"output": ["x", "z"]}, {"text": ["y", path, "y"]})


def test_outputs_do_not_overwrite_each_other():
    for outputs in (
        {"output": ["x", "y", "./x"]},
        {"output": ["x"], "manifest": ["./x"]},
        {"output": ["gs://b/x", "gs://b/x"]},
    ):
        with pytest.raises(InputError, match=r"x would overwrite the output"):
            files.check_outputs(outputs, {})
    files.check_outputs({"output": ["gs://a/x", "gs://b/x", "b/x"]}, {})


@pytest.mark.parametrize("remote", [False, True])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_open_read_decompresses_by_name(tmp_path, remote, suffix):
    path = ("ram://read" if remote else str(tmp_path)) + "/f" + suffix
    text = b"one\ntwo\nthree"
    _write(path, gzip.compress(text) if suffix else text)
    with files.open_read(path) as file:
        assert file.read(5) == text[:5]
        assert file.read() == text[5:]
    with files.open_read(path) as file:
        assert list(file) == [b"one\n", b"two\n", b"three"]


@pytest.mark.parametrize("path", ["none", "none.gz", "ram://none/a", "."])
def test_open_read_names_an_unreadable_file(tmp_path, path):
    path = path if "://" in path else str(tmp_path / path)
    with pytest.raises(InputError, match=f"^Cannot read {path}: .+$"):
        files.open_read(path)


@pytest.mark.parametrize("remote", [False, True])
def test_atomic_writer_makes_directories_and_replaces(tmp_path, remote):
    root = "ram://atomic" if remote else str(tmp_path)
    path = f"{root}/some/folder/f"
    for data in (b"first", b"second", b""):
        _write(path, data)
        with files.open_read(path) as file:
            assert file.read() == data
    with files.atomic_writer(f"{root}/empty"):
        pass
    assert files.open_read(f"{root}/empty").read() == b""
    assert files.expand(f"{root}/some/folder/*") == [path]


@pytest.mark.parametrize("root", ["local", "ram://removed"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, OSError])
def test_atomic_writer_removes_its_file_on_errors(tmp_path, root, error):
    root = str(tmp_path) if root == "local" else root
    with pytest.raises(error) as caught:
        _fail_to_write(f"{root}/f", error)
    # The error may be about another file.
    assert not isinstance(caught.value, InputError)
    with pytest.raises(InputError):
        files.expand(f"{root}/*")
    assert not list(tmp_path.iterdir())


def test_atomic_writer_replaces_the_old_file_at_the_end(tmp_path):
    (path,) = _touch(tmp_path, "f")
    with pytest.raises(KeyError):
        _fail_to_write(path, KeyError)
    with files.atomic_writer(path) as file:
        file.write(b"half")
        assert (tmp_path / "f").read_bytes() == b"f"
    assert (tmp_path / "f").read_bytes() == b"half"
    assert len(list(tmp_path.iterdir())) == 1


def test_atomic_writer_on_a_full_disk(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        with pytest.raises(InputError, match=r"Cannot write .*/f: File too"):
            _write(tmp_path / "f", b"x" * 10_001)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.iterdir())


def _links(folder):
    """Links to `folder / "real" / "f"`, in other folders."""
    (folder / "real").mkdir()
    (folder / "links").mkdir()
    (folder / "folder").symlink_to("real")
    (folder / "links" / "absolute").symlink_to(folder / "real" / "f")
    (folder / "links" / "relative").symlink_to("../real/f")
    (folder / "links" / "twice").symlink_to("relative")
    names = ["links/absolute", "links/relative", "links/twice", "folder/f"]
    return [folder / name for name in names]


@pytest.mark.parametrize("scheme", ["", "file://"])
@pytest.mark.parametrize("dangling", [False, True])
def test_atomic_writer_follows_links(tmp_path, scheme, dangling):
    for number, link in enumerate(_links(tmp_path)):
        target = tmp_path / "real" / "f"
        if dangling:
            target.unlink(missing_ok=True)
        data = f"{number}".encode()
        with files.atomic_writer(f"{scheme}{link}") as file:
            file.write(data)
            assert not target.exists() or target.read_bytes() != data
        assert target.read_bytes() == data
        assert not target.is_symlink()
    assert [path.name for path in target.parent.iterdir()] == ["f"]
    links = (tmp_path / "links").iterdir()
    assert sorted(path.name for path in links if path.is_symlink()) == [
        *("absolute", "relative", "twice")
    ]
    assert (tmp_path / "folder").is_symlink()


def test_atomic_writer_keeps_links_that_lead_to_no_file(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "folder").symlink_to("real")
    (tmp_path / "loop").symlink_to("loop")
    for name, reason in ("folder", "it is a directory"), ("loop", "symbolic"):
        pattern = f"^Cannot write {tmp_path}/{name}: .*{reason}"
        with pytest.raises(InputError, match=pattern):
            _write(tmp_path / name)
        assert (tmp_path / name).is_symlink()
    assert not list((tmp_path / "real").iterdir())


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_atomic_writer_writes_into_a_pipe(tmp_path, scheme):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for name in ("pipe", "link"):
        reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
        with files.atomic_writer(f"{scheme}{tmp_path}/{name}") as file:
            file.write(b"data")
        assert os.read(reader, 10) == b"data"
        os.close(reader)
    assert (tmp_path / "pipe").is_fifo()
    assert len(list(tmp_path.iterdir())) == 2


def test_atomic_writer_does_not_replace_a_device(tmp_path):
    path = tmp_path / "null"
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        path.write_bytes(b"")
    except OSError as error:
        pytest.skip(f"no device can be made: {error}")
    _write(path)
    with pytest.raises(KeyError):
        _fail_to_write(str(path), KeyError)
    with (
        files.atomic_writer(str(path)) as file,
        zipfile.ZipFile(file, "w") as z,
    ):
        z.writestr("name", "A device has no position to return to.")
    assert path.is_char_device()
    assert len(list(tmp_path.iterdir())) == 1


def test_atomic_writer_removes_files_of_killed_processes(tmp_path):
    with subprocess.Popen(["true"]) as gone:
        pass
    dead = f"tmp-{gone.pid}-0123abcd"
    kept = [
        f"a.tmp-{os.getpid()}-0123abcd",  # Of this process.
        "a.tmp-1-0123abcd",  # Of a process of another user.
        "a.tmp-99999999999-0123abcd",
        "a.tmp-notes",
        f"b.{dead}",
        f"ba.{dead}",
        f"a.{dead}.b.{dead}",
    ]
    _touch(tmp_path, f"a.{dead}", *kept)
    (tmp_path / f"a.tmp-{gone.pid}-0_23xyz0").mkdir()
    _touch(tmp_path / f"a.tmp-{gone.pid}-0_23xyz0", "spans")
    _write(tmp_path / "a")
    assert sorted(os.listdir(tmp_path)) == sorted(["a", *kept])


_WAITING_WRITER = """
import signal, sys, time
from bert_tf import files
signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
with files.atomic_writer(sys.argv[1]) as file:
    file.write(b"half")
    print("writing", flush=True)
    time.sleep(60)
"""


def test_atomic_writer_when_terminated(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", _WAITING_WRITER, str(tmp_path / "f")],
        stdout=subprocess.PIPE,
    )
    with process:
        assert process.stdout.readline() == b"writing\n"
        assert len(list(tmp_path.iterdir())) == 1
        process.send_signal(signal.SIGTERM)
    assert process.returncode == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("path", ["file/f", "file/sub/f", ".", "none://a/f"])
def test_atomic_writer_names_a_path_that_it_cannot_write(tmp_path, path):
    _touch(tmp_path, "file")
    path = path if "://" in path else str(tmp_path / path)
    with pytest.raises(InputError, match=f"^Cannot write {path}: [^\n]+$"):
        _write(path)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_errors_of_libraries_name_the_path():
    class Full(Exception):
        message = "{{node Save}} no space left [Op:Save]\nmore"

    with (
        pytest.raises(InputError, match=r"^Cannot write a/b: no space left\.$"),
        files.input_errors("write", "a/b", Full),
    ):
        raise Full
    with pytest.raises(Full), files.input_errors("write", "a/b"):
        raise Full


def test_local_files_need_no_tensorflow(tmp_path):
    program = (
        "import sys; from bert_tf import files;"
        "from bert_tf.data import records;"
        f"w = records.RecordWriter({str(tmp_path / 'f.gz')!r});"
        "w.__enter__(); w.write_all([b'x']); w.__exit__(None, None, None);"
        f"records.verify(files.expand({str(tmp_path)!r} + '/*')[0]);"
        "assert not {'tensorflow', 'keras'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_text_is_read_without_its_byte_order_mark(tmp_path):
    path = tmp_path / "a.txt"
    for text in ("a long first text\n", "é\n"):
        files.write_text(str(path), text)
        assert files.read_text(str(path)) == text
    path.write_bytes(b"\xef\xbb\xbfa")
    assert files.read_text(str(path)) == "a"
    path.write_bytes(b"ab\xff")
    with pytest.raises(InputError, match=r"a\.txt.* 0xff at offset 2"):
        files.read_text(str(path))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[1]", "a.json: expected a JSON object, found a list"),
        ("null", "found null"),
        ('"a"', "found a string"),
        ("7", "found a number"),
        ('{"a": 1,\n oops}', r"a\.json:2: invalid JSON at column 2"),
        ("", r"a\.json:1: invalid JSON at column 1"),
        ("[" * 99_999, r"a\.json: cannot parse"),
        ("9" * 9999, r"a\.json: cannot parse"),
        (b"\xff", r"expected UTF-8, found byte 0xff"),
    ],
)
def test_json_must_be_one_object(tmp_path, content, message):
    path = tmp_path / "a.json"
    path.write_text('{"a": 1}')
    assert files.read_json(str(path)) == {"a": 1}
    path.write_bytes(content.encode() if type(content) is str else content)
    with pytest.raises(InputError, match=message):
        files.read_json(str(path))


@pytest.mark.parametrize("scheme", ["", "file://"])
@pytest.mark.parametrize("exists", [False, True])
def test_a_directory_appears_when_it_is_complete(tmp_path, scheme, exists):
    path = tmp_path / "new"
    if exists:
        path.mkdir()
    with files.atomic_directory(f"{scheme}{path}/") as folder:
        files.write_text(f"{folder}/a.txt", "a")
        assert not (path / "a.txt").exists()
    assert (path / "a.txt").read_text() == "a"
    assert [p.name for p in tmp_path.iterdir()] == ["new"]


def test_files_created_meanwhile_in_a_directory_are_kept(tmp_path):
    def make():
        with files.atomic_directory(f"{tmp_path}/new") as folder:
            files.write_text(f"{folder}/a.txt", "a")
            files.write_text(f"{tmp_path}/new/mine.txt", "mine")

    with pytest.raises(InputError, match="new or empty"):
        make()
    assert [p.name for p in tmp_path.rglob("*")] == ["new", "mine.txt"]


def test_an_empty_directory_is_filled_not_replaced(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    with files.atomic_directory(".") as folder:
        files.write_text(f"{folder}/a.txt", "a")
    (tmp_path / "here" / "a.txt").unlink()
    with files.atomic_directory(f"{tmp_path}/link") as folder:
        files.write_text(f"{folder}/b.txt", "b")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "here").stat().st_mode & 0o777 == 0o700
    assert [p.name for p in (tmp_path / "here").iterdir()] == ["b.txt"]
    assert len(list(tmp_path.iterdir())) == 2


def test_a_directory_in_memory(tmp_path):
    with files.atomic_directory("ram://a/new") as folder:
        files.write_text(f"{folder}/a.txt", "a")
    assert files.read_text("ram://a/new/a.txt") == "a"
    with (
        pytest.raises(InputError, match="new or empty"),
        files.atomic_directory("ram://a/new"),
    ):
        pass


def test_a_full_disk_names_the_directory(tmp_path):
    with (
        pytest.raises(InputError, match=f"Cannot write {tmp_path}/new: No sp"),
        files.atomic_directory(f"{tmp_path}/new"),
    ):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert list(tmp_path.iterdir()) == []


def _fail_in_directory(path, error_of):
    with files.atomic_directory(path) as folder:
        raise error_of(f"{folder}/a.txt")


@pytest.mark.parametrize(
    "error_of",
    [
        lambda path: InputError(f"Cannot write {path}: it is full."),
        lambda path: OSError(f"Cannot write {path}: it is full."),
        lambda path: OSError(errno.ENOSPC, "it is full", path),
    ],
)
def test_errors_in_a_directory_name_its_final_path(
    tmp_path, monkeypatch, error_of
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        _fail_in_directory("some/new", error_of)
    message = str(caught.value).replace("/a.txt", "")
    assert message == "Cannot write some/new: it is full."


@pytest.mark.parametrize("path", ["https://a.b/c", "nonsense://a"])
def test_an_unknown_scheme(path):
    with pytest.raises(InputError, match=f"Cannot reach {path}: .*not impl"):
        files.exists(path)


def interrupted(path):
    with files.atomic_directory(path) as folder:
        files.write_text(f"{folder}/a.txt", "a")
        raise KeyboardInterrupt


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_an_interrupted_directory_is_removed(tmp_path, scheme):
    with pytest.raises(KeyboardInterrupt):
        interrupted(f"{scheme}{tmp_path}/new")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["full", "full/a.txt", "full/a.txt/b"])
def test_a_directory_replaces_nothing(tmp_path, name):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a.txt").write_text("mine")
    with (
        pytest.raises(InputError, match=name),
        files.atomic_directory(f"{tmp_path}/{name}"),
    ):
        pass
    assert [p.name for p in tmp_path.rglob("*")] == ["full", "a.txt"]
    assert (tmp_path / "full" / "a.txt").read_text() == "mine"
