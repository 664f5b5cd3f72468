"""Google's published models by name, such as `uncased_L-12_H-768_A-12`.

The first use of a name downloads the model's zip and extracts the files that a
model needs. Later uses read them from the cache, without a network:

    2018_10_18/uncased_L-12_H-768_A-12/          bert_config.json, vocab.txt ...
    2018_10_18/uncased_L-12_H-768_A-12.sha256    the SHA-256 of these files
    2018_10_18/uncased_L-12_H-768_A-12.zip       the user's copy of the zip,
                                                 used instead of a download
    2018_10_18/uncased_L-12_H-768_A-12.zip.part  an unfinished download; locked
                                                 while a process writes to it

Environment variables:

    BERT_TF_CACHE       the cache; by default bert_tf in XDG_CACHE_HOME or in
                        ~/.cache
    BERT_TF_MODELS_URL  a mirror of https://storage.googleapis.com/bert_models

The length of each download and the CRC of each file in the zip are checked. So
is the SHA-256 of each file, where it is known (see `released_models.py`).
Otherwise the first download is trusted, if it can be opened: its checksums are
recorded in the `.sha256` file, and later downloads of the same name are
compared with them.

Each use compares the SHA-256 of the small files. One of them, the index of the
weights, has a CRC of each weight, which TensorFlow compares when it reads the
weight.
"""

import contextlib
import io
import os
import posixpath
import re
import shutil
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import IO

from absl import logging

from bert_tf.base import files
from bert_tf.checkpoints import downloads
from bert_tf.checkpoints.released_models import (
    FILES,
    MODELS,
    MOST_BYTES,
    known_checksums,
)
from bert_tf.errors import InputError, reason, wrong_value

try:
    import fcntl
except ImportError:  # On Windows.
    fcntl = None  # type: ignore[assignment]

CACHE = "BERT_TF_CACHE"
MODELS_URL = "BERT_TF_MODELS_URL"
GOOGLE = "https://storage.googleapis.com/bert_models"

# A file at the top of a zip, as in the zips of 2020, or in one folder.
_MEMBER = re.compile(
    r"(?:[^/\\]+/)?({})".format("|".join(map(re.escape, FILES)))
)
# All files except the weights, whose checksum takes a second per GB.
_SMALL_FILES = FILES[:-1]
_BLOCK = 2**20
# What zipfile raises for a damaged or an encrypted zip. OSError: a seek to a
# negative offset.
_ZIP_FAULTS = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    OSError,
    RuntimeError,
    ValueError,
)


class _WrongContents(InputError):
    """The zip does not contain the model; downloading it again may help."""


def download(name: str, check: Callable[[str], object]) -> str:
    """Downloads a model, unless the cache has it.

    Several processes, also on hosts with a shared cache, may do this at the
    same time: one downloads, the others wait. The folder of a model appears
    when it is complete.

    Args:
      name: A key of `MODELS`: `NAME` or `DATE/NAME`.
      check: Opens the model in a folder, and raises an InputError if it cannot
        be used. Called before a model without known checksums enters the
        cache.

    Returns:
      The folder in the cache.

    Raises:
      InputError: If the download fails or does not contain the expected files,
        the cache cannot be written, or files in it were changed.
    """
    folder = os.path.join(_cache(), MODELS[name])
    if os.path.isdir(folder):
        _check_cached(folder, MODELS[name])
        return folder
    url = f"{_base_url()}/{MODELS[name]}.zip"
    part = f"{folder}.zip.part"
    with _cache_errors(part):
        os.makedirs(os.path.dirname(folder), exist_ok=True)
        with _locked(part) as file:
            # Another process may have finished while this one waited.
            if not os.path.isdir(folder):
                _install(MODELS[name], url, folder, file, check)
                os.remove(part)
    return folder


def _cache() -> str:
    folder = os.environ.get(CACHE)
    if not folder:
        home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        folder = os.path.join(home, "bert_tf")
    if files.is_remote(folder):
        raise wrong_value(CACHE, "a local folder", folder)
    return os.path.abspath(os.path.expanduser(folder))


def _base_url() -> str:
    url = os.environ.get(MODELS_URL) or GOOGLE
    if not files.is_remote(url):
        raise wrong_value(MODELS_URL, f"a URL such as {GOOGLE}", url)
    return url.rstrip("/")


@contextlib.contextmanager
def _cache_errors(path: str) -> Iterator[None]:
    """Turns errors of the file system into InputErrors with advice."""
    try:
        with files.input_errors("write", path):
            yield
    except InputError as error:
        cause: BaseException | None = error
        while type(cause) is InputError:
            cause = cause.__cause__
        if not isinstance(cause, OSError):
            raise
        raise InputError(
            f"{error} Set {CACHE} to a writable folder with enough space."
        ) from error


@contextlib.contextmanager
def _locked(path: str) -> Iterator[io.FileIO]:
    """Opens a file to append to it, and locks it; waits for another process.

    The kernel releases the lock when the process ends. On file systems without
    locks, nothing is locked; the checks of the zip then find mixed downloads.
    """
    # NFS only locks files that are open for writing.
    with open(path, "a+b", buffering=0) as file:
        if fcntl is None:
            yield file
            return
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            logging.info("Waiting for the process that writes %s", path)
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:
            pass  # The file system has no locks.
        yield file


