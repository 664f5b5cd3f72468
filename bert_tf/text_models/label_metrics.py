"""Losses and metrics of labels and ranks, for models that return logits."""

import functools
from typing import Any, Self

import keras
import numpy as np
from keras import ops

# Metrics that compare numbers of labels with probabilities.
_OF_NUMBERS = (
    keras.metrics.SparseCategoricalAccuracy,
    keras.metrics.SparseTopKCategoricalAccuracy,
    keras.metrics.SparseCategoricalCrossentropy,
)
# Metrics that compare 0 or 1 for each label with probabilities.
_OF_PROBABILITIES = (
    keras.metrics.FBetaScore,
    keras.metrics.CategoricalAccuracy,
    keras.metrics.CategoricalCrossentropy,
    keras.metrics.TopKCategoricalAccuracy,
)
# Metrics that do so for one label: of two labels, for the last one.
_OF_ONE_LABEL = (
    keras.metrics.AUC,
    keras.metrics.BinaryAccuracy,
    keras.metrics.Precision,
    keras.metrics.PrecisionAtRecall,
    keras.metrics.Recall,
    keras.metrics.RecallAtPrecision,
    keras.metrics.SensitivityAtSpecificity,
    keras.metrics.SpecificityAtSensitivity,
    keras.metrics.TruePositives,
    keras.metrics.TrueNegatives,
    keras.metrics.FalsePositives,
    keras.metrics.FalseNegatives,
)


def targets_of(loss: Any, labels: np.ndarray, num_classes: int) -> np.ndarray:
    """Returns labels as a loss compares them with logits [..., C].

    Of Keras's losses, sparse ones compare numbers and all others rows; they
    would broadcast numbers against logits without an error. Other losses get
    labels as they are given.

    Args:
      loss: What Keras's `compile` takes.
      labels: Numbers, int32 [...], or probabilities, float32 [..., C].
      num_classes: C; 0 if labels are not numbers of classes.
    """
    loss = keras.losses.get(loss) if isinstance(loss, str) else loss
    function = getattr(loss, "fn", loss)
    is_keras = getattr(function, "__module__", "").startswith("keras.")
    if not num_classes or not is_keras:
        return labels
    are_numbers = labels.dtype.kind == "i"
    is_sparse = function.__name__.startswith("sparse")
    if are_numbers and not is_sparse:
        return np.eye(num_classes, dtype=np.float32)[labels]
    if is_sparse and not are_numbers and (labels.max(axis=-1) == 1).all():
        return labels.argmax(axis=-1)
    return labels


def of_logits(metrics: Any, problem: str) -> Any:
    """Makes metrics accept the labels and logits of a `TextClassifier`.

    Args:
      metrics: What Keras's `compile` takes.
      problem: The problem of the classifier.

    Returns:
      `metrics`, with `LabelMetric` around each metric that needs it.
    """
    if metrics is None or problem == "regression":
        return metrics
    return keras.tree.map_structure(functools.partial(_wrap, problem), metrics)


def _wrap(problem: str, metric: Any) -> Any:
    keras_metric = metric
    is_single = problem == "single_label"
    if isinstance(metric, str):
        if metric.lower() in ("accuracy", "acc"):
            # Keras would choose by the labels of the first batch, which may
            # be numbers or probabilities.
            if not is_single:
                return metric
            keras_metric = keras.metrics.SparseCategoricalAccuracy(metric)
        else:
            keras_metric = keras.metrics.get(metric)
    kinds = (*_OF_PROBABILITIES, *_OF_ONE_LABEL)
    if not isinstance(
        keras_metric, (*kinds, *_OF_NUMBERS) if is_single else kinds
    ):
        return metric
    if not is_single and _is_of_logits(keras_metric):
        return metric
    name = metric if isinstance(metric, str) else keras_metric.name
    return LabelMetric(keras_metric, problem, name=name)


def _is_of_logits(metric: keras.metrics.Metric) -> bool:
    """Returns whether a metric was made for logits.

    A threshold of 0 is for logits: probabilities are never below it.
    """
    config = metric.get_config()
    limits = [config.get(name) for name in ("threshold", "thresholds")]
    return config.get("from_logits", False) or any(
        limit is not None and not np.any(limit) for limit in limits
    )


