"""Questions to answers: tokenized, answered and written some at a time.

What a model says of the windows of a question is kept until the question has
its answer, and no longer: memory does not grow with the number of windows.
"""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bert_tf import files, span_metrics
from bert_tf.data import bucketing, progress
from bert_tf.data.bucketing import Features
from bert_tf.data.faults import Faults
from bert_tf.data.json_stream import JsonObjectWriter
from bert_tf.data.questions import Question
from bert_tf.data.windows import (
    SpanEncoding,
    make_windows,
    parts_of_questions,
)
from bert_tf.errors import InputError
from bert_tf.tasks.span_answers import Found, Scores, find_answer

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
    parts = parts_of_questions(questions, encoding, _WINDOWS_AT_A_TIME)
    for answered in progress.track(
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
    kept = predict(bucketing.in_memory([batch], schema))
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
    """The official scores; see `span_metrics`.

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
        best = span_metrics.squad_v2(gold, spans, odds)
        scores = span_metrics.squad_v2(gold, texts)
        scores |= {k: v for k, v in best.items() if k.startswith("best_")}
    elif is_korquad:
        scores = span_metrics.korquad_v1(gold, texts)
    else:
        scores = span_metrics.squad_v1(gold, texts)
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
