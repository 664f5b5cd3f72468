"""The tokenizer as a TensorFlow graph, for raw strings in a SavedModel.

It returns the same ids and offsets as `wordpiece.FullTokenizer`. Invalid UTF-8
is dropped. In eager mode, one op takes longer than `FullTokenizer` needs for a
short text, so the layer calls `FullTokenizer` instead.

Of TensorFlow Text's ops, TensorFlow Serving has only two. The graph uses one of
the two, FastWordpieceTokenizeWithOffsets; its other ops are TensorFlow's own.
"""

import functools
import itertools
import numbers
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import keras
import numpy as np
import tensorflow as tf

from bert_tf.errors import (
    InputError,
    require_choice,
    tensorflow_required,
    wrong_value,
)
from bert_tf.tokenization import packing, vocabulary_file, wordpiece
from bert_tf.tokenization.graph_normalization import (
    GraphNormalizer,
    drop_invalid_utf8,
)

_PADDINGS = ("max_length", "longest")
_FORMS = (
    "a text, a list of texts, a tuple of two of these, or a list of tuples of "
    "two texts"
)


def _graph_constant(make: Callable[[Any], Any]) -> functools.cached_property:
    """A property that is made when a graph first needs it.

    Captured constants are stored in a SavedModel once, however many functions
    use them.
    """

    def value(self):
        with tf.init_scope(), _on_cpu():
            return make(self)

    return functools.cached_property(value)


class Tokens(NamedTuple):
    """The tokens of B texts: int32, ragged [B, (T)]; see `wordpiece.Token`."""

    ids: tf.RaggedTensor
    starts: tf.RaggedTensor
    ends: tf.RaggedTensor


