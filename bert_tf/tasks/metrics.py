"""Metrics of classification, question answering and tagging.

Each function takes the labels and predictions of a whole data set. Metrics of
classification and regression come from scikit-learn and SciPy, which are
imported on first use:

    metric                                label, prediction
    accuracy, f1, macro_f1, micro_f1, mcc class number, [n]; for multi-label
                                          problems 0 or 1 for each label,
                                          [n, C] (accuracy, *_f1)
    exact_match                           0 or 1 for each label, [n, C]
    pearson, spearman                     a number, [n]

The metrics of answers (`squad_v1`, `squad_v2`, `korquad_v1`) and of entities
(`entity_scores`) equal the official scripts' metrics, with the exceptions in
their docstrings.
"""

import functools
import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_tf.errors import InputError, listed, wrong_value

# Classification and regression.

Metric = Callable[..., float]


def _sklearn(name: str, **options: Any) -> Metric:
    """Returns a metric of scikit-learn."""

    def metric(labels: Any, predictions: Any) -> float:
        from sklearn import metrics

        return float(getattr(metrics, name)(labels, predictions, **options))

    return metric


def _correlation(name: str) -> Metric:
    """Returns a correlation of SciPy; NaN if one side is constant."""

    def metric(labels: Any, predictions: Any) -> float:
        from scipy import stats

        pairs = np.array([labels, predictions], np.float64)
        # SciPy raises an error for one point, and for infinity.
        if len(labels) < 2 or not np.isfinite(pairs).all():
            return float("nan")
        return float(getattr(stats, name)(*pairs).statistic)

    return metric


def exact_match(labels: Any, predictions: Any) -> float:
    """Returns the share of examples with all labels correct."""
    matches = np.asarray(labels) == np.asarray(predictions)  # [n, C]
    return float(matches.all(axis=-1).mean())


def f1(labels: Any, predictions: Any, positive_class: int = 1) -> float:
    """Returns the F1 of one class; 0 if it is neither a label nor predicted."""
    from sklearn import metrics

    is_label = np.asarray(labels) == positive_class
    is_predicted = np.asarray(predictions) == positive_class
    return float(metrics.f1_score(is_label, is_predicted, zero_division=0))


METRICS: dict[str, Metric] = {
    "accuracy": _sklearn("accuracy_score"),
    "f1": f1,
    # The mean F1 of the classes that are labels or predicted. For multi-label
    # problems, of all labels, with 0 for an unused one.
    "macro_f1": _sklearn("f1_score", average="macro", zero_division=0),
    # The F1 over all decisions; for single labels, the accuracy.
    "micro_f1": _sklearn("f1_score", average="micro", zero_division=0),
    # Matthews's correlation; 0 if one side is constant.
    "mcc": _sklearn("matthews_corrcoef"),
    "pearson": _correlation("pearsonr"),
    "spearman": _correlation("spearmanr"),
    "exact_match": exact_match,
}


def usual_metrics(problem: str, num_labels: int) -> tuple[str, ...]:
    """Returns the default metrics of custom data."""
    if problem == "regression":
        return "pearson", "spearman"
    if problem == "multi_label":
        return "micro_f1", "macro_f1", "exact_match"
    return "accuracy", "f1" if num_labels == 2 else "macro_f1", "mcc"


def compute(
    names: Iterable[str],
    labels: Any,
    predictions: Any,
    positive_class: int = 1,
) -> dict[str, float]:
    """Computes several metrics, in the order of `names`.

    Labels and predictions are described at the top of this file.
    `positive_class` is the class of `f1`.

    Raises:
      InputError: If a metric is unknown, or there are no examples.
    """
    names = tuple(names)
    for name in names:
        if name not in METRICS:
            one_of = f"one of {listed(METRICS, last='or')}"
            raise wrong_value("A metric", one_of, name)
    if not len(labels):
        raise InputError("The metrics need at least one example.")
    one_class = functools.partial(f1, positive_class=positive_class)
    metrics = METRICS | {"f1": one_class}
    return {name: metrics[name](labels, predictions) for name in names}


# Question answering: the official scores, in percent.

Gold = Mapping[str, Sequence[str]]
Predictions = Mapping[str, str]

