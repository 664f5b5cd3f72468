"""Plans of batches: which rows of a data set go together, and in what order.

Examples of one batch are padded to the longest of them, so batches of equally
long examples leave little to pad. Plans are arrays of row numbers and functions
of their arguments alone: any process makes the same one, and takes its share.
"""

from typing import NamedTuple

import numpy as np

from bert_tf.data.permutation import permute

# A stretch of the training stream is sorted by length. Longer ones have less
# padding, and in shorter ones chance decides more on who shares a batch. A
# hundred batches of 32 leave within 3 % of what a sorted epoch would; where an
# epoch is short, a quarter of it keeps the company changing (within 3 % for
# MRPC, too).
_MOST_BATCHES_SORTED = 100
_STRETCHES_PER_EPOCH = 4

# What random numbers are for, beside the seed.
_EPOCH, _STRETCH = range(2)


class EvaluationPlan(NamedTuple):
    """Every row once, in batches.

    Attributes:
      batches: For each batch its rows, integers [shards, rows of a shard];
        -1 where a place is left over.
      lengths: The length that each batch is padded to, integers [batches].
    """

    batches: list[np.ndarray]
    lengths: np.ndarray


def training_plan(
    lengths: np.ndarray, *, num_batches: int, batch_size: int, seed: int
) -> np.ndarray:
    """Plans batches of an endless stream of epochs, each shuffled anew.

    Batches may straddle epochs. Sorting by length exchanges rows within
    stretches of the stream, so the rows of the whole plan stay the same.

    Args:
      lengths: The length of each row, integers [n]. Rows of one length stay in
        random order.
      num_batches: Batches to plan. A longer plan starts like a shorter one,
        but for the shorter one's last stretch.
      batch_size: Rows of a batch.
      seed: Not negative; equal seeds give equal plans.

    Returns:
      Row numbers, int32 [num_batches, batch_size].
    """
    stream = _stream(len(lengths), num_batches * batch_size, seed)
    plan = stream.reshape(num_batches, batch_size)
    per_stretch = _batches_per_stretch(len(lengths), batch_size)
    for first in range(0, num_batches, per_stretch):
        stretch = plan[first : first + per_stretch]
        stretch[:] = _by_length(stretch, lengths, (seed, _STRETCH, first))
    return plan


def evaluation_plan(
    lengths: np.ndarray, *, max_length: int, batch_size: int, num_shards: int
) -> EvaluationPlan:
    """Plans batches of equally long rows, the longest first.

    Thus a batch that is too large for the memory shows at once. Shorter rows
    come in larger batches: `batch_size * max_length` places are the most that
    a shard's batch may have. Rows of one length keep their order.

    Args:
      lengths: The padded length of each row, from 1 to `max_length`, [n].
      max_length: The longest possible.
      batch_size: Rows of `max_length` in a shard's batch; those of every other
        batch are a multiple.
      num_shards: Readers that share the rows. Every batch has as many rows
        for each, and one length for all.

    Returns:
      The plan; only its last batch has places left over.
    """
    order = np.argsort(-lengths, kind="stable").astype(np.int32)
    batches, batch_lengths = [], []
    start = 0
    while start < len(order):
        length = lengths[order[start]]
        size = num_shards * batch_size * (max_length // length)
        batches.append(_dealt(order[start : start + size], size, num_shards))
        batch_lengths.append(length)
        start += size
    return EvaluationPlan(batches, np.array(batch_lengths, np.int32))


def shares(plan: np.ndarray, num_shards: int, batch_size: int) -> np.ndarray:
    """Deals the rows of global batches to shards, then to their replicas.

    They are dealt in turn, so that each gets equally long ones of a sorted
    batch.

    Args:
      plan: Integers [batches, shards * replicas * batch_size].
      num_shards: How many shards there are.
      batch_size: Rows of a replica's batch.

    Returns:
      Integers [shards, batches * replicas, batch_size]: the replicas' batches
      follow each other.
    """
    num_batches = len(plan)
    by_place = plan.reshape(num_batches, batch_size, -1, num_shards)
    by_shard = by_place.transpose(3, 0, 2, 1)  # [shards, batches, replicas, B]
    return by_shard.reshape(num_shards, -1, batch_size)


def _stream(num_examples: int, size: int, seed: int) -> np.ndarray:
    """The first `size` rows of epoch after epoch, int32 [size]."""
    rows = np.arange(num_examples)
    num_epochs = -(-size // num_examples)
    epochs = np.empty((num_epochs, num_examples), np.int32)
    for epoch in range(num_epochs):
        epochs[epoch] = permute(rows, num_examples, (seed, _EPOCH, epoch))
    return epochs.reshape(-1)[:size]


def _batches_per_stretch(num_examples: int, batch_size: int) -> int:
    quarter = num_examples // (_STRETCHES_PER_EPOCH * batch_size)
    return max(1, min(quarter, _MOST_BATCHES_SORTED))


def _by_length(
    stretch: np.ndarray, lengths: np.ndarray, seed: tuple[int, ...]
) -> np.ndarray:
    """The same rows [batches, B], alike ones together, batches shuffled."""
    rows = stretch.reshape(-1)
    order = np.argsort(lengths[rows], kind="stable")
    batches = rows[order].reshape(stretch.shape)
    num_batches = len(batches)
    return batches[permute(np.arange(num_batches), num_batches, seed)]


def _dealt(rows: np.ndarray, size: int, num_shards: int) -> np.ndarray:
    """Rows, -1 up to `size`, in turn to each shard: [shards, rows of each]."""
    padded = np.full(size, -1, np.int32)
    padded[: len(rows)] = rows
    return padded.reshape(-1, num_shards).T
