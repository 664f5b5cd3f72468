"""From the model that a run has kept to a version for the server."""

import functools
import json

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.data.features import Encoding
from bert_tf.errors import InputError
from bert_tf.fine_tuning import exports, runs
from bert_tf.serving.classifiers import ServedClassifier
from bert_tf.tasks.classification import ClassificationTask
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
    """One with a classifier whose weights are random and large."""
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
def test_what_two_devices_trained_is_exported_for_one(tmp_path):
    estimator = make_estimator(toy_task.two_devices(), tmp_path / "run")
    before = weights_of(estimator.task, estimator.model)
    exports.export_kept(
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
    # Nor has the other changed.
    assert_equal(weights_of(estimator.task, estimator.model), before)
    card = version / "assets.extra" / "model_card.json"
    card = json.loads(card.read_text(encoding="utf-8"))
    assert (card["name"], card["source"]) == ("mood", "start")
    assert card["metrics"] == {"eval_accuracy": 0.5}
    assert card["labels"] == [*LABELS]


def test_a_place_that_is_none(estimator, tmp_path):
    """A file is there; it stays, and nothing comes beside it."""
    (tmp_path / "export").write_text("mine")
    for place in (tmp_path / "export", tmp_path / "export" / "inside"):
        with pytest.raises(InputError, match=f"export to {place}: "):
            exports.export_kept(estimator, SERVE, str(place), name="mood")
    assert [path.name for path in tmp_path.iterdir()] == ["export"]
    assert (tmp_path / "export").read_text() == "mine"


# Several processes: what one of them does and says to the others.


@pytest.fixture
def process(monkeypatch):
    """Makes this one of several processes, of which another may fail."""

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
    """What would be written, by the name of its folder; nothing is."""
    models = {}

    def export(served, export_dir, **unused):
        if export_dir == "full":
            raise InputError("expected a larger disk")
        models[export_dir] = served.model

    monkeypatch.setattr(exports, "export", export)
    return models


def test_the_chief_writes(process, written, estimator):
    said = process(is_chief=True)
    exports.export_kept(estimator, SERVE, "here", name="mood")
    assert said == [1]
    task, model = estimator.task, estimator.model
    assert written["here"] is not model
    assert_equal(weights_of(task, written["here"]), weights_of(task, model))


def test_the_others_wait(process, written, estimator):
    said = process(is_chief=False)
    exports.export_kept(estimator, SERVE, "here", name="mood")
    assert (written, said) == ({}, [1])


def test_the_chief_tells_that_it_failed(process, written, estimator):
    said = process(is_chief=True)
    with pytest.raises(InputError, match="a larger disk"):
        exports.export_kept(estimator, SERVE, "full", name="mood")
    assert said == [0]


def test_the_others_end_with_the_chief(process, written, estimator):
    process(is_chief=False, others=0)
    with pytest.raises(InputError, match="expected every worker to export"):
        exports.export_kept(estimator, SERVE, "full", name="mood")
    assert written == {}


# The scores of the card.


def test_scores_are_those_of_the_weights(estimator, tmp_path):
    """A later training of as many steps, with other seeds, has none."""
    scores = {"eval_f1": 0.5, "loss": None, "global_step": 0}
    runs.write_metrics(estimator, str(tmp_path), scores | {"loss": np.nan})
    assert exports.scores_of(str(tmp_path), estimator) == scores
    bias = estimator.task.checkpoint_variables(estimator.model)["output_bias"]
    before = bias.numpy()
    bias.assign(before * (1 + 1e-6))
    assert exports.scores_of(str(tmp_path), estimator) is None
    bias.assign(before)
    assert exports.scores_of(str(tmp_path), estimator) == scores


def test_scores_of_who_knows_what(estimator, tmp_path):
    assert exports.scores_of(str(tmp_path), estimator) is None
    text = '{"eval_f1": 0.5, "global_step": 0}'
    (tmp_path / "eval_results.json").write_text(text, encoding="utf-8")
    assert exports.scores_of(str(tmp_path), estimator) is None


def test_scores_that_cannot_be_read(estimator, tmp_path):
    (tmp_path / "eval_results.json").write_text("{")
    with pytest.raises(InputError, match=r"Expected JSON.*eval_results\.json"):
        exports.scores_of(str(tmp_path), estimator)
