"""The shared steps of fine-tuning jobs, with a toy task."""

import dataclasses
import json
import os
import types

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.checkpoints import tf1 as checkpoints
from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.jobs import fine_tuning, output_folder, trainings
from bert_tf.jobs.settings import FineTuningOptions
from bert_tf.jobs.start import Start
from bert_tf.training import results, step, workers
from bert_tf.training.estimator import Estimator
from bert_tf.training.hooks import NonFiniteError
from bert_tf.training.results import Metric
from bert_tf.training.settings import TrainingConfig
from tests.training import toy_task

pytestmark = pytest.mark.usefixtures("eagerly")

VOCAB = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
START = Start(
    config=BertConfig(vocab_size=5),
    vocab=VOCAB,
    do_lower_case=False,
    strip_accents=True,
)
EXAMPLES = toy_task.examples(24)
HELD_OUT = toy_task.examples(7, seed=1)
METRICS = ["eval_f1", "eval_loss", "loss", "examples"]


class Task(toy_task.ToyTask):
    head = "classifier"
    labels = ("a", "b")
    problem_type = None

    def facts(self):
        return {"labels": self.labels, "head": self.head}


def options(folder="out", **changes):
    values = {
        "num_train_epochs": 1.5,
        "train_batch_size": 6,
        "eval_batch_size": 4,
        "learning_rate": 0.05,
        "save_checkpoints_steps": 3,
        "log_steps": 0,
        "jit_compile": "false",
        **changes,
    }
    return FineTuningOptions(output_dir=str(folder), **values).with_fallbacks()


def make(folder, start=START, num_examples=24, **changes):
    """Prepares a job, whose default metric is the loss."""
    task, config = Task(dropout_rate=0.3), options(folder, **changes)
    task.lora_rank, task.lora_alpha = config.lora_rank, config.lora_alpha
    tuning = trainings.prepare(config, start, task, METRICS, num_examples)
    return dataclasses.replace(tuning, metric=Metric("loss", True))


def evaluate(estimator):
    return estimator.evaluate(toy_task.evaluation_data(HELD_OUT))


def train(tuning, evaluate=evaluate):
    return tuning.train(
        *(lambda config: toy_task.training_data(EXAMPLES), evaluate, 4.0)
    )


def open_model(folder, start=START):
    return make(folder, start, num_examples=None).open_model()


def assert_equal(estimator, other):
    ours, theirs = (
        {v.path: v.numpy() for v in e.model.weights} for e in (estimator, other)
    )
    np.testing.assert_equal(ours, theirs)


def names(folder):
    return sorted(os.listdir(folder))


def plan(num_examples, **changes):
    config = options(**changes)
    return trainings.plan_trainings(config, TrainingConfig(), num_examples)


@pytest.mark.parametrize(
    ("examples", "batch", "epochs", "steps"),
    [
        (3668, 32, 3.0, 343),  # MRPC: the original's own checkpoint.
        (24, 6, 1.5, 6),
        (10, 32, 3.2, 1),
    ],
)
def test_the_number_of_steps_is_that_of_the_original(
    examples, batch, epochs, steps
):
    changes = {"train_batch_size": batch, "num_train_epochs": epochs}
    [planned] = plan(examples, **changes).values()
    assert planned.num_train_steps == steps
    assert planned.num_warmup_steps == steps // 10


def test_every_training_of_a_plan_is_checked():
    """The paper's grid has batches of 32 examples and trainings of 2 epochs."""
    with pytest.raises(InputError, match=r"size 31 .* than 10 examples"):
        plan(10, train_batch_size=31, num_train_epochs=3)
    with pytest.raises(InputError, match=r"size 32 .* 15 examples times 2.0"):
        plan(15, search="paper")
    with pytest.raises(InputError, match="random_seed"):
        plan(100, num_seeds=2, random_seed=2**31 - 1)
    assert len(plan(16, search="paper")) == 18


def test_layers_can_have_their_own_learning_rates(tmp_path):
    [planned] = make(tmp_path).plan.values()
    assert planned.rate_multipliers == ()
    [planned] = make(tmp_path, layer_rate_decay=0.5).plan.values()
    factors = [factor for _, factor in planned.rate_multipliers]
    assert factors == [0.5**n for n in range(13, 0, -1)]


@pytest.mark.parametrize(
    ("name", "metric"), [("f1", "eval_f1"), ("loss", "loss"), (None, None)]
)
def test_the_metric_of_save_best(tmp_path, name, metric):
    assert make(tmp_path, save_best=name).save_best == metric


