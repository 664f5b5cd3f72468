"""Optimizers and schedule: formulas in NumPy, names, saving, replicas."""

import inspect
import json
import math
from collections import Counter

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.heads import BertClassifier
from bert_tf.optimization import (
    EXCLUDED_FROM_WEIGHT_DECAY,
    AdamWeightDecay,
    Lamb,
    WarmupLinearDecay,
    check_multipliers,
    layerwise_rates,
    matches,
    multiplier_of,
)

OPTIMIZERS = [AdamWeightDecay, Lamb]


def rate_in_numpy(step, peak, total, warmup):
    if step < warmup:
        return peak * step / warmup
    return peak * (1.0 - min(step, total) / total)


def adam_in_numpy(w, gradients, rates, decay, correct=False):
    """BERT's Adam over a list of gradients, in float64."""
    m, v = np.zeros_like(w), np.zeros_like(w)
    for t, (g, rate) in enumerate(zip(gradients, rates, strict=True), 1):
        m = 0.9 * m + 0.1 * g
        v = 0.999 * v + 0.001 * g**2
        m_hat = m / (1 - 0.9**t) if correct else m
        v_hat = v / (1 - 0.999**t) if correct else v
        w = w - rate * (m_hat / (np.sqrt(v_hat) + 1e-6) + decay * w)
    return w, m, v


def lamb_in_numpy(w, gradients, rates, decay, adapt=True):
    """Algorithm 2 of arXiv 1904.00962 over a list of gradients."""
    m, v = np.zeros_like(w), np.zeros_like(w)
    for t, (g, rate) in enumerate(zip(gradients, rates, strict=True), 1):
        m = 0.9 * m + 0.1 * g
        v = 0.999 * v + 0.001 * g**2
        r = (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-6)
        u = r + decay * w
        ratio = np.linalg.norm(w) / np.linalg.norm(u) if adapt else 1.0
        w = w - rate * ratio * u
    return w, m, v


def variables_like_berts(seed=0):
    """Returns a kernel and a bias of prime sizes, named as in BERT."""
    rng = np.random.default_rng(seed)
    with keras.name_scope("dense"):
        kernel = keras.Variable(
            rng.normal(size=(5, 3)), dtype="float32", name="kernel"
        )
        bias = keras.Variable(
            rng.normal(size=(3,)), dtype="float32", name="bias"
        )
    return kernel, bias


def random_gradients(variables, count, seed=1):
    rng = np.random.default_rng(seed)
    return [
        [rng.normal(size=v.shape).astype("float32") for v in variables]
        for _ in range(count)
    ]


def train(optimizer, variables, gradients):
    for step in gradients:
        optimizer.apply([tf.constant(g) for g in step], variables)


@pytest.mark.parametrize("optimizer_class", OPTIMIZERS)
def test_20_steps_equal_the_formula(optimizer_class):
    variables = variables_like_berts()
    starts = [v.numpy().astype("float64") for v in variables]
    gradients = random_gradients(variables, 20)
    rates = [rate_in_numpy(s, 0.03, 23, 7) for s in range(20)]
    optimizer = optimizer_class(
        WarmupLinearDecay(0.03, 23, 7), weight_decay_rate=0.13
    )
    train(optimizer, variables, gradients)

    kernel_gradients, bias_gradients = zip(*gradients, strict=True)
    if optimizer_class is AdamWeightDecay:
        expected = [
            adam_in_numpy(starts[0], kernel_gradients, rates, 0.13),
            adam_in_numpy(starts[1], bias_gradients, rates, 0.0),
        ]
    else:
        expected = [
            lamb_in_numpy(starts[0], kernel_gradients, rates, 0.13),
            lamb_in_numpy(starts[1], bias_gradients, rates, 0.0, adapt=False),
        ]
    slots = optimizer.slot_variables()
    for variable, (w, m, v) in zip(variables, expected, strict=True):
        path = variable.path
        np.testing.assert_allclose(variable, w, rtol=2e-5, atol=1e-6)
        np.testing.assert_allclose(slots[f"{path}/adam_m"], m, rtol=1e-4)
        np.testing.assert_allclose(slots[f"{path}/adam_v"], v, rtol=1e-4)


