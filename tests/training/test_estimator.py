"""The loop: it resumes exactly, counts exactly and stops when it should."""

import gc
import itertools
import os
import signal
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.training import checkpoints, results, workers
from bert_tf.training import estimator as estimators
from bert_tf.training.estimator import Estimator
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
    """Notes what it is told, and does something at one step."""

    def __init__(self, every=0, at=None, act=None):
        self.every, self.at, self.act = every, at, act
        self.told = []

    def begin(self, step):
        self.told.append(("begin", step))

    def after_steps(self, step, records):
        self.told.append((step, len(records["loss"])))
        if step == self.at:
            self.act()

    def end(self):
        self.told.append(("end",))


class Crash(Exception):
    """What no program expects."""


def crash():
    raise Crash


# Resuming.


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The last checkpoint of a run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    train(folder)
    return read(folder)


def test_a_checkpoint_holds_weights_slots_and_counters(whole):
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


@pytest.mark.parametrize("iterations_per_loop", [1, 3])
def test_resuming_after_a_crash_equals_the_whole_run(
    tmp_path, whole, iterations_per_loop
):
    settings = {"iterations_per_loop": iterations_per_loop}
    with pytest.raises(Crash):
        train(tmp_path, Watch(1, at=6, act=crash), **settings)
    assert sorted(contents(tmp_path)) == [
        "checkpoint",
        "model.ckpt-4.data-00000-of-00001",
        "model.ckpt-4.index",
    ]
    assert train(tmp_path).step == 9
    assert_equal(read(tmp_path), whole)


def test_the_same_with_replicas_and_micro_batches(tmp_path):
    settings = {"gradient_accumulation_steps": 3, "optimizer": "lamb"}
    strategy = toy_task.two_devices()
    first, second = tmp_path / "whole", tmp_path / "resumed"
    train(first, strategy=strategy, **settings)
    with pytest.raises(Crash):
        train(second, Watch(1, at=5, act=crash), strategy=strategy, **settings)
    train(second, strategy=strategy, **settings)
    assert_equal(read(second), read(first))


def test_data_goes_on_where_it_stopped(tmp_path):
    asked = []

    def make_data(**arguments):
        asked.append(arguments)
        return toy_task.training_data(EXAMPLES)(**arguments)

    with pytest.raises(Crash):
        make(tmp_path).train(make_data, [Watch(1, at=7, act=crash)])
    make(tmp_path).train(make_data)
    first = {"batch_size": 12, "num_shards": 1, "shard": 0, "start_example": 0}
    assert asked == [first, {**first, "start_example": 4 * 12}]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_the_next_run_goes_on(tmp_path, whole, number):
    watch = Watch(1, at=3, act=lambda: os.kill(os.getpid(), number))
    with pytest.raises(SystemExit) as left:
        train(tmp_path, watch)
    assert left.value.code == 128 + number
    assert watch.told[-2:] == [(3, 1), ("end",)]
    assert read(tmp_path, 3)["global_step"] == 3
    train(tmp_path)
    assert_equal(read(tmp_path), whole)


def test_the_same_object_goes_on_after_a_signal(tmp_path, whole):
    """As in a notebook."""
    watch = Watch(1, at=3, act=lambda: os.kill(os.getpid(), signal.SIGINT))
    estimator = make(tmp_path)
    data = toy_task.training_data(EXAMPLES)
    with pytest.raises(SystemExit):
        estimator.train(data, [watch])
    estimator.train(data)
    assert_equal(read(tmp_path), whole)


def test_a_run_that_is_done_does_nothing(tmp_path):
    train(tmp_path)
    before = contents(tmp_path)
    watch = Watch()
    assert train(tmp_path, watch).step == 9
    assert train(tmp_path, watch, num_train_steps=5).step == 9
    assert watch.told == []
    assert contents(tmp_path) == before


def test_a_run_that_stops_on_its_way_goes_on_as_if_it_had_not(tmp_path, whole):
    """The rate falls until the last step of all, and is saved in between."""
    watch = Watch()
    assert train(tmp_path, watch, stop_at_step=6).step == 6
    assert watch.told[-2:] == [(6, 2), ("end",)]
    assert read(tmp_path, 6)["global_step"] == 6
    assert train(tmp_path, watch, stop_at_step=6).step == 6
    assert watch.told[-1] == ("end",)
    train(tmp_path)
    assert_equal(read(tmp_path), whole)