@pytest.mark.graph
def test_the_mean_length_decides_what_is_compiled(tmp_path, monkeypatch):
    used, compiling = [], step.compiling

    def watched(what, num_steps, usual_length):
        used.append((num_steps, usual_length))
        return compiling(what, num_steps, usual_length)

    monkeypatch.setattr(step, "compiling", watched)
    train(make(tmp_path))
    assert used == [(6, 4)]


def scripted(*losses):
    """Returns an evaluation with the given loss after each step."""

    def evaluate(estimator):
        step = estimator.step
        return {"loss": losses[step - 1], "global_step": step}

    return evaluate


def test_the_weights_of_the_best_evaluation_are_kept(tmp_path):
    """Training stops after two evaluations that are not better."""
    stops = make(
        tmp_path, save_best="loss", eval_steps=1, early_stopping_patience=2
    )
    losses = scripted(0.5, 0.3, 0.4, 0.6, 0.1, 0.1)
    estimator = train(stops, losses)
    assert estimator.step == 2
    found = results.find_best(str(tmp_path / "best"))
    assert (found.step, found.value) == (2, 0.3)
    kept = checkpoints.Reader(results.best_prefix(str(tmp_path / "best")))
    last = checkpoints.Reader(str(tmp_path / "model.ckpt-4"))
    assert (kept["head/kernel"] != last["head/kernel"]).any()
    opened = open_model(tmp_path)
    assert_equal(opened, estimator)
    assert opened.step == 2
    # It does not continue.
    assert train(stops, losses).step == 2
    assert "model.ckpt-5.index" not in names(tmp_path)
    # Without --save_best the last weights are kept, and nothing is evaluated.
    estimator = train(make(tmp_path, log_steps=2), scripted())
    assert estimator.step == 6
    assert "best" not in names(tmp_path) or not names(tmp_path / "best")
    assert [name for name in names(tmp_path) if "tfevents" in name]
    assert_equal(open_model(tmp_path), estimator)


def test_save_best_evaluates_once_per_epoch_by_default(tmp_path):
    steps = []

    def evaluate(estimator):
        steps.append(estimator.step)
        return {"loss": 1.0}

    train(make(tmp_path, save_best="loss"), evaluate)
    assert steps == [4, 6]


def test_the_best_of_several_trainings_is_kept(tmp_path):
    """The first of three diverges. Each keeps its best evaluation."""
    calls = []

    def worsening(estimator):
        calls.append(estimator)
        if len(calls) == 1:
            raise NonFiniteError("step 3: loss nan")
        metrics = evaluate(estimator)
        return metrics | {"loss": metrics["loss"] + estimator.step}

    flags = {"save_best": "loss", "eval_steps": 2}
    estimator = train(make(tmp_path, num_seeds=3, **flags), worsening)
    assert estimator.step == 2
    found = {
        trial: json.loads(
            (tmp_path / "trials" / trial / "trial.json").read_text()
        )
        for trial in names(tmp_path / "trials")
    }
    first, *others = found
    assert found[first]["failure"] == "step 3: loss nan"
    losses = {name: found[name]["metrics"]["loss"] for name in others}
    assert len({*losses.values()}) == 2
    chosen = min(losses, key=losses.get)
    assert worsening(estimator)["loss"] == losses[chosen]
    assert estimator.train_seconds == found[chosen]["metrics"]["train_seconds"]
    for name in found:
        has_weights = "checkpoint" in names(tmp_path / "trials" / name)
        assert has_weights == (name == chosen)
    kept = output_folder.best_training(str(tmp_path))
    assert kept == str(tmp_path / "trials" / chosen)
    assert_equal(open_model(tmp_path), estimator)
    # A single training in the same folder.
    estimator = train(make(tmp_path))
    assert output_folder.best_training(str(tmp_path)) == str(tmp_path)
    assert_equal(open_model(tmp_path), estimator)


