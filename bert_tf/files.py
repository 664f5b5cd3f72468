"""Files on the local disk and on any `scheme://` that TensorFlow can reach.

Local paths are plain Python; TensorFlow is imported only when a path holds
`://`, so that worker processes that handle local files start quickly.
"""

import contextlib
import errno
import functools
import glob
import gzip
import io
import json
import os
import posixpath
import re
import secrets
import shutil
import stat
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from bert_tf.errors import InputError

_TEMPORARY = re.compile(r"\.tmp-(\d{1,9})-[0-9a-z_]{8}$")
_MANIFEST = re.compile(r"manifest\..*\.json")
# What TensorFlow puts around the words of a kernel: where it ran, its name.
_MARKS = re.compile(r"\{\{\w+ [^}]*\}\}|\[Op:\w+\]")
_JSON_TYPES = {
    bool: "a boolean",
    dict: "an object",
    float: "a number",
    int: "a number",
    list: "a list",
    str: "a string",
    type(None): "null",
}
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def is_remote(path: str) -> bool:
    """True for `scheme://` paths, which go through `tf.io.gfile`."""
    return "://" in path


def is_utf8(path: str) -> bool:
    """False for a name with other bytes, which TensorFlow does not take."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _gfile() -> Any:
    import tensorflow as tf

    return tf.io.gfile


def expand(patterns: str, flag: str | None = None) -> list[str]:
    """Lists the files that a comma list of globs names.

    Each pattern's files are sorted and the patterns keep their order. A file
    that two patterns match is listed once. What a wildcard catches by accident
    is left out: directories, manifests, and temporaries of `atomic_writer`
    that a killed process left behind.

    Args:
      patterns: Paths or globs, separated by commas; blank items are ignored.
      flag: The flag that they are from, to be named where they are at fault.

    Returns:
      At least one path.

    Raises:
      InputError: A pattern matches no file, or there is no pattern.
    """
    items = [item.strip() for item in patterns.split(",") if item.strip()]
    if not items:
        received = f"--{flag}={patterns}" if flag else repr(patterns)
        raise InputError(
            "Expected a comma-separated list of files or globs. "
            f"Received: {received}"
        )
    found: dict[str, None] = {}
    for item in items:
        paths = _matches(item)
        if not paths:
            source = f"--{flag}" if flag else "every pattern"
            raise InputError(
                f"Expected {source} to name files. Received: {item!r}, which "
                "matches none; correct it, or make the file first"
            )
        found.update(dict.fromkeys(paths))
    return list(found)


def _matches(pattern: str) -> list[str]:
    """Sorted files of one pattern; a file's own name always matches it."""
    with blaming("read", pattern):
        if exists(pattern) and not is_directory(pattern):
            return [pattern]
        matches = _gfile().glob if is_remote(pattern) else glob.glob
        return sorted(path for path in matches(pattern) if _is_data(path))


def _is_data(path: str) -> bool:
    name = posixpath.basename(path)
    by_product = _MANIFEST.fullmatch(name) or _TEMPORARY.search(name)
    return not by_product and not is_directory(path)


def check_outputs(
    outputs: Mapping[str, Sequence[str]], inputs: Mapping[str, Sequence[str]]
) -> None:
    """Refuses outputs that would replace an input or one another.

    Paths are the same file if they lead to the same place, by symbolic links
    too. To be called before anything is read or written.

    Args:
      outputs: The paths to write, by what they are called in the message.
      inputs: The paths to read, likewise.

    Raises:
      InputError: Two are the same file and one of them is an output.
    """
    taken = {
        _identity(path): f"the {role} {path}"
        for role, paths in inputs.items()
        for path in paths
    }
    for role, paths in outputs.items():
        for path in paths:
            this = f"the {role} {path}"
            other = taken.setdefault(_identity(path), this)
            if other is not this:
                raise InputError(
                    "Expected every output to be a file of its own. Received: "
                    f"{this}, which is {other} as well; name another"
                )


