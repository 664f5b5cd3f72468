"""The training loop resumes exactly, counts exactly and stops when asked."""

import gc
import os
import shutil
import signal
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_tf.checkpoints import tf1 as checkpoints
from bert_tf.errors import InputError
from bert_tf.training import step, workers
from bert_tf.training.estimator import Estimator, in_order
from bert_tf.training.hooks import Evaluation, Hook, NonFiniteError
from bert_tf.training.settings import TrainingConfig
from tests.training import toy_task

pytestmark = pytest.mark.usefixtures("eager_fixtures", "eagerly")

EXAMPLES = toy_task.examples(31)
SETTINGS = {
    "train_batch_size": 12,
    "eval_batch_size": 4,
    "learning_rate": 0.01,
    "num_train_steps": 9,
    "num_warmup_steps": 2,
    "save_checkpoints_steps": 4,
    "jit_compile": False,
}


def make(folder, replicas=0, task=None, initial=None, **settings):
    """Returns an Estimator; `replicas` as in test_step.py."""
    strategy = tf.distribute.get_strategy()
    if replicas:
        strategy = toy_task.mirrored(replicas)
    return Estimator(
        task or toy_task.ToyTask(dropout_rate=0.3),
        strategy,
        TrainingConfig(**{**SETTINGS, **settings}),
        str(folder),
        initial and (lambda: checkpoints.open_checkpoint(str(initial))),
    )


def train(folder, *hooks, **options):
    estimator = make(folder, **options)
    estimator.train(toy_task.training_data(EXAMPLES), hooks)
    return estimator


def read(folder, step=9):
    reader = checkpoints.Reader(str(folder / f"model.ckpt-{step}"))
    return {name: reader[name] for name in reader.shapes}


def assert_equal(tensors, others):
    assert tensors.keys() == others.keys()
    for name, value in tensors.items():
        np.testing.assert_array_equal(others[name], value, err_msg=name)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


class Watch(Hook):
    """Records its calls, acts after one step, and stops from a step on."""

    def __init__(self, every=0, at=None, act=None, stop_at=99):
        self.every, self.at, self.act, self.stop_at = every, at, act, stop_at
        self.calls = []

    def begin(self, step):
        self.calls.append(("begin", step))
        self.wants_stop = step >= self.stop_at

    def after_steps(self, step, records):
        self.calls.append((step, len(records["loss"])))
        self.wants_stop = step >= self.stop_at
        if step == self.at:
            self.act()

    def end(self):
        self.calls.append(("end",))


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """The folder of an uninterrupted run, with the checkpoint of every step."""
    folder = tmp_path_factory.mktemp("whole")
    train(folder, save_checkpoints_steps=1, keep_checkpoint_max=0)
    return folder


@pytest.fixture(scope="module")
def whole(run_folder):
    """The last checkpoint of the run."""
    return read(run_folder)


@pytest.fixture
def stopped_at(run_folder, tmp_path):
    """Makes the folder of a run that was stopped after a step."""

    def make(step):
        for path in run_folder.glob(f"model.ckpt-{step}.*"):
            shutil.copy(path, tmp_path)
        return tmp_path

    return make


def test_a_checkpoint_has_weights_slots_and_counters(whole):
    names = ["bert/embeddings", "head/kernel", "head/bias"]
    slots = [f"{name}/adam_{slot}" for name in names for slot in "mv"]
    counters = {"global_step": 9, "training_state/examples_seen": 9 * 12}
    assert whole.keys() == {*names, *slots, *counters}
    assert {name: whole[name] for name in counters} == counters
    assert all(whole[slot].any() for slot in slots)


