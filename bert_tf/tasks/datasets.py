"""Data sets: their files, columns, labels and metrics.

The columns of official files are listed in order and read by position. As in
the original, the names in the header are ignored, because many people use these
layouts for custom data.
"""

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

from absl import logging

from bert_tf.base import files
from bert_tf.checkpoints.checkpoint import have_names
from bert_tf.data.tables import Columns
from bert_tf.errors import (
    InputError,
    did_you_mean,
    in_file,
    listed,
    wrong_value,
)
from bert_tf.tasks.examples import (
    Example,
    Target,
    count_labels,
    in_order,
    read_examples,
    without_decimals,
)
from bert_tf.tasks.metrics import usual_metrics

CUSTOM = "custom"
CUSTOM_PROBLEMS = ("single_label", "multi_label", "regression")
_SPLITS = {"train": "training", "dev": "development", "test": "test"}


@dataclasses.dataclass(frozen=True)
class Source:
    """The files that a split, or a part of it, can be read from.

    Attributes:
      files: Paths, absolute or in the folder of the data set. The first that
        exists, compressed (.gz) or not, is read.
      columns: See `examples.read_examples`.
      has_header: Whether the first row is a header.
      skip_malformed: Whether the official file has malformed rows to skip.
      suffix: The end of the names of the part's results: "_mismatched".
      submission: The file's name in a submission to the GLUE leaderboard.
      is_optional: Whether the files may be missing.
    """

    files: tuple[str, ...]
    columns: str | Columns
    has_header: bool = True
    skip_malformed: bool = False
    suffix: str = ""
    submission: str | None = None
    is_optional: bool = False


@dataclasses.dataclass(frozen=True)
class DataSet:
    """The data of a task.

    Attributes:
      name: The task.
      target: What the labels are.
      metrics: Names in `tasks.metrics.METRICS`, the most important first.
      train, dev, test: The splits; the labels of the test set may be missing.
      model_of: The task whose models predict these examples; default: `name`.
      language: The language to read, where files hold several.
      train_language: Replaces `{train_language}` in the names of files.
      published_labels: The names of the labels in published models, in the
        order of `labels`, if they are known.
      positive_label: The class that F1 is computed for; by default the last one
        of the data set, even if a model orders them differently. None for
        regression.
    """

    name: str
    target: Target
    metrics: tuple[str, ...]
    train: tuple[Source, ...] = ()
    dev: tuple[Source, ...] = ()
    test: tuple[Source, ...] = ()
    model_of: str = ""
    language: str = ""
    train_language: str = ""
    published_labels: tuple[str, ...] = ()
    positive_label: str | None = None

    def __post_init__(self) -> None:
        if not self.model_of:
            object.__setattr__(self, "model_of", self.name)
        if self.positive_label is None and self.labels:
            object.__setattr__(self, "positive_label", self.labels[-1])

    @property
    def problem(self) -> str:
        return self.target.problem

    @property
    def labels(self) -> tuple[str, ...]:
        return self.target.labels

    @property
    def is_pair(self) -> bool:
        return any(
            "text_b" in source.columns
            for source in (*self.train, *self.dev, *self.test)
        )

    def with_labels(
        self,
        known: tuple[str, ...],
        *,
        is_trained: bool = False,
    ) -> "DataSet":
        """Returns the data set with its labels in the order of a model.

        Published models order their classes differently. Classes without names
        (LABEL_0) are assigned to the labels by their number.

        Args:
          known: The labels of the model; () if they are unknown.
          is_trained: Whether a head with other labels will be replaced.

        Raises:
          InputError: The model has the same number of labels, but other names.
        """
        if len(known) != len(self.labels):
            return self  # The labels are unknown, or the head does not fit.
        labels = known if sorted(known) == sorted(self.labels) else None
        if labels is None and is_trained and have_names(known):
            return self
        labels = labels or self._in_order_of(known)
        if labels is not None:
            target = dataclasses.replace(self.target, labels=labels)
            return dataclasses.replace(self, target=target)
        theirs, ours = ", ".join(known), ", ".join(self.labels)
        if have_names(known):
            raise InputError(
                f"The model's labels are {theirs}; {self.name} has {ours}. "
                "Pass a model of this task. If the labels mean the same in "
                "this order, correct their names beside the model."
            )
        if known:
            logging.warning(
                "The model's labels %s are assigned to %s, in this order",
                theirs,
                ours,
            )
        return self

    def _in_order_of(
        self, spellings: tuple[str, ...]
    ) -> tuple[str, ...] | None:
        """Returns the labels in a model's order, if only spellings differ.

        A model with the labels NEUTRAL, CONTRADICTION, ENTAILMENT gives
        neutral, contradiction, entailment.
        """

        def plain(label: str) -> str:
            return without_decimals(label.casefold())

        for names in filter(None, (self.labels, self.published_labels)):
            ours = dict(zip(map(plain, names), self.labels, strict=True))
            labels = [ours[key] for key in map(plain, spellings) if key in ours]
            if sorted(labels) == sorted(self.labels):
                return tuple(labels)
        return None

    def split(self, split: str, data_dir: str) -> list["SplitFile"]:
        """Finds the parts of "train", "dev" or "test".

        Raises:
          InputError: A file is missing, or the task has no such split.
        """
        sources: tuple[Source, ...] = getattr(self, split)
        if not sources:
            raise InputError(
                f"{self.name} has no {_SPLITS[split]} set. A model of "
                f"{self.model_of} predicts its test set."
            )
        parts = []
        for source in sources:
            names = [
                name.replace("{train_language}", self.train_language)
                for name in source.files
            ]
            path = find_first(names, data_dir)
            if path:
                parts.append(SplitFile(self, source, split, path))
            elif not source.is_optional:
                raise in_file(
                    data_dir,
                    f"no {listed(names, last='or')}, the {_SPLITS[split]} set "
                    f"of {self.name}.",
                )
        return parts


