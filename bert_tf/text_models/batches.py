"""Batches of texts for Keras's `fit`, on any backend."""

import contextlib
import dataclasses
import itertools
import numbers
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from bert_tf.config import positive_integer
from bert_tf.data.batching import (
    Features,
    Padding,
    epoch_plan,
    evaluation_plan,
)
from bert_tf.errors import wrong_value
from bert_tf.modeling.feature_model import renew_optimizer
from bert_tf.modeling.kernels import runs_op_by_op
from bert_tf.text_models.inputs import Part, sample_weights

# Features that batches have and tasks do not use.
ONLY_IN_BATCHES = ("step", "example_index", "sample_weight")

# Turns some rows into the arguments of a step: (x, y, sample_weight).
Arguments = Callable[[Mapping[str, np.ndarray]], tuple]


def padding(are_few: bool = False) -> Padding:
    """Returns how batches are padded.

    XLA compiles a model for each length, so with XLA there are fewer lengths.
    oneDNN prepares programs for each length, 2.5 MB for MiniLM, so with few
    rows there are also fewer lengths.
    """
    if not runs_op_by_op():
        return Padding(multiple=64)
    return Padding(multiple=8 if are_few else 1)


class StepArguments(keras.utils.PyDataset):
    """The arguments of each step of an epoch, (x, y, sample_weight)."""

    def example(self) -> tuple:
        """Returns the arguments of one step, which `fit` still runs."""
        return self[0]

    def for_backend(self) -> Any:
        """Returns a data set for Keras, with batches of any length.

        On TensorFlow, Keras would infer the shapes of all batches of a
        `PyDataset` from the first two.
        """
        if keras.backend.backend() != "tensorflow":
            return self
        import tensorflow as tf

        example = self.example()
        leaves = tf.nest.flatten(example)

        def read(index: np.ndarray) -> list[np.ndarray]:
            return tf.nest.flatten(self[int(index)])

        def arguments(index: tf.Tensor) -> Any:
            types = [leaf.dtype for leaf in leaves]
            values = tf.numpy_function(read, [index], types)
            for value, leaf in zip(values, leaves, strict=True):
                value.set_shape([None] * leaf.ndim)
            return tf.nest.pack_sequence_as(example, values)

        # The thread that tunes a pipeline sleeps for up to a minute, and the
        # iterator cannot be deleted before it wakes: `fit` waited 15 s at the
        # end of a training of 30 s.
        options = tf.data.Options()
        options.autotune.enabled = False
        # Not `from_generator`: on Python 3.11 it makes TensorFlow return the
        # memory of each matrix product to the system, for the rest of the
        # process. On CPUs a step then takes up to 7 % longer.
        steps = tf.data.Dataset.range(len(self)).map(arguments)
        return steps.prefetch(2).with_options(options)


