"""Tags words in a graph, for example named entities.

The graph makes the same rows of the same tokens as
`conll_files.TaggingEncoding` does in NumPy.
"""

from typing import NamedTuple

import keras
import tensorflow as tf

from bert_tf.kinds.tags.conll_files import TaggingEncoding
from bert_tf.kinds.tags.task import TaggingTask
from bert_tf.serving.served import Served, Tensors, in_batches

# All white space, ASCII and Unicode, at which `str.split` of Python splits.
WHITE_SPACE = tuple(
    code for code in range(ord("\u3000") + 1) if chr(code).isspace()
)


class Words(NamedTuple):
    """The words of B texts, each a ragged [B, (W)].

    Attributes:
      strings: The words, without invalid UTF-8.
      starts: Index of the first character of each word in the text without
        invalid UTF-8, int32.
      ends: Index after the last character of each word, int32.
    """

    strings: tf.RaggedTensor
    starts: tf.RaggedTensor
    ends: tf.RaggedTensor


class _Rows(NamedTuple):
    """The words of B texts in R rows of the model.

    Attributes:
      features: `INPUTS`, int32 [R, S].
      texts: Index of the text of each row, int64 [R], in order.
      first_tokens: Row and position of the first token of each word, int64
        [words, 2].
    """

    features: dict[str, tf.Tensor]
    texts: tf.Tensor
    first_tokens: tf.Tensor


