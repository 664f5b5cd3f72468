"""`Example`: one text, or several, with a label, before any tokenization."""

import collections
import dataclasses
import decimal
import functools
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from absl import logging

from bert_tf.data.tables import (
    Column,
    Layout,
    Record,
    format_of,
    listed,
    open_records,
)
from bert_tf.errors import InputError

# `Example`: one text, or several, with a label, before any tokenization.


# What a label is: one name of several, any number of names, a number, or the
# number of the right ending.
PROBLEMS = ("single_label", "multi_label", "regression", "multiple_choice")


@dataclasses.dataclass(frozen=True, slots=True)
class Example:
    """One example of a sentence-level task, as it stands in its file.

    Attributes:
      id: The file's own id, where its layout has one, else the number of the
        row, from 0.
      text_a: The first text, or the only one.
      text_b: The second text of a pair.
      choices: For multiple choice: each pairs with `text_a`.
      label: The name of the class; for regression a number; for multi-label
        problems the names; None where the file tells none.
      where: The place it was read from, `path:line`, for messages.
    """

    id: str
    text_a: str
    text_b: str | None = None
    choices: tuple[str, ...] = ()
    label: str | float | tuple[str, ...] | None = None
    where: str = ""


def have_names(labels: Iterable[str]) -> bool:
    """Whether a model names its labels: LABEL_0, LABEL_1 ... are numbers.

    Hugging Face writes those for classes without names.
    """
    return not all(re.fullmatch(r"LABEL_\d+", label) for label in labels)


# From what stands in a file to a label.


# An integer as pandas writes it in a column with gaps.
_WHOLE_FLOAT = re.compile(r"(-?(?:0|[1-9]\d*))\.0+")


@dataclasses.dataclass(frozen=True)
class Target:
    """What the labels of a task are and how its files spell them.

    Attributes:
      problem: One of `bert_tf.tasks.examples.PROBLEMS`.
      labels: Their names in the order of their numbers; () for regression,
        and where they are still to be found: any name will do then.
      aliases: Other spellings, to the name each stands for.
      undecided: What stands for "the annotators disagreed"; rows with it are
        no examples.
      separator: What is between the names in a multi-label column.
    """

    problem: str
    labels: tuple[str, ...] = ()
    aliases: Mapping[str, str] = dataclasses.field(default_factory=dict)
    undecided: str | None = None
    separator: str = ","

    @functools.cached_property
    def _known(self) -> dict[str, str]:
        """The label of every spelling; a label's own spelling goes first."""
        integers = {without_decimals(name): name for name in self.labels}
        return integers | {name: name for name in self.labels}

    def label_of(
        self, value: Any, where: str
    ) -> str | float | tuple[str, ...] | None:
        """Reads the label of one example.

        Args:
          value: A field of a table, or any value of JSON.
          where: `path:line`, for the message.

        Returns:
          A name, a number or several names, by the problem. None where there
          is no label; no names at all are a multi-label example's label.

        Raises:
          InputError: It is no label of this task.
        """
        if self.problem == "multi_label":
            return self._names(value, where)
        if is_missing(value):
            return None
        if self.problem == "regression":
            return _number(value, where)
        return self._name(value, where)

    def _names(self, value: Any, where: str) -> tuple[str, ...]:
        if isinstance(value, str):
            value = value.split(self.separator)
        elif not isinstance(value, list):
            value = [value]
        # Once each, in the order in which they stand there.
        return tuple(
            dict.fromkeys(
                self._name(v, where) for v in value if not is_missing(v)
            )
        )

    def _name(self, value: Any, where: str) -> str:
        name = name_of(value, where)
        name = self.aliases.get(name, name)
        if not self.labels:
            return name
        label = self._known.get(name) or self._known.get(without_decimals(name))
        if label is None:
            raise InputError(
                f"Expected a label out of {listed(self.labels)}. Received: "
                f"{_shortened(name)} at {where}"
            )
        return label

    def is_undecided(self, value: Any) -> bool:
        """True for the label of a row that is to be left out."""
        return self.undecided is not None and value == self.undecided


def is_missing(value: Any) -> bool:
    """True for nothing at all, and for white space."""
    return value is None or (isinstance(value, str) and not value.strip())


def name_of(value: Any, where: str) -> str:
    """The text of a label or id that JSON may write as a number or truth.

    Raises:
      InputError: It is a list or an object.
    """
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, (bool, int, float)):
        return json.dumps(value)
    raise InputError(
        "Expected text or a number. Received: a "
        f"{type(value).__name__} at {where}"
    )


def _number(value: Any, where: str) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (OverflowError, TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise InputError(
            "Expected a finite number as the label of a regression. Received: "
            f"{_shortened(value)} at {where}"
        )
    return number


_TRUTHS = {"0": False, "1": True, "false": False, "true": True}


def is_set(value: Any, column: str, where: str) -> bool:
    """Reads a column that says whether an example has a label.

    Raises:
      InputError: It is neither 0 nor 1.
    """
    name = "" if value is None else name_of(value, where).lower()
    truth = _TRUTHS.get(without_decimals(name))
    if truth is None:
        found = f"holds {_shortened(name)}" if name else "is empty"
        raise InputError(
            f"{where}: the label column {column!r} {found}; write 0 or 1"
        )
    return truth


def without_decimals(name: str) -> str:
    """Returns "1" for "1.0" and every other name as it is.

    "01", "1e0" and "1.10" may be codes or versions: they stay different names.
    """
    match = _WHOLE_FLOAT.fullmatch(name)
    return match[1] if match else name


def unified(
    counts: Mapping[str, int], places: Mapping[str, str]
) -> collections.Counter[str]:
    """Counts labels that are equal as numbers as one.

    Where a label is written both as 1 and as 1.0, all labels are written as
    integers: {"0": 2, "0.0": 1, "1.0": 4} -> {"0": 3, "1": 4}.

    Args:
      counts: The number of times that each name occurs.
      places: Where each name occurs first, `path:line`.

    Raises:
      InputError: Two names are equal as numbers in another way: "01" and "1".
    """
    are_mixed = any(name != without_decimals(name) in counts for name in counts)
    merged: collections.Counter[str] = collections.Counter()
    first: dict[decimal.Decimal, tuple[str, str]] = {}
    for name, count in counts.items():
        label = without_decimals(name) if are_mixed else name
        merged[label] += count
        number = _exact(label)
        if number is None:
            continue
        other, place = first.setdefault(number, (label, places[name]))
        if other != label:
            raise InputError(
                f"{places[name]}: the label {name!r} is the same number as "
                f"{other!r} at {place}; write both alike, or list them with "
                "--labels if they are different labels"
            )
    return merged


def _exact(name: str) -> decimal.Decimal | None:
    """The number that a name is, with all its digits; None for "1_0"."""
    if "_" in name:
        return None
    try:
        number = decimal.Decimal(name)
    except decimal.InvalidOperation:
        return None
    return number if number.is_finite() else None


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Sorts names once each: by value if all are numbers, else as text."""
    names = sorted(set(names))
    try:
        return tuple(sorted(names, key=_finite))
    except ValueError:
        return tuple(names)


def _finite(name: str) -> float:
    number = float(name)
    if not math.isfinite(number):
        raise ValueError(f"{name!r} is a word here")
    return number


def _shortened(value: Any) -> str:
    """What came, on one line and not the whole of a novel."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


# Files of any layout -> Examples.


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