def test_bias_correction_equals_the_formula():
    variables = variables_like_berts()
    starts = [v.numpy().astype("float64") for v in variables]
    gradients = random_gradients(variables, 11)
    optimizer = AdamWeightDecay(
        0.03, weight_decay_rate=0.13, bias_correction=True
    )
    train(optimizer, variables, gradients)
    for variable, start, decay, own in zip(
        variables,
        starts,
        [0.13, 0.0],
        zip(*gradients, strict=True),
        strict=True,
    ):
        expected, m, v = adam_in_numpy(
            start, own, [0.03] * 11, decay, correct=True
        )
        np.testing.assert_allclose(variable, expected, rtol=2e-5, atol=1e-6)
        slots = optimizer.slot_variables()
        np.testing.assert_allclose(slots[f"{variable.path}/adam_m"], m, 1e-4)
        np.testing.assert_allclose(slots[f"{variable.path}/adam_v"], v, 1e-4)


@pytest.mark.parametrize("optimizer_class", OPTIMIZERS)
def test_half_precision_stays_near_the_formula(optimizer_class):
    """0.999 is 1 in bfloat16, and LAMB divides by 1 - 0.999^t."""
    gradients = random_gradients(variables_like_berts(), 3)
    results = []
    for dtype in ("float32", "bfloat16"):
        kernel = keras.Variable(np.ones((5, 3)), dtype=dtype, name="kernel")
        optimizer = optimizer_class(0.1)
        for kernel_gradient, _ in gradients:
            optimizer.apply([tf.cast(kernel_gradient, dtype)], [kernel])
        assert {s.dtype for s in optimizer.slot_variables().values()} == {dtype}
        results.append(np.array(tf.cast(kernel, "float32")))
    assert np.abs(results[0] - 1.0).max() > 0.2
    np.testing.assert_allclose(*results, atol=0.03)