def split_words(texts: tf.Tensor) -> Words:
    """Splits strings [B] as `str.split` of Python, and locates the words."""
    # The space separates words of adjacent texts.
    characters = tf.strings.unicode_decode(
        tf.strings.join([texts, " "]), "UTF-8", errors="ignore"
    )
    codes = characters.values  # [N]
    is_space = tf.reduce_any(codes[:, tf.newaxis] == WHITE_SPACE, axis=1)
    space_before = tf.concat([[True], is_space[:-1]], axis=0)
    space_after = tf.concat([is_space[1:], [True]], axis=0)
    starts = tf.where(~is_space & space_before)[:, 0]  # [words]
    ends = tf.where(~is_space & space_after)[:, 0] + 1
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
    """An exported model that tags the words of texts.

    Words are separated by white space, as in `str.split` of Python: tabs, line
    breaks, no-break and ideographic spaces too. Words should look like those
    of the training set. In CoNLL files punctuation marks are words, so "lives
    in Bonn ." gets better tags than "lives in Bonn.", whose last word never
    occurs in training.

    A text longer than `max_seq_length` is tagged in several rows, without
    losing words. The tags equal `run_ner.py`'s: the first token of a word
    decides, and a word without tokens, such as a control character, is `[UNK]`.

    Args:
      model: A built `BertTokenClassifier`.
      encoding: The tokenizer, `max_seq_length` and the tags, as in training.
    """

    kind = "tagger"
    count_name = "num_rows"

    def __init__(self, model: keras.Model, encoding: TaggingEncoding):
        super().__init__(model, encoding, encoding.labels)
        self._task = TaggingTask(model.config, encoding)

    @property
    def example(self) -> dict[str, list]:
        return {
            "text": [
                "George Washington went to Washington .",
                "The European Commission sits in Brussels .",
            ]
        }

    def answer(self, texts: Tensors) -> dict[str, tf.Tensor]:
        """Returns the tags of the words of each text.

        Args:
          texts: `text`, strings [B].

        Returns:
          `num_words`, int32 [B], and arrays [B, W], where W is the largest
          number of words: `words`, strings; `starts` and `ends`, int32, the
          index of each word's first character, and of the one after the word;
          `tags`, strings; and `probabilities`, float32. Strings are padded
          with "", integers with -1 and floats with 0.
        """
        words = self._words(texts)
        rows = self._rows(words.strings)
        length = tf.shape(rows.features["input_ids"])[1]
        nothing = {
            "predicted_ids": tf.zeros([0, length], tf.int32),
            "probabilities": tf.zeros([0, length]),
        }
        outputs = in_batches(self._row_outputs, rows.features, nothing)
        of_words = {
            name: tf.gather_nd(values, rows.first_tokens)
            for name, values in outputs.items()
        }
        tags = self.label_names(of_words["predicted_ids"])
        by_text = words.strings.with_values
        num_words = words.strings.row_lengths()
        return {
            "num_words": tf.cast(num_words, tf.int32),
            "words": words.strings.to_tensor(),
            "starts": words.starts.to_tensor(-1),
            "ends": words.ends.to_tensor(-1),
            "tags": by_text(tags).to_tensor(),
            "probabilities": by_text(of_words["probabilities"]).to_tensor(),
        }

    def answer_tokens(self, features: Tensors) -> dict[str, tf.Tensor]:
        """Returns a tag for each token; only first tokens of words are trained.

        Args:
          features: `INPUTS`, int32 [B, S].

        Returns:
          `tags`, strings [B, S]; `tag_ids`, int32 [B, S]; and `probabilities`,
          float32 [B, S]. Padding has the tag "", the id -1 and probability 0.
        """
        answer = self._row_outputs(features)
        is_token = features["input_mask"] > 0
        tags = self.label_names(answer["predicted_ids"])
        return {
            "tags": tf.where(is_token, tags, ""),
            "tag_ids": tf.where(is_token, answer["predicted_ids"], -1),
            "probabilities": tf.where(is_token, answer["probabilities"], 0.0),
        }

    def _row_outputs(self, features: Tensors) -> dict[str, tf.Tensor]:
        masked = {"label_mask": features["input_mask"]}
        return self._task.row_outputs(masked, self.model(features))

    def rows(self, texts: Tensors) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Returns the index of each row's text, [R], and `INPUTS`, [R, S]."""
        rows = self._rows(self._words(texts).strings)
        return rows.texts, rows.features

    def _words(self, texts: Tensors) -> Words:
        # String ops only have CPU kernels.
        with tf.device("CPU:0"):
            return split_words(self.checked(texts)["text"])

    def _rows(self, words: tf.RaggedTensor) -> _Rows:
        """Splits words, [B, (W)], into rows as `TaggingEncoding` does."""
        room = self.encoding.max_seq_length - 2  # [CLS] and [SEP]
        with tf.device("CPU:0"):
            tokens = self.tokenizer.tokenize(words.values)  # [words, (T)]
            is_empty = tf.cast(tokens.row_lengths() == 0, tf.int64)
            unknown = tf.RaggedTensor.from_row_lengths(
                tf.fill(
                    [tf.reduce_sum(is_empty)],
                    self.encoding.vocab.index("[UNK]"),
                ),
                is_empty,
                validate=False,
            )
            tokens = tf.concat([tokens, unknown], axis=1)[:, :room]
            borders = tokens.row_splits  # [words + 1]
            begins = _row_begins(words, borders, room)  # [words]
            row_of = tf.cumsum(begins) - 1
            ids = tf.RaggedTensor.from_value_rowids(
                tokens.values,
                tf.repeat(row_of, tokens.row_lengths()),
                nrows=tf.reduce_sum(begins),
                validate=False,
            )  # [R, (S - 2)]
            position = borders[:-1] - tf.gather(ids.row_starts(), row_of)
            return _Rows(
                self.tokenizer.pack([ids]),
                tf.boolean_mask(words.value_rowids(), begins > 0),
                # [CLS] is at position 0.
                tf.stack([row_of, position + 1], axis=1),
            )


def _row_begins(
    words: tf.RaggedTensor, borders: tf.Tensor, room: int
) -> tf.Tensor:
    """Returns 1 for words that begin a row, else 0: int64 [words].

    A row takes as many words of a text as fit: with a room of 5 tokens, words
    of 2, 2, 3 and 1 tokens, all of one text, give 1, 0, 1, 0. `borders`, int64
    [words + 1], has the number of tokens before each word, and last the number
    of all tokens. No word has more than `room` tokens.
    """
    # Finished texts move to word number `num_words`, which does not exist.
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

    # One iteration for each row of the longest text.
    begins, _ = tf.while_loop(
        lambda _, word: tf.reduce_any(word < num_words),
        step,
        (tf.zeros_like(borders), first),
    )
    return begins[:-1]
