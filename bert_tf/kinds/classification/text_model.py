"""`TextClassifier`: single-label, multi-label and regression of texts."""

import numbers
import os
from collections.abc import Mapping, Sequence
from itertools import compress
from typing import Any, ClassVar, Self

import keras
import numpy as np
from keras import ops

from bert_tf.checkpoints.pretrained import (
    require_activation,
    warn_of_problem,
)
from bert_tf.config import positive_integer
from bert_tf.data.batching import Features
from bert_tf.errors import (
    InputError,
    require_booleans,
    require_choice,
    require_names,
    wrong_value,
)
from bert_tf.kinds.classification.task import (
    PROBLEM_TYPES,
    ClassificationTask,
    activation_of,
)
from bert_tf.modeling.heads import BertClassifier
from bert_tf.tasks.distillation import PREFIX, only_labeled
from bert_tf.tasks.encoding import Encoding
from bert_tf.tasks.examples import have_values
from bert_tf.tasks.metrics import usual_metrics
from bert_tf.tasks.task import IS_LABELED
from bert_tf.text_models.inputs import (
    is_missing,
    label_name,
    label_shares,
    plain,
    plain_row,
)
from bert_tf.text_models.text_model import (
    NAME_THE_CLASSES,
    TextModel,
)

# Metrics that compare 0 or 1 for each label with probabilities.
_OF_ROWS = (
    keras.metrics.FBetaScore,
    keras.metrics.CategoricalAccuracy,
    keras.metrics.CategoricalCrossentropy,
    keras.metrics.TopKCategoricalAccuracy,
)


