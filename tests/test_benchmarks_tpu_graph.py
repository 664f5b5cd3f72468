"""TPUStrategy's own graphs, run on CPUs, do what one device does."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_tf.training.estimator import Estimator
from bert_tf.training.settings import TrainingConfig
from tests.training import toy_task

REPLICAS, STEPS = 2, 3
EXAMPLES = toy_task.examples(31)
SETTINGS = {
    "train_batch_size": 12,
    "eval_batch_size": 12,
    "learning_rate": 0.01,
    "num_train_steps": STEPS,
    "num_warmup_steps": 1,
    "max_grad_norm": 0.1,
    "jit_compile": False,
}


@pytest.fixture(scope="module")
def tpu_graph(benchmarks):
    return benchmarks("tpu_graph")


@pytest.fixture
def chips(tpu_graph):
    return tpu_graph.traceable_strategy(REPLICAS)


def make(folder, strategy=None, task=None, **settings):
    return Estimator(
        task or toy_task.ToyTask(),
        strategy or tf.distribute.get_strategy(),
        TrainingConfig(**{**SETTINGS, **settings}),
        str(folder),
    )


def on_cpus(tpu_graph, strategy, replica_step, batches):
    run, _ = tpu_graph.replica_function(
        strategy, replica_step, batches.element_spec
    )
    run = tf.function(run, autograph=False)
    return lambda batch: run(*tf.nest.flatten(batch, expand_composites=True))


def copies(variable) -> list[np.ndarray]:
    """Returns each chip's copy of a variable."""
    return [value.numpy() for value in variable.value.values]


# Mirrored devices do the same in default tests of tests/training.
@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"adam_bias_correction": True},
        {"gradient_accumulation_steps": 3, "optimizer": "lamb"},
    ],
)
def test_two_chips_train_as_one_device(tpu_graph, chips, tmp_path, settings):
    one, two = make(tmp_path, **settings), make(tmp_path, chips, **settings)
    data = toy_task.training_data(EXAMPLES)
    expected = one.training_step()
    records = expected.run(iter(one.training_batches(data)), tf.constant(STEPS))

    batches = two.training_batches(data)
    step = two.training_step()
    run = on_cpus(tpu_graph, chips, step.replica_step, batches)
    rows = [run(batch) for batch, _ in zip(batches, range(STEPS), strict=False)]
    columns = np.stack(rows, axis=1)
    np.testing.assert_allclose(columns, [*records.values()], rtol=1e-5)
    for variable, other in zip(
        (*one.model.weights, *expected.optimizer.variables),
        (*two.model.weights, *step.optimizer.variables),
        strict=True,
    ):
        for copy in copies(other):
            assert_close(copy, variable.numpy(), 1e-4, variable.path)
    assert expected.optimizer.iterations.numpy() == STEPS


def assert_close(found, expected, rtol, name):
    np.testing.assert_allclose(found, expected, rtol, 1e-7, err_msg=name)


class Endless(toy_task.ToyTask):
    """Some of its predictions are infinite or NaN."""

    def predictions(self, features, outputs):
        found = super().predictions(features, outputs)
        weights = features["weight"]
        found["infinite"] = tf.where(weights > 1, -np.inf, weights)
        return {**found, "nan": tf.where(weights > 1, np.nan, weights)}


@pytest.mark.slow
def test_two_chips_predict_as_one_device(tpu_graph, chips, tmp_path):
    one = make(tmp_path / "one", task=Endless())
    two = make(tmp_path / "two", chips, task=Endless())
    data = toy_task.evaluation_data(EXAMPLES)
    batches = two.evaluation_batches(data, SETTINGS["eval_batch_size"])
    run = on_cpus(tpu_graph, chips, two.prediction_step, batches)
    found = [run(batch) for batch in batches]
    expected = one.predict(data)
    index = np.concatenate([rows["example_index"] for rows in found])
    assert sorted(index[index >= 0]) == list(range(31))
    for name, values in expected.items():
        rows = np.concatenate([batch[name] for batch in found])
        kept = index >= 0
        assert_close(rows[kept], values[index[kept]], 1e-5, name)
    assert np.isneginf(expected["infinite"]).any()


def test_the_loop_of_training_can_be_traced(chips, tmp_path):
    """As far as TensorFlow goes without a TPU."""
    estimator = make(tmp_path, chips)
    batches = estimator.training_batches(toy_task.training_data(EXAMPLES))
    run = estimator.training_step().run.get_concrete_function(
        iter(batches), tf.constant(2)
    )
    assert run.structured_outputs["loss"].shape.rank == 1
    kinds = {
        node.op
        for function in run.graph.as_graph_def().library.function
        for node in function.node_def
    }
    assert {"IteratorGetNext", "TPUReplicatedOutput"} <= kinds
    # All chips wait for each other in these: sums are all that is needed.
    assert not {"AllToAll", "CollectivePermute"} & kinds


def test_variables_of_chips_are_saved_and_read(chips, tmp_path):
    one = make(tmp_path / "one")
    one.export_weights(str(tmp_path / "weights"))
    keras.utils.set_random_seed(7)
    two = make(tmp_path / "two", chips, random_seed=3)
    kernel = two.model.head.kernel
    assert not np.array_equal(kernel.numpy(), one.model.head.kernel.numpy())
    two.load_weights(str(tmp_path / "weights"))
    two.export_weights(str(tmp_path / "again"))
    for copy in copies(kernel):
        np.testing.assert_array_equal(copy, one.model.head.kernel.numpy())
    three = make(tmp_path / "three", random_seed=3)
    three.load_weights(str(tmp_path / "again"))
    np.testing.assert_array_equal(
        three.model.head.kernel.numpy(), kernel.numpy()
    )