def _install(
    model: str,
    url: str,
    folder: str,
    part: io.FileIO,
    check: Callable[[str], object],
) -> None:
    """Creates the folder of a model from the user's zip, or else a download."""
    archive = f"{folder}.zip"
    is_given = os.path.exists(archive)
    if not is_given:
        logging.info("Downloading %s to %s", url, folder)
        advice = (
            f"Copy the file from another machine to {archive}, set "
            f"{MODELS_URL} to a mirror, or pass the path of a local model."
        )
        downloads.download(url, part, sum(MOST_BYTES.values()), advice)
    source = archive if is_given else part.name
    try:
        with files.input_errors("read", source), open(source, "rb") as file:
            _extract(file, archive if is_given else url, model, folder, check)
    except _WrongContents as error:
        part.truncate(0)
        advice = (
            "Remove or replace the file."
            if is_given
            else "Rerun the same command to download it again, or pass the "
            "path of a local model."
        )
        raise InputError(f"{error} {advice}") from error


# Zips.


def _extract(
    archive: IO[bytes],
    source: str,
    model: str,
    folder: str,
    check: Callable[[str], object],
) -> None:
    """Writes the files of a model to a new folder, and records their checksums.

    Args:
      archive: The zip.
      source: Its path or URL, for error messages.
      model: The model, as `DATE/NAME`.
      folder: The folder, which appears when it is complete.
      check: See `download`.

    Raises:
      _WrongContents: The zip is damaged, or does not have the expected files.
    """
    with files.atomic_directory(folder) as temporary:
        try:
            with zipfile.ZipFile(archive) as zipped:
                for name, member in _members(zipped, source).items():
                    with (
                        zipped.open(member) as content,
                        files.atomic_writer(f"{temporary}/{name}") as target,
                    ):
                        shutil.copyfileobj(content, target, _BLOCK)
        except InputError:
            raise
        except _ZIP_FAULTS as error:
            raise _WrongContents(
                f"{source}: the zip is damaged: {reason(error)}."
            ) from error
        if not known_checksums(model):
            _check_model(temporary, source, check)
        digests = _compare(temporary, source, FILES, model, f"{folder}.sha256")
        _record(digests, model, f"{folder}.sha256")


def _members(
    zipped: zipfile.ZipFile, source: str
) -> dict[str, zipfile.ZipInfo]:
    """Returns the members that a model needs, by the names of their files.

    Names in a zip are only compared, never used as paths. So a member such as
    `../../.bashrc` is ignored.
    """
    by_name: dict[str, list[zipfile.ZipInfo]] = {name: [] for name in FILES}
    for member in zipped.infolist():
        if match := _MEMBER.fullmatch(member.filename):
            by_name[match[1]].append(member)
    for name, members in by_name.items():
        if len(members) != 1:
            raise _WrongContents(
                f"{source}: expected one {name} in the zip, found "
                f"{len(members)}."
            )
        # zipfile inflates no more than this size.
        size = members[0].file_size
        if size > MOST_BYTES[name]:
            raise _WrongContents(
                f"{source}: {name} in the zip has {size:,} bytes; expected at "
                f"most {MOST_BYTES[name]:,}."
            )
    return {name: member for name, [member] in by_name.items()}


def _check_model(
    folder: str, source: str, check: Callable[[str], object]
) -> None:
    """Raises _WrongContents if the files of a folder are not a model."""
    try:
        check(folder)
    except InputError as error:
        problem = str(error).replace(f"{folder}/", "")
        raise _WrongContents(
            f"{source}: the zip has no valid model: {problem}"
        ) from error


# Checksums.


def _check_cached(folder: str, model: str) -> None:
    """Compares the small files of a model in the cache with its checksums."""
    try:
        _compare(folder, folder, _SMALL_FILES, model, f"{folder}.sha256")
    except InputError as error:
        raise InputError(
            f"{error} Remove the folder {folder} to download the model again; "
            "to change a model, copy it and pass the path of the copy."
        ) from error


def _compare(
    folder: str, source: str, names: Sequence[str], model: str, record: str
) -> dict[str, str]:
    """Compares files of a model with known or recorded checksums.

    Args:
      folder: The folder with the files.
      source: The folder, or the path or URL of the zip, for error messages.
      names: The files.
      model: The model, as `DATE/NAME`.
      record: The file with the checksums of the first download, if any.

    Returns:
      The SHA-256 of each file.

    Raises:
      _WrongContents: A file has another checksum.
    """
    published = known_checksums(model)
    expected = published or _recorded_checksums(record)
    where = "bert_tf" if published else record
    digests = {}
    for name in names:
        digest = files.checksum(os.path.join(folder, name))
        if digest != expected.get(name, digest):
            raise _WrongContents(
                f"{source}: the SHA-256 of {name} is {digest}, but {where} has "
                f"{expected[name]}."
            )
        digests[name] = digest
    return digests


def _record(digests: dict[str, str], model: str, path: str) -> None:
    """Writes checksums in the format of `sha256sum`."""
    folder = posixpath.basename(model)
    lines = [f"{digest}  {folder}/{name}\n" for name, digest in digests.items()]
    files.write_text(path, "".join(lines))


def _recorded_checksums(path: str) -> dict[str, str]:
    """Returns the SHA-256 of each file at the first download, if any."""
    if not os.path.exists(path):
        return {}
    lines = re.findall(
        r"^([0-9a-f]{64})  .*/(.+)$", files.read_text(path), re.M
    )
    return {name: digest for digest, name in lines}
