"""Tags of words, of named entities for example, with where the words stand.

What `data.tagged_sentences` does for files is done here in a graph: the same
pieces of the same words in the same rows.
"""

from collections.abc import Mapping
from typing import NamedTuple

import keras
import tensorflow as tf

from bert_tf.serving.served import Served, in_parts, shown
from bert_tf.tasks.ner import TaggingEncoding

# What `str.split` of Python takes for white space: ASCII's and Unicode's.
WHITE_SPACE = tuple(
    code for code in range(ord("\u3000") + 1) if chr(code).isspace()
)


class Words(NamedTuple):
    """The words of B texts, each a ragged [B, (W)].

    Attributes:
      strings: The words; what is not UTF-8 is not in them.
      starts: The first character of each, int32; counted from 0 in the text
        without what is not UTF-8.
      ends: The character behind its last, int32.
    """

    strings: tf.RaggedTensor
    starts: tf.RaggedTensor
    ends: tf.RaggedTensor


class _Rows(NamedTuple):
    """The words of B texts as a model takes them, in R rows.

    Attributes:
      features: `FEATURES`, int32 [R, S].
      texts: The text that each row is of, int64 [R], in order.
      first_pieces: The place of each word's first piece, int64 [words, 2]: its
        row, and where in it.
    """

    features: dict[str, tf.Tensor]
    texts: tf.Tensor
    first_pieces: tf.Tensor


def split_words(texts: tf.Tensor) -> Words:
    """`text.split()` of Python for strings [B], with places."""
    # The space keeps neighbours from different texts apart.
    characters = tf.strings.unicode_decode(
        tf.strings.join([texts, " "]), "UTF-8", errors="ignore"
    )
    codes = characters.values  # [N]
    is_space = tf.reduce_any(codes[:, tf.newaxis] == WHITE_SPACE, axis=1)
    space_before = tf.concat([[True], is_space[:-1]], axis=0)
    space_behind = tf.concat([is_space[1:], [True]], axis=0)
    starts = tf.where(~is_space & space_before)[:, 0]  # [words]
    ends = tf.where(~is_space & space_behind)[:, 0] + 1
    letters = tf.RaggedTensor.from_row_lengths(
        tf.boolean_mask(codes, ~is_space), ends - starts, validate=False
    )
    text_of = tf.gather(characters.value_rowids(), starts)
    begin = tf.gather(characters.row_starts(), text_of)

    def by_text(values):
        return tf.RaggedTensor.from_value_rowids(
            values, text_of, nrows=characters.nrows(), validate=False
        )

    return Words(
        by_text(tf.strings.unicode_encode(letters, "UTF-8")),
        by_text(tf.cast(starts - begin, tf.int32)),
        by_text(tf.cast(ends - begin, tf.int32)),
    )


