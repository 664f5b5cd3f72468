"""Trials are done once, survive interruptions, and keep the best's files."""

import json
import os

import pytest

from bert_tf.errors import InputError
from bert_tf.jobs.trials import Trial, folder_of, plan, run
from bert_tf.training.hooks import NonFiniteError

BASE = Trial(32, 5e-5, 3.0, 12345)


class Killed(BaseException):
    """What SIGKILL does to a program."""


class Task:
    """A task whose results are a function of the trial's number.

    Args:
      folder: The output directory.
      trials: All there will be.
      values: The metric of each; None where it diverges.
    """

    def __init__(self, folder, trials, values):
        self.folder, self.trials = folder, trials
        self.values = dict(zip(trials, values, strict=True))
        self.ran = []

    def run_one(self, trial, folder):
        assert folder == folder_of(str(self.folder), trial)
        self.ran.append(self.trials.index(trial))
        if self.values[trial] is Killed:
            raise Killed
        if self.values[trial] is None:
            raise NonFiniteError("step 3: loss nan")
        with open(os.path.join(folder, "checkpoint"), "w"):
            pass
        value = self.values[trial]
        return {"f1": value, "loss": value}

    @staticmethod
    def discard(folder):
        path = os.path.join(folder, "checkpoint")
        if os.path.exists(path):
            os.remove(path)

    def run(self, trials=None, metric="f1", **options):
        trials = self.trials if trials is None else trials
        folder = str(self.folder)
        return run(
            trials, self.run_one, folder, metric, self.discard, **options
        )

    @property
    def kept(self):
        """The numbers of those whose files are there."""
        return [
            number
            for number, trial in enumerate(self.trials)
            if os.path.exists(
                os.path.join(folder_of(str(self.folder), trial), "checkpoint")
            )
        ]


def seeds(count):
    return plan(BASE, count)


# plan


def test_one_setting_and_several_seeds():
    assert plan(BASE, 1) == [BASE]
    assert [t.random_seed for t in plan(BASE, 3)] == [12345, 12346, 12347]
    assert {t.setting for t in plan(BASE, 3)} == {(32, 5e-5, 3.0)}


def test_the_papers_grid():
    """Appendix A.3: each setting's seeds one after another."""
    trials = plan(BASE, 2, "paper")
    assert len(set(trials)) == len(trials) == 2 * 3 * 3 * 2
    assert {t.train_batch_size for t in trials} == {16, 32}
    assert {t.learning_rate for t in trials} == {5e-5, 3e-5, 2e-5}
    assert {t.num_train_epochs for t in trials} == {2, 3, 4}
    assert trials[0].setting == trials[1].setting != trials[2].setting
    assert [t.random_seed for t in trials[:4]] == [12345, 12346] * 2
    assert trials[0].name == "batch16_rate5e-05_epochs2_seed12345"
    assert type(trials[0].train_batch_size) is int


def test_plans_that_cannot_be():
    with pytest.raises(InputError, match="num_seeds of 1 up"):
        plan(BASE, 0)
    with pytest.raises(InputError, match=r"among paper\. Received: grid"):
        plan(BASE, 1, "grid")


# run


def test_workers_that_do_not_write_come_to_the_same_end(tmp_path):
    values = [0.3, 0.5, None, 0.7, 0.6]
    chief, other = (
        Task(tmp_path / name, seeds(5), values) for name in ("chief", "other")
    )
    expected, found = chief.run(), other.run(writes=False)
    assert found == expected
    assert other.ran == chief.ran
    written = [path for path in other.folder.rglob("*") if path.is_file()]
    # What the trials themselves write stays: they know who writes.
    assert {path.name for path in written} == {"checkpoint"}
    assert other.kept == [0, 1, 3, 4]


def test_the_best_of_several_is_kept(tmp_path):
    task = Task(tmp_path, seeds(5), [0.3, 0.5, 0.4, 0.7, 0.6])
    summary = task.run()
    assert task.ran == [0, 1, 2, 3, 4]
    assert summary.best.trial == task.trials[3]
    assert summary.best_setting.metrics["f1"].median == 0.5
    assert task.kept == [3]
    assert sorted(os.listdir(tmp_path)) == [
        "trials",
        "trials.json",
        "trials.tsv",
    ]


def test_without_a_way_to_discard_all_is_kept(tmp_path):
    task = Task(tmp_path, seeds(3), [0.3, 0.5, 0.4])
    run(task.trials, task.run_one, str(tmp_path), "f1")
    assert task.kept == [0, 1, 2]