class EvaluationBatches(StepArguments):
    """Every row once, the longest first.

    Args:
      features: The rows.
      batch_size: The batch size for rows of `max_seq_length`.
      arguments: Makes the arguments of a step of Keras's `evaluate`.

    Attributes:
      rows: The numbers of the rows of each batch.

    Raises:
      InputError: If `batch_size` is not a positive integer.
    """

    def __init__(
        self,
        features: Features,
        batch_size: int,
        arguments: Arguments | None = None,
    ):
        super().__init__()
        positive_integer("batch_size", batch_size)
        self._features = features
        self._arguments = arguments
        are_few = len(features) < batch_size
        self._padded = padding(are_few).padded(features)
        plan = evaluation_plan(
            self._padded,
            max_length=features.max_seq_length,
            batch_size=batch_size,
            num_shards=1,
        )
        self.rows = [batch[batch >= 0] for batch in plan.batches]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple:
        return self._arguments(self.batch(self.rows[index]))

    def batch(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the features of some rows."""
        return _gather(self._features, rows, self._padded)


class TrainingBatches(StepArguments):
    """Batches of texts in the order of the scripts.

    The parts of the data are read one after the other, and tokenized when they
    are needed. Each part has every row once; its last batch may be smaller,
    while the scripts fill it with rows of the next epoch.

    Args:
      parts: Starts reading; returns the features of each part.
      num_steps: The number of batches of an epoch.
      batch_size: The number of rows of a batch.
      seed: Determines the order of the rows.
      arguments: Makes the arguments of a step.
      is_endless: Whether an epoch continues where the last one ended, and the
        data repeat. Otherwise each epoch is all the data.
    """

    def __init__(
        self,
        parts: Callable[[], Iterable[Features]],
        num_steps: int,
        batch_size: int,
        seed: int,
        arguments: Arguments,
        is_endless: bool = False,
    ):
        super().__init__()
        self.parts = parts
        self.epoch = 0
        self._num_steps = num_steps
        self._batch_size = batch_size
        self._seed = seed
        self._arguments = arguments
        self._is_endless = is_endless
        self._example: tuple | None = None
        self._steps: Iterator[tuple] | None = None

    def __len__(self) -> int:
        return self._num_steps

    def __getitem__(self, index: int) -> tuple:
        """Returns the next step: Keras asks for steps in order."""
        is_start = index == 0 and not self._is_endless
        if self._steps is None or is_start:
            self._steps = self._read(self.epoch)
        return next(self._steps)

    def example(self) -> tuple:
        if self._example is None:
            self._example = next(self._read(0))
        return self._example

    def _read(self, epoch: int) -> Iterator[tuple]:
        steps = itertools.count(epoch * self._num_steps)
        passes = itertools.count(epoch) if self._is_endless else [epoch]
        for number in passes:
            for part, features in enumerate(self.parts()):
                padded = padding().padded(features)
                for rows in epoch_plan(
                    features.lengths,
                    batch_size=min(self._batch_size, len(features)),
                    seed=self._seed + part,
                    epoch=number,
                ):
                    batch = _gather(features, rows, padded)
                    batch["step"] = np.array(next(steps))
                    yield self._arguments(batch)


def _gather(
    features: Features, rows: np.ndarray, padded: np.ndarray
) -> dict[str, np.ndarray]:
    """Returns some rows at their padded length, as int32 or float32."""
    length = padded[rows].max()
    return in_32_bits(
        {
            name: values[rows][..., :length]
            if name in features.sequences
            else values[rows]
            for name, values in features.arrays.items()
        }
    )


def in_32_bits(batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns arrays as int32 or float32, which models expect."""
    return {
        name: x.astype(np.int32 if x.dtype.kind in "iub" else np.float32)
        for name, x in batch.items()
    }


def times_rows(values: Any, rows: Any) -> Any:
    """Returns values [b, ...] multiplied by the weight of each row, [b]."""
    others = range(1, len(values.shape))
    return values * ops.expand_dims(rows, [*others])


def to_mean_1(weights: Any) -> Any:
    """Returns the factor that scales weights to a mean of 1.

    In the scripts the loss of a batch is the sum of its weighted losses,
    divided by the number of its elements. Keras takes means over the rows of
    each replica. This factor, from the weights of all replicas, makes the
    losses equal.
    """
    total = ops.sum(weights)
    size = ops.cast(ops.size(weights), total.dtype)
    if num_replicas() > 1:
        import tensorflow as tf

        # None outside of replicas, where a batch is whole.
        context = tf.distribute.get_replica_context()
        if context is not None:
            total, size = context.all_reduce("SUM", [total, size])
    return size / ops.where(total == 0, size, total)


def require_count(name: str, value: Any) -> None:
    """Raises InputError unless `value` is an integer of at least 0."""
    if not isinstance(value, numbers.Integral) or value < 0:
        raise wrong_value(name, "an integer of at least 0", value)


def num_replicas() -> int:
    """Returns the number of devices that the current scope computes on."""
    if keras.backend.backend() != "tensorflow":
        return 1
    import tensorflow as tf

    return tf.distribute.get_strategy().num_replicas_in_sync


def scope_of(model: keras.Model) -> Any:
    """Returns the scope of the `tf.distribute.Strategy` of a model."""
    if keras.backend.backend() != "tensorflow":
        return contextlib.nullcontext()
    return model.distribute_strategy.scope()


def build_state(model: Any, example: tuple) -> None:
    """Makes the variables of the optimizer and of the metrics.

    Args:
      model: The text model.
      example: The arguments of a step.
    """
    variables = model.trainable_variables
    with scope_of(model):
        known = inner_optimizer(model)._trainable_variables
        if [*map(id, known)] != [*map(id, variables)]:
            # Layers were frozen or unfrozen.
            renew_optimizer(model)
        model.optimizer.build(variables)
        if keras.backend.backend() == "tensorflow":
            # Without the variables of metrics, step 1 is traced twice.
            model._symbolic_build(data_batch=example)


def inner_optimizer(model: Any) -> Any:
    return getattr(model.optimizer, "inner_optimizer", model.optimizer)


def weighted_features(model: Any, data: Part) -> Features:
    """Returns `_features` with the `sample_weight` of each row, if any."""
    features = model._features(data.x, data.y)
    if data.weights is None:
        return features
    count = len(features) if data.y is None else len(data.y)
    # A text may have several rows.
    texts = features.arrays.get("example_index", np.arange(count))
    weights = sample_weights(data.weights, count)[texts]
    arrays = features.arrays | {"sample_weight": weights}
    return dataclasses.replace(features, arrays=arrays)


def targets_of(loss: Any, labels: np.ndarray, num_classes: int) -> np.ndarray:
    """Returns labels as a loss compares them with logits [..., C].

    Sparse losses of Keras compare class numbers. Its other losses compare rows,
    and would broadcast numbers against logits without an error. Custom losses
    get labels as they are given.

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
