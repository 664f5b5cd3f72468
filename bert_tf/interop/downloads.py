"""Downloads of large files over HTTP, which resume where they were cut."""

import http
import http.client
import io
import os
import posixpath
import urllib.error
import urllib.request

from absl import logging

from bert_tf import files
from bert_tf.data.processes import track
from bert_tf.errors import InputError, reason

_BLOCK = 2**20
_TIMEOUT_SECONDS = 30.0


def download(url: str, part: io.FileIO, advice: str) -> None:
    """Appends to a file what it lacks of the file at a URL.

    A connection that was cut is resumed as long as it makes progress.

    Args:
      url: The URL.
      part: The file, open for reading and appending. It may be empty, hold the
        first bytes, or be complete.
      advice: What else the user can do, for the error message.

    Raises:
      InputError: If the server cannot be reached, does not have the file, or
        closes the connection without progress, or the disk is full.
    """
    while True:
        start = _size(part)
        try:
            if _append(url, part, start):
                return
            problem = "the connection was closed too early"
        except urllib.error.HTTPError as error:
            problem = f"{error.code} {error.reason}"
        except urllib.error.URLError as error:
            cause = error.reason
            problem = cause if isinstance(cause, str) else reason(cause)
        except (OSError, http.client.HTTPException) as error:
            problem = reason(error)
        end = _size(part)
        if end <= start:
            break
        logging.warning("%s; resuming at %s bytes", problem, f"{end:,}")
    resume = "Rerun the same command to resume. " if end else ""
    raise InputError(f"Cannot download {url}: {problem}. {resume}{advice}")


def _size(file: io.FileIO) -> int:
    return file.seek(0, os.SEEK_END)


def _append(url: str, part: io.FileIO, start: int) -> bool:
    """Appends the answer to one request.

    Args:
      url: The URL.
      part: The file with the first bytes, which are not requested again.
      start: The number of these bytes.

    Returns:
      Whether the file is complete.
    """
    headers = {"Range": f"bytes={start}-"} if start else {}
    request = urllib.request.Request(url, headers=headers)
    try:
        answer = urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            # Nothing is missing. The caller's checks find a file that is too
            # long.
            return True
        raise
    with answer:
        if answer.status != http.HTTPStatus.PARTIAL_CONTENT:
            start = 0
            part.truncate(0)
        length = answer.headers["Content-Length"]
        total = start + int(length) if length else None
        blocks = iter(lambda: answer.read(_BLOCK), b"")
        for block in track(
            blocks, len, posixpath.basename(url), "bytes", total, start
        ):
            with files.input_errors("write", part.name):
                _write(part, block)
    return total is None or _size(part) == total


def _write(file: io.FileIO, block: bytes) -> None:
    """Writes all of a block: an unbuffered file may write less at once."""
    rest = memoryview(block)
    while rest:
        rest = rest[file.write(rest) :]
