"""Sequence packing: several short examples share a row, to save padding.

A row has the shape of a record: the same number of tokens and of masked words.
The examples of a row follow each other. Each has positions from 0 and attends
only to itself (`example_ids` of `BertModel.call`), so that its losses are the
same as in a separate row.

Consecutive examples are packed together, one window at a time, by first fit,
the largest example first. The rows of a window depend only on its examples, so
that files give the same rows in every epoch and on every machine.

Source: Krell et al., "Efficient Sequence Packing without Cross-contamination"
(arXiv 2107.02027, 2021); Johnson, "Near-optimal bin packing algorithms" (1973).
"""

import dataclasses
from collections.abc import Callable, Sequence

import tensorflow as tf

from bert_tf.data.records import Schema

# The features that decide how much of a row an example takes.
_SIZES = ("input_mask", "masked_lm_positions", "masked_lm_weights")

_Batch = dict[str, tf.Tensor]
# Maps serialized examples [n] to features [n, *shape], int32 or float32.
Parse = Callable[[tf.Tensor], _Batch]


@dataclasses.dataclass(frozen=True)
class SequencePacking:
    """Packs examples of `pretraining_schema` into rows.

    A row of serialized examples is a vector of K strings, the slots; slots
    without an example hold "".

    Attributes:
      max_examples: K, the maximum number of examples in a row. A larger K
        costs little: one more pooled vector per row.
      window: The number of examples that are packed together. With 1,024, 97
        to 99 % of the tokens are not padding; larger windows give fuller rows.
    """

    max_examples: int = 16
    window: int = 1024

    def rows(self, examples: tf.data.Dataset, parse: Parse) -> tf.data.Dataset:
        """Packs serialized examples into rows, strings [K].

        `parse` returns at least the features of `size_schema`.
        """

        def pack(serialized: tf.Tensor) -> tf.Tensor:
            rows = self._rows_of(parse(serialized))
            order = tf.argsort(rows, stable=True)
            return tf.RaggedTensor.from_value_rowids(
                tf.gather(serialized, order), tf.gather(rows, order)
            ).to_tensor(shape=[None, self.max_examples])

        return examples.batch(self.window).map(pack).unbatch()

    def tallies(
        self, examples: tf.data.Dataset, parse: Parse
    ) -> tf.data.Dataset:
        """Returns the fields of `Fill` for each window, int64 [4]."""

        def tally(serialized: tf.Tensor) -> tf.Tensor:
            features = parse(serialized)
            lengths, length = _lengths(features)
            rows = tf.reduce_max(self._rows_of(features)) + 1
            counts = [tf.size(lengths), tf.reduce_sum(lengths), rows]
            return tf.cast(tf.stack([*counts, rows * length]), tf.int64)

        return examples.batch(self.window).map(tally)

    def _rows_of(self, features: _Batch) -> tf.Tensor:
        """Returns the row of each example of a window, int32 [n]."""
        lengths, length = _lengths(features)
        masked, predictions = _masked_counts(features)
        one = tf.ones_like(lengths)
        sizes = tf.stack([lengths, tf.maximum(masked, one), one], axis=1)
        return first_fit(sizes, [length, predictions, self.max_examples])

    def join(self, slots: tf.Tensor, parse: Parse) -> _Batch:
        """Returns a batch of rows.

        Args:
          slots: Rows, strings [B, K] with a static B.
          parse: Returns all features of the examples.

        Returns:
          The features of the records, padded with zeros: `input_ids`,
          `input_mask`, `segment_ids` [B, S], `masked_lm_positions` (in the
          row), `masked_lm_ids`, `masked_lm_weights` [B, P] and, if parsed,
          `next_sentence_labels` [B, K]. And features that separate examples:
          `position_ids` [B, S], from 0 in each example; `example_ids` [B, S],
          from 1 in each row; `cls_positions` [B, K]; and
          `next_sentence_weights`, float32 [B, K], 1 where there is an example.
        """
        is_used = tf.not_equal(slots, b"")
        examples = parse(tf.boolean_mask(slots, is_used))
        tokens = _RowLayout(is_used, *_lengths(examples))
        masked = _RowLayout(is_used, *_masked_counts(examples))
        first_of_example = masked.of_example(tokens.starts)
        labels = {}
        if "next_sentence_labels" in examples:
            flat = examples["next_sentence_labels"][:, 0]
            labels["next_sentence_labels"] = _in_slots(flat, is_used)
        return {
            "input_ids": tokens.join(examples["input_ids"]),
            "input_mask": tokens.join(examples["input_mask"]),
            "segment_ids": tokens.join(examples["segment_ids"]),
            "position_ids": tokens.positions,
            "example_ids": tokens.numbers,
            "masked_lm_positions": first_of_example
            + masked.join(examples["masked_lm_positions"]),
            "masked_lm_ids": masked.join(examples["masked_lm_ids"]),
            "masked_lm_weights": masked.join(examples["masked_lm_weights"]),
            "cls_positions": tokens.starts,
            **labels,
            "next_sentence_weights": tf.cast(is_used, tf.float32),
        }


