"""Files on the local disk and on any `scheme://` that TensorFlow can reach.

Local paths use plain Python. TensorFlow is imported only for paths with `://`,
so that worker processes that handle local files start quickly.

If the file system fails (an unknown scheme, a missing file, a full disk),
functions raise an InputError that names the path. Only `is_directory`,
`makedirs`, `rename`, `remove` and `remove_tree` raise the file system's errors.
"""

import collections
import contextlib
import errno
import functools
import glob
import gzip
import hashlib
import io
import json
import os
import posixpath
import re
import secrets
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from absl import logging

from bert_tf.errors import (
    InputError,
    in_file,
    not_utf8,
    reason,
    shortened,
    tensorflow_required,
    wrong_value,
)

_TEMPORARY = re.compile(r"\.tmp-(\d{1,9})-[0-9a-z_]{8}$")
_MANIFEST = re.compile(r"manifest\..*\.json")
_BLOCK = 1 << 20
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


# --------------------------------------------------------- paths and errors


def is_remote(path: str) -> bool:
    """Returns whether a path has a `scheme://`, which `tf.io.gfile` handles."""
    return "://" in path


def path_text(path: Any, name: str = "The path") -> str:
    """Returns a path as a string.

    Raises:
      InputError: If it is not a string or a `Path`. The message calls it
        `name`.
    """
    if isinstance(path, os.PathLike):
        path = os.fspath(path)
    if not isinstance(path, str):
        raise wrong_value(name, "a string or a pathlib.Path", path)
    return path


def is_utf8(path: str) -> bool:
    """Returns whether UTF-8 can encode a path, as TensorFlow requires."""
    return path.encode(errors="ignore").decode() == path


def _tensorflow() -> Any:
    with tensorflow_required("A path with ://"):
        import tensorflow as tf

    return tf


def _gfile() -> Any:
    return _tensorflow().io.gfile


@contextlib.contextmanager
def input_errors(
    verb: str, path: str, *more: type[Exception]
) -> Iterator[None]:
    """Turns errors of the file system into "Cannot VERB PATH: ...".

    `more` are exceptions that a library raises instead.
    """
    try:
        yield
    except (*_system_errors(path), *more) as error:
        raise InputError(f"Cannot {verb} {path}: {reason(error)}.") from error


def _system_errors(path: str) -> tuple[type[Exception], ...]:
    """Returns the exceptions that the file system of `path` raises."""
    if not is_remote(path):
        return (OSError,)
    return (OSError, _tensorflow().errors.OpError)


def expand(patterns: str, argument: str | None = None) -> list[str]:
    """Lists the files of a comma-separated list of globs.

    Each pattern's files are sorted and the patterns keep their order. A file
    that two patterns match is listed once. Directories, manifests and temporary
    files of killed processes, which a wildcard matches by accident, are
    skipped.

    Args:
      patterns: Paths or globs, separated by commas; blank items are ignored.
      argument: The argument that has the patterns, for messages.

    Raises:
      InputError: A pattern matches no file, or there is no pattern.
    """
    place = f"`{argument}`" if argument else "The list of files"
    items = [item.strip() for item in patterns.split(",") if item.strip()]
    if not items:
        raise InputError(
            f"{place} is empty; pass files or globs, separated by commas."
        )
    matches: list[str] = []
    for item in items:
        paths = _matches(item)
        if not paths:
            raise InputError(
                f"{place} has {item!r}, which matches no file. Correct it, or "
                "create the file first."
            )
        matches += paths
    return [*dict.fromkeys(matches)]


def _matches(pattern: str) -> list[str]:
    """Returns the sorted files of one pattern, or the file of that name."""
    with input_errors("read", pattern):
        if exists(pattern) and not is_directory(pattern):
            return [pattern]
        matches = _gfile().glob if is_remote(pattern) else glob.glob
        return sorted(path for path in matches(pattern) if _is_data(path))


def _is_data(path: str) -> bool:
    name = posixpath.basename(path)
    by_product = _MANIFEST.fullmatch(name) or _TEMPORARY.search(name)
    return not by_product and not is_directory(path)


def manifest_path(output_path: str) -> str:
    """Returns `dir/manifest.out.tfrecord.json` for `dir/out.tfrecord`.

    The glob `dir/out.tfrecord*` does not match it, and `expand` skips it.
    """
    folder, name = posixpath.split(output_path)
    return posixpath.join(folder, f"manifest.{name}.json")


def check_outputs(
    outputs: Mapping[str, Sequence[str]], inputs: Mapping[str, Sequence[str]]
) -> None:
    """Checks that outputs do not overwrite inputs or each other.

    Symbolic links are followed.

    Args:
      outputs: The paths to write, by the role that messages name ("output").
      inputs: The paths to read, by role.

    Raises:
      InputError: Two paths are the same file and one of them is an output, or
        an output is a directory, a device or a pipe.
    """
    taken = {
        _identity(path): f"the {role} {path}"
        for role, paths in inputs.items()
        for path in paths
    }
    for role, paths in outputs.items():
        for path in paths:
            require_file(path)
            this = f"the {role} {path}"
            other = taken.setdefault(_identity(path), this)
            if other is not this:
                raise InputError(
                    f"{this[0].upper()}{this[1:]} would overwrite {other}. "
                    "Choose another path."
                )


