"""A custom data set: TSV, CSV or JSON Lines files and the names of columns."""

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

from absl import logging

from bert_tf.base import files
from bert_tf.errors import InputError, in_file, listed, wrong_value
from bert_tf.tasks.datasets import DataSet, Source
from bert_tf.tasks.examples import Target, count_labels, in_order
from bert_tf.tasks.metrics import usual_metrics

NAME = "custom"
PROBLEMS = ("single_label", "multi_label", "regression")


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
    """Describes a custom data set in TSV, CSV or JSON Lines files.

    A column is a name in the header, a key in JSON, or a number from 0.

    Args:
      data_dir: The folder of the files; "" if no file is read.
      train_file: A name in the folder or a path, compressed or not; default:
        train.tsv, train.csv or train.jsonl.
      dev_file: As `train_file`; default: dev.tsv, valid.tsv, validation.tsv ...
      test_file: As `train_file`; default: test.tsv ... May lack labels.
      text_a_column: The text, or the first text of a pair.
      text_b_column: The second text of a pair.
      id_column: The name of a row in predictions; default: its number.
      label_column: The label. For multi-label problems the names, separated
        by `label_separator` (in JSON: a list), or several columns of 0 and 1,
        separated by commas. None: there are no labels.
      has_header: Whether the first row of a table names the columns.
      problem: One of `PROBLEMS`.
      labels: The labels in the order of a model; default: the training file's
        labels, sorted by value if all are numbers, otherwise as text.
      label_separator: What separates the names in a multi-label column.
      skip_malformed: See `DataSet`.

    Raises:
      InputError: The arguments contradict each other, or there are no labels
        and no training file to find them in.
    """
    _check(problem, labels, label_separator)
    column: str | tuple[str, ...] | None = label_column
    indicators: tuple[str, ...] = ()
    if problem == "multi_label" and label_column and "," in label_column:
        column = tuple(name.strip() for name in label_column.split(","))
        indicators = _indicators(column, labels)
        labels = labels or indicators
    columns: dict[str, Any] = {
        "text_a": text_a_column,
        "text_b": text_b_column,
        "label": column,
        "id": id_column,
    }
    columns = {name: c for name, c in columns.items() if c is not None}

    def source(stems: str, name: str | None) -> tuple[Source, ...]:
        names = [
            f"{stem}.{extension}"
            for stem in stems.split()
            for extension in ("tsv", "csv", "jsonl")
        ]
        if name:
            names = [_path_in(data_dir, name)]
        return (Source(tuple(names), columns, has_header),)

    custom = DataSet(
        NAME,
        Target(problem, separator=label_separator, indicators=indicators),
        metrics=usual_metrics("regression", 0),
        train=source("train", train_file),
        dev=source("dev valid validation", dev_file),
        test=source("test", test_file),
        skip_malformed=skip_malformed,
    )
    if problem == "regression":
        return custom
    names = tuple(labels or _find_labels(custom, data_dir, label_column))
    if len({*filter(str.strip, names)}) < max(2, len(names)):
        raise wrong_value(
            "`labels`", "at least two different non-empty names", list(names)
        )
    target = dataclasses.replace(custom.target, labels=names)
    metrics = usual_metrics(problem, len(names))
    return dataclasses.replace(custom, target=target, metrics=metrics)


def _check(
    problem: str, labels: Sequence[str] | None, label_separator: str
) -> None:
    if problem not in PROBLEMS:
        one_of = f"one of {listed(PROBLEMS, last='or')}"
        raise wrong_value("`problem`", one_of, problem)
    if problem == "multi_label" and not label_separator:
        raise wrong_value(
            "`label_separator`", "at least one character", label_separator
        )
    if problem == "regression" and labels:
        raise wrong_value(
            "`labels`", "left out for `problem=regression`", list(labels)
        )


def _indicators(
    columns: tuple[str, ...], labels: Sequence[str] | None
) -> tuple[str, ...]:
    """Returns the label of each column of 0 and 1.

    Columns that are numbers take the given labels in order.
    """
    names = columns
    if labels and all(column.isdecimal() for column in columns):
        names = tuple(labels)
    if labels and (len(names), set(names)) != (len(columns), set(labels)):
        raise wrong_value(
            "`label_column`",
            f"a column for each label ({listed(labels, most=20)})",
            list(columns),
        )
    return names


def _path_in(data_dir: str, name: str) -> str:
    """Returns `name` if it is in the folder, otherwise its absolute path."""
    if files.is_remote(name) or files.exists(os.path.join(data_dir, name)):
        return name
    return os.path.abspath(name) if files.exists(name) else name


def _find_labels(
    custom: DataSet, data_dir: str, label_column: str | None
) -> tuple[str, ...]:
    """Returns the labels of the training file, and logs their counts."""
    if label_column is None:
        raise InputError("Pass `label_column` or `labels`.")
    if not data_dir:
        raise InputError(
            "Pass `labels`, or `data_dir` with a training file that has labels."
        )
    try:
        [part] = custom.split("train", data_dir)
    except InputError as error:
        if not files.is_directory(data_dir):
            raise
        raise InputError(
            f"{error} Without training, pass the labels with `labels`."
        ) from error
    path = part.files[0]
    counts = count_labels(part.read(warn=False))
    labels = in_order(counts)
    logging.info(
        "%d labels in %s: %s",
        len(labels),
        path,
        ", ".join(f"{name} ({counts[name]:,})" for name in labels[:20]),
    )
    if len(labels) < 2:
        raise in_file(
            path,
            f"expected two or more different labels in column "
            f"{label_column!r}, found {listed(labels, quote=True) or 'none'}. "
            "Pass the column that has the labels.",
        )
    # Many labels with fewer than three examples each are hardly classes.
    if len(labels) > max(50, counts.total() / 3):
        logging.warning(
            "%s has %d different labels in %d rows. Is %r the label column? "
            "For numbers, pass `problem=regression`",
            path,
            len(labels),
            counts.total(),
            label_column,
        )
    return labels
