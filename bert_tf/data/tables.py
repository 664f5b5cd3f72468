"""Rows of TSV, CSV and JSONL files, each with the place it came from.

Text is UTF-8; a byte order mark is dropped. A line ends at a line feed, with
or without a carriage return before it, and nowhere else: a lone carriage
return, a form feed or U+2028 is text like any other.
"""

import codecs
import collections
import contextlib
import csv
import dataclasses
import difflib
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from bert_tf import files
from bert_tf.errors import InputError

# Rows of TSV, CSV and JSONL files, each with the place it came from.


# The greatest that csv takes where a C long has 32 bits.
_LONGEST_FIELD = 2**31 - 1
# In UTF-8 there is no lone surrogate, so that no text can hold this one.
_CARRIAGE_RETURN = "\udc0d"
# A message lists no more names than that.
_MAX_LISTED = 20
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


# Which column of a file holds what, and the rows it says so of.


# The number of a column, from 0 or, if negative, from the end; or its name.
Column = int | str
C_co = TypeVar("C_co", bound=Column, covariant=True)
# The values of a row and its place, `path:line`.
Record = tuple[Sequence[Any], str]

_FORMATS = {
    "tsv": "tsv",
    "txt": "tsv",
    "csv": "csv",
    "jsonl": "jsonl",
    "ndjson": "jsonl",
    "json": "jsonl",
}
_TABLES = {"tsv": read_tsv, "csv": read_csv}


@dataclasses.dataclass(frozen=True)
class Layout(Generic[C_co]):
    """Which column of a row holds what.

    Attributes:
      num_columns: How many there are at least; rows must then have as many as
        the first. None: as many as the header has.
      has_header: Whether the first row is none of the examples.
      text_a: The first text.
      text_b: The second text of a pair.
      choice_start: Text that every choice begins with.
      choices: Multiple choice: how each goes on.
      label: The label; in a file without labels the column may be missing.
      indicators: Or else: labels, and the column of 0 and 1 for each.
      id: The file's own id of a row.
      language: What `Reading.language` is compared with.
      key: What tells rows apart; see `read_examples`.
    """

    num_columns: int | None
    has_header: bool
    text_a: C_co
    text_b: C_co | None = None
    choice_start: C_co | None = None
    choices: tuple[C_co, ...] = ()
    label: C_co | None = None
    indicators: tuple[tuple[str, C_co], ...] = ()
    id: C_co | None = None
    language: C_co | None = None
    key: tuple[C_co, ...] = ()

    @staticmethod
    def of(columns: str, has_header: bool = True) -> "Layout[int]":
        """Makes a layout of the names of its columns, in their order.

        Args:
          columns: Names of the attributes above (`choice` and `key` any number
            of times), "_" for a column that is not read, and, once, "*" for
            any number of those; `"id _ text_a text_b * label"`.
          has_header: Whether the first row is none of the examples.
        """
        names = columns.split()
        behind = names.index("*") if "*" in names else len(names)
        places = collections.defaultdict(list)
        for place, name in enumerate(names):
            places[name].append(place - len(names) * (place > behind))
        num_columns = len(names) - ("*" in names)
        found: dict[str, Any] = {
            name: places[name][0] for name in _SINGLE if name in places
        }
        return Layout[int](
            num_columns,
            has_header,
            choices=tuple(places["choice"]),
            key=tuple(places["key"]),
            **found,
        )

    def by_number(self, number_of: Callable[[Column], int]) -> "Layout[int]":
        """The same with the number of every column."""
        found: dict[str, Any] = {
            name: number_of(column)
            for name in _SINGLE
            if (column := getattr(self, name)) is not None
        }
        return Layout[int](
            self.num_columns,
            self.has_header,
            choices=tuple(map(number_of, self.choices)),
            key=tuple(map(number_of, self.key)),
            indicators=tuple((n, number_of(c)) for n, c in self.indicators),
            **found,
        )

    def without_label(self) -> "Layout[C_co]":
        """The same for files whose rows need not have one."""
        return dataclasses.replace(self, label=None, indicators=())

    def columns(self) -> list[C_co]:
        """Every column that is read."""
        single = [getattr(self, name) for name in _SINGLE]
        own = [column for _, column in self.indicators]
        several = [*self.choices, *self.key, *own]
        return [*(c for c in single if c is not None), *several]


def listed(names: Iterable[str]) -> str:
    """Names for a message, not too many of them."""
    names = list(names)
    shown = ", ".join(map(repr, names[:_MAX_LISTED]))
    more = len(names) - _MAX_LISTED
    return f"{shown} and {more:,} more" if more > 0 else shown


_SINGLE = ("text_a", "text_b", "choice_start", "label", "id", "language")


def format_of(path: str) -> str:
    """Tells "tsv", "csv" or "jsonl" by a file's name.

    Raises:
      InputError: It ends in neither.
    """
    name = path.removesuffix(".gz")
    extension = name.rpartition(".")[2].lower()
    if extension not in _FORMATS:
        known = ", ".join(f".{name}" for name in _FORMATS)
        raise InputError(
            f"Expected a file that ends in one of {known} (or these and .gz). "
            f"Received: {path}"
        )
    return _FORMATS[extension]