def _identity(path: str) -> str:
    """The same for two spellings of one path."""
    local = path.removeprefix("file://")
    return local if is_remote(local) else os.path.realpath(local)


def manifest_path(output_path: str) -> str:
    """Where the manifest of an output lies: beside it, out of its globs.

    `dir/out.tfrecord` has `dir/manifest.out.tfrecord.json`, which
    `dir/out.tfrecord*` does not match and `expand` skips.
    """
    folder, name = posixpath.split(output_path)
    return posixpath.join(folder, f"manifest.{name}.json")


def exists(path: str) -> bool:
    """True if `path` is a file or a directory.

    Raises:
      InputError: Nothing here can reach paths of its scheme.
    """
    with blaming("reach", path):
        return (_gfile() if is_remote(path) else os.path).exists(path)


def is_directory(path: str) -> bool:
    """True if `path` is a directory."""
    return _gfile().isdir(path) if is_remote(path) else os.path.isdir(path)


def listdir(path: str) -> list[str]:
    """The names in a directory, in no order."""
    with blaming("read", path):
        return (_gfile() if is_remote(path) else os).listdir(path)


def makedirs(path: str) -> None:
    """Creates a directory and its parents where they are missing."""
    if is_remote(path):
        _gfile().makedirs(path)
    else:
        os.makedirs(path, exist_ok=True)


def rename(source: str, target: str) -> None:
    """Moves a file within its file system, over `target` if that exists."""
    if is_remote(source):
        _gfile().rename(source, target, overwrite=True)
    else:
        os.replace(source, target)


def remove(path: str) -> None:
    """Deletes a file."""
    if is_remote(path):
        _gfile().remove(path)
    else:
        os.remove(path)


def remove_tree(path: str) -> None:
    """Deletes a file, or a directory with all that it holds."""
    if not is_directory(path):
        remove(path)
    else:
        (_gfile().rmtree if is_remote(path) else shutil.rmtree)(path)


def open_read(path: str) -> io.BufferedIOBase:
    """Opens a file for reading bytes; what ends in `.gz` is decompressed.

    Raises:
      InputError: The file cannot be opened.
    """
    compressed = path.endswith(".gz")
    with blaming("read", path):
        if not is_remote(path):
            return gzip.GzipFile(path) if compressed else open(path, "rb")
        file = _gfile().GFile(path, "rb")
        file.seek(0)  # A GFile is opened by its first use only.
        return gzip.GzipFile(fileobj=file) if compressed else file


def read_text(path: str) -> str:
    """Reads a whole text file; a byte order mark at its start is dropped.

    Raises:
      InputError: The file cannot be read, or is not UTF-8.
    """
    with blaming("read", path), open_read(path) as file:
        content = file.read()
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"Expected {path} to be UTF-8. Received: byte "
            f"0x{content[error.start]:02x} at offset {error.start}"
        ) from error


def read_json(path: str, expected: str = "a JSON object") -> dict[str, Any]:
    """Reads a file that holds one JSON object.

    Args:
      path: The file.
      expected: What the file should hold, for the error message.

    Raises:
      InputError: The file cannot be read or holds something else.
    """
    text = read_text(path)
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(
            f"Expected JSON. Received: {error.msg} at {path}:{error.lineno} "
            f"(column {error.colno})"
        ) from error
    except (RecursionError, ValueError) as error:
        # Brackets in brackets without end, or a number of 5,000 digits.
        raise InputError(
            f"Expected JSON. Received: {path}, which goes too far: {error}"
        ) from error
    if not isinstance(values, dict):
        raise InputError(
            f"Expected {expected}. Received: {json_type(values)} in {path}"
        )
    return values


def json_type(value: Any) -> str:
    """Returns JSON's name, with an article, of the type of a parsed value."""
    return _JSON_TYPES[type(value)]


def write_text(path: str, text: str) -> None:
    """Writes a text file that appears as a whole; see `atomic_writer`."""
    with atomic_writer(path) as file:
        file.write(text.encode())


