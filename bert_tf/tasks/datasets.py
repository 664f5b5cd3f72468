"""Data sets: their files, columns, labels and metrics.

Columns are given in the order of the official files and read by their
position; the header is skipped unread, as in the original, because many people
use these layouts for custom data.
"""

import dataclasses
import itertools
import os
from collections.abc import Sequence
from typing import Any

from absl import logging

from bert_tf.base import files
from bert_tf.checkpoints.compatibility import have_names
from bert_tf.data.tables import Columns, read_tsv
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
    read_examples,
    without_decimals,
)

_SPLITS = {"train": "training", "dev": "development", "test": "test"}


@dataclasses.dataclass(frozen=True)
class Source:
    """The files that a split, or a part of it, can be read from.

    Attributes:
      files: Paths, absolute or in the folder of the data set. The first that
        exists, compressed (.gz) or not, is read.
      columns: Which column holds what, see `examples.read_examples`.
      has_header: Whether the first row is a header.
      listing: A TSV file in the same folder with the `key`s of some rows.
      is_listed: Whether the source is the listed rows, or all others.
      skip_malformed: Whether the official file has malformed rows to skip.
      note: What to log when this source is used.
      suffix: What the part appends to the names of results: "_mismatched".
        Sources with the same suffix are alternatives: the first with a file
        is read.
      submission: The file of a submission to the GLUE leaderboard.
      is_optional: Whether the files may be missing.
    """

    files: tuple[str, ...]
    columns: str | Columns
    has_header: bool = True
    listing: str | None = None
    is_listed: bool = False
    skip_malformed: bool = False
    note: str | None = None
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
      skip_malformed: Whether to skip rows with a wrong number of columns.
      published_labels: The names of the labels in published models, in the
        order of `labels`, if they are known.
      positive_label: The class that F1 is computed for: the last one in the
        order of the data set, whatever the order of a model. None for
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
        allow_mapping: bool = False,
    ) -> "DataSet":
        """Returns the data set with its labels in the order of a model.

        Published models have their classes in different orders. Classes without
        names (LABEL_0) are assigned to the labels by their number.

        Args:
          known: The labels of the model; () if they are unknown.
          is_trained: Whether a head with other labels will be replaced.
          allow_mapping: Whether to assign labels with other names in order.

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
        if have_names(known) and not allow_mapping:
            raise InputError(
                f"The model's labels are {theirs}; {self.name} has {ours}. "
                "Pass a model of this task, or pass `allow_label_mapping` if "
                "the labels mean the same in this order."
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
        """Finds the files of "train", "dev" or "test": at least one part.

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
        for _, group in itertools.groupby(sources, lambda s: s.suffix):
            alternatives = list(group)
            part = self._find(alternatives, split, data_dir)
            if part:
                parts.append(part)
            elif not alternatives[0].is_optional:
                raise self._missing(alternatives, split, data_dir)
        return parts

    def _find(
        self, alternatives: Sequence[Source], split: str, data_dir: str
    ) -> "SplitFile | None":
        for source in alternatives:
            for path in self._paths(source, data_dir):
                for spelling in filter(files.exists, (path, f"{path}.gz")):
                    paths = [spelling]
                    if source.listing:
                        paths.append(_listing(spelling, source.listing))
                    return SplitFile(self, source, split, tuple(paths))
        return None

    def _paths(self, source: Source, data_dir: str) -> list[str]:
        names = (
            name.replace("{train_language}", self.train_language)
            for name in source.files
        )
        return [
            name if files.is_remote(name) else os.path.join(data_dir, name)
            for name in names
        ]

    def _missing(
        self, alternatives: Sequence[Source], split: str, data_dir: str
    ) -> InputError:
        paths = {
            path: source
            for source in alternatives
            for path in self._paths(source, data_dir)
        }
        folder = os.path.dirname(next(iter(paths)))
        if not files.is_directory(folder):
            folder = data_dir
        wanted = (
            os.path.relpath(path, folder)
            + (f" with {source.listing}" if source.listing else "")
            for path, source in paths.items()
        )
        return in_file(
            folder,
            f"no {listed(wanted, last='or')}, the {_SPLITS[split]} set of "
            f"{self.name}; {_contents(folder)}.",
        )


