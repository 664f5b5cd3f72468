"""The task of finding the span of a text that answers a question.

Answers are chosen from the model's logits, written and scored.
"""

import dataclasses
import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from bert_tf.base import files, processes
from bert_tf.base.processes import Faults
from bert_tf.config import BertConfig
from bert_tf.data.batching import Features, in_memory
from bert_tf.errors import InputError
from bert_tf.kinds.spans.squad_files import (
    ODDS_WITHOUT_SPAN,
    PLACES,
    Question,
    SpanEncoding,
)
from bert_tf.modeling.heads import BertSpanLabeler
from bert_tf.tasks import metrics
from bert_tf.tasks.task import FineTuningTask, Rows, divergence

# The logit of padding in the loss. An infinity times the 0 of a one-hot row
# would be NaN.
MASKED = -1e9

# Enough windows to batch similar lengths, and few enough to show progress.
_WINDOWS_AT_A_TIME = 512

# The two ends of a span, in the names of logits and positions.
_ENDS = ("start", "end")

# Maps windows to the `SpanTask.row_outputs`, in the same order.
Predict = Callable[[Features], Mapping[str, np.ndarray]]


@dataclasses.dataclass(frozen=True)
class AnswerRules:
    """How answers are chosen.

    Attributes:
      n_best_size: Number of starts and ends considered in each window, and of
        answers listed. If these starts and ends form no span, all are used.
      max_answer_length: Largest number of tokens of an answer.
      with_negative: Whether a question may have no answer (SQuAD 2.0).
      null_score_diff_threshold: There is no answer if the null odds are
        greater than this.
    """

    n_best_size: int = 20
    max_answer_length: int = 30
    with_negative: bool = False
    null_score_diff_threshold: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Prediction:
    """The predicted answer to a question.

    Attributes:
      text: A slice of the context, or "" for no answer; for
        `predictions.json`.
      nbest: The best answers with `text`, `probability`, `start_logit` and
        `end_logit`; for `nbest_predictions.json`. The probabilities add up to
        1, or to 0 if a question that must have an answer has no span.
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
    question: Question, windows: Mapping[str, np.ndarray], rules: AnswerRules
) -> Prediction:
    """Chooses the answer among the spans of all windows of a question.

    A candidate is a span of the context in one window; see `are_spans`. It
    starts at one of the window's best starts and ends at one of its best ends.
    Candidates are ordered by the sum of their logits. Among equal sums the
    earlier window comes first, then the start with the higher logit, then the
    end with the higher logit. Of equal texts the first is kept.

    If there is no candidate, for example because the best starts are all in a
    long question, all starts and ends are considered. The original then answers
    "empty" (SQuAD 1.1) or crashes (2.0). If the context has no tokens, the
    answer is "" with the probability 0; or, if questions may have no answer,
    with the probability 1 and the null odds `ODDS_WITHOUT_SPAN`.

    Args:
      question: The question.
      windows: The `SpanTask.row_outputs` of its windows.
      rules: How answers are chosen.

    Raises:
      InputError: If a logit is NaN or infinite.
    """
    _require_finite(question, windows)
    distinct = _distinct_candidates(question.context, windows, rules)
    spans = list(itertools.islice(distinct, rules.n_best_size))
    if not rules.with_negative:
        listed = _with_probabilities(spans or [_NO_ANSWER])
        if not spans:
            listed[0]["probability"] = 0.0
            return Prediction("", listed, None, "")
        best = spans[0]
        return Prediction(best.text, listed, None, best.text, best.start)
    nulls = (windows[f"null_{name}_logits"].tolist() for name in _ENDS)
    null = min(
        (_Candidate("", *logits) for logits in zip(*nulls, strict=True)),
        key=lambda candidate: candidate.score,
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

    `outputs` are the `SpanTask.row_outputs` of all windows, in the order of the
    questions.
    """
    is_first = outputs["is_first_window"]
    borders = [*np.flatnonzero(is_first), len(is_first)]
    return [
        find_answer(
            question,
            {name: values[begin:end] for name, values in outputs.items()},
            rules,
        )
        for question, (begin, end) in zip(
            questions, itertools.pairwise(borders), strict=True
        )
    ]


