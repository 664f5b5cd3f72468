"""The tokenizer inside a TensorFlow graph, for raw strings in a SavedModel.

It gives the ids of `wordpiece.FullTokenizer` for every string, and for bytes
that are not UTF-8 too (they are dropped). Texts of plain ASCII, which a
regular expression tells, are lower-cased and split by string ops. The others
take the way of `normalization.Normalizer`: a table over code points, and its
two rules for neighbours where the characters that they are about occur.

TensorFlow Serving knows two ops of TensorFlow Text; the graph holds one of
them, FastWordpieceTokenizeWithOffsets, and otherwise nothing but core ops.
"""

import os
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf
import tensorflow_text as tf_text

from bert_tf.errors import InputError
from bert_tf.text import normalization, packing, tables, wordpiece

_PADDINGS = ("max_length", "longest")
_PLAIN_ASCII = r"[\t\n\r -~]*"
_ASCII_PUNCTUATION = r"([!-/:-@\[-`{-~])"


class _LookUp:
    """A table over code points as constants, which functions capture."""

    def __init__(self, table: tables.Pages):
        self._page_of = tf.constant(table.page_of)
        self._pages = tf.constant(table.pages)

    def __call__(self, code_points: tf.Tensor) -> tf.Tensor:
        """Returns the int32 values of int32 code points of any shape."""
        page = tf.gather(self._page_of, code_points // tables.PAGE_SIZE)
        first = tf.cast(page, tf.int32) * tables.PAGE_SIZE
        index = first + code_points % tables.PAGE_SIZE
        return tf.cast(tf.gather(self._pages, index), tf.int32)


@keras.saving.register_keras_serializable(package="bert_tf")
class BertTokenizer(keras.layers.Layer):
    """Raw strings in, what `BertModel` takes out.

    A single text becomes `[CLS] text [SEP]`; a pair, given as a tuple, becomes
    `[CLS] a [SEP] b [SEP]`. With `max_seq_length` what is too long is cut (see
    `packing.truncated_lengths`) and the rest is padded to that length, or only
    to the longest of the batch if `padding` says so; without it, nothing is
    cut and the batch is padded to its longest.

    Args:
      vocabulary: A path, or the tokens in the order of their ids.
      do_lower_case: Whether the vocabulary is an uncased one.
      strip_accents: Whether to drop accents; None does as `do_lower_case`.
      max_seq_length: Length S of every sequence given out, or None.
      padding: "max_length"; or "longest", with which `max_seq_length` is what
        S is at most.

    Call arguments:
      inputs: Strings, scalar or [B]; or a tuple of two such.

    Returns (when called):
      A dict of input_ids, input_mask and segment_ids: int32, [B, S], or [S]
      for a scalar.

    Raises:
      InputError: If the vocabulary is unusable or lacks one of [PAD], [UNK],
        [CLS] and [SEP], if `max_seq_length` is below 3, or if `padding` is
        neither of the two.
    """

    def __init__(
        self,
        vocabulary: str | os.PathLike[str] | Sequence[str],
        do_lower_case: bool = True,
        strip_accents: bool | None = None,
        max_seq_length: int | None = None,
        padding: str = "max_length",
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        if max_seq_length is not None and max_seq_length < 3:
            raise InputError(
                "Expected max_seq_length of at least 3, for [CLS] and two "
                f"[SEP]. Received: {max_seq_length}"
            )
        if padding not in _PADDINGS:
            raise InputError(
                f"Expected padding to be one of {', '.join(_PADDINGS)}. "
                f"Received: {padding!r}"
            )
        vocab = wordpiece.load_vocab(vocabulary)
        wordpiece.require_special_tokens(
            vocab,
            ("[PAD]", "[UNK]", "[CLS]", "[SEP]"),
            wordpiece.source_of(vocabulary),
        )
        self.vocabulary = tuple(vocab)
        self.max_seq_length = max_seq_length
        self.padding = padding
        self._normalizer = normalization.Normalizer(
            do_lower_case, strip_accents
        )
        self._pad_id, self._cls_id, self._sep_id = (
            vocab[token] for token in ("[PAD]", "[CLS]", "[SEP]")
        )
        table = tables.replacements(
            self._normalizer.do_lower_case, self._normalizer.strip_accents
        )
        self._first_movable = table.first_movable
        # There are no kernels for strings elsewhere. What is captured as a
        # constant is in a SavedModel once, however many functions use it.
        with tf.device("CPU:0"):
            self._rows = tf.constant(table.rows)
            self._row_of = _LookUp(table.row_of)
            self._traits = _LookUp(tables.traits())
            self._wordpiece = _wordpiece_tokenizer(self.vocabulary)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments; the tokens, not their path."""
        return super().get_config() | {
            "vocabulary": list(self.vocabulary),
            "do_lower_case": self._normalizer.do_lower_case,
            "strip_accents": self._normalizer.strip_accents,
            "max_seq_length": self.max_seq_length,
            "padding": self.padding,
        }

    def __call__(self, inputs, **unused):
        # Keras's own __call__ takes no Python strings, and on other backends
        # than TensorFlow, where this layer serves tf.data, no strings at all.
        # What it would drop (`training`) is dropped here.
        if _is_symbolic(inputs):
            return super().__call__(inputs)
        return self.call(inputs)

    def call(self, inputs):
        texts = [_strings(text) for text in _parts(inputs)]
        # Without this, single lookups would be placed on a GPU.
        with tf.device("CPU:0"):
            if texts[0].shape.rank == 0:
                batch = self._pack([text[tf.newaxis] for text in texts])
                return {name: values[0] for name, values in batch.items()}
            return self._pack(texts)

    def compute_output_spec(self, inputs):
        shape = (*_parts(inputs)[0].shape, self._padded_length)
        return {
            name: keras.KerasTensor(shape, "int32")
            for name in ("input_ids", "input_mask", "segment_ids")
        }

    @property
    def _padded_length(self) -> int | None:
        """The length of every sequence; None for that of the longest."""
        return None if self.padding == "longest" else self.max_seq_length

    def tokenize(self, text) -> tf.RaggedTensor:
        """Returns the ids of the pieces, without special tokens.

        Args:
          text: Strings, [B] or scalar.

        Returns:
          int32 ids, ragged [B, (T)], or [T] for a scalar.
        """
        text = _strings(text)
        if text.shape.rank == 0:
            return self.tokenize(text[tf.newaxis])[0]
        words = tf.strings.split(self._normalize(text))
        lengths = tf.strings.length(words.values, unit="UTF8_CHAR")
        is_long = lengths > wordpiece.MAX_CHARACTERS_PER_WORD
        words = words.with_values(tf.where(is_long, "[UNK]", words.values))
        return self._wordpiece.tokenize(words).merge_dims(1, 2)

    def _pack(self, texts: list[tf.Tensor]) -> dict[str, tf.Tensor]:
        """`packing.pack` of one or two [B] tensors of strings, padded."""
        size = tf.shape(texts[0])[0]
        ids = self.tokenize(tf.concat(texts, axis=0))
        parts = self._truncate(
            [ids[:size], ids[size:]] if len(texts) == 2 else [ids]
        )
        sep = tf.fill([size, 1], self._sep_id)
        segments = [tf.concat([part, sep], axis=1) for part in parts]
        packed = tf.concat(
            [tf.fill([size, 1], self._cls_id), *segments], axis=1
        )
        input_ids = packed.to_tensor(
            self._pad_id, shape=[None, self._padded_length]
        )
        position = tf.range(tf.shape(input_ids, tf.int64)[1])
        input_mask = position < packed.row_lengths()[:, tf.newaxis]
        second = position > segments[0].row_lengths()[:, tf.newaxis]
        return {
            "input_ids": input_ids,
            "input_mask": tf.cast(input_mask, tf.int32),
            "segment_ids": tf.cast(input_mask & second, tf.int32),
        }

    def _truncate(self, parts: list[tf.RaggedTensor]) -> list[tf.RaggedTensor]:
        """Cuts one or two ragged [B, (T)] where they are too long."""
        if self.max_seq_length is None:
            return parts
        room = tf.constant(self.max_seq_length - 1 - len(parts), tf.int64)
        lengths = [part.row_lengths() for part in parts]
        if len(parts) == 1:
            keep = [tf.minimum(lengths[0], room)]
        else:
            keep = packing.truncated_lengths(
                *lengths, room, minimum=tf.minimum, maximum=tf.maximum
            )
        return [_cut(*pair) for pair in zip(parts, keep, strict=True)]

    def _normalize(self, text: tf.Tensor) -> tf.Tensor:
        """`Normalizer.__call__` on a [B] tensor of strings."""
        ascii_text = text
        if self._normalizer.do_lower_case:
            ascii_text = tf.strings.lower(text)
        ascii_text = tf.strings.regex_replace(
            ascii_text, _ASCII_PUNCTUATION, r" \1 "
        )
        is_plain = tf.strings.regex_full_match(text, _PLAIN_ASCII)
        others = tf.where(~is_plain)
        return tf.tensor_scatter_nd_update(
            ascii_text, others, self._replace(tf.gather_nd(text, others))
        )

    def _replace(self, text: tf.Tensor) -> tf.Tensor:
        """`_normalize` for any characters, by the table."""
        # The space keeps neighbours from different texts apart.
        decoded = tf.strings.unicode_decode(
            tf.strings.join([text, " "]), "UTF-8", errors="ignore"
        )
        sources = decoded.values  # [N]
        if self._normalizer.do_lower_case:
            sources = self._settle_sigma(sources)
        row = self._row_of(sources)
        outputs = tf.gather(self._rows, row)  # [N, 3]
        outputs = tf.where(
            outputs == tables.ITSELF, sources[:, tf.newaxis], outputs
        )
        exists = outputs != tables.NOTHING
        outputs = tf.boolean_mask(outputs, exists)  # [M]
        counts = tf.reduce_sum(tf.cast(exists, tf.int64), axis=1)  # [N]
        if self._normalizer.strip_accents:
            outputs = tf.cond(
                tf.reduce_any(row >= self._first_movable),
                lambda: self._canonical_order(outputs, sources, counts),
                lambda: outputs,
            )
        ends = tf.concat([[0], tf.cumsum(counts)], axis=0)
        splits = tf.gather(ends, decoded.row_splits)
        return tf.strings.unicode_encode(
            tf.RaggedTensor.from_row_splits(outputs, splits), "UTF-8"
        )

    def _settle_sigma(self, sources: tf.Tensor) -> tf.Tensor:
        """Puts the final sigma for each capital one that ends a word; [N]."""
        sigma = ord(normalization.SIGMA)

        def settle():
            traits = self._traits(sources)
            where = tf.where(traits & tables.SKIPPED == 0)  # [K, 1]
            seen = tf.gather_nd(sources, where)  # [K], ends with a space
            cased = tf.gather_nd(traits, where) & tables.CASED != 0
            cased_before = tf.concat([[False], cased[:-1]], axis=0)
            cased_behind = tf.concat([cased[1:], [False]], axis=0)
            final = (seen == sigma) & cased_before & ~cased_behind
            seen = tf.where(final, ord(normalization.FINAL_SIGMA), seen)
            return tf.tensor_scatter_nd_update(sources, where, seen)

        return tf.cond(tf.reduce_any(sources == sigma), settle, lambda: sources)

    def _canonical_order(
        self, outputs: tf.Tensor, sources: tf.Tensor, counts: tf.Tensor
    ) -> tf.Tensor:
        """Sorts marks as NFD does: `normalization`'s function on tensors.

        Args:
          outputs: Replaced code points, int32 [M].
          sources: The code points that they replace, int32 [N].
          counts: How many replace each, int64 [N].

        Returns:
          The outputs in their order.
        """
        bounds = self._traits(sources) & tables.WITHIN_RUN == 0
        run = tf.repeat(tf.cumsum(tf.cast(bounds, tf.int64)), counts)
        rank = self._traits(outputs) & tables.CLASS_BITS
        key = run * (tables.CLASS_BITS + 1) + tf.cast(rank, tf.int64)
        return tf.gather(outputs, tf.argsort(key, stable=True))


def _cut(ids: tf.RaggedTensor, keep: tf.Tensor) -> tf.RaggedTensor:
    """Keeps the first `keep[i]` of row i."""
    lengths = ids.row_lengths()
    inside = tf.ragged.range(lengths).values < tf.repeat(keep, lengths)
    return tf.RaggedTensor.from_row_lengths(
        tf.boolean_mask(ids.values, inside), keep
    )


def _parts(inputs) -> Sequence[Any]:
    """Returns the one text or the two of a pair.

    A pair is a tuple. Keras makes a list of it when it loads a model, so a
    list is a batch only if it holds strings of Python.
    """
    is_batch = not isinstance(inputs, tuple | list) or (
        isinstance(inputs, list)
        and all(isinstance(text, str | bytes) for text in inputs)
    )
    if is_batch:
        return [inputs]
    if len(inputs) != 2:
        raise InputError(
            "Expected a text or a tuple of two texts. Received: a tuple of "
            f"{len(inputs)}"
        )
    return inputs


def _strings(text) -> tf.Tensor:
    text = tf.convert_to_tensor(text, tf.string)
    if text.shape.rank not in (0, 1):
        raise InputError(
            "Expected one string, a batch of strings, or a tuple of two of "
            f"these. Received: shape {text.shape}"
        )
    return text


def _is_symbolic(inputs) -> bool:
    return any(
        isinstance(part, keras.KerasTensor)
        for part in keras.tree.flatten(inputs)
    )


def _wordpiece_tokenizer(
    vocabulary: Sequence[str],
) -> tf_text.FastWordpieceTokenizer:
    """Returns an op for words; what is too long is left to the caller."""
    try:
        return tf_text.FastWordpieceTokenizer(
            list(vocabulary),
            token_out_type=tf.int32,
            unknown_token="[UNK]",
            no_pretokenization=True,
            max_bytes_per_word=4 * wordpiece.MAX_CHARACTERS_PER_WORD,
        )
    except RuntimeError as error:
        raise InputError(
            "Expected a vocabulary that TensorFlow Text can hold. Received: "
            f"{error}"
        ) from None
