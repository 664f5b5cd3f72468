"""Question answering in a graph: windows, answers and the exported model.

The graph gives the same windows and answers as `squad_files.make_windows`
and `task.find_answer` do in NumPy.
"""

from typing import NamedTuple

import keras
import tensorflow as tf

from bert_tf.data.records import INPUTS
from bert_tf.errors import wrong_value
from bert_tf.kinds.spans.squad_files import (
    NUM_SPECIAL_TOKENS,
    ODDS_WITHOUT_SPAN,
    PLACES,
    SpanEncoding,
)
from bert_tf.kinds.spans.task import AnswerRules, are_spans, best_indexes
from bert_tf.serving.served import (
    Served,
    Tensors,
    in_batches,
    max_context,
    window_ranges,
)

# How many spans are compared by text, for each of the n best answers.
_SPANS_PER_ANSWER = 16

_NEVER = -float("inf")


class Windows(NamedTuple):
    """The windows of some questions; windows of one question are adjacent.

    Attributes:
      characters: Code points of the contexts, int32, ragged [B, (N)].
      question: Index of the question of each window, int64 [W].
      features: `INPUTS` and `squad_files.PLACES`, int32 [W, S].
    """

    characters: tf.RaggedTensor
    question: tf.Tensor
    features: dict[str, tf.Tensor]

    def slices(
        self, context: tf.Tensor, begins: tf.Tensor, ends: tf.Tensor
    ) -> tf.Tensor:
        """Returns the strings of characters [begin, end) of contexts.

        `begins` and `ends`, int32, have any shape, to which the indexes of
        contexts, int64, can be broadcast.
        """
        origin = tf.gather(self.characters.row_starts(), context)
        first, last = (
            tf.reshape(origin + tf.cast(index, tf.int64), [-1])
            for index in (begins, ends)
        )
        texts = tf.strings.unicode_encode(
            tf.gather(self.characters.values, tf.ragged.range(first, last)),
            "UTF-8",
        )
        return tf.reshape(texts, tf.shape(begins))


class Spans(NamedTuple):
    """Candidate answers; candidates for one question are adjacent.

    Attributes:
      question: Index of the question of each span, int64 [C].
      begins: Index of the first character in the context, int32 [C].
      ends: Index after the last character, int32 [C].
      scores: Sum of the logits of start and end, float64 [C].
    """

    question: tf.Tensor
    begins: tf.Tensor
    ends: tf.Tensor
    scores: tf.Tensor

    def take(self, indexes: tf.Tensor) -> "Spans":
        return Spans(*(tf.gather(column, indexes) for column in self))


def allowed_spans(windows: Windows, best: Tensors, rules: AnswerRules) -> Spans:
    """Returns the spans of each window, by rank of the start, then of the end.

    If the best starts and ends of a question form no span, all are considered:
    `best` has all `best_indexes` of each window.
    """
    rows = {"question": windows.question, **windows.features, **best}
    spans = _spans_of_best(rows, rules, rules.n_best_size)
    length = tf.shape(windows.features["input_ids"])[1]

    def all_spans(chosen: Tensors) -> dict[str, tf.Tensor]:
        some = {n: tf.gather(x, chosen["window"]) for n, x in rows.items()}
        return _spans_of_best(some, rules, length)._asdict()

    counts = _counts(spans.question, windows.characters.nrows())
    others = tf.where(tf.gather(counts, windows.question) == 0)[:, 0]
    return Spans(**in_batches(all_spans, {"window": others}, spans._asdict()))


def _spans_of_best(
    rows: Tensors, rules: AnswerRules, count: int | tf.Tensor
) -> Spans:
    """Returns the spans of the `count` best starts and ends of each window."""
    firsts, lasts = (rows[f"{n}_indexes"][:, :count] for n in ("start", "end"))

    def of_tokens(name: str, index: tf.Tensor) -> tf.Tensor:
        # Missing positions, -1, get the values of [CLS], which form no span.
        return tf.gather(rows[name], tf.maximum(index, 0), batch_dims=1)

    begins = of_tokens("token_starts", firsts)  # [W, n]
    ends = of_tokens("token_ends", lasts)
    is_max = of_tokens("is_max_context", firsts)
    where = tf.where(
        are_spans(firsts, lasts, begins, ends, is_max, rules.max_answer_length)
    )  # [C, 3]
    start, end = where[:, :2], tf.gather(where, [0, 2], axis=1)
    return Spans(
        tf.gather(rows["question"], where[:, 0]),
        tf.gather_nd(begins, start),
        tf.gather_nd(ends, end),
        tf.cast(tf.gather_nd(rows["start_logits"], start), tf.float64)
        + tf.cast(tf.gather_nd(rows["end_logits"], end), tf.float64),
    )


def _counts(question: tf.Tensor, num_questions: tf.Tensor) -> tf.Tensor:
    """Returns how often each question occurs, int64 [B]."""
    return tf.math.unsorted_segment_sum(
        tf.ones_like(question), question, num_questions
    )