class _RowLayout:
    """The positions of the values of examples in rows of length L.

    Two examples with 3 and 2 values, L = 6: `numbers` [B, L] is [1 1 1 2 2 0],
    `positions` [B, L] is [0 1 2 0 1 0] and `starts` [B, K] is [0 3].

    Args:
      is_used: The slots that hold an example, booleans [B, K], n of them True.
      sizes: The number of values of each example, int32 [n].
      length: L; the values of each example are also padded to it.
    """

    def __init__(self, is_used: tf.Tensor, sizes: tf.Tensor, length: int):
        by_slot = _in_slots(sizes, is_used)  # [B, K]
        ends = tf.cumsum(by_slot, axis=1)
        self.starts = tf.where(is_used, ends - by_slot, 0)
        places = tf.broadcast_to(tf.range(length), [is_used.shape[0], length])
        slots = tf.searchsorted(ends, places, side="right")
        self._is_filled = places < ends[:, -1:]
        self._slots = tf.where(self._is_filled, slots, 0)  # [B, L]
        self.numbers = tf.where(self._is_filled, slots + 1, 0)
        self.positions = places - self.of_example(self.starts)
        self.positions = tf.where(self._is_filled, self.positions, 0)
        examples = self.of_example(_in_slots(tf.range(tf.size(sizes)), is_used))
        self._sources = tf.where(
            self._is_filled,
            examples * length + self.positions,
            tf.size(sizes) * length,  # The zero that `join` appends.
        )

    def of_example(self, values: tf.Tensor) -> tf.Tensor:
        """Returns values [B, K] at each position of their example, [B, L]."""
        taken = tf.gather(values, self._slots, batch_dims=1)
        return tf.where(self._is_filled, taken, 0)

    def join(self, values: tf.Tensor) -> tf.Tensor:
        """Joins values [n, L] end to end, followed by zeros: [B, L]."""
        flat = tf.pad(tf.reshape(values, [-1]), [[0, 1]])
        return tf.gather(flat, self._sources)


@dataclasses.dataclass(frozen=True)
class Fill:
    """How full rows are: the numbers of examples, of tokens and of rows.

    `capacity` is the number of tokens that the rows have room for.
    """

    examples: int
    tokens: int
    rows: int
    capacity: int

    @classmethod
    def sum(cls, tallies: tf.data.Dataset) -> "Fill":
        """Adds the counts of all windows."""
        zeros = tf.zeros([len(dataclasses.fields(cls))], tf.int64)
        return cls(*tallies.reduce(zeros, tf.add).numpy().tolist())

    @property
    def examples_per_row(self) -> float:
        return self.examples / self.rows

    @property
    def packed(self) -> float:
        """The fraction of the rows that is not padding."""
        return self.tokens / self.capacity

    @property
    def unpacked(self) -> float:
        """The same fraction if each example had its own row."""
        return self.packed / self.examples_per_row