def test_the_originals_toy_problem():
    """optimization_test.py of google-research/bert."""
    w = keras.Variable([0.1, -0.2, -0.1], name="w")
    target = tf.constant([0.4, 0.2, -0.5])
    optimizer = AdamWeightDecay(0.2, weight_decay_rate=0.0)
    for _ in range(100):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(target - w))
        optimizer.apply(tape.gradient(loss, [w.value]), [w])
    np.testing.assert_allclose(w, [0.4, 0.2, -0.5], rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(
    ("bias_correction", "factor"), [(False, 0.1 / math.sqrt(0.001)), (True, 1)]
)
def test_the_first_update(bias_correction, factor):
    """It is 3.16 times the learning rate: 0.1 g / sqrt(0.001 g^2)."""
    w = keras.Variable([1.0, 1.0], name="w")
    optimizer = AdamWeightDecay(
        1e-3, weight_decay_rate=0.0, bias_correction=bias_correction
    )
    optimizer.apply([tf.constant([2.0, -0.5])], [w])
    step = 1e-3 * factor
    np.testing.assert_allclose(w, [1 - step, 1 + step], rtol=1e-5)


def test_decay_is_scaled_by_the_rate_and_leaves_the_moments_alone():
    w = keras.Variable([2.0], name="w")
    optimizer = AdamWeightDecay(0.1, weight_decay_rate=0.5)
    optimizer.apply([tf.constant([0.0])], [w])
    np.testing.assert_allclose(w, [2.0 - 0.1 * 0.5 * 2.0])
    assert all(not s.numpy().any() for s in optimizer.slot_variables().values())


def test_lamb_moves_by_rate_times_the_weights_norm():
    w = keras.Variable([3.0, 4.0], name="w")
    before = w.numpy()
    Lamb(0.01).apply([tf.constant([0.7, -0.2])], [w])
    assert np.linalg.norm(w.numpy() - before) == pytest.approx(0.05, rel=1e-4)


def test_lamb_has_ratio_one_where_a_norm_is_zero():
    zero = keras.Variable([0.0, 0.0], name="zero")
    still = keras.Variable([1.0, 2.0], name="still")
    optimizer = Lamb(0.01, weight_decay_rate=0.0)
    optimizer.apply(
        [tf.constant([1.0, -1.0]), tf.constant([0.0, 0.0])], [zero, still]
    )
    np.testing.assert_allclose(zero, [-0.01, 0.01], rtol=1e-4)
    np.testing.assert_array_equal(still, [1.0, 2.0])


def test_lamb_adapts_what_it_is_told_to():
    """As in the paper: exclusion from decay is not one from the ratio."""
    _, bias = variables = variables_like_berts()
    gradients = random_gradients(variables, 3)
    expected, _, _ = lamb_in_numpy(
        bias.numpy().astype("float64"), [g for _, g in gradients], [0.1] * 3, 0
    )
    optimizer = Lamb(0.1, exclude_from_layer_adaptation=())
    train(optimizer, variables, gradients)
    np.testing.assert_allclose(bias, expected, rtol=1e-5)


@pytest.mark.parametrize("optimizer_class", OPTIMIZERS)
def test_rates_are_multiplied_by_pattern(optimizer_class):
    """Factors scale updates with weight decay, but not the moments."""
    steps = 5
    kernel, bias = variables = variables_like_berts()
    gradients = random_gradients(variables, steps)
    kernel_gradients, bias_gradients = zip(*gradients, strict=True)
    rates = np.array([rate_in_numpy(s, 0.03, 23, 3) for s in range(steps)])
    formula = {AdamWeightDecay: adam_in_numpy, Lamb: lamb_in_numpy}
    expected = formula[optimizer_class](
        kernel.numpy().astype("float64"), kernel_gradients, 0.25 * rates, 0.13
    )
    plain = {"adapt": False} if optimizer_class is Lamb else {}
    expected_bias = formula[optimizer_class](
        bias.numpy().astype("float64"), bias_gradients, 3 * rates, 0, **plain
    )
    optimizer = optimizer_class(
        WarmupLinearDecay(0.03, 23, 3),
        weight_decay_rate=0.13,
        rate_multipliers=[("kernel", 0.25), ("^dense/bias$", 3), ("", 0)],
    )
    train(optimizer, variables, gradients)
    slots = optimizer.slot_variables()
    for variable, (w, m, v) in zip(
        variables, (expected, expected_bias), strict=True
    ):
        np.testing.assert_allclose(variable, w, rtol=2e-5, atol=1e-6)
        path = variable.path
        np.testing.assert_allclose(slots[f"{path}/adam_m"], m, rtol=1e-4)
        np.testing.assert_allclose(slots[f"{path}/adam_v"], v, rtol=1e-4)


@pytest.mark.parametrize("optimizer_class", OPTIMIZERS)
def test_a_multiplier_of_zero_freezes(optimizer_class):
    kernel, bias = variables = variables_like_berts()
    before = kernel.numpy(), bias.numpy()
    optimizer = optimizer_class(0.1, rate_multipliers=[("kernel", 0)])
    train(optimizer, variables, random_gradients(variables, 2))
    np.testing.assert_array_equal(kernel, before[0])
    assert (bias.numpy() != before[1]).all()


def test_sparse_gradients_move_every_row():
    """A table looked up in one row only: decay and moments act on all."""
    results = []
    for sparse in (True, False):
        table = keras.Variable(np.ones((7, 2)), dtype="float32", name="table")
        optimizer = AdamWeightDecay(0.1, global_clipnorm=1.0)
        for _ in range(3):
            with tf.GradientTape() as tape:
                rows = tf.nn.embedding_lookup(table.value, [4, 4, 2])
                loss = tf.reduce_sum(rows * rows)
            gradient = tape.gradient(loss, table.value)
            assert isinstance(gradient, tf.IndexedSlices)
            if not sparse:
                gradient = tf.convert_to_tensor(gradient)
            optimizer.apply([gradient], [table])
        results.append(table.numpy())
    np.testing.assert_array_equal(*results)
    assert np.all(results[0] < 1.0)


def test_update_step_takes_a_sparse_gradient():
    table = keras.Variable(np.ones((3, 2)), dtype="float32", name="table")
    optimizer = AdamWeightDecay(0.1)
    optimizer.build([table])
    gradient = tf.IndexedSlices(tf.ones((2, 2)), [1, 1], (3, 2))
    optimizer.update_step(gradient, table, 0.1)
    moments = optimizer.slot_variables()["table/adam_m"].numpy()
    np.testing.assert_allclose(moments[:, 0], [0.0, 0.2, 0.0])
    # The caller counts the steps.
    assert optimizer.iterations.numpy() == 0


# The schedule.


@pytest.mark.parametrize(
    ("step", "rate"),
    [
        (0, 0.0),
        (1, 0.1),
        (9, 0.9),
        (10, 0.9),
        (11, 0.89),
        (99, 0.01),
        (100, 0.0),
        (1000, 0.0),
    ],
)
def test_the_schedules_corner_values(step, rate):
    schedule = WarmupLinearDecay(1.0, num_train_steps=100, num_warmup_steps=10)
    assert float(schedule(step)) == pytest.approx(rate, abs=1e-7)


@pytest.mark.parametrize("warmup", [0, 13, 31])
def test_the_schedule_equals_the_formula_at_every_step(warmup):
    schedule = WarmupLinearDecay(0.3, 29, warmup)
    rates = [float(schedule(step)) for step in range(40)]
    expected = [rate_in_numpy(step, 0.3, 29, warmup) for step in range(40)]
    np.testing.assert_allclose(rates, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    ("total", "warmup", "message"),
    [
        (0, 0, "num_train_steps must be at least 1; got 0"),
        (5, -1, "num_warmup_steps must be at least 0; got -1"),
    ],
)
def test_the_schedule_refuses_impossible_steps(total, warmup, message):
    with pytest.raises(InputError, match=message):
        WarmupLinearDecay(0.1, total, warmup)


# Exclusion and names.


@pytest.mark.parametrize(
    ("path", "is_excluded"),
    [
        ("bert/embeddings/LayerNorm/gamma", True),
        ("bert/embeddings/LayerNorm/beta", True),
        ("bert/encoder/layer_0/attention/self/query/bias", True),
        ("cls/predictions/output_bias", True),
        ("some/layer_normalization/gamma", True),
        ("bert/embeddings/word_embeddings", False),
        ("bert/embeddings/position_embeddings", False),
        ("bert/encoder/layer_0/attention/self/query/kernel", False),
        ("cls/seq_relationship/output_weights", False),
    ],
)
def test_variables_without_weight_decay(path, is_excluded):
    assert matches(EXCLUDED_FROM_WEIGHT_DECAY, path) is is_excluded
    assert matches([r"gamma$", "^bert/embeddings/w"], path) is (
        path.endswith("gamma") or path.endswith("word_embeddings")
    )


def test_the_first_matching_multiplier_counts():
    pairs = [("layer_1/", 0.5), ("kernel$", 0.25), ("layer", 0.0)]
    found = [
        multiplier_of(path, pairs)
        for path in ("layer_1/kernel", "layer_2/kernel", "layer_2/bias", "head")
    ]
    assert found == [0.5, 0.25, 0.0, 1.0]


def test_layerwise_rates_of_a_model():
    assert {factor for _, factor in layerwise_rates(3, 1.0)} == {1.0}
    pairs = layerwise_rates(12, 0.5)
    expected = {
        "bert/embeddings/word_embeddings": 2.0**-13,
        "bert/embeddings/LayerNorm/gamma": 2.0**-13,
        "bert/encoder/layer_0/attention/self/query/kernel": 2.0**-12,
        "bert/encoder/layer_1/output/dense/bias": 2.0**-11,
        "bert/encoder/layer_10/output/dense/bias": 2.0**-2,
        "classifier/bert/encoder/layer_11/intermediate/dense/kernel": 0.5,
        "bert/pooler/dense/kernel": 1.0,
        "output_weights": 1.0,
        "cls/predictions/transform/LayerNorm/beta": 1.0,
    }
    assert {path: multiplier_of(path, pairs) for path in expected} == expected
    config = BertConfig(
        vocab_size=31,
        hidden_size=6,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=7,
        max_position_embeddings=11,
    )
    model = BertClassifier(config, num_labels=5)
    model.build()
    pairs = layerwise_rates(3, 0.5)
    counts = Counter(
        multiplier_of(v.path, pairs) for v in model.trainable_variables
    )
    # Embeddings: 3 tables, gamma, beta; a layer: 6 kernels, 6 biases, 2 norms;
    # the pooler's and the classifier's kernel and bias.
    assert counts == {2.0**-4: 5, 2.0**-3: 16, 2.0**-2: 16, 0.5: 16, 1.0: 4}


@pytest.mark.parametrize("decay", [0, -0.5, 1.01, math.nan])
def test_a_layerwise_decay_out_of_range(decay):
    with pytest.raises(InputError, match=f"at most 1; got {decay}"):
        layerwise_rates(3, decay)


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        (("a", -1), "'a' in rate_multipliers must be .* got -1.0"),
        (("a", math.inf), "'a' in rate_multipliers must be .* got inf"),
        (("a", math.nan), "'a' in rate_multipliers must be .* got nan"),
        (("(", 1), r"'\(' in rate_multipliers is not .* missing \)"),
    ],
)
def test_invalid_multipliers(pair, message):
    with pytest.raises(InputError, match=message):
        AdamWeightDecay(0.1, rate_multipliers=[("fine", 0), pair])
    # JSON has lists and integers.
    assert check_multipliers([["a", 1], ("b", 0)]) == (("a", 1.0), ("b", 0.0))


