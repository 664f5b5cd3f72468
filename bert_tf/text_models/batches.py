"""Batches of texts for Keras's `fit`, on any backend."""

import itertools
import numbers
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from bert_tf.modeling.kernels import USUAL_LENGTH, runs_op_by_op

# Features that batches have and tasks do not use.
ONLY_IN_BATCHES = ("step", "example_index", "sample_weight")

# Turns some rows into the arguments of a step: (x, y, sample_weight).
Arguments = Callable[[Mapping[str, np.ndarray]], tuple]


def padding(are_few: bool = False) -> Padding:
    """Returns how batches are padded.

    XLA compiles a model once for each length, so with XLA there are fewer
    lengths. oneDNN prepares programs for each length, 2.5 MB for MiniLM, which
    a few rows do not repay.
    """
    if not runs_op_by_op():
        return Padding(multiple=64)
    return Padding(multiple=8 if are_few else 1)


class StepArguments(keras.utils.PyDataset):
    """The arguments of the steps of an epoch.

    Attributes:
      usual_length: The usual length of a batch; see `kernels.compiling`.
    """

    usual_length = USUAL_LENGTH

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch, counted from 0."""

    def example(self) -> tuple:
        """Returns the arguments of a step without using them up."""
        return self[0]

    def for_backend(self) -> Any:
        """Returns a data set whose batches Keras allows to have any length.

        On TensorFlow, Keras would infer the shapes of all batches from the
        first two.
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


class Batches(StepArguments):
    """Batches of similar length, as lists of row numbers.

    Args:
      features: The data set.
      rows: The rows of each batch of an epoch; for training, of all epochs,
        which follow each other.
      per_epoch: The number of batches of an epoch.
      arguments: Makes the arguments of a step.
      padded: The padded length of each row of the data set, integers [n].

    Attributes:
      features, rows: The arguments.
    """

    def __init__(
        self,
        features: Features,
        rows: list[np.ndarray],
        per_epoch: int,
        arguments: Arguments,
        padded: np.ndarray,
    ):
        super().__init__()
        self.features = features
        self.rows = rows
        self._per_epoch = per_epoch
        self._arguments = arguments
        self._first = 0
        self._padded = padded
        self.usual_length = round(features.lengths.mean())

    def __len__(self) -> int:
        return self._per_epoch

    def __getitem__(self, index: int) -> tuple:
        step = self._first + index
        batch = self.gather(self.rows[step])
        return self._arguments({**batch, "step": np.array(step)})

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch, counted from 0."""
        self._first = epoch * self._per_epoch

    def gather(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Returns some rows at their padded length, as int32 or float32."""
        length = self._padded[rows].max()
        batch = {}
        for name, values in self.features.arrays.items():
            some = values[rows]
            if name in self.features.sequences:
                some = some[..., :length]
            batch[name] = some
        return in_32_bits(batch)


