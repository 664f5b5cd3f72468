"""Batches of a data set in memory for Keras's `fit`, on any backend."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np

from bert_tf.config import positive_integer
from bert_tf.data.batching import (
    Features,
    Padding,
    evaluation_plan,
    training_plan,
)

# From some rows to the arguments of a step: (x, y) or (x, y, sample_weight).
Arguments = Callable[[Mapping[str, np.ndarray]], tuple]


def padding() -> Padding:
    """Returns how batches are padded.

    XLA compiles a model once for each length, so with XLA there are fewer.
    """
    return Padding(multiple=8 if runs_without_xla() else 64)


def runs_without_xla() -> bool:
    """Returns whether models run op by op: on CPUs, except with JAX.

    There, TensorFlow's matrix products are faster than XLA's.
    """
    backend = keras.backend.backend()
    if backend != "tensorflow":
        return backend == "torch"
    import tensorflow as tf

    return not (
        tf.config.list_logical_devices("GPU")
        or tf.config.list_logical_devices("TPU")
    )


class Batches(keras.utils.PyDataset):
    """Batches of similar length, as lists of row numbers.

    Args:
      features: The data set.
      rows: The rows of each batch of an epoch; for training, of all epochs,
        which follow each other.
      per_epoch: The number of batches of an epoch.
      arguments: Makes the arguments of a step.

    Attributes:
      rows: The argument.
    """

    def __init__(
        self,
        features: Features,
        rows: list[np.ndarray],
        per_epoch: int,
        arguments: Arguments,
    ):
        super().__init__()
        self._features = features
        self.rows = rows
        self._per_epoch = per_epoch
        self._arguments = arguments
        self._first = 0
        self._padded = padding().padded(features)

    def __len__(self) -> int:
        return self._per_epoch

    def __getitem__(self, index: int) -> tuple:
        return self._arguments(self.gather(self.rows[self._first + index]))

    def on_epoch_end(self) -> None:
        following = self._first + self._per_epoch
        self._first = following % len(self.rows)

    def gather(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Returns some rows, cut to their longest: int32 or float32."""
        length = self._padded[rows].max()
        batch = {}
        for name, values in self._features.arrays.items():
            some = values[rows]
            if name in self._features.sequences:
                some = some[..., :length]
            is_whole = np.issubdtype(some.dtype, np.integer)
            batch[name] = some.astype(np.int32 if is_whole else np.float32)
        return batch

    def for_backend(self) -> Any:
        """Returns a data set whose batches Keras allows to have any length.

        On TensorFlow, Keras would infer the shapes of all batches from the
        first two.
        """
        if keras.backend.backend() != "tensorflow":
            return self
        import tensorflow as tf

        def stream() -> Iterator[tuple]:
            yield from map(self.__getitem__, range(len(self)))
            self.on_epoch_end()

        def signature(values: np.ndarray) -> tf.TensorSpec:
            return tf.TensorSpec([None] * values.ndim, values.dtype)

        dataset = tf.data.Dataset.from_generator(
            stream,
            output_signature=tf.nest.map_structure(signature, self[0]),
        )
        counted = tf.data.experimental.assert_cardinality(len(self))
        return dataset.apply(counted).prefetch(tf.data.AUTOTUNE)


def for_training(
    features: Features,
    batch_size: int,
    epochs: int,
    seed: int,
    arguments: Arguments,
) -> Batches:
    """Returns full batches in random order.

    The last batch of an epoch is filled with examples of the next one.

    Raises:
      InputError: If `batch_size` or `epochs` is not a positive integer.
    """
    positive_integer("epochs", epochs)
    size = min(positive_integer("batch_size", batch_size), len(features))
    per_epoch = -(-len(features) // size)
    plan = training_plan(
        features.lengths,
        num_batches=epochs * per_epoch,
        batch_size=size,
        seed=seed,
    )
    return Batches(features, list(plan), per_epoch, arguments)


def for_evaluation(
    features: Features, batch_size: int, arguments: Arguments
) -> Batches:
    """Returns every row once, the longest first.

    Raises:
      InputError: If `batch_size` is not a positive integer.
    """
    positive_integer("batch_size", batch_size)
    plan = evaluation_plan(
        padding().padded(features),
        max_length=features.max_seq_length,
        batch_size=batch_size,
        num_shards=1,
    )
    rows = [batch[batch >= 0] for batch in plan.batches]
    return Batches(features, rows, len(rows), arguments)