def size_schema(schema: Schema) -> Schema:
    """Returns the features that decide how much of a row an example takes."""
    return tuple(feature for feature in schema if feature.name in _SIZES)


# In its own graph: tf.data does not optimize loops in nested data sets.
@tf.function(reduce_retracing=True)
def first_fit(sizes: tf.Tensor, room: Sequence[int]) -> tf.Tensor:
    """Puts items, the largest first, each into the first row with room.

    Items of one size are placed at once: the first row takes as many as fit,
    then the second. So the loop is over sizes, not over items.

    Sizes 5 1 7 6 5 4 and rows of 10 give the rows 7 1, 6 4 and 5 5.

    Args:
      sizes: How much of d quantities each item needs, int32 [n, d], from 1 to
        the capacity of a row. Items are ordered by the first quantity, then by
        the second and so on.
      room: The capacity of a row for each quantity.

    Returns:
      The row of each item, int32 [n]: numbers from 0 without gaps.
    """
    count = tf.shape(sizes)[0]
    rank = _rank(sizes, room)
    order = tf.argsort(rank, direction="DESCENDING", stable=True)
    members = tf.unique_with_counts(tf.gather(rank, order)).count
    first = tf.gather(order, tf.cumsum(members, exclusive=True))
    left = tf.tile(tf.constant([room]), [count, 1])  # [n, d], for n rows.
    placed = tf.TensorArray(
        tf.int32, tf.size(members), infer_shape=False, element_shape=[None]
    )
    for group in tf.range(tf.size(members)):
        size = tf.gather(sizes, first[group])
        fits = tf.reduce_min(left // size, axis=1)  # [n]
        before = tf.cumsum(fits, exclusive=True)
        taken = tf.clip_by_value(members[group] - before, 0, fits)
        left -= taken[:, tf.newaxis] * size
        rows = tf.searchsorted(
            tf.cumsum(taken), tf.range(members[group]), side="right"
        )
        placed = placed.write(group, rows)
    return tf.scatter_nd(order[:, tf.newaxis], placed.concat(), [count])


def _rank(sizes: tf.Tensor, room: Sequence[int]) -> tf.Tensor:
    """Returns numbers in the lexicographic order of sizes [n, d], int64 [n]."""
    rank = tf.zeros([], tf.int64)
    quantities = tf.unstack(tf.cast(sizes, tf.int64), len(room), axis=1)
    for quantity, most in zip(quantities, room, strict=True):
        rank = rank * (most + 1) + quantity
    return rank


def _lengths(features: _Batch) -> tuple[tf.Tensor, int]:
    """Returns the lengths of examples, int32 [n], and S.

    A length counts up to the last token or masked word. It is at least 1, for
    [CLS].
    """
    mask = features["input_mask"]
    length = mask.shape[1]
    last_masked = tf.where(
        tf.not_equal(features["masked_lm_weights"], 0.0),
        features["masked_lm_positions"] + 1,
        1,
    )
    lengths = tf.maximum(_last(mask), tf.reduce_max(last_masked, axis=1))
    return tf.minimum(lengths, length), length


def _masked_counts(features: _Batch) -> tuple[tf.Tensor, int]:
    """Returns the number of masked words of each example, int32 [n], and P."""
    weights = features["masked_lm_weights"]
    return _last(weights), weights.shape[1]


def _last(values: tf.Tensor) -> tf.Tensor:
    """Returns 1 + the position of the last nonzero value: [n, L] -> [n]."""
    places = tf.range(1, values.shape[1] + 1)
    return tf.reduce_max(tf.where(tf.not_equal(values, 0), places, 0), axis=1)


def _in_slots(values: tf.Tensor, is_used: tf.Tensor) -> tf.Tensor:
    """Returns the values of examples [n] in their slots [B, K], 0 elsewhere."""
    return tf.scatter_nd(tf.where(is_used), values, is_used.shape)
