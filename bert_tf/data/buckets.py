"""Batches of examples of similar length, from a data set in memory.

Fine-tuning data is small enough to be read as a whole: 6 bytes per token, or
300 MB for the 393,000 examples of MNLI at a sequence length of 128. A plan
decides which rows form a batch; tf.data gathers the rows.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf.data import pipeline
from bert_tf.data.randomness import permute
from bert_tf.data.schema import Schema
from bert_tf.errors import wrong_value

# Examples parsed at once: tf.data is fastest with large batches.
_EXAMPLES_PER_PARSE = 2048

# The training stream is sorted by length within windows of this many batches.
# Longer windows have less padding; shorter ones mix examples better. With 100
# batches of 32, padding is within 3 % of a sorted epoch. In a short epoch a
# window is a quarter of the epoch, so that batches differ between epochs; for
# MRPC, padding is still within 3 %.
_MOST_BATCHES_SORTED = 100
_WINDOWS_PER_EPOCH = 4

# The subkeys of a seed, one for each use of random numbers.
_EPOCH, _WINDOW = range(2)

_Batch = dict[str, tf.Tensor]


@dataclasses.dataclass(frozen=True)
class Features:
    """All examples of a file.

    Attributes:
      arrays: From the name of a feature to an array [n, *shape]: float32, or
        int8 if all values fit, otherwise int32.
      lengths: The number of tokens of each example up to the last one that is
        not padding, int32 [n]; of the longest choice for multiple choice.
      max_seq_length: The sequence length of the records.
      sequences: The features whose last axis has that length.
    """

    arrays: dict[str, np.ndarray]
    lengths: np.ndarray
    max_seq_length: int
    sequences: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.lengths)


@dataclasses.dataclass(frozen=True)
class Padding:
    """How batches are padded.

    Attributes:
      multiple: A batch is padded to the length of its longest example, rounded
        up to a multiple of this, which limits the number of shapes.
      static: Whether all batches are padded to `max_seq_length` instead, as in
        the original: a program for a TPU has fixed shapes.

    Raises:
      InputError: `multiple` is less than 1.
    """

    multiple: int = 8
    static: bool = False

    def __post_init__(self) -> None:
        if self.multiple < 1:
            raise wrong_value(
                "The padding multiple", "at least 1", self.multiple
            )

    def padded(self, features: Features) -> np.ndarray:
        """Returns the padded length of each example, int32 [n]."""
        if self.static:
            return np.full_like(features.lengths, features.max_seq_length)
        # The length is at least 1, even if all examples are empty.
        multiples = -(-np.maximum(features.lengths, 1) // self.multiple)
        return np.minimum(multiples * self.multiple, features.max_seq_length)


def load(path: str, schema: Schema, vocab_size: int | None = None) -> Features:
    """Reads a whole file of records.

    Args:
      path: A TFRecord file, compressed if its name ends in `.gz`.
      schema: The features to read, `input_mask` among them.
      vocab_size: If given, larger token ids are an error.

    Raises:
      InputError: The file is unreadable or damaged, or does not fit the schema
        or the vocabulary.
    """
    batches = pipeline.whole_file(
        path, schema, batch_size=_EXAMPLES_PER_PARSE, vocab_size=vocab_size
    )
    with pipeline.input_errors([path]):
        return in_memory(batches.as_numpy_iterator(), schema)


def in_memory(
    batches: Iterable[Mapping[str, np.ndarray]], schema: Schema
) -> Features:
    """Joins batches of examples that are padded to the shapes of the schema.

    Args:
      batches: Dicts from the name of a feature to an array [b, *shape].
      schema: The features, `input_mask` among them.
    """
    parts: dict[str, list[np.ndarray]] = {f.name: [] for f in schema}
    lengths = []
    for batch in batches:
        mask = batch["input_mask"].astype(bool)  # [b, ..., L]
        ends = mask * np.arange(1, mask.shape[-1] + 1, dtype=np.int32)
        lengths.append(ends.reshape(len(mask), -1).max(axis=1))
        for name, values in batch.items():
            parts[name].append(_narrow(values))
    sequences = [feature for feature in schema if feature.is_sequence]
    return Features(
        # One feature at a time, so that only one is in memory twice. Parts of
        # several types become the widest.
        {name: np.concatenate(parts.pop(name)) for name in list(parts)},
        np.concatenate(lengths),
        sequences[0].shape[-1],
        tuple(feature.name for feature in sequences),
    )


def _narrow(values: np.ndarray) -> np.ndarray:
    """Returns integers as int8 if they fit."""
    if values.dtype.kind != "i":
        return values
    limits = np.iinfo(np.int8)
    fits = limits.min <= values.min() and values.max() <= limits.max
    return values.astype(np.int8) if fits else values


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
    """Returns a shuffled stream of batches that can start anywhere.

    A batch holds examples of similar length; which ones does not depend on the
    padding.

    Args:
      features: The examples.
      padding: How batches are padded.
      global_batch_size: Examples of a batch over all shards and replicas.
      num_batches: Global batches of the whole run. After them the stream
        repeats.
      seed: Not negative; equal seeds give equal streams.
      batch_size: Examples of one replica's batch.
      num_shards: The number of readers that share the stream.
      shard: This reader's number, from 0.
      start_example: The number of examples of the stream used so far.

    Returns:
      Batches for one replica after the other, each a dict of tensors
      [batch_size, *shape], int32 or float32. All batches of one global batch
      have the same length, which is static only if the padding is.
    """
    # Sorted by true lengths: training must not depend on the padding.
    plan = training_plan(
        features.lengths,
        num_batches=num_batches,
        batch_size=global_batch_size,
        seed=seed,
    )
    plan_lengths = padding.padded(features)[plan].max(axis=1)
    mean = features.lengths[plan].mean()
    logging.info(
        "Padding is %.0f %% of the training batches; it would be %.0f %% if "
        "all batches had length %d",
        100 * (1 - mean / plan_lengths.mean()),
        100 * (1 - mean / features.max_seq_length),
        features.max_seq_length,
    )
    rows = shares(plan, num_shards, batch_size)[shard]
    replicas = len(rows) // num_batches
    first = start_example // global_batch_size * replicas
    numbers = tf.data.Dataset.range(len(rows)).repeat().skip(first)
    gather = _Gatherer(features, padding)
    with tf.device("CPU:0"):
        batch_rows = tf.constant(rows)
        batch_lengths = tf.constant(np.repeat(plan_lengths, replicas))
    return pipeline.map_ahead(
        numbers, lambda i: gather(batch_rows[i], batch_lengths[i])
    )


def evaluation_dataset(
    features: Features,
    *,
    padding: Padding,
    batch_size: int,
    num_shards: int = 1,
    shard: int = 0,
) -> tf.data.Dataset:
    """Returns every example once, in the order of the file or longest first.

    The order of the file is kept if the padding is static.

    Args:
      features: The examples.
      padding: How batches are padded.
      batch_size: Examples of full length in a batch of this shard. A batch of
        shorter examples holds a multiple of this number, with at most as many
        tokens.
      num_shards: The number of readers that share the examples.
      shard: This reader's number, from 0. All readers get equally many batches
        of the same shapes.

    Returns:
      Batches: a dict of tensors [b, *shape], int32 or float32, with
      `example_index` int32 [b]: the row of each example, -1 where zeros fill
      the last batch. `is_real_example` is 0 for these zeros, and for examples
      that the file marks as padding.
    """
    plan = evaluation_plan(
        padding.padded(features),
        max_length=features.max_seq_length,
        batch_size=batch_size,
        num_shards=num_shards,
    )
    gather = _Gatherer(features, padding)
    rows = [batch[shard] for batch in plan.batches]
    with tf.device("CPU:0"):
        if padding.static:
            batch_rows = tf.constant(np.stack(rows))
        else:
            batch_rows = tf.RaggedTensor.from_row_lengths(
                np.concatenate(rows), list(map(len, rows))
            )
        batch_lengths = tf.constant(plan.lengths)

    def numbered(i: tf.Tensor) -> _Batch:
        return {
            "is_real_example": tf.cast(batch_rows[i] >= 0, tf.int32),
            **gather(batch_rows[i], batch_lengths[i]),
            "example_index": batch_rows[i],
        }

    return pipeline.map_ahead(
        tf.data.Dataset.range(len(plan.batches)), numbered
    )


class _Gatherer:
    """Gathers rows of a data set inside a graph."""

    def __init__(self, features: Features, padding: Padding) -> None:
        self._sequences = () if padding.static else features.sequences
        with tf.device("CPU:0"):  # Otherwise a GPU would hold the data set.
            self._tensors = {
                name: tf.constant(values)
                for name, values in features.arrays.items()
            }

    def __call__(self, rows: tf.Tensor, length: tf.Tensor) -> _Batch:
        """Returns the rows [b], zeros for -1, cut to a length."""
        return {
            name: self._gather(name, values, rows, length)
            for name, values in self._tensors.items()
        }

    def _gather(self, name, values, rows, length) -> tf.Tensor:
        found = tf.gather(values, tf.maximum(rows, 0))
        if name in self._sequences:
            found = found[..., :length]
        if found.dtype.is_integer:
            found = tf.cast(found, tf.int32)
        exists = tf.reshape(rows >= 0, [-1] + [1] * (len(found.shape) - 1))
        return tf.where(exists, found, tf.zeros([], found.dtype))


# Plans: which rows form a batch, and in what order.


class EvaluationPlan(NamedTuple):
    """Every row once, in batches.

    Attributes:
      batches: The rows of each batch, int32 [shards, rows of a shard]; -1
        fills the last batch.
      lengths: The length that each batch is padded to, int32 [batches].
    """

    batches: list[np.ndarray]
    lengths: np.ndarray


def training_plan(
    lengths: np.ndarray, *, num_batches: int, batch_size: int, seed: int
) -> np.ndarray:
    """Plans batches of an endless stream of epochs, each in a new order.

    Batches may straddle epochs. Sorting by length exchanges rows only within
    windows of the stream, so the plan has the same rows as without sorting.

    Args:
      lengths: The length of each row, integers [n]. Rows of one length stay in
        random order.
      num_batches: A longer plan starts like a shorter one, except for the last
        window of the shorter one.
      batch_size: The number of rows in a batch.
      seed: Not negative; equal seeds give equal plans.

    Returns:
      Row numbers, int32 [num_batches, batch_size].
    """
    rows = np.arange(len(lengths))
    num_epochs = -(-num_batches * batch_size // len(rows))
    epochs = np.empty((num_epochs, len(rows)), np.int32)
    for epoch in range(num_epochs):
        epochs[epoch] = permute(rows, len(rows), (seed, _EPOCH, epoch))
    stream = epochs.reshape(-1)[: num_batches * batch_size]
    plan = stream.reshape(num_batches, batch_size)
    quarter = len(rows) // (_WINDOWS_PER_EPOCH * batch_size)
    size = max(1, min(quarter, _MOST_BATCHES_SORTED))
    for first in range(0, num_batches, size):
        window = plan[first : first + size]
        flat = window.reshape(-1)
        order = np.argsort(lengths[flat], kind="stable")
        by_length = flat[order].reshape(window.shape)
        numbers = np.arange(len(window))
        # Batches of similar rows, in random order.
        window[:] = by_length[
            permute(numbers, len(window), (seed, _WINDOW, first))
        ]
    return plan


def evaluation_plan(
    lengths: np.ndarray, *, max_length: int, batch_size: int, num_shards: int
) -> EvaluationPlan:
    """Plans batches of rows of similar length, the longest first.

    A batch that is too large for the memory thus fails at once. Batches of
    shorter rows are larger, up to `batch_size * max_length` tokens for a
    shard. Rows of one length keep their order.

    Args:
      lengths: The padded length of each row, from 1 to `max_length`, [n].
      max_length: The longest possible length.
      batch_size: Rows of `max_length` in a shard's batch. Every other batch
        has a multiple of this.
      num_shards: The number of readers that share the rows of each batch.
    """
    order = np.argsort(-lengths, kind="stable").astype(np.int32)
    batches, batch_lengths = [], []
    start = 0
    while start < len(order):
        length = lengths[order[start]]
        size = num_shards * batch_size * (max_length // length)
        batch = np.full(size, -1, np.int32)
        rows = order[start : start + size]
        batch[: len(rows)] = rows
        # Rows go to the shards in turn.
        batches.append(batch.reshape(-1, num_shards).T)
        batch_lengths.append(length)
        start += size
    return EvaluationPlan(batches, np.array(batch_lengths, np.int32))


def shares(plan: np.ndarray, num_shards: int, batch_size: int) -> np.ndarray:
    """Distributes the rows of global batches to shards and their replicas.

    Rows go to the shards in turn, so that the rows of a sorted batch are
    equally long in all of them: with two shards, [0 1 2 3] is [0 2] and [1 3].

    Args:
      plan: Integers [batches, shards * replicas * batch_size].
      num_shards: The number of shards.
      batch_size: The number of rows in a replica's batch.

    Returns:
      Integers [shards, batches * replicas, batch_size]: the batches of the
      replicas follow each other.
    """
    by_row = plan.reshape(len(plan), batch_size, -1, num_shards)
    by_shard = by_row.transpose(3, 0, 2, 1)  # [shards, batches, replicas, B]
    return by_shard.reshape(num_shards, -1, batch_size)
