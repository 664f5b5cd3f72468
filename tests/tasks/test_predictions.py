"""Answers from logits, and the files that hold them, byte for byte."""

import csv

import numpy as np
import pytest

from bert_tf.tasks.classification import (
    answers,
    decide,
    probabilities,
    write_predictions,
    write_submission,
    write_test_results,
)
from bert_tf.tasks.examples import PROBLEMS, Example

LABELS = ("no", "maybe", "yes")
# Float32 has them exactly.
VALUES = np.array([[0.25, 0.125, 0.625], [0.75, 0.25, 0.0]], np.float32)


def read(path) -> str:
    return path.read_bytes().decode()


def softmax(x):
    return np.exp(x) / np.exp(x).sum(-1, keepdims=True)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_probabilities_by_hand(problem):
    logits = np.random.default_rng(3).normal(size=(7, 5)).astype("float32")
    expected = {
        "multi_label": 1 / (1 + np.exp(-logits)),
        "regression": logits[:, 0],
    }.get(problem, softmax(logits))
    values = probabilities(problem, logits)
    assert values.dtype == np.float32
    np.testing.assert_allclose(values, expected, rtol=1e-6)


@pytest.mark.parametrize("problem", ["single_label", "multi_label"])
def test_extreme_logits_are_certain(problem):
    values = probabilities(problem, np.array([[1e4, -1e4]], np.float32))
    assert values.tolist() == [[1.0, 0.0]]


def test_decides_and_answers():
    assert decide("single_label", VALUES).tolist() == [2, 0]
    assert answers("single_label", LABELS, VALUES) == ["yes", "no"]
    assert answers("multiple_choice", "012", VALUES) == ["2", "0"]
    several = np.array([[0.5, 0.51, 1.0], [0.1, 0.2, 0.3]], np.float32)
    assert decide("multi_label", several).tolist() == [[0, 1, 1], [0, 0, 0]]
    assert answers("multi_label", LABELS, several) == [("maybe", "yes"), ()]
    numbers = np.array([0.5, -2.25], np.float32)
    assert decide("regression", numbers) is numbers
    assert answers("regression", (), numbers) == [0.5, -2.25]


@pytest.mark.parametrize("count", [0, 1])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_few_examples_have_as_few_answers(problem, count):
    values = probabilities(problem, np.zeros([count, 3], np.float32))
    assert len(answers(problem, LABELS, values)) == count


def test_test_results_are_the_originals(tmp_path):
    path = tmp_path / "test_results.tsv"
    values = np.array([[0.1, 0.9], [1e-8, 1.0], [1 / 3, 2 / 3]], np.float64)
    write_test_results(str(path), values)
    assert read(path) == ("0.1\t0.9\n1e-08\t1.0\n0.33333334\t0.6666667\n")
    assert [file.name for file in tmp_path.iterdir()] == ["test_results.tsv"]


def test_test_results_of_regression_are_numbers(tmp_path):
    path = tmp_path / "test_results.tsv"
    write_test_results(str(path), np.array([3.8, -0.25], np.float32))
    assert read(path) == "3.8\n-0.25\n"


def predictions(tmp_path, examples, problem, labels, values) -> str:
    path = tmp_path / "predictions.tsv"
    write_predictions(str(path), examples, problem, labels, values)
    return read(path)


def test_predictions_of_texts(tmp_path):
    examples = [Example("17", "Fine, 'tis.", label="yes"), Example("x", '"Oh"')]
    assert predictions(tmp_path, examples, "single_label", LABELS, VALUES) == (
        "id\ttext\tprediction\tlabel\t"
        "probability_no\tprobability_maybe\tprobability_yes\n"
        "17\tFine, 'tis.\tyes\tyes\t0.25\t0.125\t0.625\n"
        'x\t"Oh"\tno\t\t0.75\t0.25\t0.0\n'
    )


