"""A data set of one's own: TSV, CSV or JSONL files and the names of columns."""

import dataclasses
import os
from collections.abc import Sequence

from absl import logging

from bert_tf import files
from bert_tf.data.tables import Column, Layout, listed
from bert_tf.errors import InputError
from bert_tf.tasks.datasets import DataSet, Plan, Source, named, only
from bert_tf.tasks.examples import (
    Reading,
    Target,
    count_labels,
    in_order,
)

NAME = "custom"
PROBLEMS = ("single_label", "multi_label", "regression")

# The names that are looked for, in this order.
_STEMS = {
    "train": ("train",),
    "dev": ("dev", "valid", "validation"),
    "test": ("test",),
}
_EXTENSIONS = ("tsv", "csv", "jsonl")

# One label, there or not, is a question of two labels.
_FEWEST_LABELS = 2

# More classes than that, and few examples of each, are hardly classes.
_MANY_LABELS = 50
_FEW_EXAMPLES = 3


def data_set(
    data_dir: str,
    *,
    train_file: str | None = None,
    dev_file: str | None = None,
    test_file: str | None = None,
    text_a_column: str = "text",
    text_b_column: str | None = None,
    id_column: str | None = None,
    label_column: str | None = "label",
    has_header: bool = True,
    problem: str = "single_label",
    labels: Sequence[str] | None = None,
    label_separator: str = ",",
    skip_malformed: bool = False,
) -> DataSet:
    """Describes anybody's files.

    A column is a name in the header, a key of JSONL, or a number from 0.

    Args:
      data_dir: The folder of the files; "" where none is read, nor labels
        looked for.
      train_file: A name in that folder, or a path, .gz or not; None:
        train.tsv, train.csv or train.jsonl, likewise.
      dev_file: Likewise; None: dev.tsv, valid.tsv, validation.tsv ...
      test_file: Likewise; None: test.tsv ... Its labels may be missing.
      text_a_column: The text, or the first of a pair.
      text_b_column: The second.
      id_column: What a row is called in predictions; None: by its number.
      label_column: The label. For multi-label problems the names, between
        separators (JSONL: a list), or several columns, between commas, that
        hold 0 or 1. None: there are no labels.
      has_header: Whether the first row of a table names the columns.
      problem: One of `PROBLEMS`.
      labels: Their names, in the order of a model's; None: those of the
        training file, by value if all are numbers, else as text.
      label_separator: What is between the names of a multi-label column.
      skip_malformed: Whether to leave rows out that have the wrong number of
        columns, and say how many, instead of stopping at the first.

    Raises:
      InputError: The arguments do not fit each other, or there are no labels
        and no training file to find them in.
    """
    _check(problem, labels, label_separator)
    own: str | None = label_column
    indicators: tuple[tuple[str, str], ...] = ()
    if problem == "multi_label" and label_column and "," in label_column:
        own, indicators = None, _indicators(label_column, labels)
        labels = labels or [name for name, _ in indicators]
    layout: Layout[Column] = Layout(
        num_columns=None,
        has_header=has_header,
        text_a=text_a_column,
        text_b=text_b_column,
        label=own,
        indicators=indicators,
        id=id_column,
    )
    target = Target(problem, separator=label_separator)
    found = DataSet(
        NAME,
        target,
        metrics=(),
        train=_plans(data_dir, "train", train_file, layout),
        dev=_plans(data_dir, "dev", dev_file, layout),
        test=_plans(data_dir, "test", test_file, layout),
        skip_malformed=skip_malformed,
    )
    if problem != "regression":
        names = labels or _find_labels(found, layout, data_dir)
        target = dataclasses.replace(target, labels=_different(names))
    metrics = _metrics(problem, len(target.labels))
    return dataclasses.replace(found, target=target, metrics=metrics)


