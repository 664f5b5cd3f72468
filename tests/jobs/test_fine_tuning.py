"""The shared steps of fine-tuning jobs, with a toy task."""

import dataclasses
import functools
import json
import os

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.config import BertConfig
from bert_tf.data.buckets import Padding
from bert_tf.errors import InputError
from bert_tf.jobs import fine_tuning, output_folder, trials
from bert_tf.jobs.fine_tuning import FineTuning
from bert_tf.jobs.settings import FineTuningOptions
from bert_tf.jobs.start import Start
from bert_tf.serving.served import ServedClassifier
from bert_tf.tasks.classification import ClassificationTask
from bert_tf.tasks.encoding import Encoding
from bert_tf.training import checkpoints, results, workers
from bert_tf.training.estimator import Estimator
from bert_tf.training.hooks import NonFiniteError
from bert_tf.training.settings import TrainingConfig
from tests.serving import small_served
from tests.training import toy_task

VOCAB = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
START = Start(BertConfig(vocab_size=5), VOCAB, False, True, None)
EXAMPLES = toy_task.examples(24)
HELD_OUT = toy_task.examples(7, seed=1)
STRATEGY = tf.distribute.get_strategy()
METRICS = ["eval_f1", "eval_loss", "loss", "examples"]


class Task(toy_task.ToyTask):
    head = "classifier"
    labels = ("a", "b")
    problem_type = None


class Killed(BaseException):
    """Stands for SIGKILL."""


def options(folder="out", **changes):
    """Returns the options of a small training."""
    return FineTuningOptions(
        **{
            "output_dir": str(folder),
            "num_train_epochs": 1.5,
            "train_batch_size": 6,
            "eval_batch_size": 4,
            "learning_rate": 0.05,
            "save_checkpoints_steps": 3,
            "keep_checkpoint_max": 2,
            "log_steps": 0,
            "jit_compile": "false",
            **changes,
        }
    ).with_fallbacks()


def make(folder, start=START, num_examples=24, **changes):
    """Prepares a job, whose default metric is the loss."""
    tuning = fine_tuning.prepare(
        options(folder, **changes),
        start,
        Task(dropout_rate=0.3),
        METRICS,
        num_examples,
    )
    return dataclasses.replace(tuning, metric="loss")


def evaluate(estimator):
    return estimator.evaluate(toy_task.evaluation_data(HELD_OUT))


def train(tuning, evaluate=evaluate):
    return tuning.train(
        lambda config: toy_task.training_data(EXAMPLES),
        evaluate,
        tokens_per_example=4.0,
    )


def open_model(folder, start=START):
    return make(folder, start, num_examples=None).open_model()


def weights(estimator):
    return {v.path: v.numpy() for v in estimator.model.weights}


def assert_equal(estimator, other):
    ours, theirs = weights(estimator), weights(other)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        np.testing.assert_array_equal(theirs[name], value, err_msg=name)


def names(folder):
    return sorted(os.listdir(folder))


# The plan of the trainings.


@pytest.mark.parametrize(
    ("examples", "batch", "epochs", "steps"),
    [
        (3668, 32, 3.0, 343),  # MRPC: the original's own checkpoint.
        (24, 6, 1.5, 6),
        (10, 32, 3.2, 1),
        (7, 2, 0.5, 1),
    ],
)
def test_the_number_of_steps_is_that_of_the_original(
    examples, batch, epochs, steps
):
    config = options(train_batch_size=batch, num_train_epochs=epochs)
    plan = fine_tuning.plan_trainings(config, TrainingConfig(), examples)
    [planned] = plan.values()
    assert planned.num_train_steps == steps
    assert planned.num_warmup_steps == steps // 10


def test_every_training_of_a_plan_is_checked():
    """The paper's grid has batches of 32 examples and trainings of 2 epochs."""

    def plan(num_examples, **changes):
        config = options(**changes)
        return fine_tuning.plan_trainings(
            config, TrainingConfig(), num_examples
        )

    with pytest.raises(InputError, match=r"size 31 .* than 10 examples"):
        plan(10, train_batch_size=31, num_train_epochs=3)
    with pytest.raises(InputError, match="must be more than 0 to train"):
        plan(10, num_train_epochs=0)
    with pytest.raises(InputError, match=r"size 32 .* 15 examples times 2.0"):
        plan(15, search="paper")
    with pytest.raises(InputError, match="random_seed"):
        plan(100, num_seeds=2, random_seed=2**31 - 1)
    assert len(plan(16, search="paper")) == 18


