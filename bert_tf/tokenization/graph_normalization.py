"""`normalization` as arrays over all code points, for the graph to look up."""

import functools
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from bert_tf.tokenization import normalization

# `normalization` as arrays over all code points, for the graph to look up.


# Placeholders in `Table.rows`: the code point itself, and nothing.
ITSELF, NOTHING = -1, -2
_WIDTH = 3  # the longest replacement: a character between two spaces

# Bits of `traits`; the lowest eight hold `normalization.movable_class`.
CLASS_BITS, SKIPPED, CASED, WITHIN_RUN = 0xFF, 0x100, 0x200, 0x400
DELETED = 0x800

PAGE_SIZE = 256


class Pages(NamedTuple):
    """An array over all code points whose equal pages are stored once.

    Its value for c is `pages[page_of[c // 256] * 256 + c % 256]`.
    """

    page_of: np.ndarray  # [4352] int16
    pages: np.ndarray  # [256 * different pages] int16

    @classmethod
    def of(cls, values: np.ndarray) -> "Pages":
        """Compresses an integer array of shape [0x110000]."""
        numbers: dict[bytes, int] = {}
        rows = values.astype(np.int16).reshape(-1, PAGE_SIZE)
        page_of = [numbers.setdefault(r.tobytes(), len(numbers)) for r in rows]
        pages = np.frombuffer(b"".join(numbers), np.int16)
        return cls(np.array(page_of, np.int16), pages)


class Table(NamedTuple):
    """The replacements of a `Normalizer`.

    Attributes:
      row_of: For each code point its index into `rows`.
      rows: int32 [R, 3]: code points and placeholders.
      first_movable: From this row on they hold marks that NFD may move.
    """

    row_of: Pages
    rows: np.ndarray
    first_movable: int


@functools.cache
def replacements(do_lower_case: bool, strip_accents: bool) -> Table:
    """Turns a `Normalizer` into arrays, a quarter of a megabyte of them."""
    marks = normalization.movable_marks()
    changes = {ord(mark): mark for mark in marks}
    changes |= normalization.Normalizer(do_lower_case, strip_accents).changes()
    texts = {r for c, r in changes.items() if r != f" {chr(c)} "}
    movable = {text for text in texts if not set(marks).isdisjoint(text)}
    ordered = sorted(texts - movable) + sorted(movable)
    rows = [[ITSELF], [ord(" "), ITSELF, ord(" ")]]
    itself, spaced, *others = range(len(rows) + len(ordered))
    row_of_text = dict(zip(ordered, others, strict=True))
    row_of = np.full(normalization.NUM_CODE_POINTS, itself)
    for code_point, text in changes.items():
        row_of[code_point] = row_of_text.get(text, spaced)
    rows += [list(map(ord, text)) for text in ordered]
    return Table(Pages.of(row_of), _padded(rows), len(rows) - len(movable))


@functools.cache
def traits() -> Pages:
    """What rules for neighbours have to know of each code point."""
    values = np.zeros(normalization.NUM_CODE_POINTS, int)
    for character in normalization.assigned_characters():
        if normalization.is_cjk(character):  # has neither case nor marks
            continue
        skipped, cased = normalization.sigma_context(character)
        values[ord(character)] = (
            normalization.movable_class(character)
            + SKIPPED * skipped
            + CASED * cased
            + WITHIN_RUN * (not normalization.bounds_a_run(character))
            + DELETED * normalization.is_deleted(character)
        )
    return Pages.of(values)


def _padded(rows: list[list[int]]) -> np.ndarray:
    """Fills rows of at most three entries up with NOTHING."""
    return np.array(
        [row + [NOTHING] * (_WIDTH - len(row)) for row in rows], np.int32
    )


# `normalization` inside a TensorFlow graph: core ops on batches of strings.


_PLAIN_ASCII = r"[\t\n\r -~]*"
_ASCII_PUNCTUATION = r"([!-/:-@\[-`{-~])"


