"""Exports of the model that a run keeps."""

import functools
import json
import types

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.jobs import fine_tuning
from bert_tf.serving.classifiers import ServedClassifier
from bert_tf.tasks.classification import ClassificationTask
from bert_tf.tasks.encoding import Encoding
from bert_tf.training import workers
from bert_tf.training.estimator import Estimator
from bert_tf.training.settings import TrainingConfig
from tests.serving.small_served import CONFIG, LENGTH, VOCAB, random_weights
from tests.training import toy_task

LABELS = ("no", "yes")
ENCODING = Encoding(VOCAB, True, None, LENGTH, "single_label", LABELS)
SERVE = functools.partial(
    ServedClassifier,
    encoding=ENCODING,
    labels=LABELS,
    problem="single_label",
    is_pair=False,
)


def make_estimator(strategy, folder):
    """Returns an estimator of a classifier with large random weights."""
    task = ClassificationTask(
        CONFIG, ENCODING.schema, "single_label", LABELS, ("accuracy",)
    )
    config = TrainingConfig(num_train_steps=1)
    estimator = Estimator(task, strategy, config, str(folder))
    random_weights(estimator.model)
    return estimator


@pytest.fixture(scope="module")
def estimator(tmp_path_factory):
    strategy = tf.distribute.get_strategy()
    return make_estimator(strategy, tmp_path_factory.mktemp("run"))


def weights_of(task, model):
    variables = task.checkpoint_variables(model)
    return {name: variable.numpy() for name, variable in variables.items()}


def assert_equal(weights, others):
    assert weights.keys() == others.keys()
    for name, value in weights.items():
        np.testing.assert_array_equal(others[name], value, err_msg=name)


@pytest.mark.slow
def test_a_model_of_two_devices_is_exported_for_one(tmp_path):
    estimator = make_estimator(toy_task.two_devices(), tmp_path / "run")
    before = weights_of(estimator.task, estimator.model)
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
    weights = {name: v.numpy() for name, v in exported.weights.items()}
    assert_equal(weights, before)
    # The estimator's model is unchanged.
    assert_equal(weights_of(estimator.task, estimator.model), before)
    card = version / "assets.extra" / "model_card.json"
    card = json.loads(card.read_text(encoding="utf-8"))
    assert (card["name"], card["source"]) == ("mood", "start")
    assert card["metrics"] == {"eval_accuracy": 0.5}
    assert card["labels"] == [*LABELS]


def test_an_export_folder_that_is_a_file(estimator, tmp_path):
    """The file is left alone, and nothing else is written."""
    (tmp_path / "export").write_text("mine")
    for place in (tmp_path / "export", tmp_path / "export" / "inside"):
        with pytest.raises(InputError, match=f"export to {place}: "):
            fine_tuning.export_kept(estimator, SERVE, str(place), name="mood")
    assert [path.name for path in tmp_path.iterdir()] == ["export"]
    assert (tmp_path / "export").read_text() == "mine"


# Exports with several processes.


@pytest.fixture
def process(monkeypatch):
    """Simulates several processes; `others` is 0 if another one fails."""

    def process(is_chief, others=1):
        said = []

        def agree(numbers):
            said.append(*numbers)
            return [min(*numbers, others)]

        monkeypatch.setattr(workers, "agreement", lambda strategy: agree)
        monkeypatch.setattr(workers, "is_chief", lambda strategy: is_chief)
        return said

    return process


@pytest.fixture
def written(monkeypatch):
    """The exported models by folder; nothing is written."""
    models = {}

    def export(served, export_dir, **unused):
        if export_dir == "full":
            raise InputError("expected a larger disk")
        models[export_dir] = served.model

    monkeypatch.setattr(fine_tuning, "export", export)
    return models


def test_the_chief_writes(process, written, estimator):
    said = process(is_chief=True)
    fine_tuning.export_kept(estimator, SERVE, "here", name="mood")
    assert said == [1]
    task, model = estimator.task, estimator.model
    assert written["here"] is not model
    assert_equal(weights_of(task, written["here"]), weights_of(task, model))


