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

import functools
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from bert_tf.errors import InputError

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
