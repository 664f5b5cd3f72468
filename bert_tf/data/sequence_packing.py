"""Several short examples in one row, so that fewer of its places are padding.

A row has the shape of a record: as many places for tokens, as many for masked
words. The examples in it stand one behind the other. Each has positions from 0
on and looks at itself alone (`example_ids` of `BertModel.call`), so that its
losses are those that it has in a row of its own.

Which examples share a row is decided among consecutive ones, a window at a
time, by first fit, the largest example first. It follows from the examples of
the window alone, so that files have the same rows in every epoch, on every
machine.

Source: Krell et al., "Efficient Sequence Packing without Cross-contamination"
(arXiv 2107.02027, 2021); Johnson, "Near-optimal bin packing algorithms" (1973).
"""

import dataclasses
from collections.abc import Callable, Sequence

import tensorflow as tf

from bert_tf.data.schema import Schema

# The features that tell how much of a row an example takes.
_SIZES = ("input_mask", "masked_lm_positions", "masked_lm_weights")

_Batch = dict[str, tf.Tensor]
# From serialized examples [n] to their features [n, *shape], int32 or float32.
Parse = Callable[[tf.Tensor], _Batch]


@dataclasses.dataclass(frozen=True)
class SequencePacking:
    """Puts examples of `pretraining_schema` into rows.

    A row of examples that are not parsed yet is a vector of K strings, "" in
    the places that are left over.

    Attributes:
      max_examples: K, the most examples of a row. They cost next to nothing:
        a row has K pooled vectors beside its thousands.
      window: Examples that are packed together. With 1,024 of them 97 to 99 %
        of the places are filled; the more, the fuller.
    """

    max_examples: int = 16
    window: int = 1024

    @property
    def empty_row(self) -> list[bytes]:
        """A row without any example."""
        return [b""] * self.max_examples

    def rows(self, examples: tf.data.Dataset, parse: Parse) -> tf.data.Dataset:
        """Packs serialized examples.

        Args:
          examples: Strings.
          parse: Gives the features of `size_schema` at least.

        Returns:
          Rows, strings [K].
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
        """Counts, window by window, what `rows` makes of the same examples.

        Returns:
          int64 [4], for `Fill.sum`.
        """

        def tally(serialized: tf.Tensor) -> tf.Tensor:
            features = parse(serialized)
            lengths, length = _lengths(features)
            rows = tf.reduce_max(self._rows_of(features)) + 1
            counts = [tf.size(lengths), tf.reduce_sum(lengths), rows]
            return tf.cast(tf.stack([*counts, rows * length]), tf.int64)

        return examples.batch(self.window).map(tally)

    def _rows_of(self, features: _Batch) -> tf.Tensor:
        """The row of each example of a window, int32 [n]."""
        lengths, length = _lengths(features)
        masked, predictions = _masked_counts(features)
        one = tf.ones_like(lengths)
        sizes = tf.stack([lengths, tf.maximum(masked, one), one], axis=1)
        return first_fit(sizes, [length, predictions, self.max_examples])

    def join(self, slots: tf.Tensor, parse: Parse) -> _Batch:
        """Makes a batch of rows.

        Args:
          slots: Rows, strings [B, K]; B is known when the graph is made.
          parse: Gives all features of the examples.

        Returns:
          What the records have, all of it [B, ...] and padded with zeros:
          `input_ids`, `input_mask`, `segment_ids` [B, S], `masked_lm_positions`
          (in the row), `masked_lm_ids`, `masked_lm_weights` [B, P],
          `next_sentence_labels` [B, K], unless they are not parsed. And what
          tells examples apart: `position_ids` [B, S], from 0 in each;
          `example_ids` [B, S], from 1 in each row; `cls_positions` [B, K];
          `next_sentence_weights`, float32 [B, K], 1 where there is an example.
        """
        is_used = tf.not_equal(slots, b"")
        examples = parse(tf.boolean_mask(slots, is_used))
        tokens = _Layout(is_used, *_lengths(examples))
        masked = _Layout(is_used, *_masked_counts(examples))
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


class _Layout:
    """Where values of examples stand in rows that have room for L of them.

    Args:
      is_used: Which slots hold an example, booleans [B, K]. There are n.
      sizes: How many values each example has, int32 [n].
      length: L; examples are padded to it, too.

    Attributes:
      starts: Where the example of a slot begins, int32 [B, K].
      numbers: The slot of each place, from 1 on, int32 [B, L]; 0 for padding.
      positions: The place within its example, int32 [B, L]; 0 for padding.
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
            tf.size(sizes) * length,  # A zero, see `join`.
        )

    def of_example(self, values: tf.Tensor) -> tf.Tensor:
        """What the example of each place has of values [B, K]: [B, L]."""
        taken = tf.gather(values, self._slots, batch_dims=1)
        return tf.where(self._is_filled, taken, 0)

    def join(self, values: tf.Tensor) -> tf.Tensor:
        """Sets values [n, L] end to end, [B, L]; zeros follow."""
        flat = tf.pad(tf.reshape(values, [-1]), [[0, 1]])
        return tf.gather(flat, self._sources)