def test_other_workers_write_nothing(process, written, estimator):
    said = process(is_chief=False)
    fine_tuning.export_kept(estimator, SERVE, "here", name="mood")
    assert (written, said) == ({}, [1])


def test_the_chief_reports_its_failure(process, written, estimator):
    said = process(is_chief=True)
    with pytest.raises(InputError, match="a larger disk"):
        fine_tuning.export_kept(estimator, SERVE, "full", name="mood")
    assert said == [0]


def test_other_workers_fail_with_the_chief(process, written, estimator):
    process(is_chief=False, others=0)
    with pytest.raises(InputError, match="expected every worker to export"):
        fine_tuning.export_kept(estimator, SERVE, "full", name="mood")
    assert written == {}


# Scores in the model card.


def test_scores_belong_to_the_weights(estimator, tmp_path):
    """The step is not compared: another seed has other weights there."""
    scores = {"eval_f1": 0.5, "loss": None, "global_step": 0}
    fine_tuning.write_metrics(
        estimator, str(tmp_path), scores | {"loss": np.nan}
    )
    assert fine_tuning.scores_of(str(tmp_path), estimator) == scores
    bias = estimator.task.checkpoint_variables(estimator.model)["output_bias"]
    before = bias.numpy()
    bias.assign(before * (1 + 1e-6))
    assert fine_tuning.scores_of(str(tmp_path), estimator) is None
    bias.assign(before)
    assert fine_tuning.scores_of(str(tmp_path), estimator) == scores


def test_scores_of_unknown_weights_are_ignored(estimator, tmp_path):
    assert fine_tuning.scores_of(str(tmp_path), estimator) is None
    text = '{"eval_f1": 0.5, "global_step": 0}'
    (tmp_path / "eval_results.json").write_text(text, encoding="utf-8")
    assert fine_tuning.scores_of(str(tmp_path), estimator) is None


def test_unreadable_scores_are_reported(estimator, tmp_path):
    (tmp_path / "eval_results.json").write_text("{")
    with pytest.raises(InputError, match=r"Expected JSON.*eval_results\.json"):
        fine_tuning.scores_of(str(tmp_path), estimator)


# Exports at the end of a run.


@pytest.fixture
def requested(monkeypatch):
    """The arguments of each requested export; nothing is written."""
    requests = []

    def export_kept(*args, **kwargs):
        requests.append((args, kwargs))
        return "new version"

    monkeypatch.setattr(fine_tuning, "export_kept", export_kept)
    return requests


def with_checksum(checksum):
    """Returns as much of an estimator as is needed here."""
    return types.SimpleNamespace(weights_checksum=lambda: checksum)


def test_nothing_is_exported_by_default(given, requested):
    config = given("--output_dir=out", "--do_train")
    kept = with_checksum("0123")
    assert fine_tuning.export_fine_tuned(config, kept, "mood", print) is None
    assert not requested


def test_an_export_has_the_scores_and_the_source(given, requested, tmp_path):
    """The scores only if they belong to the weights."""
    record = {"facts": {}, "settings": {"init_checkpoint": "hf://google/bert"}}
    (tmp_path / "fine_tuning.json").write_text(json.dumps(record))
    scores = {"eval_f1": 0.5, "global_step": 3}
    facts = {"train_seconds": 1.5, "weights_sha256": "0123"}
    (tmp_path / "eval_results.json").write_text(json.dumps(scores | facts))
    config = given(
        f"--output_dir={tmp_path}", "--do_export", "--init_checkpoint=mine"
    )
    kept = with_checksum("0123")
    written = fine_tuning.export_fine_tuned(config, kept, "mood", print)
    assert written == "new version"
    assert requested[0] == (
        (kept, print, str(tmp_path / "export")),
        {"name": "mood", "metrics": scores, "source": "mine"},
    )
    # With a model in the folder, the record takes precedence.
    (tmp_path / "model.ckpt-3.index").touch()
    fine_tuning.export_fine_tuned(config, with_checksum("4567"), "mood", print)
    _, named = requested[1]
    assert (named["metrics"], named["source"]) == (None, "hf://google/bert")