def _check(
    problem: str, labels: Sequence[str] | None, label_separator: str
) -> None:
    if problem not in PROBLEMS:
        raise InputError(
            f"expected a problem out of {', '.join(PROBLEMS)}. Received: "
            f"{problem!r}"
        )
    if problem == "multi_label" and not label_separator:
        raise InputError(
            "expected --label_separator to be a character or more. Received: "
            f"{label_separator!r}"
        )
    if problem == "regression" and labels:
        raise InputError(
            "expected no --labels, for those of a regression are numbers. "
            f"Received: {listed(labels)}"
        )


def _metrics(problem: str, num_labels: int) -> tuple[str, ...]:
    if problem == "regression":
        return "pearson", "spearman"
    if problem == "multi_label":
        return "micro_f1", "macro_f1", "exact_match"
    return ("accuracy", "f1" if num_labels == 2 else "macro_f1")


def _indicators(
    label_column: str, labels: Sequence[str] | None
) -> tuple[tuple[str, str], ...]:
    """The columns of 0 and 1 and the label of each, named as its column.

    Columns that are numbers take the names that are given, in their order.
    """
    columns = [column.strip() for column in label_column.split(",")]
    names = columns
    if labels and all(column.isdecimal() for column in columns):
        names = list(labels)
    if labels and (len(names), set(names)) != (len(columns), set(labels)):
        raise InputError(
            f"Expected a column for each of the labels {listed(labels)}. "
            f"Received: {listed(columns)}"
        )
    return tuple(zip(names, columns, strict=True))


def _plans(
    data_dir: str, split: str, name: str | None, layout: Layout[Column]
) -> tuple[Plan, ...]:
    if name:
        return only(Source(_located(data_dir, name), layout))
    names = [f"{s}.{e}" for s in _STEMS[split] for e in _EXTENSIONS]
    return only(*named(names, layout))


def _located(data_dir: str, name: str) -> str:
    """A file in the folder, or else the path as it is if that exists."""
    if files.is_remote(name) or files.exists(os.path.join(data_dir, name)):
        return name
    return os.path.abspath(name) if files.exists(name) else name


def _find_labels(
    found: DataSet, layout: Layout[Column], data_dir: str
) -> tuple[str, ...]:
    """The labels of the training file, with a line that counts them."""
    if layout.label is None:
        raise InputError(
            "expected --label_column or --labels. Received: neither"
        )
    if not data_dir:
        raise InputError(
            "expected --labels, or --data_dir with a training file that has "
            "them. Received: neither"
        )
    try:
        [part] = found.split("train", data_dir)
    except InputError as error:
        if not files.is_directory(data_dir):
            raise
        raise InputError(
            f"{error}; if no training is wanted, name the labels with --labels"
        ) from error
    path = part.files[0]
    reading = Reading(layout, found.target, skip_malformed=found.skip_malformed)
    counts = count_labels(path, reading)
    labels = in_order(counts)
    logging.info(
        "%d labels in %s: %s",
        len(labels),
        path,
        ", ".join(f"{name} ({counts[name]:,})" for name in labels[:20]),
    )
    if len(labels) > max(_MANY_LABELS, counts.total() / _FEW_EXAMPLES):
        logging.warning(
            "%s has %d different labels in %d rows: is %r the column of the "
            "labels, and are they no numbers (--problem=regression)?",
            path,
            len(labels),
            counts.total(),
            layout.label,
        )
    if len(labels) < _FEWEST_LABELS:
        received = " ".join(f"{name!r} alone" for name in labels) or "none"
        raise InputError(
            f"expected {_FEWEST_LABELS} or more different labels in column "
            f"{layout.label!r} of {path}. Received: {received}"
        )
    return labels


def _different(labels: Sequence[str]) -> tuple[str, ...]:
    if len(labels) < _FEWEST_LABELS or len(set(labels)) < len(labels):
        raise InputError(
            f"expected {_FEWEST_LABELS} or more different --labels. Received: "
            f"{listed(labels)}"
        )
    return tuple(labels)
