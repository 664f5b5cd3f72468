"""Official scores of extractive question answering, in percent.

Everything takes the answers as they are: `gold` maps the id of each question to
the texts that people gave, `predictions` the id to the one text that a model
gave. Predictions of other questions are not looked at; a question without a
prediction scores 0, and one warning counts them.

The definitions are those of evaluate-v1.1.py and evaluate-v2.0.py of SQuAD
(https://rajpurkar.github.io/SQuAD-explorer; Rajpurkar et al. 2016, section 6.1,
and 2018) and evaluate-KorQuAD_v1.0.py (https://korquad.github.io/KorQuad%201.0;
Lim et al. 2019).
"""

import collections
import functools
import re
import string
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from absl import logging

from bert_tf.errors import InputError

Gold = Mapping[str, Sequence[str]]
Predictions = Mapping[str, str]

# Exact match, 0 or 1, and F1 from 0 to 1 of one question. They are integers
# where they are in the official scripts: the `sum` of Python 3.12 rounds a sum
# of floats more exactly than one in which there are integers.
_Points = tuple[float, float]

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
# Of ASCII alone: the scripts leave “quotes” and dashes where they are.
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
# What encloses Korean titles and quotations separates words.
_NO_BRACKETS = str.maketrans(dict.fromkeys("'\"《》<>〈〉()‘’", " "))


