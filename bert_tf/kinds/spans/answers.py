"""Answers to questions: chosen from the model's logits, written and scored."""

import dataclasses
import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bert_tf.base import files, processes
from bert_tf.base.processes import Faults
from bert_tf.data.batching import Features, in_memory
from bert_tf.errors import InputError
from bert_tf.kinds.spans.squad_files import (
    ODDS_WITHOUT_SPAN,
    PLACES,
    Question,
    SpanEncoding,
    Window,
)
from bert_tf.tasks import metrics

# Enough windows for batches of equal length, few enough to show progress.
_WINDOWS_AT_A_TIME = 512

# Maps windows to the `SpanTask.row_outputs`, in the same order.
Predict = Callable[[Features], Mapping[str, np.ndarray]]


@dataclasses.dataclass(frozen=True)
class AnswerRules:
    """How answers are chosen.

    Attributes:
      n_best_size: Number of starts and ends considered in each window, and of
        answers listed. If these make no span, all starts and ends are used.
      max_answer_length: Largest number of tokens of an answer.
      with_negative: Whether a question may have no answer (SQuAD 2.0).
      null_score_diff_threshold: There is no answer if the null odds are
        greater than this.
    """

    n_best_size: int = 20
    max_answer_length: int = 30
    with_negative: bool = False
    null_score_diff_threshold: float = 0.0


class Scores(NamedTuple):
    """The logits of a window.

    Attributes:
      starts: The positions in descending order of their start logits, int [k];
        equal ones in order of position. If the window has fewer than k tokens,
        the rest is -1.
      start_logits: Their logits, [k]; -inf for missing ones.
      ends: The same for the last token of an answer.
      end_logits: Their logits, [k].
      null_start_logit: The logit of a start at [CLS], which means that the
        window has no answer.
      null_end_logit: The logit of an end at [CLS].
    """

    starts: np.ndarray
    start_logits: np.ndarray
    ends: np.ndarray
    end_logits: np.ndarray
    null_start_logit: float
    null_end_logit: float

    @property
    def null_score(self) -> float:
        """The score of no answer."""
        return float(self.null_start_logit) + float(self.null_end_logit)


