"""The training loop resumes exactly, counts exactly and stops when asked."""

import gc
import itertools
import os
import shutil
import signal
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.training import checkpoints, results, workers
from bert_tf.training import estimator as estimators
from bert_tf.training.estimator import Estimator, in_order
from bert_tf.training.hooks import Evaluation, Hook, NonFiniteError
from bert_tf.training.settings import TrainingConfig
from tests.training import toy_task

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


def make(folder, strategy=None, task=None, init_checkpoint=None, **settings):
    return Estimator(
        task or toy_task.ToyTask(dropout_rate=0.3),
        strategy or tf.distribute.get_strategy(),
        TrainingConfig(**{**SETTINGS, **settings}),
        str(folder),
        str(init_checkpoint) if init_checkpoint else None,
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


def weights(estimator):
    return {v.path: v.numpy() for v in estimator.model.weights}


class Watch(Hook):
    """Records its calls, and does something at one step."""

    def __init__(self, every=0, at=None, act=None):
        self.every, self.at, self.act = every, at, act
        self.calls = []

    def begin(self, step):
        self.calls.append(("begin", step))

    def after_steps(self, step, records):
        self.calls.append((step, len(records["loss"])))
        if step == self.at:
            self.act()

    def end(self):
        self.calls.append(("end",))


class Crash(Exception):
    """An unexpected error."""


def crash():
    raise Crash


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

    def make(*steps):
        for step in steps:
            for path in run_folder.glob(f"model.ckpt-{step}.*"):
                shutil.copy(path, tmp_path)
        return tmp_path

    return make


# ------------------------------------------------------------- resuming


def test_a_checkpoint_has_weights_slots_and_counters(whole):
    names = ["bert/embeddings", "head/kernel", "head/bias"]
    slots = [
        f"{name}/{slot}" for name in names for slot in ("adam_m", "adam_v")
    ]
    assert whole.keys() == {
        *names,
        *slots,
        "global_step",
        "training_state/examples_seen",
    }
    assert whole["global_step"] == 9
    assert whole["training_state/examples_seen"] == 9 * 12
    assert all(whole[slot].any() for slot in slots)


def test_a_run_resumed_after_a_crash_equals_the_whole_run(tmp_path, whole):
    asked = []

    def make_data(**arguments):
        asked.append(arguments)
        return toy_task.training_data(EXAMPLES)(**arguments)

    watch = Watch(1, at=6, act=crash)
    with pytest.raises(Crash):
        make(tmp_path, iterations_per_loop=3).train(make_data, [watch])
    assert sorted(contents(tmp_path)) == [
        "checkpoint",
        "model.ckpt-4.data-00000-of-00001",
        "model.ckpt-4.index",
    ]
    make(tmp_path).train(make_data)
    assert_equal(read(tmp_path), whole)
    first = {"batch_size": 12, "num_shards": 1, "shard": 0, "start_example": 0}
    assert asked == [first, {**first, "start_example": 4 * 12}]


def test_runs_with_replicas_and_micro_batches_resume_exactly(tmp_path):
    options = {
        "gradient_accumulation_steps": 3,
        "optimizer": "lamb",
        "strategy": toy_task.two_devices(),
        "save_checkpoints_steps": 5,
    }
    first, second = tmp_path / "whole", tmp_path / "resumed"
    train(first, **options)
    second.mkdir()
    for path in first.glob("model.ckpt-5.*"):
        shutil.copy(path, second)
    train(second, **options)
    assert_equal(read(second), read(first))


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


def test_a_finished_run_does_nothing_unless_it_gets_longer(stopped_at):
    folder = stopped_at(9)
    before = contents(folder)
    watch = Watch()
    assert train(folder, watch).step == 9
    assert train(folder, watch, num_train_steps=5).step == 9
    assert watch.calls == []
    assert contents(folder) == before
    assert train(folder, watch, num_train_steps=11).step == 11
    assert watch.calls[0] == ("begin", 9)
    assert read(folder, 11)["training_state/examples_seen"] == 11 * 12


def test_a_run_in_two_phases_equals_the_whole_run(stopped_at, whole):
    folder = stopped_at(4)
    watch = Watch()
    assert train(folder, watch, stop_at_step=6).step == 6
    assert watch.calls[-2:] == [(6, 1), ("end",)]
    assert read(folder, 6)["global_step"] == 6
    assert train(folder, watch, stop_at_step=6).step == 6
    assert watch.calls[-1] == ("end",)
    train(folder)
    assert_equal(read(folder), whole)


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


def test_damaged_checkpoints_and_leftovers_are_replaced(stopped_at, whole):
    folder = stopped_at(7, 8, 9)
    for step in (8, 9):
        (folder / f"model.ckpt-{step}.index").write_bytes(b"")
    leftovers = {
        "model.ckpt-7.tmp-123.index",
        "model.ckpt-6.data-00000-of-00001",
    }
    for name in leftovers:
        (folder / name).touch()
    estimator = make(folder)
    assert estimator.step == 7
    assert contents(folder).keys() > leftovers  # Reading removes nothing.
    seen = set()
    watch = Watch(1, at=8, act=lambda: seen.update(contents(folder)))
    estimator.train(toy_task.training_data(EXAMPLES), [watch])
    assert seen
    assert not seen & leftovers
    assert_equal(read(folder), whole)


def test_workers_at_different_steps_do_not_start(stopped_at, monkeypatch):
    def agreement(strategy):
        return lambda numbers: list(map(min, numbers, [0, 0]))

    monkeypatch.setattr(workers, "agreement", agreement)
    with pytest.raises(InputError, match="steps 0 to 9, on this worker 9"):
        make(stopped_at(9))


# ------------------------------------------------------- initial weights


def test_random_weights_depend_on_the_seed_only(tmp_path):
    first, same = (make(tmp_path, random_seed=3) for _ in range(2))
    other = make(tmp_path, random_seed=4)
    replicas = make(tmp_path, random_seed=3, strategy=toy_task.two_devices())
    assert_equal(weights(same), weights(first))
    assert_equal(weights(replicas), weights(first))
    name = "toy/head/kernel"
    assert (weights(other)[name] != weights(first)[name]).all()
    assert first.weights_from is None
    assert first.step == 0


def test_the_own_checkpoint_precedes_the_initial_one(
    tmp_path, stopped_at, whole, caplog
):
    initial = tmp_path / "initial" / "bert_model.ckpt"
    changed = {name: value + 1 for name, value in whole.items()}
    checkpoints.write(str(initial), changed)
    estimator = make(tmp_path / "out", init_checkpoint=initial)
    assert (estimator.step, estimator.examples_seen) == (0, 0)
    assert estimator.weights_from == str(initial)
    kernel = estimator.model.head.kernel
    np.testing.assert_array_equal(kernel, changed["head/kernel"])

    folder = stopped_at(9)
    estimator = make(folder, init_checkpoint=initial)
    assert estimator.step == 9
    assert estimator.weights_from == str(folder / "model.ckpt-9")
    kernel = estimator.model.head.kernel
    np.testing.assert_array_equal(kernel, whole["head/kernel"])
    assert f"--init_checkpoint={initial} is ignored" in caplog.text


def test_initial_weights_may_lack_the_head_only(tmp_path, whole, caplog):
    caplog.set_level("INFO", "absl")
    prefix = str(tmp_path / "encoder.ckpt")
    checkpoints.write(prefix, {"bert/embeddings": whole["bert/embeddings"]})
    estimator = make(tmp_path / "out", init_checkpoint=prefix)
    np.testing.assert_array_equal(
        estimator.model.table.embeddings, whole["bert/embeddings"]
    )
    assert estimator.random_variables == ("head/kernel", "head/bias")
    random = make(tmp_path / "out")
    np.testing.assert_array_equal(
        estimator.model.head.kernel, random.model.head.kernel
    )
    assert "1 variables filled, 2 missing (head/kernel and" in caplog.text
    head = {k: v for k, v in whole.items() if k.startswith("head/")}
    checkpoints.write(prefix, head)
    with pytest.raises(InputError, match=r"lacks 1 of 3 .*'bert/embeddings'"):
        make(tmp_path / "out", init_checkpoint=prefix)


def test_a_checkpoint_of_another_shape_is_refused(stopped_at, tmp_path):
    folder = stopped_at(9)
    before = contents(folder)
    other = toy_task.ToyTask(classes=5)
    message = r"head/kernel of shape \[5, 5\], found \[5, 3\]"
    with pytest.raises(InputError, match=message):
        make(folder, task=other)
    new = tmp_path / "new"
    prefix = folder / "model.ckpt-9"
    with pytest.raises(InputError, match=message):
        make(new, task=other, init_checkpoint=prefix)
    with pytest.raises(InputError, match=message):
        make(new, task=other).load_weights(str(prefix))
    assert contents(folder) == before
    assert not new.exists()


def test_weights_are_exported_without_slots(stopped_at, whole):
    folder = stopped_at(9)
    make(folder).export_weights(str(folder / "release" / "bert_model.ckpt"))
    reader = checkpoints.Reader(checkpoints.find(str(folder / "release")))
    names = {"bert/embeddings", "head/kernel", "head/bias"}
    assert set(reader.shapes) == names
    for name in names:
        np.testing.assert_array_equal(reader[name], whole[name])


# -------------------------------------------------------------- the loop


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


class Stop(Hook):
    """Wants to stop from a step on."""

    def __init__(self, at, every=0):
        self.at, self.every = at, every
        self.calls = []

    def begin(self, step):
        self.wants_stop = step >= self.at

    def after_steps(self, step, records):
        self.calls.append(step)
        self.wants_stop = step >= self.at


def test_calls_get_longer_up_to_a_limit(tmp_path):
    """A hook is asked whether to stop between two calls only."""
    watch, stop = Watch(), Stop(8)
    options = {"save_checkpoints_steps": 100, "num_train_steps": 50}
    estimator = train(tmp_path, watch, stop, iterations_per_loop=5, **options)
    counts = [count for _, count in watch.calls[1:-1]]
    assert counts[0] == 1
    assert max(counts) == 5
    assert sum(counts) == estimator.step == stop.calls[-1]
    assert 8 <= estimator.step < 8 + 5


@pytest.mark.parametrize("at", [3, 4, 9])
def test_a_hook_ends_training_with_a_checkpoint(tmp_path, whole, at, caplog):
    caplog.set_level("INFO", "absl")
    estimator = train(tmp_path, Stop(at, every=1))
    assert estimator.step == at
    assert read(tmp_path, at)["global_step"] == at
    message = f"Training ends early, at step {at} of 9"
    assert (message in caplog.text) is (at < 9)
    if at != 3:
        return
    before = contents(tmp_path)
    again = Stop(at, every=1)
    assert train(tmp_path, again).step == at
    assert again.calls == []
    assert contents(tmp_path) == before
    # Without the hook training resumes as usual.
    train(tmp_path)
    assert_equal(read(tmp_path), whole)


def test_another_process_can_end_training(tmp_path, monkeypatch):
    def other_stops(strategy):
        turns = itertools.count()
        return lambda numbers: [numbers[0] * (next(turns) < 3), numbers[1]]

    monkeypatch.setattr(estimators, "agreement", other_stops)
    assert train(tmp_path, Watch(1)).step == 3
    assert read(tmp_path, 3)["global_step"] == 3


def test_a_batch_must_split_into_equal_parts(tmp_path):
    folder = tmp_path / "out"
    estimator = make(
        folder,
        strategy=toy_task.two_devices(),
        train_batch_size=10,
        gradient_accumulation_steps=3,
    )
    with pytest.raises(InputError) as error:
        estimator.train(toy_task.training_data(EXAMPLES))
    assert str(error.value) == (
        "--train_batch_size must be a multiple of 2 replica(s) times "
        "--gradient_accumulation_steps=3; got 10."
    )
    assert not folder.exists()


@pytest.mark.parametrize(
    "replicas", [1, pytest.param(2, marks=pytest.mark.slow)]
)
def test_early_stopping_ends_a_resumed_run_at_the_same_step(tmp_path, replicas):
    """With the same best weights."""
    strategy = toy_task.two_devices() if replicas == 2 else None
    scores = [0.1, 0.3, 0.2, 0.7, 0.6, 0.5, 0.4, 0.9, 0.9]

    def train_until(folder, die_at=None):
        estimator = make(folder, strategy)

        def evaluate():
            if estimator.step == die_at:
                raise Crash
            return {"eval_f1": scores[estimator.step - 1]}

        hook = Evaluation(
            evaluate,
            str(folder),
            every=1,
            last_step=9,
            metric="eval_f1",
            export=estimator.export_weights,
            patience=3,
        )
        estimator.train(toy_task.training_data(EXAMPLES), [hook])
        return estimator

    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert train_until(whole).step == 7
    with pytest.raises(Crash):
        train_until(killed, die_at=6)
    for _ in range(2):
        estimator = train_until(killed)
        assert estimator.step == 7
    assert_equal(read(killed, 7), read(whole, 7))
    name = "evaluations.jsonl"
    assert (killed / name).read_text() == (whole / name).read_text()

    before = estimator.model.head.kernel.numpy()
    folder = str(killed / "best")
    assert results.find_best(folder) == results.Best(4, "eval_f1", 0.7)
    estimator.load_weights(results.best_prefix(folder))
    expected = read(killed, 4)["head/kernel"]
    np.testing.assert_array_equal(estimator.model.head.kernel, expected)
    assert (before != expected).any()
    assert estimator.weights_from == results.best_prefix(folder)


def test_divergence_keeps_the_checkpoint_before(tmp_path):
    stop = Watch(at=1, act=lambda: os.kill(os.getpid(), signal.SIGTERM))
    settings = {
        "learning_rate": 1e30,
        "num_warmup_steps": 0,
        "save_checkpoints_steps": 1,
    }
    with pytest.raises(SystemExit):
        train(tmp_path, stop, **settings)
    before = contents(tmp_path)
    watch = Watch()
    with pytest.raises(NonFiniteError, match=r"^step 2: loss (inf|nan), "):
        train(tmp_path, watch, **settings)
    assert watch.calls == [("begin", 1), ("end",)]
    assert contents(tmp_path) == before
    assert make(tmp_path).step == 1


def test_non_finite_weights_are_not_saved(tmp_path):
    estimator = make(tmp_path, save_checkpoints_steps=2)

    def spoil():
        estimator.model.head.bias.assign(np.full(3, np.inf))

    with pytest.raises(NonFiniteError, match=r"^step 4: head/bias is not"):
        estimator.train(
            toy_task.training_data(EXAMPLES), [Watch(1, at=4, act=spoil)]
        )
    manager = checkpoints.CheckpointManager(str(tmp_path))
    assert manager.steps() == [2]


# ------------------------------------------- evaluation and prediction


@pytest.fixture(scope="module", params=[1, 2], ids=["one", "two"])
def estimator(request, tmp_path_factory):
    """On one device, and on two; the batch size is not a multiple of 2."""
    return make(
        tmp_path_factory.mktemp("evaluation"),
        strategy=toy_task.two_devices() if request.param == 2 else None,
        eval_batch_size=3,
    )


@pytest.mark.parametrize("count", [1, 7, 12])
def test_every_example_is_predicted_in_order(estimator, count):
    features = toy_task.examples(count, seed=count)
    found = estimator.predict(toy_task.evaluation_data(features))
    outputs = estimator.model(features)
    expected = estimator.task.predictions(features, outputs)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert len(found[name]) == count
        np.testing.assert_allclose(found[name], values, rtol=1e-5, atol=1e-7)


def test_metrics_count_every_example_once(estimator):
    features = toy_task.examples(7)
    metrics = estimator.evaluate(toy_task.evaluation_data(features))
    losses = estimator.task.losses(features, estimator.model(features))
    mean = np.sum(losses["class_loss"]) / features["weight"].sum()
    assert metrics == {
        "loss": pytest.approx(mean, rel=1e-5),
        "examples": 7,
        "global_step": 0,
    }
    none = {name: values[:0] for name, values in EXAMPLES.items()}
    with pytest.raises(InputError, match="no examples"):
        estimator.evaluate(toy_task.evaluation_data(none))


def test_compiled_predictions_are_the_same(tmp_path):
    features = toy_task.examples(7)
    data = toy_task.evaluation_data(features)
    compiled, plain = (
        make(tmp_path, jit_compile=jit_compile).predict(data)["logits"]
        for jit_compile in (True, False)
    )
    np.testing.assert_allclose(compiled, plain, rtol=1e-5)


def bucketed(features, sizes, seed=5):
    """Batches of many sizes and lengths, in any order, for `predict`.

    Args:
      features: Features of `toy_task.examples`.
      sizes: For each batch the multiple of batch_size, and the length.
    """
    random = np.random.default_rng(seed)
    features = {**features, "ids": features["ids"][:, :1]}
    count = len(features["ids"])

    def batches(batch_size):
        order, start = random.permutation(count), 0
        for times, length in sizes:
            index = np.full(times * batch_size, -1, "int32")
            rows = order[start : start + len(index)]
            index[: len(rows)] = rows
            start += len(rows)
            batch = {name: values[index] for name, values in features.items()}
            # The mean of equal rows of the table is that row.
            batch["ids"] = np.tile(batch["ids"], [1, length])
            is_real = (index >= 0).astype("int32")
            yield {**batch, "is_real_example": is_real, "example_index": index}

    def make(batch_size, num_shards, shard):
        assert (num_shards, shard) == (1, 0)
        signature = {
            name: tf.TensorSpec([None] * values.ndim, values.dtype)
            for name, values in next(iter(batches(1))).items()
        }
        return tf.data.Dataset.from_generator(
            lambda: batches(batch_size), output_signature=signature
        )

    return make


class CountingTask(toy_task.ToyTask):
    """Counts its traces."""

    traces = 0

    def predictions(self, features, outputs):
        self.traces += 1
        return {"ids": features["ids"], "logits": outputs["logits"]}


@pytest.mark.parametrize("replicas", [1, 2])
def test_batches_of_any_size_and_length_in_any_order(tmp_path, replicas):
    strategy = toy_task.two_devices() if replicas == 2 else None
    task = CountingTask()
    estimator = make(tmp_path, strategy, task, eval_batch_size=4)
    features = toy_task.examples(23)
    features["ids"][:] = features["ids"][:, :1]
    sizes = [(1, 4), (3, 2), (2, 7), (1, 2), (1, 3)]
    for seed in (1, 2):
        found = estimator.predict(bucketed(features, sizes, seed))
        assert found.keys() == {"ids", "logits"}
        outputs = estimator.model(features)
        np.testing.assert_allclose(
            found["logits"], outputs["logits"], rtol=1e-5, atol=1e-7
        )
        # Padded to the longest.
        assert found["ids"].shape == (23, 7)
        np.testing.assert_array_equal(found["ids"][:, 0], features["ids"][:, 0])
        assert task.traces == replicas


def test_static_lengths_stay_static(tmp_path, monkeypatch):
    """As a TPU needs."""
    seen = []

    def predictions(self, features, outputs):
        seen.append({k: tuple(v.shape) for k, v in features.items()})
        return {"logits": outputs["logits"]}

    monkeypatch.setattr(toy_task.ToyTask, "predictions", predictions)
    strategy = toy_task.two_devices()
    estimator = make(tmp_path, strategy, toy_task.ToyTask(), eval_batch_size=6)
    estimator.predict(toy_task.evaluation_data(toy_task.examples(7)))
    assert [shapes["ids"] for shapes in seen] == [(3, 4)] * 2
    assert [shapes["example_index"] for shapes in seen] == [(3,)] * 2


def test_evaluations_do_not_change_the_training(tmp_path, whole):
    estimator = make(tmp_path / "out")
    data = toy_task.evaluation_data(EXAMPLES)
    found = []

    def evaluate():
        found.append(estimator.evaluate(data))
        return found[-1]

    hook = Evaluation(evaluate, str(tmp_path), every=4, last_step=9)
    estimator.train(toy_task.training_data(EXAMPLES), [hook])
    assert [metrics["global_step"] for metrics in found] == [4, 8, 9]
    assert len({metrics["loss"] for metrics in found}) == 3
    assert_equal(read(tmp_path / "out"), whole)


def graphs() -> int:
    gc.collect()
    return sum(
        isinstance(o, tf.__internal__.FuncGraph) for o in gc.get_objects()
    )


@pytest.mark.parametrize(
    ("one_device", "jit_compile"),
    [(False, False), pytest.param(True, True, marks=pytest.mark.slow)],
)
def test_nothing_is_left_of_a_training(tmp_path, one_device, jit_compile):
    """Several trainings in one process would not fit into memory otherwise."""

    def train_and_evaluate(folder):
        strategy = tf.distribute.OneDeviceStrategy("CPU:0")
        estimator = train(
            folder,
            strategy=strategy if one_device else None,
            jit_compile=jit_compile,
            num_train_steps=2,
        )
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


# ----------------------------------------------- predictions in order


def predicted(index, **values):
    arrays = {name: np.asarray(rows) for name, rows in values.items()}
    return {"example_index": np.array(index, "int32"), **arrays}


@pytest.mark.parametrize("cuts", [[], [7], [3, 3, 19, 30]])
def test_predictions_in_any_order_and_batches_are_sorted(cuts):
    random = np.random.default_rng(3)
    logits = random.normal(size=[31, 5]).astype("float32")
    index = random.permutation(31)
    batches = [
        predicted(part, logits=logits[part], number=part)
        for part in np.split(index, cuts)
    ]
    found = in_order(batches)
    assert found.keys() == {"logits", "number"}
    np.testing.assert_array_equal(found["logits"], logits)
    assert found["number"].tolist() == list(range(31))
    assert found["logits"].dtype == np.float32


def test_padding_of_batches_and_rows():
    batches = [
        predicted([-1, 1, -1], x=[9, 1, 9]),
        predicted([-1], x=[9]),
        predicted([2, 0], x=[2, 0]),
    ]
    assert in_order(batches)["x"].tolist() == [0, 1, 2]
    batches = [
        predicted([2, 0], tags=[[5, 6], [1, 2]], score=[[[0.5]], [[0.25]]]),
        predicted([1], tags=[[3, 4, 5]], score=[[[1.0, 2.0]]]),
    ]
    found = in_order(batches)
    assert found["tags"].tolist() == [[1, 2, 0], [3, 4, 5], [5, 6, 0]]
    assert found["score"].shape == (3, 1, 2)
    assert found["score"][:, 0].tolist() == [[0.25, 0], [1, 2], [0.5, 0]]


@pytest.mark.parametrize("index", [[0, 2, 2, 1], [0, 3, 1, 4], [3, 1, 2, 4]])
def test_missing_and_repeated_predictions_are_errors(index):
    rows = [predicted(index[:2], x=[0, 0]), predicted(index[2:], x=[0, 0])]
    with pytest.raises(ValueError, match="is missing or comes more than once"):
        in_order(rows)
    for none in ([], [predicted([-1, -1], x=[1, 2])]):
        with pytest.raises(InputError, match="no examples"):
            in_order(none)