def _identity(path: str) -> str:
    """Returns the same string for two spellings of a path."""
    local = path.removeprefix("file://")
    return local if is_remote(local) else os.path.realpath(local)


# --------------------------------------------------------- simple operations


def exists(path: str) -> bool:
    """Returns whether `path` is a file or a directory."""
    with input_errors("reach", path):
        return (_gfile() if is_remote(path) else os.path).exists(path)


def is_directory(path: str) -> bool:
    return _gfile().isdir(path) if is_remote(path) else os.path.isdir(path)


def listdir(path: str) -> list[str]:
    """Returns the names in a directory, in no particular order."""
    with input_errors("read", path):
        return (_gfile() if is_remote(path) else os).listdir(path)


def makedirs(path: str) -> None:
    """Creates a directory and its parents, unless they exist."""
    if is_remote(path):
        _gfile().makedirs(path)
    else:
        os.makedirs(path, exist_ok=True)


def rename(source: str, target: str) -> None:
    """Moves a file within its file system, replacing `target`."""
    if is_remote(source):
        _gfile().rename(source, target, overwrite=True)
    else:
        os.replace(source, target)


def remove(path: str) -> None:
    (_gfile() if is_remote(path) else os).remove(path)


def remove_tree(path: str) -> None:
    """Deletes a file, or a directory with its contents."""
    if not is_directory(path):
        remove(path)
    else:
        (_gfile() if is_remote(path) else shutil).rmtree(path)


# ------------------------------------------------------------------- reading


def find_in(folder: str, name: str) -> str | None:
    """Returns the path of a file in an untrusted folder; None if missing.

    Symbolic links are followed: a cache of the Hub consists of them.

    Raises:
      InputError: `name` leads out of the folder, or is not a file.
    """
    steps = re.split(r"[/\\]", name)
    if ".." in steps or not steps[0] or ":" in name or "\0" in name:
        raise in_file(
            folder, f"{shortened(name)} must be a path within this folder."
        )
    path = os.path.join(folder, name)
    require_file(path)
    return path if exists(path) else None


def require_file(path: str) -> None:
    """Raises InputError for a directory, a device, a pipe or a broken link.

    A path that does not exist is accepted.
    """
    is_other = os.path.lexists(path) and not os.path.isfile(path)
    if is_other or is_directory(path):
        raise in_file(path, "this is not a file.")


def open_read(path: str) -> io.BufferedIOBase:
    """Opens a file for reading bytes; decompresses names that end in `.gz`."""
    compressed = path.endswith(".gz")
    with input_errors("read", path):
        if not is_remote(path):
            return gzip.GzipFile(path) if compressed else open(path, "rb")
        file = _gfile().GFile(path, "rb")
        file.seek(0)  # A GFile only opens its file at the first use.
        return gzip.GzipFile(fileobj=file) if compressed else file


@contextlib.contextmanager
def gzip_faults(path: str) -> Iterator[None]:
    """Raises InputError if the block finds the gzip file `path` damaged."""
    try:
        yield
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise in_file(
            path, f"the gzip compression is damaged or truncated: {error}."
        ) from error


def checksum(path: str) -> str:
    """Returns the SHA-256 of a file, decompressed if its name ends in .gz."""
    digest = hashlib.sha256()
    with open_read(path) as file, gzip_faults(path):
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def read_text(path: str) -> str:
    """Reads a text file, without the byte order mark that it may have.

    Raises:
      InputError: The file is not UTF-8.
    """
    with open_read(path) as file, input_errors("read", path), gzip_faults(path):
        content = file.read()
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise not_utf8(error, path, line) from error


def read_json(path: str) -> dict[str, Any]:
    """Reads a file with one JSON object; see `parse_json`."""
    return parse_json(read_text(path), path)


def parse_json(text: str, where: str, kind: type = dict) -> Any:
    """Parses JSON; `where` is its name in messages.

    If a key occurs twice in an object, the last value counts, as in other
    programs that read these files; a warning names the key.

    Raises:
      InputError: The text is not JSON, or its value is not a `kind`.
    """

    def as_dict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(pairs)
        if len(values) < len(pairs):
            counts = collections.Counter(key for key, _ in pairs)
            logging.warning(
                "%s: %s occurs twice in one object; the last value counts",
                where,
                shortened(counts.most_common(1)[0][0]),
            )
        return values

    try:
        value = json.loads(text, object_pairs_hook=as_dict)
    except json.JSONDecodeError as error:
        raise in_file(
            where,
            f"invalid JSON at column {error.colno}: {error.msg}.",
            error.lineno,
        ) from error
    except (RecursionError, ValueError) as error:
        # Very deep nesting, or a number with thousands of digits.
        raise in_file(where, f"cannot parse the JSON: {error}.") from error
    if not isinstance(value, kind):
        expected = "a JSON object" if kind is dict else "a list"
        raise in_file(where, f"expected {expected}; got {shortened(value)}.")
    return value


