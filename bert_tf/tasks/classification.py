"""Texts and pairs: one class of several, any number of labels, or a number."""

import dataclasses
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from absl import logging
from keras import ops

from bert_tf import files
from bert_tf import metrics as scores
from bert_tf.config import BertConfig
from bert_tf.data.schema import Schema
from bert_tf.errors import InputError
from bert_tf.heads import BertClassifier, BertMultipleChoice
from bert_tf.tasks.examples import Example
from bert_tf.tasks.task import FineTuningTask

# From logits to answers, and to the files that hold them.


# Multi-label problems answer with the labels that are more likely than not.
THRESHOLD = 0.5

# What the leaderboard accepts for STS-B, its one task with numbers.
SCORE_RANGE = (0.0, 5.0)

# The tab and what str.splitlines takes for the end of a line.
_BREAK = re.compile("\r\n|[\t\n\x0b\x0c\r\x1c-\x1e\x85\u2028\u2029]")
# Half a character, as JSON can spell it: no encoding has bytes for it.
_SURROGATE = re.compile("[\ud800-\udfff]")

Row = Iterable[str]


def _softmax(logits: np.ndarray) -> np.ndarray:
    from scipy import special

    return special.softmax(logits, axis=-1)


def _sigmoid(logits: np.ndarray) -> np.ndarray:
    from scipy import special

    return special.expit(logits)


_PROBABILITIES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "single_label": _softmax,
    "multiple_choice": _softmax,
    "multi_label": _sigmoid,
    "regression": lambda logits: logits[:, 0],
}


def probabilities(problem: str, logits: np.ndarray) -> np.ndarray:
    """How likely each label is.

    Args:
      problem: One of `bert_tf.tasks.examples.PROBLEMS`.
      logits: Floats [n, C].

    Returns:
      Float32 [n, C]; for regression the numbers themselves, [n].
    """
    values = _PROBABILITIES[problem](np.asarray(logits, np.float64))
    return values.astype(np.float32)


def decide(problem: str, values: np.ndarray) -> np.ndarray:
    """What is answered where `values` are the probabilities.

    Args:
      problem: One of `bert_tf.tasks.examples.PROBLEMS`.
      values: What `probabilities` gave.

    Returns:
      The number of the class, int64 [n]; for multi-label problems 1 for each
      label that is answered, int64 [n, C]; for regression `values`.
    """
    if problem == "regression":
        return values
    if problem == "multi_label":
        return (values > THRESHOLD).astype(np.int64)
    return values.argmax(axis=-1)


def answers(
    problem: str, labels: Sequence[str], values: np.ndarray
) -> list[str] | list[float] | list[tuple[str, ...]]:
    """The same in the words of the data set, as `Example.label` has them."""
    decided = decide(problem, values)
    if problem == "regression":
        return decided.tolist()
    if problem == "multi_label":
        return [
            tuple(
                name for name, chosen in zip(labels, row, strict=True) if chosen
            )
            for row in decided
        ]
    return [labels[number] for number in decided]


def write_test_results(path: str, values: np.ndarray) -> None:
    """Writes `test_results.tsv` as the original does.

    A line an example, with the probability of each class in the order of the
    labels; no header, no id. Regression has the number alone.

    Args:
      path: The file; it appears as a whole.
      values: What `probabilities` gave.
    """
    _write(path, (map(str, row) for row in _as_table(values)))


def write_predictions(
    path: str,
    examples: Sequence[Example],
    problem: str,
    labels: Sequence[str],
    values: np.ndarray,
) -> None:
    """Writes `predictions.tsv`, for people.

    The columns: `id`; `text`, or `text_a` and `text_b`, or `context` and
    `choice`, the one that is chosen; `prediction`; `label`, if the file had
    any; and `probability_` of each label. Several labels of one example are
    joined by commas. Regression has no probabilities.

    Args:
      path: The file; it appears as a whole.
      examples: What was asked.
      problem: One of `bert_tf.tasks.examples.PROBLEMS`.
      labels: Their names, C; none for regression.
      values: What `probabilities` gave for the examples, in their order.
    """
    answered = answers(problem, labels, values)
    columns = {
        "id": [example.id for example in examples],
        **_texts(examples, values),
        "prediction": [_cell(answer) for answer in answered],
    }
    if any(example.label is not None for example in examples):
        columns["label"] = [_cell(example.label) for example in examples]
    if problem != "regression":
        for name, column in zip(labels, _as_table(values).T, strict=True):
            columns[f"probability_{name}"] = map(str, column)
    _write(path, [columns, *zip(*columns.values(), strict=True)])