def _require_finite(
    question: Question, windows: Mapping[str, np.ndarray]
) -> None:
    for name in _ENDS:
        logits = windows[f"{name}_logits"]
        is_missing = (windows[f"{name}_indexes"] < 0) & np.isneginf(logits)
        are_finite = np.isfinite(logits) | is_missing
        null_logits = windows[f"null_{name}_logits"]
        if not are_finite.all() or not np.isfinite(null_logits).all():
            raise InputError(
                f"The model's logits for question {question.id!r} are not "
                "finite. Its weights are unusable; check whether its training "
                "diverged."
            )


def _distinct_candidates(
    context: str, windows: Mapping[str, np.ndarray], rules: AnswerRules
) -> Iterator[_Candidate]:
    """Yields the candidates of all windows, the best first, each text once."""
    for count in (rules.n_best_size, None):
        columns = _allowed_spans(windows, rules.max_answer_length, count)
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
    windows: Mapping[str, np.ndarray],
    max_answer_length: int,
    count: int | None,
) -> tuple[np.ndarray, ...]:
    """Returns the characters [begin, end) and the logits of each span, [c].

    Spans start and end at the `count` best tokens; None for all. They are in
    order of the window, then of the rank of the start, then of the end.
    """
    firsts, lasts = (windows[f"{name}_indexes"][:, :count] for name in _ENDS)

    def of_tokens(name: str, index: np.ndarray) -> np.ndarray:
        # Missing positions, -1, get the values of [CLS], which form no span.
        index = np.maximum(index, 0)
        return np.take_along_axis(windows[name], index, axis=1)

    begins = of_tokens("token_starts", firsts)
    ends = of_tokens("token_ends", lasts)
    is_max = of_tokens("is_max_context", firsts)
    window, start, end = np.nonzero(
        are_spans(firsts, lasts, begins, ends, is_max, max_answer_length)
    )
    return (
        begins[window, start],
        ends[window, end],
        windows["start_logits"][window, start].astype(np.float64),
        windows["end_logits"][window, end].astype(np.float64),
    )


def are_spans(
    firsts: Any,
    lasts: Any,
    begins: Any,
    ends: Any,
    is_max_context: Any,
    max_answer_length: int,
) -> Any:
    """Returns which starts and ends are candidates, bool [w, n, n].

    A span has 1 to `max_answer_length` tokens, and its first token has its
    maximum context in this window.

    Args:
      firsts, lasts: The positions of starts and ends, [w, n], as arrays or
        tensors of integers.
      begins, ends: The characters at which they begin and end.
      is_max_context: Whether the start has its maximum context.
      max_answer_length: See `AnswerRules`.
    """
    lengths = lasts[:, None] - firsts[:, :, None] + 1
    are_allowed = (lengths >= 1) & (lengths <= max_answer_length)
    are_allowed &= is_max_context[:, :, None] > 0
    # Normalization reorders combining marks, so that a token can precede the
    # characters of earlier tokens.
    return are_allowed & (begins[:, :, None] < ends[:, None])


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
) -> None:
    """Writes `predictions.json`, `nbest_predictions.json` and `null_odds.json`.

    As in the original, the last one is for questions that may have no answer.
    """
    names = {"predictions": "text", "nbest_predictions": "nbest"}
    if with_negative:
        names["null_odds"] = "null_odds"
    for name, field in names.items():
        members = {q.id: getattr(found, field) for q, found in answers}
        text = json.dumps(members, indent=4, allow_nan=False)
        files.write_text(os.path.join(folder, f"{name}.json"), f"{text}\n")
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


# -------------------------------------------------------------------- the task