def test_a_run_resumed_after_a_crash_equals_the_whole_run(tmp_path, whole):
    asked = []

    def make_data(**arguments):
        asked.append(arguments)
        return toy_task.training_data(EXAMPLES)(**arguments)

    crash = Watch(1, at=6, act=lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        make(tmp_path, iterations_per_loop=3).train(make_data, [crash])
    assert sorted(contents(tmp_path)) == [
        "checkpoint",
        "model.ckpt-4.data-00000-of-00001",
        "model.ckpt-4.index",
    ]
    make(tmp_path).train(make_data)
    assert_equal(read(tmp_path), whole)
    first = {"batch_size": 12, "num_shards": 1, "shard": 0, "start_example": 0}
    assert asked == [first, {**first, "start_example": 4 * 12}]


@pytest.fixture
def precision():
    """Sets a dtype policy until the end of a test."""
    yield keras.config.set_dtype_policy
    keras.config.set_dtype_policy("float32")


@pytest.mark.graph
def test_runs_with_replicas_and_micro_batches_resume_exactly(
    tmp_path, precision, monkeypatch
):
    """The loss scale doubles after steps 4 and 8."""
    precision("mixed_float16")
    monkeypatch.setattr(step, "LOSS_SCALE_GROWTH_STEPS", 4)
    options = {
        "gradient_accumulation_steps": 3,
        "optimizer": "lamb",
        "replicas": 2,
        "save_checkpoints_steps": 5,
    }
    first, second = tmp_path / "whole", tmp_path / "resumed"
    train(first, **options)
    second.mkdir()
    for path in first.glob("model.ckpt-5.*"):
        shutil.copy(path, second)
    train(second, **options)
    tensors = read(second)
    assert_equal(tensors, read(first))
    state = tensors["training_state/loss_scale"]
    np.testing.assert_array_equal(state, [2.0**17, 1])


def test_the_precision_may_change_when_a_run_is_resumed(
    stopped_at, precision, whole
):
    folder = stopped_at(4)
    precision("mixed_float16")
    train(folder, stop_at_step=6)
    state = read(folder, 6)["training_state/loss_scale"]
    np.testing.assert_array_equal(state, [step.INITIAL_LOSS_SCALE, 2])
    precision("float32")
    train(folder)
    # Dropout masks depend on the dtype.
    for name, value in read(folder).items():
        np.testing.assert_allclose(value, whole[name], atol=0.05)


@pytest.mark.parametrize(
    ("number", "is_restarted"), [(signal.SIGTERM, True), (signal.SIGINT, False)]
)
def test_a_signal_saves_a_checkpoint(tmp_path, whole, number, is_restarted):
    """In a notebook the same object may be trained again."""
    watch = Watch(1, at=3, act=lambda: os.kill(os.getpid(), number))
    estimator = make(tmp_path)
    data = toy_task.training_data(EXAMPLES)
    with pytest.raises(SystemExit) as left:
        estimator.train(data, [watch])
    assert left.value.code == 128 + number
    assert watch.calls[-2:] == [(3, 1), ("end",)]
    assert read(tmp_path, 3)["global_step"] == 3
    (make(tmp_path) if is_restarted else estimator).train(data)
    assert_equal(read(tmp_path), whole)


def test_a_run_in_two_phases_equals_the_whole_run(stopped_at, whole):
    folder = stopped_at(4)
    for _ in range(2):
        assert train(folder, stop_at_step=6).step == 6
    train(folder)
    assert_equal(read(folder), whole)
    before = contents(folder)
    watch = Watch()
    assert train(folder, watch).step == 9
    assert train(folder, watch, num_train_steps=5).step == 9
    assert watch.calls == []
    assert contents(folder) == before
    assert train(folder, watch, num_train_steps=11).step == 11
    assert watch.calls[0] == ("begin", 9)


def test_checkpoints_of_tf1_are_resumed_if_they_have_slots(tmp_path, whole):
    """They have no training_state, so the data starts from the beginning."""
    theirs = {k: v for k, v in whole.items() if "training_state" not in k}
    checkpoints.write(str(tmp_path / "model.ckpt-9"), theirs)
    estimator = train(tmp_path, num_train_steps=10)
    assert (estimator.step, estimator.examples_seen) == (10, 12)
    weights = {k: v for k, v in whole.items() if "adam" not in k}
    checkpoints.write(str(tmp_path / "model.ckpt-10"), weights)
    with pytest.raises(InputError, match="lacks 6 of 6 variables"):
        train(tmp_path, num_train_steps=10)


def test_workers_at_different_steps_do_not_start(stopped_at, monkeypatch):
    def agreement(strategy):
        return lambda numbers: list(map(min, numbers, [0, 0]))

    monkeypatch.setattr(workers, "agreement", agreement)
    with pytest.raises(InputError, match="steps 0 to 9, on this worker 9"):
        make(stopped_at(9))


def test_random_weights_depend_on_the_seed_only(tmp_path):
    def weights(seed, replicas=0):
        model = make(tmp_path, random_seed=seed, replicas=replicas).model
        return {v.path: v.numpy() for v in model.weights}

    first, other = weights(3), weights(4)
    assert_equal(weights(3), first)
    assert_equal(weights(3, replicas=2), first)
    assert (other["toy/head/kernel"] != first["toy/head/kernel"]).all()


def test_the_runs_checkpoint_takes_precedence(tmp_path, stopped_at, whole):
    initial = tmp_path / "initial" / "bert_model.ckpt"
    changed = {name: value + 1 for name, value in whole.items()}
    checkpoints.write(str(initial), changed)
    own = stopped_at(9)
    for folder, done, weights_from, weights in (
        (tmp_path / "out", 0, initial, changed),
        (own, 9, own / "model.ckpt-9", whole),
    ):
        estimator = make(folder, initial=initial)
        assert estimator.step == done
        assert estimator.weights_from == str(weights_from)
        kernel = estimator.model.head.kernel
        np.testing.assert_array_equal(kernel, weights["head/kernel"])


def test_the_loop_stops_for_hooks_and_checkpoints(tmp_path):
    watch, other, seen = Watch(every=3), Watch(), []
    early = Watch(at=4, act=lambda: seen.extend(contents(tmp_path)))
    train(tmp_path, watch, other, early, keep_checkpoint_max=2)
    assert watch.calls == other.calls
    begin, *calls, end = watch.calls
    assert (begin, end) == (("begin", 0), ("end",))
    steps = np.cumsum([count for _, count in calls])
    assert steps.tolist() == [step for step, _ in calls]
    assert {3, 4, 6, 8, 9} <= set(steps)
    assert seen == []  # Hooks come before the checkpoint.
    manager = checkpoints.CheckpointManager(str(tmp_path))
    assert manager.steps() == [8, 9]


def test_calls_get_longer_up_to_a_limit(tmp_path):
    """The loop asks a hook whether to stop only between two calls."""
    watch = Watch(stop_at=8)
    options = {"save_checkpoints_steps": 100, "iterations_per_loop": 5}
    train(tmp_path, watch, num_train_steps=50, **options)
    steps, counts = zip(*watch.calls[1:-1], strict=True)
    assert counts[0] == 1
    assert max(counts) == 5
    assert 8 <= sum(counts) == steps[-1] < 8 + 5


def test_a_hook_ends_training_with_a_checkpoint(tmp_path, whole, caplog):
    caplog.set_level("INFO", "absl")
    assert train(tmp_path, Watch(1, stop_at=3)).step == 3
    assert "Training ends early, at step 3 of 9" in caplog.text
    before = contents(tmp_path)
    again = Watch(1, stop_at=3)
    assert train(tmp_path, again).step == 3
    assert again.calls == [("begin", 3), ("end",)]
    assert contents(tmp_path) == before
    # Without the hook training resumes as usual.
    train(tmp_path)
    assert_equal(read(tmp_path), whole)


def test_divergence_keeps_the_checkpoint_before(stopped_at):
    folder, watch = stopped_at(1), Watch()
    before, estimator = contents(folder), make(folder)
    estimator.model.head.bias.assign(np.full(3, np.inf))
    with pytest.raises(NonFiniteError, match=r"^step 2: loss (inf|nan), "):
        estimator.train(toy_task.training_data(EXAMPLES), [watch])
    assert watch.calls == [("begin", 1), ("end",)]
    assert contents(folder) == before


def test_non_finite_weights_are_not_saved(tmp_path):
    estimator = make(tmp_path, save_checkpoints_steps=2)

    def spoil():
        estimator.model.head.bias.assign(np.full(3, np.inf))

    data = toy_task.training_data(EXAMPLES)
    with pytest.raises(NonFiniteError, match=r"^step 4: head/bias is not"):
        estimator.train(data, [Watch(1, at=4, act=spoil)])
    manager = checkpoints.CheckpointManager(str(tmp_path))
    assert manager.steps() == [2]


class TracedTask(toy_task.ToyTask):
    """Lists the shapes of the token ids for which it was traced."""

    def __init__(self):
        super().__init__()
        self.shapes = []

    def predictions(self, features, outputs):
        if not tf.executing_eagerly():
            self.shapes.append(tuple(features["ids"].shape))
        return super().predictions(features, outputs)


@pytest.fixture(scope="module", params=[(0, True), (2, False)], ids=str)
def estimator(request, tmp_path_factory):
    """Compiled, and on two devices, which do not divide the batch size."""
    replicas, jit_compile = request.param
    return make(
        tmp_path_factory.mktemp("evaluation"),
        replicas,
        TracedTask(),
        eval_batch_size=3,
        jit_compile=jit_compile,
    )


@pytest.mark.graph
@pytest.mark.parametrize("count", [1, 7, 12])
def test_every_example_is_predicted_in_order(estimator, count):
    features, task = toy_task.examples(count, seed=count), estimator.task
    data = toy_task.evaluation_data(features)
    found = estimator.predict(data)
    expected = task.predictions(features, estimator.model(features))
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-5, atol=1e-7)
    # A TPU needs static lengths.
    assert set(task.shapes) <= {(3, 4), (2, 4)}
    mean = np.sum(expected["class_loss"]) / features["weight"].sum()
    metrics = estimator.evaluate(data)
    assert metrics.pop("loss") == pytest.approx(mean, rel=1e-5)
    assert metrics == {"examples": count, "global_step": 0}


