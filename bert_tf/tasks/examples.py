"""Reads the rows of a table as `Example`s: texts with a label.

A warning counts the rows that are skipped because of a fault, and those that
are kept although a text is empty.
"""

import collections
import dataclasses
import functools
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from absl import logging

from bert_tf.base.processes import Faults
from bert_tf.data import tables
from bert_tf.errors import (
    InputError,
    did_you_mean,
    in_file,
    listed,
    shortened,
)

# The kinds of labels, in this order: one name, any number of names, a number,
# the index of the correct choice.
PROBLEMS = ("single_label", "multi_label", "regression", "multiple_choice")

Label = str | float | tuple[str, ...] | None

# An integer as pandas writes it in a column with missing values: "1.0".
_WHOLE_FLOAT = re.compile(r"(-?(?:0|[1-9]\d*))\.0+")
_TRUTHS = {"0": False, "1": True, "false": False, "true": True}

# The separator of the texts of a pair.
SEPARATOR = " ||| "


@dataclasses.dataclass(frozen=True, slots=True)
class Example:
    """One example of a sentence-level task, before tokenization.

    Attributes:
      id: The id in the file, or the number of the example, from 0.
      text_a: The first text, or the only one.
      text_b: The second text of a pair.
      choices: For multiple choice, the texts that are paired with `text_a`.
      label: The name of the class; a number for regression; the names for
        multi-label problems; None if the file has no label.
      where: The place in the file, "path:line", for messages.
    """

    id: str
    text_a: str
    text_b: str | None = None
    choices: tuple[str, ...] = ()
    label: Label = None
    where: str = ""


@dataclasses.dataclass(frozen=True)
class Target:
    """What the labels of a task are, and how its files spell them.

    Attributes:
      problem: One of `PROBLEMS`.
      labels: The names in the order of their ids; () for regression. With ()
        for another problem, any name is accepted.
      aliases: The names by their other spellings.
      undecided: The label of rows whose annotators disagreed. These rows are
        skipped.
      indicators: For multi-label problems with a column of 0 and 1 per label:
        the names, in the order of the columns.
    """

    problem: str = "single_label"
    labels: tuple[str, ...] = ()
    aliases: Mapping[str, str] = dataclasses.field(default_factory=dict)
    undecided: str | None = None
    indicators: tuple[str, ...] = ()

    def label_of(self, value: Any, where: str) -> Label:
        """Returns the label for a value from a table or from JSON.

        An empty value gives None (no label), or an empty tuple for a
        multi-label problem. The value is a string or any value of JSON; for
        `indicators`, a tuple of these. Raises InputError for other labels.
        """
        if self.indicators:
            cells = zip(self.indicators, value, strict=True)
            return tuple(name for name, v in cells if _is_set(v, name, where))
        if self.problem == "multi_label":
            if isinstance(value, str):
                value = value.split(",")
            elif not isinstance(value, list):
                value = [value]
            names = (self._name(v, where) for v in value if not is_missing(v))
            return tuple(dict.fromkeys(names))
        if is_missing(value):
            return None
        if self.problem == "regression":
            return _number(value, where)
        return self._name(value, where)

    def _name(self, value: Any, where: str) -> str:
        name = name_of(value, where)
        name = self.aliases.get(name, name)
        if not self.labels:
            return name
        label = spelled_label(name, self.labels)
        if label is None:
            raise in_file(
                where,
                f"unknown label {shortened(name)}; the labels are "
                f"{listed(self.labels, most=20, quote=True)}."
                f"{did_you_mean(name, self.labels)}",
            )
        return label

    def accepts(self, value: Any, where: str) -> bool:
        """Returns whether this is a known label; for regression, a number."""
        if self.problem != "regression" and not self.labels:
            return False
        try:
            return self.label_of(value, where) is not None
        except InputError:
            return False


def is_missing(value: Any) -> bool:
    """Returns whether a value is None or only white space."""
    return value is None or (isinstance(value, str) and not value.strip())