def test_a_longer_run_goes_on(tmp_path):
    train(tmp_path)
    watch = Watch()
    assert train(tmp_path, watch, num_train_steps=11).step == 11
    assert watch.told[0] == ("begin", 9)
    assert read(tmp_path, 11)["training_state/examples_seen"] == 11 * 12


def test_a_checkpoint_of_tf1_is_resumed(tmp_path, whole):
    """It has no training_state: the data starts from the beginning."""
    theirs = {k: v for k, v in whole.items() if "training_state" not in k}
    checkpoints.write(str(tmp_path / "model.ckpt-9"), theirs)
    estimator = train(tmp_path, num_train_steps=10)
    assert (estimator.step, estimator.examples_seen) == (10, 12)


def test_a_checkpoint_without_slots_is_not_resumed(tmp_path, whole):
    weights = {k: v for k, v in whole.items() if "adam" not in k}
    checkpoints.write(str(tmp_path / "model.ckpt-9"), weights)
    with pytest.raises(InputError, match="lacks 6 of 6 variables"):
        train(tmp_path, num_train_steps=10)


# Initialization.


def test_random_weights_are_a_function_of_the_seed(tmp_path):
    first, same = (make(tmp_path, random_seed=3) for _ in range(2))
    other = make(tmp_path, random_seed=4)
    assert_equal(weights(same), weights(first))
    assert (
        weights(other)["toy/head/kernel"] != weights(first)["toy/head/kernel"]
    ).all()
    assert first.weights_from is None
    assert first.step == 0


def test_replicas_start_from_the_weights_of_one_device(tmp_path):
    assert_equal(
        weights(make(tmp_path, strategy=toy_task.two_devices())),
        weights(make(tmp_path)),
    )


def test_the_own_checkpoint_comes_first_then_the_initial_one(tmp_path, whole):
    initial = tmp_path / "bert_model.ckpt"
    changed = {name: value + 1 for name, value in whole.items()}
    checkpoints.write(str(initial), changed)
    folder = tmp_path / "out"

    estimator = make(folder, init_checkpoint=initial)
    assert (estimator.step, estimator.examples_seen) == (0, 0)
    assert estimator.weights_from == str(initial)
    np.testing.assert_array_equal(
        estimator.model.head.kernel, changed["head/kernel"]
    )

    train(folder)
    estimator = make(folder, init_checkpoint=initial)
    assert estimator.step == 9
    assert estimator.weights_from == str(folder / "model.ckpt-9")
    np.testing.assert_array_equal(
        estimator.model.head.kernel, whole["head/kernel"]
    )


def test_an_initial_checkpoint_may_lack_the_head(tmp_path, whole, caplog):
    caplog.set_level("INFO", "absl")
    prefix = str(tmp_path / "encoder.ckpt")
    checkpoints.write(prefix, {"bert/embeddings": whole["bert/embeddings"]})
    estimator = make(tmp_path / "out", init_checkpoint=prefix)
    np.testing.assert_array_equal(
        estimator.model.table.embeddings, whole["bert/embeddings"]
    )
    random = make(tmp_path / "out")
    np.testing.assert_array_equal(
        estimator.model.head.kernel, random.model.head.kernel
    )
    assert "1 variables filled, 2 missing (head/kernel and head/bias" in caplog.text


def test_but_not_the_encoder(tmp_path, whole):
    prefix = str(tmp_path / "head.ckpt")
    head = {k: v for k, v in whole.items() if k.startswith("head/")}
    checkpoints.write(prefix, head)
    with pytest.raises(InputError, match=r"lacks 1 of 3 .*'bert/embeddings'"):
        make(tmp_path / "out", init_checkpoint=prefix)


def test_a_checkpoint_of_another_shape_changes_nothing(tmp_path):
    folder = tmp_path / "out"
    train(folder)
    before = contents(folder)
    other = toy_task.ToyTask(classes=5)
    message = r"head/kernel of shape \[5, 5\], found \[5, 3\]"
    with pytest.raises(InputError, match=message):
        make(folder, task=other)
    with pytest.raises(InputError, match=message):
        make(tmp_path / "new", task=other, init_checkpoint=folder)
    assert contents(folder) == before
    assert not (tmp_path / "new").exists()


def test_what_a_killed_run_left_goes_as_the_next_one_starts(tmp_path, whole):
    train(tmp_path, stop_at_step=4)
    before = contents(tmp_path)
    left = (
        "model.ckpt-7.tmp-123.index",
        "model.ckpt-7.data-00000-of-00001",
    )
    for name in left:
        (tmp_path / name).touch()
    assert make(tmp_path).step == 4
    assert set(contents(tmp_path)) > set(left)  # Not by those who only read.
    seen = []
    watch = Watch(1, at=5, act=lambda: seen.extend(contents(tmp_path)))
    train(tmp_path, watch)
    assert sorted(seen) == sorted(before)
    assert_equal(read(tmp_path), whole)