@pytest.mark.parametrize("optimizer_class", OPTIMIZERS)
def test_the_optimizer_decays_kernels_only(optimizer_class):
    """With gradients of 0, only weight decay changes variables."""
    variables = variables_like_berts()
    before = [v.numpy() for v in variables]
    optimizer = optimizer_class(0.1, weight_decay_rate=0.5)
    train(optimizer, variables, [[np.zeros_like(w) for w in before]])
    moved = [
        v.path
        for v, old in zip(variables, before, strict=True)
        if not np.array_equal(v, old)
    ]
    assert moved == ["dense/kernel"]
    assert optimizer.describe() == (
        f"{optimizer_class.__name__}: weight decay 0.5 on 1 variables "
        "(15 weights), none on 1 variables (3 weights)"
    )


def test_slots_are_named_by_the_variables_path():
    variables = variables_like_berts()
    optimizer = AdamWeightDecay(0.1)
    optimizer.build(list(variables))
    slots = optimizer.slot_variables()
    assert {name: tuple(slot.shape) for name, slot in slots.items()} == {
        "dense/kernel/adam_m": (5, 3),
        "dense/kernel/adam_v": (5, 3),
        "dense/bias/adam_m": (3,),
        "dense/bias/adam_v": (3,),
    }


def test_slots_do_not_depend_on_the_order_of_variables():
    """What resuming by position, Keras's own way, would get wrong."""
    kernel, bias = variables_like_berts()
    gradients = random_gradients((kernel, bias), 2)
    slots = []
    for reverse in (False, True):
        optimizer = AdamWeightDecay(0.1)
        order = -1 if reverse else 1
        steps = [step[::order] for step in gradients]
        train(optimizer, [kernel, bias][::order], steps)
        slots.append(
            {k: v.numpy() for k, v in optimizer.slot_variables().items()}
        )
    assert slots[0].keys() == slots[1].keys()
    for name, slot in slots[0].items():
        np.testing.assert_array_equal(slot, slots[1][name])


