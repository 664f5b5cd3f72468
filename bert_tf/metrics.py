"""Scores of a whole data set: labels and predictions in, a number out.

They are scikit-learn's and scipy's, imported when first used. What a label is
depends on the metric:

    metric                                label, prediction
    accuracy, f1, macro_f1, micro_f1, mcc number of the class, [n]; for
                                          multi-label problems 0 or 1 for each
                                          label, [n, C] (accuracy, *_f1)
    exact_match                           0 or 1 for each label, [n, C]
    pearson, spearman                     a number, [n]

A metric that compares anything else, sequences of tags or strings, is one more
function and one more row of `METRICS`.
"""

import collections
import functools
import re
import string
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from absl import logging

from bert_tf.errors import InputError

# Scores of a whole data set: labels and predictions in, a number out.


Metric = Callable[..., float]


def _quiet(metric: Metric) -> Metric:
    """Without the library's warnings: the number itself says what there is."""

    @functools.wraps(metric)
    def run(labels: Any, predictions: Any, **options: Any) -> float:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return float(metric(labels, predictions, **options))

    return run


@_quiet
def accuracy(labels: Any, predictions: Any) -> float:
    """Share of the examples whose prediction is the label."""
    from sklearn import metrics

    return metrics.accuracy_score(labels, predictions)


@_quiet
def exact_match(labels: Any, predictions: Any) -> float:
    """Share of the examples all of whose labels are right."""
    matches = np.asarray(labels) == np.asarray(predictions)  # [n, C]
    return matches.all(axis=-1).mean()


@_quiet
def f1(labels: Any, predictions: Any, positive_class: int = 1) -> float:
    """F1 of one class; 0 where it is neither a label nor predicted."""
    from sklearn import metrics

    is_label = np.asarray(labels) == positive_class
    is_predicted = np.asarray(predictions) == positive_class
    return metrics.f1_score(is_label, is_predicted, zero_division=0)


@_quiet
def macro_f1(labels: Any, predictions: Any) -> float:
    """Mean of the F1 of each class that is a label or predicted."""
    from sklearn import metrics

    return metrics.f1_score(
        labels, predictions, average="macro", zero_division=0
    )


@_quiet
def micro_f1(labels: Any, predictions: Any) -> float:
    """F1 over all decisions; for one label an example it is the accuracy."""
    from sklearn import metrics

    return metrics.f1_score(
        labels, predictions, average="micro", zero_division=0
    )


@_quiet
def mcc(labels: Any, predictions: Any) -> float:
    """Matthews's correlation; 0 where labels or predictions are constant."""
    from sklearn import metrics

    return metrics.matthews_corrcoef(labels, predictions)


@_quiet
def pearson(labels: Any, predictions: Any) -> float:
    """Linear correlation; NaN where labels or predictions are constant."""
    from scipy import stats

    return _correlation(stats.pearsonr, labels, predictions)


@_quiet
def spearman(labels: Any, predictions: Any) -> float:
    """Correlation of ranks; NaN where labels or predictions are constant."""
    from scipy import stats

    return _correlation(stats.spearmanr, labels, predictions)


def _correlation(measure: Callable, labels: Any, predictions: Any) -> float:
    if len(labels) < 2:  # One point has no slope, and scipy no answer.
        return float("nan")
    return measure(
        np.asarray(labels, np.float64), np.asarray(predictions, np.float64)
    ).statistic


METRICS: dict[str, Metric] = {
    "accuracy": accuracy,
    "f1": f1,
    "macro_f1": macro_f1,
    "micro_f1": micro_f1,
    "mcc": mcc,
    "pearson": pearson,
    "spearman": spearman,
    "exact_match": exact_match,
}


def compute(
    names: Iterable[str],
    labels: Any,
    predictions: Any,
    positive_class: int = 1,
) -> dict[str, float]:
    """Scores predictions by several metrics.

    Args:
      names: Keys of `METRICS`.
      labels: The truth, one an example; see the top of this file.
      predictions: As many.
      positive_class: The class that `f1` is of.

    Returns:
      Dict from name to value, in the order of `names`. A correlation with
      what is constant is NaN.

    Raises:
      InputError: A metric is unknown, or there is no example.
    """
    names = tuple(names)
    check(names, METRICS)
    if len(labels) != len(predictions):
        raise ValueError(
            f"Expected as many predictions as labels, {len(labels)}. "
            f"Received: {len(predictions)}"
        )
    if not len(labels):
        raise InputError("expected at least one example. Received: none")
    one_class = functools.partial(f1, positive_class=positive_class)
    metrics = METRICS | {"f1": one_class}
    return {name: metrics[name](labels, predictions) for name in names}


