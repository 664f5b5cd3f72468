"""Several trainings, the best of them, and which layers learn: the script."""

import json
import shutil
import statistics

import fine_tuning_runs
import numpy as np
import pytest
import sentence_files
from fine_tuning_runs import (
    ANSWERS,
    arguments,
    assert_same,
    assert_same_answers,
    contents,
    read,
    results,
    table,
    weights,
)

from bert_tf.jobs import trials

EVALUATED = {"do_eval": True, "do_predict": True}


@pytest.fixture(scope="module")
def launch():
    with fine_tuning_runs.classifier() as launch:
        yield launch


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """The flags that name the model's files, two layers, and the data."""
    folder = tmp_path_factory.mktemp("inputs")
    data = sentence_files.write(folder / "data", "mrpc")
    model = fine_tuning_runs.write_model(folder, num_hidden_layers=2)
    return {**model, "data_dir": data, "task_name": "mrpc"}


@pytest.fixture
def run(launch, inputs):
    """Runs the script with the usual flags and some changes."""

    def call(output_dir, **changes):
        words = {**inputs, "output_dir": output_dir, **changes}
        assert launch(arguments(**words)) == 0

    return call


# Several seeds.


@pytest.fixture(scope="module")
def seeds(launch, inputs, tmp_path_factory):
    """The folder of a run with two seeds."""
    folder = tmp_path_factory.mktemp("seeds")
    words = {**inputs, **EVALUATED, "output_dir": folder}
    assert launch(arguments(**words, **SEEDS)) == 0
    return folder


SEEDS = {"num_seeds": 2, "save_best": "loss", "num_train_epochs": 1}


def trials_of(folder):
    """The folders of the trials and what is noted there."""
    return {
        path.parent: json.loads(path.read_text())
        for path in sorted(folder.glob("trials/*/trial.json"))
    }


def test_every_seed_is_a_trial(seeds):
    found = trials_of(seeds)
    assert [folder.name for folder in found] == [
        "batch4_rate0.01_epochs1_seed12345",
        "batch4_rate0.01_epochs1_seed12346",
    ]
    values = [trial["metrics"]["eval_loss"] for trial in found.values()]
    assert values[0] != values[1]


def test_median_and_spread_are_those_of_the_trials(seeds):
    found = [trial["metrics"] for trial in trials_of(seeds).values()]
    summary = json.loads((seeds / "trials.json").read_text())
    [setting] = summary["settings"]
    header, *rows = table(seeds / "trials.tsv")
    rows = {row[header.index("metric")]: row for row in rows}
    for name in ("eval_accuracy", "eval_f1", "eval_loss", "loss"):
        values = [metrics[name] for metrics in found]
        spread = setting["metrics"][name]
        assert spread["median"] == pytest.approx(statistics.median(values))
        assert spread["minimum"] == min(values)
        assert spread["maximum"] == max(values)
        deviation = statistics.stdev(values)
        assert spread["standard_deviation"] == pytest.approx(deviation)
        told = rows[name][header.index("median")]
        assert told == f"{statistics.median(values):.4f}"


def test_the_best_trial_is_what_is_left(seeds):
    best, other = sorted(
        trials_of(seeds).items(), key=lambda item: item[1]["metrics"]["loss"]
    )
    names = [{path.name for path in contents(f)} for f, _ in (best, other)]
    assert {"checkpoint", "model.ckpt-3.index", "best.json"} <= names[0]
    assert not {n for n in names[1] if "ckpt" in n or n == "checkpoint"}
    metrics = best[1]["metrics"]
    seconds = metrics.pop("train_seconds")
    found = results(seeds)
    assert found.pop("global_step") in (1, 2, 3)
    assert found == metrics
    values = json.loads((seeds / "eval_results.json").read_text())
    assert values["train_seconds"] == seconds
    summary = json.loads((seeds / "trials.json").read_text())
    assert summary["best"] == best[0].name
    kept = weights(best[0] / "best" / "bert_model.ckpt")
    assert_same(weights(seeds / "release" / "bert_model.ckpt"), kept)


def test_a_second_run_trains_nothing(seeds, run, tmp_path):
    folder = tmp_path / "out"
    shutil.copytree(seeds, folder)
    before = contents(folder)
    run(folder, **EVALUATED, **SEEDS)
    assert contents(folder) == before


@pytest.mark.slow
def test_the_old_folder_answers_with_the_best(seeds, run, tmp_path):
    """And so does its release, in a new one."""
    folder = tmp_path / "out"
    shutil.copytree(seeds, folder)
    (folder / "eval_results.txt").unlink()
    run(folder, **ANSWERS)
    assert results(folder) == results(seeds)
    assert_same_answers(folder, seeds)
    run(tmp_path / "new", **ANSWERS, init_checkpoint=seeds / "release")
    assert_same_answers(tmp_path / "new", seeds)


# The search.


class Killed(Exception):
    """What no program expects."""


