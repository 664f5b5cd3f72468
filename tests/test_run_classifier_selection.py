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
    results,
    weights,
)

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
    """Returns the folders of the trials and their records."""
    return {
        path.parent: json.loads(path.read_text())
        for path in sorted(folder.glob("trials/*/trial.json"))
    }


def test_the_best_of_several_seeds_is_kept(seeds):
    found = trials_of(seeds)
    assert [folder.name for folder in found] == [
        "batch4_rate0.01_epochs1_seed12345",
        "batch4_rate0.01_epochs1_seed12346",
    ]
    summary = json.loads((seeds / "trials.json").read_text())
    [setting] = summary["settings"]
    for name in ("eval_accuracy", "eval_f1", "eval_loss", "loss"):
        values = [trial["metrics"][name] for trial in found.values()]
        median = setting["metrics"][name]["median"]
        assert median == pytest.approx(statistics.median(values))
    assert values[0] != values[1]
    best, other = sorted(
        found.items(), key=lambda item: item[1]["metrics"]["loss"]
    )
    assert summary["best"] == best[0].name
    names = [{path.name for path in contents(f)} for f, _ in (best, other)]
    assert {"checkpoint", "model.ckpt-3.index", "best.json"} <= names[0]
    assert not {n for n in names[1] if "ckpt" in n or n == "checkpoint"}
    metrics = best[1]["metrics"]
    seconds = metrics.pop("train_seconds")
    scores = results(seeds)
    assert scores.pop("global_step") in (1, 2, 3)
    assert scores == metrics
    values = json.loads((seeds / "eval_results.json").read_text())
    assert values["train_seconds"] == seconds
    kept = weights(best[0] / "best" / "bert_model.ckpt")
    assert_same(weights(seeds / "release" / "bert_model.ckpt"), kept)


def test_a_second_run_trains_nothing(seeds, run, tmp_path):
    folder = tmp_path / "out"
    shutil.copytree(seeds, folder)
    before = contents(folder)
    run(folder, **EVALUATED, **SEEDS)
    assert contents(folder) == before


@pytest.mark.slow
def test_the_folder_and_its_release_predict_with_the_best(seeds, run, tmp_path):
    folder = tmp_path / "out"
    shutil.copytree(seeds, folder)
    (folder / "eval_results.txt").unlink()
    run(folder, **ANSWERS)
    assert results(folder) == results(seeds)
    assert_same_answers(folder, seeds)
    run(tmp_path / "new", **ANSWERS, init_checkpoint=seeds / "release")
    assert_same_answers(tmp_path / "new", seeds)


# The best evaluation of one training.


@pytest.fixture(scope="module")
def stopped(launch, inputs, tmp_path_factory):
    """The folder of a run that gets worse, so that it stops early."""
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


# Layers and examples that count less.


def change(folder, start, name):
    """Returns how much a variable has changed."""
    prefix = "release/bert_model.ckpt"
    before, after = (weights(f / prefix)[name] for f in (start, folder))
    return np.abs(after - before).max()


KERNEL = "bert/encoder/layer_{}/output/dense/kernel"
WORDS = "bert/embeddings/word_embeddings"


@pytest.mark.slow
def test_frozen_layers_do_not_change(seeds, run, tmp_path, caplog):
    """Class weights and smoothing are on, too: all becomes one class."""
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
    """By a tenth each: Adam's first steps are as long as the learning rate."""
    run(
        tmp_path,
        init_checkpoint=seeds / "release",
        layer_rate_decay=0.1,
        weight_decay_rate=0,
        num_train_epochs=1,
    )
    words, first, second = (
        change(tmp_path, seeds, name)
        for name in (WORDS, KERNEL.format(0), KERNEL.format(1))
    )
    assert first == pytest.approx(second / 10, rel=0.5)
    assert words == pytest.approx(first / 10, rel=0.5)
