"""Reads TSV, CSV and JSON Lines files: rows as dicts, each with its line.

Text is UTF-8, and a byte order mark is dropped. A line ends only at a line
feed, with or without a carriage return before it. A form feed and U+2028 are
ordinary text. So is a lone carriage return, except in unquoted fields of CSV,
where it is an error.

    for row, place in read("train.tsv", "_ label _ text_a", has_header=False):
        print(row["text_a"], row["label"], place)  # ... train.tsv:1
"""

import codecs
import csv
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from bert_tf.base import files
from bert_tf.errors import InputError, did_you_mean, in_file, listed, not_utf8

# A number from 0, or from the end if it is negative; or a name.
Column = int | str
Columns = Mapping[str, Column | tuple[Column, ...]]
# The fields of a row, and its place, "path:line".
Fields = tuple[tuple[str, ...], str]
# See `check_header` of `read`.
CheckHeader = Callable[[Mapping[str, Any], str], None]

# The largest limit that csv accepts where a C long has 32 bits.
_LONGEST_FIELD = 2**31 - 1


def read(
    path: str,
    columns: str | Columns,
    *,
    has_header: bool = True,
    optional: Collection[str] = (),
    skip: Callable[[str, str], None] | None = None,
    check_header: CheckHeader | None = None,
) -> Iterator[tuple[dict[str, Any], str]]:
    """Yields the rows of a TSV, CSV or JSON Lines file.

    The ending of the file's name decides between the formats.

    Args:
      path: The file, compressed if its name ends in .gz.
      columns: Either the names of the columns in order, such as "id _ text_a *
        label": "_" is a column that is not read, "*" any number of those, and
        the header is ignored. Or a dict from each name to its column: a name in
        the header, a key in JSON or a number. A tuple of these gives a tuple of
        values.
      has_header: Whether the first row of a table is a header.
      optional: Names whose columns the file may lack. If the header lacks the
        column, the dict lacks the name. Without names in a header, and in
        JSON, the value is None.
      skip: Called with a description and the place of each row that is skipped
        because it has the wrong number of columns or lacks a key. By default
        such a row is an error. A key that the first row lacks always is one.
      check_header: Called with the header's cells by name, and its place, if
        all columns were passed by number: the row may be an example.

    Yields:
      A dict of the values, strings or any value of JSON, and the place of the
      row, "path:line".

    Raises:
      InputError: The file cannot be read, a column is missing, or a row is
        malformed.
    """
    extension = path.removesuffix(".gz").rpartition(".")[2].lower()
    if extension in ("jsonl", "ndjson", "json"):
        return _read_objects(path, columns, optional, skip)
    if extension not in ("tsv", "txt", "csv"):
        raise in_file(
            path,
            "unknown file type. The name must end in .tsv, .txt, .csv, .jsonl, "
            ".ndjson or .json, or in one of these and .gz.",
        )
    rows = read_csv(path) if extension == "csv" else read_tsv(path)
    return _read_table(
        path, rows, columns, has_header, optional, skip, check_header
    )


def _read_objects(
    path: str,
    columns: str | Columns,
    optional: Collection[str],
    skip: Callable[[str, str], None] | None,
) -> Iterator[tuple[dict[str, Any], str]]:
    if isinstance(columns, str):
        columns, _ = _column_numbers(columns)
    columns = _replaced(columns, str)
    required = list(map(str, _flat(columns, without=optional)))
    is_first = True
    for value, where in read_jsonl(path):
        lacking = next((key for key in required if key not in value), None)
        if lacking is None:
            yield _replaced(columns, value.get), where
        elif is_first:
            # A misspelt key is an error even if malformed rows are skipped.
            raise _no_column(lacking, list(value), where)
        elif skip is None:
            raise in_file(
                where,
                f"no key {lacking!r}; the keys are "
                f"{listed(value, quote=True)}. Add it; null is an empty text.",
            )
        else:
            skip("without one of the keys", where)
        is_first = False