@keras.saving.register_keras_serializable("bert_tf")
class TextClassifier(TextModel):
    """Classifies texts, or pairs of texts.

    Example:

        model = bert_tf.TextClassifier.from_pretrained(
            "hf://google-bert/bert-base-uncased", labels=["bad", "good"]
        )
        model.fit(texts, labels)  # Thousands; "bad" or "good" for each.
        model.predict(["Not bad at all."])
        # For example [{'label': 'good', 'probability': 0.9,
        #               'probabilities': {'bad': 0.1, 'good': 0.9}}]

    Texts are a list, a NumPy array or a column of pandas or of Hugging Face's
    `datasets`. Pairs are a list of tuples, or a tuple of two columns.

    A label is a name; or its position from 0, if no name looks like a number or
    a boolean; or a row of numbers whose sum is 1, such as [0, 1] or [0.25,
    0.75]. For multi_label, it is a list of names, or of 0 or 1 for each label;
    for regression, a number.

    `predict` returns a list of dicts, or one dict for a single text. Each has
    the `label`, its `probability`, and the `probabilities` of all labels; for
    multi_label the `labels` above 0.5 and all `probabilities`; for regression
    the `score`.

    `evaluate` and `fit(validation_data=...)` return the loss, Keras's metrics,
    and the scores of run_classifier.py: Matthews's correlation, and F1 of the
    last of two labels, or macro-F1 of more. For multi_label, the scores are
    exact_match, micro_f1 and macro_f1; for regression, pearson and spearman.

    `CrossEncoder` ranks documents for a query.

    Args:
      model: A `BertClassifier`.
      tokenizer: A `FullTokenizer` or a `BertTokenizer`.
      labels: The names of the classes in the order of the logits. By default
        the checkpoint's, or LABEL_0, LABEL_1 and so on.
      problem: "single_label", "multi_label" or "regression". By default the
        checkpoint's; or "regression" for a model with one output, else
        "single_label".
      is_pair: Whether an export takes pairs of texts; `fit` sets it.
      max_seq_length: The longest sequence, in tokens with [CLS] and [SEP].
      doc_stride: If given, longer texts become windows of `max_seq_length`
        tokens, which start this many tokens apart. `fit` trains on windows: all
        texts have the same weight in the loss of the labels, and all windows
        have the same weight in a teacher's loss. `evaluate` and `predict`
        return scores and answers per text. By default texts are truncated.
      window_pooling: How the logits of a text's windows are pooled: "mean" or
        "max".

    Raises:
      InputError: If the labels do not fit the model or the problem.
    """

    model_class = BertClassifier
    task_class = ClassificationTask
    _compares_examples = True
    _recorded: ClassVar[Mapping[str, str]] = {
        **TextModel._recorded,
        "is_pair": "is_pair",
        "doc_stride": "doc_stride",
        "window_pooling": "window_pooling",
    }

    def __init__(
        self,
        model: BertClassifier,
        tokenizer: Any,
        labels: Sequence[str] | None = None,
        problem: str | None = None,
        is_pair: bool = False,
        max_seq_length: int = 128,
        doc_stride: int | None = None,
        window_pooling: str = "mean",
        name: str = "text_classifier",
    ):
        super().__init__(model, tokenizer, max_seq_length, name=name)
        if problem is None:
            is_number = model.num_labels == 1 and not labels
            problem = "regression" if is_number else "single_label"
        require_choice("problem", problem, PROBLEM_TYPES)
        labels = _labels(labels, problem, model)
        num_logits = len(labels) or 1
        if model.num_labels != num_logits:
            raise InputError(
                f"The model has {model.num_labels} logits, but {problem} with "
                f"{len(labels)} labels needs {num_logits}."
            )
        require_booleans(is_pair=is_pair)
        self.labels = labels
        self.problem = problem
        self.is_pair = is_pair
        self.doc_stride = doc_stride
        self.window_pooling = window_pooling
        if doc_stride is not None:
            self.doc_stride = positive_integer("doc_stride", doc_stride)
        # Checks the options of windows.
        self._encoding()

    @classmethod
    def from_pretrained(
        cls, path: str | os.PathLike[str], **options: Any
    ) -> Self:
        if options.get("problem") == "regression":
            options.setdefault("num_labels", 1)
        model = super().from_pretrained(path, **options)
        if model.problem == "regression":
            _require_no_labels(options.get("labels"))
        if options.get("problem") is None:
            require_activation(
                str(path),
                model.model.checkpoint.activation_fn,
                model.problem,
                'Pass problem="multi_label" for the probability of the '
                'sigmoid, or problem="regression" for the logit.',
            )
        warn_of_problem(model.model.checkpoint, PROBLEM_TYPES[model.problem])
        return model

    @classmethod
    def _recorded_options(cls, pretrained):
        recorded = super()._recorded_options(pretrained)
        for problem, name in PROBLEM_TYPES.items():
            if name == pretrained.problem_type:
                recorded["problem"] = problem
        if pretrained.window_pooling is None:
            # The `doc_stride` of other models is for windows of questions.
            recorded.pop("doc_stride", None)
        return recorded

    @property
    def _needs_labels(self) -> bool:  # type: ignore[override]
        # With a teacher, `fit` accepts texts without labels.
        return self._teacher is None

    def compile(
        self,
        optimizer: Any = "auto",
        loss: Any = "auto",
        metrics: Any = "auto",
        *,
        weighted_metrics: Any = None,
        **options: Any,
    ) -> None:
        """Configures training; see `TextModel.compile`.

        Metrics get probabilities. With two labels, metrics of one label, such
        as `keras.metrics.AUC()`, get the probability of the last one.
        """
        options |= {"metrics": metrics, "weighted_metrics": weighted_metrics}
        for name in ("metrics", "weighted_metrics"):
            if options[name] not in (None, "auto"):
                options[name] = of_probabilities(options[name], self.problem)
        super().compile(optimizer, loss, **options)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        """Updates Keras's metrics with probabilities and label ids."""
        if self.problem == "multi_label":
            y_pred = ops.sigmoid(y_pred)
        elif self.problem == "single_label":
            y_pred = ops.softmax(y_pred)
            if len(y.shape) == 2:
                y = ops.argmax(y, axis=-1)
        return super().compute_metrics(x, y, y_pred, sample_weight)

    def _features(self, x: Any, y: Any) -> Features:
        make = self._text_features
        if self._teacher is not None:
            make = self._partly_labeled_features
        features = make(x, y)
        if self.doc_stride is not None:
            _count_windows_relatively(features.arrays)
        return features

    def _partly_labeled_features(self, x: Any, y: Any) -> Features:
        """Returns features of texts, some of which have the label None."""
        labels = None if y is None else plain(y)
        known = [label for label in labels or () if not is_missing(label)]
        if not known:
            features = self._text_features(x, None)
            is_labeled = np.zeros(len(features), bool)
        else:
            # Any label of the right form will do: `_to_learn` replaces it.
            filled = [
                known[0] if is_missing(label) else label for label in labels
            ]
            features = self._text_features(x, filled)
            if len(known) == len(labels):
                return features
            is_labeled = np.array([not is_missing(label) for label in labels])
            is_labeled = is_labeled[features.arrays["example_index"]]
        features.arrays[IS_LABELED] = is_labeled
        return features

    def _to_learn(self, features: Features) -> Features:
        """Replaces missing labels by the teacher's, for Keras's metrics."""
        features = super()._to_learn(features)
        arrays = features.arrays
        self.is_pair = bool(arrays["segment_ids"].any())
        if IS_LABELED not in arrays:
            return features
        logits = arrays[f"{PREFIX}logits"]
        one_hot = np.eye(logits.shape[1])[logits.argmax(axis=-1)]
        labels = {
            "single_label": logits.argmax(axis=-1),
            "multi_label": logits > 0,
            "regression": logits[:, 0],
        }
        new = {"label_ids": labels[self.problem], "label_shares": one_hot}
        for name in new.keys() & arrays.keys():
            shape = (-1,) + (1,) * (arrays[name].ndim - 1)
            is_labeled = arrays[IS_LABELED].reshape(shape)
            arrays[name] = np.where(is_labeled, arrays[name], new[name])
        return features

    def _text_features(self, x: Any, y: Any) -> Features:
        shares = None
        if y is not None and self.problem == "single_label":
            # A column [n, 1] has one label in each row.
            y = [
                row[0]
                if isinstance(row, (list, tuple)) and len(row) == 1
                else row
                for row in plain(y)
            ]
            shares = label_shares(y, self.labels)
            if shares is not None:
                y = [self.labels[n] for n in shares.argmax(axis=-1)]
        examples = self.examples(x, None if y is None else self._names(y))
        features = self._encoding().features(examples)
        arrays = features.arrays
        if shares is not None:
            arrays["label_shares"] = shares[arrays["example_index"]]
        return features

    def _encoding(self) -> Encoding:
        return self.make_encoding(
            Encoding,
            problem=self.problem,
            labels=self.labels,
            doc_stride=self.doc_stride,
            window_pooling=self.window_pooling,
        )

    def _names(self, y: Any) -> list[Any]:
        """Returns labels as `Example.label` spells them."""
        values = plain(y)
        if self.problem == "regression":
            return values
        if self.problem == "single_label":
            return [label_name(value, self.labels) for value in values]
        return [
            tuple(label_name(label, self.labels) for label in row)
            for row in map(self._present, range(len(values)), values)
        ]

    def _present(self, number: int, values: Any) -> list:
        """Returns the labels of a row of names, or of 0 and 1 per label."""
        row = plain_row(values, f"example {number}")
        if not row or not all(isinstance(x, numbers.Real) for x in row):
            return row
        if len(row) == len(self.labels) and {*row} <= {0, 1}:
            return [*compress(self.labels, row)]
        if have_values(self.labels):
            return row
        raise wrong_value(
            f"The labels of example {number}",
            f"names, or 0 or 1 for each of the {len(self.labels)} labels",
            row,
        )

    def make_task(self, **options):
        names = usual_metrics(self.problem, len(self.labels))
        return ClassificationTask(
            self.model.config, self._encoding(), names, **options
        )

    def _drawn(self, batch, is_training):
        if "label_shares" not in batch:
            return batch
        return {**batch, "label_ids": batch["label_shares"]}

    def _targets(self, batch: Mapping[str, np.ndarray]) -> np.ndarray:
        """Returns labels as Keras compares them with logits.

        For regression [B, 1], since Keras would average losses [B] before it
        weights them.
        """
        if self.problem == "regression":
            return batch["label_ids"][:, None]
        return super()._targets(batch)

    def _label_ids(self, features: Features) -> np.ndarray:
        arrays = only_labeled(features).arrays
        if self.doc_stride is None:
            return arrays["label_ids"]
        return arrays["label_ids"][arrays["window_numbers"] == 0]

    def _class_names(self):
        return self.labels if self.problem == "single_label" else ()

    def _default_metrics(self):
        if self.problem == "single_label":
            return of_probabilities(["accuracy"], self.problem)
        if self.problem == "multi_label":
            return [keras.metrics.BinaryAccuracy("accuracy")]
        return ["mae"]

    def _facts(self):
        return {
            **super()._facts(),
            **activation_of(self.model, self.problem),
            "window_pooling": self.doc_stride and self.window_pooling,
        }

    def _served(self):
        from bert_tf.kinds.classification.graph import ServedClassifier

        return ServedClassifier(self.model, self.make_task(), self.is_pair)


