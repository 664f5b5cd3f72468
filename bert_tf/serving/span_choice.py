"""From logits to the best answers, inside a graph.

What `SpanTask.predictions` and `tasks.span_answers` do with arrays, for the
windows of a batch of questions at once: the same answers in the same order.
"""

from typing import NamedTuple

import tensorflow as tf

from bert_tf.serving.span_windows import Windows

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