class SpanTask(FineTuningTask):
    """The task of `run_squad.py`; sections 4.2 and 4.3 of the paper.

    A row is a window: the question and a part of the context. The answer
    starts and ends at positions of the sequence, both 0 ([CLS]) if the window
    does not have it.

    Padding is excluded from the softmax and from the best positions, so the
    loss and the answers do not depend on the padded length. In the original
    padding takes part: the loss is a little higher and depends on
    `max_seq_length` until the model has learned to give padding low logits.

    Args:
      config: The configuration of the model.
      encoding: How questions become windows.
      rules: How answers are chosen.
      options: Options of `FineTuningTask`.
    """

    kind = head = "span"
    loss_names = ("span_loss",)
    unused_variables = r"bert/pooler/"

    def __init__(
        self,
        config: BertConfig,
        encoding: SpanEncoding,
        *,
        rules: AnswerRules | None = None,
        **options: Any,
    ):
        super().__init__(config, encoding, **options)
        self.rules = rules or AnswerRules()

    def make_model(self, **options: Any) -> keras.Model:
        return BertSpanLabeler(self.config, **options)

    def element_losses(self, features: Mapping, outputs: Mapping) -> Any:
        """Returns the mean of the losses of start and end, float32 [B].

        Source: `compute_loss` of `run_squad.py`.
        """
        losses = [
            keras.losses.sparse_categorical_crossentropy(
                features[f"{name}_positions"],
                masked(
                    outputs[f"{name}_logits"], features["input_mask"], MASKED
                ),
                from_logits=True,
            )
            for name in ("start", "end")
        ]
        return (losses[0] + losses[1]) / 2

    def soft_losses(
        self, features: Mapping, outputs: Mapping, temperature: float
    ) -> Any:
        """See `FineTuningTask`; the mean of start and end."""
        losses = []
        for name in ("start_logits", "end_logits"):
            theirs, ours = (
                masked(logits, features["input_mask"], MASKED)
                for logits in (features[f"teacher_{name}"], outputs[name])
            )
            losses.append(divergence(theirs, ours, temperature))
        return (losses[0] + losses[1]) / 2

    def row_outputs(self, features: Mapping, outputs: Mapping) -> dict:
        """Returns all `best_indexes`, and the features of `AnswerEncoding`.

        All are needed if the best starts and ends form no span.
        """
        kept, count = (*PLACES, "is_first_window"), self.encoding.max_seq_length
        return {
            **best_indexes(outputs, features["input_mask"], count),
            **{name: features[name] for name in kept if name in features},
        }

    def join(self, outputs: Mapping, rows: Rows) -> dict:
        """Returns the outputs of all windows, which `answers` compares."""
        return dict(outputs)

    def answers(
        self, decoded: Mapping[str, np.ndarray], examples: Sequence[Question]
    ) -> list[dict[str, Any]]:
        """Returns the answer to each question; see `QuestionAnswerer`."""
        answers = []
        for found in find_answers(decoded, examples, self.rules):
            chances = {row["text"]: row["probability"] for row in found.nbest}
            end = found.start + len(found.text) if found.text else -1
            answer = {
                "answer": found.text,
                "score": chances.get(found.text, 0.0),
                "start": found.start,
                "end": end,
            }
            answers.append(answer)
        return answers

    def predictions(self, features: Mapping, outputs: Mapping) -> dict:
        """Returns `row_outputs`, and the `loss` [b] of training windows."""
        results = self.row_outputs(features, outputs)
        if "start_positions" in features:
            results["loss"] = self.element_losses(features, outputs)
        return results

    def score(
        self,
        predictions: Mapping[str, np.ndarray],
        examples: Sequence[Question] = (),
    ) -> dict[str, float]:
        """Returns the official scores; without examples, the mean loss."""
        if examples:
            found = find_answers(predictions, examples, self.rules)
            answered = map(Answered, examples, found)
            return official_scores(answered, self.rules.with_negative)
        return {"eval_loss": float(np.mean(predictions["loss"], dtype=float))}


def best_indexes(outputs: Mapping, input_mask, count: int) -> dict:
    """Returns the positions with the highest logits of each window.

    Source: `_get_best_indexes` of `run_squad.py`.

    Args:
      outputs: `start_logits` and `end_logits` [b, S].
      input_mask: Integers [b, S].
      count: The number of starts and of ends to return.

    Returns:
      Dict of `start_indexes` and `end_indexes`, int32 [b, count], positions in
      descending order of logits, equal logits in ascending order;
      `start_logits` and `end_logits`, float32 [b, count]; `null_start_logits`
      and `null_end_logits`, float32 [b], the logits at [CLS]. If a window has
      fewer tokens, the rest is -1 and -inf: the shape is static for any S.
    """
    best = {}
    for name in ("start", "end"):
        logits = outputs[f"{name}_logits"]
        allowed = masked(logits, input_mask, -np.inf)
        padding = [[0, 0], [0, count]]
        allowed = ops.pad(allowed, padding, constant_values=-np.inf)
        values, indexes = ops.top_k(allowed, count)
        # Also false for NaN.
        is_token = values > -np.inf
        best[f"{name}_indexes"] = ops.where(
            is_token, ops.cast(indexes, "int32"), -1
        )
        best[f"{name}_logits"] = values
        best[f"null_{name}_logits"] = logits[:, 0]
    return best


def masked(logits, mask, value: float):
    """Returns the logits, [b, S], with `value` where the mask is 0."""
    return ops.where(ops.cast(mask, "bool"), logits, value)