def _labels(
    labels: Sequence[str] | None, problem: str, model: BertClassifier
) -> tuple[str, ...]:
    """Returns the labels of a classifier; () for regression."""
    if problem == "regression":
        _require_no_labels(labels)
        return ()
    if problem == "single_label" and model.num_labels == 1:
        raise InputError(
            "A classifier needs an output for each of two or more labels; this "
            'model has one output. Pass problem="regression" for a number.'
        )
    if labels is None:
        numbers = range(model.num_labels)
        labels = model.labels or [f"LABEL_{n}" for n in numbers]
    return require_names(labels, NAME_THE_CLASSES)


def _require_no_labels(labels: Sequence[str] | None) -> None:
    if labels:
        expected = 'two names or more, or left out for problem="regression"'
        raise wrong_value("labels", expected, labels)


def _count_windows_relatively(arrays: dict[str, np.ndarray]) -> None:
    """Divides `num_windows` by its mean over the texts with labels.

    The task then needs no `rows_per_example`, which would differ between the
    parts in which `fit` reads a `tf.data.Dataset`.
    """
    counts = arrays["num_windows"]
    is_text = arrays["window_numbers"] == 0
    is_labeled = is_text & arrays.get(IS_LABELED, is_text)
    mean = counts[is_labeled if is_labeled.any() else is_text].mean()
    arrays["num_windows"] = (counts / mean).astype(np.float32)