# The outputs of a window, in the order of `Scores`.
_SCORES = (
    *("start_indexes", "start_logits", "end_indexes", "end_logits"),
    *("null_start_logits", "null_end_logits"),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Prediction:
    """The predicted answer to a question.

    Attributes:
      text: A slice of the context, or "" for no answer; for
        `predictions.json`.
      nbest: The best answers with `text`, `probability` (the sum is 1; 0 if
        there is no span but must be an answer), `start_logit` and `end_logit`;
        for `nbest_predictions.json`.
      null_odds: The null score minus the score of the best span, for
        `null_odds.json`; None unless questions may have no answer.
      best_span: The text of the best span, even if "no answer" is more likely;
        "" if there is no span.
      start: Where `text` begins in the context; -1 for no answer.
    """

    text: str
    nbest: list[dict[str, str | float]]
    null_odds: float | None
    best_span: str
    start: int = dataclasses.field(default=-1, compare=False)


class Answered(NamedTuple):
    question: Question
    prediction: Prediction


class _Candidate(NamedTuple):
    text: str
    start_logit: float
    end_logit: float
    start: int = -1

    @property
    def score(self) -> float:
        return self.start_logit + self.end_logit


_NO_ANSWER = _Candidate("", 0.0, 0.0)


# ---------------------------------------------------------- choosing an answer


def find_answer(
    question: Question,
    windows: Sequence[Window],
    scores: Sequence[Scores],
    rules: AnswerRules,
) -> Prediction:
    """Chooses the answer among the spans of all windows of a question.

    A candidate is a span of the context in one window. It starts at one of the
    window's best starts and ends at one of its best ends, has 1 to
    `max_answer_length` tokens, and its first token has its maximum context in
    this window. Candidates are ordered by the sum of their logits. Among equal
    sums the earlier window comes first, then the start with the higher logit,
    then the end with the higher logit. Of equal texts the first is kept.

    Without any candidate, as when the best starts are all in a long question,
    all starts and ends are considered. The original answers "empty" (SQuAD
    1.1) or crashes (2.0) there. A context without tokens, whose window has
    none, has the answer "" with
    the probability 0; if questions may have no answer, with the probability 1
    and the null odds `ODDS_WITHOUT_SPAN`.

    Raises:
      InputError: If a logit is NaN or infinite.
    """
    _require_finite(question, scores)
    distinct = _distinct_candidates(question.context, windows, scores, rules)
    spans = list(itertools.islice(distinct, rules.n_best_size))
    if not rules.with_negative:
        listed = _with_probabilities(spans or [_NO_ANSWER])
        if not spans:
            listed[0]["probability"] = 0.0
            return Prediction("", listed, None, "")
        best = spans[0]
        return Prediction(best.text, listed, None, best.text, best.start)
    least = min(scores, key=lambda score: score.null_score)
    null = _Candidate(
        "", float(least.null_start_logit), float(least.null_end_logit)
    )
    # "No answer" comes after equal scores, and is always listed.
    rank = sum(span.score >= null.score for span in spans)
    nbest = _with_probabilities(
        [*spans[:rank], null, *spans[rank : rules.n_best_size - 1]]
    )
    if not spans:
        return Prediction("", nbest, ODDS_WITHOUT_SPAN, "")
    best = spans[0]
    odds = null.score - best.score
    is_null = odds > rules.null_score_diff_threshold
    text, start = ("", -1) if is_null else (best.text, best.start)
    return Prediction(text, nbest, odds, best.text, start)


def find_answers(
    outputs: Mapping[str, np.ndarray],
    questions: Sequence[Question],
    rules: AnswerRules,
) -> list[Prediction]:
    """Returns the answer to each question.

    Args:
      outputs: The `SpanTask.row_outputs` of the windows of the questions.
      questions: The questions, in the order of their windows.
      rules: How answers are chosen.
    """
    places = zip(*(outputs[name] for name in PLACES), strict=True)
    windows = []
    for starts, ends, is_max_context in places:
        [context] = np.nonzero(ends)
        first = int(context[0]) if len(context) else 0
        is_max = is_max_context[context] > 0
        windows.append(Window(0, first, starts[context], ends[context], is_max))
    logits = zip(*(outputs[name] for name in _SCORES), strict=True)
    scores = [Scores(*row) for row in logits]
    borders = [*np.flatnonzero(outputs["is_first_window"]), len(windows)]
    return [
        find_answer(question, windows[begin:end], scores[begin:end], rules)
        for question, (begin, end) in zip(
            questions, itertools.pairwise(borders), strict=True
        )
    ]


def _require_finite(question: Question, scores: Sequence[Scores]) -> None:
    for score in scores:
        logits = np.concatenate([score.start_logits, score.end_logits])
        is_missing = np.concatenate([score.starts, score.ends]) < 0
        logits = logits[~(is_missing & np.isneginf(logits))]
        if not np.isfinite(np.append(logits, score.null_score)).all():
            raise InputError(
                f"The model's logits for question {question.id!r} are not "
                "finite. Its weights are unusable; check whether its training "
                "diverged."
            )


def _distinct_candidates(
    context: str,
    windows: Sequence[Window],
    scores: Sequence[Scores],
    rules: AnswerRules,
) -> Iterator[_Candidate]:
    """Yields the candidates of all windows, the best first, each text once."""
    for count in (rules.n_best_size, None):
        spans = [
            _allowed_spans(window, score, rules.max_answer_length, count)
            for window, score in zip(windows, scores, strict=True)
        ]
        columns = [
            np.concatenate(column) for column in zip(*spans, strict=True)
        ]
        if len(columns[0]):
            break
    order = np.argsort(-(columns[2] + columns[3]), kind="stable")
    texts = set()
    for begin, end, start_logit, end_logit in zip(
        *(column[order].tolist() for column in columns), strict=True
    ):
        text = context[begin:end]
        if text not in texts:
            texts.add(text)
            yield _Candidate(text, start_logit, end_logit, begin)


def _allowed_spans(
    window: Window, scores: Scores, max_answer_length: int, count: int | None
) -> tuple[np.ndarray, ...]:
    """Returns the characters [begin, end) and the logits of each span, [c].

    Spans start and end at the `count` best tokens; None for all. They are in
    the order of the rank of the start, then of the end.
    """

    def of_context(positions, logits):
        """Returns the best context tokens, by index, and their logits."""
        tokens = np.asarray(positions[:count]) - window.first
        is_context = (tokens >= 0) & (tokens < len(window.starts))
        logits = np.asarray(logits[:count], np.float64)
        return tokens[is_context], logits[is_context]

    firsts, start_logits = of_context(scores.starts, scores.start_logits)
    lasts, end_logits = of_context(scores.ends, scores.end_logits)
    begins, ends = window.starts[firsts][:, None], window.ends[lasts]
    lengths = lasts - firsts[:, None] + 1  # [starts, ends]
    is_allowed = (lengths >= 1) & (lengths <= max_answer_length)
    is_allowed &= window.is_max_context[firsts][:, None]
    # Normalization sorts combining marks, which can then precede characters
    # of earlier tokens.
    is_allowed &= begins < ends
    start, end = np.nonzero(is_allowed)
    return begins[start, 0], ends[end], start_logits[start], end_logits[end]


def _with_probabilities(
    candidates: Sequence[_Candidate],
) -> list[dict[str, str | float]]:
    """Returns the n-best list; the softmax is over this list only."""
    scores = np.array([candidate.score for candidate in candidates])
    weights = np.exp(scores - scores.max())
    return [
        {
            "text": candidate.text,
            "probability": probability,
            "start_logit": candidate.start_logit,
            "end_logit": candidate.end_logit,
        }
        for candidate, probability in zip(
            candidates, (weights / weights.sum()).tolist(), strict=True
        )
    ]


# ---------------------------------------------------------- answering questions


def answer_questions(
    questions: Sequence[Question],
    encoding: SpanEncoding,
    predict: Predict,
    rules: AnswerRules,
) -> Iterator[Answered]:
    """Yields the answers to all questions, in order, while predicting.

    Raises InputError if the model's logits are not finite.
    """
    faults, encoding = Faults(), encoding.for_answers()
    parts = encoding.split(questions, _WINDOWS_AT_A_TIME)
    for part in processes.track(
        parts, len, "Answering", "questions", len(questions)
    ):
        encoded = encoding.encode(part)
        faults.update(encoded.faults or Faults())
        features = in_memory([encoded.batch], encoding.schema)
        outputs = {**features.arrays, **predict(features)}
        found = find_answers(outputs, part, rules)
        yield from map(Answered, part, found)
    faults.log()


# --------------------------------------------------------------- output, scores


def write_answers(
    answers: Iterable[Answered], folder: str, with_negative: bool
) -> Iterator[Answered]:
    """Yields the answers while writing them to the original's output files.

    The files are `predictions.json`, `nbest_predictions.json` and, if
    questions may have no answer, `null_odds.json`. They appear after the last
    answer.
    """
    texts, nbest, odds = {}, {}, {}
    for answered in answers:
        question, prediction = answered
        texts[question.id] = prediction.text
        nbest[question.id] = prediction.nbest
        odds[question.id] = prediction.null_odds
        yield answered
    contents = {"predictions.json": texts, "nbest_predictions.json": nbest}
    if with_negative:
        contents["null_odds.json"] = odds
    for name, members in contents.items():
        text = json.dumps(members, indent=4, allow_nan=False)
        files.write_text(os.path.join(folder, name), f"{text}\n")
    stale = os.path.join(folder, "null_odds.json")
    if not with_negative and files.exists(stale):
        files.remove(stale)  # From an earlier run.


def official_scores(
    answers: Iterable[Answered], with_negative: bool, is_korquad: bool = False
) -> dict[str, float]:
    """Returns the official scores by name, with "eval_"; see `metrics`.

    The best thresholds of SQuAD 2.0 are computed from the best spans. (The
    official script receives "" where the odds exceed the threshold of the run,
    and so can only find lower thresholds.) KorQuAD is scored by characters.
    """
    gold, texts, spans, odds = {}, {}, {}, {}
    for question, prediction in answers:
        key = question.id
        is_impossible = with_negative and question.is_impossible
        gold_answers = () if is_impossible else question.answers
        gold[key] = [answer.text for answer in gold_answers]
        texts[key] = prediction.text
        if with_negative:
            spans[key] = prediction.best_span
            assert prediction.null_odds is not None
            odds[key] = prediction.null_odds
    if with_negative:
        best = metrics.squad_v2(gold, spans, odds)
        scores = metrics.squad_v2(gold, texts)
        scores |= {k: v for k, v in best.items() if k.startswith("best_")}
    elif is_korquad:
        scores = metrics.korquad_v1(gold, texts)
    else:
        scores = metrics.squad_v1(gold, texts)
    return {f"eval_{name}": value for name, value in scores.items()}


def metric_names(with_negative: bool) -> list[str]:
    """Returns the names of the scores that can select the best model."""
    exact = "exact" if with_negative else "exact_match"
    return ["eval_f1", f"eval_{exact}"]


def require_answers(questions: Iterable[Question], with_negative: bool) -> None:
    """Raises InputError if a question lacks an answer to compare with."""
    for question in questions:
        if question.answers or (with_negative and question.is_impossible):
            continue
        way = "" if with_negative else " and pass `version_2_with_negative`"
        raise InputError(
            f"The question {question.name} has no answer, so it cannot be "
            f'scored. Add one, or mark it "is_impossible": true{way}.'
        )
