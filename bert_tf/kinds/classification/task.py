"""Classification and regression of texts, pairs and choices."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from absl import logging
from keras import ops

from bert_tf.config import BertConfig
from bert_tf.errors import InputError, listed, wrong_value
from bert_tf.modeling.heads import BertClassifier, BertMultipleChoice
from bert_tf.tasks import metrics as scores
from bert_tf.tasks.encoding import Encoding
from bert_tf.tasks.predictions import answers, decide, decode, probabilities
from bert_tf.tasks.task import (
    FineTuningTask,
    are_class_weights,
    divergence,
    weights_of,
)


def losses_of(problem: str, label_ids, logits, label_smoothing: float = 0.0):
    """Returns the loss of each example, float32 [B].

    For a single label or choice: -sum_c t_c log softmax(logits)_c with targets
    t. With smoothing e, t_c is 1 - e + e/C for the label and e/C for others.
    For multiple labels: the mean binary cross-entropy. With smoothing, the
    target is 1 - e/2 for a label and e/2 for others. For regression: the
    squared error, without smoothing.

    Args:
      problem: One of `examples.PROBLEMS`.
      label_ids: Label ids; for a single label also probabilities, [B, C].
      logits: Floats [B, C].
      label_smoothing: The fraction e.
    """
    options = {"from_logits": True, "label_smoothing": label_smoothing}
    if problem == "regression":
        return ops.square(logits[:, 0] - ops.cast(label_ids, "float32"))
    if problem == "multi_label":
        label_ids = ops.cast(label_ids, "float32")
        return keras.losses.binary_crossentropy(label_ids, logits, **options)
    if len(label_ids.shape) == 1:
        if not label_smoothing:
            return keras.losses.sparse_categorical_crossentropy(
                label_ids, logits, from_logits=True
            )
        label_ids = ops.one_hot(label_ids, logits.shape[-1])
    return keras.losses.categorical_crossentropy(label_ids, logits, **options)


# The names of the problems in checkpoints.
PROBLEM_TYPES = {
    "single_label": "single_label_classification",
    "multi_label": "multi_label_classification",
    "regression": "regression",
}


# What cross-encoders of sentence-transformers apply to logits.
IDENTITY = "torch.nn.modules.linear.Identity"
SIGMOID = "torch.nn.modules.activation.Sigmoid"


def activation_of(model: BertClassifier, problem: str) -> dict[str, Any]:
    """Returns the `activation_fn` to record, if the model's checkpoint did."""
    activations = {"regression": IDENTITY, "multi_label": SIGMOID}
    known = getattr(model.checkpoint, "activation_fn", None)
    return {"activation_fn": activations.get(problem)} if known else {}


