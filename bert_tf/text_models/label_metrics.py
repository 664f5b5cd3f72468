"""Labels in the form that Keras's losses and metrics compare."""

from typing import Any, Self

import keras
import numpy as np
from keras import ops

# Metrics that compare 0 or 1 for each label with probabilities.
_OF_ROWS = (
    keras.metrics.FBetaScore,
    keras.metrics.CategoricalAccuracy,
    keras.metrics.CategoricalCrossentropy,
    keras.metrics.TopKCategoricalAccuracy,
)
# Metrics that do so for one label: of two labels, for the last one.
_OF_ONE_LABEL = (
    keras.metrics.AUC,
    keras.metrics.BinaryAccuracy,
    keras.metrics.BinaryCrossentropy,
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


def of_probabilities(metrics: Any, is_single_label: bool) -> Any:
    """Returns what Keras's `compile` takes, for labels and probabilities.

    Args:
      metrics: Metrics for Keras's `compile`.
      is_single_label: Whether labels are numbers of classes, [B].
    """

    def convert(metric: Any) -> Any:
        name = metric if isinstance(metric, str) else None
        if name in ("accuracy", "acc"):
            if not is_single_label:
                return metric
            # Keras would choose by the labels of the first batch.
            return keras.metrics.SparseCategoricalAccuracy(name)
        found = keras.metrics.get(metric)
        if not isinstance(found, (*_OF_ROWS, *_OF_ONE_LABEL)):
            return metric
        config = found.get_config() | ({"name": name} if name else {})
        if config.get("from_logits"):
            config["from_logits"] = False
        found = type(found).from_config(config)
        return LabelMetric(found) if is_single_label else found

    return keras.tree.map_structure(convert, metrics)


@keras.saving.register_keras_serializable("bert_tf")
class LabelMetric(keras.metrics.Metric):
    """Passes a metric, which compares rows, the numbers of labels.

    A metric of one label, such as `AUC`, gets the last of two labels. With more
    labels, or with its arguments `class_id`, `top_k` or `multi_label`, it gets
    0 or 1 for each label.

    Args:
      metric: The metric.
    """

    def __init__(self, metric: keras.metrics.Metric, **options: Any):
        super().__init__(**{"name": metric.name, **options})
        self.metric = metric
        config = metric.get_config()
        of_several = map(config.get, ("class_id", "top_k", "multi_label"))
        self._is_of_one = isinstance(metric, _OF_ONE_LABEL)
        self._takes_last = self._is_of_one and all(
            value is None or value is False for value in of_several
        )

    def update_state(self, y_true, y_pred, sample_weight=None):
        """Adds numbers of labels [B] and their probabilities [B, C]."""
        num_labels = y_pred.shape[-1]
        if self._takes_last and num_labels == 2:
            y_pred = y_pred[:, 1]
        else:
            y_true = ops.one_hot(y_true, num_labels)
            if sample_weight is not None and self._is_of_one:
                sample_weight = ops.expand_dims(sample_weight, -1)
        return self.metric.update_state(y_true, y_pred, sample_weight)

    def result(self):
        return self.metric.result()

    def reset_state(self):
        self.metric.reset_state()

    def get_config(self):
        metric = keras.saving.serialize_keras_object(self.metric)
        return {"name": self.name, "metric": metric}

    @classmethod
    def from_config(cls, config) -> Self:
        config = dict(config)
        metric = keras.saving.deserialize_keras_object(config.pop("metric"))
        return cls(metric, **config)
