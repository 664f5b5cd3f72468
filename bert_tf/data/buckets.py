"""A data set in memory, in batches of examples of about one length.

For sets that are read as a whole, as those of fine-tuning are: 6 bytes a place,
so 300 MB for the 393,000 examples of MNLI at 128 places. Which examples make a
batch is planned ahead (`batching`); here the plan's rows are gathered.
"""

import dataclasses
from collections.abc import Iterable, Mapping

import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf.data import pipeline
from bert_tf.data.schema import Schema
from bert_tf.errors import InputError

# Examples parsed at once: tf.data is fastest with large batches.
_EXAMPLES_PER_PARSE = 2048

_Batch = dict[str, tf.Tensor]


@dataclasses.dataclass(frozen=True)
class Features:
    """All examples of a file.

    Attributes:
      arrays: By the feature's name [n, *shape]; float32, or int8 where that
        holds all values, or int32.
      lengths: Places of each example up to the last one that is no padding,
        int32 [n]; of the longest choice for multiple choice.
      max_seq_length: Places that the records have.
      sequences: The features whose last axis is of that length.
    """

    arrays: dict[str, np.ndarray]
    lengths: np.ndarray
    max_seq_length: int
    sequences: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.lengths)


@dataclasses.dataclass(frozen=True)
class Padding:
    """How long the sequences of a batch are.

    Attributes:
      multiple: A batch is padded to the length of its longest example, rounded
        up to this, so that there are few shapes.
      static: Whether all are padded to `max_seq_length` instead, in batches of
        one size: for a TPU, whose program has fixed shapes. It is how the
        original does it.

    Raises:
      InputError: `multiple` is not above 0.
    """

    multiple: int = 8
    static: bool = False

    def __post_init__(self) -> None:
        if self.multiple < 1:
            raise InputError(
                "Expected lengths to be rounded up to a multiple of 1 or "
                f"more. Received: {self.multiple}"
            )

    def padded(self, features: Features) -> np.ndarray:
        """The length that each example asks of its batch, int32 [n]."""
        if self.static:
            return np.full_like(features.lengths, features.max_seq_length)
        # No batch is without any place, even if all its examples are.
        multiples = -(-np.maximum(features.lengths, 1) // self.multiple)
        return np.minimum(multiples * self.multiple, features.max_seq_length)


def load(path: str, schema: Schema, vocab_size: int | None = None) -> Features:
    """Reads a whole file of records.

    Args:
      path: A TFRecord file, compressed where the name ends in `.gz`.
      schema: Its features, `input_mask` among them; others are ignored.
      vocab_size: If given, token ids from there on are an error.

    Raises:
      InputError: The file cannot be read, is damaged, or does not fit the
        schema or the vocabulary.
    """
    batches = pipeline.whole_file(
        path, schema, batch_size=_EXAMPLES_PER_PARSE, vocab_size=vocab_size
    )
    with pipeline.input_errors([path]):
        return in_memory(batches.as_numpy_iterator(), schema)


def in_memory(
    batches: Iterable[Mapping[str, np.ndarray]], schema: Schema
) -> Features:
    """Joins batches of examples that are padded to the schema's shapes.

    Args:
      batches: Dicts from the name of a feature to an array [b, *shape].
      schema: Which features they are, `input_mask` among them.

    Returns:
      All examples, in their order.
    """
    parts: dict[str, list[np.ndarray]] = {f.name: [] for f in schema}
    lengths = []
    for batch in batches:
        lengths.append(_lengths(batch["input_mask"]))
        for name, values in batch.items():
            parts[name].append(_narrow(values))
    sequences = [feature for feature in schema if feature.is_sequence]
    return Features(
        # One after the other, so that only one is there twice. Parts of
        # several types become the widest.
        {name: np.concatenate(parts.pop(name)) for name in list(parts)},
        np.concatenate(lengths),
        sequences[0].shape[-1],
        tuple(feature.name for feature in sequences),
    )


def training_dataset(
    features: Features,
    *,
    padding: Padding,
    global_batch_size: int,
    num_batches: int,
    seed: int,
    batch_size: int,
    num_shards: int = 1,
    shard: int = 0,
    start_example: int = 0,
) -> tf.data.Dataset:
    """A shuffled stream of batches that can be entered anywhere.

    The examples of the whole stream are those of complete epochs and a part of
    one. Examples of about one length come together, and which ones is the same
    for every padding.

    Args:
      features: The examples.
      padding: How long a batch is.
      global_batch_size: Examples of a batch over all shards and replicas.
      num_batches: Global batches of the whole run; after the last one the
        stream starts over.
      seed: Not negative; equal seeds give equal streams.
      batch_size: Examples of one replica's batch.
      num_shards: The number of readers that share the stream.
      shard: This reader's number, from 0.
      start_example: How many examples of the stream have been used so far.

    Returns:
      Batches, one replica's after the other's: a dict of tensors
      [batch_size, *shape], int32 or float32. All that belong to one global
      batch have the same length, which is only known when it comes, unless
      the padding is static.
    """
    # Not by the padded lengths: what is learned shall not depend on those.
    plan = pipeline.training_plan(
        features.lengths,
        num_batches=num_batches,
        batch_size=global_batch_size,
        seed=seed,
    )
    plan_lengths = padding.padded(features)[plan].max(axis=1)
    _log_padding(features, plan, plan_lengths)
    rows = pipeline.shares(plan, num_shards, batch_size)[shard]
    replicas = len(rows) // num_batches
    first = start_example // global_batch_size * replicas
    numbers = tf.data.Dataset.range(len(rows)).repeat().skip(first)
    take = _Taker(features, padding)
    with tf.device("CPU:0"):
        batch_rows = tf.constant(rows)
        batch_lengths = tf.constant(np.repeat(plan_lengths, replicas))
    return pipeline.map_ahead(
        numbers, lambda i: take(batch_rows[i], batch_lengths[i])
    )


def evaluation_dataset(
    features: Features,
    *,
    padding: Padding,
    batch_size: int,
    num_shards: int = 1,
    shard: int = 0,
) -> tf.data.Dataset:
    """Every example once, the longest first; with static padding in order.

    Args:
      features: The examples.
      padding: How long a batch is.
      batch_size: Examples of full length in a batch of this shard. As many
        times more make a batch as they are shorter, in whole numbers.
      num_shards: The number of readers that share the examples.
      shard: This reader's number, from 0. All give equally many batches of
        the same shapes.

    Returns:
      Batches: a dict of tensors [b, *shape], int32 or float32, with
      `example_index` int32 [b]: the row of each example, -1 where zeros fill
      up the last batch. `is_real_example` is 0 there, and where the file says
      so.
    """
    plan = pipeline.evaluation_plan(
        padding.padded(features),
        max_length=features.max_seq_length,
        batch_size=batch_size,
        num_shards=num_shards,
    )
    take = _Taker(features, padding)
    with tf.device("CPU:0"):
        batch_rows = _stack([b[shard] for b in plan.batches], padding.static)
        batch_lengths = tf.constant(plan.lengths)
    return pipeline.map_ahead(
        tf.data.Dataset.range(len(plan.batches)),
        lambda i: _numbered(take, batch_rows[i], batch_lengths[i]),
    )


class _Taker:
    """Gathers rows of a data set within a graph.

    Args:
      features: The examples, copied to where tf.data works.
      padding: Whether shapes are static.
    """

    def __init__(self, features: Features, padding: Padding) -> None:
        self._sequences = () if padding.static else features.sequences
        # Elsewhere a GPU would hold them.
        with tf.device("CPU:0"):
            self._tensors = {
                name: tf.constant(values)
                for name, values in features.arrays.items()
            }

    def __call__(self, rows: tf.Tensor, length: tf.Tensor) -> _Batch:
        """The examples `rows` [B], zeros for -1, cut to `length` places."""
        return {
            name: self._take(name, values, rows, length)
            for name, values in self._tensors.items()
        }

    def _take(self, name, values, rows, length) -> tf.Tensor:
        taken = tf.gather(values, tf.maximum(rows, 0))
        if name in self._sequences:
            taken = taken[..., :length]
        if taken.dtype.is_integer:
            taken = tf.cast(taken, tf.int32)
        is_there = tf.reshape(rows >= 0, [-1] + [1] * (len(taken.shape) - 1))
        return tf.where(is_there, taken, tf.zeros([], taken.dtype))


def _numbered(take: _Taker, rows: tf.Tensor, length: tf.Tensor) -> _Batch:
    """A batch with the two features of evaluation."""
    is_real = tf.cast(rows >= 0, tf.int32)
    return {
        "is_real_example": is_real,
        **take(rows, length),
        "example_index": rows,
    }


def _stack(rows: list[np.ndarray], is_uniform: bool):
    """The rows of all batches [batches, b], ragged where not uniform."""
    if is_uniform:
        return tf.constant(np.stack(rows))
    return tf.RaggedTensor.from_row_lengths(
        np.concatenate(rows), list(map(len, rows))
    )


def _lengths(mask: np.ndarray) -> np.ndarray:
    """Places up to the last one that is not 0, int32 [n]: of [n, ..., L]."""
    places = np.arange(1, mask.shape[-1] + 1, dtype=np.int32)
    return (mask.astype(bool) * places).reshape(len(mask), -1).max(axis=1)


def _narrow(values: np.ndarray) -> np.ndarray:
    """Integers in one byte, where they fit."""
    if values.dtype.kind != "i":
        return values
    limits = np.iinfo(np.int8)
    fits = limits.min <= values.min() and values.max() <= limits.max
    return values.astype(np.int8) if fits else values


def _log_padding(
    features: Features, plan: np.ndarray, plan_lengths: np.ndarray
) -> None:
    """Tells how much of the batches is padding, and how much it would be."""
    mean = features.lengths[plan].mean()
    logging.info(
        "Padding is %.0f %% of the training batches, and would be %.0f %% if "
        "all were %d long",
        100 * (1 - mean / plan_lengths.mean()),
        100 * (1 - mean / features.max_seq_length),
        features.max_seq_length,
    )