def check(names: Iterable[str], known: Iterable[str]) -> None:
    """Raises an InputError that lists the known metrics if one is not."""
    known = tuple(known)
    for name in names:
        if name not in known:
            raise InputError(
                f"expected metrics among {', '.join(known)}. Received: {name!r}"
            )


# Official scores of extractive question answering, in percent.


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


# Scores of entities in tagged sentences, equal to those of conlleval.


_TAG = re.compile("O|([BI])(?:-(.+))?", re.DOTALL)


class Entity(NamedTuple):
    """Words that are something together.

    Attributes:
      type: What they are; "" where the tags have no types.
      start: The first word, from 0.
      end: The word behind the last one.
    """

    type: str
    start: int
    end: int


class Counts(NamedTuple):
    """How many entities there are, were predicted, and are among both."""

    gold: int
    predicted: int
    correct: int

    @property
    def precision(self) -> float:
        """Share of the predicted ones that are right; 0 of none."""
        return self.correct / self.predicted if self.predicted else 0.0

    @property
    def recall(self) -> float:
        """Share of those there are that were predicted; 0 of none."""
        return self.correct / self.gold if self.gold else 0.0

    @property
    def f1(self) -> float:
        """Harmonic mean of the two; 0 where both are."""
        total = self.gold + self.predicted
        return 2 * self.correct / total if total else 0.0


def entities(tags: Iterable[str]) -> list[Entity]:
    """The entities of a sentence, in order.

    B begins one wherever it stands. I goes on with the one before it if that
    is of the same type; else, behind O or another type, it begins one.

    Args:
      tags: "O"; "B" or "I", with "-" and a type or without.

    Raises:
      ValueError: A tag is another.
    """
    found: list[Entity] = []
    is_open = False
    for word, tag in enumerate(tags):
        match = _TAG.fullmatch(tag)
        if not match:
            raise ValueError(f"Expected O, B-TYPE or I-TYPE. Received: {tag!r}")
        mark, kind = match[1], match[2] or ""
        if mark == "I" and is_open and found[-1].type == kind:
            found[-1] = found[-1]._replace(end=word + 1)
        elif mark:
            found.append(Entity(kind, word, word + 1))
        is_open = mark is not None
    return found


def count_entities(
    gold: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]]
) -> tuple[Counts, dict[str, Counts]]:
    """Counts the entities, all of them and those of each type.

    Args:
      gold: The tags of each sentence.
      predicted: Those that were predicted, as many.
    """
    found: tuple[Counter[str], ...] = Counter(), Counter(), Counter()
    for right, answered in zip(gold, predicted, strict=True):
        wanted, given = set(entities(right)), set(entities(answered))
        members = wanted, given, wanted & given
        for counter, these in zip(found, members, strict=True):
            counter.update(entity.type for entity in these)
    of_types = {
        kind: Counts(*(counter[kind] for counter in found))
        for kind in sorted(found[0] | found[1])
    }
    return Counts(*(counter.total() for counter in found)), of_types


def entity_scores(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Scores predicted tags.

    Args:
      gold: The tags of each sentence.
      predicted: Those that were predicted, as many.

    Returns:
      `precision`, `recall` and `f1` of all entities; `accuracy`, the share of
      the words whose tag is right; then `PER_precision` ... of each type. From
      0 to 1, where conlleval prints percent. To its accuracy the lines of
      -DOCSTART- are words, too.

    Raises:
      InputError: There is no word.
    """
    num_words = sum(map(len, gold))
    if not num_words:
        raise InputError("expected at least one word. Received: none")
    overall, of_types = count_entities(gold, predicted)
    num_right = sum(
        tag == answered
        for sentence, answers in zip(gold, predicted, strict=True)
        for tag, answered in zip(sentence, answers, strict=True)
    )
    metrics = _measures(overall) | {"accuracy": num_right / num_words}
    for kind, counts in of_types.items():
        if kind:
            metrics |= _measures(counts, f"{kind}_")
    return metrics


def _measures(counts: Counts, prefix: str = "") -> dict[str, float]:
    names = ("precision", "recall", "f1")
    return {f"{prefix}{name}": getattr(counts, name) for name in names}
