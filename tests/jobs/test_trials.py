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


def test_a_result_is_read_as_it_was_written(tmp_path):
    folder = str(tmp_path)
    [good] = results(1e-5, np.float32(0.5))
    assert read_result(folder, good.trial) is None
    write_result(folder, good)
    other = dataclasses.replace(good.trial, num_train_epochs=4)
    assert read_result(folder, other) is None
    write_result(folder, results(1e-5, NAN)[0])
    assert math.isnan(read_result(folder, good.trial).metrics["eval_f1"])
    (tmp_path / "trial.json").write_text("{")
    with pytest.raises(InputError, match=r"trial\.json"):
        read_result(folder, good.trial)


def test_the_table():
    """Of the finite numbers; the deviation divides by n - 1."""
    groups = [*results(5e-5, 0.5, None, 0.25), *results(3e-5, NAN)]
    groups += results(2e-5, 0.125)
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
        "16 2e-05 3 1 0 eval_f1 0.1250 0.1250 0.1250 0.0000 ",
        "16 2e-05 3 1 0 eval_loss -0.1250 -0.1250 -0.1250 0.0000 ",
    ]


class Killed(BaseException):
    """Stands for SIGKILL."""


class Task:
    """A task with given metrics; None diverges, exceptions are raised."""

    def __init__(self, folder, *values):
        self.folder, self.trials = folder, plan(BASE, len(values))
        self.values = [*values]
        self.ran = []

    def checkpoint_of(self, trial):
        return pathlib.Path(folder_of(str(self.folder), trial), "checkpoint")

    def run_one(self, trial, folder):
        assert folder == folder_of(str(self.folder), trial)
        number = self.trials.index(trial)
        self.ran.append(number)
        value = self.values[number]
        if value is None:
            raise NonFiniteError("step 3: loss nan")
        if not isinstance(value, float):
            raise value
        self.checkpoint_of(trial).touch()
        return {"f1": value, "loss": value}

    def discard(self, folder):
        pathlib.Path(folder, "checkpoint").unlink(missing_ok=True)

    def run(self, count=None, metric="f1", **options):
        """Runs the first trials; returns the number of the best."""
        metric = Metric(metric, metric == "loss")
        found = run(
            *(self.trials[:count], self.run_one, str(self.folder), metric),
            **{"discard": self.discard, **options},
        )
        return self.trials.index(found.trial)

    @property
    def kept(self):
        """The numbers of the trials with a checkpoint."""
        exists = [self.checkpoint_of(trial).exists() for trial in self.trials]
        return np.flatnonzero(exists).tolist()


def test_the_best_of_several_is_kept(tmp_path, caplog):
    task = Task(tmp_path / "a", 0.3, 0.5, None, 0.7, 0.6)
    # More seeds add to the finished trials.
    assert (task.run(2), task.run(), task.run()) == (1, 3, 3)
    assert (task.ran, task.kept) == ([0, 1, 2, 3, 4], [3])
    assert "seed12347 diverged: step 3: loss nan" in caplog.text
    # Another metric decides by the recorded results.
    assert task.run(metric="loss") == 0
    assert task.ran == [0, 1, 2, 3, 4]
    # Another worker of the same run writes no results and removes nothing.
    other = Task(tmp_path / "other", *task.values)
    assert other.run(writes=False) == 3
    assert (other.ran, other.kept) == (task.ran, [0, 1, 3, 4])
    written = [path for path in other.folder.rglob("*") if path.is_file()]
    assert {path.name for path in written} == {"checkpoint"}


def test_a_killed_run_continues(tmp_path):
    """The table covers the finished trials."""
    task = Task(tmp_path, 0.3, 0.5, Killed())
    with pytest.raises(Killed):
        task.run()
    assert task.trials[1].name in (tmp_path / "trials.tsv").read_text()
    assert task.kept == [0, 1]
    task.values[2] = 0.4

    def dying(folder):
        raise Killed

    with pytest.raises(Killed):
        task.run(discard=dying)
    assert task.kept == [0, 1, 2]
    assert (task.run(), task.ran, task.kept) == (1, [0, 1, 2, 2], [1])
    whole = Task(tmp_path / "whole", 0.3, 0.5, 0.4)
    whole.run()
    table = (tmp_path / "trials.tsv").read_text()
    assert table == (tmp_path / "whole" / "trials.tsv").read_text()


@pytest.mark.parametrize(
    ("values", "metric", "message", "ran"),
    [
        ([None] * 3, "f1", r"All 3 .* last error: step 3", [0, 1, 2]),
        ([0.3, InputError("no such file"), 0.4], "f1", "no such file", [0, 1]),
        # An unknown metric is reported after the first trial.
        ([0.3, 0.5, 0.4], "mcc", "mcc", [0]),
    ],
)
def test_errors_end_the_run(tmp_path, values, metric, message, ran):
    task = Task(tmp_path, *values)
    with pytest.raises(InputError, match=message):
        task.run(metric=metric)
    assert task.ran == ran
