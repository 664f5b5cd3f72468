"""Trials: which is the best, what is kept, and what a rerun does."""

import dataclasses
import math
import pathlib

import numpy as np
import pytest

from bert_tf.errors import InputError
from bert_tf.jobs.trials import (
    Result,
    Trial,
    best_of,
    folder_of,
    plan,
    read_result,
    run,
    spread_of,
    table_of,
    write_result,
)
from bert_tf.training.hooks import NonFiniteError
from bert_tf.training.results import Metric

BASE = Trial(32, 5e-5, 3.0, 12345)
NAN = math.nan
METRIC = Metric("eval_f1")


def test_the_plan():
    """The paper's grid is in appendix A.3; seeds are consecutive trials."""
    assert plan(BASE, 1) == [BASE]
    trials = plan(BASE, 2, "paper")
    assert len(set(trials)) == len(trials) == 2 * 3 * 3 * 2
    assert {t.train_batch_size for t in trials} == {16, 32}
    assert {t.learning_rate for t in trials} == {5e-5, 3e-5, 2e-5}
    assert {t.num_train_epochs for t in trials} == {2, 3, 4}
    assert trials[0].setting == trials[1].setting != trials[2].setting
    assert [t.random_seed for t in trials[:4]] == [12345, 12346] * 2


# The best result.


def results(rate, *values, metric="eval_f1"):
    """Returns the results of one setting; None means divergence."""
    return [
        Result(
            Trial(16, rate, 3.0, seed),
            {} if value is None else {metric: value, "eval_loss": -value},
            failure="step 2: loss nan" if value is None else None,
        )
        for seed, value in enumerate(values)
    ]


def best(*settings, metric="eval_f1"):
    """Returns the learning rate and the seed of the best result."""
    metric = Metric(metric, metric == "eval_loss")
    found = best_of([r for group in settings for r in group], metric)
    return found.trial.learning_rate, found.trial.random_seed


def test_the_spread_is_that_of_numpy():
    values = np.random.default_rng(3).normal(size=7)
    spread = spread_of([*values, NAN, math.inf])
    np.testing.assert_allclose(
        spread,
        [np.median(values), min(values), max(values), values.std(ddof=1)],
        rtol=1e-12,
    )
    assert spread_of([NAN, 0.5]) == (0.5, 0.5, 0.5, 0.0)
    np.testing.assert_equal(spread_of([NAN]), (NAN,) * 4)


def test_the_median_decides():
    steady, lucky = results(1e-5, 0.7, 0.75, 0.8), results(2e-5, 0.1, 0.95, 0.2)
    assert best(steady, lucky) == best(lucky, steady) == (1e-5, 2)
    # The first wins a tie.
    assert best(results(2e-5, 0.5, 0.5), results(1e-5, 0.5)) == (2e-5, 0)
    groups = results(1e-5, 0.7, 0.8), results(2e-5, 0.9, 0.85)
    assert best(*groups, metric="eval_loss") == (2e-5, 0)


@pytest.mark.parametrize("worst", [None, NAN, -math.inf])
def test_a_trial_that_diverged_is_the_worst(worst):
    good = results(1e-5, 0.5, 0.5, 0.5)
    # The median of the other setting is not finite.
    assert best(results(2e-5, worst, 0.9, worst), good) == (1e-5, 0)
    # The median is the lower of the finite ones.
    assert best(results(2e-5, 0.6, worst, 0.9), good) == (2e-5, 2)
    # Both medians are infinite: the best trials are compared.
    poor = results(2e-5, worst, worst, worst), results(1e-5, worst, 0.1, worst)
    assert best(*poor) == (1e-5, 1)


# Files.


def test_a_result_is_read_as_it_was_written(tmp_path):
    folder = str(tmp_path)
    [good, failed] = results(1e-5, np.float32(0.5), None)
    assert read_result(folder, good.trial) is None
    for result in (failed, good):
        write_result(folder, result)
        assert read_result(folder, result.trial) == result
    other = dataclasses.replace(good.trial, num_train_epochs=4)
    assert read_result(folder, other) is None
    write_result(folder, results(1e-5, NAN)[0])
    assert math.isnan(read_result(folder, good.trial).metrics["eval_f1"])
    (tmp_path / "trial.json").write_text("{")
    with pytest.raises(InputError, match=r"trial\.json"):
        read_result(folder, good.trial)


