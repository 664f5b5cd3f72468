"""Files on the local disk and on any `scheme://` that TensorFlow can reach.

Local paths are plain Python; TensorFlow is imported only when a path holds
`://`, so that worker processes that handle local files start quickly.
"""

import contextlib
import errno
import glob
import gzip
import os
import posixpath
import re
import secrets
from collections.abc import Iterator
from typing import Any, BinaryIO

from bert_tf.errors import InputError

_TEMPORARY = re.compile(r"\.tmp-\d+-[0-9a-f]{8}$")
_MANIFEST = re.compile(r"manifest\..*\.json")
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def is_remote(path: str) -> bool:
    """True for `scheme://` paths, which go through `tf.io.gfile`."""
    return "://" in path


def _gfile() -> Any:
    import tensorflow as tf

    return tf.io.gfile


def expand(patterns: str) -> list[str]:
    """Lists the files that a comma list of globs names.

    Each pattern's files are sorted and the patterns keep their order. A file
    that two patterns match is listed once. What a wildcard catches by accident
    is left out: directories, manifests, and temporaries of `atomic_writer`
    that a killed process left behind.

    Args:
      patterns: Paths or globs, separated by commas; blank items are ignored.

    Returns:
      At least one path.

    Raises:
      InputError: A pattern matches no file, or there is no pattern.
    """
    items = [item.strip() for item in patterns.split(",") if item.strip()]
    if not items:
        raise InputError(
            "Expected a comma-separated list of files or globs. "
            f"Received: {patterns!r}"
        )
    found: dict[str, None] = {}
    for item in items:
        found.update(dict.fromkeys(_matches(item)))
    return list(found)


def _matches(pattern: str) -> list[str]:
    """Sorted files of one pattern; a file's own name always matches it."""
    if exists(pattern) and not is_directory(pattern):
        return [pattern]
    matches = _gfile().glob if is_remote(pattern) else glob.glob
    paths = sorted(path for path in matches(pattern) if _is_data(path))
    if not paths:
        raise InputError(f"No file matches {pattern!r}.")
    return paths


def _is_data(path: str) -> bool:
    name = posixpath.basename(path)
    by_product = _MANIFEST.fullmatch(name) or _TEMPORARY.search(name)
    return not by_product and not is_directory(path)


def manifest_path(output_path: str) -> str:
    """Where the manifest of an output lies: beside it, out of its globs.

    `dir/out.tfrecord` has `dir/manifest.out.tfrecord.json`, which
    `dir/out.tfrecord*` does not match and `expand` skips.
    """
    folder, name = posixpath.split(output_path)
    return posixpath.join(folder, f"manifest.{name}.json")


def exists(path: str) -> bool:
    """True if `path` is a file or a directory."""
    return _gfile().exists(path) if is_remote(path) else os.path.exists(path)


def is_directory(path: str) -> bool:
    """True if `path` is a directory."""
    return _gfile().isdir(path) if is_remote(path) else os.path.isdir(path)


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


def open_read(path: str) -> BinaryIO:
    """Opens a file for reading bytes; what ends in `.gz` is decompressed.

    Raises:
      InputError: The file cannot be opened.
    """
    try:
        open_file = _open_remote if is_remote(path) else _open_local
        file = open_file(path)
    except OSError as error:
        raise InputError(f"Cannot read {path}: {error.strerror}.") from error
    return gzip.GzipFile(fileobj=file) if path.endswith(".gz") else file


def _open_local(path: str) -> BinaryIO:
    return open(path, "rb")


def _open_remote(path: str) -> BinaryIO:
    """A GFile that has been opened: by itself it waits for the first read."""
    import tensorflow as tf

    file = tf.io.gfile.GFile(path, "rb")
    try:
        file.seek(0)
    except tf.errors.OpError as error:
        raise InputError(f"Cannot read {path}: {error.message}.") from error
    return file


@contextlib.contextmanager
def atomic_writer(path: str) -> Iterator[BinaryIO]:
    """Yields a file that appears under `path` only when it is complete.

    The bytes go to `<path>.tmp-<process>-<random>`, which is renamed when the
    block ends and removed when anything is raised in it: errors, a full disk,
    KeyboardInterrupt, SystemExit (so also SIGTERM, where a handler raises
    that). Missing directories are created.

    Args:
      path: The final name; a file of that name is replaced.

    Raises:
      InputError: The place cannot be written to, or it is full.
    """
    if is_directory(path):
        raise InputError(f"Cannot write {path}: it is a directory.")
    temporary = f"{path}.tmp-{os.getpid()}-{secrets.token_hex(4)}"
    try:
        with _open_write(temporary, path) as file:
            yield file
            _flush_to_disk(file)
        rename(temporary, path)
    except BaseException as error:
        if exists(temporary):
            remove(temporary)
        if fault := _fault_of_place(error, path):
            raise InputError(f"Cannot write {path}: {fault}.") from error
        raise


def _open_write(temporary: str, path: str) -> BinaryIO:
    """Opens the temporary of `path`, in a directory made where missing."""
    folder = posixpath.dirname(path)
    try:
        if folder:
            makedirs(folder)
        if is_remote(path):
            return _gfile().GFile(temporary, "wb")
        return open(temporary, "wb")
    except OSError as error:
        raise InputError(f"Cannot write {path}: {error.strerror}.") from error


def _fault_of_place(error: BaseException, path: str) -> str | None:
    """What is wrong with the place written to, if that is what failed."""
    if isinstance(error, OSError) and error.errno in _DISK_FULL:
        return error.strerror
    if is_remote(path):
        import tensorflow as tf

        # Remote file systems tell only while writing that they refuse.
        return error.message if isinstance(error, tf.errors.OpError) else None
    return None


def _flush_to_disk(file: BinaryIO) -> None:
    """Waits for the disk, so that a crash cannot leave a renamed empty file."""
    file.flush()
    if hasattr(file, "fileno"):
        os.fsync(file.fileno())
