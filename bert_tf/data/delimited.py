"""Rows of TSV, CSV and JSONL files, each with the place it came from.

Text is UTF-8; a byte order mark is dropped. A line ends at a line feed, with
or without a carriage return before it, and nowhere else: a lone carriage
return, a form feed or U+2028 is text like any other.
"""

import codecs
import contextlib
import csv
import dataclasses
import json
import re
from collections.abc import Iterator
from typing import Any

from bert_tf import files
from bert_tf.errors import InputError

# The greatest that csv takes where a C long has 32 bits.
_LONGEST_FIELD = 2**31 - 1
# In UTF-8 there is no lone surrogate, so that no text can hold this one.
_CARRIAGE_RETURN = "\udc0d"
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One row of a table.

    Attributes:
      fields: The text of each column.
      where: The place it starts at, `path:line`, for messages.
    """

    fields: tuple[str, ...]
    where: str


def read_tsv(path: str) -> Iterator[Row]:
    """Reads fields between tabs; a quotation mark is text like any other.

    Lines without anything, or with spaces only, are passed over.

    Raises:
      InputError: The file cannot be read or is not UTF-8.
    """
    for line, number in read_lines(path):
        text = line.removesuffix("\n").removesuffix("\r")
        if text.strip(" "):
            yield Row(tuple(text.split("\t")), f"{path}:{number}")


def read_csv(path: str) -> Iterator[Row]:
    """Reads fields between commas, quoted as RFC 4180 says.

    Lines without anything are passed over. A quotation mark within a field
    that does not begin with one is text.

    Raises:
      InputError: The file cannot be read, is not UTF-8 or quotes wrongly.
    """
    lines = (_hide_carriage_returns(line) for line, _ in read_lines(path))
    reader = csv.reader(lines, strict=True)
    while True:
        where = f"{path}:{reader.line_num + 1}"
        fields = _next_fields(reader, where)
        if fields is None:
            return
        if fields:
            yield Row(tuple(map(_show_carriage_returns, fields)), where)


def read_jsonl(path: str) -> Iterator[tuple[dict[str, Any], str]]:
    """Reads one JSON object a line; blank lines are passed over.

    Yields:
      The object and its place, `path:line`.

    Raises:
      InputError: The file cannot be read, is not UTF-8, or a line holds
        something else.
    """
    for line, number in read_lines(path):
        if line.strip():
            where = f"{path}:{number}"
            yield json_object(line, where), where


def read_lines(path: str) -> Iterator[tuple[str, int]]:
    """Yields each line with its end, and its number from 1.

    Raises:
      InputError: The file cannot be read or is not UTF-8.
    """
    with files.open_read(path) as file, files.gzip_faults(path):
        for number, line in enumerate(file, start=1):
            if number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)
            yield _decode(line, path, number), number


def _decode(line: bytes, path: str, number: int) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"Expected UTF-8. Received: byte 0x{line[error.start]:02x} at "
            f"{path}:{number}; convert the file to UTF-8"
        ) from None


def _next_fields(reader: Any, where: str) -> list[str] | None:
    """The next row; [] for a blank line and None behind the last."""
    try:
        with _fields_of_any_length():
            return next(reader, None)
    except csv.Error as error:
        raise InputError(
            "Expected CSV, a quoted field between two quotation marks and "
            f"those inside doubled. Received: {error}, in the row that starts "
            f"at {where}"
        ) from None


@contextlib.contextmanager
def _fields_of_any_length() -> Iterator[None]:
    """Lifts csv's limit, one for the whole process, for one row."""
    limit = csv.field_size_limit(_LONGEST_FIELD)
    try:
        yield
    finally:
        csv.field_size_limit(limit)


def _hide_carriage_returns(line: str) -> str:
    """Keeps csv from taking those inside a line for its end."""
    if "\r" not in line:
        return line
    text = line.removesuffix("\n").removesuffix("\r")
    return text.replace("\r", _CARRIAGE_RETURN) + line[len(text) :]


def _show_carriage_returns(field: str) -> str:
    return field.replace(_CARRIAGE_RETURN, "\r")


def json_object(line: str, where: object) -> dict[str, Any]:
    """The JSON object that a line holds.

    Args:
      line: The line, with or without its end.
      where: What names its place in a message, once it is made a string.

    Raises:
      InputError: The line holds something else.
    """
    if line.lstrip().startswith("["):
        raise InputError(
            "expected one JSON object on every line. Received: an array at "
            f"{where}; write its objects one a line, as jq -c '.[]' does"
        )
    try:
        value = json.loads(line, strict=False)
    except json.JSONDecodeError as error:
        raise InputError(
            f"expected one JSON object on every line. Received: {error.msg} at "
            f"{where} (column {error.colno})"
        ) from None
    except (RecursionError, ValueError) as error:
        # Brackets in brackets without end, or a number of 5,000 digits.
        raise InputError(
            f"Expected a JSON object. Received: one at {where} that goes too "
            f"far: {error}"
        ) from None
    if not isinstance(value, dict):
        raise InputError(
            "expected one JSON object on every line. Received: a "
            f"{type(value).__name__} at {where}"
        )
    if _SURROGATE.search(line):
        _require_whole_characters(value, where)
    return value


def _require_whole_characters(value: dict[str, Any], where: object) -> None:
    """Refuses half an emoji, which no file of ours could hold."""
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        raise InputError(
            f"Expected whole characters. Received: \\u{ord(half):04x}, half of "
            f"a surrogate pair, at {where}"
        ) from None
