"""From the likeliest starts and ends of the windows to a question's answer.

What the original's `write_predictions` decides, with one difference: an answer
is the exact slice of the context between the characters that its first and its
last piece were made of. The original rebuilds a text from the pieces and looks
for it in the words around (`get_final_text`); where it does not find it there,
it answers with those words, punctuation and all.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from bert_tf.data.questions import ODDS_WITHOUT_SPAN, Question
from bert_tf.data.windows import Window
from bert_tf.errors import InputError


@dataclasses.dataclass(frozen=True, slots=True)
class Scores:
    """What the model says of one window.

    Attributes:
      starts: Places in the sequence where an answer may start, int [k]: the
        highest logits first, equal ones by place. Fillers are -1.
      start_logits: Floats [k]; of a filler -inf.
      ends: Places of the last piece of an answer, likewise.
      end_logits: Floats [k].
      null_start_logit: The logit of a start at place 0, where [CLS] stands for
        an answer that is not in this window.
      null_end_logit: That of an end there.
    """

    starts: np.ndarray
    start_logits: np.ndarray
    ends: np.ndarray
    end_logits: np.ndarray
    null_start_logit: float
    null_end_logit: float

    @property
    def null_score(self) -> float:
        """How much is to be said for no answer in this window."""
        return float(self.null_start_logit) + float(self.null_end_logit)


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """The answer to a question, as the original's files have it.

    Attributes:
      text: A slice of the context; "" for none. For `predictions.json`.
      nbest: The best answers, each with `text`, `probability` (they add up to
        1), `start_logit` and `end_logit`. For `nbest_predictions.json`.
      null_odds: Null score less the score of the best span; None unless
        questions may have no answer. For `null_odds.json`.
      best_span: The best slice, whatever is to be said for no answer; "" where
        there is none.
    """

    text: str
    nbest: list[dict[str, str | float]]
    null_odds: float | None
    best_span: str


class _Spans(NamedTuple):
    """Spans that are allowed to be an answer: arrays [c]."""

    begins: np.ndarray  # The first character in the context.
    ends: np.ndarray  # The one behind the last.
    start_logits: np.ndarray
    end_logits: np.ndarray


class _Answer(NamedTuple):
    text: str
    start_logit: float
    end_logit: float

    @property
    def score(self) -> float:
        return self.start_logit + self.end_logit


_NO_ANSWER = _Answer("", 0.0, 0.0)


def find_answer(
    question: Question,
    windows: Sequence[Window],
    scores: Sequence[Scores],
    *,
    n_best_size: int = 20,
    max_answer_length: int = 30,
    with_negative: bool = False,
    null_score_diff_threshold: float = 0.0,
) -> Found:
    """Chooses the answer among the spans of all windows of a question.

    Every pair of one of the `n_best_size` highest starts and ends of a window
    is a candidate if it lies in the context, ends where it starts or behind,
    and starts at a piece that has its best context in this window. They are
    ordered by the sum of their logits; of equal ones the earlier window, the
    higher start and the higher end come first. Of equal texts the first stays.

    Where the original answers "empty" (SQuAD 1.1) or crashes (2.0), since no
    candidate is left or the context is blank and has no windows, the answer
    here is "", which `nbest` then holds alone. With `with_negative` its odds
    are `ODDS_WITHOUT_SPAN`.

    Args:
      question: Its context is what the windows count characters in.
      windows: All windows of this question, in order.
      scores: What the model says of each.
      n_best_size: How many starts and ends of a window to look at, and how many
        answers to list. No answer may be one more.
      max_answer_length: In pieces.
      with_negative: Whether the question may have no answer (SQuAD 2.0): the
        null score is then the smallest of the windows'.
      null_score_diff_threshold: The answer is "" if and only if the null odds
        are greater.

    Raises:
      InputError: A logit is NaN or infinite.
    """
    _require_finite(question, scores)
    spans = [
        _allowed_spans(*pair, n_best_size, max_answer_length)
        for pair in zip(windows, scores, strict=True)
    ]
    distinct = _distinct_answers(question.context, spans)
    answers = list(itertools.islice(distinct, n_best_size))
    if not with_negative:
        nbest = answers or [_NO_ANSWER]
        text = nbest[0].text
        return Found(text, _with_probabilities(nbest), None, text)
    null = _null_answer(scores)
    nbest = _with_probabilities(_insert(null, answers, n_best_size))
    if not answers:
        return Found("", nbest, ODDS_WITHOUT_SPAN, "")
    best = answers[0]
    odds = null.score - best.score
    is_null = odds > null_score_diff_threshold
    return Found("" if is_null else best.text, nbest, odds, best.text)


def _require_finite(question: Question, scores: Sequence[Scores]) -> None:
    for score in scores:
        logits = np.concatenate(
            [
                _without_fillers(score.starts, score.start_logits),
                _without_fillers(score.ends, score.end_logits),
                [score.null_score],
            ]
        )
        is_finite = np.isfinite(logits)
        if not is_finite.all():
            raise InputError(
                "Expected the model's logits to be finite. Received: "
                f"{logits[~is_finite][0]} for question {question.id!r}; its "
                "weights are of no use, see whether its training diverged"
            )


def _without_fillers(places: np.ndarray, logits: np.ndarray) -> np.ndarray:
    return logits[(places >= 0) | ~np.isneginf(logits)]


def _allowed_spans(
    window: Window, scores: Scores, n_best_size: int, max_answer_length: int
) -> _Spans:
    """The spans of one window: by the rank of the start, then of the end."""
    firsts, start_logits = _context_pieces(
        window, scores.starts[:n_best_size], scores.start_logits[:n_best_size]
    )
    lasts, end_logits = _context_pieces(
        window, scores.ends[:n_best_size], scores.end_logits[:n_best_size]
    )
    begins, ends = window.starts[firsts][:, None], window.ends[lasts]
    lengths = lasts - firsts[:, None] + 1  # [starts, ends]
    is_allowed = (lengths >= 1) & (lengths <= max_answer_length)
    is_allowed &= window.is_max_context[firsts][:, None]
    # Combining marks that were sorted can stand behind pieces that follow.
    is_allowed &= begins < ends
    start, end = np.nonzero(is_allowed)
    return _Spans(
        begins[start, 0], ends[end], start_logits[start], end_logits[end]
    )


def _context_pieces(
    window: Window, places: np.ndarray, logits: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Places in the sequence to numbers of context pieces; others drop out."""
    pieces = np.asarray(places) - window.first
    is_context = (pieces >= 0) & (pieces < len(window.starts))
    return pieces[is_context], np.asarray(logits, np.float64)[is_context]