def test_layers_can_have_their_own_learning_rates(tmp_path):
    tuning = make(tmp_path, learning_rate=3e-5, warmup_proportion=0.35)
    [planned] = tuning.plan.values()
    assert (planned.learning_rate, planned.train_batch_size) == (3e-5, 6)
    assert planned.num_warmup_steps == 2
    assert planned.rate_multipliers == ()
    [planned] = make(tmp_path, layer_rate_decay=0.5).plan.values()
    factors = [factor for _, factor in planned.rate_multipliers]
    assert factors == [0.5**n for n in range(13, 0, -1)]


def test_the_metric_of_save_best(tmp_path):
    for name, metric in (
        ("f1", "eval_f1"),
        ("eval_f1", "eval_f1"),
        ("loss", "loss"),
        (None, None),
    ):
        assert make(tmp_path, save_best=name).save_best == metric
    with pytest.raises(InputError, match=r"of eval_f1, .*; got 'mcc'"):
        make(tmp_path, save_best="mcc")
    with pytest.raises(InputError, match="needs --save_best"):
        make(tmp_path, early_stopping_patience=2)


# One training.


def test_one_training_writes_to_the_output_folder(tmp_path):
    def fail(estimator):
        raise AssertionError("There is no evaluation by default.")

    estimator = train(make(tmp_path, log_steps=2), fail)
    assert estimator.step == 6
    found = [n for n in names(tmp_path) if "tfevents" not in n]
    assert len(found) < len(names(tmp_path))
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


def scripted(values):
    """Returns an evaluation whose loss at each step is given."""

    def evaluate(estimator):
        return {"loss": values[estimator.step], "global_step": estimator.step}

    return evaluate


def test_the_weights_of_the_best_evaluation_are_kept(tmp_path):
    values = scripted({1: 0.5, 2: 0.3, 3: 0.4, 4: 0.6, 5: 0.5, 6: 0.7})
    estimator = train(make(tmp_path, save_best="loss", eval_steps=1), values)
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
    assert train(make(tmp_path)).step == 6
    assert "best" not in names(tmp_path) or not names(tmp_path / "best")


def test_save_best_evaluates_once_per_epoch_by_default(tmp_path):
    steps = []

    def evaluate(estimator):
        steps.append(estimator.step)
        return {"loss": 1.0}

    train(make(tmp_path, save_best="loss"), evaluate)
    assert steps == [4, 6]


def test_a_training_that_stopped_early_does_not_continue(tmp_path):
    values = dict(enumerate([0, 0.5, 0.3, 0.4, 0.6, 0.1, 0.1]))
    tuning = make(
        tmp_path, save_best="loss", eval_steps=1, early_stopping_patience=2
    )
    assert train(tuning, scripted(values)).step == 2
    before = names(tmp_path)
    assert "model.ckpt-4.index" in before
    assert train(tuning, scripted(values)).step == 2
    assert names(tmp_path) == before


# Several trainings.


@pytest.mark.slow
def test_the_best_of_several_trainings_is_kept(tmp_path):
    estimator = train(make(tmp_path, num_seeds=2))
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
    # A single training in the same folder.
    estimator = train(make(tmp_path))
    assert output_folder.kept(str(tmp_path)) == str(tmp_path)
    assert_equal(open_model(tmp_path), estimator)


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
    calls = []

    def evaluate_or_die(estimator, killed_at=None):
        calls.append(estimator.step)
        if len(calls) == killed_at:
            raise Killed
        return evaluate(estimator)

    search = functools.partial(make, search="paper")
    with pytest.raises(Killed):
        train(search(tmp_path), functools.partial(evaluate_or_die, killed_at=3))
    calls.clear()
    estimator = train(search(tmp_path), evaluate_or_die)
    assert len(calls) == 2
    whole = train(search(tmp_path / "whole"))
    assert_equal(estimator, whole)
    assert summary(tmp_path) == summary(tmp_path / "whole")
    calls.clear()
    assert_equal(train(search(tmp_path), evaluate_or_die), whole)
    assert not calls


@pytest.mark.slow
def test_save_best_selects_among_trainings_that_do_not_diverge(tmp_path):
    """The first of three diverges. Of equal trainings, the first is kept."""
    calls = []

    def diverging(estimator):
        calls.append(estimator)
        if len(calls) == 1:
            raise NonFiniteError("step 3: loss nan")
        return evaluate(estimator)

    train(
        make(tmp_path, num_seeds=3, save_best="examples", eval_steps=6),
        diverging,
    )
    found = json.loads((tmp_path / "trials.json").read_text())
    assert found["metric"] == "examples"
    assert found["best"].endswith("seed12346")


