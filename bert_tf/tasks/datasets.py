"""The data sets that are known by name: a row of a table each.

The columns are told in the order of the official files; `Layout.of` explains.
They are read by their place and the header is passed over unread, as in the
original, for many people bring data of their own in these layouts.
"""

import dataclasses
import difflib
import os
from collections.abc import Callable, Sequence
from typing import Any

from absl import logging

from bert_tf import files
from bert_tf.data.tables import Column, Layout, read_tsv
from bert_tf.errors import InputError
from bert_tf.tasks.examples import (
    Example,
    Reading,
    Target,
    have_names,
    read_examples,
    without_decimals,
)

# `DataSet`: which files of a folder are training, development and test set.


# What the splits are called, and in messages.
SPLITS = {"train": "training", "dev": "development", "test": "test"}

# A message lists no more files than that.
_MAX_FILES = 30


@dataclasses.dataclass(frozen=True)
class Source:
    """A file that examples can be read from.

    Attributes:
      name: Its path, in the folder of the data set or absolute.
      layout: Which column holds what.
      listing: A file beside it, of the keys of some rows; see `Layout.key`.
      is_listed: Whether the rows of the listing are meant, or all others.
      skip_malformed: For an official file that has broken rows.
      note: What to tell when it is used.
    """

    name: str
    layout: Layout[Column]
    listing: str | None = None
    is_listed: bool = False
    skip_malformed: bool = False
    note: str | None = None


