"""Metrics: by hand, as the libraries', and where there is little to score."""

import math
import subprocess
import sys
import warnings

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics as sklearn_metrics

from bert_tf.errors import InputError
from bert_tf.metrics import METRICS, compute

# One of two classes: 3 true and 1 false positive, 2 missed, 5 true negatives.
LABELS = np.array([1, 1, 1, 0, 1, 1, 0, 0, 0, 0, 0])
PREDICTIONS = np.array([1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0])
# One of three.
CLASSES = np.array([0, 1, 2, 2, 2, 1, 0])
GUESSES = np.array([0, 2, 2, 2, 1, 1, 2])
# Any of three.
SETS = np.array([[1, 0, 1], [0, 1, 0], [0, 0, 0], [1, 1, 1], [0, 0, 1]])
GUESSED = np.array([[1, 0, 1], [0, 1, 1], [0, 0, 0], [1, 0, 1], [0, 1, 0]])


def one(name, labels, predictions) -> float:
    return compute([name], labels, predictions)[name]


def test_two_classes_by_hand():
    scores = compute(["accuracy", "f1", "mcc"], LABELS, PREDICTIONS)
    assert list(scores) == ["accuracy", "f1", "mcc"]
    assert scores["accuracy"] == pytest.approx(8 / 11)
    assert scores["f1"] == pytest.approx(2 * 3 / (2 * 3 + 1 + 2))
    assert scores["mcc"] == pytest.approx(
        (3 * 5 - 1 * 2) / math.sqrt((3 + 1) * (3 + 2) * (5 + 1) * (5 + 2))
    )
    assert all(type(value) is float for value in scores.values())


def test_three_classes_by_hand():
    # F1 is 2 TP / (labels + predictions) of a class.
    each = [2 * 1 / (2 + 1), 2 * 1 / (2 + 2), 2 * 2 / (3 + 4)]
    assert one("macro_f1", CLASSES, GUESSES) == pytest.approx(sum(each) / 3)
    assert one("micro_f1", CLASSES, GUESSES) == pytest.approx(4 / 7)
    assert one("f1", CLASSES, GUESSES) == pytest.approx(each[1])


def test_any_class_can_be_the_positive_one():
    for number in range(3):
        value = compute(["f1"], CLASSES, GUESSES, positive_class=number)["f1"]
        theirs = sklearn_metrics.f1_score(
            CLASSES, GUESSES, labels=[number], average=None
        )
        assert value == pytest.approx(theirs[0])
    others = [name for name in METRICS if name not in ("f1", "exact_match")]
    swapped = compute(others, LABELS, PREDICTIONS, positive_class=0)
    assert swapped == compute(others, LABELS, PREDICTIONS)


def test_sets_of_labels_by_hand():
    assert one("exact_match", SETS, GUESSED) == pytest.approx(2 / 5)
    assert one("accuracy", SETS, GUESSED) == pytest.approx(2 / 5)
    each = [2 * 2 / (2 + 2), 2 * 1 / (2 + 2), 2 * 2 / (3 + 3)]
    assert one("macro_f1", SETS, GUESSED) == pytest.approx(sum(each) / 3)
    assert one("micro_f1", SETS, GUESSED) == pytest.approx(2 * 5 / (7 + 7))


def test_correlations_by_hand():
    x = np.array([1.0, 2.0, 4.0, 5.0, 5.0])
    y = np.array([0.5, 4.0, 2.0, 3.0, 9.0], np.float32)

    def correlation(a, b):
        a, b = a - a.mean(), b - b.mean()
        return (a * b).sum() / math.sqrt((a * a).sum() * (b * b).sum())

    assert one("pearson", x, y) == pytest.approx(correlation(x, y))
    ranks = np.array([1, 2, 3, 4.5, 4.5]), np.array([1.0, 4, 2, 3, 5])
    assert one("spearman", x, y) == pytest.approx(correlation(*ranks))


def test_they_are_the_libraries():
    random = np.random.default_rng(5)
    labels, guesses = random.integers(0, 2, [2, 101])
    x = random.normal(size=101)
    y = x + random.normal(size=101)
    values = compute(["f1", "mcc", "accuracy"], labels, guesses)
    assert values == {
        "f1": sklearn_metrics.f1_score(labels, guesses),
        "mcc": sklearn_metrics.matthews_corrcoef(labels, guesses),
        "accuracy": sklearn_metrics.accuracy_score(labels, guesses),
    }
    assert compute(["pearson", "spearman"], x, y) == {
        "pearson": stats.pearsonr(x, y)[0],
        "spearman": stats.spearmanr(x, y)[0],
    }


@pytest.mark.parametrize(
    ("name", "labels", "predictions", "expected"),
    [
        ("accuracy", [1], [1], 1.0),
        ("accuracy", [1], [0], 0.0),
        ("f1", [0, 0, 0], [0, 0, 0], 0.0),
        ("f1", [1, 1, 1], [1, 1, 1], 1.0),
        ("f1", [2, 0, 2], [2, 2, 0], 0.0),
        ("f1", [1], [0], 0.0),
        ("macro_f1", [0, 0], [0, 0], 1.0),
        ("micro_f1", [[0, 0], [0, 0]], [[0, 0], [0, 0]], 0.0),
        ("mcc", [0, 1, 0], [0, 0, 0], 0.0),
        ("mcc", [1, 1, 1], [0, 1, 0], 0.0),
        ("mcc", [1], [1], 0.0),
        ("exact_match", [[0, 1]], [[0, 1]], 1.0),
        ("pearson", [1.0, 2.0, 3.0], [2.5, 2.5, 2.5], math.nan),
        ("pearson", [2.5, 2.5, 2.5], [1.0, 2.0, 3.0], math.nan),
        ("pearson", [1.0], [1.0], math.nan),
        ("pearson", [1.0, 2.0], [7.0, 5.0], -1.0),
        ("spearman", [1.0, 2.0, 3.0], [2.5, 2.5, 2.5], math.nan),
        ("spearman", [1.0], [1.0], math.nan),
        ("spearman", [1.0, 2.0], [math.nan, 5.0], math.nan),
    ],
)
def test_where_there_is_little_to_score(name, labels, predictions, expected):
    """A sane number, and no warning of a library's."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        value = one(name, np.array(labels), np.array(predictions))
    assert value == pytest.approx(expected, nan_ok=True)


def test_an_unknown_metric_is_told_with_the_list():
    with pytest.raises(InputError, match=r"accuracy, f1, .* got .bleu."):
        compute(["accuracy", "bleu"], [1], [1])


@pytest.mark.parametrize("name", METRICS)
def test_no_example_is_an_error(name):
    with pytest.raises(InputError, match="at least one example"):
        compute([name], np.zeros(0), np.zeros(0))


def test_labels_and_predictions_are_as_many():
    with pytest.raises(ValueError, match="2 labels need as many"):
        compute(["accuracy"], [1, 0], [1, 0, 1])


def test_the_libraries_are_imported_when_needed():
    program = (
        "import sys, bert_tf.metrics\n"
        "assert not {'sklearn', 'scipy'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
