"""`TextClassifier`: classes, several labels, or a number for texts or pairs."""

import numbers
import os
from collections.abc import Mapping, Sequence
from typing import Any, Self

import keras
import numpy as np
from keras import ops

from bert_tf.config import positive_integer
from bert_tf.data.batching import Features
from bert_tf.errors import (
    InputError,
    require_choice,
    require_names,
    wrong_value,
)
from bert_tf.heads import BertClassifier
from bert_tf.tasks.classification import (
    IDENTITY,
    PROBLEM_TYPES,
    SIGMOID,
    answers,
    probabilities,
    require_activation,
)
from bert_tf.tasks.encoding import Encoding
from bert_tf.tasks.examples import Example
from bert_tf.tasks.windows import Rows
from bert_tf.text_models.base import (
    INPUTS,
    NAME_THE_CLASSES,
    TextModel,
    text_features,
)
from bert_tf.text_models.inputs import (
    as_columns,
    is_single,
    label_name,
    plain,
    plain_row,
    require_present,
)


@keras.saving.register_keras_serializable("bert_tf")
class TextClassifier(TextModel):
    """Classifies texts, or pairs of texts.

    Example:

        model = bert_tf.TextClassifier.from_pretrained(
            "hf://google-bert/bert-base-uncased", labels=["bad", "good"]
        )
        model.fit(["What a film!", "I fell asleep."], ["good", "bad"])
        model.predict(["Not bad at all."])
        # [{'label': 'good', 'probability': 0.9,
        #   'probabilities': {'bad': 0.1, 'good': 0.9}}]

    Texts are a list, a NumPy array or a column of pandas or of Hugging Face's
    `datasets`. Pairs are a list of tuples, or a tuple of two columns.

    Labels are names, or numbers counted from 0; for multi_label a list of
    names, or 0 and 1 for each label; for regression numbers.

    Args:
      model: A `BertClassifier`.
      tokenizer: A `FullTokenizer` or a `BertTokenizer`.
      labels: The names of the classes in the order of the logits. By default
        those of the model's checkpoint, or LABEL_0, LABEL_1 and so on.
      problem: "single_label", "multi_label" or "regression". By default the
        checkpoint's; or "regression" for a model with one output, else
        "single_label".
      is_pair: Whether an export takes pairs of texts; `fit` sets it.
      max_seq_length: The longest sequence, in tokens with [CLS] and [SEP].
      doc_stride: If given, longer texts become windows of `max_seq_length`
        tokens, which start this many tokens apart. `fit` trains on windows,
        such that every text has the same weight; `evaluate` and `predict`
        return scores and answers of texts. By default texts are truncated.
      window_pooling: How the logits of windows become those of their text:
        "mean" or "max".

    Raises:
      InputError: If the labels do not fit the model or the problem.
    """

    model_class = BertClassifier

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
        if problem is None:
            is_number = model.num_labels == 1 and not labels
            problem = "regression" if is_number else "single_label"
        require_choice("problem", problem, PROBLEM_TYPES)
        super().__init__(model, tokenizer, max_seq_length, name=name)
        labels = _labels(labels, problem, model)
        num_logits = len(labels) or 1
        if model.num_labels != num_logits:
            raise InputError(
                f"The model has {model.num_labels} logits, but {problem} with "
                f"{len(labels)} labels needs {num_logits}."
            )
        self.labels = labels
        self.problem = problem
        self.is_pair = is_pair
        self.doc_stride = doc_stride
        self.window_pooling = window_pooling
        if doc_stride is not None:
            self.doc_stride = positive_integer("doc_stride", doc_stride)
        self._validation: tuple[Features, int] | None = None
        # Checks the options of windows.
        self._encoding()

    @classmethod
    def from_pretrained(
        cls, path: str | os.PathLike[str], **options: Any
    ) -> Self:
        if options.get("problem") == "regression":
            options.setdefault("num_labels", 1)
        model = super().from_pretrained(path, **options)
        if model.problem == "regression" and options.get("labels"):
            raise _labels_of_a_number(options["labels"])
        if options.get("problem") is None:
            require_activation(
                str(path),
                model.model.checkpoint.activation_fn,
                model.problem,
                'Pass problem="multi_label" for the probability of the '
                'sigmoid, or problem="regression" for the logit.',
            )
        return model

    @classmethod
    def _recorded_options(cls, found):
        recorded = super()._recorded_options(found)
        for problem, name in PROBLEM_TYPES.items():
            if name == found.problem_type:
                recorded["problem"] = problem
        if found.is_pair is not None:
            recorded["is_pair"] = found.is_pair
        # The windows of other models are of questions.
        if found.window_pooling is not None:
            recorded["doc_stride"] = found.doc_stride
            recorded["window_pooling"] = found.window_pooling
        return recorded

    def fit(self, x: Any, y: Any = None, *args: Any, **options: Any) -> Any:
        try:
            return super().fit(x, y, *args, **options)
        finally:
            self._validation = None

    def evaluate(self, x: Any, y: Any = None, *args: Any, **options: Any):
        if self._validation and "_use_cached_eval_dataset" in options:
            return self._scores_of_texts(*self._validation)
        return super().evaluate(x, y, *args, **options)

    def _validation_data(self, x, y, weights, batch_size):
        if self.doc_stride is not None:
            features = self._weighted_features(x, y, weights)
            self._validation = features, batch_size
        return super()._validation_data(x, y, weights, batch_size)

    def _keras_scores(self, x, y, weights, batch_size, options):
        if self.doc_stride is None:
            return super()._keras_scores(x, y, weights, batch_size, options)
        features = self._weighted_features(x, y, weights)
        return self._scores_of_texts(features, batch_size)

    def _scores_of_texts(
        self, features: Features, batch_size: int
    ) -> dict[str, float]:
        """Returns the loss and the metrics of texts that have windows."""
        logits = ops.convert_to_tensor(self._logits(features, batch_size))
        arrays = features.arrays
        is_first = arrays["window_numbers"] == 0
        labels = self._targets(arrays["label_ids"][is_first])
        weights = None
        if "sample_weight" in arrays:
            weights = ops.convert_to_tensor(arrays["sample_weight"][is_first])
        is_whole = np.issubdtype(labels.dtype, np.integer)
        y = ops.convert_to_tensor(labels, "int32" if is_whole else "float32")
        self.reset_metrics()
        loss = self.compute_loss(None, y, logits, weights)
        scores = self.compute_metrics(None, y, logits, weights)
        scores = {**scores, "loss": loss}
        return {name: float(value) for name, value in scores.items()}

    def predict(self, x: Any, batch_size: int = 32) -> Any:
        """Returns the answer for each text.

        Args:
          x: Texts or pairs, or a single one.
          batch_size: The number of texts of full length at a time.

        Returns:
          A list of dicts, or one dict for a single text: `label` with its
          `probability`, and the `probabilities` of all labels; for multi_label
          the `labels` above 0.5 and all `probabilities`; for regression the
          `score`.
        """
        logits = self._logits(self._features(x, None), batch_size)
        values = probabilities(self.problem, logits)
        found = answers(self.problem, self.labels, values)
        made = [self._answer(*row) for row in zip(found, values, strict=True)]
        return made[0] if is_single(x) else made

    def _logits(self, features: Features, batch_size: int) -> np.ndarray:
        """Returns the logits of texts, [n, C]."""
        rows = self._outputs(features, batch_size, self._call)
        logits = np.array(rows).reshape(-1, self.model.num_labels)
        if self.doc_stride is None:
            return logits
        windows = Rows.of(features.arrays["window_numbers"])
        return windows.pool(logits, self.window_pooling)

    def _answer(self, answer: Any, values: np.ndarray) -> dict[str, Any]:
        if self.problem == "regression":
            return {"score": answer}
        shares = dict(zip(self.labels, values.tolist(), strict=True))
        if self.problem == "multi_label":
            return {"labels": list(answer), "probabilities": shares}
        return {
            "label": answer,
            "probability": shares[answer],
            "probabilities": shares,
        }

    def _features(self, x: Any, y: Any) -> Features:
        columns = as_columns(x, ("text_a", "text_b"))
        if not columns[0]:
            raise InputError("There are no texts.")
        labels = [None] * len(columns[0]) if y is None else self._names(y)
        if y is not None:
            self.is_pair = len(columns) == 2
            require_present(labels, "example", "label")
        if len(labels) != len(columns[0]):
            raise wrong_value(
                "The number of labels",
                f"{len(columns[0])}, the number of texts",
                len(labels),
            )
        examples = [
            Example(str(number), *texts, label=label, where=f"example {number}")
            for number, (label, *texts) in enumerate(
                zip(labels, *columns, strict=True)
            )
        ]
        features = text_features(examples, self._encoding())
        if y is not None and self.doc_stride is not None:
            arrays = features.arrays
            weights = len(features) / len(examples) / arrays["num_windows"]
            arrays["row_weights"] = weights.astype(np.float32)
            arrays["example_index"] = (
                np.cumsum(arrays["window_numbers"] == 0) - 1
            )
        return features

    def _encoding(self) -> Encoding:
        return Encoding(
            *self._encoding_arguments(),
            self.problem,
            self.labels,
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
        if len(row) != len(self.labels) or not {*row} <= {0, 1}:
            raise wrong_value(
                f"The labels of example {number}",
                f"names, or 0 or 1 for each of the {len(self.labels)} labels",
                row,
            )
        return [n for n, is_present in enumerate(row) if is_present]

    def _arguments(self, batch: Mapping[str, np.ndarray]) -> tuple:
        features = {name: batch[name] for name in INPUTS}
        targets = self._targets(batch["label_ids"])
        if "row_weights" in batch:
            return features, targets, batch["row_weights"]
        return features, targets

    def _targets(self, label_ids: np.ndarray) -> np.ndarray:
        """Returns labels as `fit` compares them: numbers [B, 1], or as is.

        For [B], Keras would average the losses before it weights them.
        """
        return label_ids[:, None] if self.problem == "regression" else label_ids

    def _class_names(self):
        return self.labels if self.problem == "single_label" else ()

    def _default_loss(self):
        if self.problem == "regression":
            return "mse"
        if self.problem == "multi_label":
            return keras.losses.BinaryCrossentropy(from_logits=True)
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def _default_metrics(self):
        if self.problem == "single_label":
            return ["accuracy"]
        if self.problem == "multi_label":
            # A logit of 0 is a probability of 0.5.
            return [keras.metrics.BinaryAccuracy("accuracy", threshold=0.0)]
        return ["mae"]

    def _facts(self):
        found = self.model.checkpoint
        activations = {"regression": IDENTITY, "multi_label": SIGMOID}
        has_activation = found is not None and found.activation_fn is not None
        return {
            **super()._facts(),
            "activation_fn": activations.get(self.problem)
            if has_activation
            else None,
            "labels": self.labels or None,
            "problem_type": PROBLEM_TYPES[self.problem],
            "doc_stride": self.doc_stride,
            "window_pooling": self.doc_stride and self.window_pooling,
            "is_pair": self.is_pair,
        }

    def _served(self):
        from bert_tf.serving.served import ServedClassifier

        return ServedClassifier(
            self.model,
            self._encoding(),
            self.labels,
            self.problem,
            self.is_pair,
        )

    def get_config(self):
        return {
            **super().get_config(),
            "labels": list(self.labels),
            "problem": self.problem,
            "is_pair": self.is_pair,
            "doc_stride": self.doc_stride,
            "window_pooling": self.window_pooling,
        }


def _labels(
    labels: Sequence[str] | None, problem: str, model: BertClassifier
) -> tuple[str, ...]:
    """Returns the labels of a classifier; () for regression.

    Raises:
      InputError: If they do not fit the problem, or two are equal.
    """
    if problem == "regression":
        if labels:
            raise _labels_of_a_number(labels)
        return ()
    if problem == "single_label" and model.num_labels == 1:
        raise InputError(
            "The model has one output, which is the probability 1 of a single "
            'label for every text. Pass problem="regression" for a number.'
        )
    if labels is None:
        numbers = range(model.num_labels)
        labels = model.labels or [f"LABEL_{n}" for n in numbers]
    return require_names(labels, NAME_THE_CLASSES)


def _labels_of_a_number(labels: Sequence[str]) -> InputError:
    return wrong_value("labels", 'left out for problem="regression"', labels)
