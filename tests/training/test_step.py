"""An update does not depend on devices or on how the batch is split."""

import functools
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_tf.config import BertConfig
from bert_tf.kinds.pretraining.task import PretrainingTask
from bert_tf.modeling import kernels
from bert_tf.modeling.optimization import (
    AdamWeightDecay,
    Lamb,
    WarmupLinearDecay,
)
from bert_tf.training.step import (
    INITIAL_LOSS_SCALE,
    LOSS_SCALE_GROWTH_STEPS,
    TrainingStep,
    next_loss_scale,
)
from tests import small_pretraining
from tests.training import toy_task

BATCH = 12
STEPS = 4
CONFIG = BertConfig.from_dict(
    {
        **small_pretraining.CONFIG,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
)
slow = pytest.mark.slow


def run(
    task,
    features,
    replicas=0,
    steps=STEPS,
    optimizer=AdamWeightDecay,
    rate=0.01,
    after_first=None,
    **options,
):
    """Trains a new model; returns its records, weights and slots.

    `features` has the examples of all batches, or is a function from batch_size
    to batches. 0 `replicas` is the default strategy. `after_first` is called
    after the first step, whose records are not returned.
    """
    strategy = tf.distribute.get_strategy()
    if replicas:
        strategy = toy_task.mirrored(replicas)
    keras.utils.set_random_seed(5)
    with strategy.scope():
        model = task.build_model()
        optimizer = optimizer(WarmupLinearDecay(rate, max(10, steps), 2))
        optimizer.build(model.trainable_variables)
        if model.compute_dtype == "float16":
            state = [INITIAL_LOSS_SCALE, 0.0]
            options["loss_scale"] = keras.Variable(state, dtype="float32")
    step = TrainingStep(task, model, optimizer, strategy, **options)
    data = features
    if isinstance(features, dict):
        data = toy_task.training_data(features)
    batches = strategy.distribute_datasets_from_function(
        lambda context: data(BATCH // max(1, replicas))
    )
    batches = iter(batches)
    if after_first is not None:
        step.run(batches, tf.constant(1))
        after_first(model, optimizer)
        steps -= 1
    records = step.run(batches, tf.constant(steps))
    weights = {v.path: v.numpy() for v in model.trainable_variables}
    for variable in model.trainable_variables:
        for copy in strategy.experimental_local_results(variable.value):
            np.testing.assert_array_equal(copy, weights[variable.path])
    slots = optimizer.slot_variables().items()
    return types.SimpleNamespace(
        records={name: values.numpy() for name, values in records.items()},
        weights=weights,
        slots={name: slot.numpy() for name, slot in slots},
    )


def ragged(features, replicas=1):
    """Epochs of 29 examples, whose last 5 all go to the first replica.

    The third of three micro-batches gets one of them.
    """
    size = BATCH // replicas
    starts = tf.data.Dataset.range(0, 29 + BATCH - 5, size).repeat()
    return lambda batch_size: starts.map(
        lambda start: {
            name: tf.constant(values)[start : start + size]
            for name, values in features.items()
        }
    )


def assert_same(run, other):
    for name, weight in run.weights.items():
        np.testing.assert_allclose(
            other.weights[name], weight, atol=1e-6, err_msg=name
        )
    # Adam's steps hardly depend on a gradient's length; its moments do.
    for name, slot in run.slots.items():
        np.testing.assert_allclose(
            other.slots[name], slot, atol=1e-7, rtol=1e-3, err_msg=name
        )
    for name, values in run.records.items():
        np.testing.assert_allclose(
            other.records[name], values, rtol=1e-5, err_msg=name
        )


TASK = PretrainingTask(CONFIG, 11, 3)


def pretrain(**options):
    """Trains on batches whose halves have different numbers of masked words."""
    records = small_pretraining.examples(STEPS * BATCH)
    return run(TASK, records, max_grad_norm=0.5, **options)


@pytest.fixture(scope="module")
def pretraining():
    return pretrain()


def test_a_pretraining_step(pretraining):
    """Gradients are clipped, every variable has one, and losses add up."""
    weights = small_pretraining.examples(STEPS * BATCH)["masked_lm_weights"]
    halves = weights.reshape(STEPS, 2, -1).sum(2)
    assert (halves[:, 0] != halves[:, 1]).any()
    records = pretraining.records
    assert (records["gradient_norm"] > 0.5).all()
    assert len(pretraining.slots) == 2 * len(pretraining.weights) == 60
    for name, values in pretraining.slots.items():
        assert np.any(values != 0), name
    np.testing.assert_allclose(
        records["loss"],
        records["masked_lm_loss"] + records["next_sentence_loss"],
        rtol=1e-6,
    )


@pytest.mark.parametrize(
    "options",
    [{}, pytest.param({"replicas": 2, "micro_batches": 2}, marks=slow)],
    ids=str,
)
def test_fused_passes_change_nothing(pretraining, monkeypatch, options):
    names = {"gelu", "residual_layer_norm", "cross_entropy"}
    fused = set()
    monkeypatch.setattr(kernels, "LEAST_SIZE", 1)
    for name in names:
        original = getattr(kernels, f"_fused_{name}")

        def spy(*arguments, name=name, original=original):
            fused.add(name)
            return original(*arguments)

        monkeypatch.setattr(kernels, f"_fused_{name}", spy)
    assert_same(pretraining, pretrain(jit_compile_passes=True, **options))
    assert fused == names


# Variables differ in learning rate, weight decay and adaptation.
UNEVEN_LAMB = functools.partial(
    Lamb,
    exclude_from_weight_decay=["bias"],
    exclude_from_layer_adaptation=["kernel"],
    rate_multipliers=[("bias", 0.5), ("kernel", 2.0)],
    bias_correction=True,
)


@pytest.mark.parametrize(
    ("options", "split"),
    [
        ({"max_grad_norm": 0.1}, {"replicas": 2}),
        pytest.param(
            {"max_grad_norm": 0.1},
            # As "mirrored" on a machine with one GPU.
            {"replicas": 1, "micro_batches": 3, "jit_compile": True},
            marks=slow,
        ),
        ({"optimizer": Lamb}, {"replicas": 2, "micro_batches": 2}),
        ({"optimizer": UNEVEN_LAMB}, {"jit_compile_passes": True}),
    ],
    ids=["clipping", "compiled", "lamb", "compiled lamb"],
)
def test_a_batch_may_be_split_in_any_way(options, split):
    task, features = toy_task.ToyTask(), toy_task.examples(STEPS * BATCH)
    once = run(task, features, **options)
    assert_same(once, run(task, features, **options, **split))
    np.testing.assert_allclose(
        once.records["learning_rate"], [0.0, 0.005, 0.008, 0.007], rtol=1e-6
    )


@pytest.mark.parametrize("jit_compile", [False, pytest.param(True, marks=slow)])
def test_a_ragged_batch_may_be_split_in_any_way(jit_compile):
    task, features = toy_task.ToyTask(), toy_task.examples(29)
    options = {"steps": 6, "max_grad_norm": 0.1}
    once = run(task, ragged(features), **options)
    options |= {"micro_batches": 3, "jit_compile": jit_compile}
    assert_same(once, run(task, ragged(features, 2), replicas=2, **options))


@pytest.mark.parametrize("max_grad_norm", [0.1, 0])
def test_a_step_equals_the_formula(max_grad_norm):
    """The first update: global means, clipping, Adam from zero."""
    features, task = toy_task.examples(BATCH), toy_task.ToyTask()
    keras.utils.set_random_seed(5)
    model = task.build_model()
    with tf.GradientTape() as tape:
        outputs = model(features)
        losses = task.losses(features, outputs)
        loss = tf.reduce_sum(losses["class_loss"]) / features["weight"].sum()
        loss += tf.reduce_mean(losses["size_loss"])
    variables = [v.value for v in model.trainable_variables]
    sparse = tape.gradient(loss, variables)
    gradients = [tf.convert_to_tensor(g).numpy() for g in sparse]
    norm = np.sqrt(sum((g**2).sum() for g in gradients))
    # The original's norm on CPUs and GPUs does not sum repeated rows.
    assert abs(tf.linalg.global_norm(sparse) - norm) > 0.01 * norm
    assert norm > 0.2

    once = run(task, features, steps=1, max_grad_norm=max_grad_norm)
    np.testing.assert_allclose(once.records["loss"], [loss], rtol=1e-6)
    np.testing.assert_allclose(once.records["gradient_norm"], [norm], rtol=1e-5)
    factor = max_grad_norm / norm if max_grad_norm else 1
    for variable, gradient in zip(
        model.trainable_variables, gradients, strict=True
    ):
        np.testing.assert_allclose(
            once.slots[f"{variable.path}/adam_m"],
            0.1 * gradient * factor,
            rtol=1e-4,
            atol=1e-9,
        )


def test_a_batch_without_weights_does_not_give_nan():
    features = toy_task.examples(BATCH)
    features["weight"][:] = 0
    once = run(toy_task.ToyTask(), features, steps=2)
    assert (once.records["class_loss"] == 0).all()
    assert all(np.isfinite(w).all() for w in once.weights.values())
    assert not once.slots["toy/head/kernel/adam_m"].any()


def test_one_trace_serves_batches_of_all_lengths():
    """The mean of equal rows of the table does not depend on their number."""
    traces = []

    class CountingTask(toy_task.ToyTask):
        def losses(self, features, outputs):
            traces.append(features["ids"].shape.as_list())
            return super().losses(features, outputs)

    features = toy_task.examples(STEPS * BATCH)
    features["ids"][:] = features["ids"][:, :1]
    once = run(toy_task.ToyTask(), features)

    def batches(batch_size):
        rows = tf.data.Dataset.from_tensor_slices(features).batch(batch_size)
        return rows.enumerate().map(
            lambda i, batch: {**batch, "ids": batch["ids"][:, : 1 + i % 4]}
        )

    assert_same(once, run(CountingTask(), batches, micro_batches=3))
    assert traces == [[None, None]]


@pytest.fixture
def float16():
    keras.config.set_dtype_policy("mixed_float16")
    yield
    keras.config.set_dtype_policy("float32")


class WithLargeGradients(toy_task.ToyTask):
    """The gradients of examples with label 9 are too large for float16."""

    def losses(self, features, outputs):
        is_large = features["label"] == 9
        label = tf.where(is_large, 0, features["label"])
        losses = super().losses({**features, "label": label}, outputs)
        losses["size_loss"] *= tf.where(is_large, 1e9, 1.0)
        return losses


def test_small_gradients_do_not_become_0(float16):
    """The first table's are up to 1e-7; float16's step is 6e-8."""

    class SmallTask(toy_task.ToyTask):
        def losses(self, features, outputs):
            losses = super().losses(features, outputs)
            return {name: 1e-6 * loss for name, loss in losses.items()}

    features = toy_task.examples(BATCH)
    half = run(SmallTask(), features, steps=1)
    keras.config.set_dtype_policy("float32")
    once = run(SmallTask(), features, steps=1)
    for name, slot in once.slots.items():
        np.testing.assert_allclose(
            half.slots[name], slot, rtol=1e-3, atol=1e-3 * np.abs(slot).max()
        )


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, marks=slow),
        {"replicas": 2, "micro_batches": 2},
        pytest.param({"jit_compile": True}, marks=slow),
        pytest.param({"jit_compile_passes": True}, marks=slow),
    ],
    ids=str,
)
def test_a_step_with_large_gradients_is_skipped(float16, options):
    """The losses of the last example of the first step."""
    task, features = WithLargeGradients(), toy_task.examples(STEPS * BATCH)
    features["label"][BATCH - 1] = 9
    keras.utils.set_random_seed(5)
    initial = task.build_model().trainable_variables

    def check_first(model, optimizer):
        for variable, old in zip(
            model.trainable_variables, initial, strict=True
        ):
            np.testing.assert_array_equal(variable, old)
        slots = optimizer.slot_variables().values()
        assert not any(slot.numpy().any() for slot in slots)

    once = run(task, features, after_first=check_first, **options)
    for variable in initial:
        weight = once.weights[variable.path]
        assert not np.array_equal(weight, variable)
        assert np.isfinite(weight).all()
    records = once.records
    scales = [INITIAL_LOSS_SCALE / 2] * (STEPS - 1)
    np.testing.assert_array_equal(records["loss_scale"], scales)
    assert np.isfinite(records["gradient_norm"]).all()
    rates = [0.005, 0.008, 0.007]
    np.testing.assert_allclose(records["learning_rate"], rates, rtol=1e-6)


def test_the_next_loss_scale():
    last = LOSS_SCALE_GROWTH_STEPS - 1
    for state, is_finite, expected in [
        ([8.0, 5.0], True, [8.0, 6.0]),
        ([8.0, last], True, [16.0, 0.0]),
        ([8.0, last], False, [4.0, 0.0]),
    ]:
        found = next_loss_scale(tf.constant(state), tf.constant(is_finite))
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    "options", [{"micro_batches": 2}, {"replicas": 2}], ids=str
)
def test_seeds_steps_replicas_and_micro_batches_have_different_masks(options):
    """With equal examples and a learning rate of 0 only the masks differ."""
    features = {k: v[[0] * BATCH] for k, v in toy_task.examples(1).items()}
    task, losses = toy_task.ToyTask(dropout_rate=0.5), []
    for half, seed in ([1, 0], 1), ([0, 1], 1), ([1, 0], 2):
        features["weight"] = np.repeat(np.float32(half), BATCH // 2)
        once = run(
            task, features, rate=0.0, steps=7, random_seed=seed, **options
        )
        losses += once.records["class_loss"].tolist()
    assert len(set(losses)) == 3 * 7