@pytest.mark.parametrize(
    ("flags", "is_required"),
    [({}, False), ({"save_best": "loss"}, True), ({"num_seeds": 2}, True)],
)
def test_weights_that_all_workers_read_need_a_shared_folder(
    tmp_path, monkeypatch, flags, is_required
):
    asked = []
    monkeypatch.setattr(trainings, "require_shared", lambda *x: asked.append(x))
    train(make(tmp_path, num_train_epochs=0.25, **flags))
    assert [folder for _, folder in asked] == [str(tmp_path)] * is_required


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("do_train", "Train.txt: none of the texts can be used for training"),
        ("do_export", "Models of letters cannot be exported."),
    ],
)
def test_wrong_inputs_are_errors(tmp_path, flag, message):
    task, config = Task(), options(tmp_path / "out", **{flag: True})
    task.encoding = types.SimpleNamespace(unit="texts")
    splits = [fine_tuning.Split("train", [], ["Train.txt"], num_rows=0)]
    with pytest.raises(InputError, match=message):
        fine_tuning.fine_tune(config, START, task, splits, name="letters")


def test_models_that_can_be_opened(tmp_path):
    """Any checkpoint with a head, and no checkpoint without one."""
    estimator = train(make(tmp_path / "run"))
    make(tmp_path, max_seq_length=9).release(estimator)
    facts = json.loads((tmp_path / "release/bert_tf.json").read_text())
    assert facts == {
        "do_lower_case": False,
        "head": "classifier",
        "labels": ["a", "b"],
        "max_seq_length": 9,
        "strip_accents": True,
    }

    def opened(path):
        weights = checkpoints.open_checkpoint(path)
        start = dataclasses.replace(
            START, path=path, weights=weights, init_checkpoint=path
        )
        return open_model(tmp_path / "new", start)

    whole = str(tmp_path / "release" / "bert_model.ckpt")
    used = opened(whole)
    assert_equal(used, estimator)
    assert used.step == 0
    headless = str(tmp_path / "headless.ckpt")
    table = checkpoints.Reader(whole)["bert/embeddings"]
    checkpoints.write(headless, {"bert/embeddings": table})
    message = f"{headless} is not a fine-tuned model: it lacks head/"
    with pytest.raises(InputError, match=message):
        opened(headless)
    with pytest.raises(InputError, match="no fine-tuned model in `output_dir="):
        open_model(tmp_path / "new")


@pytest.mark.parametrize("is_chief", [True, False])
def test_the_chief_exports_a_copy_for_one_device(
    tmp_path, monkeypatch, is_chief
):
    exported = []

    def export(*arguments, **facts):
        exported.append((*arguments, facts))
        return "new version"

    task, config = toy_task.ToyTask(), TrainingConfig(num_train_steps=1)
    estimator = Estimator(task, toy_task.two_devices(), config, str(tmp_path))
    monkeypatch.setattr(workers, "is_chief", lambda strategy: is_chief)
    monkeypatch.setattr(trainings, "export", export)
    facts = {"name": "mood", "metrics": {"eval_f1": 0.5}, "source": "start"}
    arguments = (estimator, lambda model: model, "export")
    found = trainings.export_kept(*arguments, **facts)
    assert found == ("new version" if is_chief else None)
    assert [others for _, *others in exported] == [["export", facts]] * is_chief
    for model, *_ in exported:
        value = model.weights[0].value
        assert not isinstance(value, tf.distribute.DistributedValues)
        assert_equal(types.SimpleNamespace(model=model), estimator)


def test_an_export_has_the_scores_and_the_source_of_its_weights(
    tmp_path, monkeypatch
):
    """The step is not compared: another seed has other weights at it."""
    monkeypatch.setattr(fine_tuning, "export_kept", lambda *_, **facts: facts)
    config = options(tmp_path, init_checkpoint="mine", do_export=True)
    job = make(tmp_path, num_examples=None)
    estimator = Estimator(job.task, job.strategy, job.training, str(tmp_path))
    scores = {"eval_f1": 0.5, "loss": None, "global_step": 3}

    def facts_of_export():
        facts = fine_tuning.export_trained(config, estimator, "mood", print)
        return facts["metrics"], facts["source"]

    assert facts_of_export() == (None, "mine")
    fine_tuning.write_metrics(
        str(tmp_path), estimator, scores | {"loss": np.nan}
    )
    assert facts_of_export() == (scores, "mine")
    # With a model in the folder, the record takes precedence.
    record = {"facts": {}, "settings": {"init_checkpoint": "hf://google/bert"}}
    (tmp_path / "fine_tuning.json").write_text(json.dumps(record))
    (tmp_path / "model.ckpt-3.index").touch()
    assert facts_of_export() == (scores, "hf://google/bert")
    bias = estimator.task.checkpoint_variables(estimator.model)["head/bias"]
    bias.assign(bias.numpy() + 1e-6)
    assert facts_of_export() == (None, "hf://google/bert")