def test_the_summary_is_told_after_each(tmp_path):
    told = []

    def run_one(trial, folder):
        if (tmp_path / "trials.json").exists():
            values = json.loads((tmp_path / "trials.json").read_text())
            told.append((values["best"], len(values["settings"][0]["trials"])))
        return {"f1": 1 / trial.random_seed}

    trials = seeds(3)
    run(trials, run_one, str(tmp_path), "f1")
    assert told == [(trials[0].name, 1), (trials[0].name, 2)]


def test_what_is_done_is_not_done_again(tmp_path):
    trials = seeds(3)
    task = Task(tmp_path, trials, [0.3, 0.5, Killed])
    with pytest.raises(Killed):
        task.run()
    assert task.kept == [1]
    task.values[trials[2]] = 0.4
    task.ran.clear()
    summary = task.run()
    assert task.ran == [2]
    assert summary.best.trial == trials[1]
    whole = Task(tmp_path / "whole", trials, [0.3, 0.5, 0.4])
    whole.run()
    for name in ("trials.json", "trials.tsv"):
        text = (tmp_path / name).read_text()
        assert text == (tmp_path / "whole" / name).read_text()
    task.ran.clear()
    assert task.run() == summary
    assert task.ran == []


def test_one_that_diverges_does_not_stop_the_others(tmp_path, caplog):
    task = Task(tmp_path, seeds(4), [None, 0.5, None, 0.4])
    summary = task.run()
    assert task.ran == [0, 1, 2, 3]
    assert summary.best.trial == task.trials[1]
    assert summary.best_setting.num_failures == 2
    assert "seed12345 diverged: step 3: loss nan" in caplog.text
    task.run()
    assert task.ran == [0, 1, 2, 3]


def test_all_diverge(tmp_path):
    task = Task(tmp_path, seeds(3), [None] * 3)
    with pytest.raises(InputError, match=r"all 3 did; the last said: step 3"):
        task.run()
    assert task.ran == [0, 1, 2]


def test_a_metric_that_is_not_there_is_told_after_the_first(tmp_path):
    task = Task(tmp_path, seeds(3), [0.3, 0.5, 0.4])
    with pytest.raises(InputError, match=r"among f1, loss\. Received: 'mcc'"):
        task.run(metric="mcc")
    assert task.ran == [0]
    task.run()
    assert task.ran == [0, 1, 2]


def test_other_errors_are_not_caught(tmp_path):
    def run_one(trial, folder):
        raise InputError("no such file")

    with pytest.raises(InputError, match="no such file"):
        run(seeds(2), run_one, str(tmp_path), "f1")


def test_candidates_are_kept_until_a_setting_is_done(tmp_path):
    """The second setting begins better and ends worse."""
    trials = plan(BASE, 3, "paper")[:6]
    task = Task(tmp_path, trials, [0.5, 0.6, 0.5, 0.9, 0.1, Killed])
    with pytest.raises(Killed):
        task.run()
    assert task.kept == [1, 3]
    task.values[trials[5]] = 0.2
    assert task.run().best.trial == trials[1]
    assert task.kept == [1]
    assert task.ran == [0, 1, 2, 3, 4, 5, 5]


def test_another_metric_runs_the_best_again_if_its_files_are_gone(tmp_path):
    task = Task(tmp_path, seeds(3), [0.3, 0.5, 0.4])
    task.run()
    summary = task.run(metric="loss")
    assert task.ran == [0, 1, 2, 0]
    assert summary.best.trial == task.trials[0]
    assert task.kept == [0]


def test_it_ends_even_if_no_two_runs_are_equal(tmp_path):
    trials = seeds(3)
    task = Task(tmp_path, trials, [0.3, 0.5, 0.4])
    task.run()
    task.values = dict.fromkeys(trials, 1.0)
    summary = task.run(metric="loss")
    assert summary.best.kept
    assert task.kept == [trials.index(summary.best.trial)]


def test_more_seeds_add_to_those_that_are_done(tmp_path):
    trials = seeds(5)
    task = Task(tmp_path, trials, [0.3, 0.5, 0.4, 0.6, 0.1])
    task.run(trials[:2])
    task.run(trials)
    assert task.ran == [0, 1, 2, 3, 4]
    assert task.kept == [3]


def test_what_is_to_be_discarded_is_even_after_a_kill(tmp_path):
    """Killed after it was noted, before it was done."""
    task = Task(tmp_path, seeds(2), [0.3, 0.5])

    def dying(folder):
        raise Killed

    with pytest.raises(Killed):
        run(task.trials, task.run_one, str(tmp_path), "f1", dying)
    assert task.kept == [0, 1]
    task.run()
    assert task.kept == [1]
    assert task.ran == [0, 1]