def _texts(
    examples: Sequence[Example], values: np.ndarray
) -> dict[str, list[str]]:
    """The columns with the texts; a pair's second text may be missing."""
    first = [example.text_a for example in examples]
    if any(example.choices for example in examples):
        chosen = [
            example.choices[number]
            for example, number in zip(
                examples, decide("multiple_choice", values), strict=True
            )
        ]
        return {"context": first, "choice": chosen}
    if any(example.text_b is not None for example in examples):
        second = [example.text_b or "" for example in examples]
        return {"text_a": first, "text_b": second}
    return {"text": first}


def _cell(label: str | float | tuple[str, ...] | None) -> str:
    """A label as people read it; a float32 has no more digits than it means."""
    if label is None:
        return ""
    if isinstance(label, tuple):
        return ",".join(label)
    return label if isinstance(label, str) else str(np.float32(label))


def write_submission(
    path: str,
    ids: Sequence[str],
    predictions: Sequence[str] | Sequence[float],
) -> None:
    """Writes one file of a GLUE submission, as the leaderboard takes it.

    Args:
      path: The file, named as the leaderboard wants it, such as "MNLI-m.tsv";
        its folder is made if need be.
      ids: The column `index` of the test file.
      predictions: What `answers` gave: names of labels, or numbers (STS-B),
        which are brought into the range of the leaderboard.
    """
    rows = zip(ids, map(_leaderboard_cell, predictions), strict=True)
    files.makedirs(os.path.dirname(path) or ".")
    _write(path, [("index", "prediction"), *rows])
    logging.info("Wrote %s: %d predictions", path, len(ids))


def _leaderboard_cell(prediction: str | float) -> str:
    if isinstance(prediction, str):
        return prediction
    low, high = SCORE_RANGE
    return f"{min(max(low, prediction), high):.3f}"


def _as_table(values: np.ndarray) -> np.ndarray:
    """[n, C] or [n] -> float32 [n, C]."""
    return np.asarray(values, np.float32).reshape(len(values), -1)


def _write(path: str, rows: Iterable[Row]) -> None:
    with files.atomic_writer(path) as file:
        for line in _lines(rows):
            file.write(line)  # TensorFlow's files know no `writelines`.


def _lines(rows: Iterable[Row]) -> Iterator[bytes]:
    for row in rows:
        cells = (_SURROGATE.sub("\ufffd", _BREAK.sub(" ", x)) for x in row)
        yield ("\t".join(cells) + "\n").encode()


# Texts and pairs: one class of several, any number of labels, or a number.


@dataclasses.dataclass(frozen=True)
class Objective:
    """How one kind of problem is learned and scored.

    Attributes:
      loss: From label_ids, logits [B, C] and the label smoothing to the loss
        of each example, float32 [B].
      metrics: What its score always holds.
      more_metrics: What it can hold besides.
      fewest_labels: How many labels it needs.
    """

    loss: Callable
    metrics: tuple[str, ...]
    more_metrics: tuple[str, ...]
    fewest_labels: int


def _softmax_loss(label_ids, logits, label_smoothing: float):
    """-sum_c t_c log softmax(logits)_c, where t is 1 - e + e/C or e/C."""
    if not label_smoothing:
        return keras.losses.sparse_categorical_crossentropy(
            label_ids, logits, from_logits=True
        )
    return keras.losses.categorical_crossentropy(
        ops.one_hot(label_ids, logits.shape[-1]),
        logits,
        from_logits=True,
        label_smoothing=label_smoothing,
    )