@keras.saving.register_keras_serializable(package="bert_tf")
class BertTokenizer(keras.layers.Layer):
    """Turns raw strings into the inputs of `BertModel`.

    A single text becomes `[CLS] text [SEP]`; a pair becomes
    `[CLS] a [SEP] b [SEP]`. With `max_seq_length`, longer sequences are
    truncated (see `packing.truncated_lengths`) and shorter ones are padded to
    that length or, with `padding="longest"`, to the longest of the batch.
    Without it, nothing is truncated and the batch is padded to its longest.

    Args:
      vocabulary: A path, or the tokens in the order of their ids.
      do_lower_case: Whether the vocabulary is uncased.
      strip_accents: Whether to strip accents. By default the same as
        `do_lower_case`.
      max_seq_length: The (largest) length S of the sequences; None for no
        limit.
      padding: "max_length" or "longest".

    Call arguments:
      inputs: Texts or pairs of texts:
        - a string, a list of strings, or a string tensor or array [] or [B].
        - a tuple `(first, second)` of two of these: one pair, or the first
          and second texts of B pairs. A list of two tensors means the same,
          because Keras converts one to the other.
        - a list of tuples of two strings: B pairs.

    Returns (when called):
      A dict of input_ids, input_mask and segment_ids: int32, [B, S], or [S]
      for a scalar.

    Raises:
      InputError: If the vocabulary is unusable or lacks one of [PAD], [UNK],
        [CLS] and [SEP]; or if `max_seq_length`, `padding` or the inputs are
        invalid.
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
        self.supports_jit = False  # XLA has no string ops.
        if max_seq_length is not None and not (
            isinstance(max_seq_length, numbers.Integral) and max_seq_length >= 3
        ):
            raise wrong_value(
                "max_seq_length",
                "an integer of at least 3, for [CLS] and two [SEP]",
                max_seq_length,
            )
        require_choice("padding", padding, _PADDINGS)
        # Another object holds the vocabulary: if the layer had a tuple, Keras
        # would track its tokens, which takes 0.1 s.
        self._python = wordpiece.FullTokenizer(
            vocabulary, do_lower_case, strip_accents
        )
        vocab, names = self._python.vocab, ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
        vocabulary_file.require_special_tokens(
            vocab, names, vocabulary_file.source_of(vocabulary)
        )
        self.max_seq_length = max_seq_length
        self.padding = padding
        self._pad_id, self._unk_id, self._cls_id, self._sep_id = map(
            vocab.__getitem__, names
        )

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self._python.description}, "
            f"max_seq_length={self.max_seq_length}>"
        )

    @_graph_constant
    def _normalizer(self) -> GraphNormalizer:
        return GraphNormalizer(self.do_lower_case, self.strip_accents)

    @_graph_constant
    def _piece_lengths(self) -> tf.Tensor:
        prefix = vocabulary_file.CONTINUATION
        return tf.constant(
            [len(token.removeprefix(prefix)) for token in self.vocabulary]
        )

    @_graph_constant
    def _wordpiece(self) -> Any:
        # Training works without TensorFlow Text, which has no release for
        # Windows.
        with tensorflow_required("The tokenizer in a graph"):
            import tensorflow_text as tf_text

        try:
            return tf_text.FastWordpieceTokenizer(
                list(self.vocabulary),
                token_out_type=tf.int32,
                unknown_token="[UNK]",
                no_pretokenization=True,
                max_bytes_per_word=4 * wordpiece.MAX_CHARACTERS_PER_WORD,
            )
        except RuntimeError as error:
            raise InputError(
                f"TensorFlow Text cannot use this vocabulary: {error}"
            ) from None

    @classmethod
    def from_pretrained(
        cls, path: str | os.PathLike[str], **options: Any
    ) -> Self:
        """Returns the tokenizer of a checkpoint of any format.

        Args:
          path: See `load_checkpoint`.
          **options: Arguments of the constructor; they take precedence.

        Raises:
          InputError: If the checkpoint cannot be read or has no vocabulary.
        """
        # Takes a tenth of a second to import.
        from bert_tf.checkpoints import pretrained

        return cls(**pretrained.tokenizer_arguments(path) | options)

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """The tokens in the order of their ids."""
        return self._python.vocabulary

    @property
    def do_lower_case(self) -> bool:
        """Whether the vocabulary is uncased."""
        return self._python.do_lower_case

    @property
    def strip_accents(self) -> bool:
        """Whether accents are stripped."""
        return self._python.strip_accents

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments; tokens replace a path."""
        return super().get_config() | {
            "vocabulary": list(self.vocabulary),
            "do_lower_case": self.do_lower_case,
            "strip_accents": self.strip_accents,
            "max_seq_length": self.max_seq_length,
            "padding": self.padding,
        }

    def __call__(self, inputs, **unused):
        # Keras's __call__ does not take Python strings. On backends other than
        # TensorFlow, where tf.data calls this layer, it takes no strings.
        # Like Keras, this ignores arguments such as `training`.
        if any(
            isinstance(part, keras.KerasTensor)
            for part in keras.tree.flatten(inputs)
        ):
            # Checked here because Keras adds many lines to errors of `call`.
            _check_shapes(_parts(inputs))
            return super().__call__(inputs)
        return self.call(inputs)

    def call(self, inputs):
        parts = _parts(inputs)
        if strings := _eager_strings(parts):
            columns, is_scalar = strings
            batch = self._encode_in_python(columns)
            with _on_cpu():
                return {
                    name: tf.constant(values[0] if is_scalar else values)
                    for name, values in batch.items()
                }
        texts = [_strings(text) for text in parts]
        _check_shapes(texts)
        is_scalar = texts[0].shape.rank == 0
        with _on_cpu():
            texts = [tf.reshape(t, [-1]) if is_scalar else t for t in texts]
            size = tf.shape(texts[0])[0]
            ids = self.tokenize(tf.concat(texts, axis=0))
            pairs = [ids] if len(texts) == 1 else [ids[:size], ids[size:]]
            batch = self.pack(pairs)
            return {
                name: values[0] if is_scalar else values
                for name, values in batch.items()
            }

    def compute_output_spec(self, inputs):
        shape = (*_parts(inputs)[0].shape, self._padded_length)
        return {
            name: keras.KerasTensor(shape, "int32")
            for name in ("input_ids", "input_mask", "segment_ids")
        }

    @property
    def _padded_length(self) -> int | None:
        """The length of all sequences; None for the longest one's length."""
        return None if self.padding == "longest" else self.max_seq_length

    def tokenize(self, text, keep: str | None = None) -> tf.RaggedTensor:
        """Returns token ids without special tokens.

        Args:
          text: Strings, [B] or scalar.
          keep: A token, such as "[MASK]", that is not split where a text
            contains it. The parts between are tokenized as separate texts.

        Returns:
          int32 ids, ragged [B, (T)], or [T] for a scalar.
        """
        text = _strings(text)
        if text.shape.rank == 0:
            return self.tokenize(text[tf.newaxis], keep)[0]
        with _on_cpu():
            if keep is None:
                pieces, _ = self._split(self._normalizer(text))
                return pieces.merge_dims(1, 2)
            between = tf.strings.split(drop_invalid_utf8(text), keep)
            ids = self.tokenize(between.values)
            kept = tf.fill([ids.nrows(), 1], self.vocabulary.index(keep))
            ids = between.with_values(tf.concat([ids, kept], axis=1))
            ids = ids.merge_dims(1, 2)  # With an extra `keep` at the end.
            return _cut(ids, ids.row_lengths() - 1)

    def tokenize_with_offsets(self, text) -> Tokens:
        """Returns the tokens and the characters they come from.

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
            # Each token takes the next characters of `starts`.
            lengths = self._characters(pieces, word_lengths)
            first = tf.cumsum(lengths, exclusive=True)[:, tf.newaxis]
            is_first = tf.scatter_nd(
                first, tf.ones_like(lengths), tf.shape(starts)
            )
            piece = tf.cumsum(is_first) - 1
            # NFD may have reordered combining marks, hence min and max.
            return Tokens(
                ids,
                ids.with_values(tf.math.segment_min(starts, piece)),
                ids.with_values(tf.math.segment_max(ends, piece)),
            )

    def pack(
        self, parts: Sequence[tf.RaggedTensor], empty_second: bool = True
    ) -> dict[str, tf.Tensor]:
        """Adds special tokens to token ids, truncates and pads them.

        Args:
          parts: int32 ids, ragged [B, (T)]: of the texts; or of the first and
            of the second texts of pairs.
          empty_second: Whether a second text without tokens gets a [SEP]. In
            `tasks.encoding`, as in the original, it does not.

        Returns:
          A dict of input_ids, input_mask and segment_ids, int32 [B, S] with S
          at least 1: the result of calling the layer.
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

    def _encode_in_python(
        self, columns: Sequence[list[str]]
    ) -> dict[str, np.ndarray]:
        """Encodes texts with a cache instead of 150 eager ops."""
        encode, is_pair = self._python.encode, len(columns) == 2
        rows = [
            packing.pack(
                encode(first),
                encode(second) if is_pair else None,
                self.max_seq_length or sys.maxsize,
                self._cls_id,
                self._sep_id,
            )
            for first, second in zip(columns[0], columns[-1], strict=True)
        ]
        lengths = np.array([len(ids) for ids, _ in rows])
        length = self._padded_length or lengths.max()
        input_mask = np.arange(length) < lengths[:, np.newaxis]
        input_ids = np.full(input_mask.shape, self._pad_id, np.int32)
        segment_ids = np.zeros_like(input_ids)
        ids, segments = map(
            itertools.chain.from_iterable, zip(*rows, strict=True)
        )
        input_ids[input_mask] = list(ids)
        if is_pair:
            segment_ids[input_mask] = list(segments)
        return {
            "input_ids": input_ids,
            "input_mask": input_mask.astype(np.int32),
            "segment_ids": segment_ids,
        }

    def _split(self, text: tf.Tensor) -> tuple[tf.RaggedTensor, tf.Tensor]:
        """Splits normalized strings [B] into words, and words into tokens.

        Returns token ids, ragged [B, (words), (tokens)], and the number of
        characters of each word, int32 [words of all texts].
        """
        words = tf.strings.split(text)
        lengths = tf.strings.length(words.values, unit="UTF8_CHAR")
        is_long = lengths > wordpiece.MAX_CHARACTERS_PER_WORD
        words = words.with_values(tf.where(is_long, "[UNK]", words.values))
        return self._wordpiece.tokenize(words), lengths

    def _characters(
        self, pieces: tf.RaggedTensor, word_lengths: tf.Tensor
    ) -> tf.Tensor:
        """Returns the number of characters that each token covers, [tokens]."""
        ids = pieces.flat_values
        is_unknown = ids == self._unk_id
        # [UNK] is the only token of its word and covers all of it.
        of_word = tf.gather(is_unknown, pieces.values.row_starts())
        return tf.tensor_scatter_nd_update(
            tf.gather(self._piece_lengths, ids),
            tf.where(is_unknown),
            tf.boolean_mask(word_lengths, of_word),
        )

    def _pad(self, packed: tf.RaggedTensor) -> tf.Tensor:
        """Pads rows to a matrix, int32 [B, S]."""
        if self._padded_length is not None:
            return packed.to_tensor(
                self._pad_id, shape=[None, self._padded_length]
            )
        # Keep the length at least 1 for empty batches: models read [CLS].
        length = tf.maximum(packed.bounding_shape(axis=1), 1)
        return packed.to_tensor(self._pad_id, shape=tf.stack([-1, length]))

    def _truncate(
        self, parts: Sequence[tf.RaggedTensor], num_special: tf.Tensor
    ) -> Sequence[tf.RaggedTensor]:
        """Truncates one or two [B, (T)] to make room for special tokens."""
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
    """Keeps table lookups off the GPU, next to the string ops."""
    return tf.device("CPU:0")


