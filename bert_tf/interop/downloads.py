"""Downloads of large files over HTTP, which resume where they were cut."""

import http
import http.client
import io
import os
import posixpath
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator

import tqdm
from absl import logging

from bert_tf import files
from bert_tf.errors import InputError, reason

_BLOCK = 2**20
_TIMEOUT_SECONDS = 30.0
_SECONDS_BETWEEN_LINES = 30.0


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
        for block in _with_progress(blocks, url, start, total):
            with files.input_errors("write", part.name):
                _write(part, block)
    return total is None or _size(part) == total


def _write(file: io.FileIO, block: bytes) -> None:
    """Writes all of a block: an unbuffered file may write less at once."""
    rest = memoryview(block)
    while rest:
        rest = rest[file.write(rest) :]


def _with_progress(
    blocks: Iterable[bytes], url: str, start: int, total: int | None
) -> Iterator[bytes]:
    """Yields the blocks; draws a bar on a terminal, else logs a line at times.

    Args:
      blocks: The bytes of a download.
      url: Where they come from.
      start: The number of bytes that were there before.
      total: The number of bytes at the end; None if it is not known.
    """
    done, last_line = start, time.monotonic()
    on_terminal = sys.stderr.isatty()
    with tqdm.tqdm(
        desc=posixpath.basename(url),
        initial=start,
        total=total,
        unit="B",
        unit_scale=True,
        leave=False,
        disable=not on_terminal,
    ) as bar:
        for block in blocks:
            yield block
            done += len(block)
            bar.update(len(block))
            now = time.monotonic()
            if not on_terminal and now - last_line > _SECONDS_BETWEEN_LINES:
                last_line = now
                of_total = f" of {total:,}" if total else ""
                logging.info("%s: %s%s bytes", url, f"{done:,}", of_total)