def in_32_bits(batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns arrays as int32 or float32, which models expect."""
    return {
        name: x.astype(np.int32 if x.dtype.kind in "iub" else np.float32)
        for name, x in batch.items()
    }


class Stream(StepArguments):
    """Batches of texts that are read and tokenized when they are needed.

    Each part of the data has the batches of `for_training`. The parts are read
    one after the other.

    Args:
      parts: Starts to read: returns the features of each part.
      num_steps: The number of batches of an epoch.
      is_endless: Whether an epoch continues where the last one ended, and the
        data are read again at their end. Otherwise each epoch is all the data.
      batch_size: The number of rows of a batch.
      seed: Determines the order of the rows.
      arguments: Makes the arguments of a step.
    """

    def __init__(
        self,
        parts: Callable[[], Iterator[Features]],
        num_steps: int,
        is_endless: bool,
        batch_size: int,
        seed: int,
        arguments: Arguments,
    ):
        super().__init__()
        self.parts = parts
        self._num_steps = num_steps
        self._is_endless = is_endless
        self._batch_size = batch_size
        self._seed = seed
        self._arguments = arguments
        self._epoch = 0
        self._example: tuple | None = None
        self._steps: Iterator[tuple] | None = None

    def __len__(self) -> int:
        return self._num_steps

    def __getitem__(self, index: int) -> tuple:
        """Returns the next step: Keras asks for steps in order."""
        is_start = index == 0 and not self._is_endless
        if self._steps is None or is_start:
            self._steps = self._read(self._epoch)
        return next(self._steps)

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def example(self) -> tuple:
        if self._example is None:
            self._example = next(self._read(0))
        return self._example

    def _read(self, epoch: int) -> Iterator[tuple]:
        steps = itertools.count(epoch * self._num_steps)
        passes = itertools.count(epoch) if self._is_endless else [epoch]
        for number in passes:
            for part, features in enumerate(self.parts()):
                batches = for_training(
                    features,
                    self._batch_size,
                    1,
                    # Distinct for 1,000 parts; repeated seeds do little harm.
                    self._seed + 1000 * number + part,
                    self._arguments,
                )
                for rows in batches.rows:
                    step = np.array(next(steps))
                    batch = batches.gather(rows)
                    yield self._arguments({**batch, "step": step})


def stacked(rows: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Returns the arrays of rows, [n, ...] by name; padded with zeros."""
    arrays = {}
    for name in rows[0]:
        values = [np.asarray(row[name]) for row in rows]
        shape = np.max([x.shape for x in values], axis=0).astype(int)
        arrays[name] = np.zeros((len(rows), *shape), values[0].dtype)
        for number, x in enumerate(values):
            arrays[name][number, *map(slice, x.shape)] = x
    return arrays


def times_rows(values: Any, rows: Any) -> Any:
    """Returns values [b, ...] multiplied by the weight of each row, [b]."""
    others = range(1, len(values.shape))
    return values * ops.expand_dims(rows, [*others])


def to_mean_1(weights: Any) -> Any:
    """Returns the factor that scales weights to a mean of 1.

    In the scripts the loss of a batch is the sum of its weighted losses,
    divided by the number of its elements. Keras takes means over the rows of
    each replica; this factor makes the two losses equal. The mean is over the
    weights of all replicas.
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


def for_training(
    features: Features,
    batch_size: int,
    epochs: int,
    seed: int,
    arguments: Arguments,
) -> Batches:
    """Returns the batches of each epoch, in the order of the scripts.

    Every epoch has every row once. Its last batch may be smaller; the scripts
    fill it with rows of the next epoch.
    """
    size = min(batch_size, len(features))
    batches = [
        rows
        for epoch in range(epochs)
        for rows in epoch_plan(
            features.lengths, batch_size=size, seed=seed, epoch=epoch
        )
    ]
    per_epoch = len(batches) // epochs
    padded = padding().padded(features)
    return Batches(features, batches, per_epoch, arguments, padded)


def require_count(name: str, value: Any) -> None:
    """Raises InputError unless `value` is an integer of at least 0."""
    if not isinstance(value, numbers.Integral) or value < 0:
        raise wrong_value(name, "an integer of at least 0", value)


def for_evaluation(
    features: Features, batch_size: int, arguments: Arguments
) -> Batches:
    """Returns every row once, the longest first.

    Raises:
      InputError: If `batch_size` is not a positive integer.
    """
    positive_integer("batch_size", batch_size)
    padded = padding(are_few=len(features) < batch_size).padded(features)
    plan = evaluation_plan(
        padded,
        max_length=features.max_seq_length,
        batch_size=batch_size,
        num_shards=1,
    )
    rows = [batch[batch >= 0] for batch in plan.batches]
    return Batches(features, rows, len(rows), arguments, padded)


def num_replicas() -> int:
    """Returns the number of devices that the current scope computes on."""
    if keras.backend.backend() != "tensorflow":
        return 1
    import tensorflow as tf

    return tf.distribute.get_strategy().num_replicas_in_sync