def test_the_table():
    groups = [*results(5e-5, 0.5, None, 0.25), *results(3e-5, NAN)]
    # The columns are separated by tabs; here by spaces.
    table = [line.replace("\t", " ") for line in table_of(groups, METRIC)]
    assert table == [
        "train_batch_size learning_rate num_train_epochs trials diverged "
        "metric median minimum maximum standard_deviation best",
        "16 5e-05 3 3 1 eval_f1 0.3750 0.2500 0.5000 0.1768 "
        "batch16_rate5e-05_epochs3_seed0",
        "16 5e-05 3 3 1 eval_loss -0.3750 -0.5000 -0.2500 0.1768 ",
        "16 3e-05 3 1 0 eval_f1 nan nan nan nan ",
        "16 3e-05 3 1 0 eval_loss nan nan nan nan ",
    ]


# Running trials.


class Killed(BaseException):
    """Stands for SIGKILL."""


class Task:
    """A task with given metrics; None diverges, exceptions are raised."""

    def __init__(self, folder, trials, values):
        self.folder, self.trials = folder, trials
        self.values = dict(zip(trials, values, strict=True))
        self.ran = []

    def checkpoint_of(self, trial):
        return pathlib.Path(folder_of(str(self.folder), trial), "checkpoint")

    def run_one(self, trial, folder):
        assert folder == folder_of(str(self.folder), trial)
        self.ran.append(self.trials.index(trial))
        value = self.values[trial]
        if value is None:
            raise NonFiniteError("step 3: loss nan")
        if not isinstance(value, float):
            raise value
        self.checkpoint_of(trial).touch()
        return {"f1": value, "loss": value}

    def run(self, trials=None, metric="f1", discard=None, **options):
        """Returns the number of the best trial."""

        def remove(folder):
            pathlib.Path(folder, "checkpoint").unlink(missing_ok=True)

        best = run(
            self.trials if trials is None else trials,
            self.run_one,
            str(self.folder),
            Metric(metric, metric == "loss"),
            discard or remove,
            **options,
        )
        return self.trials.index(best.trial)

    @property
    def kept(self):
        """The numbers of the trials with a checkpoint."""
        return [
            number
            for number, trial in enumerate(self.trials)
            if self.checkpoint_of(trial).exists()
        ]


def seeds(count):
    return plan(BASE, count)


def test_the_best_of_several_is_kept(tmp_path, caplog):
    task = Task(tmp_path / "a", seeds(5), [0.3, 0.5, None, 0.7, 0.6])
    # More seeds add to the finished trials.
    assert task.run(task.trials[:2]) == 1
    assert (task.run(), task.run()) == (3, 3)
    assert (task.ran, task.kept) == ([0, 1, 2, 3, 4], [3])
    assert "seed12347 diverged: step 3: loss nan" in caplog.text
    # Another worker of the same run writes no results and removes nothing.
    other = Task(tmp_path / "other", seeds(5), [0.3, 0.5, None, 0.7, 0.6])
    assert other.run(writes=False) == 3
    assert (other.ran, other.kept) == (task.ran, [0, 1, 3, 4])
    written = [path for path in other.folder.rglob("*") if path.is_file()]
    assert {path.name for path in written} == {"checkpoint"}


def test_a_killed_run_continues(tmp_path):
    """The table covers the finished trials."""
    trials = seeds(3)
    task = Task(tmp_path, trials, [0.3, 0.5, Killed()])
    with pytest.raises(Killed):
        task.run()
    assert trials[1].name in (tmp_path / "trials.tsv").read_text()
    assert task.kept == [0, 1]
    task.values[trials[2]] = 0.4
    task.ran.clear()
    assert (task.run(), task.run(), task.ran) == (1, 1, [2])
    whole = Task(tmp_path / "whole", trials, [0.3, 0.5, 0.4])
    whole.run()
    table = (tmp_path / "trials.tsv").read_text()
    assert table == (tmp_path / "whole" / "trials.tsv").read_text()


def test_weights_are_discarded_even_after_a_kill(tmp_path):
    task = Task(tmp_path, seeds(2), [0.3, 0.5])

    def dying(folder):
        raise Killed

    with pytest.raises(Killed):
        task.run(discard=dying)
    assert task.kept == [0, 1]
    task.run()
    assert (task.kept, task.ran) == ([1], [0, 1])
    # Another metric decides by the recorded results.
    assert task.run(metric="loss") == 0
    assert task.ran == [0, 1]


def test_errors_end_the_run(tmp_path):
    """An unknown metric is reported after the first trial."""
    for values, metric, message, ran in (
        ([None] * 3, "f1", r"All 3 .* last error: step 3", [0, 1, 2]),
        ([0.3, InputError("no such file"), 0.4], "f1", "no such file", [0, 1]),
        ([0.3, 0.5, 0.4], "mcc", "mcc", [0]),
    ):
        task = Task(tmp_path / message[:3], seeds(3), values)
        with pytest.raises(InputError, match=message):
            task.run(metric=metric)
        assert task.ran == ran
