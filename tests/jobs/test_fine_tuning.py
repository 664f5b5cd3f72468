"""One or several trainings of a toy task, and the model that is kept."""

import dataclasses
import functools
import json
import os

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.jobs import fine_tuning, output_folder, trials
from bert_tf.jobs.start import Start
from bert_tf.training import checkpoints, results
from bert_tf.training.hooks import NonFiniteError
from bert_tf.training.settings import TrainingConfig
from tests.training import toy_task

VOCAB = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
START = Start(BertConfig(vocab_size=5), VOCAB, False, True, None)
EXAMPLES = toy_task.examples(24)
HELD_OUT = toy_task.examples(7, seed=1)
STRATEGY = tf.distribute.get_strategy()
CONFIG = TrainingConfig(
    train_batch_size=6,
    eval_batch_size=4,
    learning_rate=0.05,
    num_train_steps=1,
    save_checkpoints_steps=3,
    keep_checkpoint_max=2,
    jit_compile=False,
)


class Killed(BaseException):
    """Stands for SIGKILL."""


def evaluate(estimator):
    return estimator.evaluate(toy_task.evaluation_data(HELD_OUT))


def make(folder, schedule, config=CONFIG, evaluate=evaluate, start=START):
    schedule = fine_tuning.Schedule(
        **{"num_train_epochs": 1.5, "log_steps": 0, **schedule}
    )
    return fine_tuning.FineTuning(
        toy_task.ToyTask(dropout_rate=0.3),
        STRATEGY,
        start,
        str(folder),
        schedule.plan(config, 24, STRATEGY),
        schedule,
        training_data=lambda config: toy_task.training_data(EXAMPLES),
        evaluate=evaluate,
        metric="loss",
        tokens_per_example=4.0,
    )


def open_model(folder, start=START, task=None):
    task = task or toy_task.ToyTask()
    return fine_tuning.open_model(task, STRATEGY, start, str(folder), CONFIG)


def weights(estimator):
    return {v.path: v.numpy() for v in estimator.model.weights}


def assert_equal(estimator, other):
    ours, theirs = weights(estimator), weights(other)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        np.testing.assert_array_equal(theirs[name], value, err_msg=name)


def names(folder):
    return sorted(os.listdir(folder))


# Schedule.


@pytest.mark.parametrize(
    ("examples", "batch", "epochs", "steps"),
    [
        (3668, 32, 3.0, 343),  # MRPC: the original's own checkpoint.
        (24, 6, 1.5, 6),
        (10, 32, 3.2, 1),
        (7, 2, 0.5, 1),
    ],
)
def test_the_number_of_steps_is_the_original_one(
    examples, batch, epochs, steps
):
    schedule = fine_tuning.Schedule(num_train_epochs=epochs)
    config = dataclasses.replace(CONFIG, train_batch_size=batch)
    [planned] = schedule.plan(config, examples, STRATEGY).values()
    assert planned.num_train_steps == steps
    assert planned.num_warmup_steps == steps // 10


def test_too_few_examples_for_a_step():
    config = dataclasses.replace(CONFIG, train_batch_size=31)
    with pytest.raises(InputError, match=r"at most 10 examples.*: 31 "):
        fine_tuning.Schedule(num_train_epochs=3).plan(config, 10, STRATEGY)