def name_of(value: Any, where: str) -> str:
    """Returns the text of a value; JSON may write it as a number or boolean."""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, (bool, int, float)):
        return json.dumps(value)
    raise in_file(
        where, f"expected text or a number, found a {type(value).__name__}."
    )


def _number(value: Any, where: str) -> float:
    if isinstance(value, bool) or not _is_number(value):
        raise in_file(
            where,
            "a label for regression must be a finite number; got "
            f"{shortened(value)}.",
        )
    return float(value)


def _is_set(value: Any, column: str, where: str) -> bool:
    """Reads a cell that says with 0 or 1 whether an example has a label."""
    name = "" if value is None else name_of(value, where)
    truth = _TRUTHS.get(_plain(name))
    if truth is None:
        contents = f"holds {shortened(name)}" if name else "is empty"
        raise in_file(
            where, f"the label column {column!r} {contents}. Write 0 or 1."
        )
    return truth


def spelled_label(text: str, labels: tuple[str, ...]) -> str | None:
    """Returns the label that a text spells, or None.

    "1.0" is the label "1" and "True" is "true", unless they are labels too.
    """
    spellings = _spellings(labels)
    return spellings.get(text) or spellings.get(_plain(text))


@functools.lru_cache
def _spellings(labels: tuple[str, ...]) -> dict[str, str]:
    """Maps spellings to labels; exact spellings take precedence."""
    plain = {_plain(name): name for name in labels}
    return plain | {name: name for name in labels}


@functools.lru_cache
def have_values(labels: tuple[str, ...]) -> bool:
    """Returns whether a label looks like a number or a boolean."""
    return any(_is_number(name) or _plain(name) in _TRUTHS for name in labels)


def _is_number(value: Any) -> bool:
    try:
        return math.isfinite(float(value))
    except (OverflowError, TypeError, ValueError):
        return False


def _plain(text: str) -> str:
    lower = text.lower()
    return lower if lower in _TRUTHS else without_decimals(text)


def without_decimals(name: str) -> str:
    """Returns "1" for "1.0" and any other name unchanged.

    "01", "1e0" and "1.10" may be codes or versions: they stay different names.
    """
    match = _WHOLE_FLOAT.fullmatch(name)
    return match[1] if match else name


def read_examples(
    path: str,
    columns: str | tables.Columns,
    target: Target,
    *,
    has_header: bool = True,
    is_labelled: bool = True,
    skip_malformed: bool = False,
    language: str | None = None,
    warn: bool = True,
) -> list[Example]:
    """Reads a TSV, CSV or JSON Lines file, one example per row.

    Rows with an empty text are kept, because they need a prediction too.

    Args:
      path: The file.
      columns: As for `tables.read`, with these names: `text_a`; `text_b` for
        pairs; `choice_start`, the beginning that all choices share; `choice`,
        the end of each; `label`; `id`; `language`.
      target: What the labels are.
      has_header: Whether the first row is a header.
      is_labelled: Whether each row must have a label.
      skip_malformed: Whether to skip rows with a wrong number of columns and
        JSON objects that lack a key.
      language: If given, only rows in this language are read.
      warn: Whether to log warnings.

    Raises:
      InputError: The file or one of its rows is not as expected, or it has no
        examples.
    """
    faults = Faults()

    def skip(problem: str, where: str) -> None:
        faults.add(f"Rows {problem} are skipped", where)

    examples: list[Example] = []
    languages: set[str] = set()
    for row, where in tables.read(
        path,
        columns,
        has_header=has_header,
        optional=() if is_labelled else ("label",),
        skip=skip if skip_malformed else None,
        check_header=functools.partial(
            _check_header, target, isinstance(columns, str), warn
        ),
    ):
        if language is not None:
            languages.add(row["language"])
            if row["language"] != language:
                continue
        label = _label(row, where, target, is_labelled)
        if is_labelled and label is None:
            skip("without an agreed label", where)
            continue
        example = _example(row, where, label, len(examples))
        texts = (example.text_a, *example.choices, example.text_b)
        if not all(text is None or text.strip() for text in texts):
            faults.add("Rows with an empty text", where)
        examples.append(example)
    if warn:
        faults.log()
    if languages and language not in languages:
        raise in_file(
            path,
            f"no row in the language {language!r}; the languages are "
            f"{listed(sorted(languages), most=20, quote=True)}.",
        )
    if not examples:
        raise in_file(path, "no row found.")
    has_names = target.problem == "multi_label" and not target.indicators
    if has_names and not is_labelled and not any(e.label for e in examples):
        # An empty column in a test set: the labels are unknown, not ().
        return [dataclasses.replace(e, label=None) for e in examples]
    return examples