def _sigmoid_loss(label_ids, logits, label_smoothing: float):
    """The mean over the labels of the loss of each yes or no.

    A smoothed yes is 1 - e/2, a no e/2.
    """
    return keras.losses.binary_crossentropy(
        ops.cast(label_ids, "float32"),
        logits,
        from_logits=True,
        label_smoothing=label_smoothing,
    )


def _squared_error(label_ids, logits, label_smoothing: float):
    del label_smoothing  # Numbers have none.
    return ops.square(logits[:, 0] - ops.cast(label_ids, "float32"))


_ONE_OF_SEVERAL = Objective(
    _softmax_loss, ("accuracy",), ("f1", "macro_f1", "micro_f1", "mcc"), 2
)
OBJECTIVES = {
    "single_label": _ONE_OF_SEVERAL,
    "multiple_choice": _ONE_OF_SEVERAL,
    "multi_label": Objective(
        _sigmoid_loss,
        ("exact_match", "micro_f1", "macro_f1"),
        ("accuracy",),
        2,
    ),
    "regression": Objective(_squared_error, ("pearson", "spearman"), (), 0),
}


# The problems by the names that checkpoints have for them.
_PROBLEM_TYPES = {
    "single_label": "single_label_classification",
    "multi_label": "multi_label_classification",
    "regression": "regression",
}