def test_slots_of_variables_that_share_a_path_are_refused():
    variables = [keras.Variable([1.0], name="twin") for _ in range(2)]
    optimizer = AdamWeightDecay(0.1)
    optimizer.build(variables)
    with pytest.raises(ValueError, match="must be unique; several have twin"):
        optimizer.slot_variables()


@pytest.mark.parametrize("method", ["slot_variables", "describe"])
def test_what_needs_building_says_so(method):
    with pytest.raises(ValueError, match="AdamWeightDecay is not built"):
        getattr(AdamWeightDecay(0.1), method)()


# As a Keras object.


UNUSUAL_ARGUMENTS = {
    "weight_decay_rate": 0.2,
    "beta_1": 0.8,
    "beta_2": 0.98,
    "epsilon": 1e-4,
    "exclude_from_weight_decay": ["gamma", "beta"],
    "exclude_from_layer_adaptation": ["beta"],
    "rate_multipliers": [["gamma", 0.5], ["beta", 0.0]],
    "clipnorm": 1.5,
    "clipvalue": 2.5,
    "global_clipnorm": 3.5,
    "ema_momentum": 0.7,
    "ema_overwrite_frequency": 5,
    "loss_scale_factor": 8.0,
    "gradient_accumulation_steps": 3,
    "name": "unusual",
}


