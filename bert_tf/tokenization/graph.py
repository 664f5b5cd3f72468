"""The tokenizer inside a TensorFlow graph, for raw strings in a SavedModel.

It gives the ids and the offsets of `wordpiece.FullTokenizer` for every string,
and for bytes that are not UTF-8 too (they are dropped).

TensorFlow Serving knows two ops of TensorFlow Text; the graph holds one of
them, FastWordpieceTokenizeWithOffsets, and otherwise nothing but core ops.
"""

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf
import tensorflow_text as tf_text

from bert_tf.errors import InputError
from bert_tf.tokenization import packing, wordpiece
from bert_tf.tokenization.graph_normalization import (
    GraphNormalizer,
    drop_invalid_utf8,
)

_PADDINGS = ("max_length", "longest")


class Tokens(NamedTuple):
    """The pieces of texts and where they came from: `wordpiece.Token` in rows.

    Attributes:
      ids: Their ids, int32, ragged [B, (T)].
      starts: Index of the first character of each, int32, ragged [B, (T)].
      ends: Index behind the last, dropped accents included.
    """

    ids: tf.RaggedTensor
    starts: tf.RaggedTensor
    ends: tf.RaggedTensor


@keras.saving.register_keras_serializable(package="bert_tf")
class BertTokenizer(keras.layers.Layer):
    """Raw strings in, what `BertModel` takes out.

    A single text becomes `[CLS] text [SEP]`; a pair becomes
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
      inputs: Texts or pairs of texts:
        - a string, a list of strings, or a string tensor or array [] or [B].
        - a tuple `(first, second)` of two of these: one pair, or the first
          and the second texts of B pairs. A list of two tensors is read as
          such a tuple, because Keras turns one into the other.
        - a list of tuples of two strings: B pairs.

    Returns (when called):
      A dict of input_ids, input_mask and segment_ids: int32, [B, S], or [S]
      for a scalar.

    Raises:
      InputError: If the vocabulary is unusable or lacks one of [PAD], [UNK],
        [CLS] and [SEP], if `max_seq_length` is below 3, if `padding` is
        neither of the two, or if the inputs have another form.
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
        # XLA cannot compile string ops, and Keras would ask it to on a GPU.
        self.supports_jit = False
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
        self._pad_id, self._unk_id, self._cls_id, self._sep_id = (
            vocab[token] for token in ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
        )
        # There are no kernels for strings elsewhere. What is captured as a
        # constant is in a SavedModel once, however many functions use it.
        with tf.device("CPU:0"):
            self._normalizer = GraphNormalizer(do_lower_case, strip_accents)
            self._piece_lengths = tf.constant(
                [
                    len(token.removeprefix(wordpiece.CONTINUATION))
                    for token in vocab
                ]
            )
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
            # Keras adds many lines to an error that `call` raises.
            texts = _parts(inputs)
            for text in texts:
                _check_rank(text.shape)
            _check_same_shape(texts)
            return super().__call__(inputs)
        return self.call(inputs)

    def call(self, inputs):
        texts = [_strings(text) for text in _parts(inputs)]
        _check_same_shape(texts)
        with _on_cpu():
            if texts[0].shape.rank == 0:
                batch = self._encode([text[tf.newaxis] for text in texts])
                return {name: values[0] for name, values in batch.items()}
            return self._encode(texts)

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

    def tokenize(self, text, keep: str | None = None) -> tf.RaggedTensor:
        """Returns the ids of the pieces, without special tokens.

        Args:
          text: Strings, [B] or scalar.
          keep: A token that stands for itself where a text spells it, "[MASK]"
            say. What is between two of them is a text of its own.

        Returns:
          int32 ids, ragged [B, (T)], or [T] for a scalar.

        Raises:
          InputError: If `keep` is not in the vocabulary.
        """
        text = _strings(text)
        if text.shape.rank == 0:
            return self.tokenize(text[tf.newaxis], keep)[0]
        with _on_cpu():
            if keep is None:
                pieces, _ = self._split(self._normalizer(text))
                return pieces.merge_dims(1, 2)
            return self._tokenize_between(text, keep)

    def tokenize_with_offsets(self, text) -> Tokens:
        """Returns the pieces and the characters that made them.

        Args:
          text: Strings, [B] or scalar.

        Returns:
          Ids and offsets, ragged [B, (T)], or [T] for a scalar. The offsets
          count the characters of the text after `drop_invalid_utf8`.
        """
        text = _strings(text)
        if text.shape.rank == 0:
            rows = self.tokenize_with_offsets(text[tf.newaxis])
            return Tokens(*(row[0] for row in rows))
        with _on_cpu():
            normalized, starts, ends = self._normalizer.align(text)
            pieces, word_lengths = self._split(normalized)
            ids = pieces.merge_dims(1, 2)
            # The pieces use up the characters of `starts` one after another.
            lengths = self._characters(pieces, word_lengths)
            first = tf.cumsum(lengths, exclusive=True)[:, tf.newaxis]
            is_first = tf.scatter_nd(
                first, tf.ones_like(lengths), tf.shape(starts)
            )
            piece = tf.cumsum(is_first) - 1
            # Marks may have changed places: hence min and max.
            return Tokens(
                ids,
                ids.with_values(tf.math.segment_min(starts, piece)),
                ids.with_values(tf.math.segment_max(ends, piece)),
            )

    def pack(
        self, parts: Sequence[tf.RaggedTensor], empty_second: bool = True
    ) -> dict[str, tf.Tensor]:
        """Makes of ids what the layer, when called, makes of strings.

        Args:
          parts: int32 ids, ragged [B, (T)]: of texts, or of both of pairs.
          empty_second: Whether a second text without any piece is one, with a
            [SEP] of its own; in `data.features`, as in the original, not.

        Returns:
          A dict of input_ids, input_mask and segment_ids, int32 [B, S]: with
          [CLS] and [SEP], cut where too long, and padded. S is 1 or more.
        """
        with _on_cpu():
            size = parts[0].nrows()
            seps = [tf.fill([size, 1], self._sep_id)] * len(parts)
            num_special = tf.constant(1 + len(parts), tf.int64)
            if len(parts) == 2 and not empty_second:
                exists = tf.cast(parts[1].row_lengths() > 0, tf.int64)
                seps[1] = _cut(tf.RaggedTensor.from_tensor(seps[1]), exists)
                num_special = 2 + exists
            segments = [
                tf.concat(segment, axis=1)
                for segment in zip(
                    self._truncate(parts, num_special), seps, strict=True
                )
            ]
            packed = tf.concat(
                [tf.fill([size, 1], self._cls_id), *segments], axis=1
            )
            input_ids = self._pad(packed)
            position = tf.range(tf.shape(input_ids, tf.int64)[1])
            input_mask = position < packed.row_lengths()[:, tf.newaxis]
            second = position > segments[0].row_lengths()[:, tf.newaxis]
            return {
                "input_ids": input_ids,
                "input_mask": tf.cast(input_mask, tf.int32),
                "segment_ids": tf.cast(input_mask & second, tf.int32),
            }

    def _encode(self, texts: list[tf.Tensor]) -> dict[str, tf.Tensor]:
        """Tokenizes and packs one or two [B] tensors of strings."""
        ids = self.tokenize(tf.concat(texts, axis=0))
        if len(texts) == 1:
            return self.pack([ids])
        size = tf.shape(texts[0])[0]
        return self.pack([ids[:size], ids[size:]])

    def _split(self, text: tf.Tensor) -> tuple[tf.RaggedTensor, tf.Tensor]:
        """Splits normalized strings [B] into words, and these into pieces.

        Returns:
          Ids of the pieces, ragged [B, (words), (pieces)], and how many
          characters the words have, int32 [words of all texts].
        """
        words = tf.strings.split(text)
        lengths = tf.strings.length(words.values, unit="UTF8_CHAR")
        is_long = lengths > wordpiece.MAX_CHARACTERS_PER_WORD
        words = words.with_values(tf.where(is_long, "[UNK]", words.values))
        return self._wordpiece.tokenize(words), lengths

    def _characters(
        self, pieces: tf.RaggedTensor, word_lengths: tf.Tensor
    ) -> tf.Tensor:
        """How many characters of its word each piece stands for, [pieces]."""
        ids = pieces.flat_values
        is_unknown = ids == self._unk_id
        # Unknown is a whole word, whose first piece is the only one.
        of_word = tf.gather(is_unknown, pieces.values.row_starts())
        return tf.tensor_scatter_nd_update(
            tf.gather(self._piece_lengths, ids),
            tf.where(is_unknown),
            tf.boolean_mask(word_lengths, of_word),
        )

    def _tokenize_between(self, text: tf.Tensor, keep: str) -> tf.RaggedTensor:
        """`tokenize` with something to keep."""
        if not keep or keep not in self.vocabulary:
            raise InputError(
                "Expected what to keep to be a token of the vocabulary. "
                f"Received: {keep!r}"
            )
        between = tf.strings.split(drop_invalid_utf8(text), keep)
        ids = self.tokenize(between.values)
        kept = tf.fill([ids.nrows(), 1], self.vocabulary.index(keep))
        ids = between.with_values(tf.concat([ids, kept], axis=1))
        ids = ids.merge_dims(1, 2)  # with one too many at the end
        return _cut(ids, ids.row_lengths() - 1)

    def _pad(self, packed: tf.RaggedTensor) -> tf.Tensor:
        """Makes a matrix of rows, int32 [B, S]."""
        if self._padded_length is not None:
            return packed.to_tensor(
                self._pad_id, shape=[None, self._padded_length]
            )
        # No texts have a length as well: models look at the first place.
        length = tf.maximum(packed.bounding_shape(axis=1), 1)
        return packed.to_tensor(self._pad_id, shape=tf.stack([-1, length]))

    def _truncate(
        self, parts: Sequence[tf.RaggedTensor], num_special: tf.Tensor
    ) -> Sequence[tf.RaggedTensor]:
        """Cuts one or two ragged [B, (T)] where they are too long.

        Args:
          parts: What is cut.
          num_special: How many [CLS] and [SEP] stand beside it, int64, scalar
            or [B].
        """
        if self.max_seq_length is None:
            return parts
        room = self.max_seq_length - num_special
        lengths = [part.row_lengths() for part in parts]
        if len(parts) == 1:
            keep = [tf.minimum(lengths[0], room)]
        else:
            keep = packing.truncated_lengths(
                *lengths, room, minimum=tf.minimum, maximum=tf.maximum
            )
        return [_cut(*pair) for pair in zip(parts, keep, strict=True)]


def _on_cpu():
    """Without this, single lookups would be placed on a GPU."""
    return tf.device("CPU:0")


def _cut(ids: tf.RaggedTensor, keep: tf.Tensor) -> tf.RaggedTensor:
    """Keeps the first `keep[i]` of row i."""
    lengths = ids.row_lengths()
    inside = tf.ragged.range(lengths).values < tf.repeat(keep, lengths)
    return tf.RaggedTensor.from_row_lengths(
        tf.boolean_mask(ids.values, inside), keep
    )


def _parts(inputs) -> Sequence[Any]:
    """Returns the texts, or the first and the second texts of pairs."""
    if not isinstance(inputs, tuple | list):
        return [inputs]
    if isinstance(inputs, list):
        if all(isinstance(text, str | bytes) for text in inputs):
            return [inputs]
        if all(isinstance(pair, tuple) for pair in inputs):
            return _columns(inputs)
        if any(isinstance(x, str | bytes | tuple | list) for x in inputs):
            kinds = sorted({type(x).__name__ for x in inputs})
            raise InputError(
                "Expected a list of strings or of tuples of two strings. "
                f"Received: a list of {', '.join(kinds)}"
            )
    if len(inputs) != 2:
        raise InputError(
            "Expected a text or a tuple of two texts. Received: a tuple of "
            f"{len(inputs)}"
        )
    return inputs


def _columns(pairs: list[tuple]) -> list[list]:
    """Splits a batch of pairs of strings into first and second texts."""
    for index, pair in enumerate(pairs):
        is_text = [isinstance(text, str | bytes) for text in pair]
        if is_text != [True, True]:
            raise InputError(
                "Expected a tuple of two strings for every pair of a list. "
                f"Received: {pair!r} at {index}"
            )
    return [list(column) for column in zip(*pairs, strict=True)]


def _strings(text) -> tf.Tensor:
    text = tf.convert_to_tensor(text, tf.string)
    _check_rank(text.shape)
    return text


def _check_rank(shape) -> None:
    if tf.TensorShape(shape).rank not in (0, 1):
        raise InputError(
            "Expected one string, a batch of strings, or a tuple of two of "
            f"these. Received: shape {shape}"
        )


def _check_same_shape(texts: Sequence[Any]) -> None:
    first, second = texts[0].shape, texts[-1].shape
    if not tf.TensorShape(first).is_compatible_with(second):
        raise InputError(
            "Expected as many first texts as second texts in a tuple. "
            f"Received: shapes {first} and {second}"
        )


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