@contextlib.contextmanager
def gzip_faults(path: str) -> Iterator[None]:
    """Names the file where its compression is at fault, while it is read.

    Raises:
      InputError: `path`, opened by `open_read`, is cut off or damaged.
    """
    try:
        yield
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(
            f"Expected {path} to be a whole gzip file. Received: {error}"
        ) from error


@contextlib.contextmanager
def atomic_writer(path: str) -> Iterator[io.BufferedIOBase]:
    """Yields a file that appears under `path` only when it is complete.

    The bytes go to `<path>.tmp-<process>-<random>`, which is renamed when the
    block ends and removed when anything is raised in it: errors, a full disk,
    KeyboardInterrupt, SystemExit (so also SIGTERM, where a handler raises
    that). What SIGKILL leaves is removed by the next writer of `path`. Missing
    directories are created.

    Args:
      path: The final name; a file of that name is replaced. Of a symbolic link
        the file that it leads to is replaced. Devices and pipes are written to
        directly.

    Raises:
      InputError: The place cannot be written to, or it is full.
    """
    if is_special(path):
        with _or_undone(path), _open_special(path) as file:
            yield file
        return
    target = follow_links(path)
    temporary = temporary_prefix(target) + secrets.token_hex(4)
    remove_leftovers(target)
    with _or_undone(path, functools.partial(remove, temporary)):
        with _open_write(temporary, target, path) as file:
            file.write(b"")  # A GFile is made by its first write only.
            yield file
            _flush_to_disk(file)
        with blaming("write", path):
            rename(temporary, target)


def is_special(path: str) -> bool:
    """True for a device, a FIFO or a socket: what a rename would destroy."""
    try:
        mode = os.stat(path.removeprefix("file://")).st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def follow_links(path: str) -> str:
    """Returns the file that a local path leads to through symbolic links.

    The file itself may be missing. Remote paths are returned unchanged.

    Raises:
      InputError: The links lead in a circle.
    """
    local = path.removeprefix("file://")
    if is_remote(local) or local.endswith("/"):
        return path
    target = os.path.realpath(local)
    with blaming("write", path):
        if os.path.islink(target):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    return path[: len(path) - len(local)] + target


@contextlib.contextmanager
def atomic_directory(path: str) -> Iterator[str]:
    """Yields a directory that appears under `path` only when it is complete.

    It is made beside `path`, renamed when the block ends and removed when
    anything is raised in it; see `atomic_writer`.

    Args:
      path: The final name: new, or an empty directory.

    Raises:
      InputError: There is something already, be it that it came meanwhile, or
        the place cannot be written to.
    """
    place = path.rstrip("/") if is_remote(path) else os.path.realpath(path)
    with blaming("write", path):
        _require_vacant(place, path)
        remove_leftovers(place)
        temporary = temporary_prefix(place) + secrets.token_hex(4)
        makedirs(temporary)
    with _or_undone(path, functools.partial(remove_tree, temporary)):
        with _final_name_in_errors(temporary, path):
            yield temporary
        with blaming("write", path):
            if not is_remote(place):
                # Where directories are but prefixes of names, it would find
                # its own temporary.
                _require_vacant(place, path)
            _move_directory(temporary, place)


@contextlib.contextmanager
def _final_name_in_errors(temporary: str, path: str) -> Iterator[None]:
    """Makes error messages name `path` instead of its temporary."""
    try:
        yield
    except (InputError, OSError) as error:
        message = str(error)
        if temporary not in message or _is_fault_of_place(error, path):
            raise
        raise InputError(message.replace(temporary, path)) from error