def find_first(names: Sequence[str], data_dir: str) -> str | None:
    """Returns the first file that exists, compressed or not."""
    for name in names:
        path = name if files.is_remote(name) else os.path.join(data_dir, name)
        for spelling in filter(files.exists, (path, f"{path}.gz")):
            return spelling
    return None


@dataclasses.dataclass(frozen=True)
class SplitFile:
    """A split, or one of its parts, whose file exists."""

    data_set: DataSet
    source: Source
    split: str
    path: str

    def read(
        self, warn: bool = True, is_labelled: bool | None = None
    ) -> list[Example]:
        """Reads the examples; see `read_examples`.

        By default, rows of the training and development sets must have labels.
        """
        source, data_set = self.source, self.data_set
        if is_labelled is None:
            is_labelled = self.split != "test"
        has_languages = "language" in source.columns
        return read_examples(
            self.path,
            source.columns,
            data_set.target,
            has_header=source.has_header,
            is_labelled=is_labelled,
            skip_malformed=source.skip_malformed,
            language=data_set.language if has_languages else None,
            warn=warn,
        )


# The data sets that are known by name.


def _file(names: str, columns: str, **arguments: Any) -> tuple[Source, ...]:
    """Returns a split of one source; `names` are separated by spaces."""
    return (Source(tuple(names.split()), columns, **arguments),)


def _glue(columns: str, test_columns: str, submission: str) -> dict[str, Any]:
    """Returns the splits of a task in the layout of GLUE."""
    return {
        "train": _file("train.tsv", columns),
        "dev": _file("dev.tsv", columns),
        "test": _file("test.tsv", test_columns, submission=submission),
    }


_BINARY = Target(labels=("0", "1"))
_ENTAILMENT = Target(labels=("entailment", "not_entailment"))
_INFERENCE = Target(
    labels=("contradiction", "entailment", "neutral"),
    aliases={"contradictory": "contradiction"},
    undecided="-",
)

_COLA = "_ label _ text_a"
_MRPC = "label _ _ text_a text_b"
_MNLI = "id _ _ _ _ _ _ _ text_a text_b * label"
_MNLI_TEST = "id _ _ _ _ _ _ _ text_a text_b"
_STSB = "id _ _ _ _ _ _ text_a text_b"
_KORSTS = "_ _ _ id label text_a text_b"
_PAIR = "id text_a text_b"
_XNLI = "language label _ _ _ _ text_a text_b"
_SWAG = "id _ _ _ text_a choice_start _ choice choice choice choice label"
_NSMC = "id text_a label"