@dataclasses.dataclass(frozen=True)
class Plan:
    """Where a part comes from.

    Attributes:
      sources: The first one that exists is read, compressed (.gz) or not.
      suffix: What it adds to the names of results.
      submission: Its file in a submission to the GLUE leaderboard.
      optional: Whether a folder may lack it.
    """

    sources: tuple[Source, ...]
    suffix: str = ""
    submission: str | None = None
    optional: bool = False


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of a split, found but not yet read.

    Attributes:
      suffix: What it adds to the names of results, such as "_mismatched".
      files: The files that it is read from.
      reading: What else decides on the examples, as JSON has it.
      submission: Its file in a submission to the GLUE leaderboard.
    """

    suffix: str
    files: tuple[str, ...]
    reading: dict[str, Any]
    submission: str | None
    _read: Callable[[], list[Example]] = dataclasses.field(repr=False)

    def read(self) -> list[Example]:
        """Reads the examples.

        Raises:
          InputError: A file or a row of it is not as expected.
        """
        return self._read()


@dataclasses.dataclass(frozen=True)
class DataSet:
    """A task's data.

    Attributes:
      name: The task's name.
      target: What its labels are.
      metrics: Names in `bert_tf.metrics.METRICS`, the deciding one first.
      train: Where the training set is from.
      dev: Where the development set is from.
      test: Where the test set is from; its labels may be missing.
      model_of: The task whose model answers: its own, but for AX.
      language: The one that is read, where files hold several.
      train_language: What stands for `{train_language}` in a file's name.
      skip_malformed: Leave rows out that have the wrong number of columns.
      published_labels: What models from elsewhere call the labels, in the
        same order; () if no other names are known.
      positive_label: The class that F1 is of: the last in the data set's own
        order, and the same one in a model's order. None for regression.
    """

    name: str
    target: Target
    metrics: tuple[str, ...]
    train: tuple[Plan, ...] = ()
    dev: tuple[Plan, ...] = ()
    test: tuple[Plan, ...] = ()
    model_of: str = ""
    language: str = ""
    train_language: str = ""
    skip_malformed: bool = False
    published_labels: tuple[str, ...] = ()
    positive_label: str | None = None

    def __post_init__(self) -> None:
        if not self.model_of:
            object.__setattr__(self, "model_of", self.name)
        if self.positive_label is None and self.labels:
            object.__setattr__(self, "positive_label", self.labels[-1])

    @property
    def problem(self) -> str:
        """One of `bert_tf.tasks.examples.PROBLEMS`."""
        return self.target.problem

    @property
    def labels(self) -> tuple[str, ...]:
        """Their names in the order of their numbers; () for regression."""
        return self.target.labels

    @property
    def is_pair(self) -> bool:
        """Whether an example has two texts."""
        return any(
            source.layout.text_b is not None
            for plan in (*self.train, *self.dev, *self.test)
            for source in plan.sources
        )

    def with_labels(
        self,
        known: tuple[str, ...],
        *,
        is_trained: bool = False,
        allow_mapping: bool = False,
    ) -> "DataSet":
        """Returns the data set with its labels in the order of a model.

        Published models have their classes in other orders. Classes without
        names (LABEL_0) are taken for the labels by their number.

        Args:
          known: The labels of the model; () if they are unknown.
          is_trained: Whether a head with other labels will be replaced.
          allow_mapping: Whether labels of other names are taken for these, in
            their order.

        Raises:
          InputError: The model has as many labels, but of other names.
        """
        if len(known) != len(self.labels):
            return self  # There are no names, or the head does not fit.
        labels = known if sorted(known) == sorted(self.labels) else None
        if labels is None and is_trained and have_names(known):
            return self
        labels = labels or self._in_order_of(known)
        if labels is not None:
            target = dataclasses.replace(self.target, labels=labels)
            return dataclasses.replace(self, target=target)
        theirs, ours = ", ".join(known), ", ".join(self.labels)
        if have_names(known) and not allow_mapping:
            raise InputError(
                f"The model's labels are {theirs}; {self.name} has {ours}. "
                "Name a model of this task, or pass --allow_label_mapping if "
                "the labels mean the same in this order."
            )
        logging.warning(
            "The model's labels %s are taken for %s, in this order",
            theirs,
            ours,
        )
        return self

    def _in_order_of(self, known: tuple[str, ...]) -> tuple[str, ...] | None:
        """The labels in a model's order, whatever its spelling of them."""
        for names in filter(None, (self.labels, self.published_labels)):
            spelled = map(_plain, names)
            ours = dict(zip(spelled, self.labels, strict=True))
            found = [ours[key] for key in map(_plain, known) if key in ours]
            if sorted(found) == sorted(self.labels):
                return tuple(found)
        return None

    def split(self, split: str, data_dir: str) -> list[Part]:
        """Finds the files of a split.

        Args:
          split: "train", "dev" or "test".
          data_dir: The folder of the data set.

        Returns:
          At least one part.

        Raises:
          InputError: A file is missing, or the task has no such split.
        """
        if split not in SPLITS:
            raise ValueError(
                f"Expected one of {list(SPLITS)}. Received: {split!r}"
            )
        plans: tuple[Plan, ...] = getattr(self, split)
        if not plans:
            raise InputError(
                f"Expected a split that {self.name} has. Received: "
                f"{split!r}; a model of {self.model_of} answers its test set"
            )
        parts = [self._part(plan, split, data_dir) for plan in plans]
        return [part for part in parts if part]

    def _part(self, plan: Plan, split: str, data_dir: str) -> Part | None:
        for source in plan.sources:
            path = self._path(source, data_dir)
            for spelling in (path, f"{path}.gz"):
                if files.exists(spelling):
                    return self._found(plan, source, split, spelling)
        names = [
            os.path.basename(self._path(s, data_dir)) for s in plan.sources
        ]
        if plan.optional:
            logging.info(
                "No %s in %s: going on without", " or ".join(names), data_dir
            )
            return None
        raise self._missing(plan, split, data_dir)

    def _path(self, source: Source, data_dir: str) -> str:
        name = source.name.replace("{train_language}", self.train_language)
        return name if files.is_remote(name) else os.path.join(data_dir, name)

    def _found(self, plan: Plan, source: Source, split: str, path: str) -> Part:
        if source.note:
            logging.info("%s: %s", path, source.note)
        reading = Reading(
            source.layout,
            self.target,
            is_labelled=split != "test",
            skip_malformed=source.skip_malformed or self.skip_malformed,
            language=(
                None if source.layout.language is None else self.language
            ),
        )
        paths, described = [path], reading.as_dict()
        if source.listing:
            paths.append(_listing(path, source.listing))
            described["is_listed"] = source.is_listed

        def read() -> list[Example]:
            return _read_part(reading, *paths, is_listed=source.is_listed)

        return Part(plan.suffix, tuple(paths), described, plan.submission, read)

    def _missing(self, plan: Plan, split: str, data_dir: str) -> InputError:
        folder = os.path.dirname(self._path(plan.sources[0], data_dir))
        if not files.is_directory(folder):
            folder = data_dir
        wanted = [
            os.path.relpath(self._path(source, data_dir), folder)
            + (f" with {source.listing}" if source.listing else "")
            for source in plan.sources
        ]
        return InputError(
            f"Expected {' or '.join(wanted)} in {folder}, the "
            f"{SPLITS[split]} set of {self.name}. Received: "
            f"{_contents(folder)}"
        )


def _plain(label: str) -> str:
    """One spelling of a label: "NEUTRAL" is "neutral", and "1.0" is "1"."""
    return without_decimals(label.casefold())


def _read_part(
    reading: Reading, path: str, listing: str = "", *, is_listed: bool
) -> list[Example]:
    if not listing:
        return read_examples(path, reading)
    keys = {row.fields for row in read_tsv(listing)}
    return read_examples(path, reading, lambda key: (key in keys) == is_listed)