def _read_table(
    path: str,
    rows: Iterator[Fields],
    columns: str | Columns,
    has_header: bool,
    optional: Collection[str],
    skip: Callable[[str, str], None] | None,
    check_header: CheckHeader | None,
) -> Iterator[tuple[dict[str, Any], str]]:
    """Yields the rows that have the header's or first row's number of columns.

    Files may have more columns than a task needs, but a row that differs from
    the others is broken.
    """
    header = next(rows, None) if has_header else None
    if has_header and header is None:
        return
    least, count, example = 0, None, "the header"
    given: Columns
    if isinstance(columns, str):
        given, least = _column_numbers(columns)
        columns = given
        # The last column may be missing if it is optional.
        least -= any(given.get(name) == least - 1 for name in optional)
    elif header:
        given, columns = columns, _in_header(columns, *header, optional)
        count = len(header[0])
    else:
        given = columns
        columns = _replaced(columns, lambda column: _as_number(column, path))
    numbers = [int(column) for column in _flat(columns, without=optional)]
    least = max([least, *(n + 1 if n >= 0 else -n for n in numbers)])
    for fields, where in rows:
        if len(fields) >= least and count in (None, len(fields)):
            if header and check_header:
                cells = _numbered_cells(given, columns, header[0])
                if cells:
                    check_header(cells, header[1])
                check_header = None
            if count is None:
                count, example = len(fields), where
            yield _fields_by_name(columns, fields), where
        elif skip is None:
            expected = f"{count} columns, as in {example}"
            if count is None:
                expected = f"{least} columns or more"
            raise in_file(
                where,
                f"expected {expected}, found {len(fields)}."
                f"{separator_advice(fields) or ' Fix the row.'}",
            )
        else:
            skip("with the wrong number of columns", where)


def _column_numbers(columns: str) -> tuple[Columns, int]:
    """Returns the numbers of named columns, and the minimum number of columns.

    "_ text * label label" gives {"text": 1, "label": (-2, -1)} and 4.
    """
    names = columns.split()
    star = names.index("*") if "*" in names else len(names)
    numbers: dict[str, tuple[int, ...]] = {}
    for number, name in enumerate(names):
        if name not in "_*":
            number -= len(names) * (number > star)
            numbers[name] = (*numbers.get(name, ()), number)
    numbers_of: Columns = {
        name: several if len(several) > 1 else several[0]
        for name, several in numbers.items()
    }
    return numbers_of, len(names) - ("*" in names)


def _in_header(
    columns: Columns,
    header: Sequence[str],
    where: str,
    optional: Collection[str],
) -> Columns:
    """Returns the numbers of columns, without optional ones that are missing.

    A name in the header takes precedence over a number.
    """
    names = [name.strip() for name in header]

    def find(column: Column) -> list[int]:
        numbers = [n for n, name in enumerate(names) if name == column]
        if not numbers and _is_number(column):
            number = int(column)
            if -len(names) <= number < len(names):
                numbers = [number % len(names)]
        return numbers

    def number_of(column: Column) -> int:
        numbers = find(column)
        if not numbers:
            raise _no_column(column, names, where)
        if len(numbers) > 1:
            raise in_file(
                where,
                f"{len(numbers)} columns are named {column!r}. Pass the number "
                "of the column, from 0.",
            )
        return numbers[0]

    present = {
        name: column
        for name, column in columns.items()
        if name not in optional or all(map(find, _flat({name: column})))
    }
    return _replaced(present, number_of)


def _numbered_cells(
    given: Columns, columns: Columns, header: Sequence[str]
) -> dict[str, Any]:
    """Returns the header's cells by name, if all columns were given by number.

    The dict is also empty if the header numbers its columns from 0, as pandas
    does for columns without names.
    """
    names = [name for name in header if name.strip()]
    pairs = zip(
        _flat({name: given[name] for name in columns}),
        _flat(columns),
        strict=True,
    )
    if names == [*map(str, range(len(names)))] or not all(
        _is_number(column) and int(number) - int(column) in (0, len(header))
        for column, number in pairs
    ):
        return {}
    return _fields_by_name(columns, header)


def _as_number(column: Column, path: str) -> int:
    if _is_number(column):
        return int(column)
    raise in_file(
        path,
        f"no header to find the column {column!r} in. Pass the number of the "
        "column, from 0.",
    )