def _is_first_text(question: tf.Tensor, texts: tf.Tensor) -> tf.Tensor:
    """Returns False for repeated texts of a question, else True, bool [n]."""
    _, text = tf.unique(texts, tf.int64)
    size = tf.size(text, tf.int64)
    _, both = tf.unique(question * size + text, tf.int64)
    index = tf.range(size)
    first = tf.math.unsorted_segment_min(index, both, size)
    return tf.gather(first, both) == index


# ------------------------------------------------------------------- the answer


class NBest(NamedTuple):
    """The answers to each question, [B, n], the best first.

    Attributes:
      scores: float64; -inf after the last answer.
      begins: int32; -1 after the last, and for no answer.
      ends: int32; -1 after the last, and for no answer.
    """

    scores: tf.Tensor
    begins: tf.Tensor
    ends: tf.Tensor


def null_scores(windows: Windows, best: Tensors) -> tf.Tensor:
    """Returns the scores of no answer, float64 [B].

    A score is the smallest sum of the two logits at [CLS] among the windows of
    a question.
    """
    start, end = (
        tf.cast(best[f"null_{name}_logits"], tf.float64)
        for name in ("start", "end")
    )
    return tf.math.unsorted_segment_min(
        start + end, windows.question, windows.characters.nrows()
    )


def best_answers(spans: Spans, windows: Windows, count: int) -> NBest:
    """Returns up to `count` best spans of each question with distinct texts.

    Ties, and equal texts, are resolved in favor of the first. Long contexts
    have very many spans, so only the texts of the best ones are compared. If
    most of these are equal, there are fewer answers than `run_squad.py` lists.
    """
    order = tf.argsort(spans.scores, direction="DESCENDING", stable=True)
    by_question = tf.argsort(tf.gather(spans.question, order), stable=True)
    spans = spans.take(tf.gather(order, by_question))
    num_questions = windows.characters.nrows()
    ranks = tf.ragged.range(_counts(spans.question, num_questions)).values
    spans = spans.take(tf.where(ranks < _SPANS_PER_ANSWER * count)[:, 0])
    texts = windows.slices(spans.question, spans.begins, spans.ends)
    spans = spans.take(tf.where(_is_first_text(spans.question, texts))[:, 0])

    def in_rows(column, filler):
        rows = tf.RaggedTensor.from_value_rowids(
            column, spans.question, num_questions, validate=False
        )
        return rows.to_tensor(filler, shape=[None, count])

    return NBest(
        in_rows(spans.scores, tf.constant(_NEVER, tf.float64)),
        in_rows(spans.begins, -1),
        in_rows(spans.ends, -1),
    )


def with_null(answers: NBest, null: tf.Tensor) -> NBest:
    """Inserts "no answer" into each row, after answers with the same score.

    `null`, float64 [B], has its scores. For n answers, the result has n + 1
    columns. The last is "no answer" or empty: an answer there is dropped.
    """
    count = answers.scores.shape[1]
    scores = tf.concat([answers.scores, null[:, tf.newaxis]], axis=1)
    # Equal scores keep their order.
    scores, order = tf.math.top_k(scores, count + 1)
    is_cut = (tf.range(count + 1) == count) & (order != count)
    begins, ends = (
        tf.gather(
            tf.pad(column, [[0, 0], [0, 1]], constant_values=-1),
            order,
            batch_dims=1,
        )
        for column in (answers.begins, answers.ends)
    )
    never = tf.constant(_NEVER, tf.float64)
    return NBest(tf.where(is_cut, never, scores), begins, ends)


# ---------------------------------------------------------- the exported model