def own_and_inherited_arguments(optimizer_class):
    names = inspect.signature(optimizer_class).parameters.keys()
    inherited = inspect.signature(keras.optimizers.SGD).parameters.keys()
    return (names | inherited) - {
        *("self", "kwargs", "learning_rate", "momentum", "nesterov"),
        "weight_decay",
    }


@pytest.mark.parametrize("optimizer_class", OPTIMIZERS)
def test_get_config_holds_every_argument(optimizer_class):
    for name in own_and_inherited_arguments(optimizer_class):
        default = optimizer_class(0.25).get_config()[name]
        value = UNUSUAL_ARGUMENTS.get(name, default is False)
        original = optimizer_class(0.25, **{name: value})
        assert original.get_config()[name] == value
        assert default != value
        copy = optimizer_class.from_config(original.get_config())
        assert copy.get_config() == original.get_config()


@pytest.mark.parametrize("optimizer_class", OPTIMIZERS)
def test_serialization_with_a_schedule(optimizer_class):
    original = optimizer_class(WarmupLinearDecay(0.3, 29, 7))
    data = keras.saving.serialize_keras_object(original)
    json.dumps(data)
    assert data["registered_name"] == f"bert_tf>{optimizer_class.__name__}"
    copy = keras.saving.deserialize_keras_object(data)
    assert isinstance(copy, optimizer_class)
    assert copy.get_config() == original.get_config()
    rate = copy.get_config()["learning_rate"]
    assert rate["registered_name"] == "bert_tf>WarmupLinearDecay"
    assert rate["config"] == {
        "peak": 0.3,
        "num_train_steps": 29,
        "num_warmup_steps": 7,
    }


def test_kerass_own_weight_decay_is_refused():
    with pytest.raises(InputError, match="Pass weight_decay_rate instead"):
        AdamWeightDecay(0.1, weight_decay=0.1)
    with pytest.raises(InputError, match=r"to AdamWeightDecay\("):
        AdamWeightDecay(0.1).exclude_from_weight_decay(var_names=["bias"])


def toy_model():
    return keras.Sequential(
        [keras.Input((3,)), keras.layers.Dense(5), keras.layers.Dense(1)]
    )


def toy_data():
    x = np.random.default_rng(2).normal(size=(29, 3)).astype("float32")
    return x, x.sum(axis=1, keepdims=True)


@pytest.mark.parametrize(
    "optimizer_class",
    [AdamWeightDecay, pytest.param(Lamb, marks=pytest.mark.slow)],
)
def test_compile_and_fit_learn(optimizer_class):
    keras.utils.set_random_seed(3)
    model = toy_model()
    optimizer = optimizer_class(
        WarmupLinearDecay(0.05, 60, 6), global_clipnorm=1.0
    )
    model.compile(optimizer, "mse", jit_compile=True)
    losses = model.fit(*toy_data(), 10, epochs=20, verbose=0).history["loss"]
    assert losses[-1] < 0.2 * losses[0]
    assert optimizer.iterations.numpy() == 60


@pytest.mark.parametrize("optimizer_class", OPTIMIZERS)
def test_fit_multiplies_rates(optimizer_class):
    model = toy_model()
    first, last = model.layers
    before = [first.kernel.numpy(), last.kernel.numpy()]
    multipliers = [(f"^{first.kernel.path}$", 0.0)]
    optimizer = optimizer_class(0.05, rate_multipliers=multipliers)
    model.compile(optimizer, "mse")
    model.fit(*toy_data(), 10, verbose=0)
    np.testing.assert_array_equal(first.kernel, before[0])
    assert (last.kernel.numpy() != before[1]).any()