@dataclasses.dataclass(frozen=True)
class SplitFile:
    """A split, or one of its parts, whose files exist.

    `files` are the file and, if there is one, the listing.
    """

    data_set: DataSet
    source: Source
    split: str
    files: tuple[str, ...]

    @property
    def suffix(self) -> str:
        return self.source.suffix

    @property
    def submission(self) -> str | None:
        return self.source.submission

    def read(
        self, warn: bool = True, is_labelled: bool | None = None
    ) -> list[Example]:
        """Reads the examples.

        Args:
          warn: Whether to log warnings and the note of the source.
          is_labelled: Whether each row must have a label; by default, rows of
            the training and development sets must.

        Raises:
          InputError: A file or one of its rows is not as expected.
        """
        path, *listings = self.files
        source, data_set = self.source, self.data_set
        if source.note and warn:
            logging.info("%s: %s", path, source.note)
        keys = {
            fields[0] if len(fields) == 1 else fields
            for listing in listings
            for fields, _ in read_tsv(listing)
        }
        if is_labelled is None:
            is_labelled = self.split != "test"
        has_languages = "language" in source.columns
        return read_examples(
            path,
            source.columns,
            data_set.target,
            has_header=source.has_header,
            is_labelled=is_labelled,
            skip_malformed=source.skip_malformed or data_set.skip_malformed,
            language=data_set.language if has_languages else None,
            is_wanted=(lambda key: (key in keys) == source.is_listed)
            if listings
            else None,
            warn=warn,
        )


def _listing(path: str, name: str) -> str:
    folder = os.path.dirname(path)
    listing = os.path.join(folder, name)
    if not files.exists(listing):
        raise in_file(
            folder,
            f"no {name}, which lists the rows of {os.path.basename(path)} that "
            f"make the development set; {_contents(folder)}.",
        )
    return listing


def _contents(folder: str) -> str:
    """Describes what a folder contains, for a message."""
    if not files.is_directory(folder):
        return "there is no such folder"
    names = sorted(files.listdir(folder))
    if not names:
        return "the folder is empty"
    return f"the folder has {listed(names, most=30)}"


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
_MRPC = "label key key text_a text_b"
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
    # GLUE's files, or Microsoft's, from which GLUE's are made.
    DataSet(
        "mrpc",
        _BINARY,
        ("accuracy", "f1"),
        published_labels=("not_equivalent", "equivalent"),
        train=_file("train.tsv", _MRPC)
        + _file("msr_paraphrase_train.txt", _MRPC, listing="dev_ids.tsv"),
        dev=_file("dev.tsv", _MRPC)
        + _file(
            "msr_paraphrase_train.txt",
            _MRPC,
            listing="dev_ids.tsv",
            is_listed=True,
        ),
        test=_file("test.tsv", "id _ _ text_a text_b", submission="MRPC.tsv")
        + _file("msr_paraphrase_test.txt", _MRPC, submission="MRPC.tsv"),
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
        dev=_file("ratings_valid.txt ratings_dev.txt", _NSMC)
        + _file(
            "ratings_test.txt",
            _NSMC,
            note="the test set, because there is no development set",
        ),
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
    skip_malformed: bool = False,
) -> DataSet:
    """Returns a data set by its name.

    Args:
      name: One of `NAMES`, in upper or lower case, or "sst2" or "stsb".
      language: The language of XNLI; the original's is Chinese.
      train_language: The language of XNLI's training set; default: `language`.
      skip_malformed: See `DataSet`.

    Raises:
      InputError: No data set has this name.
    """
    key = name.strip().lower()
    key = {"sst2": "sst-2", "stsb": "sts-b"}.get(key, key)
    if key not in _BY_NAME:
        names = (*NAMES, "custom")
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
        skip_malformed=skip_malformed,
    )