def _listing(path: str, name: str) -> str:
    listing = os.path.join(os.path.dirname(path), name)
    if not files.exists(listing):
        raise InputError(
            f"Expected {name} beside {path}, the rows of it that make the "
            f"development set. Received: {_contents(os.path.dirname(path))}"
        )
    return listing


def _contents(folder: str) -> str:
    """What is in a folder, for a message."""
    if not files.is_directory(folder):
        return "no such folder"
    names = sorted(files.listdir(folder))
    if not names:
        return "an empty folder"
    more = len(names) - _MAX_FILES
    shown = ", ".join(names[:_MAX_FILES])
    return f"{shown} and {more:,} more" if more > 0 else shown


def only(*sources: Source, **arguments: Any) -> tuple[Plan, ...]:
    """A split of one part, from the first of the sources that exists."""
    return (Plan(sources, **arguments),)


def named(names: Sequence[str], layout: Layout[Column]) -> tuple[Source, ...]:
    """Sources of one layout, by several names."""
    return tuple(Source(name, layout) for name in names)


# The data sets that are known by name: a row of a table each.


def _classes(*labels: str, **arguments: Any) -> Target:
    return Target("single_label", labels, **arguments)


_BINARY = _classes("0", "1")
_ENTAILMENT = _classes("entailment", "not_entailment")
_INFERENCE = _classes(
    "contradiction",
    "entailment",
    "neutral",
    aliases={"contradictory": "contradiction"},
    undecided="-",
)
_SCORES = Target("regression")
_ENDINGS = Target("multiple_choice", ("0", "1", "2", "3"))


def _file(name: str, columns: str, **arguments: Any) -> Source:
    return Source(name, Layout.of(columns), **arguments)


def _glue(
    name: str,
    target: Target,
    metrics: tuple[str, ...],
    columns: str,
    test_columns: str,
    submission: str,
    **arguments: Any,
) -> DataSet:
    """A task with a train.tsv, dev.tsv and test.tsv."""
    return DataSet(
        name,
        target,
        metrics,
        **{
            "train": only(_file("train.tsv", columns)),
            "dev": only(_file("dev.tsv", columns)),
            "test": only(
                _file("test.tsv", test_columns), submission=submission
            ),
            **arguments,
        },
    )


def _without_header(name: str) -> tuple[Plan, ...]:
    layout = Layout.of("_ label _ text_a", has_header=False)
    return only(Source(name, layout))


def _mrpc(name: str, is_dev: bool) -> tuple[Plan, ...]:
    """What GLUE's script made of Microsoft's files, or else the latter."""
    columns = "label key key text_a text_b"
    raw = _file(
        "msr_paraphrase_train.txt",
        columns,
        listing="dev_ids.tsv",
        is_listed=is_dev,
    )
    return only(_file(name, columns), raw)


def _matched(split: str, columns: str, submissions: tuple) -> tuple[Plan, ...]:
    """MNLI's sets: of the genres that are trained on, and of others."""
    matched, mismatched = (
        (_file(f"{split}_{kind}.tsv", columns),)
        for kind in ("matched", "mismatched")
    )
    return (
        Plan(matched, submission=submissions[0]),
        Plan(mismatched, "_mismatched", submissions[1], optional=True),
    )


def _xnli(name: str) -> tuple[Plan, ...]:
    columns = "language label _ _ _ _ text_a text_b"
    return only(_file(name, columns), _file(f"XNLI-1.0/{name}", columns))


_MNLI = "id _ _ _ _ _ _ _ text_a text_b * label"
_SWAG = "id _ _ _ text_a choice_start _ choice choice choice choice label"
_NSMC = "id text_a label"
_XNLI_TRAIN = "multinli/multinli.train.{train_language}.tsv"

