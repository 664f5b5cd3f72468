"""Normalization in a TensorFlow graph, with core ops.

Uses the tables of `normalization`.
"""

from typing import NamedTuple

import tensorflow as tf

from bert_tf.tokenization import normalization
from bert_tf.tokenization.normalization import (
    CASED,
    CLASS_BITS,
    DELETED,
    ITSELF,
    NOTHING,
    PAGE_SIZE,
    SKIPPED,
    WITHIN_RUN,
    Pages,
)

_PLAIN_ASCII = r"[\t\n\r -~]*"
_ASCII_PUNCTUATION = r"([!-/:-@\[-`{-~])"


def drop_invalid_utf8(text: tf.Tensor) -> tf.Tensor:
    """Drops invalid UTF-8 from strings of any shape.

    Offsets count the characters of the result, which is the unit "UTF8_CHAR"
    of `tf.strings.substr`.
    """
    return tf.strings.unicode_transcode(text, "UTF-8", "UTF-8", errors="ignore")


class Aligned(NamedTuple):
    """Normalized texts and the origins of their K characters except spaces.

    Attributes:
      text: The strings, [B].
      starts: int32 [K], the index of the character that each was made from in
        its original text.
      ends: int32 [K], the index after that character and after the accents
        stripped there.
    """

    text: tf.Tensor
    starts: tf.Tensor
    ends: tf.Tensor


class _Replaced(NamedTuple):
    """Replaced code points, before NFD reorders combining marks."""

    sources: tf.RaggedTensor  # [B, (N)], the texts, each with a final space.
    outputs: tf.Tensor  # [M], the replacements in all texts.
    origins: tf.Tensor  # int64 [M], the index of the source of each output.
    counts: tf.Tensor  # int64 [N], the number of outputs of each source.
    may_move: tf.Tensor  # [], whether NFD may have to reorder outputs.


class GraphNormalizer:
    """Does what `normalization.Normalizer` does, for batches of strings."""

    def __init__(self, do_lower_case: bool, strip_accents: bool | None):
        python = normalization.Normalizer(do_lower_case, strip_accents)
        self.do_lower_case = python.do_lower_case
        self.strip_accents = python.strip_accents
        table = normalization.replacement_table(
            self.do_lower_case, self.strip_accents
        )
        self._first_movable = table.first_movable
        self._rows = tf.constant(table.rows)
        self._row_of = _LookUp(table.row_of)
        self._traits = _LookUp(normalization.traits())

    def __call__(self, text: tf.Tensor) -> tf.Tensor:
        """Normalizes a [B] tensor of strings."""
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
        """Normalizes a [B] tensor of strings and finds the origins."""
        replaced = self._replace(text)
        sources = replaced.sources
        is_visible = replaced.outputs != ord(" ")
        origins = tf.boolean_mask(replaced.origins, is_visible)  # [K]
        outputs = tf.boolean_mask(replaced.outputs, is_visible)
        visible = replaced._replace(outputs=outputs, origins=origins)
        lengths = tf.cast(sources.row_lengths(), tf.int32)
        index = tf.ragged.range(lengths).values  # [N]
        starts = tf.gather(index, origins)
        # Accents belong to the last output of the character before them. The
        # space after each text is not an accent, so `next_other` exists.
        deleted = self._traits(sources.values) & DELETED != 0
        is_accent = (replaced.counts == 0) & ~deleted  # [N]
        others = tf.boolean_mask(index, ~is_accent)
        num_before = tf.cumsum(tf.cast(~is_accent, tf.int32))
        next_other = tf.gather(others, tf.gather(num_before, origins))
        behind = tf.concat([origins, [-1]], axis=0)[1:]
        ends = tf.where(origins != behind, next_other, starts + 1)
        order = self._canonical_order(visible)
        return Aligned(
            self._encode(replaced),
            tf.gather(starts, order),
            tf.gather(ends, order),
        )

    def _replace(self, text: tf.Tensor) -> _Replaced:
        # The space separates neighbors from different texts.
        decoded = tf.strings.unicode_decode(
            tf.strings.join([text, " "]), "UTF-8", errors="ignore"
        )
        sources = decoded.values  # [N]
        if self.do_lower_case:
            sources = self._final_sigma(sources)
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
        """Joins the outputs of each text in NFD's order: strings [B]."""
        order = self._canonical_order(replaced)
        ends = tf.concat([[0], tf.cumsum(replaced.counts)], axis=0)
        splits = tf.gather(ends, replaced.sources.row_splits)
        ordered = tf.gather(replaced.outputs, order)
        rows = tf.RaggedTensor.from_row_splits(ordered, splits)
        return tf.strings.unicode_encode(rows, "UTF-8")

    def _final_sigma(self, sources: tf.Tensor) -> tf.Tensor:
        """Replaces capital sigmas that end a word by final sigmas; [N]."""
        sigma = ord(normalization.SIGMA)

        def replace():
            traits = self._traits(sources)
            where = tf.where(traits & SKIPPED == 0)  # [K, 1]
            # [K], the last is a space.
            characters = tf.gather_nd(sources, where)
            cased = tf.gather_nd(traits, where) & CASED != 0
            cased_before = tf.concat([[False], cased[:-1]], axis=0)
            cased_after = tf.concat([cased[1:], [False]], axis=0)
            final = (characters == sigma) & cased_before & ~cased_after
            characters = tf.where(
                final, ord(normalization.FINAL_SIGMA), characters
            )
            return tf.tensor_scatter_nd_update(sources, where, characters)

        return tf.cond(
            tf.reduce_any(sources == sigma), replace, lambda: sources
        )

    def _canonical_order(self, replaced: _Replaced) -> tf.Tensor:
        """Sorts combining marks as NFD does; see `normalization`.

        Returns the indices of the outputs, all or some, in their new order.
        """

        def sort():
            bounds = self._traits(replaced.sources.values) & WITHIN_RUN == 0
            runs = tf.cumsum(tf.cast(bounds, tf.int64))
            rank = self._traits(replaced.outputs) & CLASS_BITS
            key = tf.gather(runs, replaced.origins) * (CLASS_BITS + 1)
            return tf.argsort(key + tf.cast(rank, tf.int64), stable=True)

        unchanged = tf.range(tf.size(replaced.outputs))
        if not self.strip_accents:
            return unchanged
        return tf.cond(replaced.may_move, sort, lambda: unchanged)


class _LookUp:
    """Looks up code points in `Pages` that are constants of the graph."""

    def __init__(self, table: Pages):
        self._page_of = tf.constant(table.page_of)
        self._pages = tf.constant(table.pages)

    def __call__(self, code_points: tf.Tensor) -> tf.Tensor:
        """Returns the int32 values of int32 code points of any shape."""
        page = tf.gather(self._page_of, code_points // PAGE_SIZE)
        first = tf.cast(page, tf.int32) * PAGE_SIZE
        index = first + code_points % PAGE_SIZE
        return tf.cast(tf.gather(self._pages, index), tf.int32)
