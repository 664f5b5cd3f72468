"""Files of any layout -> Examples.

A `Layout` says which column holds what, a `Target` what the labels are, and
`read_examples` gives one Example for each row. Nothing is lost in silence:
what is left out, or kept though it looks odd, is counted and told.
"""

import collections
import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from absl import logging

from bert_tf.data.examples import Example
from bert_tf.errors import InputError
from bert_tf.tasks.labels import (
    Target,
    is_missing,
    is_set,
    listed,
    name_of,
    unified,
)
from bert_tf.tasks.layouts import (
    Column,
    Layout,
    Record,
    format_of,
    open_records,
)


@dataclasses.dataclass(frozen=True)
class Reading:
    """All that decides on the examples of a file, beside its content.

    Attributes:
      layout: Which column holds what.
      target: What the labels are.
      is_labelled: Whether each row must have a label.
      skip_malformed: Whether to leave out rows that have the wrong number of
        columns or lack a key of JSON, instead of stopping at the first.
      language: Only rows in that language, where the layout has languages.
    """

    layout: Layout[Column]
    target: Target
    is_labelled: bool = True
    skip_malformed: bool = False
    language: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """The same as JSON has it, to be compared with what was."""
        return json.loads(json.dumps(dataclasses.asdict(self)))


class _Tally:
    """Counts what is worth a line, and tells it with the first place."""

    def __init__(self) -> None:
        self._places: dict[str, list[str]] = collections.defaultdict(list)

    def add(self, what: str, where: str) -> None:
        self._places[what].append(where)

    def tell(self) -> None:
        for what, places in self._places.items():
            count = f"{len(places):,} row" + "s" * (len(places) > 1)
            logging.warning("%s %s; the first: %s", count, what, places[0])


def read_examples(
    path: str,
    reading: Reading,
    is_wanted: Callable[[tuple[str, ...]], bool] | None = None,
) -> list[Example]:
    """Reads a file, one example a row.

    Rows without text are kept, for a prediction is due for them as well.

    Args:
      path: A TSV, CSV or JSONL file, by its name.
      reading: How to read it.
      is_wanted: Tells by the `Layout.key` of a row whether to read it.

    Returns:
      At least one example. Where no row of a multi-label file has a label and
      none need have, all labels are None.

    Raises:
      InputError: The file or one of its rows is not as expected.
    """
    tally = _Tally()
    layout, records = _open(path, reading, tally)
    if is_wanted:
        records = (r for r in records if is_wanted(_key(r[0], layout)))
    if reading.language is not None:
        records = _in_language(records, layout, reading.language, path)
    examples: list[Example] = []
    for values, where in records:
        label = _label(values, where, layout, reading)
        if reading.target.is_undecided(label):
            tally.add("without an agreed label were left out", where)
            continue
        example = _example(values, where, layout, label, len(examples))
        if _lacks_text(example):
            tally.add("with an empty text were kept", where)
        examples.append(example)
    tally.tell()
    if not examples:
        raise _no_row(path)
    if _tells_no_label(examples, reading):
        examples = [dataclasses.replace(e, label=None) for e in examples]
    return examples


def count_labels(path: str, reading: Reading) -> collections.Counter[str]:
    """Counts the labels of a file, of at least one row, by their names.

    Raises:
      InputError: The file or one of its rows is not as expected, or two labels
        are equal as numbers; see `labels.unified`.
    """
    layout, records = _open(path, reading, _Tally())
    counts: collections.Counter[str] = collections.Counter()
    places: dict[str, str] = {}
    has_row = False
    for values, where in records:
        has_row = True
        label = _label(values, where, layout, reading)
        names = label if isinstance(label, tuple) else (str(label),)
        counts.update(names)
        for name in names:
            places.setdefault(name, where)
    if not has_row:
        raise _no_row(path)
    return unified(counts, places)


def _no_row(path: str) -> InputError:
    return InputError(f"expected examples in {path}. Received: no row")


def _open(
    path: str, reading: Reading, tally: _Tally
) -> tuple[Layout[int], Iterator[Record]]:
    is_json = format_of(path) == "jsonl"
    fault = (
        "without one of the keys"
        if is_json
        else "with the wrong number of columns"
    )

    def skip(where: str) -> None:
        tally.add(f"{fault} were left out", where)

    return open_records(
        path,
        reading.layout,
        reading.is_labelled,
        skip if reading.skip_malformed else None,
    )


def _key(values: Sequence[Any], layout: Layout[int]) -> tuple[str, ...]:
    return tuple(values[column] for column in layout.key)


def _in_language(
    records: Iterator[Record], layout: Layout[int], language: str, path: str
) -> Iterator[Record]:
    found: set[str] = set()
    column = layout.language or 0
    for values, where in records:
        found.add(values[column])
        if values[column] == language:
            yield values, where
    if found and language not in found:
        raise InputError(
            f"Expected one of the languages of {path}: {listed(sorted(found))}."
            f" Received: {language!r}"
        )


def _label(
    values: Sequence[Any], where: str, layout: Layout[int], reading: Reading
) -> str | float | tuple[str, ...] | None:
    """The label of a row; the undecided one as it stands there."""
    target = reading.target
    if layout.indicators:
        return _indicated(values, where, layout, reading.is_labelled)
    column = layout.label
    if column is None or not -len(values) <= column < len(values):
        label = None
    elif target.is_undecided(values[column]):
        return target.undecided if reading.is_labelled else None
    elif values[column] is None and not reading.is_labelled:
        label = None
    else:
        label = target.label_of(values[column], where)
    if label is None and reading.is_labelled:
        raise InputError(
            f"Expected a label on every row. Received: none at {where}"
        )
    return label


def _indicated(
    values: Sequence[Any], where: str, layout: Layout[int], is_labelled: bool
) -> tuple[str, ...] | None:
    """The labels whose columns hold 1; None where none holds anything."""
    cells = [
        (name, values[column] if column < len(values) else None)
        for name, column in layout.indicators
    ]
    if not is_labelled and all(is_missing(value) for _, value in cells):
        return None
    return tuple(name for name, value in cells if is_set(value, name, where))


def _example(
    values: Sequence[Any],
    where: str,
    layout: Layout[int],
    label: str | float | tuple[str, ...] | None,
    number: int,
) -> Example:
    def text(column: int) -> str:
        value = values[column]
        if isinstance(value, str):
            return value
        return "" if value is None else name_of(value, where)

    start = "" if layout.choice_start is None else text(layout.choice_start)
    choices = tuple(f"{start} {text(c)}".strip(" ") for c in layout.choices)
    own_id = "" if layout.id is None else text(layout.id)
    return Example(
        id=own_id or str(number),
        text_a=text(layout.text_a),
        text_b=None if layout.text_b is None else text(layout.text_b),
        choices=choices,
        label=label,
        where=where,
    )


def _lacks_text(example: Example) -> bool:
    texts = [example.text_a, *example.choices]
    if example.text_b is not None:
        texts.append(example.text_b)
    return not all(map(str.strip, texts))


def _tells_no_label(examples: Sequence[Example], reading: Reading) -> bool:
    """True for an empty column of labels, each row of which may be empty."""
    return (
        not reading.is_labelled
        and reading.target.problem == "multi_label"
        and not reading.layout.indicators
        and not any(example.label for example in examples)
    )