@pytest.mark.graph
@pytest.mark.parametrize("replicas", [0, 2])
def test_batches_of_any_size_and_length_in_any_order(tmp_path, replicas):
    """All share one trace; the mean of equal tokens is the token's row."""
    features = toy_task.examples(23)
    features["ids"][:] = features["ids"][:, :1]
    order = np.random.default_rng(5).permutation(23)
    batches = []
    for parts, length in [(1, 4), (3, 2), (2, 7), (1, 2), (1, 3)]:
        rows, order = np.split(order, [4 * parts])
        index = np.pad(rows, (0, 4 * parts - len(rows)), constant_values=-1)
        batch = {name: values[index] for name, values in features.items()}
        batch["ids"] = np.tile(batch["ids"][:, :1], [1, length])
        batch["is_real_example"] = (index >= 0).astype("int32")
        batches.append({**batch, "example_index": index.astype("int32")})

    def data(batch_size, num_shards, shard):
        signature = {
            name: tf.TensorSpec([None] * values.ndim, values.dtype)
            for name, values in batches[0].items()
        }
        return tf.data.Dataset.from_generator(
            lambda: batches, output_signature=signature
        )

    task = TracedTask()
    estimator = make(tmp_path, replicas, task, eval_batch_size=4)
    logits = estimator.model(features)["logits"]
    for _ in range(2):
        found = estimator.predict(data)
        np.testing.assert_allclose(found["logits"], logits, atol=1e-6)
        assert found["ids"].shape == (23, 7)  # Padded to the longest.
        np.testing.assert_array_equal(found["ids"][:, 0], features["ids"][:, 0])
    assert task.shapes == [(None, None)] * max(1, replicas)