def _is_number(column: Column) -> bool:
    return str(column).removeprefix("-").isdecimal()


def _no_column(column: Column, names: Sequence[str], where: str) -> InputError:
    return in_file(
        where,
        f"no column {column!r}; the columns are {listed(names, quote=True)}."
        f"{separator_advice(names) or did_you_mean(str(column), names)}",
    )


def separator_advice(
    cells: Sequence[str],
    expected: str = "commas in a .csv file, by tabs in other tables",
) -> str:
    """Returns " Separate ..." if the only cell of a row may be several."""
    if len(cells) == 1 and any(mark in cells[0] for mark in ",;|\t"):
        return f" Separate the columns by {expected}."
    return ""


def _flat(columns: Columns, without: Collection[str] = ()) -> Iterator[Column]:
    """Yields every single column."""
    for name, column in columns.items():
        if name not in without:
            yield from column if isinstance(column, tuple) else (column,)


def _replaced(
    columns: Columns, replace: Callable[[Any], Any]
) -> dict[str, Any]:
    """Returns the dict with every single column replaced."""
    return {
        name: tuple(map(replace, column))
        if isinstance(column, tuple)
        else replace(column)
        for name, column in columns.items()
    }


def _fields_by_name(columns: Columns, fields: Sequence[Any]) -> dict[str, Any]:
    """Returns the fields of a row by name; None for one that is missing."""
    return _replaced(
        columns,
        lambda n: fields[n] if -len(fields) <= n < len(fields) else None,
    )


# The three formats, without names of columns. All of these functions raise an
# InputError if the file cannot be read, is not UTF-8 or is malformed.


def read_lines(path: str) -> Iterator[tuple[str, int]]:
    """Yields each line with its end, and its number from 1."""
    with files.open_read(path) as file, files.gzip_faults(path):
        for number, line in enumerate(file, start=1):
            if number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)
            try:
                yield line.decode("utf-8"), number
            except UnicodeDecodeError as error:
                raise not_utf8(error, path, number) from None


def read_tsv(path: str) -> Iterator[Fields]:
    """Yields the fields between tabs; quotation marks are ordinary text.

    Lines that are empty or have only spaces are skipped.
    """
    for line, number in read_lines(path):
        text = line.removesuffix("\n").removesuffix("\r")
        if text.strip(" "):
            yield tuple(text.split("\t")), f"{path}:{number}"


def read_csv(path: str) -> Iterator[Fields]:
    """Yields the fields between commas, quoted as in RFC 4180.

    Empty lines are skipped. A quotation mark inside a field that does not
    begin with one is ordinary text.
    """
    csv.field_size_limit(_LONGEST_FIELD)
    lines = (line for line, _ in read_lines(path))
    reader = csv.reader(lines, strict=True)
    while True:
        where = f"{path}:{reader.line_num + 1}"
        try:
            fields = next(reader, None)
        except csv.Error as error:
            raise in_file(
                where,
                f"this row is not valid CSV ({error}). A quoted field ends in "
                "a quotation mark; quotation marks inside it are doubled.",
            ) from None
        if fields is None:
            return
        if fields:
            yield tuple(fields), where


def read_jsonl(path: str) -> Iterator[tuple[dict[str, Any], str]]:
    """Yields one JSON object per line and its place; skips blank lines."""
    for line, number in read_lines(path):
        if line.strip():
            try:
                value = json_object(line)
            except ValueError as error:
                raise in_file(path, str(error), number) from None
            yield value, f"{path}:{number}"


def json_object(line: str) -> dict[str, Any]:
    """Parses a line that must hold one JSON object; else raises ValueError."""
    try:
        value = json.loads(line, strict=False)
        if isinstance(value, dict):
            return value
        problem = f"found a {type(value).__name__}"
    except json.JSONDecodeError as error:
        problem = f"{error.msg} (column {error.colno})"
    if line.lstrip().startswith("["):
        problem = "found an array. Convert the file with jq -c '.[]'"
    raise ValueError(f"expected one JSON object per line: {problem}.")