def drop_invalid_utf8(text: tf.Tensor) -> tf.Tensor:
    """Drops bytes that are not UTF-8 from strings of any shape.

    Offsets count the characters of what this leaves: the unit "UTF8_CHAR" of
    `tf.strings.substr`.
    """
    return tf.strings.unicode_transcode(text, "UTF-8", "UTF-8", errors="ignore")


class Aligned(NamedTuple):
    """Normalized texts, and where their characters came from.

    Attributes:
      text: The strings, [B].
      starts: For each character of `text` that is not a space, those of all
        texts one after another: the index, in its own original text, of the
        character that it was made of; int32 [K].
      ends: The index behind that, and behind the accents dropped there.
    """

    text: tf.Tensor
    starts: tf.Tensor
    ends: tf.Tensor


class _Replaced(NamedTuple):
    """What the table makes of texts, in the order of the characters replaced.

    Attributes:
      sources: Code points of the texts, a space behind each; [B, (N)].
      outputs: What replaces them, of all texts one after another; [M].
      origins: Which of the N each output replaces; int64 [M].
      counts: How many outputs replace each source; int64 [N].
      may_move: Whether there are marks among them that NFD may move; [].
    """

    sources: tf.RaggedTensor
    outputs: tf.Tensor
    origins: tf.Tensor
    counts: tf.Tensor
    may_move: tf.Tensor


