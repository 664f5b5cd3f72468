"""Downloads large files over HTTP and resumes interrupted downloads.

A server may be wrong or hostile: a download is limited in size and must make
progress; an error is one line that says what the server did.
"""

import http
import http.client
import io
import os
import posixpath
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Collection, Iterator
from typing import Any

from absl import logging

from bert_tf.base import files
from bert_tf.base.processes import track
from bert_tf.errors import InputError, listed, reason

_SCHEMES = ("http", "https", "ftp", "file")
_BLOCK = 2**20
_TIMEOUT_SECONDS = 30.0
# The minimum number of bytes per timeout: a modem sends three times as many.
_LEAST_BYTES = 2**16
# A download fails after this many connections in a row below `_LEAST_BYTES`.
_MOST_SHORT_ATTEMPTS = 5


class _WrongAnswer(Exception):
    """The server's answer cannot be used; asking again would not help."""


def download(url: str, part: io.FileIO, most_bytes: int, advice: str) -> None:
    """Downloads the file at a URL, or the rest of it, to the end of `part`.

    After an interruption it continues, as long as it makes progress.

    Args:
      url: The URL.
      part: The file, open for reading and appending. It may be empty, hold the
        first bytes, or be complete.
      most_bytes: The size above which the file is refused.
      advice: What else the user can do, for the error message.

    Raises:
      InputError: If the server cannot be reached, does not have the file,
        sends something else or too much, or closes connections without
        progress, or the disk is full.
    """
    num_short = 0
    while True:
        start = _size(part)
        try:
            if _append(url, part, start, most_bytes):
                return
            problem = "the connection was closed too early"
        except InputError:
            raise
        except _WrongAnswer as error:
            raise _failure(url, str(error), advice) from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            # A ValueError is about the URL, or the URL of a redirection.
            problem = _describe(error)
        end = _size(part)
        num_short = num_short + 1 if end - start < _LEAST_BYTES else 0
        if end <= start or num_short == _MOST_SHORT_ATTEMPTS:
            resume = "Rerun the same command to resume. " if end else ""
            raise _failure(url, problem, resume + advice)
        logging.warning("%s; resuming at %s bytes", problem, f"{end:,}")


def _failure(url: str, problem: str, advice: str) -> InputError:
    message = _one_line(f"Cannot download {url}: {problem}")
    return InputError(f"{message}. {advice}")


def _describe(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return _one_line(f"{error.code} {error.reason}")
    if isinstance(error, urllib.error.URLError):
        cause = error.reason
        return _one_line(cause if isinstance(cause, str) else reason(cause))
    return _one_line(reason(error))


def _one_line(text: str) -> str:
    """Returns what a server says as one line of printable characters."""
    return re.sub("[^!-~]+", " ", text).strip().removesuffix(".")


def _size(file: io.FileIO) -> int:
    return file.seek(0, os.SEEK_END)


def _append(url: str, part: io.FileIO, start: int, most_bytes: int) -> bool:
    """Appends the answer to one request.

    Args:
      url: The URL.
      part: The file with the first bytes, which are not requested again.
      start: The number of these bytes.
      most_bytes: The size above which the file is refused.

    Returns:
      Whether the file is complete.
    """
    headers = {"Range": f"bytes={start}-"} if start else {}
    _require_scheme(url, _SCHEMES)
    request = urllib.request.Request(url, headers=headers)
    opener = urllib.request.build_opener(_Redirections)
    try:
        answer = opener.open(request, timeout=_TIMEOUT_SECONDS)
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
        total = _check_headers(answer, start, most_bytes)
        for block in track(
            _blocks(answer), len, posixpath.basename(url), "bytes", total, start
        ):
            with files.input_errors("write", part.name):
                _write(part, block)
            if _size(part) > most_bytes:
                part.truncate(0)
                raise _too_large("more", most_bytes)
    return total is None or _size(part) == total


class _Redirections(urllib.request.HTTPRedirectHandler):
    """Follows redirections to HTTPS, or from HTTP to HTTP."""

    def redirect_request(
        self, request: Any, *answer: Any
    ) -> urllib.request.Request | None:
        new_url = answer[-1]
        _require_scheme(new_url, {"https", request.type})
        return super().redirect_request(request, *answer)


def _require_scheme(url: str, schemes: Collection[str]) -> None:
    scheme = urllib.parse.urlsplit(url).scheme
    if scheme not in schemes:
        expected = listed(sorted(schemes), last="or")
        raise _WrongAnswer(
            f"the scheme of {url} must be {expected}; got {scheme!r}"
        )


def _check_headers(answer: Any, start: int, most_bytes: int) -> int | None:
    """Returns the size of the complete file, if the server reports it.

    Args:
      answer: The answer, of which nothing was read.
      start: The offset of its first byte in the file.
      most_bytes: The size above which the file is refused.

    Raises:
      _WrongAnswer: The answer does not have the requested bytes, or is too
        large.
    """
    coding = answer.headers["Content-Encoding"] or "identity"
    if coding.lower() != "identity":
        raise _WrongAnswer(f"the server encodes the file as {coding}")
    header = answer.headers["Content-Range"]
    if answer.status == http.HTTPStatus.PARTIAL_CONTENT and not re.match(
        rf"bytes {start}-", header or ""
    ):
        raise _WrongAnswer(
            f"the server sends the range {header!r} instead of bytes {start}-"
        )
    length = answer.headers["Content-Length"]
    if length is None:
        return None
    if not re.fullmatch("[0-9]{1,18}", length):
        raise _WrongAnswer(f"the server reports a length of {length!r}")
    total = start + int(length)
    if total > most_bytes:
        raise _too_large(f"{total:,}", most_bytes)
    return total


def _too_large(size: str, most_bytes: int) -> _WrongAnswer:
    return _WrongAnswer(
        f"expected a file of at most {most_bytes:,} bytes, found {size}"
    )


def _blocks(answer: Any) -> Iterator[bytes]:
    """Yields the bytes of an answer as they arrive.

    Raises:
      TimeoutError: Fewer than `_LEAST_BYTES` arrived within the timeout. The
        timeout of the socket only limits the time between two bytes.
    """
    started, received = time.monotonic(), 0
    while block := answer.read1(_BLOCK):
        yield block
        received += len(block)
        if time.monotonic() - started > _TIMEOUT_SECONDS:
            if received < _LEAST_BYTES:
                raise TimeoutError(
                    f"only {received:,} bytes arrived in "
                    f"{_TIMEOUT_SECONDS:.0f} seconds"
                )
            started, received = time.monotonic(), 0


def _write(file: io.FileIO, block: bytes) -> None:
    """Writes all of a block: an unbuffered file may write less at once."""
    rest = memoryview(block)
    while rest:
        rest = rest[file.write(rest) :]
