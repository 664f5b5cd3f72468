"""Data sets in memory, and plans of batches of examples of similar length.

Fine-tuning data is small enough to be read as a whole: 6 bytes per token, or
300 MB for the 393,000 examples of MNLI at a sequence length of 128. A plan
decides which rows form a batch. This module does not import TensorFlow.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from bert_tf.data.randomness import permute
from bert_tf.data.records import Schema
from bert_tf.errors import InputError

# The training stream is sorted by length within windows of this many batches.
# Longer windows have less padding; shorter ones mix examples better. With 100
# batches of 32, padding is within 3 % of a sorted epoch's. A window is at most
# a quarter of the epoch, so that batches differ between short epochs, too. For
# MRPC, padding is still within 3 % of a sorted epoch's.
_MOST_BATCHES_SORTED = 100
_WINDOWS_PER_EPOCH = 4

# The subkeys of a seed, one for each use of random numbers.
_EPOCH, _WINDOW = range(2)


@dataclasses.dataclass(frozen=True)
class Features:
    """All examples of a file.

    Attributes:
      arrays: From the name of a feature to an array [n, *shape]: float32, or
        int8 if all values fit, otherwise int32.
      lengths: The length of each example without the padding at its end, int32
        [n]. If an example has several sequences, the longest counts.
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
    """

    multiple: int = 8
    static: bool = False

    def padded(self, features: Features) -> np.ndarray:
        """Returns the padded length of each example, int32 [n]."""
        if self.static:
            return np.full_like(features.lengths, features.max_seq_length)
        # The length is at least 1, even if all examples are empty.
        multiples = -(-np.maximum(features.lengths, 1) // self.multiple)
        return np.minimum(multiples * self.multiple, features.max_seq_length)


def in_memory(
    batches: Iterable[Mapping[str, np.ndarray]], schema: Schema
) -> Features:
    """Joins batches of examples that are padded to the shapes of the schema.

    Args:
      batches: Dicts from the name of a feature to an array [b, *shape].
      schema: The features, `input_mask` among them.

    Raises:
      InputError: There is no example.
    """
    parts: dict[str, list[np.ndarray]] = {f.name: [] for f in schema}
    lengths = []
    for batch in batches:
        if not len(batch["input_mask"]):
            continue
        mask = batch["input_mask"].astype(bool)  # [b, ..., L]
        ends = mask * np.arange(1, mask.shape[-1] + 1, dtype=np.int32)
        lengths.append(ends.reshape(len(mask), -1).max(axis=1))
        for name, values in batch.items():
            parts[name].append(_narrow(values))
    if not lengths:
        raise InputError("None of the examples can be used.")
    sequences = [feature for feature in schema if feature.is_sequence]
    return Features(
        # One feature at a time, so that only one is in memory twice. Parts of
        # different types get the widest type.
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
      num_batches: The number of batches. A longer plan starts with the batches
        of a shorter one, except for the last window of the shorter one.
      batch_size: The number of rows in a batch.
      seed: Not negative; equal seeds give equal plans.

    Returns:
      Row numbers, int32 [num_batches, batch_size].
    """
    num_epochs = -(-num_batches * batch_size // len(lengths))
    stream = np.empty((num_epochs, len(lengths)), np.int32)
    for epoch in range(num_epochs):
        stream[epoch] = _epoch_order(len(lengths), seed, epoch)
    rows = stream.reshape(-1)[: num_batches * batch_size]
    return _similar_rows(rows.reshape(num_batches, batch_size), lengths, seed)


def epoch_plan(
    lengths: np.ndarray, *, batch_size: int, seed: int, epoch: int
) -> list[np.ndarray]:
    """Plans one epoch: every row once, in the order of `training_plan`.

    A `training_plan` has the same batches if each of its sorted windows is
    within one epoch.

    For the arguments see `training_plan`; `epoch` counts from 0.

    Returns:
      The row numbers of each batch. The last batch may be smaller.
    """
    order = _epoch_order(len(lengths), seed, epoch)
    num_full = len(order) // batch_size
    full, last = np.split(order, [num_full * batch_size])
    batches = full.reshape(num_full, batch_size)
    plan = _similar_rows(batches, lengths, seed, start=epoch * num_full)
    return [*plan, *([last] if len(last) else [])]


def _epoch_order(num_rows: int, seed: int, epoch: int) -> np.ndarray:
    """Returns all row numbers in random order."""
    return permute(np.arange(num_rows), num_rows, (seed, _EPOCH, epoch))


def _similar_rows(
    plan: np.ndarray, lengths: np.ndarray, seed: int, start: int = 0
) -> np.ndarray:
    """Swaps rows of nearby batches to get batches of similar lengths.

    `plan` has the rows of batches in random order, integers [batches, b];
    `start` is the number of batches before it.
    """
    quarter = len(lengths) // (_WINDOWS_PER_EPOCH * plan.shape[1])
    size = max(1, min(quarter, _MOST_BATCHES_SORTED))
    similar = np.empty_like(plan)
    for first in range(0, len(plan), size):
        flat = plan[first : first + size].reshape(-1)
        order = np.argsort(lengths[flat], kind="stable")
        by_length = flat[order].reshape(-1, plan.shape[1])
        numbers = np.arange(len(by_length))
        # Batches of similar rows, in random order.
        similar[first : first + size] = by_length[
            permute(numbers, len(numbers), (seed, _WINDOW, start + first))
        ]
    return similar


def evaluation_plan(
    lengths: np.ndarray,
    *,
    max_length: int,
    batch_size: int,
    num_shards: int,
    is_filled: bool = True,
) -> EvaluationPlan:
    """Plans batches of rows of similar length, the longest first.

    A batch that is too large for the memory thus fails at once. Batches of
    shorter rows are larger, up to `batch_size * max_length` tokens for a
    shard. Rows of one length keep their order.

    Args:
      lengths: The padded length of each row, from 1 to `max_length`, [n].
      max_length: The longest possible length.
      batch_size: The number of rows in a shard's batch of length `max_length`.
        Other batches have a multiple of it.
      num_shards: The number of readers that share the rows of each batch.
      is_filled: Whether the last batch is filled to the size of the others of
        its length, which avoids an additional shape.
    """
    order = np.argsort(-lengths, kind="stable").astype(np.int32)
    batches, batch_lengths = [], []
    least, start = num_shards * batch_size, 0
    while start < len(order):
        length = lengths[order[start]]
        size = least * (max_length // length)
        if not is_filled:
            size = min(size, -(-(len(order) - start) // least) * least)
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

    Rows go to the shards in turn, so that all shards get rows of similar length
    from a sorted batch: [0 1 2 3] becomes [0 2] and [1 3] for two shards.

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