@dataclasses.dataclass(frozen=True)
class Fill:
    """How full rows are.

    Attributes:
      examples: How many examples there are.
      tokens: How many tokens they have.
      rows: How many rows they share.
      places: How many places for tokens these rows have.
    """

    examples: int
    tokens: int
    rows: int
    places: int

    @classmethod
    def sum(cls, tallies: tf.data.Dataset) -> "Fill":
        """That of all windows together."""
        zeros = tf.zeros([len(dataclasses.fields(cls))], tf.int64)
        return cls(*tallies.reduce(zeros, tf.add).numpy().tolist())

    @property
    def examples_per_row(self) -> float:
        return self.examples / self.rows

    @property
    def packed(self) -> float:
        """The share of the places that are no padding."""
        return self.tokens / self.places

    @property
    def unpacked(self) -> float:
        """The same share if each example had a row of its own."""
        return self.packed / self.examples_per_row


def size_schema(schema: Schema) -> Schema:
    """What of a record has to be parsed to know how much of a row it takes."""
    return tuple(feature for feature in schema if feature.name in _SIZES)


# A graph of its own: data sets within data sets leave loops as they are.
@tf.function(reduce_retracing=True)
def first_fit(sizes: tf.Tensor, room: Sequence[int]) -> tf.Tensor:
    """Puts things into rows: the largest first, each where it first fits.

    Things of one size are placed together, since the first row takes as many
    of them as fit, then the second: a loop over sizes and not over things.

    Args:
      sizes: int32 [n, d], what each thing takes of d quantities: 1 at
        least, and at most what a row has. The first quantity says which is
        larger, then the second and so on.
      room: What a row has of each.

    Returns:
      The row of each thing, int32 [n]: numbers from 0 on without a gap.
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
    """One number for a size [n, d], in lexicographic order, int64 [n]."""
    rank = tf.zeros([], tf.int64)
    for quantity, most in zip(
        tf.unstack(tf.cast(sizes, tf.int64), len(room), axis=1),
        room,
        strict=True,
    ):
        rank = rank * (most + 1) + quantity
    return rank


def _lengths(features: _Batch) -> tuple[tf.Tensor, int]:
    """Places up to the last token or masked word, int32 [n]; and all of them.

    An example without any has its first place all the same, for [CLS].
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
    """Masked words up to the last that counts, int32 [n]; and room for them."""
    weights = features["masked_lm_weights"]
    return _last(weights), weights.shape[1]


def _last(values: tf.Tensor) -> tf.Tensor:
    """Places up to the last that is not 0, int32 [n]: of [n, L]."""
    places = tf.range(1, values.shape[1] + 1)
    return tf.reduce_max(tf.where(tf.not_equal(values, 0), places, 0), axis=1)


def _in_slots(values: tf.Tensor, is_used: tf.Tensor) -> tf.Tensor:
    """A value for each example, [n], in its slot, [B, K]; else 0."""
    return tf.scatter_nd(tf.where(is_used), values, is_used.shape)
