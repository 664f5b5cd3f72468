"""One JSON object, written while its members are still being made."""

import contextlib
import dataclasses
import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_tf import files, metrics
from bert_tf.data import buckets, processes
from bert_tf.data.buckets import Features
from bert_tf.data.processes import Faults
from bert_tf.errors import InputError
from bert_tf.tasks.questions import (
    ODDS_WITHOUT_SPAN,
    Question,
    SpanEncoding,
    Window,
    make_windows,
    split_questions,
)

# One JSON object, written while its members are still being made.


class JsonObjectWriter:
    """Writes `json.dumps(members, indent=4) + "\\n"` without the whole dict.

    The file appears only when it is complete; see `files.atomic_writer`. Use
    it in a `with` statement.

    Args:
      path: The file; one of that name is replaced.

    Raises:
      InputError: The place cannot be written to (when entered), or is full.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._is_empty = True

    def __enter__(self) -> "JsonObjectWriter":
        with contextlib.ExitStack() as stack:
            self._file = stack.enter_context(files.atomic_writer(self._path))
            self._file.write(b"{")
            # Runs before the file is renamed, and not where anything failed.
            stack.push(self._finish)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception: Any) -> bool | None:
        return self._stack.__exit__(*exception)

    def add(self, key: str, value: Any) -> None:
        """Appends a member.

        Args:
          key: One that is new: nobody looks whether it is.
          value: Whatever `json` can write.

        Raises:
          ValueError: `value` holds NaN or an infinity, for which JSON has no
            spelling.
        """
        lines = json.dumps({key: value}, indent=4, allow_nan=False)
        member = lines.removeprefix("{").removesuffix("\n}")
        self._file.write(("" if self._is_empty else ",").encode())
        self._file.write(member.encode())
        self._is_empty = False

    def _finish(self, kind: type[BaseException] | None, *_: Any) -> None:
        if kind is None:
            self._file.write(b"}\n" if self._is_empty else b"\n}\n")


# From the likeliest starts and ends of the windows to a question's answer.


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


# Questions to answers: tokenized, answered and written some at a time.


# About so many windows at a time: enough for batches of one length, few enough
# to see progress.
_WINDOWS_AT_A_TIME = 512

# From windows to what `SpanTask.predictions` keeps of them, in their order.
Predict = Callable[[Features], Mapping[str, np.ndarray]]


@dataclasses.dataclass(frozen=True)
class AnswerRules:
    """How an answer is chosen; see `span_answers.find_answer`."""

    n_best_size: int = 20
    max_answer_length: int = 30
    with_negative: bool = False
    null_score_diff_threshold: float = 0.0

    def __post_init__(self) -> None:
        for name in ("n_best_size", "max_answer_length"):
            if getattr(self, name) < 1:
                raise InputError(
                    f"expected --{name} of 1 up. Received: "
                    f"{getattr(self, name)}"
                )


class Answered(NamedTuple):
    """A question with its answer."""

    question: Question
    found: Found


def answer(
    questions: Sequence[Question],
    encoding: SpanEncoding,
    predict: Predict,
    rules: AnswerRules,
) -> Iterator[Answered]:
    """Answers every question, in the order given.

    A context of which nothing is left to tokenize has no window; its question
    is answered all the same, see `find_answer`.

    Raises:
      InputError: The model gives no numbers.
    """
    faults = Faults()
    parts = split_questions(questions, encoding, _WINDOWS_AT_A_TIME)
    for answered in processes.track(
        (_answer(part, encoding, predict, rules, faults) for part in parts),
        len,
        "Answering",
        "questions",
        len(questions),
    ):
        yield from answered
    faults.tell()


def _answer(
    questions: Sequence[Question],
    encoding: SpanEncoding,
    predict: Predict,
    rules: AnswerRules,
    faults: Faults,
) -> list[Answered]:
    made = make_windows(questions, encoding, with_positions=False)
    faults.update(made.faults)
    scores = _scores(made.batch, encoding, predict) if made.windows else []
    rows = _rows_of([w.question for w in made.windows], len(questions))
    return [
        Answered(
            question,
            find_answer(
                question,
                made.windows[own],
                scores[own],
                **dataclasses.asdict(rules),
            ),
        )
        for question, own in zip(questions, rows, strict=True)
    ]


def _scores(
    batch: Mapping[str, np.ndarray], encoding: SpanEncoding, predict: Predict
) -> list[Scores]:
    schema = tuple(f for f in encoding.schema if f.name in batch)
    kept = predict(buckets.in_memory([batch], schema))
    names = (
        *("start_places", "start_logits", "end_places", "end_logits"),
        *("null_start_logits", "null_end_logits"),
    )
    columns = zip(*(kept[name] for name in names), strict=True)
    return [Scores(*row) for row in columns]


def _rows_of(owners: Sequence[int], count: int) -> list[slice]:
    """Which windows are whose: `owners` rise, some may have none."""
    ends = np.cumsum(np.bincount(np.array(owners, int), minlength=count))
    return [
        slice(start, end)
        for start, end in zip([0, *ends[:-1]], ends, strict=True)
    ]


def written(
    answers: Iterable[Answered], folder: str, with_negative: bool
) -> Iterator[Answered]:
    """Passes answers on and writes the original's files of them.

    Those are `predictions.json`, `nbest_predictions.json` and, where questions
    may have no answer, `null_odds.json`. They appear when all is written.

    Raises:
      InputError: They cannot be written.
    """
    with contextlib.ExitStack() as stack:

        def open_file(name: str) -> JsonObjectWriter:
            path = os.path.join(folder, name)
            return stack.enter_context(JsonObjectWriter(path))

        predictions = open_file("predictions.json")
        nbest = open_file("nbest_predictions.json")
        null_odds = open_file("null_odds.json") if with_negative else None
        for answered in answers:
            question, found = answered
            predictions.add(question.id, found.text)
            nbest.add(question.id, found.nbest)
            if null_odds is not None:
                null_odds.add(question.id, found.null_odds)
            yield answered
    stale = os.path.join(folder, "null_odds.json")
    if not with_negative and files.exists(stale):
        files.remove(stale)  # Of a run before; it would seem to belong here.


def score(
    answers: Iterable[Answered], with_negative: bool, is_korquad: bool = False
) -> dict[str, float]:
    """The official scores; see `metrics`.

    The best thresholds of SQuAD 2.0 are those for the best spans. (The official
    script, given our files, sees "" wherever the odds were above the threshold
    of the run, and can only find one below it.)

    Args:
      answers: Each question once, with all gold answers.
      with_negative: Whether questions may have no answer.
      is_korquad: Whether Korean is scored, by its characters.

    Returns:
      Dict from `eval_` and the official script's name to a number.
    """
    gold, texts, spans, odds = {}, {}, {}, {}
    for question, found in answers:
        key = question.id
        gold[key] = _gold_texts(question, with_negative)
        texts[key] = found.text
        if with_negative:
            spans[key] = found.best_span
            odds[key] = found.null_odds
    if with_negative:
        best = metrics.squad_v2(gold, spans, odds)
        scores = metrics.squad_v2(gold, texts)
        scores |= {k: v for k, v in best.items() if k.startswith("best_")}
    elif is_korquad:
        scores = metrics.korquad_v1(gold, texts)
    else:
        scores = metrics.squad_v1(gold, texts)
    return {f"eval_{name}": value for name, value in scores.items()}


def _gold_texts(question: Question, with_negative: bool) -> list[str]:
    if with_negative and question.is_impossible:
        return []
    return [answer.text for answer in question.answers]


def metric_names(with_negative: bool) -> list[str]:
    """The scores that training can be steered by."""
    exact = "exact" if with_negative else "exact_match"
    return ["eval_f1", f"eval_{exact}"]


def require_answers(questions: Iterable[Question], with_negative: bool) -> None:
    """Sees that there is something to score by.

    Raises:
      InputError: A question that should have an answer has none.
    """
    for question in questions:
        if question.answers or (with_negative and question.is_impossible):
            continue
        raise InputError(
            "expected an answer to every question, to score by, or "
            "--version_2_with_negative and is_impossible. Received: none to "
            f"{question.name}"
        )