TABLE = (
    _glue(
        "cola",
        _BINARY,
        ("mcc", "accuracy"),
        "_ label _ text_a",
        "id text_a",
        "CoLA.tsv",
        published_labels=("unacceptable", "acceptable"),
        train=_without_header("train.tsv"),
        dev=_without_header("dev.tsv"),
    ),
    _glue(
        "sst-2",
        _BINARY,
        ("accuracy",),
        "text_a label",
        "id text_a",
        "SST-2.tsv",
        published_labels=("negative", "positive"),
    ),
    _glue(
        "mrpc",
        _BINARY,
        ("accuracy", "f1"),
        "label _ _ text_a text_b",
        "id _ _ text_a text_b",
        "MRPC.tsv",
        published_labels=("not_equivalent", "equivalent"),
        train=_mrpc("train.tsv", is_dev=False),
        dev=_mrpc("dev.tsv", is_dev=True),
        test=only(
            _file("test.tsv", "id _ _ text_a text_b"),
            _file("msr_paraphrase_test.txt", "label _ _ text_a text_b"),
            submission="MRPC.tsv",
        ),
    ),
    _glue(
        "sts-b",
        _SCORES,
        ("pearson", "spearman"),
        "id _ _ _ _ _ _ text_a text_b label",
        "id _ _ _ _ _ _ text_a text_b",
        "STS-B.tsv",
    ),
    _glue(
        "qqp",
        _BINARY,
        ("accuracy", "f1"),
        "id _ _ text_a text_b label",
        "id text_a text_b",
        "QQP.tsv",
        published_labels=("not_duplicate", "duplicate"),
        # Line breaks inside some questions tore their rows in the release.
        train=only(
            _file(
                "train.tsv", "id _ _ text_a text_b label", skip_malformed=True
            )
        ),
    ),
    DataSet(
        "mnli",
        _INFERENCE,
        ("accuracy",),
        train=only(_file("train.tsv", _MNLI)),
        dev=_matched("dev", _MNLI, (None, None)),
        test=_matched(
            "test",
            "id _ _ _ _ _ _ _ text_a text_b",
            ("MNLI-m.tsv", "MNLI-mm.tsv"),
        ),
    ),
    _glue(
        "qnli",
        _ENTAILMENT,
        ("accuracy",),
        "id text_a text_b label",
        "id text_a text_b",
        "QNLI.tsv",
    ),
    _glue(
        "rte",
        _ENTAILMENT,
        ("accuracy",),
        "id text_a text_b label",
        "id text_a text_b",
        "RTE.tsv",
    ),
    _glue(
        "wnli",
        _BINARY,
        ("accuracy",),
        "id text_a text_b label",
        "id text_a text_b",
        "WNLI.tsv",
        published_labels=("not_entailment", "entailment"),
    ),
    DataSet(
        "ax",
        _INFERENCE,
        ("accuracy",),
        model_of="mnli",
        test=only(
            *named(
                ("diagnostic.tsv", "diagnostic/diagnostic.tsv", "AX.tsv"),
                Layout.of("id text_a text_b"),
            ),
            # Its predictions stand beside MNLI's, for the model is the same.
            suffix="_ax",
            submission="AX.tsv",
        ),
    ),
    DataSet(
        "xnli",
        _INFERENCE,
        ("accuracy",),
        train=only(
            *named(
                (_XNLI_TRAIN, f"XNLI-MT-1.0/{_XNLI_TRAIN}"),
                Layout.of("text_a text_b label"),
            )
        ),
        dev=_xnli("xnli.dev.tsv"),
        test=_xnli("xnli.test.tsv"),
    ),
    DataSet(
        "swag",
        _ENDINGS,
        ("accuracy",),
        train=only(_file("train.csv", _SWAG)),
        dev=only(_file("val.csv", _SWAG)),
        test=only(_file("test.csv", _SWAG)),
    ),
    DataSet(
        "nsmc",
        _BINARY,
        ("accuracy",),
        published_labels=("negative", "positive"),
        train=only(_file("ratings_train.txt", _NSMC)),
        dev=only(
            _file("ratings_valid.txt", _NSMC),
            _file("ratings_dev.txt", _NSMC),
            _file(
                "ratings_test.txt",
                _NSMC,
                note="the test set, for there is no development set",
            ),
        ),
        test=only(_file("ratings_test.txt", _NSMC)),
    ),
)

_BY_NAME = {data_set.name: data_set for data_set in TABLE}
NAMES = tuple(_BY_NAME)
_OTHER_NAMES = {"sst2": "sst-2", "stsb": "sts-b"}


def find(
    name: str,
    *,
    language: str = "zh",
    train_language: str | None = None,
    skip_malformed: bool = False,
) -> DataSet:
    """Finds a data set by its name, in whatever case.

    Args:
      name: One of `NAMES`; "sst2" and "stsb" will do.
      language: XNLI's language; the original's is Chinese.
      train_language: Of XNLI's training set; None: the same.
      skip_malformed: Whether to leave rows out that have the wrong number of
        columns, and say how many, instead of stopping at the first.

    Raises:
      InputError: There is none of that name.
    """
    key = name.strip().lower()
    data_set = _BY_NAME.get(_OTHER_NAMES.get(key, key))
    if data_set is None:
        raise _unknown(name)
    return dataclasses.replace(
        data_set,
        language=language,
        train_language=train_language or language,
        skip_malformed=skip_malformed,
    )


def _unknown(name: str) -> InputError:
    names = (*NAMES, "custom")
    near = difflib.get_close_matches(name.lower(), names, 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return InputError(
        f"Expected a task out of {', '.join(names)}. Received: {name!r}{hint}"
    )