class ServedSpanLabeler(Served):
    """An exported model that answers questions with a slice of a text.

    Texts may have any length: they are split into windows as in
    `run_squad.py`, and the answers are the same.

    Args:
      model: A built `BertSpanLabeler`.
      encoding: The tokenizer and lengths of the training.
      rules: How answers are chosen. Probabilities are computed over
        `n_best_size` answers.
      num_answers: The number of best answers to return, at most
        `n_best_size`.

    Raises:
      InputError: If `num_answers` is not at least 1.
    """

    kind = "question answering"
    text_names = ("question", "context")

    def __init__(
        self,
        model: keras.Model,
        encoding: SpanEncoding,
        rules: AnswerRules | None = None,
        num_answers: int = 5,
    ):
        if num_answers < 1:
            raise wrong_value("num_answers", "at least 1", num_answers)
        super().__init__(model, encoding)
        self.rules = rules or AnswerRules()
        self.num_answers = min(num_answers, self.rules.n_best_size)

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

    def answer(self, texts: Tensors) -> dict[str, tf.Tensor]:
        """Returns the best answers to each question.

        Positions count the characters of the context without invalid UTF-8. If
        there is no answer, because the model predicts so (SQuAD 2.0) or the
        context is blank, the answer is "", and start and end are -1.

        Args:
          texts: `question` and `context`, strings [B].

        Returns:
          `answer`, strings [B], a slice of the context; `start`, the index of
          its first character, and `end`, the index after its last, int32 [B];
          its probability `score`, float32 [B]; `nbest_answers`, `nbest_starts`,
          `nbest_ends` and `nbest_probabilities`, the same for the best answers,
          [B, num_answers]; and `num_nbest`, int32 [B], their number. The rest
          of a row is "", -1 or 0. For SQuAD 2.0 also `null_odds`, float32 [B],
          the score of no answer minus the score of the best span.

        Raises:
          tf.errors.InvalidArgumentError: If a logit is NaN or infinite.
        """
        windows = self._windows(texts)
        best = self._best_indexes(windows.features)
        with tf.device("CPU:0"):
            spans = allowed_spans(windows, best, self.rules)
            answers = best_answers(spans, windows, self.rules.n_best_size)
            return self._choose(windows, answers, null_scores(windows, best))

    def answer_tokens(self, features: Tensors) -> dict[str, tf.Tensor]:
        """Returns `start_logits` and `end_logits`, float32 [B, S].

        Tokens of the question and padding have logits too.
        """
        outputs = self.model(features)
        return {
            name: tf.cast(outputs[name], tf.float32)
            for name in ("start_logits", "end_logits")
        }

    def rows(self, texts: Tensors) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Returns the question of each window, [W], and `INPUTS`, [W, S]."""
        windows = self._windows(texts)
        inputs = {name: windows.features[name] for name in INPUTS}
        return windows.question, inputs

    def _windows(self, texts: Tensors) -> Windows:
        """Splits contexts into windows, at least one for each question."""
        encoding = self.encoding
        # String ops only have CPU kernels.
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
            room = encoding.max_seq_length - NUM_SPECIAL_TOKENS
            question, start, length = window_ranges(
                ids.row_lengths(),
                room - query.row_lengths(),
                encoding.doc_stride,
            )
            begin = tf.gather(ids.row_starts(), question) + start
            tokens = tf.ragged.range(begin, begin + length)
            query = tf.gather(query, question)
            features = self.tokenizer.pack(
                [query, tf.gather(ids.values, tokens)]
            )
            is_max_context = max_context(tokens, tf.size(ids.values, tf.int64))
            places = (
                tf.gather(starts.values, tokens),
                tf.gather(ends.values, tokens),
                tf.cast(is_max_context, tf.int32),
            )
            # [CLS], the question and [SEP] are before a context.
            lengths = tf.cast(query.row_lengths(), tf.int32) + 2
            before = 0 * tf.ragged.range(lengths)
            for name, values in zip(PLACES, places, strict=True):
                rows = tf.concat([before, values, before[:, :1]], axis=1)
                features[name] = rows.to_tensor()
        return Windows(characters, question, features)

    def _best_indexes(self, features: Tensors) -> dict[str, tf.Tensor]:
        """Returns all `best_indexes` of the windows, [W, max_seq_length]."""
        inputs = {name: features[name] for name in INPUTS}
        names = "start_logits", "end_logits"
        # The length is only known when the graph runs.
        nothing = dict.fromkeys(
            names, tf.cast(inputs["input_ids"][:0], "float32")
        )
        logits = in_batches(self.answer_tokens, inputs, nothing)
        for name in names:
            message = "the model's logits"
            logits[name] = tf.debugging.check_numerics(logits[name], message)
        count = self.encoding.max_seq_length
        return best_indexes(logits, features["input_mask"], count)

    def _choose(
        self, windows: Windows, answers: NBest, null: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Returns the outputs of `answer`, given `null_scores`."""
        best, begin, end = (column[:, 0] for column in answers)  # [B]
        is_none = begin < 0
        if not self.rules.with_negative:
            # "No answer" is listed only if there are no others.
            null = tf.where(is_none, tf.zeros_like(null), _NEVER)
        odds = tf.where(~is_none, null - best, ODDS_WITHOUT_SPAN)
        is_null = is_none | (odds > self.rules.null_score_diff_threshold)
        chosen = NBest(
            tf.where(is_null, null, best),
            tf.where(is_null, -1, begin),
            tf.where(is_null, -1, end),
        )
        listed = with_null(answers, null)
        total = tf.reduce_logsumexp(listed.scores, axis=1, keepdims=True)
        # Column 0 is the chosen answer; the n best follow.
        scores, begins, ends = (
            tf.concat([one[:, tf.newaxis], more[:, : self.num_answers]], axis=1)
            for one, more in zip(chosen, listed, strict=True)
        )
        context = tf.range(tf.size(null, tf.int64))[:, tf.newaxis]
        texts = windows.slices(context, begins, ends)
        probabilities = tf.cast(tf.exp(scores - total), tf.float32)
        if not self.rules.with_negative:
            no_spans = is_none[:, tf.newaxis]
            probabilities = tf.where(no_spans, 0.0, probabilities)
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
        if self.rules.with_negative:
            answer["null_odds"] = tf.cast(odds, tf.float32)
        return answer