def test_workers_at_different_steps_do_not_go_on(tmp_path, monkeypatch):
    """As with a folder for each: the other one finds nothing."""
    train(tmp_path)

    def agreement(strategy):
        return lambda numbers: list(map(min, numbers, [0, 0]))

    monkeypatch.setattr(workers, "agreement", agreement)
    with pytest.raises(InputError, match="steps 0 to 9, on this worker 9"):
        make(tmp_path)


def test_a_damaged_newest_checkpoint_is_made_again(tmp_path, whole):
    train(tmp_path, save_checkpoints_steps=1)
    for step in (8, 9):
        (tmp_path / f"model.ckpt-{step}.index").write_bytes(b"")
    estimator = make(tmp_path)
    assert estimator.step == 7
    estimator.train(toy_task.training_data(EXAMPLES))
    assert_equal(read(tmp_path), whole)


# The loop.


def test_checkpoints_are_written_when_due_and_at_the_end(tmp_path):
    watch = Watch(at=4, act=lambda: seen.extend(contents(tmp_path)))
    seen = []
    train(tmp_path, watch, keep_checkpoint_max=2)
    assert seen == []  # Hooks come before the checkpoint.
    manager = checkpoints.CheckpointManager(str(tmp_path))
    assert manager.steps() == [8, 9]


def test_hooks_see_every_step_and_the_loop_stops_for_them(tmp_path):
    watch, other = Watch(every=3), Watch()
    train(tmp_path, watch, other)
    assert watch.told == other.told
    begin, *told, end = watch.told
    assert (begin, end) == (("begin", 0), ("end",))
    steps = np.cumsum([count for _, count in told])
    assert steps.tolist() == [step for step, _ in told]
    assert {3, 4, 6, 8, 9} <= set(steps)


def test_calls_get_longer_up_to_a_limit(tmp_path):
    watch = Watch()
    options = {"save_checkpoints_steps": 100, "num_train_steps": 12}
    train(tmp_path, watch, iterations_per_loop=5, **options)
    counts = [count for _, count in watch.told[1:-1]]
    assert counts[0] == 1
    assert max(counts) == 5
    assert sum(counts) == 12


def test_a_batch_that_cannot_be_cut(tmp_path):
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


class Stop(Hook):
    """Wants to stop from a step on."""

    def __init__(self, at, every=0):
        self.at, self.every = at, every
        self.told = []

    def begin(self, step):
        self.wants_stop = step >= self.at

    def after_steps(self, step, records):
        self.told.append(step)
        self.wants_stop = step >= self.at


@pytest.mark.parametrize("at", [3, 4, 9])
def test_a_hook_ends_training_with_a_checkpoint(tmp_path, whole, at, caplog):
    caplog.set_level("INFO", "absl")
    estimator = train(tmp_path, Stop(at, every=1), Watch(1))
    assert estimator.step == at
    assert read(tmp_path, at)["global_step"] == at
    told = f"Training ends early, at step {at} of 9"
    assert (told in caplog.text) is (at < 9)
    before = contents(tmp_path)
    # The same command finds that it is over.
    again = Stop(at, every=1)
    assert train(tmp_path, again).step == at
    assert again.told == []
    assert contents(tmp_path) == before
    # Without the hook it goes on as if nothing had been.
    train(tmp_path)
    assert_equal(read(tmp_path), whole)


def test_it_is_asked_when_told_and_not_in_the_middle_of_a_call(tmp_path):
    hook = Stop(2)
    settings = {"save_checkpoints_steps": 100}
    estimator = train(tmp_path, hook, iterations_per_loop=5, **settings)
    assert estimator.step == hook.told[-1] >= 2


def test_it_is_enough_that_another_process_wants_to_stop(tmp_path, monkeypatch):
    """All come to the same numbers: the smallest that any of them gave."""

    def other_stops(strategy):
        turns = itertools.count()
        return lambda numbers: [numbers[0] * (next(turns) < 3), numbers[1]]

    monkeypatch.setattr(estimators, "agreement", other_stops)
    assert train(tmp_path, Watch(1)).step == 3
    assert read(tmp_path, 3)["global_step"] == 3


@pytest.mark.parametrize("replicas", [1, 2])
def test_early_stopping_resumed_ends_at_the_same_step(tmp_path, replicas):
    """And with the same best weights; killed in the middle, then run again."""
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