TABLE = (
    DataSet(
        "cola",
        _BINARY,
        ("mcc", "accuracy"),
        published_labels=("unacceptable", "acceptable"),
        train=_file("train.tsv", _COLA, has_header=False),
        dev=_file("dev.tsv", _COLA, has_header=False),
        test=_file("test.tsv", "id text_a", submission="CoLA.tsv"),
    ),
    DataSet(
        "sst-2",
        _BINARY,
        ("accuracy",),
        published_labels=("negative", "positive"),
        **_glue("text_a label", "id text_a", "SST-2.tsv"),
    ),
    DataSet(
        "mrpc",
        _BINARY,
        ("accuracy", "f1"),
        published_labels=("not_equivalent", "equivalent"),
        **_glue(_MRPC, "id _ _ text_a text_b", "MRPC.tsv"),
    ),
    DataSet(
        "sts-b",
        Target("regression"),
        ("pearson", "spearman"),
        **_glue(f"{_STSB} label", _STSB, "STS-B.tsv"),
    ),
    # Korean; the files of KorNLUDatasets.
    DataSet(
        "korsts",
        Target("regression"),
        ("pearson", "spearman"),
        train=_file("sts-train.tsv", _KORSTS),
        dev=_file("sts-dev.tsv", _KORSTS),
        test=_file("sts-test.tsv", _KORSTS),
    ),
    DataSet(
        "qqp",
        _BINARY,
        ("accuracy", "f1"),
        published_labels=("not_duplicate", "duplicate"),
        # Line breaks inside some questions broke their rows in the release.
        train=_file(
            "train.tsv", "id _ _ text_a text_b label", skip_malformed=True
        ),
        dev=_file("dev.tsv", "id _ _ text_a text_b label"),
        test=_file("test.tsv", _PAIR, submission="QQP.tsv"),
    ),
    DataSet(
        "mnli",
        _INFERENCE,
        ("accuracy",),
        train=_file("train.tsv", _MNLI),
        # The genres of the training set, and other genres.
        dev=_file("dev_matched.tsv", _MNLI)
        + _file(
            "dev_mismatched.tsv", _MNLI, suffix="_mismatched", is_optional=True
        ),
        test=_file("test_matched.tsv", _MNLI_TEST, submission="MNLI-m.tsv")
        + _file(
            "test_mismatched.tsv",
            _MNLI_TEST,
            suffix="_mismatched",
            submission="MNLI-mm.tsv",
            is_optional=True,
        ),
    ),
    DataSet(
        "qnli",
        _ENTAILMENT,
        ("accuracy",),
        **_glue(f"{_PAIR} label", _PAIR, "QNLI.tsv"),
    ),
    DataSet(
        "rte",
        _ENTAILMENT,
        ("accuracy",),
        **_glue(f"{_PAIR} label", _PAIR, "RTE.tsv"),
    ),
    DataSet(
        "wnli",
        _BINARY,
        ("accuracy",),
        published_labels=("not_entailment", "entailment"),
        **_glue(f"{_PAIR} label", _PAIR, "WNLI.tsv"),
    ),
    DataSet(
        "ax",
        _INFERENCE,
        ("accuracy",),
        model_of="mnli",
        test=_file(
            "diagnostic.tsv diagnostic/diagnostic.tsv AX.tsv",
            _PAIR,
            # Its predictions are in the same folder as MNLI's.
            suffix="_ax",
            submission="AX.tsv",
        ),
    ),
    DataSet(
        "xnli",
        _INFERENCE,
        ("accuracy",),
        train=_file(
            "multinli/multinli.train.{train_language}.tsv "
            "XNLI-MT-1.0/multinli/multinli.train.{train_language}.tsv",
            "text_a text_b label",
        ),
        dev=_file("xnli.dev.tsv XNLI-1.0/xnli.dev.tsv", _XNLI),
        test=_file("xnli.test.tsv XNLI-1.0/xnli.test.tsv", _XNLI),
    ),
    DataSet(
        "swag",
        Target("multiple_choice", ("0", "1", "2", "3")),
        ("accuracy",),
        train=_file("train.csv", _SWAG),
        dev=_file("val.csv", _SWAG),
        test=_file("test.csv", _SWAG),
    ),
    DataSet(
        "nsmc",
        _BINARY,
        ("accuracy",),
        published_labels=("negative", "positive"),
        train=_file("ratings_train.txt", _NSMC),
        # Without a development set, the test set is evaluated.
        dev=_file("ratings_valid.txt ratings_dev.txt ratings_test.txt", _NSMC),
        test=_file("ratings_test.txt", _NSMC),
    ),
)