class ClassificationTask(FineTuningTask):
    """What `run_classifier.py` trains; sections 4.1 and 4.3 of the paper.

    Args:
      config: The model to train.
      schema: Of its records, see `classification_schema`.
      problem: One of `problems`.
      labels: Their names, in the order of the logits; none for regression.
      metrics: What the score shall hold besides what it always does; see
        `OBJECTIVES`.
      positive_label: The class that the metric `f1` is of, whatever the order
        of the labels; None: the last of them.
      class_weights: How much an example of each class counts in training,
        floats [C]; for problems with a single label.
      label_smoothing: Share e of an example's weight that is spread evenly
        over all labels in training.
      dropout: See `BertClassifier`.
      frozen_layers: See `BertModel`.
      gradient_checkpointing: See `BertModel`.
      bilstm_head: See `heads.TaskModel`.
      eval_batch_size: What the original's `loss` depends on, see `score`.

    Raises:
      InputError: An argument does not fit the problem.
    """

    problems: tuple[str, ...] = ("single_label", "multi_label", "regression")

    head = "classifier"

    def __init__(
        self,
        config: BertConfig,
        schema: Schema,
        problem: str,
        labels: Sequence[str] = (),
        metrics: Sequence[str] = (),
        *,
        positive_label: str | None = None,
        class_weights: Sequence[float] | None = None,
        label_smoothing: float = 0.0,
        dropout: float = 0.1,
        frozen_layers: Sequence[str] = (),
        gradient_checkpointing: bool = False,
        bilstm_head: bool = False,
        eval_batch_size: int = 8,
    ):
        if problem not in self.problems:
            raise InputError(
                f"expected a problem among {', '.join(self.problems)}. "
                f"Received: {problem!r}"
            )
        super().__init__(
            config,
            schema,
            labels,
            frozen_layers=frozen_layers,
            gradient_checkpointing=gradient_checkpointing,
            bilstm_head=bilstm_head,
            dropout=dropout,
        )
        self.problem = problem
        self.eval_batch_size = eval_batch_size
        self._objective = OBJECTIVES[problem]
        self._check_labels()
        self._positive_class = self._class_of(positive_label)
        self._check_smoothing(label_smoothing)
        self._label_smoothing = label_smoothing
        self._class_weights = self._checked_weights(class_weights)
        self.metrics = self._checked_metrics(metrics)

    def _check_labels(self) -> None:
        fewest = self._objective.fewest_labels
        if len(self.labels) < fewest or (self.labels and not fewest):
            expected = f"at least {fewest} label(s)" if fewest else "no labels"
            received = ", ".join(self.labels) or "none"
            raise InputError(
                f"expected {expected} for {self.problem}. Received: {received}"
            )

    def _class_of(self, positive_label: str | None) -> int:
        """Its number; that of the last label, if any, where none is named."""
        if positive_label is None:
            return len(self.labels) - 1
        if positive_label not in self.labels:
            raise InputError(
                f"expected a positive label among {', '.join(self.labels)}. "
                f"Received: {positive_label!r}"
            )
        return self.labels.index(positive_label)

    def _check_smoothing(self, label_smoothing: float) -> None:
        if not 0 <= label_smoothing <= 1:
            raise InputError(
                "expected --label_smoothing from 0 to 1. Received: "
                f"{label_smoothing}"
            )
        if label_smoothing and self.problem == "regression":
            raise InputError(
                "expected no --label_smoothing for regression, which has no "
                f"classes. Received: {label_smoothing}"
            )

    def _checked_weights(
        self, class_weights: Sequence[float] | None
    ) -> np.ndarray | None:
        if class_weights is None:
            return None
        if self.problem != "single_label":
            raise InputError(
                "expected class weights for single_label problems alone. "
                f"Received: {len(class_weights)} of them for {self.problem}"
            )
        weights = np.asarray(class_weights, np.float32)
        is_sane = np.isfinite(weights).all() and (weights >= 0).all()
        if (
            weights.shape != (len(self.labels),)
            or not is_sane
            or not weights.any()
        ):
            raise InputError(
                f"expected {len(self.labels)} class weights, one for each of "
                f"{', '.join(self.labels)}, not negative and not all 0. "
                f"Received: {', '.join(map(str, class_weights))}"
            )
        return weights

    def _checked_metrics(self, metrics: Sequence[str]) -> tuple[str, ...]:
        objective = self._objective
        scores.check(metrics, objective.metrics + objective.more_metrics)
        return tuple(dict.fromkeys([*metrics, *objective.metrics]))

    @property
    def problem_type(self) -> str | None:
        """What checkpoints call the problem, if they do."""
        return _PROBLEM_TYPES.get(self.problem)

    @property
    def loss_names(self) -> tuple[str, ...]:
        return ("label_loss",)

    def make_model(self, **options: Any) -> keras.Model:
        return BertClassifier(self.config, max(1, len(self.labels)), **options)

    def loss_weights(self, features: Mapping) -> dict:
        label_ids = features["label_ids"]
        if self._class_weights is None:
            weights = ops.ones(ops.shape(label_ids)[:1])
        else:
            weights = ops.take(self._class_weights, label_ids)
        return {"label_loss": weights}

    def losses(self, features: Mapping, outputs: Mapping) -> dict:
        """See `Task`; source: `create_model` of `run_classifier.py`."""
        loss = self._objective.loss(
            features["label_ids"], outputs["logits"], self._label_smoothing
        )
        return {"label_loss": loss * self.loss_weights(features)["label_loss"]}

    def predictions(self, features: Mapping, outputs: Mapping) -> dict:
        """Logits, labels, and the loss without weights and smoothing."""
        label_ids, logits = features["label_ids"], outputs["logits"]
        return {
            "logits": logits,
            "label_ids": label_ids,
            "loss": self._objective.loss(label_ids, logits, 0.0),
        }

    def probabilities(self, logits: np.ndarray) -> np.ndarray:
        """See `predictions.probabilities`: float32 [n, C] or, numbers, [n]."""
        return probabilities(self.problem, logits)

    def score(self, predictions: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Metrics and losses; keys of the original.

        Source: `metric_fn` of `run_classifier.py`. `eval_loss` is the mean
        over the examples. `loss` is what TensorFlow 1 added: the mean over the
        batches of their means, a short last one counting as much as any.
        Here, the batches of `eval_batch_size` examples in the order of the
        file, however they were batched to be computed.
        """
        label_ids = predictions["label_ids"]
        values = self.probabilities(predictions["logits"])
        decided = decide(self.problem, values)
        if self._objective is _ONE_OF_SEVERAL:
            self._warn_of_one_class(label_ids, decided)
        if self.problem == "regression":
            self._explain_nan(label_ids, decided)
        measured = scores.compute(
            self.metrics, label_ids, decided, self._positive_class
        )
        loss = np.asarray(predictions["loss"], np.float64)
        return {
            **{f"eval_{name}": value for name, value in measured.items()},
            "eval_loss": float(loss.mean()),
            "loss": mean_of_batch_means(loss, self.eval_batch_size),
        }

    def write_predictions(
        self,
        folder: str,
        examples: Sequence[Example],
        predictions: Mapping[str, np.ndarray],
        suffix: str = "",
        submission: str | None = None,
    ) -> None:
        """Writes `test_results.tsv`, `predictions.tsv` and GLUE's file.

        Args:
          folder: Where to.
          examples: What was asked.
          predictions: What `predictions` kept of them, in their order.
          suffix: What the names of the files end with.
          submission: Path of the file for the leaderboard; None for none.
        """
        values = self.probabilities(predictions["logits"])
        results = os.path.join(folder, f"test_results{suffix}.tsv")
        write_test_results(results, values)
        table = os.path.join(folder, f"predictions{suffix}.tsv")
        write_predictions(table, examples, self.problem, self.labels, values)
        if submission:
            write_submission(
                submission,
                [example.id for example in examples],
                answers(self.problem, self.labels, values),
            )

    def _explain_nan(self, label_ids: np.ndarray, decided: np.ndarray) -> None:
        for what, values in (("labels", label_ids), ("predictions", decided)):
            if len(np.unique(values)) == 1:
                logging.warning(
                    "%s are NaN: all %d %s are %g, and there is no correlation "
                    "with a constant. eval_results.json holds null for them",
                    ", ".join(f"eval_{name}" for name in self.metrics),
                    len(values),
                    what,
                    values[0],
                )
                return

    def _warn_of_one_class(
        self, label_ids: np.ndarray, decided: np.ndarray
    ) -> None:
        num_classes = len(np.unique(label_ids))
        if num_classes > 1 and len(np.unique(decided)) == 1:
            logging.warning(
                "All %d examples are predicted to be %r; their labels are of "
                "%d classes. The model tells nothing apart: try a lower "
                "--learning_rate, more --num_train_epochs, or another "
                "--random_seed",
                len(decided),
                self.labels[decided[0]],
                num_classes,
            )


def mean_of_batch_means(values: np.ndarray, batch_size: int) -> float:
    """The mean of the means of each `batch_size` values, [n] -> a number.

    mean_of_batch_means([1, 3, 8], 2) is (2 + 8) / 2.
    """
    starts = np.arange(0, len(values), batch_size)
    counts = np.diff([*starts, len(values)])
    return float(np.mean(np.add.reduceat(values, starts) / counts))


def balanced_class_weights(
    label_ids: np.ndarray, num_labels: int
) -> np.ndarray:
    """Weights with which every class counts equally.

    Source: "balanced" of scikit-learn, n / (C * count). A class without
    examples is not counted in C, and its weight is 0.

    Args:
      label_ids: The classes of the training examples, integers [n].
      num_labels: How many classes there are.

    Returns:
      Float64 [num_labels]. Their mean over the examples is 1.
    """
    counts = np.bincount(label_ids, minlength=num_labels)
    total = len(label_ids) / max(1, np.count_nonzero(counts))
    return np.where(counts > 0, total / np.maximum(counts, 1), 0.0)


# The right ending among several: SWAG.


class MultipleChoiceTask(ClassificationTask):
    """Section 4.4 of the paper: a softmax over the scores of the choices.

    The arguments are those of `ClassificationTask`, its `labels` the names of
    the choices, "0" to "3" for SWAG. Features have an axis more, [B, C, S].
    """

    problems = ("multiple_choice",)
    head = "choice"

    def make_model(self, **options: Any) -> keras.Model:
        return BertMultipleChoice(self.config, **options)