@contextlib.contextmanager
def _or_undone(
    path: str, undo: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Undoes what was begun for `path` when anything is raised.

    A full disk is an InputError that names `path`; all else goes on its way.
    """
    try:
        yield
    except BaseException as error:
        with contextlib.suppress(*_failures(path)):
            undo()
        if _is_fault_of_place(error, path):
            raise _input_error("write", path, error) from error
        raise


def _require_vacant(place: str, path: str) -> None:
    if exists(place) and (not is_directory(place) or listdir(place)):
        raise InputError(
            "Expected a directory that is new or empty. Received: "
            f"{path!r}, which is neither; name another, or remove it"
        )


def _move_directory(source: str, target: str) -> None:
    """Moves all at once, or, into an empty directory, file by file."""
    if not exists(target) and not is_remote(target):
        os.rename(source, target)
        return
    makedirs(target)
    for name in sorted(listdir(source)):
        rename(os.path.join(source, name), os.path.join(target, name))
    remove_tree(source)


def temporary_prefix(path: str) -> str:
    """How the names of this process's temporaries of `path` begin.

    With eight random letters or digits behind, they are left out by `expand`
    and found by `remove_leftovers`.
    """
    return f"{path}.tmp-{os.getpid()}-"


def remove_leftovers(path: str) -> None:
    """Removes the local temporaries of `path` whose process was killed."""
    if is_remote(path):
        return
    for leftover in glob.glob(glob.escape(path) + ".tmp-*"):
        name = _TEMPORARY.fullmatch(leftover, len(path))
        if not name or _is_alive(int(name[1])):
            continue
        if os.path.isdir(leftover):
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                os.remove(leftover)


def _is_alive(process: int) -> bool:
    """True unless there is no such process, be it another user's."""
    try:
        os.kill(process, 0)
    except OSError as error:
        return error.errno == errno.EPERM
    return True


class _Unseekable(io.FileIO):
    """A device or a pipe, which has no position that a zip file could use."""

    def seekable(self) -> bool:
        return False

    def tell(self) -> int:
        raise io.UnsupportedOperation("a device or a pipe has no position")


def _open_special(path: str) -> io.BufferedIOBase:
    with blaming("write", path):
        return io.BufferedWriter(
            _Unseekable(path.removeprefix("file://"), "wb")
        )


def _open_write(temporary: str, target: str, path: str) -> io.BufferedIOBase:
    """Opens the temporary of `target`, in a directory made where missing.

    `path` is what the user calls it.
    """
    folder = posixpath.dirname(target)
    with blaming("write", path):
        if target.endswith("/") or is_directory(target):
            raise IsADirectoryError(errno.EISDIR, "it is a directory")
        if folder:
            makedirs(folder)
        return (_gfile().GFile if is_remote(path) else open)(temporary, "wb")


def _flush_to_disk(file: io.BufferedIOBase) -> None:
    """Waits for the disk, so that a crash cannot leave a renamed empty file."""
    file.flush()
    if hasattr(file, "fileno"):
        os.fsync(file.fileno())


def _is_fault_of_place(error: BaseException, path: str) -> bool:
    """True where writing to `path` failed, and not what was to be written."""
    if isinstance(error, OSError):
        return error.errno in _DISK_FULL
    return isinstance(error, _failures(path))


@contextlib.contextmanager
def blaming(verb: str, path: str, *more: type[Exception]) -> Iterator[None]:
    """Turns the file system's refusals into InputErrors that name `path`.

    `more` are exceptions by which a library passes them on.
    """
    try:
        yield
    except (*_failures(path), *more) as error:
        raise _input_error(verb, path, error) from error


def _failures(path: str) -> tuple[type[Exception], ...]:
    """What the file system of `path` raises."""
    if not is_remote(path):
        return (OSError,)
    import tensorflow as tf

    return (OSError, tf.errors.OpError)


def _input_error(verb: str, path: str, error: BaseException) -> InputError:
    """One line of what the file system said, without TensorFlow's marks."""
    said = getattr(error, "strerror", None) or getattr(error, "message", None)
    reason = " ".join(_MARKS.sub("", said or type(error).__name__).split())
    return InputError(f"Cannot {verb} {path}: {reason}.")