# ------------------------------------------------------------ atomic writing


def write_text(path: str, text: str) -> None:
    """Writes a text file; see `atomic_writer`."""
    with atomic_writer(path) as file:
        file.write(text.encode())


@contextlib.contextmanager
def atomic_writer(path: str) -> Iterator[io.BufferedIOBase]:
    """Yields a file that appears under `path` only when it is complete.

    The bytes go to `<path>.tmp-<process>-<random>`. The end of the block
    renames this file; an exception, even KeyboardInterrupt, removes it.
    The next writer of a local `path` removes leftovers of killed processes.
    Missing directories are created.

    An existing file is replaced; for a symbolic link, the file it points to.
    """
    target = follow_links(path)
    temporary = temporary_prefix(target) + secrets.token_hex(4)
    with input_errors("write", path):
        require_file(target)
        remove_leftovers(target)
        makedirs(posixpath.dirname(target) or os.curdir)
    open_file = _gfile().GFile if is_remote(path) else open
    with _or_undone(path, functools.partial(remove, temporary)):
        with input_errors("write", path):
            opened = open_file(temporary, "wb")
        with opened as file:
            file.write(b"")  # A GFile only creates its file at a write.
            yield file
            # Wait for the disk, or a crash could leave an empty file.
            file.flush()
            if hasattr(file, "fileno"):
                os.fsync(file.fileno())
        with input_errors("write", path):
            rename(temporary, target)


def follow_links(path: str) -> str:
    """Returns the file that a local path leads to through symbolic links.

    The file itself may be missing. Remote paths are returned unchanged.
    """
    return path if is_remote(path) else os.path.realpath(path)


@contextlib.contextmanager
def atomic_directory(path: str) -> Iterator[str]:
    """Yields a directory that appears under `path` only when it is complete.

    The temporary directory is beside `path`. The end of the block renames it;
    an exception removes it. See `atomic_writer`.

    Args:
      path: A path that does not exist, or an empty directory.

    Raises:
      InputError: `path` already exists, or was created meanwhile.
    """
    place = follow_links(path.rstrip("/"))
    with input_errors("write", path):
        _require_vacant(place, path)
        remove_leftovers(place)
        temporary = temporary_prefix(place) + secrets.token_hex(4)
        makedirs(temporary)
    with _or_undone(path, functools.partial(remove_tree, temporary)):
        yield temporary
        with input_errors("write", path):
            if is_remote(place):
                # Not `_require_vacant`: in object stores a directory is a
                # prefix of names, and `temporary` begins with `place`.
                makedirs(place)
            else:
                _require_vacant(place, path)
            _move_directory(temporary, place)


def _require_vacant(place: str, path: str) -> None:
    if exists(place) and not (is_directory(place) and not listdir(place)):
        raise in_file(
            path,
            "expected a new or empty directory. Choose another one, or remove "
            "it.",
        )


def _move_directory(source: str, target: str) -> None:
    """Renames a directory, or moves its files into an empty directory."""
    if not exists(target):
        os.rename(source, target)
        return
    for name in sorted(listdir(source)):
        rename(os.path.join(source, name), os.path.join(target, name))
    remove_tree(source)


@contextlib.contextmanager
def _or_undone(path: str, undo: Callable[[], None]) -> Iterator[None]:
    """Calls `undo` after any error.

    Raises:
      InputError: The disk is full, or TensorFlow failed at a remote path.
    """
    try:
        yield
    except BaseException as error:
        file_errors = _system_errors(path)
        with contextlib.suppress(*file_errors):
            undo()
        if isinstance(error, OSError):
            # Other OSErrors may be about another file.
            is_ours = error.errno in _DISK_FULL
        else:
            is_ours = isinstance(error, file_errors)
        if is_ours:
            message = f"Cannot write {path}: {reason(error)}."
            raise InputError(message) from error
        raise


# ------------------------------------------------------------- temporary files


def temporary_prefix(path: str) -> str:
    """Returns the prefix of this process's temporary names for `path`.

    Callers append eight random letters or digits, so that `expand` skips the
    names and `remove_leftovers` finds them.
    """
    return f"{path}.tmp-{os.getpid()}-"


def remove_leftovers(path: str) -> None:
    """Removes local temporary files of `path` whose process was killed."""
    if is_remote(path):
        return
    for leftover in glob.glob(glob.escape(path) + ".tmp-*"):
        name = _TEMPORARY.fullmatch(leftover, len(path))
        if name and not _is_alive(int(name[1])):
            with contextlib.suppress(OSError):
                remove_tree(leftover)


def _is_alive(process: int) -> bool:
    """Returns whether a process exists, possibly of another user."""
    try:
        os.kill(process, 0)
    except OSError as error:
        return error.errno == errno.EPERM
    return True
