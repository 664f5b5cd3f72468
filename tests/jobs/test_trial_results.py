"""Medians, spreads, the best, and the files that tell them."""

import dataclasses
import json
import math

import numpy as np
import pytest

from bert_tf.errors import InputError
from bert_tf.jobs.trials import (
    Result,
    Trial,
    read_result,
    spread_of,
    summarize,
    write_result,
    write_summary,
)

NAN = math.nan


def results(rate, *values, metric="eval_f1"):
    """One setting; None where a trial diverged."""
    return [
        Result(
            Trial(16, rate, 3.0, seed),
            {} if value is None else {metric: value, "eval_loss": -value},
            failure="step 2: loss nan" if value is None else None,
        )
        for seed, value in enumerate(values)
    ]


def best_of(*settings, metric="eval_f1"):
    best = summarize(metric, [r for group in settings for r in group]).best
    return best.trial.learning_rate, best.trial.random_seed


@pytest.mark.parametrize(
    ("trial", "name"),
    [
        (Trial(32, 5e-5, 3.0, 12345), "batch32_rate5e-05_epochs3_seed12345"),
        (Trial(16, 0.001, 0.5, 7), "batch16_rate0.001_epochs0.5_seed7"),
        (Trial(1, 1.0, 3, 0), "batch1_rate1_epochs3_seed0"),
    ],
)
def test_names(trial, name):
    assert trial.name == name


def test_settings_that_differ_have_names_that_differ():
    trials = [Trial(8, 5e-5 * (1 + i * 1e-12), 3.0, 1) for i in range(7)]
    assert len({trial.name for trial in trials}) == 7


def test_the_spread_is_numpys():
    values = np.random.default_rng(3).normal(size=7)
    spread = spread_of([*values, NAN, math.inf])
    expected = np.median(values), values.min(), values.max(), values.std(ddof=1)
    found = dataclasses.astuple(spread)
    np.testing.assert_allclose(found, [*expected, 7], rtol=1e-12)


def test_the_spread_of_one_and_of_none():
    assert spread_of([0.5]) == spread_of([NAN, 0.5])
    assert dataclasses.astuple(spread_of([0.5])) == (0.5, 0.5, 0.5, 0.0, 1)
    none = spread_of([NAN])
    assert none.count == 0
    assert math.isnan(none.median)


def test_the_median_decides_and_not_one_lucky_seed():
    steady = results(1e-5, 0.7, 0.75, 0.8)
    lucky = results(2e-5, 0.1, 0.95, 0.2)
    assert best_of(steady, lucky) == best_of(lucky, steady) == (1e-5, 2)


def test_a_loss_is_best_where_it_is_lowest():
    groups = results(1e-5, 0.7, 0.8), results(2e-5, 0.9, 0.85)
    assert best_of(*groups, metric="eval_loss") == (2e-5, 0)
    assert best_of(results(1e-5, 3, 1, 2, metric="loss"), metric="loss")[1] == 1


def test_ties_go_to_the_first():
    assert best_of(results(2e-5, 0.5, 0.5), results(1e-5, 0.5)) == (2e-5, 0)


@pytest.mark.parametrize("worst", [None, NAN, -math.inf])
def test_what_diverged_is_the_worst(worst):
    good = results(1e-5, 0.5, 0.5, 0.5)
    # Two of three: the median is no number, whatever the third is.
    assert best_of(results(2e-5, worst, 0.9, worst), good) == (1e-5, 0)
    # One of three: the median is the lower of the others.
    assert best_of(results(2e-5, 0.6, worst, 0.9), good) == (2e-5, 2)
    # Better a little than nothing.
    assert best_of(
        results(2e-5, worst, worst, worst), results(1e-5, worst, 0.1, worst)
    ) == (1e-5, 1)


def test_a_metric_that_is_not_there():
    with pytest.raises(
        InputError, match=r"eval_f1, eval_loss\. Received: 'f1'"
    ):
        _ = summarize("f1", results(1e-5, 0.5)).best


def test_a_result_there_and_back_again(tmp_path):
    [good, failed] = results(1e-5, np.float32(0.5), None)
    for result in (good, failed, dataclasses.replace(good, kept=False)):
        write_result(str(tmp_path), result)
        assert read_result(str(tmp_path), result.trial) == result
    write_result(str(tmp_path), results(1e-5, NAN)[0])
    found = read_result(str(tmp_path), good.trial)
    assert math.isnan(found.metrics["eval_f1"])


def test_what_was_done_with_other_settings_is_not_done(tmp_path):
    [result] = results(1e-5, 0.5)
    assert read_result(str(tmp_path), result.trial) is None
    write_result(str(tmp_path), result)
    for change in (
        {"random_seed": 1},
        {"learning_rate": 2e-5},
        {"train_batch_size": 8},
        {"num_train_epochs": 4},
    ):
        other = dataclasses.replace(result.trial, **change)
        assert read_result(str(tmp_path), other) is None


@pytest.mark.parametrize("text", ["", "{", "{}", "[]", '{"trial": 1}'])
def test_a_damaged_result_is_not_done(tmp_path, text, caplog):
    (tmp_path / "trial.json").write_text(text)
    assert read_result(str(tmp_path), Trial(1, 1.0, 1.0, 1)) is None
    done_otherwise = text == '{"trial": 1}'
    assert ("is damaged" in caplog.text) is not done_otherwise


def test_the_files(tmp_path):
    groups = [*results(5e-5, 0.5, None, 0.25), *results(3e-5, NAN)]
    write_summary(str(tmp_path), summarize("eval_f1", groups))
    values = json.loads(
        (tmp_path / "trials.json").read_text(), parse_constant=pytest.fail
    )
    assert values["metric"] == "eval_f1"
    assert values["best"] == "batch16_rate5e-05_epochs3_seed0"
    first, second = values["settings"]
    assert first["learning_rate"] == 5e-5
    assert first["metrics"]["eval_f1"]["median"] == 0.375
    assert second["metrics"]["eval_f1"]["median"] is None
    assert [t["failure"] for t in first["trials"]] == [
        None,
        "step 2: loss nan",
        None,
    ]
    table = (tmp_path / "trials.tsv").read_text()
    # Tabs and not blanks; the last column is empty but for the best.
    assert table.replace("\t", " ") == (
        "train_batch_size learning_rate num_train_epochs trials diverged "
        "metric median minimum maximum standard_deviation best\n"
        "16 5e-05 3 3 1 eval_f1 0.3750 0.2500 0.5000 0.1768 "
        "batch16_rate5e-05_epochs3_seed0\n"
        "16 5e-05 3 3 1 eval_loss -0.3750 -0.5000 -0.2500 0.1768 \n"
        "16 3e-05 3 1 0 eval_f1 nan nan nan nan \n"
        "16 3e-05 3 1 0 eval_loss nan nan nan nan \n"
    )
    assert {line.count("\t") for line in table.splitlines()} == {10}