# Exact match, 0 or 1, and F1 from 0 to 1 of one question. They are ints where
# the official scripts have ints, to get equal means: since Python 3.12, `sum`
# rounds lists of floats and lists with ints differently.
_Points = tuple[float, float]

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
# ASCII only: the scripts keep “quotes” and dashes.
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
# The brackets and quotation marks of Korean titles separate words.
_NO_BRACKETS = str.maketrans(dict.fromkeys("'\"《》<>〈〉()‘’", " "))


def normalize_squad(text: str) -> str:
    """Normalizes an answer like SQuAD's `normalize_answer`.

    Lower-cases, removes ASCII punctuation, then the articles a, an and the, and
    leaves one space between words. "The U.S.-led" becomes "usled".
    """
    text = text.lower().translate(_NO_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


def normalize_korquad(text: str) -> str:
    """Normalizes an answer like KorQuAD's `normalize_answer`.

    Replaces brackets and quotation marks by spaces, lower-cases, removes other
    ASCII punctuation, and leaves one space between words.
    """
    text = text.translate(_NO_BRACKETS).lower().translate(_NO_PUNCTUATION)
    return " ".join(text.split())


def squad_v1(gold: Gold, predictions: Predictions) -> dict[str, float]:
    """Computes `exact_match` and `f1` of SQuAD 1.1.

    A prediction is compared with every gold answer, and the best score counts.
    F1 is over the multisets of words; 0 if both are empty.
    """
    return _answerable_scores(gold, predictions, normalize_squad, str.split)


def korquad_v1(gold: Gold, predictions: Predictions) -> dict[str, float]:
    """Computes `exact_match` and `f1` of KorQuAD 1.0.

    Like `squad_v1`, but F1 is over characters without spaces, since particles
    make Korean words differ.
    """
    return _answerable_scores(gold, predictions, normalize_korquad, _characters)


def squad_v2(
    gold: Gold,
    predictions: Predictions,
    null_odds: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """Computes the scores of SQuAD 2.0, in which "" means no answer.

    Predictions are scored unchanged. (With odds, the official script replaces a
    prediction by "" if its odds exceed --na-prob-thresh, by default 1.0.)

    `best_exact` and `best_f1` are the scores with the best threshold, above
    which the prediction becomes "". To try all thresholds, pass the best spans
    as `predictions`, without any "". Questions with equal odds are added one
    by one in the order of `null_odds`, as in the official script. Also as
    in the script, a `best_f1_thresh` of 0.0 can mean "answer no question".

    Args:
      gold: The gold answers of each question, none if it has no answer.
      predictions: The predicted text of each question, or "".
      null_odds: How much more likely no answer is than the prediction, on any
        increasing scale; see `Prediction.null_odds`.

    Returns:
      `exact`, `f1` and `total`, the number of questions; the same with the
      prefixes `HasAns_` and `NoAns_` for questions with and without an answer,
      if there are any; with `null_odds` also `best_exact`, `best_exact_thresh`,
      `best_f1` and `best_f1_thresh`.
    """
    points = [
        _points_with_negative(texts, predictions[key])
        for key, texts in gold.items()
    ]
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


def _answerable_scores(
    gold: Gold,
    predictions: Predictions,
    normalize: Callable[[str], str],
    units: Callable[[str], list[str]],
) -> dict[str, float]:
    """Computes exact match and F1 if every question has an answer."""

    points = [
        _best_points([*map(normalize, x)], normalize(predictions[key]), units)
        for key, x in gold.items()
    ]
    # Running sums, as in the official scripts: `np.sum` may round differently.
    exact, f1 = np.cumsum(points, axis=0)[-1].tolist()
    return {
        "exact_match": 100.0 * exact / len(gold),
        "f1": 100.0 * f1 / len(gold),
    }


def _points_with_negative(texts: Sequence[str], predicted: str) -> _Points:
    """Scores an answer; ignores gold answers that are empty if normalized."""
    predicted = normalize_squad(predicted)
    answers = [answer for answer in map(normalize_squad, texts) if answer]
    if answers:
        return _best_points(answers, predicted, str.split)
    return int(not predicted), int(not predicted)


def _best_points(
    answers: Sequence[str], predicted: str, units: Callable[[str], list[str]]
) -> _Points:
    """Compares a prediction with all gold answers, all of them normalized."""
    f1 = max(_f1(units(answer), units(predicted)) for answer in answers)
    return int(predicted in answers), f1


def _f1(gold: list[str], predicted: list[str]) -> float:
    """Returns the F1 of two multisets."""
    shared = Counter(gold) & Counter(predicted)
    count = shared.total()
    if not count:
        return 0.0
    precision, recall = count / len(predicted), count / len(gold)
    return 2 * precision * recall / (precision + recall)


def _characters(normalized: str) -> list[str]:
    return list(normalized.replace(" ", ""))


def _means(points: Sequence[_Points]) -> dict[str, float]:
    """Returns means in percent, added by `sum` as in evaluate-v2.0.py."""
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

    With a threshold below all odds, every answer is "". As the threshold rises
    past the odds of a question, its answer becomes the prediction.
    """
    rows = {key: row for row, key in enumerate(gold)}
    keys = sorted(null_odds, key=null_odds.__getitem__)
    # The change of exact match and F1 if the prediction replaces "".
    gains = [
        points[rows[key]] if gold[key] else [-bool(predictions[key])] * 2
        for key in keys
    ]
    unanswerable = sum(not gold[key] for key in keys)
    totals = np.cumsum([[unanswerable] * 2, *gains], axis=0)  # [n + 1, 2]
    thresholds = [0.0, *(float(null_odds[key]) for key in keys)]
    exact, f1 = totals.argmax(axis=0)
    percent = 100.0 * totals / len(gold)
    return {
        "best_exact": float(percent[exact, 0]),
        "best_exact_thresh": thresholds[exact],
        "best_f1": float(percent[f1, 1]),
        "best_f1_thresh": thresholds[f1],
    }


# Entities in tagged sentences: the scores of conlleval.

_TAG = re.compile("O|([BI])(?:-(.+))?", re.DOTALL)


class Entity(NamedTuple):
    """The words [start, end); `type` is "" if the tags have no types."""

    type: str
    start: int
    end: int


def entities(tags: Iterable[str]) -> list[Entity]:
    """Returns the entities of a sentence, in order.

    B always begins an entity. I continues the previous entity if it has the
    same type; otherwise, also after O, it begins one.

    Args:
      tags: "O", "B", "I", "B-TYPE" or "I-TYPE".

    Raises:
      ValueError: If a tag is invalid.
    """
    spans: list[Entity] = []
    is_open = False
    for word, tag in enumerate(tags):
        match = _TAG.fullmatch(tag)
        if not match:
            raise wrong_value("A tag", "O, B-TYPE or I-TYPE", tag)
        mark, kind = match[1], match[2] or ""
        if mark == "I" and is_open and spans[-1].type == kind:
            spans[-1] = spans[-1]._replace(end=word + 1)
        elif mark:
            spans.append(Entity(kind, word, word + 1))
        is_open = mark is not None
    return spans


def entity_scores(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Computes the scores of the predicted tags of sentences.

    Returns:
      `precision`, `recall` and `f1` of all entities; `accuracy`, the share of
      correct tags; then `PER_precision` and so on for each type. All are
      from 0 to 1, while conlleval prints percent and counts -DOCSTART- lines as
      words.

    Raises:
      InputError: If there are no words.
    """
    num_words, num_right = sum(map(len, gold)), 0
    if not num_words:
        raise InputError("The metrics need at least one word.")
    counters: tuple[Counter[str], ...] = Counter(), Counter(), Counter()
    for right, answered in zip(gold, predicted, strict=True):
        num_right += sum(a == b for a, b in zip(right, answered, strict=True))
        of_gold, of_predicted = {*entities(right)}, {*entities(answered)}
        members = of_gold, of_predicted, of_gold & of_predicted
        for counter, these in zip(counters, members, strict=True):
            counter.update(entity.type for entity in these)
    scores = _measures(*(counter.total() for counter in counters))
    scores["accuracy"] = num_right / num_words
    for kind in sorted(counters[0] | counters[1]):
        if kind:
            counts = _measures(*(counter[kind] for counter in counters))
            scores |= {f"{kind}_{name}": x for name, x in counts.items()}
    return scores


def _measures(gold: int, predicted: int, correct: int) -> dict[str, float]:
    """Returns scores from numbers of entities; 0 where there are none."""
    return {
        "precision": correct / max(predicted, 1),
        "recall": correct / max(gold, 1),
        "f1": 2 * correct / max(gold + predicted, 1),
    }