class ServedTagger(Served):
    """Strings in, a tag for each word out.

    Words are what white space separates, as Python's `str.split` does it:
    tabs, line breaks, a no-break space and the ideographic one too. They are
    what stood in the column of words when the model was trained, and CoNLL
    files have punctuation in words of its own: "lives in Bonn ." gets better
    tags than "lives in Bonn.", whose last word is one that was never seen.

    A text that is too long for `max_seq_length` is tagged in several rows, and
    no word is lost. Tags are those that `run_ner.py` predicts for such
    sentences: a word is told at its first piece; one of no piece at all, a
    control character for example, is `[UNK]`.

    Args:
      model: A `BertTokenClassifier` or a `BertFeatureTagger`, built.
      encoding: How sentences became features when it was trained; it has the
        tags in the order of the logits.
    """

    kind = "tagger"

    def __init__(self, model: keras.Model, encoding: TaggingEncoding):
        super().__init__(model, encoding, encoding.labels)

    @property
    def inputs(self) -> dict[str, tf.TensorSpec]:
        return {"text": tf.TensorSpec([None], tf.string, "text")}

    @property
    def example(self) -> dict[str, list]:
        return {
            "text": [
                "George Washington went to Washington .",
                "The European Commission sits in Brussels .",
            ]
        }

    def answer(self, texts: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """The tags of the words of each text.

        Args:
          texts: `text`, strings [B].

        Returns:
          Dict of `num_words`, int32 [B], and of arrays [B, W] for the W of the
          longest text, padded: `words`, strings, "" behind the last;
          `starts` and `ends`, int32, the characters of the text that the word
          is, -1 behind the last; `tags`, strings, "" behind the last, and
          `probabilities`, float32, of these, 0 behind the last.
        """
        words = self._words(texts)
        rows = self._rows(words.strings)
        tags, probabilities = self._best(
            tf.gather_nd(self._logits(rows.features), rows.first_pieces)
        )
        by_text = words.strings.with_values
        num_words = words.strings.row_lengths()
        return {
            "num_words": tf.cast(num_words, tf.int32),
            "words": words.strings.to_tensor(),
            "starts": words.starts.to_tensor(-1),
            "ends": words.ends.to_tensor(-1),
            "tags": by_text(tags).to_tensor(),
            "probabilities": by_text(probabilities).to_tensor(),
        }

    def answer_tokens(
        self, features: Mapping[str, tf.Tensor]
    ) -> dict[str, tf.Tensor]:
        """A tag for each piece; only those of words' first ones were learned.

        Args:
          features: `FEATURES`, int32 [B, S].

        Returns:
          Dict of `tags`, strings [B, S], "" in the padding; `tag_ids`, their
          numbers, int32 [B, S], there -1; and of their `probabilities`,
          float32 [B, S], there 0.
        """
        logits = self.model(features)["logits"]
        tags, probabilities = self._best(logits)
        tag_ids = tf.argmax(logits, axis=-1, output_type=tf.int32)
        is_piece = features["input_mask"] > 0
        return {
            "tags": tf.where(is_piece, tags, ""),
            "tag_ids": tf.where(is_piece, tag_ids, -1),
            "probabilities": tf.where(is_piece, probabilities, 0.0),
        }

    def features(self, texts: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """`FEATURES`, int32 [R, S]: the rows of all texts, in their order."""
        return self._rows(self._words(texts).strings).features

    def tokenize(self, texts: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """What the model sees.

        Returns:
          Dict of `num_rows`, int32 [B]; `tokens` and `FEATURES`, [B, R, S] for
          the R of the text of most rows: the rows of each text, and behind
          its last such of padding alone.
        """
        rows = self._rows(self._words(texts).strings)
        num_rows, seen = shown(
            self, rows.features, rows.texts, tf.size(texts["text"])
        )
        return {"num_rows": num_rows, **seen}

    def _words(self, texts: Mapping[str, tf.Tensor]) -> Words:
        # There are no kernels for strings elsewhere.
        with tf.device("CPU:0"):
            return split_words(self.checked(texts)["text"])

    def _logits(self, features: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """The logits of all rows, float32 [R, S, C]."""
        length = tf.shape(features["input_ids"])[1]
        nothing = {"logits": tf.zeros([0, length, len(self.labels)])}
        return in_parts(self.model, features, nothing)["logits"]

    def _best(self, logits: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The likeliest tags and their probabilities, [...] of [..., C]."""
        probabilities = tf.nn.softmax(logits)
        tags = self.label_names(tf.argmax(logits, axis=-1))
        return tags, tf.reduce_max(probabilities, axis=-1)

    def _rows(self, words: tf.RaggedTensor) -> _Rows:
        """Splits texts where they are too long: `make_tagging_features`.

        Args:
          words: Strings [B, (W)].
        """
        with tf.device("CPU:0"):
            pieces = self._pieces(words.values)  # [words, (P)]
            borders = pieces.row_splits  # [words + 1]
            begins = _row_begins(words, borders, self._room)  # [words]
            row_of = tf.cumsum(begins) - 1
            ids = tf.RaggedTensor.from_value_rowids(
                pieces.values,
                tf.repeat(row_of, pieces.row_lengths()),
                nrows=tf.reduce_sum(begins),
                validate=False,
            )  # [R, (S - 2)]
            place = borders[:-1] - tf.gather(ids.row_starts(), row_of)
            return _Rows(
                self.tokenizer.pack([ids]),
                tf.boolean_mask(words.value_rowids(), begins > 0),
                # [CLS] is the first.
                tf.stack([row_of, place + 1], axis=1),
            )

    @property
    def _room(self) -> int:
        """Pieces of a row, between [CLS] and [SEP]."""
        return self.encoding.max_seq_length - 2

    def _pieces(self, words: tf.Tensor) -> tf.RaggedTensor:
        """The ids of each word, one to as many as a row takes: [words, (P)]."""
        pieces = self.tokenizer.tokenize(words)
        is_none = tf.cast(pieces.row_lengths() == 0, tf.int64)
        unknown = tf.RaggedTensor.from_row_lengths(
            tf.fill(
                [tf.reduce_sum(is_none)], self.encoding.vocab.index("[UNK]")
            ),
            is_none,
            validate=False,
        )
        return tf.concat([pieces, unknown], axis=1)[:, : self._room]


def _row_begins(
    words: tf.RaggedTensor, borders: tf.Tensor, room: int
) -> tf.Tensor:
    """Where rows begin: each takes as many words of a text as it has room for.

    Args:
      words: Of each text, [B, (W)].
      borders: The pieces before each word, and all of them: int64 [words + 1].
        No word has more than `room`.
      room: The pieces of a row.

    Returns:
      1 for a word that begins a row, else 0: int64 [words].
    """
    # Word number `num_words` is none: there texts go when they are done.
    num_words = tf.size(words.values, tf.int64)
    last = tf.gather(words.row_limits(), words.value_rowids())
    last = tf.concat([last, [num_words]], axis=0)  # [words + 1]
    following = tf.searchsorted(
        borders, borders + room, side="right", out_type=tf.int64
    )
    following = tf.where(following - 1 < last, following - 1, num_words)
    first = tf.where(words.row_lengths() > 0, words.row_starts(), num_words)

    def step(begins, word):
        begins = tf.tensor_scatter_nd_update(
            begins, word[:, tf.newaxis], tf.ones_like(word)
        )
        return begins, tf.gather(following, word)

    # Once for each row of the longest text.
    begins, _ = tf.while_loop(
        lambda _, word: tf.reduce_any(word < num_words),
        step,
        (tf.zeros_like(borders), first),
    )
    return begins[:-1]