def open_records(
    path: str,
    layout: Layout[Column],
    is_labelled: bool = True,
    skip: Callable[[str], None] | None = None,
) -> tuple[Layout[int], Iterator[Record]]:
    """Opens a TSV, CSV or JSONL file, by its name.

    Args:
      path: The file.
      layout: Which column holds what.
      is_labelled: Whether the columns of the label must be there.
      skip: Called with the place of each row that is left out because it has
        the wrong number of columns or lacks a key of JSON; None: such a row is
        an error.

    Returns:
      The layout with numbers for all names, and the rows behind the header.
      A row of a table may be too short for a label that it need not have; one
      of JSON has None for such a label, as for null.

    Raises:
      InputError: A column is missing, now; a row is malformed, when it is
        reached.
    """
    if format_of(path) == "jsonl":
        return _open_objects(path, layout, is_labelled, skip)
    rows = _TABLES[format_of(path)](path)
    header = next(rows, None) if layout.has_header else None
    records: Iterator[Record] = ((row.fields, row.where) for row in rows)
    if layout.has_header and header is None:
        return layout.by_number(lambda column: 0), iter(())
    num_columns: int | None
    if header and layout.num_columns is None:
        names = [name.strip() for name in header.fields]
        numbers = _looked_up(layout, names, header.where, is_labelled)
        num_columns = len(names)
    else:
        numbers = layout.by_number(lambda column: _as_number(column, path))
        num_columns = None
    least = _num_columns(numbers, is_labelled)
    return numbers, _well_formed(records, least, num_columns, skip)


def _open_objects(
    path: str,
    layout: Layout[Column],
    is_labelled: bool,
    skip: Callable[[str], None] | None,
) -> tuple[Layout[int], Iterator[Record]]:
    """The same of JSONL: names become places in a row that is picked."""
    needed = layout if is_labelled else layout.without_label()
    required = list(map(str, needed.columns()))
    # A misspelt name shows in the first object, before any row is read.
    for value, where in itertools.islice(read_jsonl(path), 1):
        if lacking := _lacking(value, required):
            raise _no_column(lacking, list(value), where)
    names = list(dict.fromkeys(map(str, layout.columns())))
    records = _picked(path, names, required, skip)
    return layout.by_number(lambda column: names.index(str(column))), records


def _picked(
    path: str,
    names: Sequence[str],
    required: Sequence[str],
    skip: Callable[[str], None] | None,
) -> Iterator[Record]:
    """Yields the values of `names`, from objects with the required keys."""
    for value, where in read_jsonl(path):
        lacking = _lacking(value, required)
        if lacking is None:
            yield [value.get(name) for name in names], where
        elif skip is None:
            raise InputError(
                f"{where}: no key {lacking!r} in the object, only "
                f"{listed(value)}. Add it (null is an empty text), or pass "
                "--skip_malformed_rows to leave such rows out"
            )
        else:
            skip(where)


def _lacking(value: Mapping[str, Any], required: Sequence[str]) -> str | None:
    """The first of the required keys that an object does not have."""
    return next((name for name in required if name not in value), None)


def _looked_up(
    layout: Layout[Column], header: list[str], where: str, is_labelled: bool
) -> Layout[int]:
    """Numbers for names; no label where none is needed and none is there."""
    if not is_labelled:
        own = [column for _, column in layout.indicators]
        if layout.label is not None:
            own.append(layout.label)
        if not all(_find(column, header) for column in own):
            layout = layout.without_label()
    return layout.by_number(lambda column: _number_of(column, header, where))


def _find(column: Column, header: list[str]) -> list[int]:
    """The numbers of the columns that are meant: one, if all is well."""
    found = [n for n, name in enumerate(header) if name == column]
    if not found and _is_number(column):
        number = int(column)
        if -len(header) <= number < len(header):
            found = [number % len(header)]
    return found


def _number_of(column: Column, header: list[str], where: str) -> int:
    found = _find(column, header)
    if not found:
        raise _no_column(column, header, where)
    if len(found) > 1:
        raise InputError(
            f"Expected the name {column!r} once in the header. Received: "
            f"{len(found)} columns of that name at {where}; give the number "
            "of the column, from 0"
        )
    return found[0]


def _as_number(column: Column, path: str) -> int:
    """The number itself, where no header tells names."""
    if _is_number(column):
        return int(column)
    raise InputError(
        f"Expected the number of a column, from 0, for {path} has no header. "
        f"Received: {column!r}"
    )


def _is_number(column: Column) -> bool:
    return str(column).removeprefix("-").isdecimal()


def _no_column(column: Column, names: Sequence[str], where: str) -> InputError:
    near = difflib.get_close_matches(str(column), names, 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return InputError(
        f"Expected a column {column!r}. Received: {listed(names)} at "
        f"{where}{hint}"
    )


def _num_columns(layout: Layout[int], is_labelled: bool) -> int:
    """How many columns a row must have for all that is read."""
    fixed = layout.num_columns or 0
    if not is_labelled:
        # A label that stands last may be missing.
        fixed -= layout.label == fixed - 1
        layout = layout.without_label()
    numbers = layout.columns()
    return max([fixed, *(n + 1 if n >= 0 else -n for n in numbers)])


def _well_formed(
    records: Iterator[Record],
    least: int,
    num_columns: int | None,
    skip: Callable[[str], None] | None,
) -> Iterator[Record]:
    """Passes the rows that have the right number of columns.

    That is the header's, or the first row's if it suffices: people have more
    columns in their files than a task needs, but one row that differs from the
    others is broken.
    """
    source = f"{num_columns} columns, as in the header"
    if num_columns is None:
        source = f"{least} columns or more"
    num_passed = num_skipped = 0
    for values, where in records:
        count = len(values)
        if count >= least and num_columns in (None, count):
            num_passed += 1
            yield values, where
            if num_columns is None:
                num_columns, source = count, f"{count} columns, as at {where}"
        elif skip is None:
            raise InputError(
                f"expected {source}. Received: {count} at {where}; "
                "--skip_malformed_rows leaves such rows out"
            )
        else:
            num_skipped += 1
            skip(where)
    if num_skipped > num_passed:
        raise InputError(
            f"Expected {source}. Received: {num_skipped:,} rows that have not, "
            f"out of {num_skipped + num_passed:,}, up to {where}"
        )