def normalize_squad(text: str) -> str:
    """The words of an answer that count: SQuAD's `normalize_answer`.

    Lower case; without ASCII punctuation, then without the articles a, an and
    the; one space between words. Punctuation goes without a trace, so that
    "u.s.-led" is "usled".
    """
    text = text.lower().translate(_NO_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


def normalize_korquad(text: str) -> str:
    """KorQuAD's `normalize_answer`: Korean has no articles, but brackets.

    Brackets and quotation marks become spaces, other ASCII punctuation goes
    without a trace; lower case; one space between words.
    """
    text = text.translate(_NO_BRACKETS).lower().translate(_NO_PUNCTUATION)
    return " ".join(text.split())


def squad_v1(gold: Gold, predictions: Predictions) -> dict[str, float]:
    """Scores SQuAD 1.1: `exact_match` and `f1`.

    A prediction counts as the best of the gold answers makes it. F1 is that of
    the words, each as often as it stands there; 0 where neither has one.

    Raises:
      InputError: There is no question, or one has no gold answer.
    """
    return _answerable_scores(gold, predictions, normalize_squad, str.split)


def korquad_v1(gold: Gold, predictions: Predictions) -> dict[str, float]:
    """Scores KorQuAD 1.0: as SQuAD 1.1, but F1 is that of the characters.

    A Korean word carries its particles, and so is seldom the same as another.
    Spaces are no characters here.

    Raises:
      InputError: There is no question, or one has no gold answer.
    """
    return _answerable_scores(gold, predictions, normalize_korquad, _characters)


def squad_v2(
    gold: Gold,
    predictions: Predictions,
    null_odds: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """Scores SQuAD 2.0, in which "" says that there is no answer.

    The predictions are scored as they stand. (The official script, given odds,
    also takes those above its --na-prob-thresh, 1.0, for "".) A question that
    has no prediction counts as wrong; the official script leaves it out of its
    total and fails at `HasAns`.

    A `best_f1_thresh` of 0.0 can mean "answer no question", as it does in the
    official script; a warning says so where it would give another F1.

    `best_exact` and `best_f1` are what the best threshold would give: where the
    odds are above it the answer becomes "". It chooses among `predictions`, so
    let these be the best spans, with "" nowhere, to have all thresholds tried.
    Questions of equal odds are added one by one, in the order of `null_odds`,
    as the official script does it.

    Args:
      gold: No text for a question without an answer.
      predictions: A text, or "".
      null_odds: How much likelier no answer is than the prediction, on any
        scale that grows; `Found.null_odds`.

    Returns:
      `exact`, `f1` and `total`, the number of questions; the same three with
      `HasAns_` and `NoAns_` before them for the questions with and without an
      answer, where there are such; with `null_odds` also `best_exact`,
      `best_exact_thresh`, `best_f1` and `best_f1_thresh`.

    Raises:
      InputError: There is no question, or a prediction has no odds that are a
        number.
    """
    _check_questions(gold, predictions)
    points = _points(gold, predictions, _points_with_negative)
    scores = _means(points)
    for name, has_answer in (("HasAns", True), ("NoAns", False)):
        chosen = [
            pair
            for pair, texts in zip(points, gold.values(), strict=True)
            if bool(texts) == has_answer
        ]
        if chosen:
            means = _means(chosen)
            scores |= {f"{name}_{key}": means[key] for key in means}
    if null_odds is not None:
        scores |= _best_thresholds(points, gold, predictions, null_odds)
    return scores


def _check_questions(gold: Gold, predictions: Predictions) -> None:
    if not gold:
        raise InputError("Expected at least one question. Received: none")
    missing = [key for key in gold if key not in predictions]
    if missing:
        logging.warning(
            "%d of %d questions have no prediction and score 0; the first: %s",
            len(missing),
            len(gold),
            missing[0],
        )


def _answerable_scores(
    gold: Gold,
    predictions: Predictions,
    normalize: Callable[[str], str],
    units: Callable[[str], list[str]],
) -> dict[str, float]:
    """Exact match and F1 where every question has an answer."""
    _check_questions(gold, predictions)
    _check_answers(gold)
    points_of = functools.partial(
        _answerable_points, normalize=normalize, units=units
    )
    points = _points(gold, predictions, points_of)
    # Running sums, as in the official scripts: `np.sum` may round otherwise.
    exact, f1 = np.cumsum(points, axis=0)[-1].tolist()
    return {
        "exact_match": 100.0 * exact / len(gold),
        "f1": 100.0 * f1 / len(gold),
    }


def _check_answers(gold: Gold) -> None:
    for key, texts in gold.items():
        if not texts:
            raise InputError(
                "Expected every question to have a gold answer. Received: none "
                f"for {key!r}; is it a file of SQuAD 2.0?"
            )


def _answerable_points(
    texts: Sequence[str],
    predicted: str,
    normalize: Callable[[str], str],
    units: Callable[[str], list[str]],
) -> _Points:
    answers = [normalize(text) for text in texts]
    return _best_points(answers, normalize(predicted), units)


def _points_with_negative(texts: Sequence[str], predicted: str) -> _Points:
    """Answers of nothing but articles and punctuation are none."""
    predicted = normalize_squad(predicted)
    answers = [answer for answer in map(normalize_squad, texts) if answer]
    if answers:
        return _best_points(answers, predicted, str.split)
    return int(not predicted), int(not predicted)


def _points(
    gold: Gold,
    predictions: Predictions,
    points_of: Callable[[Sequence[str], str], _Points],
) -> list[_Points]:
    """Exact match and F1 of every question, in the order of `gold`."""
    return [
        points_of(texts, predictions[key]) if key in predictions else (0, 0)
        for key, texts in gold.items()
    ]


def _best_points(
    answers: Sequence[str], predicted: str, units: Callable[[str], list[str]]
) -> _Points:
    """Compares one prediction with all gold answers, all of them normalised."""
    f1 = max(_f1(units(answer), units(predicted)) for answer in answers)
    return int(predicted in answers), f1


def _f1(gold: list[str], predicted: list[str]) -> float:
    """Harmonic mean of precision and recall of two multisets."""
    shared = collections.Counter(gold) & collections.Counter(predicted)
    count = shared.total()
    if not count:
        return 0.0
    precision, recall = count / len(predicted), count / len(gold)
    return 2 * precision * recall / (precision + recall)


def _characters(normalized: str) -> list[str]:
    return list(normalized.replace(" ", ""))


def _means(points: Sequence[_Points]) -> dict[str, float]:
    """Means in percent, added by `sum` like those of evaluate-v2.0.py."""
    exact, f1 = map(sum, zip(*points, strict=True))
    total = len(points)
    return {
        "exact": 100.0 * exact / total,
        "f1": 100.0 * f1 / total,
        "total": total,
    }


def _best_thresholds(
    points: Sequence[_Points],
    gold: Gold,
    predictions: Predictions,
    null_odds: Mapping[str, float],
) -> dict[str, float]:
    """Tries the odds of every question as the threshold, in one sweep.

    With a threshold below all odds every answer is "". Each question that it
    then rises past is answered with its prediction instead.
    """
    _check_odds(gold, predictions, null_odds)
    rows = {key: row for row, key in enumerate(gold) if key in predictions}
    keys = sorted(
        (key for key in null_odds if key in rows), key=null_odds.__getitem__
    )
    gains = [
        points[rows[key]] if gold[key] else _loss(predictions[key])
        for key in keys
    ]
    unanswerable = sum(not gold[key] for key in keys)
    totals = np.cumsum([[unanswerable] * 2, *gains], axis=0)  # [n + 1, 2]
    thresholds = [0.0, *(float(null_odds[key]) for key in keys)]
    exact, f1 = totals.argmax(axis=0)
    percent = 100.0 * totals / len(gold)
    if f1 == 0:
        num_answered = sum(odds <= 0.0 for odds in thresholds[1:])
        _warn_of_zero(percent[0, 1], percent[num_answered, 1])
    return {
        "best_exact": float(percent[exact, 0]),
        "best_exact_thresh": thresholds[exact],
        "best_f1": float(percent[f1, 1]),
        "best_f1_thresh": thresholds[f1],
    }


def _warn_of_zero(best: float, at_zero: float) -> None:
    """Warns if 0.0 for "answer no question" gives other answers.

    evaluate-v2.0.py starts its sweep with the score of answering nothing, but
    gives it the threshold 0.0, and keeps that if nothing is better.
    """
    if at_zero < best:
        logging.warning(
            "The best F1, %.1f, is that of answering no question, for which "
            "evaluate-v2.0.py gives a best_f1_thresh of 0.0. With a threshold "
            "of 0.0 F1 would be %.1f; to answer no question, pass "
            "--null_score_diff_threshold=-1e6.",
            best,
            at_zero,
        )


def _loss(predicted: str) -> list[float]:
    """What is lost when a question without an answer gets its prediction."""
    return [-1.0 if predicted else 0.0] * 2


def _check_odds(
    gold: Gold, predictions: Predictions, null_odds: Mapping[str, float]
) -> None:
    for key in gold:
        if key in predictions and not np.isfinite(null_odds.get(key, np.nan)):
            raise InputError(
                "Expected null odds for every prediction. Received: "
                f"{null_odds.get(key)} for {key!r}"
            )