def of_probabilities(metrics: Any, problem: str) -> Any:
    """Adapts metrics for Keras's `compile` to label ids and probabilities."""
    if problem == "regression":
        return metrics
    is_single_label = problem == "single_label"

    def convert(metric: Any) -> Any:
        name = metric if isinstance(metric, str) else None
        if name in ("accuracy", "acc"):
            if not is_single_label:
                return metric
            # Keras would choose the metric by the labels of the first batch.
            return keras.metrics.SparseCategoricalAccuracy(name)
        found = keras.metrics.get(metric)
        if not isinstance(found, _OF_ROWS) and not _is_of_one_label(found):
            return metric
        config = found.get_config() | ({"name": name} if name else {})
        if config.get("from_logits"):
            config["from_logits"] = False
        found = type(found).from_config(config)
        return LabelMetric(found) if is_single_label else found

    return keras.tree.map_structure(convert, metrics)


def _is_of_one_label(metric: Any) -> bool:
    """Returns whether a metric compares one label: of two, the last one."""
    binary = keras.metrics.BinaryAccuracy, keras.metrics.BinaryCrossentropy
    # AUC, precision, recall and other metrics have `thresholds`.
    return isinstance(metric, binary) or hasattr(metric, "thresholds")


@keras.saving.register_keras_serializable("bert_tf")
class LabelMetric(keras.metrics.Metric):
    """Converts label ids for a metric of one label, or of `_OF_ROWS`.

    A metric of one label, such as `AUC`, gets the last of two labels. With more
    labels, or if it has a `class_id`, `top_k` or `multi_label`, it gets 0 or 1
    for each label. Metrics of `_OF_ROWS` always do.

    Args:
      metric: The metric.
    """

    def __init__(self, metric: keras.metrics.Metric, **options: Any):
        super().__init__(**{"name": metric.name, **options})
        self.metric = metric
        config = metric.get_config()
        of_several = map(config.get, ("class_id", "top_k", "multi_label"))
        self._is_of_one = _is_of_one_label(metric)
        self._takes_last = self._is_of_one and all(
            value is None or value is False for value in of_several
        )

    def update_state(self, y_true, y_pred, sample_weight=None):
        """Adds label ids [B] and the probabilities of labels [B, C]."""
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
