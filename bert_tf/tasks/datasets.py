"""The data sets that are known by name: a row of a table each.

The columns are told in the order of the official files; `Layout.of` explains.
They are read by their place and the header is passed over unread, as in the
original, for many people bring data of their own in these layouts.
"""

import dataclasses
import difflib
from typing import Any

from bert_tf.errors import InputError
from bert_tf.tasks.labels import Target
from bert_tf.tasks.layouts import Layout
from bert_tf.tasks.parts import DataSet, Plan, Source, named, only


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