_BY_NAME = {data_set.name: data_set for data_set in TABLE}
NAMES = tuple(_BY_NAME)


def find(
    name: str,
    *,
    language: str = "zh",
    train_language: str | None = None,
) -> DataSet:
    """Returns a data set by its name.

    Args:
      name: One of `NAMES`, in upper or lower case, or "sst2" or "stsb".
      language: The language of XNLI; the original's is Chinese.
      train_language: The language of XNLI's training set; default: `language`.

    Raises:
      InputError: No data set has this name.
    """
    key = name.strip().lower()
    key = {"sst2": "sst-2", "stsb": "sts-b"}.get(key, key)
    if key not in _BY_NAME:
        names = (*NAMES, CUSTOM)
        raise wrong_value(
            "`task_name`",
            f"one of {listed(names, last='or', most=len(names))}",
            name,
            did_you_mean(name, names).strip(),
        )
    return dataclasses.replace(
        _BY_NAME[key],
        language=language,
        train_language=train_language or language,
    )


# Data sets of the user.


def custom_data_set(
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
) -> DataSet:
    """Describes custom data in TSV, CSV or JSON Lines files.

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
        by commas (in JSON: a list), or several columns of 0 and 1, separated by
        commas. None: there are no labels.
      has_header: Whether the first row of a table names the columns.
      problem: One of `CUSTOM_PROBLEMS`.
      labels: The labels in the order of a model; default: the training file's
        labels, sorted by value if all are numbers, otherwise as text.

    Raises:
      InputError: The arguments contradict each other, or there are no labels
        and no training file to find them in.
    """
    if problem == "regression" and labels:
        raise wrong_value(
            "`labels`", "left out for `problem=regression`", list(labels)
        )
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
        names = _custom_files(data_dir, stems.split(), name)
        return (Source(names, columns, has_header),)

    custom = DataSet(
        CUSTOM,
        Target(problem, indicators=indicators),
        metrics=usual_metrics("regression", 0),
        train=source("train", train_file),
        dev=source("dev valid validation", dev_file),
        test=source("test", test_file),
    )
    if problem == "regression":
        return custom
    names = tuple(labels or _find_labels(custom, data_dir, str(label_column)))
    if len({*filter(str.strip, names)}) < max(2, len(names)):
        raise wrong_value(
            "`labels`", "at least two different non-empty names", list(names)
        )
    target = dataclasses.replace(custom.target, labels=names)
    metrics = usual_metrics(problem, len(names))
    return dataclasses.replace(custom, target=target, metrics=metrics)


def _custom_files(
    data_dir: str, stems: Sequence[str], name: str | None
) -> tuple[str, ...]:
    """Returns the file of this name, or the default names of a split."""
    if not name:
        extensions = "tsv", "csv", "jsonl"
        return tuple(f"{s}.{e}" for s in stems for e in extensions)
    is_outside = not files.exists(os.path.join(data_dir, name))
    if is_outside and not files.is_remote(name) and files.exists(name):
        return (os.path.abspath(name),)
    return (name,)


def _indicators(
    columns: tuple[str, ...], labels: Sequence[str] | None
) -> tuple[str, ...]:
    """Returns the label of each column; numbers get `labels` in order."""
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


def _find_labels(
    custom: DataSet, data_dir: str, label_column: str
) -> tuple[str, ...]:
    """Returns the labels of the training file, and logs their counts."""
    if not data_dir:
        raise InputError(
            "Pass `labels`, or `data_dir` with a training file that has labels."
        )
    try:
        [part] = custom.split("train", data_dir)
    except InputError as error:
        raise InputError(
            f"{error} Without training, pass the labels with `labels`."
        ) from error
    path = part.path
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