@keras.saving.register_keras_serializable("bert_tf")
class LabelMetric(keras.metrics.Metric):
    """Passes a Keras metric the labels and probabilities that it expects.

    For single_label, a metric of one label, such as `AUC`, gets the last of two
    labels. With more labels, or with its arguments `class_id`, `top_k` or
    `multi_label`, it gets 0 or 1 for each label.

    Args:
      metric: The metric.
      problem: "single_label" or "multi_label".
      name: The name in the logs.
    """

    def __init__(
        self,
        metric: keras.metrics.Metric,
        problem: str,
        name: str | None = None,
        dtype: Any = None,
    ):
        super().__init__(dtype=dtype, name=name or metric.name)
        self.metric = metric
        self.problem = problem
        self._options = metric.get_config()
        if hasattr(metric, "_direction"):
            # With it, Keras's callbacks know whether higher values are better.
            self._direction = metric._direction

    def update_state(self, y_true, y_pred, sample_weight=None):
        """Adds labels [B], or 0 to 1 per label [B, C], and logits [B, C]."""
        from_logits = self._options.get("from_logits", False)
        if self.problem == "multi_label":
            values = y_pred if from_logits else ops.sigmoid(y_pred)
            return self.metric.update_state(y_true, values, sample_weight)
        numbers = ops.cast(y_true, "int32")
        if len(y_true.shape) == 2:
            numbers = ops.argmax(y_true, axis=-1)
        num_labels = y_pred.shape[-1]
        if self._is_of_last(num_labels):
            margin = y_pred[:, 1] - y_pred[:, 0]
            values = margin if from_logits else ops.sigmoid(margin)
            return self.metric.update_state(numbers, values, sample_weight)
        values = y_pred if from_logits else ops.softmax(y_pred)
        if isinstance(self.metric, _OF_NUMBERS):
            return self.metric.update_state(numbers, values, sample_weight)
        rows = ops.one_hot(numbers, num_labels)
        if sample_weight is not None and isinstance(self.metric, _OF_ONE_LABEL):
            sample_weight = ops.expand_dims(sample_weight, -1)
        return self.metric.update_state(rows, values, sample_weight)

    def _is_of_last(self, num_labels: int) -> bool:
        options = ("class_id", "top_k", "multi_label")
        values = [self._options.get(name) for name in options]
        return (
            num_labels == 2
            and isinstance(self.metric, _OF_ONE_LABEL)
            and all(value is None or value is False for value in values)
        )

    def result(self):
        return self.metric.result()

    def reset_state(self):
        self.metric.reset_state()

    def get_config(self):
        metric = keras.saving.serialize_keras_object(self.metric)
        return {"name": self.name, "metric": metric, "problem": self.problem}

    @classmethod
    def from_config(cls, config) -> Self:
        config = dict(config)
        metric = keras.saving.deserialize_keras_object(config.pop("metric"))
        return cls(metric, **config)


@keras.saving.register_keras_serializable("bert_tf")
def is_right_first(targets, scores):
    """Returns 1 if a query's positive document has the highest score, else 0.

    See `reciprocal_ranks`.
    """
    del targets
    # In a graph, the reciprocal of rank 1 may be a little less than 1.
    return ops.cast(_ranks(scores) == 1, "float32")


@keras.saving.register_keras_serializable("bert_tf")
def reciprocal_ranks(targets, scores):
    """Returns 1 / the rank of each query's positive document, float32 [B].

    On ties, the positive document ranks last.

    Args:
      targets: Not used: the first document is the positive one.
      scores: Floats [B, D].
    """
    del targets
    return ops.reciprocal(_ranks(scores))


def _ranks(scores):
    """Returns the rank of each query's positive document, from 1, [B]."""
    # A score of NaN is not higher than others.
    is_lower = ops.logical_not(scores[:, :1] > scores[:, 1:])
    return 1 + ops.sum(ops.cast(is_lower, "float32"), axis=-1)