def _cut(ids: tf.RaggedTensor, keep: tf.Tensor) -> tf.RaggedTensor:
    """Keeps the first `keep[i]` items of row i."""
    lengths = ids.row_lengths()
    inside = tf.ragged.range(lengths).values < tf.repeat(keep, lengths)
    return tf.RaggedTensor.from_row_lengths(
        tf.boolean_mask(ids.values, inside), keep
    )


def _parts(inputs) -> Sequence[Any]:
    """Returns [texts], or the first and the second texts of pairs."""
    if not isinstance(inputs, tuple | list):
        return [inputs]
    is_mixed = False
    if isinstance(inputs, list):
        if all(isinstance(text, str | bytes) for text in inputs):
            return [inputs]
        if all(isinstance(pair, tuple) and len(pair) == 2 for pair in inputs):
            return [list(column) for column in zip(*inputs, strict=True)]
        is_mixed = any(
            isinstance(x, str | bytes | tuple | list) for x in inputs
        )
    if is_mixed or len(inputs) != 2:
        raise wrong_value("The input", _FORMS, inputs)
    return inputs


def _eager_strings(parts: Sequence[Any]) -> tuple[list[list[str]], bool] | None:
    """Returns the texts as lists, and whether each part was a single text.

    None in a graph, for no texts, for values that are not strings, and for
    parts of different shapes.
    """
    if not tf.executing_eagerly():
        return None
    arrays = [np.array(part, object) for part in parts]
    columns = [array.reshape(-1).tolist() for array in arrays]
    kinds = {type(text) for column in columns for text in column}
    is_odd = arrays[0].ndim > 1 or arrays[0].shape != arrays[-1].shape
    if is_odd or not kinds or kinds - {str, bytes}:
        return None
    texts = [
        [t if type(t) is str else t.decode(errors="ignore") for t in column]
        for column in columns
    ]
    return texts, arrays[0].ndim == 0


def _strings(text) -> tf.Tensor:
    try:
        text = tf.convert_to_tensor(text, tf.string)
    except (TypeError, ValueError):
        raise wrong_value("The input", _FORMS, text) from None
    _check_shapes([text])
    return text


def _check_shapes(texts: Sequence[Any]) -> None:
    first, *others = (tf.TensorShape(text.shape) for text in texts)
    if first.rank not in (0, 1):
        raise wrong_value("The shape of the texts", "[] or [B]", first)
    if not all(map(first.is_compatible_with, others)):
        raise InputError(
            "A tuple must have the same number of first and second texts; got "
            f"the shapes {first} and {others[0]}."
        )