@pytest.mark.parametrize("optimizer_class", OPTIMIZERS)
def test_a_saved_model_goes_on_as_the_first_would(tmp_path, optimizer_class):
    keras.utils.set_random_seed(3)
    model = toy_model()
    model.compile(optimizer_class(WarmupLinearDecay(0.05, 60, 6)), "mse")
    model.fit(*toy_data(), 10, shuffle=False, verbose=0)
    model.save(tmp_path / "toy.keras")
    copy = keras.saving.load_model(tmp_path / "toy.keras")
    assert isinstance(copy.optimizer, optimizer_class)
    for each in (model, copy):
        each.fit(*toy_data(), 10, shuffle=False, verbose=0)
    for a, b in zip(model.weights, copy.weights, strict=True):
        np.testing.assert_array_equal(a, b)


def mirrored(devices):
    """A strategy without collective operations.

    Their keys begin anew with each strategy, but live as long as the process:
    a second model under a second strategy would meet the first one's shapes.
    """
    return tf.distribute.MirroredStrategy(
        devices, cross_device_ops=tf.distribute.ReductionToOneDevice()
    )


def run_on(strategy, optimizer_class, jit_compile=False):
    """Six steps of a loop of one's own: all-reduce, clip, update_step."""
    with strategy.scope():
        variables = variables_like_berts()
        optimizer = optimizer_class(WarmupLinearDecay(0.1, 11, 2))
        optimizer.build(list(variables))
    kernel, bias = variables
    x = np.random.default_rng(4).normal(size=(6, 4, 5)).astype("float32")

    def update(strategy, gradients, rate):
        for variable, gradient in zip(variables, gradients, strict=True):
            strategy.extended.update(
                variable.value,
                lambda v, g, r: optimizer.update_step(g, v, r),
                args=(gradient, rate),
                group=False,
            )

    def replica_step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(x @ kernel + bias - 1.0)) / 4.0
        gradients = tape.gradient(loss, [v.value for v in variables])
        replica = tf.distribute.get_replica_context()
        gradients = replica.all_reduce("sum", gradients)
        gradients, _ = tf.clip_by_global_norm(gradients, 1.0)
        replica.merge_call(update, args=(gradients, optimizer.learning_rate))
        optimizer.iterations.assign_add(1)

    @tf.function(jit_compile=jit_compile)
    def step(x):
        strategy.run(replica_step, args=(x,))

    count = strategy.num_replicas_in_sync
    for batch in x:
        parts = np.split(batch, count)
        step(
            strategy.experimental_distribute_values_from_function(
                lambda replica, parts=parts: tf.constant(
                    parts[replica.replica_id_in_sync_group]
                )
            )
        )
    slots = optimizer.slot_variables().values()
    return [v.numpy() for v in (*variables, *slots, optimizer.iterations)]


@pytest.mark.parametrize("optimizer_class", OPTIMIZERS)
def test_two_replicas_equal_one_device(optimizer_class):
    """Moments too: Adam's step hardly shows a gradient counted twice."""
    one = run_on(tf.distribute.get_strategy(), optimizer_class)
    two = run_on(mirrored(["CPU:0", "CPU:1"]), optimizer_class)
    for a, b in zip(one, two, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("optimizer_class", OPTIMIZERS)
def test_the_whole_step_compiles_on_one_device(optimizer_class):
    plain = run_on(tf.distribute.get_strategy(), optimizer_class)
    jitted = run_on(
        tf.distribute.get_strategy(), optimizer_class, jit_compile=True
    )
    for a, b in zip(plain, jitted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("optimizer_class", OPTIMIZERS)
def test_fit_on_two_replicas_learns_as_on_one(optimizer_class):
    weights = []
    for devices in (["CPU:0"], ["CPU:0", "CPU:1"]):
        keras.utils.set_random_seed(3)
        with mirrored(devices).scope():
            model = toy_model()
            model.compile(optimizer_class(0.01), "mse")
        x, y = toy_data()
        model.fit(x[:20], y[:20], 10, shuffle=False, verbose=0)
        weights.append(model.get_weights())
    for a, b in zip(*weights, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
