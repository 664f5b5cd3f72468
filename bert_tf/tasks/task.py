"""The interface of tasks, which the training loop uses."""

import abc
import copy
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

import keras
import numpy as np
from keras import ops

from bert_tf.config import BertConfig
from bert_tf.data.records import INPUTS, Schema
from bert_tf.errors import InputError
from bert_tf.modeling.variables import checkpoint_variables
from bert_tf.tasks.encoding import RowEncoding

# The names of predictions that are not outputs of the model.
_OF_ROW = re.compile("label|window_numbers|loss$|weight$")

# The name of the loss from a teacher.
DISTILLATION_LOSS = "distillation_loss"
# The feature that is 1 for an example with a label and 0 for one without, [B].
# If it is missing, all examples have labels. Only students use it.
IS_LABELED = "is_labeled"


class Task(abc.ABC):
    """Everything specific to one kind of task.

    Losses are weighted means over the *global* batch, regardless of devices and
    micro-batches. A task therefore returns the weighted loss and the weight of
    each example: the loop divides the sum of the losses of the whole batch by
    the sum of the weights.

    `features` is a batch of records, a dict from name to tensor [B, ...], and
    `outputs` is what the model returns for it.

    Attributes:
      schema: The schema of the records.
      loss_names: The names of the parts of the loss, in the order of `losses`.
      new_variables: Variables that an `init_checkpoint` may lack, as a regular
        expression: a new head is trained from scratch, and so are LoRA adapters
        and a missing pooler. A missing variable of the encoder is an error.
      unused_variables: Variables without effect on scores, as a regular
        expression; imported models may lack them.
      lora_rank: The rank of LoRA adapters; None to train all weights.
      lora_alpha: See `FeatureModel.enable_lora`.
    """

    schema: Schema
    loss_names: tuple[str, ...]
    new_variables: str = r"(?!bert/(embeddings|encoder)/)|.*/lora_kernel_[ab]$"
    unused_variables: str = r"(?!)"  # Matches nothing.
    lora_rank: int | None = None
    lora_alpha: float | None = None

    @abc.abstractmethod
    def build_model(self, is_restored: bool = False) -> keras.Model:
        """Returns a built model with random weights.

        With `is_restored`, a checkpoint is read next. The encoder then has
        zeros, which are faster to make.
        """

    def checkpoint_variables(
        self, model: keras.Model
    ) -> dict[str, keras.Variable]:
        """Returns the weights of a model by their names in a checkpoint."""
        return checkpoint_variables(model)

    @abc.abstractmethod
    def loss_weights(self, features: Mapping) -> dict:
        """Returns the weight of each example in each part of the loss.

        The keys are `loss_names`, the values floats [B].
        """

    @abc.abstractmethod
    def losses(self, features: Mapping, outputs: Mapping) -> dict:
        """Returns the weighted loss of each example.

        The keys are `loss_names`, the values float32 [B]. The training loss is
        the sum of the weighted means of the parts.
        """

    @abc.abstractmethod
    def predictions(self, features: Mapping, outputs: Mapping) -> dict:
        """Returns what to keep of a batch: tensors [B, ...] by name."""

    @abc.abstractmethod
    def score(self, predictions: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Returns the metrics of a data set by name.

        The argument joins the results of `predictions` for all batches: [n,
        ...], each example once.
        """

    def is_lower_better(self, metric: str) -> bool:
        """Returns whether lower values of a metric are better.

        By default, lower is better for losses, including those of a part of the
        data, such as "loss_mismatched". The name does not start with "eval_".
        """
        return metric.split("_")[0] == "loss"


class Rows(NamedTuple):
    """Which example each row belongs to, in NumPy or in a server's graph.

    Attributes:
      examples: The index of each row's example, integers [R], ascending.
      num_examples: The number of examples, n; each has at least one row.
    """

    examples: Any
    num_examples: Any

    @classmethod
    def of(cls, window_numbers: Any) -> "Rows":
        """Groups rows by example, given `window_numbers` [R]."""
        is_first = np.equal(window_numbers, 0)
        return cls(np.cumsum(is_first) - 1, np.count_nonzero(is_first))

    def pool(self, values: Any, pooling: str, weights: Any = None) -> Any:
        """Returns the mean or maximum over the rows of each example.

        Args:
          values: Floats [R, W].
          pooling: One of `encoding.WINDOW_POOLINGS`.
          weights: The weights of the rows in the mean, [R]; default: equal.

        Returns:
          Floats [n, W] of the same dtype. A single row stays as it is.
        """
        values = ops.convert_to_tensor(values)
        if pooling == "max":
            return ops.segment_max(values, *self)
        if weights is None:
            weights = ops.ones(ops.shape(values)[:1], values.dtype)
        weights = ops.cast(weights, values.dtype)
        totals = ops.take(ops.segment_sum(weights, *self), self.examples)
        shares = ops.expand_dims(weights / totals, axis=-1)
        return ops.segment_sum(values * shares, *self)


class FineTuningTask(Task):
    """A kind of task, as scripts, text models and exports use it.

    In all three, an example becomes one or more rows of features (`encoding`),
    and the model maps rows to outputs. In training, an element is what has a
    loss: a row, or a word in it. In prediction, `row_outputs` returns what is
    kept of each row, `join` combines the rows of each example, and `decode`
    returns the answers.

    These methods use `keras.ops`, so the same code runs in a server's graph and
    on Keras's other backends.

    Args:
      config: The configuration of the model.
      encoding: How examples become features.
      lora_rank, lora_alpha: See `Task`.
      options: Further keyword arguments of the model: `frozen_layers`,
        `gradient_checkpointing` and options of the head.

    Attributes:
      head: The kind of head, one of `huggingface_names.HEADS`.
      kind: The name of the kind of task in checkpoints; by default the name of
        the class. A head of another kind is not loaded. The library's kinds
        have the names of their heads.
      problem_type: The name of the problem in checkpoints; None without one.
      labels: The labels in the order of the logits; () if there are none.
      has_teachers: Whether the task has `soft_losses`.
      teacher_loss: The weight and the temperature of the loss from a teacher;
        None without a teacher. See `student`.
      metrics: The names of the metrics of `score`, without "eval_". The first
        one selects the best of several trainings.
    """

    head: str
    kind: str
    problem_type: str | None = None
    has_teachers: bool = True
    teacher_loss: tuple[float, float] | None = None
    loss_names: tuple[str, ...] = ("loss",)
    metrics: tuple[str, ...] = ("loss",)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not hasattr(cls, "kind"):
            cls.kind = cls.__name__

    def __init__(
        self,
        config: BertConfig,
        encoding: RowEncoding,
        *,
        lora_rank: int | None = None,
        lora_alpha: float | None = None,
        **options: Any,
    ):
        self.config = config
        self.encoding = encoding
        self.lora_rank, self.lora_alpha = lora_rank, lora_alpha
        self.labels = tuple(getattr(encoding, "labels", ()))
        self._model_options = options

    @property
    def schema(self) -> Schema:  # type: ignore[override]
        """The schema of the records."""
        return self.encoding.schema

    @property
    def num_outputs(self) -> int:
        """The number of outputs of the head; by default one for each label."""
        return max(1, len(self.labels))

    def facts(self) -> dict[str, Any]:
        """Returns what a checkpoint records of the task.

        The names are fields of `checkpoint.Pretrained`.
        """
        return {
            "labels": self.labels or None,
            "head": self.head,
            "kind": None if self.kind == self.head else self.kind,
            "problem_type": self.problem_type,
        }

    def build_model(self, is_restored: bool = False) -> keras.Model:
        model = self.make_model(**self._model_options)
        model.build_weights(is_restored)
        if self.lora_rank:
            model.enable_lora(self.lora_rank, lora_alpha=self.lora_alpha)
        return model

    @abc.abstractmethod
    def make_model(self, **options: Any) -> keras.Model:
        """Returns the model with its head, not built."""

    # Training.

    @abc.abstractmethod
    def element_losses(self, features: Mapping, outputs: Mapping) -> Any:
        """Returns the loss of each element, float32 [B, ...]."""

    def is_element(self, features: Mapping) -> Any:
        """Returns 1.0 for each element that counts, float32 [B, ...].

        By default all rows count.
        """
        return ops.ones(ops.shape(features["input_ids"])[:1])

    def element_weights(self, features: Mapping) -> Any:
        """Returns what multiplies the loss of each element, float32 [B, ...].

        The sum is divided by the number of elements, not by their weights.
        """
        return self.is_element(features)

    def soft_losses(
        self, features: Mapping, outputs: Mapping, temperature: float
    ) -> Any:
        """Returns the losses of elements against a teacher, float32 [B, ...].

        The teacher's outputs are features with the prefix "teacher_"; see
        `distillation.TeacherTask`. By default, compares the `logits` of
        classes.
        """
        return divergence(
            features["teacher_logits"], outputs["logits"], temperature
        )

    def student(self, weight: float, temperature: float) -> Self:
        """Returns the task with a second loss, from a teacher.

        loss = (1 - weight) * loss of the labels + weight * loss of the teacher

        The first is the mean over the elements with labels, the second over all
        elements. `features` must include the predictions of a
        `distillation.TeacherTask`.

        Args:
          weight: The weight of the teacher's loss, from 0 to 1.
          temperature: See `divergence`; without effect for regression.
        """
        student = copy.copy(self)
        student.teacher_loss = weight, temperature
        student.loss_names = (*self.loss_names, DISTILLATION_LOSS)
        return student

    def loss_weights(self, features: Mapping) -> dict:
        """See `Task`; counts the elements of a row."""
        elements = sum_of_rows(self.is_element(features))
        if self.teacher_loss is None:
            return {self.loss_names[0]: elements}
        return {
            self.loss_names[0]: elements * _is_labeled(features),
            DISTILLATION_LOSS: elements,
        }

    def losses(self, features: Mapping, outputs: Mapping) -> dict:
        """See `Task`; sums over the elements of a row."""
        losses = self.element_losses(features, outputs)
        if not losses.shape:
            raise InputError(
                f"{type(self).__name__}.element_losses returned one number; "
                "expected the loss of each element, [batch, ...]."
            )
        losses = sum_of_rows(losses * self.element_weights(features))
        if self.teacher_loss is None:
            return {self.loss_names[0]: losses}
        weight, temperature = self.teacher_loss
        soft = self.soft_losses(features, outputs, temperature)
        soft = sum_of_rows(soft * self.is_element(features))
        return {
            self.loss_names[0]: (1 - weight) * losses * _is_labeled(features),
            DISTILLATION_LOSS: weight * soft,
        }

    # Prediction.

    def row_outputs(self, features: Mapping, outputs: Mapping) -> dict:
        """Returns what to keep of each row: tensors [B, ...] by name."""
        del features
        return dict(outputs)

    def join(self, outputs: Mapping, rows: Rows) -> dict:
        """Returns the outputs of examples, tensors [n, ...] by name.

        By default, pools the windows of each example. Without windows, a row is
        an example, and stays as it is.

        Args:
          outputs: The `row_outputs`, [R, ...] by name.
          rows: The example of each row.
        """
        if getattr(self.encoding, "doc_stride", None) is None:
            return dict(outputs)
        pooling = self.encoding.window_pooling
        return {name: rows.pool(x, pooling) for name, x in outputs.items()}

    def decode(self, outputs: Mapping) -> dict:
        """Returns the answers, tensors [n, ...] by name.

        Args:
          outputs: The outputs of examples, see `join`.
        """
        return dict(outputs)

    def answers(
        self, decoded: Mapping[str, np.ndarray], examples: Sequence[Any]
    ) -> list[Any]:
        """Returns what `predict` of a text model returns for each example.

        By default, this is a dict of numbers or lists of numbers.

        Args:
          decoded: The results of `decode`, [n, ...] by name.
          examples: The n examples.
        """
        return [
            {name: values[row].tolist() for name, values in decoded.items()}
            for row in range(len(examples))
        ]

    def predictions(self, features: Mapping, outputs: Mapping) -> dict:
        """See `Task`; by default everything known about each row.

        These are the `row_outputs`, the features `label*` and `window_numbers`,
        the `loss`, float32 [B], and its `weight`.
        """
        is_element = self.is_element(features)
        losses = self.unweighted_losses(features, outputs)
        return {
            **{n: x for n, x in features.items() if _OF_ROW.match(n)},
            **self.row_outputs(features, outputs),
            "loss": sum_of_rows(losses * is_element),
            "weight": sum_of_rows(is_element),
        }

    def unweighted_losses(self, features: Mapping, outputs: Mapping) -> Any:
        """Returns the loss of each element that evaluation reports."""
        return self.element_losses(features, outputs)

    def of_examples(
        self, predictions: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Turns the `predictions` of rows into predictions of examples."""
        numbers = predictions.get("window_numbers")
        if numbers is None:
            return dict(predictions)
        outputs = dict(predictions)
        firsts = {
            name: outputs.pop(name)[numbers == 0]
            for name in filter(_OF_ROW.match, predictions)
        }
        joined = self.join(outputs, Rows.of(numbers))
        firsts["loss"] = self.unweighted_losses(firsts, joined)
        return as_numpy({**firsts, **joined})

    def score(
        self,
        predictions: Mapping[str, np.ndarray],
        examples: Sequence[Any] = (),
    ) -> dict[str, float]:
        """See `Task`; by default the mean of the losses.

        Args:
          predictions: The results of `of_examples`; `decode` returns their
            answers.
          examples: The examples.
        """
        loss = np.sum(predictions["loss"], dtype=float)
        weight = np.sum(predictions["weight"], dtype=float)
        return {"eval_loss": float(loss / max(weight, 1))}


def _is_labeled(features: Mapping) -> Any:
    """Returns 1.0 for examples with a label, else 0.0: [B], or one number."""
    if IS_LABELED not in features:
        return 1.0
    return ops.cast(features[IS_LABELED], "float32")


def as_numpy(tensors: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Converts tensors by name to NumPy arrays."""
    return {n: ops.convert_to_numpy(x) for n, x in tensors.items()}


def weights_of(label_ids: Any, class_weights: np.ndarray) -> Any:
    """Returns the weight of each label, float32 [...].

    Args:
      label_ids: Integers [...]; or the probabilities of the labels, floats
        [..., C].
      class_weights: The weight of each label, float32 [C].
    """
    if keras.backend.is_int_dtype(label_ids.dtype):
        return ops.take(class_weights, ops.cast(label_ids, "int32"))
    return ops.matmul(label_ids, class_weights)


def most_probable(probabilities: Any) -> tuple[Any, Any]:
    """Returns the most probable class and its probability.

    Args:
      probabilities: Floats [..., C], with any number of rows.

    Returns:
      int32 [...], the first one on ties, and floats [...].
    """
    # `ops.max` refuses a batch without rows.
    values, ids = ops.top_k(probabilities, 1)
    # Outside of graphs, a slice takes four times as long as `squeeze`.
    return ops.cast(ops.squeeze(ids, -1), "int32"), ops.squeeze(values, -1)


def sum_of_rows(values: Any) -> Any:
    """Returns the sum of the elements of each row, [B]."""
    others = tuple(range(1, len(values.shape)))
    return ops.sum(values, axis=others) if others else values


def divergence(teacher: Any, student: Any, temperature: float) -> Any:
    """Returns T^2 KL(softmax(teacher / T) || softmax(student / T)).

    Section 2 of Hinton et al. 2015, arXiv 1503.02531; the cross-entropy less
    the teacher's entropy, which has no gradient. The factor T^2 keeps the size
    of the gradient.

    Args:
      teacher, student: Logits, float32 [..., C].
      temperature: T.

    Returns:
      Floats [...].
    """
    theirs = ops.log_softmax(teacher / temperature)
    ours = ops.log_softmax(student / temperature)
    terms = ops.exp(theirs) * (theirs - ours)
    return temperature**2 * ops.sum(terms, axis=-1)


def are_class_weights(weights: np.ndarray) -> bool:
    """Returns whether floats are finite, not negative and not all 0."""
    return bool(
        np.isfinite(weights).all() and (weights >= 0).all() and weights.any()
    )


def balanced_class_weights(
    label_ids: np.ndarray, num_labels: int
) -> np.ndarray:
    """Returns class weights, with which every class counts equally.

    Source: "balanced" of scikit-learn, n / (C * count). A class without
    examples is not counted in C, and its weight is 0. The result is float64
    [num_labels]; the mean weight of the n examples is 1.
    """
    counts = np.bincount(label_ids, minlength=num_labels)
    total = len(label_ids) / max(1, np.count_nonzero(counts))
    return np.where(counts > 0, total / np.maximum(counts, 1), 0.0)


def flatten(inputs: Mapping) -> dict:
    """Returns the `INPUTS` of all texts, [..., S], as [B, S]."""
    length = ops.shape(inputs["input_ids"])[-1]
    return {name: ops.reshape(inputs[name], (-1, length)) for name in INPUTS}