class ClassificationTask(FineTuningTask):
    """Classification and regression of texts and pairs.

    Section 4.1 of the paper.

    Args:
      config: The configuration of the model.
      encoding: How examples become features.
      metrics: The metrics; default: `metrics.usual_metrics`.
      positive_label: The class that the metric `f1` is computed for; default:
        the last one.
      class_weights: The weight of each class in training, floats [C]; only for
        problems with a single label.
      label_smoothing: The fraction e of an example's weight that training
        spreads evenly over all labels.
      eval_batch_size: The batch size for the original's `loss`, see `score`.
      rows_per_example: The mean number of windows of a labeled example. The
        loss of a row is multiplied by this and divided by the number of windows
        of its example, so that each example has the same weight in an epoch.
      is_pair: Whether examples are pairs of texts, for checkpoints.
      options: Options of `FineTuningTask`.

    Raises:
      InputError: The class weights or the label smoothing are not valid for the
        problem.
    """

    kind = head = "classifier"
    loss_names = ("label_loss",)

    def __init__(
        self,
        config: BertConfig,
        encoding: Encoding,
        metrics: Sequence[str] = (),
        *,
        positive_label: str | None = None,
        class_weights: Sequence[float] | None = None,
        label_smoothing: float = 0.0,
        eval_batch_size: int = 8,
        rows_per_example: float = 1.0,
        is_pair: bool | None = None,
        **options: Any,
    ):
        super().__init__(config, encoding, **options)
        self._rows_per_example = rows_per_example
        self._is_pair = is_pair
        self.problem = problem = encoding.problem
        self.problem_type = PROBLEM_TYPES.get(problem)
        self._eval_batch_size = eval_batch_size
        self._positive_class = len(self.labels) - 1
        if positive_label is not None:
            self._positive_class = self.labels.index(positive_label)
        most, expected = 1, "from 0 to 1"
        if problem == "regression":
            most, expected = 0, "0 for regression, which has no classes"
        if not 0 <= label_smoothing <= most:
            raise wrong_value("`label_smoothing`", expected, label_smoothing)
        self._label_smoothing = label_smoothing
        self.class_weights = self._checked_weights(class_weights)
        usual = scores.usual_metrics(problem, len(self.labels))
        self.metrics = tuple(metrics) or usual

    def _checked_weights(
        self, class_weights: Sequence[float] | None
    ) -> np.ndarray | None:
        if class_weights is None:
            return None
        if self.problem != "single_label":
            raise InputError(
                "`class_weights` needs a single_label problem; got "
                f"{len(class_weights)} weights for {self.problem}."
            )
        weights = np.asarray(class_weights, np.float32)
        is_complete = weights.shape == (len(self.labels),)
        if not is_complete or not are_class_weights(weights):
            raise wrong_value(
                "`class_weights`",
                f"{len(self.labels)} numbers, one for each of "
                f"{listed(self.labels, most=20)}, not negative and not all 0",
                list(class_weights),
            )
        return weights

    def facts(self) -> dict[str, Any]:
        return {**super().facts(), "is_pair": self._is_pair}

    def make_model(self, **options: Any) -> keras.Model:
        return BertClassifier(self.config, self.num_outputs, **options)

    def element_weights(self, features: Mapping) -> Any:
        """Returns the weights of classes and windows, float32 [B].

        In an epoch, all texts have the same weight, for any number of windows.
        """
        weights = self.is_element(features)
        if self.class_weights is not None:
            weights *= weights_of(features["label_ids"], self.class_weights)
        if "num_windows" in features:
            num_windows = ops.cast(features["num_windows"], "float32")
            weights *= self._rows_per_example / num_windows
        return weights

    def element_losses(self, features: Mapping, outputs: Mapping) -> Any:
        """Returns the losses; source: `create_model` of `run_classifier.py`."""
        arguments = features["label_ids"], outputs["logits"]
        return losses_of(self.problem, *arguments, self._label_smoothing)

    def soft_losses(
        self, features: Mapping, outputs: Mapping, temperature: float
    ) -> Any:
        """See `FineTuningTask`; regression ignores the temperature."""
        theirs, ours = features["teacher_logits"], outputs["logits"]
        if self.problem == "regression":
            return ops.square(ours[:, 0] - theirs[:, 0])
        if self.problem == "multi_label":
            # Each label as a softmax over present and absent, [B, C, 2].
            theirs, ours = (
                ops.stack([x, ops.zeros_like(x)], axis=-1)
                for x in (theirs, ours)
            )
            return ops.mean(divergence(theirs, ours, temperature), axis=-1)
        return divergence(theirs, ours, temperature)

    def decode(self, outputs: Mapping) -> dict:
        """See `predictions.decode`."""
        return decode(self.problem, outputs["logits"])

    def answers(
        self, decoded: Mapping[str, np.ndarray], examples: Sequence[Any]
    ) -> list[Any]:
        """See `FineTuningTask`; labels have their names."""
        if self.problem == "regression":
            return super().answers(decoded, examples)
        values = decoded["probabilities"]
        found: list[dict[str, Any]] = []
        for answer, row in zip(
            answers(self.problem, self.labels, values), values, strict=True
        ):
            shares = dict(zip(self.labels, row.tolist(), strict=True))
            chosen = {"label": answer, "probability": shares.get(answer)}
            if self.problem == "multi_label":
                chosen = {"labels": [*answer]}
            found.append({**chosen, "probabilities": shares})
        return found

    def unweighted_losses(self, features: Mapping, outputs: Mapping) -> Any:
        """Returns the losses without label smoothing, float32 [B]."""
        return losses_of(self.problem, features["label_ids"], outputs["logits"])

    def score(
        self,
        predictions: Mapping[str, np.ndarray],
        examples: Sequence[Any] = (),
    ) -> dict[str, float]:
        """Returns metrics and losses with the keys of the original.

        Source: `metric_fn` of `run_classifier.py`. `eval_loss` is the mean
        over the examples. `loss` is what TensorFlow 1's Estimator reports: the
        mean of the means of batches, in which a short last batch counts as
        much as any other. These batches are always `eval_batch_size` examples
        in the order of the file.
        """
        label_ids = predictions["label_ids"]
        values = probabilities(self.problem, predictions["logits"])
        decided = decide(self.problem, values)
        if self.problem in ("single_label", "multiple_choice"):
            self._warn_of_one_class(label_ids, decided)
        measured = scores.compute(
            self.metrics, label_ids, decided, self._positive_class
        )
        loss = np.asarray(predictions["loss"], np.float64)
        return {
            **{f"eval_{name}": value for name, value in measured.items()},
            "eval_loss": float(loss.mean()),
            "loss": mean_of_batch_means(loss, self._eval_batch_size),
        }

    def _warn_of_one_class(
        self, label_ids: np.ndarray, decided: np.ndarray
    ) -> None:
        num_classes = len(np.unique(label_ids))
        if num_classes > 1 and len(np.unique(decided)) == 1:
            logging.warning(
                "All %d examples are predicted to be %r, although they have "
                "labels of %d classes. Try a lower `learning_rate`, more "
                "epochs, or another seed",
                len(decided),
                self.labels[decided[0]],
                num_classes,
            )


def mean_of_batch_means(values: np.ndarray, batch_size: int) -> float:
    """Returns the mean of the means of batches of values [n].

    mean_of_batch_means([1, 3, 8], 2) is (2 + 8) / 2.
    """
    starts = np.arange(0, len(values), batch_size)
    counts = np.diff([*starts, len(values)])
    return float(np.mean(np.add.reduceat(values, starts) / counts))


class MultipleChoiceTask(ClassificationTask):
    """Multiple choice: a softmax over the scores of the choices.

    Section 4.4 of the paper. `labels` are the names of the choices, "0" to "3"
    for SWAG. Features have one more axis, [B, C, S].
    """

    kind = head = "choice"
    num_outputs = 1

    def make_model(self, **options: Any) -> keras.Model:
        return BertMultipleChoice(self.config, **options)
