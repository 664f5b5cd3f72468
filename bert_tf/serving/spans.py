"""The answer to a question, as it stands in a text."""

from collections.abc import Mapping
from typing import NamedTuple

import keras
import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.serving.served import Served, in_parts, shown
from bert_tf.tasks.questions import ODDS_WITHOUT_SPAN, SpanEncoding

# Contexts in windows, inside a graph: `data.windows` on tensors.


# [CLS] and a [SEP] behind the question and behind the window.
_NUM_SPECIAL = 3


class Windows(NamedTuple):
    """What W windows show, those of a question in order.

    Attributes:
      question: Which question each is of, int64 [W].
      first: The place of its first piece of the context, int64 [W]; the
        others follow.
      pieces: Which pieces it shows: numbers of those of all contexts, one
        context behind another; int64, ragged [W, (L)].
      is_max_context: Whether no other window shows the piece with more around
        it, nor an earlier one with as much; bool, ragged [W, (L)].
    """

    question: tf.Tensor
    first: tf.Tensor
    pieces: tf.RaggedTensor
    is_max_context: tf.RaggedTensor


def lay_windows(
    num_pieces: tf.Tensor,
    query_lengths: tf.Tensor,
    max_seq_length: int,
    doc_stride: int,
) -> Windows:
    """Lays windows over contexts, as many as it takes to reach the end.

    A context without pieces has none.

    Args:
      num_pieces: Pieces of the context of each question, int64 [B].
      query_lengths: Pieces of each question itself, cut, int64 [B].
      max_seq_length: Places of a sequence.
      doc_stride: Pieces between two starts; never more than a window.
    """
    room = max_seq_length - _NUM_SPECIAL - query_lengths  # [B]
    step = tf.minimum(room, doc_stride)
    # Rounded up, as a division that rounds down does with the sign changed.
    steps = -(-tf.maximum(num_pieces - room, 0) // step)
    numbers = tf.ragged.range(tf.where(num_pieces > 0, steps + 1, 0))
    question = numbers.value_rowids()  # [W]
    start = numbers.values * tf.gather(step, question)
    length = tf.minimum(
        tf.gather(room, question), tf.gather(num_pieces, question) - start
    )
    origin = tf.gather(tf.cumsum(num_pieces, exclusive=True), question)
    begin = origin + start
    pieces = tf.ragged.range(begin, begin + length)
    return Windows(
        question,
        tf.gather(query_lengths, question) + 2,
        pieces,
        _max_context(pieces, tf.reduce_sum(num_pieces)),
    )


def _max_context(
    pieces: tf.RaggedTensor, num_pieces: tf.Tensor
) -> tf.RaggedTensor:
    """The original's `_check_is_max_context`, for all pieces at once.

    The score of a window is the lesser of the pieces to the left and to the
    right, plus a hundredth of its length; of equal ones the first counts.
    """
    window = pieces.value_rowids()  # [P], all pieces of all windows
    left = tf.ragged.range(pieces.row_lengths()).values
    length = tf.gather(pieces.row_lengths(), window)
    around = tf.minimum(left, length - 1 - left)
    # In double precision, for the same ones to be equal as in Python.
    score = tf.cast(around, tf.float64) + 0.01 * tf.cast(length, tf.float64)
    piece = pieces.values
    best = tf.math.unsorted_segment_max(score, piece, num_pieces)
    is_best = score == tf.gather(best, piece)
    owner = tf.math.unsorted_segment_min(
        tf.where(is_best, window, window.dtype.max), piece, num_pieces
    )
    return pieces.with_values(tf.gather(owner, piece) == window)


# From logits to the best answers, inside a graph.


# Ranks of a question whose texts are looked at first, for each answer that is
# wanted: how many more spans than texts there are, in general.
_SPANS_PER_TEXT = 4


class Contexts(NamedTuple):
    """Texts in characters and in pieces.

    Attributes:
      characters: Code points, int32, ragged [B, (N)].
      starts: The character each piece starts at, int32, ragged [B, (T)].
      ends: The character behind each piece, int32, ragged [B, (T)].
    """

    characters: tf.RaggedTensor
    starts: tf.RaggedTensor
    ends: tf.RaggedTensor

    def slices(
        self, context: tf.Tensor, begins: tf.Tensor, ends: tf.Tensor
    ) -> tf.Tensor:
        """Strings of the shape of `begins` and `ends`: what is between them.

        Args:
          context: Which contexts these are characters of, int64.
          begins: int32, of any shape that `context` can be broadcast to.
          ends: Likewise.
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
    """Spans that may be an answer, those of a question together.

    Attributes:
      question: Which question each answers, int64 [C], rising.
      begins: The first character in the context, int32 [C].
      ends: The one behind the last, int32 [C].
      scores: The sum of its logits, float64 [C].
    """

    question: tf.Tensor
    begins: tf.Tensor
    ends: tf.Tensor
    scores: tf.Tensor

    def take(self, which: tf.Tensor) -> "Spans":
        """Some of them, by their numbers."""
        return Spans(*(tf.gather(column, which) for column in self))


class NBest(NamedTuple):
    """Answers to each question, [B, n]: the best first.

    Attributes:
      scores: float64; behind the last -inf.
      begins: int32; -1 behind the last, and of no answer.
      ends: int32, likewise.
    """

    scores: tf.Tensor
    begins: tf.Tensor
    ends: tf.Tensor


# ----------------------------------------------------------------- candidates


def allowed_spans(
    contexts: Contexts,
    windows: Windows,
    start_logits: tf.Tensor,
    end_logits: tf.Tensor,
    n_best_size: int,
    max_answer_length: int,
) -> Spans:
    """The spans of each window, by the rank of the start, then of the end.

    Args:
      contexts: Of all questions.
      windows: Of these contexts.
      start_logits: float32 [W, S], that of padding -inf.
      end_logits: Likewise.
      n_best_size: How many starts and ends of a window to look at, n.
      max_answer_length: In pieces.
    """
    firsts, start_logits = _best_pieces(windows, start_logits, n_best_size)
    lasts, end_logits = _best_pieces(windows, end_logits, n_best_size)
    begins = _of_pieces(contexts.starts.values, windows, firsts)  # [W, n]
    ends = _of_pieces(contexts.ends.values, windows, lasts)
    is_start = (firsts >= 0) & _at(windows.is_max_context.values, firsts)
    firsts, lasts = firsts[:, :, tf.newaxis], lasts[:, tf.newaxis]
    lengths = lasts - firsts + 1  # [W, n, n]
    is_allowed = is_start[:, :, tf.newaxis] & (lasts >= 0)
    is_allowed &= (lengths >= 1) & (lengths <= max_answer_length)
    # Combining marks that were sorted can stand behind pieces that follow.
    is_allowed &= begins[:, :, tf.newaxis] < ends[:, tf.newaxis]
    where = tf.where(is_allowed)  # [C, 3]
    start, end = where[:, :2], tf.gather(where, [0, 2], axis=1)
    return Spans(
        tf.gather(windows.question, where[:, 0]),
        tf.gather_nd(begins, start),
        tf.gather_nd(ends, end),
        tf.cast(tf.gather_nd(start_logits, start), tf.float64)
        + tf.cast(tf.gather_nd(end_logits, end), tf.float64),
    )


def _best_pieces(
    windows: Windows, logits: tf.Tensor, count: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """The highest logits and their pieces, [W, n] both.

    A piece is a number among those of all windows; what is no piece of the
    context is -1, and takes part all the same, as in the original.
    """
    count = tf.minimum(count, tf.shape(logits)[1])
    best, places = tf.math.top_k(logits, count)
    number = tf.cast(places, tf.int64) - windows.first[:, tf.newaxis]
    length = windows.pieces.row_lengths()[:, tf.newaxis]
    start = windows.pieces.row_starts()[:, tf.newaxis]
    is_context = (number >= 0) & (number < length)
    return tf.where(is_context, start + number, -1), best


def _of_pieces(
    offsets: tf.Tensor, windows: Windows, shown: tf.Tensor
) -> tf.Tensor:
    """Offsets of the contexts' pieces for pieces of windows, [W, n]."""
    return tf.gather(offsets, _at(windows.pieces.values, shown))


def _at(values: tf.Tensor, index: tf.Tensor) -> tf.Tensor:
    """The values at indices; where these are below 0, the first."""
    return tf.gather(values, tf.maximum(index, 0))


# ------------------------------------------------------------------ the order


def best_distinct(spans: Spans, contexts: Contexts, count: int) -> Spans:
    """The best spans of each question, no text twice, at most `count`.

    Of equal scores and of equal texts the first stays first. Texts are made
    for the best ranks alone, and for twice as many as long as a question lacks
    answers and has more spans: a long context has very many.
    """
    spans = spans.take(_by_question_and_score(spans))
    num_questions = contexts.characters.nrows()
    num_spans = _counts(spans.question, num_questions)  # [B]
    ranks = tf.ragged.range(num_spans).values  # [C]

    def kept_among(limit):
        near = tf.where(ranks < limit)[:, 0]
        texts = contexts.slices(*spans.take(near)[:3])
        question = tf.gather(spans.question, near)
        new = tf.boolean_mask(near, _is_first_text(question, texts))
        num_new = _counts(tf.gather(spans.question, new), num_questions)
        return tf.boolean_mask(new, tf.ragged.range(num_new).values < count)

    def is_too_few(limit, kept):
        num_kept = _counts(tf.gather(spans.question, kept), num_questions)
        return tf.reduce_any((num_kept < count) & (num_spans > limit))

    limit = tf.constant(_SPANS_PER_TEXT * count, tf.int64)
    _, kept = tf.while_loop(
        is_too_few,
        lambda limit, _: (2 * limit, kept_among(2 * limit)),
        (limit, kept_among(limit)),
    )
    return spans.take(kept)


def _by_question_and_score(spans: Spans) -> tf.Tensor:
    order = tf.argsort(spans.scores, direction="DESCENDING", stable=True)
    question = tf.gather(spans.question, order)
    return tf.gather(order, tf.argsort(question, stable=True))


def _counts(question: tf.Tensor, num_questions: tf.Tensor) -> tf.Tensor:
    """How many there are of each question, int64 [B]."""
    return tf.math.unsorted_segment_sum(
        tf.ones_like(question), question, num_questions
    )


def _is_first_text(question: tf.Tensor, texts: tf.Tensor) -> tf.Tensor:
    """Whether the question has not had this text before, bool [n]."""
    _, text = tf.unique(texts, tf.int64)
    size = tf.size(text, tf.int64)
    _, both = tf.unique(question * size + text, tf.int64)
    place = tf.range(size)
    first = tf.math.unsorted_segment_min(place, both, size)
    return tf.gather(first, both) == place


# ------------------------------------------------------------------ no answer


def null_scores(
    windows: Windows,
    start_logits: tf.Tensor,
    end_logits: tf.Tensor,
    num_questions: tf.Tensor,
) -> tf.Tensor:
    """What there is to be said for no answer: float64 [B], 0 without windows.

    It is the sum of the logits of place 0, where [CLS] stands, in the window
    that says least.

    Args:
      windows: Of all questions.
      start_logits: [W, S].
      end_logits: [W, S].
      num_questions: B.
    """
    # Sums, for without windows there is no place 0 either.
    start, end = (
        tf.reduce_sum(tf.cast(logits[:, :1], tf.float64), axis=1)  # [W]
        for logits in (start_logits, end_logits)
    )
    least = tf.math.unsorted_segment_min(
        start + end, windows.question, num_questions
    )
    has_windows = _counts(windows.question, num_questions) > 0
    return tf.where(has_windows, least, tf.zeros_like(least))


def in_rows(spans: Spans, num_questions: tf.Tensor, count: int) -> NBest:
    """The spans of each question in a row of its own, [B, count]."""

    def table(column, filler):
        rows = tf.RaggedTensor.from_value_rowids(
            column, spans.question, num_questions, validate=False
        )
        return rows.to_tensor(filler, shape=[None, count])

    return NBest(
        table(spans.scores, _never()),
        table(spans.begins, -1),
        table(spans.ends, -1),
    )


def with_null(answers: NBest, null: tf.Tensor) -> NBest:
    """Puts no answer behind those that are as good; in any case, at the end.

    Args:
      answers: Those of each question, [B, n].
      null: The score of no answer, float64 [B].

    Returns:
      [B, n + 1]: the last place is for no answer alone.
    """
    count = answers.scores.shape[1]
    nowhere = tf.fill([tf.size(null), 1], -1)
    scores = tf.concat([answers.scores, null[:, tf.newaxis]], axis=1)
    order = tf.argsort(scores, direction="DESCENDING", stable=True)
    scores, begins, ends = (
        tf.gather(column, order, batch_dims=1)
        for column in (
            scores,
            tf.concat([answers.begins, nowhere], axis=1),
            tf.concat([answers.ends, nowhere], axis=1),
        )
    )
    is_cut = (tf.range(count + 1) == count) & (order != count)
    return NBest(tf.where(is_cut, _never(), scores), begins, ends)


def _never() -> tf.Tensor:
    return tf.constant(-float("inf"), tf.float64)


# The answer to a question, as it stands in a text.


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
            spans = allowed_spans(
                contexts,
                windows,
                start_logits,
                end_logits,
                self.n_best_size,
                self.max_answer_length,
            )
            best = best_distinct(spans, contexts, self.n_best_size)
            num_questions = contexts.characters.nrows()
            null = null_scores(windows, start_logits, end_logits, num_questions)
            return self._choose(
                contexts,
                in_rows(best, num_questions, self.n_best_size),
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
        listed = with_null(answers, null)
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
