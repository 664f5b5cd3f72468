"""The batches of `batching.py` as tf.data pipelines, and files in memory."""

import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf.data import pipeline
from bert_tf.data.batching import (
    Features,
    Padding,
    evaluation_plan,
    in_memory,
    shares,
    training_plan,
)
from bert_tf.data.schema import Schema

# Examples parsed at once: tf.data is fastest with large batches.
_EXAMPLES_PER_PARSE = 2048

_Batch = dict[str, tf.Tensor]


def load(path: str, schema: Schema, vocab_size: int | None = None) -> Features:
    """Reads a whole file of records.

    Args:
      path: A TFRecord file, compressed if its name ends in `.gz`.
      schema: The features to read, `input_mask` among them.
      vocab_size: If given, token ids outside the vocabulary are an error.

    Raises:
      InputError: The file is unreadable or damaged, or does not fit the schema
        or the vocabulary.
    """
    batches = pipeline.whole_file(
        path, schema, batch_size=_EXAMPLES_PER_PARSE, vocab_size=vocab_size
    )
    with pipeline.input_errors([path]):
        return in_memory(batches.as_numpy_iterator(), schema)


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
    is_filled: bool = True,
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
      is_filled: See `batching.evaluation_plan`.

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
        is_filled=is_filled,
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
        """Returns the rows [b], zeros for -1, truncated to a length."""
        return {
            name: self._gather(name, values, rows, length)
            for name, values in self._tensors.items()
        }

    def _gather(self, name, values, rows, length) -> tf.Tensor:
        gathered = tf.gather(values, tf.maximum(rows, 0))
        if name in self._sequences:
            gathered = gathered[..., :length]
        if gathered.dtype.is_integer:
            gathered = tf.cast(gathered, tf.int32)
        exists = tf.reshape(rows >= 0, [-1] + [1] * (len(gathered.shape) - 1))
        return tf.where(exists, gathered, tf.zeros([], gathered.dtype))
