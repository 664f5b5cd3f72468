"""The best and the end are functions of the history, which a file keeps."""

import json
import math
import os

import numpy as np
import pytest

from bert_tf.errors import InputError
from bert_tf.training import results
from bert_tf.training.results import EvaluationResult

NAN = math.nan


def of(*values, name="eval_accuracy"):
    """A history of one metric, evaluated at every third step."""
    return [EvaluationResult(3 * i, {name: v}) for i, v in enumerate(values, 1)]


@pytest.mark.parametrize(
    ("metric", "is_loss"),
    [
        ("loss", True),
        ("eval_loss", True),
        ("masked_lm_loss", True),
        ("eval_accuracy", False),
        ("f1", False),
    ],
)
def test_lower_is_better_for_losses_alone(metric, is_loss):
    assert results.is_loss(metric) is is_loss
    better = results.comparable_score(metric, 0.2) > results.comparable_score(
        metric, 0.3
    )
    assert better is is_loss
    for value in (NAN, math.inf, -math.inf):
        assert results.comparable_score(metric, value) == -math.inf


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], []),
        ([NAN], []),
        ([NAN, 0.1, NAN, 0.3, 0.2], [1, 3]),
        ([0.5, 0.5, 0.5], [0]),
        ([0.0, -0.1, 0.1], [0, 2]),
    ],
)
def test_what_is_better_than_all_before(values, expected):
    found = results.improvements(of(*values), "eval_accuracy")
    assert found == expected
    losses = of(*(-v for v in values), name="loss")
    assert results.improvements(losses, "loss") == expected


@pytest.mark.parametrize(
    ("values", "patience", "expected"),
    [
        ([], 1, False),
        ([0.5], 1, False),
        ([0.5, 0.5], 1, True),
        ([0.5, 0.4], 2, False),
        ([0.5, 0.4, 0.45], 2, True),
        ([0.5, 0.4, 0.51], 2, False),
        ([0.5, 0.4, 0.3, 0.2], 0, False),
        ([NAN, NAN], 2, True),
        ([NAN, 0.1], 2, False),
    ],
)
def test_patience(values, patience, expected):
    is_exhausted = results.is_exhausted(of(*values), "eval_accuracy", patience)
    assert is_exhausted is expected


def test_a_longer_history_never_turns_back():
    """Whoever reads the whole of it stops no later than who saw its end."""
    random = np.random.default_rng(4)
    for _ in range(100):
        values = random.integers(0, 5, 11)
        whole = results.is_exhausted(of(*values), "eval_accuracy", 3)
        end = results.is_exhausted(of(*values[4:]), "eval_accuracy", 3)
        assert whole or not end


def test_a_metric_that_is_not_there_is_told_with_those_that_are():
    metrics = {"eval_loss": 0.5, "eval_f1": 0.1}
    with pytest.raises(InputError) as error:
        results.value_of(metrics, "accuracy")
    assert str(error.value) == (
        "expected a metric among eval_f1, eval_loss. Received: 'accuracy'"
    )


def test_there_and_back_again(tmp_path):
    path = str(tmp_path / "evaluations.jsonl")
    assert results.read_history(path, 100) == []
    metrics = {"eval_accuracy": np.float32(0.5), "examples": 7}
    results.write_history(
        path, [EvaluationResult(3, metrics), EvaluationResult(6, {"f1": NAN})]
    )
    assert (tmp_path / "evaluations.jsonl").read_text() == (
        '{"step": 3, "eval_accuracy": 0.5, "examples": 7}\n'
        '{"step": 6, "f1": null}\n'
    )
    first, second = results.read_history(path, 6)
    assert first == EvaluationResult(3, {"eval_accuracy": 0.5, "examples": 7})
    assert second.step == 6
    assert math.isnan(second.metrics["f1"])
    assert os.listdir(tmp_path) == ["evaluations.jsonl"]


@pytest.mark.parametrize(
    ("step", "steps"), [(2, []), (3, [3]), (5, [3]), (9, [3, 6, 9])]
)
def test_what_comes_later_is_made_anew(tmp_path, step, steps):
    path = str(tmp_path / "evaluations.jsonl")
    results.write_history(path, of(0.1, 0.2, 0.3))
    assert [e.step for e in results.read_history(path, step)] == steps


@pytest.mark.parametrize(
    "line", ["{", "7", "{}", '{"step": "x"}', '{"step": 1, "f1": [2]}', ""]
)
def test_damage_is_named(tmp_path, line):
    path = tmp_path / "evaluations.jsonl"
    good = json.dumps({"step": 3, "f1": 0.5})
    path.write_text(f"{good}\n{line}\n{good}\n")
    with pytest.raises(InputError, match=r"evaluations\.jsonl:2\. Received"):
        results.read_history(str(path), 10)