def test_weights_of_another_model_are_not_loaded(tmp_path):
    train(tmp_path / "one").export_weights(str(tmp_path / "weights"))
    other = make(tmp_path / "other", task=toy_task.ToyTask(classes=5))
    with pytest.raises(InputError, match="head/kernel of shape"):
        other.load_weights(str(tmp_path / "weights"))


def test_nan_ends_the_run_and_leaves_the_checkpoint_before(tmp_path):
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
    assert watch.told == [("begin", 1), ("end",)]
    assert contents(tmp_path) == before
    assert make(tmp_path).step == 1


def test_weights_that_are_no_numbers_are_not_saved(tmp_path):
    estimator = make(tmp_path, save_checkpoints_steps=2)

    def spoil():
        estimator.model.head.bias.assign(np.full(3, np.inf))

    with pytest.raises(NonFiniteError, match=r"^step 4: head/bias is not"):
        estimator.train(
            toy_task.training_data(EXAMPLES), [Watch(1, at=4, act=spoil)]
        )
    manager = checkpoints.CheckpointManager(str(tmp_path))
    assert manager.steps() == [2]


def test_weights_alone_are_exported(tmp_path, whole):
    estimator = train(tmp_path / "out")
    estimator.export_weights(str(tmp_path / "release" / "bert_model.ckpt"))
    reader = checkpoints.Reader(checkpoints.find(str(tmp_path / "release")))
    names = {"bert/embeddings", "head/kernel", "head/bias"}
    assert set(reader.shapes) == names
    for name in names:
        np.testing.assert_array_equal(reader[name], whole[name])


# Evaluation and prediction.


@pytest.fixture(scope="module", params=[1, 2], ids=["one", "two"])
def estimator(request, tmp_path_factory):
    """On one device and on two; 3 is no multiple of the latter."""
    return make(
        tmp_path_factory.mktemp("evaluation"),
        strategy=toy_task.two_devices() if request.param == 2 else None,
        eval_batch_size=3,
    )


@pytest.mark.parametrize("count", [1, 4, 7, 12])
def test_predictions_are_those_of_every_example_in_order(estimator, count):
    features = toy_task.examples(count, seed=count)
    found = estimator.predict(toy_task.evaluation_data(features))
    outputs = estimator.model(features)
    expected = estimator.task.predictions(features, outputs)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert len(found[name]) == count
        np.testing.assert_allclose(found[name], values, rtol=1e-5, atol=1e-7)


def test_metrics_are_those_of_all_examples(estimator):
    features = toy_task.examples(7)
    metrics = estimator.evaluate(toy_task.evaluation_data(features))
    losses = estimator.task.losses(features, estimator.model(features))
    mean = np.sum(losses["class_loss"]) / features["weight"].sum()
    assert metrics == {
        "loss": pytest.approx(mean, rel=1e-5),
        "examples": 7,
        "global_step": 0,
    }


def test_evaluating_compiled_gives_the_same(tmp_path, estimator):
    features = toy_task.examples(7)
    data = toy_task.evaluation_data(features)
    compiled = make(tmp_path, jit_compile=True).predict(data)
    np.testing.assert_allclose(
        compiled["logits"], estimator.predict(data)["logits"], rtol=1e-5
    )


def bucketed(features, sizes, seed=5):
    """Batches of many sizes and lengths, in any order, for `predict`.

    Args:
      features: What `toy_task.examples` gives.
      sizes: Per batch, how often it has batch_size rows, and the length.
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
    """Counts how often a graph is made of it."""

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
        # Filled up to the longest.
        assert found["ids"].shape == (23, 7)
        np.testing.assert_array_equal(found["ids"][:, 0], features["ids"][:, 0])
        assert task.traces == replicas


def test_static_lengths_stay_static(tmp_path, monkeypatch):
    """A TPU can do with no others."""
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


def test_nothing_to_evaluate(estimator):
    features = {name: values[:0] for name, values in EXAMPLES.items()}
    with pytest.raises(InputError, match="no examples"):
        estimator.evaluate(toy_task.evaluation_data(features))


def test_evaluating_on_the_way_does_not_disturb(tmp_path, whole):
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
    [
        (False, False),
        pytest.param(False, True, marks=pytest.mark.slow),
        pytest.param(True, False, marks=pytest.mark.slow),
        pytest.param(True, True, marks=pytest.mark.slow),
    ],
)
def test_nothing_is_left_of_a_training(tmp_path, one_device, jit_compile):
    """Or several in one process, as of a grid, would not fit into memory."""

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