@pytest.mark.slow
def test_a_search_that_is_killed_goes_on(run, tmp_path, monkeypatch):
    """In the third of four trainings."""
    grid = {"paper": ((4, 6), (0.01, 0.03), (1.0,))}
    monkeypatch.setattr(trials, "SEARCHES", grid)
    changes = {"search": "paper", **EVALUATED}
    from bert_tf.jobs import fine_tuning

    started = []

    class Progress(fine_tuning.Progress):
        def begin(self, step):
            started.append(self.total)
            if len(started) == 3:
                raise Killed
            super().begin(step)

    monkeypatch.setattr(fine_tuning, "Progress", Progress)
    folder = tmp_path / "out"
    with pytest.raises(Killed):
        run(folder, **changes)
    assert len(trials_of(folder)) == 2
    assert not (folder / "release").exists()
    run(folder, **changes)
    # The third from its start, and the fourth.
    assert started == [3, 3, 2, 2, 2]
    found = trials_of(folder)
    assert len(found) == 4
    # Settings come one after another, so only the best is kept of them.
    with_weights = {path.parent for path in folder.glob("trials/*/checkpoint")}
    best = json.loads((folder / "trials.json").read_text())["best"]
    assert with_weights == {folder / "trials" / best}
    metrics = found[folder / "trials" / best]["metrics"]
    assert metrics["eval_accuracy"] == max(
        trial["metrics"]["eval_accuracy"] for trial in found.values()
    )
    assert results(folder)["eval_accuracy"] == metrics["eval_accuracy"]


# The best evaluation of one training.


@pytest.fixture(scope="module")
def stopped(launch, inputs, tmp_path_factory):
    """A run that gets worse, so that it stops early."""
    folder = tmp_path_factory.mktemp("stopped")
    assert launch(arguments(**inputs, **STOPPED, output_dir=folder)) == 0
    return folder


STOPPED = {
    "do_eval": True,
    "save_best": "eval_loss",
    "eval_steps": 2,
    "early_stopping_patience": 2,
    "learning_rate": 0.3,
    "num_train_epochs": 20,
}


def evaluations(folder):
    lines = (folder / "evaluations.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_training_stops_early_and_the_best_is_kept(stopped):
    history = evaluations(stopped)
    assert [e["step"] for e in history] == list(
        range(2, 2 + 2 * len(history), 2)
    )
    best = min(history, key=lambda e: e["eval_loss"])
    assert history.index(best) == len(history) - 3
    last = history[-1]["step"]
    assert last < 60
    assert (stopped / f"model.ckpt-{last}.index").exists()
    assert results(stopped)["global_step"] == best["step"]
    assert results(stopped)["eval_loss"] == best["eval_loss"]
    released = weights(stopped / "release" / "bert_model.ckpt")
    assert_same(released, weights(stopped / "best" / "bert_model.ckpt"))
    final = weights(stopped / f"model.ckpt-{last}")
    assert any((released[name] != final[name]).any() for name in final)


@pytest.mark.slow
def test_what_has_stopped_early_stays_so(stopped, run, tmp_path):
    folder = tmp_path / "out"
    shutil.copytree(stopped, folder)
    run(folder, **STOPPED)
    assert evaluations(folder) == evaluations(stopped)
    assert results(folder) == results(stopped)
    names = ["release/bert_model.ckpt", "best/bert_model.ckpt"]
    for name in names:
        assert_same(read(folder / name), read(stopped / name))
    checkpoints = [
        sorted(path.name for path in f.glob("model.ckpt*"))
        for f in (folder, stopped)
    ]
    assert checkpoints[0] == checkpoints[1]


# What counts, and what learns.


def distance(folder, start, name):
    """How far a variable has come."""
    prefix = "release/bert_model.ckpt"
    before, after = (weights(f / prefix)[name] for f in (start, folder))
    return np.abs(after - before).max()


KERNEL = "bert/encoder/layer_{}/output/dense/kernel"
WORDS = "bert/embeddings/word_embeddings"


@pytest.mark.slow
def test_frozen_layers_stay_what_they_were(seeds, run, tmp_path, caplog):
    """With class weights and smoothing besides; all is one class then."""
    run(
        tmp_path,
        do_eval=True,
        init_checkpoint=seeds / "release",
        num_frozen_layers=1,
        class_weights="0.001,100",
        label_smoothing=0.1,
        num_train_epochs=4,
    )
    before, after = (
        weights(f / "release" / "bert_model.ckpt") for f in (seeds, tmp_path)
    )
    frozen = ("bert/embeddings/", "bert/encoder/layer_0/")
    for name, value in before.items():
        is_same = np.array_equal(value, after[name])
        assert is_same == name.startswith(frozen), name
    assert "All 7 examples are predicted to be '1'" in caplog.text


@pytest.mark.slow
def test_lower_layers_move_less(seeds, run, tmp_path):
    """By a tenth each: Adam's first steps are as long as the rate."""
    run(
        tmp_path,
        init_checkpoint=seeds / "release",
        layer_rate_decay=0.1,
        weight_decay_rate=0,
        num_train_epochs=1,
    )
    words, first, second = (
        distance(tmp_path, seeds, name)
        for name in (WORDS, KERNEL.format(0), KERNEL.format(1))
    )
    assert first == pytest.approx(second / 10, rel=0.5)
    assert words == pytest.approx(first / 10, rel=0.5)


@pytest.mark.slow
def test_balanced_weights_are_those_of_the_training_set(run, tmp_path):
    """Two thirds of one class: as if the weights were given by number."""
    path = sentence_files.write(tmp_path, "mrpc") / "train.tsv"
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:7] + lines[1::2]) + "\n")
    labels = [row[0] for row in table(path)[1:]]
    counts = [labels.count(label) for label in "01"]
    assert counts[0] != counts[1]
    given = ",".join(str(len(labels) / (2 * count)) for count in counts)
    for name, value in (("balanced", "balanced"), ("given", given)):
        run(tmp_path / name, data_dir=tmp_path, class_weights=value)
    run(tmp_path / "plain", data_dir=tmp_path)
    balanced, given, plain = (
        weights(
            next((tmp_path / name / "release").glob("*.index")).with_suffix("")
        )
        for name in ("balanced", "given", "plain")
    )
    assert_same(balanced, given, atol=1e-6)
    with pytest.raises(AssertionError):
        assert_same(balanced, plain, atol=1e-6)