def test_every_training_of_a_plan_is_checked():
    """The paper's grid has batches of 32 examples and trainings of 2 epochs."""
    with pytest.raises(InputError, match=r"15 examples times 2.0.*: 32 "):
        fine_tuning.Schedule(search="paper").plan(CONFIG, 15, STRATEGY)
    config = dataclasses.replace(CONFIG, random_seed=2**31 - 1)
    with pytest.raises(InputError, match="random_seed up to"):
        fine_tuning.Schedule(num_seeds=2).plan(config, 100, STRATEGY)
    assert (
        len(fine_tuning.Schedule(search="paper").plan(CONFIG, 16, STRATEGY))
        == 18
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
@pytest.mark.parametrize("name", ["num_train_epochs", "warmup_proportion"])
def test_impossible_numbers_are_rejected(name, value):
    with pytest.raises(InputError, match=f"expected --{name} of 0.*Received"):
        fine_tuning.Schedule(**{name: value})


# One training.


def test_one_training_writes_to_the_output_folder(tmp_path):
    estimator = make(tmp_path, {"log_steps": 2}).train()
    assert estimator.step == 6
    found = [n for n in names(tmp_path) if "tfevents" not in n]
    assert found == [
        "checkpoint",
        "fine_tuning.json",
        *(
            f"model.ckpt-{step}.{ending}"
            for step in (3, 6)
            for ending in ("data-00000-of-00001", "index")
        ),
    ]
    assert output_folder.kept(str(tmp_path)) == str(tmp_path)
    assert_equal(open_model(tmp_path), estimator)


def test_warmup_is_a_fraction_of_the_steps(tmp_path):
    """There is no evaluation by default."""
    seen = []

    def training_data(config):
        seen.append((config.num_train_steps, config.num_warmup_steps))
        return toy_task.training_data(EXAMPLES)

    def evaluate(estimator):
        raise AssertionError

    tuning = make(tmp_path, {"warmup_proportion": 0.35}, evaluate=evaluate)
    dataclasses.replace(tuning, training_data=training_data).train()
    assert seen == [(6, 2)]
    assert "evaluations.jsonl" not in names(tmp_path)


def scripted(values):
    """Returns an evaluation whose loss at each step is given."""

    def evaluate(estimator):
        return {"loss": values[estimator.step], "global_step": estimator.step}

    return evaluate


def test_the_weights_of_the_best_evaluation_are_kept(tmp_path):
    values = {1: 0.5, 2: 0.3, 3: 0.4, 4: 0.6, 5: 0.5, 6: 0.7}
    schedule = {"save_best": "loss", "eval_steps": 1}
    estimator = make(tmp_path, schedule, evaluate=scripted(values)).train()
    assert estimator.step == 2
    found = results.find_best(str(tmp_path / "best"))
    assert (found.step, found.value) == (2, 0.3)
    kept = checkpoints.Reader(results.best_prefix(str(tmp_path / "best")))
    for name in ("bert/embeddings", "head/kernel"):
        last = checkpoints.Reader(str(tmp_path / "model.ckpt-6"))[name]
        assert (kept[name] != last).any()
    opened = open_model(tmp_path)
    assert_equal(opened, estimator)
    assert opened.step == 2
    # Without --save_best the last weights are kept.
    assert make(tmp_path, {}).train().step == 6
    assert "best" not in names(tmp_path) or not names(tmp_path / "best")


def test_save_best_evaluates_once_per_epoch_by_default(tmp_path):
    steps = []

    def evaluate(estimator):
        steps.append(estimator.step)
        return {"loss": 1.0}

    make(tmp_path, {"save_best": "loss"}, evaluate=evaluate).train()
    assert steps == [4, 6]


def test_a_training_that_stopped_early_does_not_continue(tmp_path):
    schedule = {
        "save_best": "loss",
        "eval_steps": 1,
        "early_stopping_patience": 2,
    }
    values = dict(enumerate([0, 0.5, 0.3, 0.4, 0.6, 0.1, 0.1]))
    train = make(tmp_path, schedule, evaluate=scripted(values)).train
    assert train().step == 2
    before = names(tmp_path)
    assert "model.ckpt-4.index" in before
    assert train().step == 2
    assert names(tmp_path) == before


# Several trainings.


@pytest.mark.slow
def test_the_best_of_several_trainings_is_kept(tmp_path):
    tuning = make(tmp_path, {"num_seeds": 2})
    estimator = tuning.train()
    found = {
        trial: json.loads(
            (tmp_path / "trials" / trial / "trial.json").read_text()
        )
        for trial in names(tmp_path / "trials")
    }
    assert len(found) == 2
    losses = {name: trial["metrics"]["loss"] for name, trial in found.items()}
    chosen = min(losses, key=losses.get)
    assert evaluate(estimator)["loss"] == losses[chosen]
    assert estimator.train_seconds == found[chosen]["metrics"]["train_seconds"]
    for name in found:
        has_weights = "checkpoint" in names(tmp_path / "trials" / name)
        assert has_weights == (name == chosen)
    kept = output_folder.kept(str(tmp_path))
    assert kept == str(tmp_path / "trials" / chosen)
    assert_equal(open_model(tmp_path), estimator)


def counting(killed_at=None):
    """Returns an evaluation that is killed in one call, and its calls."""
    calls = []

    def evaluate_or_die(estimator):
        calls.append(estimator.step)
        if len(calls) == killed_at:
            raise Killed
        return evaluate(estimator)

    return evaluate_or_die, calls


def summary(folder):
    """Returns `trials.json` without the training times."""
    found = json.loads((folder / "trials.json").read_text())
    for setting in found["settings"]:
        for metrics in (setting, *setting["trials"]):
            del metrics["metrics"]["train_seconds"]
    return found


@pytest.mark.slow
def test_a_killed_search_continues(tmp_path, monkeypatch):
    """It is killed before the third of four trainings is evaluated."""
    grid = {"paper": ((6, 8), (0.05, 0.01), (1.0,))}
    monkeypatch.setattr(trials, "SEARCHES", grid)
    search = {"search": "paper"}
    first, _ = counting(killed_at=3)
    with pytest.raises(Killed):
        make(tmp_path, search, evaluate=first).train()
    second, calls = counting()
    estimator = make(tmp_path, search, evaluate=second).train()
    assert len(calls) == 2
    whole = make(tmp_path / "whole", search).train()
    assert_equal(estimator, whole)
    assert summary(tmp_path) == summary(tmp_path / "whole")
    third, calls = counting()
    assert_equal(make(tmp_path, search, evaluate=third).train(), whole)
    assert not calls


@pytest.mark.slow
def test_a_training_that_diverges_is_skipped(tmp_path):
    """It is the first of two seeds."""
    calls = []

    def diverging(estimator):
        calls.append(estimator)
        if len(calls) == 1:
            raise NonFiniteError("step 3: loss nan")
        return evaluate(estimator)

    make(tmp_path, {"num_seeds": 2}, evaluate=diverging).train()
    assert output_folder.kept(str(tmp_path)).endswith("seed12346")


@pytest.mark.slow
def test_save_best_selects_among_trainings(tmp_path):
    """More examples are better; of equal trainings, the first is kept."""
    schedule = {"num_seeds": 2, "save_best": "examples", "eval_steps": 6}
    make(tmp_path, schedule).train()
    found = summary(tmp_path)
    assert found["metric"] == "examples"
    assert found["best"].endswith("seed12345")


@pytest.mark.slow
def test_a_single_training_after_several(tmp_path):
    make(tmp_path, {"num_seeds": 2}).train()
    estimator = make(tmp_path, {}).train()
    assert output_folder.kept(str(tmp_path)) == str(tmp_path)
    assert_equal(open_model(tmp_path), estimator)


# Models without training.


def test_a_missing_model_is_reported(tmp_path):
    with pytest.raises(InputError, match="a fine-tuned model in --output_dir"):
        open_model(tmp_path)


@pytest.fixture
def exported(tmp_path):
    """A trained model, and checkpoints of it with and without its head."""
    estimator = make(tmp_path / "run", {}).train()
    whole, headless = (str(tmp_path / n / "x.ckpt") for n in ("a", "b"))
    estimator.export_weights(whole)
    reader = checkpoints.Reader(whole)
    table = {"bert/embeddings": reader["bert/embeddings"]}
    checkpoints.write(headless, table)
    return estimator, whole, headless


def test_a_checkpoint_outside_the_output_folder(exported, tmp_path):
    estimator, whole, headless = exported
    start = functools.partial(dataclasses.replace, START)
    used = open_model(tmp_path / "new", start(init_checkpoint=whole))
    assert_equal(used, estimator)
    assert used.step == 0
    message = rf"Received: {headless}, which lacks head/"
    with pytest.raises(InputError, match=message):
        open_model(tmp_path / "new", start(init_checkpoint=headless))


def test_a_release_is_complete(exported, tmp_path):
    estimator, whole, _ = exported
    fine_tuning.release(
        estimator, str(tmp_path), START, labels=("a", "b"), head="classifier"
    )
    folder = tmp_path / "release"
    assert names(folder) == [
        "bert_config.json",
        "bert_model.ckpt.data-00000-of-00001",
        "bert_model.ckpt.index",
        "bert_tf.json",
        "vocab.txt",
    ]
    facts = json.loads((folder / "bert_tf.json").read_text())
    assert facts["labels"] == ["a", "b"]
    assert facts["head"] == "classifier"
    assert (facts["do_lower_case"], facts["strip_accents"]) == (False, True)
    assert (folder / "vocab.txt").read_text().split() == list(VOCAB)
    ours, theirs = (
        checkpoints.Reader(prefix)
        for prefix in (str(folder / "bert_model.ckpt"), whole)
    )
    assert ours.shapes == theirs.shapes


def test_a_release_is_enough(exported, tmp_path):
    estimator, _, _ = exported
    fine_tuning.release(estimator, str(tmp_path), START)
    assert_equal(open_model(tmp_path), estimator)