def _check_header(
    target: Target,
    is_fixed: bool,
    warn: bool,
    header: Mapping[str, Any],
    where: str,
) -> None:
    """Raises InputError, or warns, if a header looks like an example.

    If `is_fixed`, the first row is always skipped as the header, as in the
    original. `header` has the cells of columns that were passed by number.
    """
    cell, key = header.get("label"), (header.get("id") or "").strip()
    if target.accepts(cell, where):
        problem = f"the header looks like an example with the label {cell!r}"
    elif is_missing(cell) and key.isdecimal():
        problem = f"the header looks like an example with the id {key!r}"
    else:
        return
    if not is_fixed:
        raise in_file(
            where,
            f"{problem}. If the file has no header, pass `header=False`; "
            "otherwise pass the columns by name.",
        )
    if warn:
        logging.warning(
            "%s: %s, but is skipped as the header, which files of this task "
            "must have; add a header line",
            where,
            problem,
        )


def _label(
    row: Mapping[str, Any], where: str, target: Target, is_labelled: bool
) -> Label:
    """Returns a row's label; None if undecided, or missing but optional."""
    value = row.get("label")
    if target.undecided is not None and value == target.undecided:
        return None
    if not is_labelled:
        cells = value if isinstance(value, tuple) else (value,)
        if value is None or (target.indicators and all(map(is_missing, cells))):
            return None
    label = target.label_of(value, where) if "label" in row else None
    if label is None and is_labelled:
        raise in_file(where, "no label.")
    return label


def _example(
    row: Mapping[str, Any], where: str, label: Label, number: int
) -> Example:
    def text(value: Any) -> str:
        if isinstance(value, str):
            return value
        return "" if value is None else name_of(value, where)

    start = text(row.get("choice_start"))
    return Example(
        id=text(row.get("id")) or str(number),
        text_a=text(row["text_a"]),
        text_b=text(row["text_b"]) if "text_b" in row else None,
        choices=tuple(
            f"{start} {text(choice)}".strip(" ")
            for choice in row.get("choice", ())
        ),
        label=label,
        where=where,
    )


def count_labels(examples: Sequence[Example]) -> collections.Counter[str]:
    """Counts the labels of examples; "1" and "1.0" are one label.

    If a label is spelled both ways, all labels lose their decimals: "0" twice,
    "0.0" and "1.0" give {"0": 3, "1": 1}.
    """
    counts: collections.Counter[str] = collections.Counter()
    merged: collections.Counter[str] = collections.Counter()
    for example in examples:
        label = example.label
        for name in label if isinstance(label, tuple) else (str(label),):
            counts[name] += 1
            merged[without_decimals(name)] += 1
    return merged if len(merged) < len(counts) else counts


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Sorts names: by value if all are finite numbers, otherwise as text."""
    texts = sorted(set(names))
    if not all(map(_is_number, texts)):
        return tuple(texts)
    return tuple(sorted(texts, key=float))


def split_pair(line: str) -> tuple[str, str | None]:
    """Returns the text of a line and None, or the two texts of a pair.

    The last separator splits the line: "a ||| b" is a pair. White space at
    both ends is stripped first, so " ||| b" is one text. Source:
    `read_examples` of `extract_features.py`.
    """
    first, separator, last = line.strip().rpartition(SEPARATOR)
    return (first, last) if separator else (last, None)