def test_predictions_of_pairs_without_labels(tmp_path):
    examples = [Example("0", "a", "b"), Example("1", "c")]
    text = predictions(
        tmp_path, examples, "single_label", ("n", "y"), VALUES[:, 1:]
    )
    assert text == (
        "id\ttext_a\ttext_b\tprediction\tprobability_n\tprobability_y\n"
        "0\ta\tb\ty\t0.125\t0.625\n"
        "1\tc\t\tn\t0.25\t0.0\n"
    )


def test_predictions_of_choices_show_the_chosen_one(tmp_path):
    examples = [
        Example("0", "He", choices=("sat.", "ran.", "ate."), label="1"),
        Example("1", "She", choices=("swam.", "flew.", "dug."), label="0"),
    ]
    text = predictions(tmp_path, examples, "multiple_choice", "012", VALUES)
    assert [line.split("\t")[:5] for line in text.splitlines()] == [
        ["id", "context", "choice", "prediction", "label"],
        ["0", "He", "ate.", "2", "1"],
        ["1", "She", "swam.", "0", "0"],
    ]


def test_predictions_of_several_labels(tmp_path):
    examples = [Example("0", "a", label=("no", "yes")), Example("1", "b")]
    values = np.array([[0.75, 0.25, 0.875], [0.5, 0.0, 0.25]])
    text = predictions(tmp_path, examples, "multi_label", LABELS, values)
    assert text.splitlines()[1:] == [
        "0\ta\tno,yes\tno,yes\t0.75\t0.25\t0.875",
        "1\tb\t\t\t0.5\t0.0\t0.25",
    ]


def test_predictions_of_numbers(tmp_path):
    examples = [Example("0", "a", "b", label=3.8), Example("1", "c", "d")]
    values = np.array([4.2, -0.1], np.float32)
    assert predictions(tmp_path, examples, "regression", (), values) == (
        "id\ttext_a\ttext_b\tprediction\tlabel\n"
        "0\ta\tb\t4.2\t3.8\n"
        "1\tc\td\t-0.1\t\n"
    )


def test_no_text_breaks_the_table(tmp_path):
    """Whatever a reader takes for the end of a cell or line is a space."""
    breaks = "\t\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
    examples = [
        Example("0", f"a{breaks}b", "c\r\nd"),
        Example("1", "half \ud83d", 'no "quoting'),
    ]
    text = predictions(
        tmp_path, examples, "single_label", ("n\to", "y"), VALUES[:, 1:]
    )
    rows = list(
        csv.reader(text.splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE)
    )
    assert {len(row) for row in rows} == {6}
    assert rows[0][4] == "probability_n o"
    assert rows[1][1:3] == [f"a{' ' * len(breaks)}b", "c d"]
    assert rows[2][1:3] == ["half \ufffd", 'no "quoting']


def test_as_many_predictions_as_examples(tmp_path):
    with pytest.raises(ValueError, match="zip"):
        predictions(
            tmp_path, [Example("0", "a")], "single_label", LABELS, VALUES
        )
    assert not list(tmp_path.iterdir())


def test_a_submission_names_labels(tmp_path):
    folder = tmp_path / "glue"
    names = ["entailment", "neutral"]
    write_submission(str(folder / "MNLI-m.tsv"), ["0", "9"], names)
    assert read(folder / "MNLI-m.tsv") == (
        "index\tprediction\n0\tentailment\n9\tneutral\n"
    )


def test_a_submission_keeps_numbers_in_the_leaderboards_range(tmp_path):
    numbers = answers(
        "regression", (), np.array([5.2, -0.0, 3.14159, -1.0], np.float32)
    )
    write_submission(str(tmp_path / "STS-B.tsv"), list("0123"), numbers)
    assert read(tmp_path / "STS-B.tsv") == (
        "index\tprediction\n0\t5.000\n1\t0.000\n2\t3.142\n3\t0.000\n"
    )