def _distinct_answers(
    context: str, spans: Sequence[_Spans]
) -> Iterator[_Answer]:
    """Yields the texts of all windows' spans, the best first, each once."""
    if not spans:
        return
    pooled = _Spans(*map(np.concatenate, zip(*spans, strict=True)))
    scores = pooled.start_logits + pooled.end_logits
    order = np.argsort(-scores, kind="stable")
    seen = set()
    for begin, end, *logits in zip(
        *(column[order].tolist() for column in pooled), strict=True
    ):
        text = context[begin:end]
        if text not in seen:
            seen.add(text)
            yield _Answer(text, *logits)


def _null_answer(scores: Sequence[Scores]) -> _Answer:
    """No answer, with the logits of the window that says least for it."""
    if not scores:
        return _NO_ANSWER
    least = min(scores, key=lambda score: score.null_score)
    return _Answer(
        "", float(least.null_start_logit), float(least.null_end_logit)
    )


def _insert(
    null: _Answer, answers: Sequence[_Answer], n_best_size: int
) -> list[_Answer]:
    """Puts no answer behind those that are as good; in any case, at the end."""
    rank = sum(answer.score >= null.score for answer in answers)
    return [*answers[:rank], null, *answers[rank : n_best_size - 1]]


def _with_probabilities(
    answers: Sequence[_Answer],
) -> list[dict[str, str | float]]:
    """The softmax is over the list alone, as in the original."""
    scores = np.array([answer.score for answer in answers])
    weights = np.exp(scores - scores.max())
    return [
        {
            "text": answer.text,
            "probability": probability,
            "start_logit": answer.start_logit,
            "end_logit": answer.end_logit,
        }
        for answer, probability in zip(
            answers, (weights / weights.sum()).tolist(), strict=True
        )
    ]
