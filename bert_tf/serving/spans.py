"""The answer to a question, as it stands in a text."""

from collections.abc import Mapping

import keras
import tensorflow as tf

from bert_tf.data.questions import ODDS_WITHOUT_SPAN
from bert_tf.data.windows import SpanEncoding
from bert_tf.errors import InputError
from bert_tf.serving import span_choice
from bert_tf.serving.rows import in_parts, shown
from bert_tf.serving.served import Served
from bert_tf.serving.span_choice import Contexts, NBest
from bert_tf.serving.span_windows import Windows, lay_windows


class ServedSpanLabeler(Served):
    """A question and a text in, the part of the text that answers it out.

    The text may be of any length: it comes in windows, as in `run_squad.py`,
    whose answers these are.

    Args:
      model: A `BertSpanLabeler`, built.
      encoding: How questions became windows when it was trained.
      n_best_size: How many starts and ends of a window to look at, and among
        how many answers the probabilities are shared.
      max_answer_length: In pieces.
      with_negative: Whether a question may have no answer (SQuAD 2.0).
      null_score_diff_threshold: There is no answer if the null odds are
        greater.
      num_answers: How many of the best are given out; at most `n_best_size`.

    Raises:
      InputError: A number is not above 0.
    """

    kind = "question answering"

    def __init__(
        self,
        model: keras.Model,
        encoding: SpanEncoding,
        *,
        n_best_size: int = 20,
        max_answer_length: int = 30,
        with_negative: bool = False,
        null_score_diff_threshold: float = 0.0,
        num_answers: int = 5,
    ):
        for name, value in {
            "n_best_size": n_best_size,
            "max_answer_length": max_answer_length,
            "num_answers": num_answers,
        }.items():
            if value < 1:
                raise InputError(
                    f"expected {name} of 1 or more. Received: {value}"
                )
        super().__init__(model, encoding)
        self.n_best_size = n_best_size
        self.max_answer_length = max_answer_length
        self.with_negative = with_negative
        self.null_score_diff_threshold = null_score_diff_threshold
        self.num_answers = min(num_answers, n_best_size)

    @property
    def inputs(self) -> dict[str, tf.TensorSpec]:
        return {
            name: tf.TensorSpec([None], tf.string, name)
            for name in ("question", "context")
        }

    @property
    def example(self) -> dict[str, list]:
        return {
            "question": [
                "Who designed the bridge?",
                "How long was the boat away?",
            ],
            "context": [
                "The bridge was designed by Emily Stone in 1931. It is of "
                "steel.",
                "The boat left on Monday, and after three weeks it was back.",
            ],
        }

    def answer(self, texts: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """The best answers to each question.

        Characters are counted in the context without bytes that are not UTF-8.
        Where there is no answer, since the model says so (with `with_negative`)
        or the context is blank, it is "", which starts and ends at -1.

        Args:
          texts: `question` and `context`, strings [B].

        Returns:
          Dict of `answer`, strings [B], a slice of the context; `start`,
          its first character, and `end`, the one behind its last, int32 [B];
          its probability `score`, float32 [B]; `nbest_answers`,
          `nbest_starts`, `nbest_ends` and `nbest_probabilities`, the same of
          the best, [B, num_answers]: behind the `num_nbest`, int32 [B], that
          there are, "", -1, -1 and 0. With `with_negative` also `null_odds`,
          float32 [B]: by how much no answer is better than the best one.

        Raises:
          tf.errors.InvalidArgumentError: The model gives no numbers.
        """
        contexts, windows, features = self._read(texts)
        start_logits, end_logits = self._logits(features)
        with tf.device("CPU:0"):
            spans = span_choice.allowed_spans(
                contexts,
                windows,
                start_logits,
                end_logits,
                self.n_best_size,
                self.max_answer_length,
            )
            best = span_choice.best_distinct(spans, contexts, self.n_best_size)
            num_questions = contexts.characters.nrows()
            null = span_choice.null_scores(
                windows, start_logits, end_logits, num_questions
            )
            return self._choose(
                contexts,
                span_choice.in_rows(best, num_questions, self.n_best_size),
                null,
            )

    def answer_tokens(
        self, features: Mapping[str, tf.Tensor]
    ) -> dict[str, tf.Tensor]:
        """Dict of `start_logits` and `end_logits`, float32 [B, S].

        Every place has some, those of the question and of the padding too.
        """
        outputs = self.model(features)
        return {
            name: tf.cast(outputs[name], tf.float32)
            for name in ("start_logits", "end_logits")
        }

    def features(self, texts: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """`FEATURES`, int32 [W, S]: all windows of all questions, in order."""
        _, _, features = self._read(texts)
        return features

    def tokenize(self, texts: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """What the model sees.

        Returns:
          Dict of `num_windows`, int32 [B]; `tokens` and `FEATURES`, [B, W, S]
          for the W of the longest context: the windows of each question, and
          behind its last such of padding alone.
        """
        contexts, windows, features = self._read(texts)
        num_windows, seen = shown(
            self, features, windows.question, contexts.characters.nrows()
        )
        return {"num_windows": num_windows, **seen}

    def _read(
        self, texts: Mapping[str, tf.Tensor]
    ) -> tuple[Contexts, Windows, dict[str, tf.Tensor]]:
        """The contexts, their W windows, and `FEATURES`, int32 [W, S]."""
        encoding = self.encoding
        # There are no kernels for strings elsewhere.
        with tf.device("CPU:0"):
            texts = self.checked(texts)
            characters = tf.strings.unicode_decode(
                texts["context"], "UTF-8", errors="ignore"
            )
            query = self.tokenizer.tokenize(texts["question"])
            query = query[:, : encoding.max_query_length]
            ids, starts, ends = self.tokenizer.tokenize_with_offsets(
                texts["context"]
            )
            windows = lay_windows(
                ids.row_lengths(),
                query.row_lengths(),
                encoding.max_seq_length,
                encoding.doc_stride,
            )
            features = self.tokenizer.pack(
                [
                    tf.gather(query, windows.question),
                    tf.gather(ids.values, windows.pieces),
                ]
            )
        return Contexts(characters, starts, ends), windows, features

    def _logits(
        self, features: Mapping[str, tf.Tensor]
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Logits of starts and ends, float32 [W, S]; those of padding -inf."""
        mask = features["input_mask"]
        names = "start_logits", "end_logits"
        nothing = dict.fromkeys(names, tf.zeros([0, tf.shape(mask)[1]]))
        logits = in_parts(self.answer_tokens, features, nothing)
        start_logits, end_logits = (
            tf.where(
                mask > 0,
                tf.debugging.check_numerics(logits[name], "the model's logits"),
                -float("inf"),
            )
            for name in names
        )
        return start_logits, end_logits

    def _choose(
        self, contexts: Contexts, answers: NBest, null: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """What `answer` gives out.

        Args:
          contexts: Of all questions.
          answers: The best to each, [B, n_best_size].
          null: The scores of no answer, float64 [B].
        """
        best, begin, end = (column[:, 0] for column in answers)  # [B]
        is_none = begin < 0
        if not self.with_negative:
            # It is an answer only where there is no other.
            null = tf.where(is_none, tf.zeros_like(null), -float("inf"))
        odds = tf.where(~is_none, null - best, ODDS_WITHOUT_SPAN)
        is_null = is_none | (odds > self.null_score_diff_threshold)
        chosen = NBest(
            tf.where(is_null, null, best),
            tf.where(is_null, -1, begin),
            tf.where(is_null, -1, end),
        )
        listed = span_choice.with_null(answers, null)
        total = tf.reduce_logsumexp(listed.scores, axis=1, keepdims=True)
        scores, begins, ends = (
            tf.concat([one[:, tf.newaxis], more[:, : self.num_answers]], axis=1)
            for one, more in zip(chosen, listed, strict=True)
        )  # [B, 1 + num_answers]
        context = tf.range(tf.size(null, tf.int64))[:, tf.newaxis]
        texts = contexts.slices(context, begins, ends)
        probabilities = tf.cast(tf.exp(scores - total), tf.float32)
        is_listed = tf.cast(tf.math.is_finite(scores[:, 1:]), tf.int32)
        answer = {
            "answer": texts[:, 0],
            "start": begins[:, 0],
            "end": ends[:, 0],
            "score": probabilities[:, 0],
            "num_nbest": tf.reduce_sum(is_listed, axis=1),
            "nbest_answers": texts[:, 1:],
            "nbest_starts": begins[:, 1:],
            "nbest_ends": ends[:, 1:],
            "nbest_probabilities": probabilities[:, 1:],
        }
        if self.with_negative:
            answer["null_odds"] = tf.cast(odds, tf.float32)
        return answer