# Models without training.


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A trained model, and checkpoints of it with and without its head."""
    folder = tmp_path_factory.mktemp("exported")
    estimator = train(make(folder / "run"))
    whole, headless = (str(folder / n / "x.ckpt") for n in ("a", "b"))
    estimator.export_weights(whole)
    table = checkpoints.Reader(whole)["bert/embeddings"]
    checkpoints.write(headless, {"bert/embeddings": table})
    return estimator, whole, headless


def test_models_that_can_be_opened(exported, tmp_path):
    estimator, whole, headless = exported
    start = functools.partial(dataclasses.replace, START)
    used = open_model(tmp_path / "new", start(init_checkpoint=whole))
    assert_equal(used, estimator)
    assert used.step == 0
    message = f"{headless} is not a fine-tuned model: it lacks head/"
    with pytest.raises(InputError, match=message):
        open_model(tmp_path / "new", start(init_checkpoint=headless))
    with pytest.raises(InputError, match="no fine-tuned model in --output_dir"):
        open_model(tmp_path)


def test_a_release_is_complete(exported, tmp_path):
    estimator, whole, _ = exported
    make(tmp_path, max_seq_length=9).release(estimator)
    folder = tmp_path / "release"
    assert names(folder) == [
        "bert_config.json",
        "bert_model.ckpt.data-00000-of-00001",
        "bert_model.ckpt.index",
        "bert_tf.json",
        "vocab.txt",
    ]
    facts = json.loads((folder / "bert_tf.json").read_text())
    assert facts == {
        "do_lower_case": False,
        "head": "classifier",
        "labels": ["a", "b"],
        "max_seq_length": 9,
        "strip_accents": True,
    }
    assert (folder / "vocab.txt").read_text().split() == list(VOCAB)
    ours, theirs = (
        checkpoints.Reader(prefix)
        for prefix in (str(folder / "bert_model.ckpt"), whole)
    )
    assert ours.shapes == theirs.shapes
    assert_equal(open_model(tmp_path), estimator)


# Exports.

LABELS = ("no", "yes")
ENCODING = Encoding(
    small_served.VOCAB, True, None, small_served.LENGTH, "single_label", LABELS
)
SERVE = functools.partial(
    ServedClassifier,
    encoding=ENCODING,
    labels=LABELS,
    problem="single_label",
    is_pair=False,
)


def make_classifier(strategy, folder):
    """Returns an estimator of a classifier with large random weights."""
    task = ClassificationTask(
        small_served.CONFIG,
        ENCODING.schema,
        "single_label",
        LABELS,
        ("accuracy",),
    )
    config = TrainingConfig(num_train_steps=1)
    estimator = Estimator(task, strategy, config, str(folder))
    small_served.random_weights(estimator.model)
    return estimator


@pytest.fixture(scope="module")
def estimator(tmp_path_factory):
    return make_classifier(STRATEGY, tmp_path_factory.mktemp("run"))


def tensors(task, model):
    variables = task.checkpoint_variables(model)
    return {name: variable.numpy() for name, variable in variables.items()}


@pytest.mark.slow
def test_a_model_of_two_devices_is_exported_for_one(tmp_path):
    estimator = make_classifier(toy_task.two_devices(), tmp_path / "run")
    before = tensors(estimator.task, estimator.model)
    fine_tuning.export_kept(
        estimator,
        SERVE,
        str(tmp_path / "export"),
        name="mood",
        metrics={"eval_accuracy": 0.5},
        source="start",
    )
    [version] = (tmp_path / "export").iterdir()
    exported = tf.saved_model.load(str(version))
    found = {name: v.numpy() for name, v in exported.weights.items()}
    np.testing.assert_equal(found, before)
    # The estimator's model is unchanged.
    np.testing.assert_equal(tensors(estimator.task, estimator.model), before)
    card = version / "assets.extra" / "model_card.json"
    card = json.loads(card.read_text(encoding="utf-8"))
    assert (card["name"], card["source"]) == ("mood", "start")
    assert card["metrics"] == {"eval_accuracy": 0.5}
    assert card["labels"] == [*LABELS]


def test_an_export_folder_that_is_a_file(estimator, tmp_path):
    """The file is left alone, and nothing else is written."""
    (tmp_path / "export").write_text("mine")
    for place in (tmp_path / "export", tmp_path / "export" / "inside"):
        with pytest.raises(InputError, match=f"{place}"):
            fine_tuning.export_kept(estimator, SERVE, str(place), name="mood")
    assert [path.name for path in tmp_path.iterdir()] == ["export"]
    assert (tmp_path / "export").read_text() == "mine"


@pytest.mark.parametrize(
    ("is_chief", "folder", "others", "said"),
    [
        pytest.param(True, "here", 1, 1, id="the chief writes"),
        pytest.param(False, "here", 1, 1, id="others do not"),
        pytest.param(True, "full", 1, 0, id="the chief reports its failure"),
        pytest.param(False, "full", 0, 1, id="others fail with the chief"),
    ],
)
def test_exports_of_several_workers(
    estimator, monkeypatch, is_chief, folder, others, said
):
    """`others` is 0 if another worker fails, and `said` if this one does."""
    written, heard = {}, []

    def agree(numbers):
        heard.append(*numbers)
        return [min(*numbers, others)]

    def export(served, export_dir, **unused):
        if export_dir == "full":
            raise InputError("a larger disk is needed")
        written[export_dir] = served.model

    monkeypatch.setattr(workers, "agreement", lambda strategy: agree)
    monkeypatch.setattr(workers, "is_chief", lambda strategy: is_chief)
    monkeypatch.setattr(fine_tuning, "export", export)
    export = functools.partial(
        fine_tuning.export_kept, estimator, SERVE, folder, name="mood"
    )
    if folder == "full":
        message = "larger disk" if is_chief else "export"
        with pytest.raises(InputError, match=message):
            export()
    else:
        export()
    assert heard == [said]
    if is_chief and folder == "here":
        task, model = estimator.task, estimator.model
        assert written["here"] is not model
        np.testing.assert_equal(
            tensors(task, written["here"]), tensors(task, model)
        )
    else:
        assert not written


def job_of(estimator, **changes):
    """Returns a finished job with this model."""
    return FineTuning(
        options(**changes),
        START,
        estimator.task,
        STRATEGY,
        TrainingConfig(),
        {},
        None,
        "loss",
        Padding(),
    )


def test_scores_belong_to_the_weights(estimator, tmp_path):
    """The step is not compared: another seed has other weights at it."""
    folder = str(tmp_path)
    assert fine_tuning.scores_of(folder, estimator) is None
    scores = {"eval_f1": 0.5, "loss": None, "global_step": 0}
    path = tmp_path / "eval_results.json"
    path.write_text(json.dumps(scores), encoding="utf-8")
    assert fine_tuning.scores_of(folder, estimator) is None
    job_of(estimator, output_dir=folder).write_metrics(
        estimator, scores | {"loss": np.nan}
    )
    assert fine_tuning.scores_of(folder, estimator) == scores
    bias = estimator.task.checkpoint_variables(estimator.model)["output_bias"]
    before = bias.numpy()
    bias.assign(before * (1 + 1e-6))
    assert fine_tuning.scores_of(folder, estimator) is None
    bias.assign(before)
    assert fine_tuning.scores_of(folder, estimator) == scores
    path.write_text("{")
    with pytest.raises(InputError, match=r"eval_results\.json"):
        fine_tuning.scores_of(folder, estimator)


def test_an_export_has_the_scores_and_the_source(
    estimator, tmp_path, monkeypatch
):
    requests = []

    def export_kept(*args, **kwargs):
        requests.append((args, kwargs))
        return "new version"

    monkeypatch.setattr(fine_tuning, "export_kept", export_kept)
    folder = str(tmp_path)
    record = {"facts": {}, "settings": {"init_checkpoint": "hf://google/bert"}}
    (tmp_path / "fine_tuning.json").write_text(json.dumps(record))
    job = job_of(estimator, output_dir=folder, init_checkpoint="mine")
    assert job.finish(estimator, {}, "mood", print).export is None
    assert not requests
    job.write_metrics(estimator, {"eval_f1": 0.5, "global_step": 3})
    job = job_of(
        estimator, output_dir=folder, init_checkpoint="mine", do_export=True
    )
    result = job.finish(estimator, {"eval_f1": 0.5}, "mood", print)
    assert result == fine_tuning.FineTuningResult(
        {"eval_f1": 0.5}, None, "new version"
    )
    scores = {"eval_f1": 0.5, "global_step": 3}
    assert requests.pop() == (
        (estimator, print, str(tmp_path / "export")),
        {"name": "mood", "metrics": scores, "source": "mine"},
    )
    # With a model in the folder, the record takes precedence.
    (tmp_path / "model.ckpt-3.index").touch()
    (tmp_path / "eval_results.json").unlink()
    job.finish(estimator, {}, "mood", print)
    [(_, named)] = requests
    assert (named["metrics"], named["source"]) == (None, "hf://google/bert")