class GraphNormalizer:
    """`normalization.Normalizer` for batches of strings.

    Args:
      do_lower_case: As for `Normalizer`.
      strip_accents: As for `Normalizer`.
    """

    def __init__(self, do_lower_case: bool, strip_accents: bool | None):
        python = normalization.Normalizer(do_lower_case, strip_accents)
        self.do_lower_case = python.do_lower_case
        self.strip_accents = python.strip_accents
        table = replacements(self.do_lower_case, self.strip_accents)
        self._first_movable = table.first_movable
        self._rows = tf.constant(table.rows)
        self._row_of = _LookUp(table.row_of)
        self._traits = _LookUp(traits())

    def __call__(self, text: tf.Tensor) -> tf.Tensor:
        """`Normalizer.__call__` on a [B] tensor of strings."""
        ascii_text = tf.strings.lower(text) if self.do_lower_case else text
        ascii_text = tf.strings.regex_replace(
            ascii_text, _ASCII_PUNCTUATION, r" \1 "
        )
        is_plain = tf.strings.regex_full_match(text, _PLAIN_ASCII)
        others = tf.where(~is_plain)
        replaced = self._replace(tf.gather_nd(text, others))
        return tf.tensor_scatter_nd_update(
            ascii_text, others, self._encode(replaced)
        )

    def align(self, text: tf.Tensor) -> Aligned:
        """`Normalizer.align` on a [B] tensor of strings."""
        replaced = self._replace(text)
        sources = replaced.sources
        visible = replaced.outputs != ord(" ")
        outputs = tf.boolean_mask(replaced.outputs, visible)  # [K]
        origins = tf.boolean_mask(replaced.origins, visible)  # [K]
        lengths = tf.cast(sources.row_lengths(), tf.int32)
        index = tf.ragged.range(lengths).values  # [N]
        starts = tf.gather(index, origins)
        # Accents belong to the last thing made of the character before. The
        # space behind each text is no accent, so there is always a next.
        deleted = self._traits(sources.values) & DELETED != 0
        is_accent = (replaced.counts == 0) & ~deleted  # [N]
        others = tf.boolean_mask(index, ~is_accent)
        num_before = tf.cumsum(tf.cast(~is_accent, tf.int32))
        next_other = tf.gather(others, tf.gather(num_before, origins))
        behind = tf.concat([origins, [-1]], axis=0)[1:]
        ends = tf.where(origins != behind, next_other, starts + 1)
        order = self._canonical_order(
            outputs, origins, sources.values, replaced.may_move
        )
        return Aligned(
            self._encode(replaced),
            tf.gather(starts, order),
            tf.gather(ends, order),
        )

    def _replace(self, text: tf.Tensor) -> _Replaced:
        # The space keeps neighbours from different texts apart.
        decoded = tf.strings.unicode_decode(
            tf.strings.join([text, " "]), "UTF-8", errors="ignore"
        )
        sources = decoded.values  # [N]
        if self.do_lower_case:
            sources = self._settle_sigma(sources)
        row = self._row_of(sources)
        outputs = tf.gather(self._rows, row)  # [N, 3]
        outputs = tf.where(outputs == ITSELF, sources[:, tf.newaxis], outputs)
        exists = outputs != NOTHING
        where = tf.where(exists)  # [M, 2]
        return _Replaced(
            decoded.with_values(sources),
            tf.gather_nd(outputs, where),
            where[:, 0],
            tf.reduce_sum(tf.cast(exists, tf.int64), axis=1),
            tf.reduce_any(row >= self._first_movable),
        )

    def _encode(self, replaced: _Replaced) -> tf.Tensor:
        """Joins the outputs of each text, in NFD's order, to strings [B]."""
        sources, outputs, origins, counts, may_move = replaced
        order = self._canonical_order(
            outputs, origins, sources.values, may_move
        )
        ends = tf.concat([[0], tf.cumsum(counts)], axis=0)
        splits = tf.gather(ends, sources.row_splits)
        return tf.strings.unicode_encode(
            tf.RaggedTensor.from_row_splits(tf.gather(outputs, order), splits),
            "UTF-8",
        )

    def _settle_sigma(self, sources: tf.Tensor) -> tf.Tensor:
        """Puts the final sigma for each capital one that ends a word; [N]."""
        sigma = ord(normalization.SIGMA)

        def settle():
            traits = self._traits(sources)
            where = tf.where(traits & SKIPPED == 0)  # [K, 1]
            seen = tf.gather_nd(sources, where)  # [K], ends with a space
            cased = tf.gather_nd(traits, where) & CASED != 0
            cased_before = tf.concat([[False], cased[:-1]], axis=0)
            cased_behind = tf.concat([cased[1:], [False]], axis=0)
            final = (seen == sigma) & cased_before & ~cased_behind
            seen = tf.where(final, ord(normalization.FINAL_SIGMA), seen)
            return tf.tensor_scatter_nd_update(sources, where, seen)

        return tf.cond(tf.reduce_any(sources == sigma), settle, lambda: sources)

    def _canonical_order(
        self,
        outputs: tf.Tensor,
        origins: tf.Tensor,
        sources: tf.Tensor,
        may_move: tf.Tensor,
    ) -> tf.Tensor:
        """Sorts marks as NFD does: `normalization`'s function on tensors.

        Args:
          outputs: Replaced code points, or some of them, int32 [M].
          origins: Which source each replaces, int64 [M].
          sources: The code points that they replace, int32 [N].
          may_move: Whether there is anything to sort.

        Returns:
          The indices of the outputs in their order, int32 [M].
        """

        def sort():
            bounds = self._traits(sources) & WITHIN_RUN == 0
            runs = tf.cumsum(tf.cast(bounds, tf.int64))
            rank = self._traits(outputs) & CLASS_BITS
            key = tf.gather(runs, origins) * (CLASS_BITS + 1)
            return tf.argsort(key + tf.cast(rank, tf.int64), stable=True)

        as_they_are = tf.range(tf.size(outputs))
        if not self.strip_accents:
            return as_they_are
        return tf.cond(may_move, sort, lambda: as_they_are)


class _LookUp:
    """A table over code points as constants, which functions capture."""

    def __init__(self, table: Pages):
        self._page_of = tf.constant(table.page_of)
        self._pages = tf.constant(table.pages)

    def __call__(self, code_points: tf.Tensor) -> tf.Tensor:
        """Returns the int32 values of int32 code points of any shape."""
        page = tf.gather(self._page_of, code_points // PAGE_SIZE)
        first = tf.cast(page, tf.int32) * PAGE_SIZE
        index = first + code_points % PAGE_SIZE
        return tf.cast(tf.gather(self._pages, index), tf.int32)
