"""An update does not depend on devices or on how the batch is split."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_tf import kernels
from bert_tf.config import BertConfig
from bert_tf.optimization import (
    AdamWeightDecay,
    Lamb,
    WarmupLinearDecay,
)
from bert_tf.tasks.pretraining import PretrainingTask
from bert_tf.training.step import TrainingStep, cut, fill_up, step_seed
from tests.training import toy_task

BATCH = 12
STEPS = 4
CONFIG = BertConfig(
    vocab_size=31,
    hidden_size=8,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=11,
    max_position_embeddings=13,
    type_vocab_size=2,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)


class Run:
    """The records of some steps, and the weights and slots after them."""

    def __init__(self, records, model, optimizer):
        self.records = {k: v.numpy() for k, v in records.items()}
        self.weights = {v.path: v.numpy() for v in model.trainable_variables}
        slots = optimizer.slot_variables()
        self.slots = {k: v.numpy() for k, v in slots.items()}


def run(
    task,
    features,
    replicas=1,
    strategy=None,
    steps=STEPS,
    optimizer=AdamWeightDecay,
    rate=0.01,
    **options,
):
    """Trains a fresh model.

    Args:
      features: The examples of all batches, in order, or a function from
        batch_size to batches.
    """
    if strategy is None:
        strategy = tf.distribute.get_strategy()
    if replicas == 2:
        strategy = toy_task.two_devices()
    keras.utils.set_random_seed(5)
    with strategy.scope():
        model = task.build_model()
        optimizer = optimizer(WarmupLinearDecay(rate, max(10, steps), 2))
        optimizer.build(model.trainable_variables)
    step = TrainingStep(task, model, optimizer, strategy, **options)
    data = features
    if isinstance(features, dict):
        data = toy_task.training_data(features)
    batches = strategy.distribute_datasets_from_function(
        lambda context: data(BATCH // replicas)
    )
    records = step.run(iter(batches), tf.constant(steps))
    return Run(records, model, optimizer)


def uneven_records(count):
    """Pre-training examples; few words are masked in the first half."""
    random = np.random.default_rng(2)

    def integers(limit, *shape):
        return random.integers(0, limit, [count, *shape]).astype("int32")

    masked = np.where(np.arange(count) % BATCH < BATCH // 2, 0.2, 0.9)
    weights = random.random([count, 3]) < masked[:, np.newaxis]
    return {
        "input_ids": integers(31, 11),
        "input_mask": np.ones([count, 11], "int32"),
        "segment_ids": integers(2, 11),
        "masked_lm_positions": integers(11, 3),
        "masked_lm_ids": integers(31, 3),
        "masked_lm_weights": weights.astype("float32"),
        "next_sentence_labels": integers(2, 1),
    }


def assert_same(run, other, tolerance=1e-6):
    for name, weight in run.weights.items():
        np.testing.assert_allclose(
            other.weights[name], weight, atol=tolerance, err_msg=name
        )
    # Adam's steps hardly depend on a gradient's length; its moments do.
    for name, slot in run.slots.items():
        np.testing.assert_allclose(
            other.slots[name],
            slot,
            atol=1e-7,
            rtol=1e-3,
            err_msg=name,
        )
    for name, values in run.records.items():
        np.testing.assert_allclose(
            other.records[name], values, rtol=1e-5, err_msg=name
        )


@pytest.fixture(scope="module")
def pretraining():
    """A run of the pre-training task on one device; a function repeats it."""
    task = PretrainingTask(CONFIG, 11, 3)
    features = uneven_records(STEPS * BATCH)

    def again(**options):
        return run(task, features, max_grad_norm=0.5, **options)

    return again(), again


def test_the_batch_is_uneven_and_gradients_are_clipped(pretraining):
    weights = uneven_records(STEPS * BATCH)["masked_lm_weights"].sum(1)
    halves = weights.reshape(STEPS, 2, -1).sum(2)
    assert (halves[:, 1] > 2 * halves[:, 0]).all()
    once, _ = pretraining
    assert (once.records["gradient_norm"] > 0.5).all()


@pytest.mark.slow
@pytest.mark.parametrize("jit_compile", [False, True])
def test_a_strategy_with_one_replica_trains_too(pretraining, jit_compile):
    """As "mirrored" on a machine with one GPU."""
    once, again = pretraining
    strategy = toy_task.mirrored(1)
    assert_same(once, again(strategy=strategy, jit_compile=jit_compile))


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"jit_compile": True, "micro_batches": 3},
        {"jit_compile": True, "replicas": 2},
        {"jit_compile": True, "replicas": 2, "micro_batches": 2},
    ],
    ids=str,
)
def test_a_pretraining_batch_may_be_split_in_any_way(pretraining, options):
    once, again = pretraining
    assert_same(once, again(**options))


@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"micro_batches": 3}, marks=pytest.mark.slow),
        pytest.param({"replicas": 2}, marks=pytest.mark.slow),
        pytest.param(
            {"replicas": 2, "micro_batches": 2}, marks=pytest.mark.slow
        ),
    ],
    ids=str,
)
def test_fused_passes_change_nothing(pretraining, fused, options):
    once, again = pretraining
    if options == {"micro_batches": 3}:
        again(steps=1)
        assert not fused
    assert_same(once, again(jit_compile_passes=True, **options))
    assert fused == {"gelu", "residual_layer_norm", "cross_entropy"}


@pytest.fixture
def fused(monkeypatch):
    """Names of the operations that were fused, for tensors of any size."""
    names = set()
    monkeypatch.setattr(kernels, "LEAST_SIZE", 1)
    for name in ("gelu", "residual_layer_norm", "cross_entropy"):
        original = getattr(kernels, f"_fused_{name}")

        def spy(*arguments, name=name, original=original):
            names.add(name)
            return original(*arguments)

        monkeypatch.setattr(kernels, f"_fused_{name}", spy)
    return names


def ragged(features, replicas=1):
    """Epochs whose last batch is short.

    Of 29 examples the last 5 go to the first of two replicas, none to the
    second; the third of three micro-batches gets one.
    """
    count = len(next(iter(features.values())))
    assert count % BATCH == 5

    def batches(batch_size):
        shares = tf.data.Dataset.from_tensor_slices(
            [
                start + share
                for start in range(0, count, BATCH)
                for share in range(0, BATCH, BATCH // replicas)
            ]
        )
        return shares.repeat().map(
            lambda start: {
                name: tf.constant(values)[start : start + batch_size]
                for name, values in features.items()
            }
        )

    return batches


@pytest.fixture(scope="module")
def ragged_pretraining():
    """30 steps of the pre-training task, with ten ends of an epoch."""
    task = PretrainingTask(CONFIG, 11, 3)
    examples = uneven_records(29)

    def again(replicas=1, **options):
        return run(
            task,
            ragged(examples, replicas),
            replicas,
            steps=30,
            max_grad_norm=0.5,
            rate=1e-3,
            **options,
        )

    return again(), again


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"micro_batches": 2},
        {"replicas": 2},
        {"micro_batches": 3, "replicas": 2},
    ],
    ids=str,
)
def test_ragged_batches_and_replicas_without_examples(
    ragged_pretraining, options
):
    once, again = ragged_pretraining
    assert (once.records["gradient_norm"] > 0.5).all()
    assert_same(once, again(**options))


def test_every_variable_of_a_pretrainer_has_a_gradient(pretraining):
    once, _ = pretraining
    moments = [v for k, v in once.slots.items() if k.endswith("adam_m")]
    assert len(moments) == len(once.weights) == 30
    for name, values in once.slots.items():
        assert np.any(values != 0), name


def test_parts_of_the_loss_add_up(pretraining):
    records = pretraining[0].records
    np.testing.assert_allclose(
        records["loss"],
        records["masked_lm_loss"] + records["next_sentence_loss"],
        rtol=1e-6,
    )


@pytest.fixture(scope="module")
def toy():
    """As `pretraining`, with the toy task."""
    features = toy_task.examples(STEPS * BATCH)
    task = toy_task.ToyTask()

    def again(**options):
        return run(task, features, max_grad_norm=0.1, **options)

    return again(), again


@pytest.mark.parametrize(
    "options",
    [
        {"replicas": 2},
        {"micro_batches": 3},
        {"jit_compile": True},
        pytest.param(
            {"jit_compile": True, "replicas": 2, "micro_batches": 3},
            marks=pytest.mark.slow,
        ),
    ],
    ids=str,
)
def test_a_toy_batch_may_be_split_in_any_way(toy, options):
    once, again = toy
    assert_same(once, again(**options))


@pytest.mark.parametrize(
    "jit_compile", [False, pytest.param(True, marks=pytest.mark.slow)]
)
def test_a_ragged_batch_may_be_split_in_any_way(jit_compile):
    task, examples = toy_task.ToyTask(), toy_task.examples(29)
    settings = {"steps": 6, "max_grad_norm": 0.1}
    once = run(task, ragged(examples), **settings)
    settings |= {"micro_batches": 3, "jit_compile": jit_compile}
    assert_same(once, run(task, ragged(examples, 2), replicas=2, **settings))


def test_a_batch_may_be_split_with_lamb():
    features = toy_task.examples(STEPS * BATCH)
    once = run(toy_task.ToyTask(), features, optimizer=Lamb)
    split = {"replicas": 2, "micro_batches": 2}
    again = run(toy_task.ToyTask(), features, optimizer=Lamb, **split)
    assert_same(once, again)


def test_a_step_equals_the_formula(toy):
    """The first update: global means, clipping, Adam from zero."""
    features = {k: v[:BATCH] for k, v in toy_task.examples(BATCH).items()}
    task = toy_task.ToyTask()
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

    once = run(task, features, steps=1, max_grad_norm=0.1)
    np.testing.assert_allclose(once.records["loss"], [loss], rtol=1e-6)
    np.testing.assert_allclose(once.records["gradient_norm"], [norm], rtol=1e-5)
    for variable, gradient in zip(
        model.trainable_variables, gradients, strict=True
    ):
        np.testing.assert_allclose(
            once.slots[f"{variable.path}/adam_m"],
            0.1 * gradient * 0.1 / norm,
            rtol=1e-4,
            atol=1e-9,
        )


def test_the_learning_rate_is_recorded(toy):
    np.testing.assert_allclose(
        toy[0].records["learning_rate"], [0.0, 0.005, 0.008, 0.007], rtol=1e-6
    )


def test_a_norm_of_zero_disables_clipping():
    features = toy_task.examples(BATCH)
    task = toy_task.ToyTask()
    free = run(task, features, steps=1, max_grad_norm=0)
    clipped = run(task, features, steps=1, max_grad_norm=0.01)
    [norm] = free.records["gradient_norm"]
    assert norm > 0.1
    for name, slot in clipped.slots.items():
        power = 1 if name.endswith("adam_m") else 2
        np.testing.assert_allclose(
            slot * (norm / 0.01) ** power,
            free.slots[name],
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


@pytest.mark.parametrize(
    "replicas", [1, pytest.param(2, marks=pytest.mark.slow)]
)
def test_one_trace_serves_batches_of_all_lengths(replicas):
    """The mean of equal rows of the table does not depend on their number."""
    traces = []

    class CountingTask(toy_task.ToyTask):
        def losses(self, features, outputs):
            traces.append(features["ids"].shape)
            return super().losses(features, outputs)

    features = toy_task.examples(STEPS * BATCH)
    features["ids"][:] = features["ids"][:, :1]
    once = run(toy_task.ToyTask(), features)

    def batches(batch_size, **_):
        rows = tf.data.Dataset.from_tensor_slices(features).batch(batch_size)
        return rows.enumerate().map(
            lambda index, batch: {
                **batch,
                "ids": batch["ids"][:, : 1 + (index // replicas) % 4],
            }
        )

    assert batches(BATCH).element_spec["ids"].shape.as_list() == [None, None]
    again = run(
        CountingTask(),
        batches,
        replicas=replicas,
        micro_batches=3,
    )
    assert_same(once, again)
    assert [shape.as_list() for shape in traces] == [[None, None]] * replicas


@pytest.mark.parametrize(
    ("count", "parts", "sources"),
    [
        (6, 3, [0, 1, 2, 3, 4, 5]),
        (5, 3, [0, 1, 2, 3, 4, 4]),
        (1, 3, [0, 0, 0]),
        (0, 3, []),
        (7, 1, [0, 1, 2, 3, 4, 5, 6]),
    ],
)
@pytest.mark.parametrize("is_known", [True, False])
def test_a_batch_is_padded_with_copies_that_do_not_count(
    count, parts, sources, is_known
):
    values = np.arange(2 * count).reshape(count, 2)
    shape = [count if is_known else None, 2]

    @tf.function(input_signature=[tf.TensorSpec(shape, tf.int64)])
    def filled(x):
        return fill_up({"x": x}, parts)

    found, counts = filled(values)
    np.testing.assert_array_equal(found["x"], values[sources])
    expected = np.arange(len(sources)) < count
    np.testing.assert_array_equal(counts, expected.astype("float32"))
    assert counts.dtype == tf.float32


@pytest.mark.parametrize("shape", [[12, 5], [None, 5], [12, None], [None] * 2])
def test_parts_of_a_batch_keep_its_static_shape(shape):
    values = np.arange(60).reshape(12, 5)

    @tf.function(input_signature=[tf.TensorSpec(shape, tf.int64)])
    def cut_in_graph(x):
        result = cut({"x": x}, 3)["x"]
        rows = shape[0] and 4
        assert result.shape.as_list() == [3, rows, shape[1]]
        return result

    expected = values.reshape(3, 4, 5)
    np.testing.assert_array_equal(cut_in_graph(values), expected)
    np.testing.assert_array_equal(cut({"x": values}, 3)["x"], expected)


# Dropout.


def dropped(seed, **options):
    """Returns weights after a few steps with dropout."""
    features = toy_task.examples(STEPS * BATCH)
    task = toy_task.ToyTask(dropout_rate=0.5)
    options = {"random_seed": seed, **options}
    return run(task, features, **options).weights["toy/head/kernel"]


@pytest.mark.parametrize(
    "options",
    [
        {"replicas": 2},
        pytest.param({"jit_compile": True}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_dropout_is_a_function_of_the_seed(options):
    once = dropped(3, **options)
    # Other random numbers of the program do not matter.
    keras.utils.set_random_seed(99)
    np.testing.assert_array_equal(dropped(3, **options), once)
    assert not np.allclose(dropped(4, **options), once)


class MaskTask(toy_task.ToyTask):
    """Its table is ones, so that the loss shows the dropout mask."""

    loss_names = ("mask_loss",)

    def build_model(self):
        model = super().build_model()
        model.table.embeddings.assign(np.ones([toy_task.ROWS, toy_task.WIDTH]))
        return model

    def loss_weights(self, features):
        return {"mask_loss": features["weight"]}

    def losses(self, features, outputs):
        """A binary number with a digit for each element that is kept."""
        kept = tf.cast(outputs["pooled"] > 0, tf.float32)
        place = 2.0 ** tf.range(toy_task.WIDTH, dtype=tf.float32)
        number = tf.reduce_sum(kept * place, axis=1)
        return {"mask_loss": number * features["weight"]}


def masks(steps, replicas=1, micro_batches=1, weights=None):
    """Returns the mean number of the masks at each step."""
    features = toy_task.examples(BATCH)
    features["weight"][:] = 1 if weights is None else weights
    task = MaskTask(dropout_rate=0.5)
    options = {"replicas": replicas, "micro_batches": micro_batches}
    return run(task, features, steps=steps, **options).records["mask_loss"]


@pytest.mark.parametrize("replicas", [1, 2])
def test_steps_replicas_and_micro_batches_have_different_masks(replicas):
    """Gives weight to one half of the batch at a time."""
    cut = {"replicas": replicas, "micro_batches": 3 - replicas}
    first, second = np.repeat([1, 0], BATCH // 2), np.repeat([0, 1], BATCH // 2)
    means = [masks(steps=7, weights=w, **cut) for w in (first, second)]
    assert len(set(zip(*(mean.tolist() for mean in means), strict=True))) == 7
    assert (means[0] != means[1]).any()


def test_seeds_are_all_different():
    seeds = {
        tuple(step_seed(seed, step, replica).numpy())
        for seed in (0, 1, 2**31 - 1)
        for step in range(11)
        for replica in range(7)
    }
    assert len(seeds) == 3 * 11 * 7