def test_evaluations_do_not_change_the_training(tmp_path, whole):
    estimator = make(tmp_path)
    data = toy_task.evaluation_data(EXAMPLES)
    found = []

    def evaluate():
        found.append(estimator.evaluate(data))
        return found[-1]

    hook = Evaluation(evaluate, str(tmp_path), every=4, last_step=9)
    estimator.train(toy_task.training_data(EXAMPLES), [hook])
    assert [metrics["global_step"] for metrics in found] == [4, 8, 9]
    assert len({metrics["loss"] for metrics in found}) == 3
    assert_equal(read(tmp_path), whole)


def graphs() -> int:
    gc.collect()
    kind = tf.__internal__.FuncGraph
    return sum(isinstance(found, kind) for found in gc.get_objects())


@pytest.mark.graph
@pytest.mark.parametrize(
    "jit_compile", [False, pytest.param(True, marks=pytest.mark.slow)]
)
def test_a_training_is_freed_from_memory(tmp_path, jit_compile):
    def train_and_evaluate(folder):
        estimator = train(folder, jit_compile=jit_compile, num_train_steps=2)
        estimator.evaluate(toy_task.evaluation_data(EXAMPLES))
        slots = estimator._optimizer.slot_variables().values()
        held = (estimator, estimator.model, *estimator.model.weights, *slots)
        return [weakref.ref(one) for one in held]

    before = graphs()
    for folder in ("first", "second"):
        references = train_and_evaluate(tmp_path / folder)
        keras.utils.clear_session()
        assert graphs() <= before
        assert [r() for r in references if r() is not None] == []


@pytest.mark.parametrize("index", [[0, 2, 2, 1], [0, 3, 1, 4], [3, 1, 2, 4]])
def test_missing_and_repeated_predictions_are_errors(index):
    rows = np.arange(4)
    with pytest.raises(ValueError, match="is missing or occurs more than once"):
        in_order([{"example_index": np.array(index), "x": rows}])
    with pytest.raises(InputError, match="no examples"):
        in_order([{"example_index": rows - 4, "x": rows}])
