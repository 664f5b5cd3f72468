"""Optimizers as Keras objects, their slots, and layer-wise learning rates.

tests/parity compares whole runs and the schedule with NumPy.
"""

import inspect
import math
from collections import Counter

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.modeling.heads import BertClassifier
from bert_tf.modeling.optimization import (
    AdamWeightDecay,
    Lamb,
    WarmupLinearDecay,
    check_multipliers,
    layerwise_rates,
    multiplier_of,
)
from tests.training import toy_task

both = pytest.mark.parametrize("optimizer_class", [AdamWeightDecay, Lamb])


def in_numpy(w, gradients, rate, decay, correct=True, adapt=False):
    """Adam in float64 over a list of gradients; LAMB if `adapt`."""
    w = w.astype("float64")
    m, v = np.zeros_like(w), np.zeros_like(w)
    for t, g in enumerate(gradients, 1):
        m = 0.9 * m + 0.1 * g
        v = 0.999 * v + 0.001 * g**2
        m_hat = m / (1 - 0.9**t) if correct else m
        v_hat = v / (1 - 0.999**t) if correct else v
        u = m_hat / (np.sqrt(v_hat) + 1e-6) + decay * w
        ratio = np.linalg.norm(w) / np.linalg.norm(u) if adapt else 1.0
        w = w - rate * ratio * u
    return w, m, v


def kernel_and_bias():
    """Variables of prime sizes, named as in BERT."""
    random = np.random.default_rng(0)
    with keras.name_scope("dense"):
        return [
            keras.Variable(
                random.normal(size=shape), dtype="float32", name=name
            )
            for name, shape in (("kernel", (5, 3)), ("bias", (3,)))
        ]


def random_gradients(count, seed=1):
    """Returns gradients [count, 5, 3] of the kernel, [count, 3] of the bias."""
    random = np.random.default_rng(seed)
    return [
        random.normal(size=(count, *shape)).astype("float32")
        for shape in ((5, 3), (3,))
    ]


def train(optimizer, variables, gradients):
    for step in zip(*gradients, strict=True):
        optimizer.apply([tf.constant(g) for g in step], variables)


@pytest.mark.parametrize(
    ("optimizer_class", "correct"),
    [(AdamWeightDecay, False), (AdamWeightDecay, True), (Lamb, True)],
)
def test_bias_correction_and_rate_multipliers(optimizer_class, correct):
    """Multipliers scale updates with weight decay, but not the moments."""
    variables, gradients = kernel_and_bias(), random_gradients(5)
    starts = [v.numpy() for v in variables]
    optimizer = optimizer_class(
        0.03,
        weight_decay_rate=0.13,
        rate_multipliers=[("kernel", 0.25), ("^dense/bias$", 3), ("", 0)],
        bias_correction=correct,
    )
    train(optimizer, variables, gradients)
    slots = optimizer.slot_variables()
    adapt = optimizer_class is Lamb
    expected = [
        in_numpy(
            starts[0], gradients[0], 0.25 * 0.03, 0.13, correct, adapt=adapt
        ),
        in_numpy(starts[1], gradients[1], 3 * 0.03, 0.0, correct),
    ]
    for variable, (w, m, v) in zip(variables, expected, strict=True):
        path = variable.path
        np.testing.assert_allclose(variable, w, rtol=2e-5, atol=1e-6)
        np.testing.assert_allclose(slots[f"{path}/adam_m"], m, rtol=1e-4)
        np.testing.assert_allclose(slots[f"{path}/adam_v"], v, rtol=1e-4)


@both
def test_half_precision_stays_near_the_formula(optimizer_class):
    """0.999 is 1 in bfloat16, and LAMB divides by 1 - 0.999^t."""
    found = []
    for dtype in ("float32", "bfloat16"):
        kernel = keras.Variable(np.ones((5, 3)), dtype=dtype, name="kernel")
        optimizer = optimizer_class(0.1)
        for gradient in random_gradients(3)[0]:
            optimizer.apply([tf.cast(gradient, dtype)], [kernel])
        assert {s.dtype for s in optimizer.slot_variables().values()} == {dtype}
        found.append(np.array(tf.cast(kernel, "float32")))
    assert np.abs(found[0] - 1.0).max() > 0.2
    np.testing.assert_allclose(*found, atol=0.03)


@both
def test_weight_decay_by_name(optimizer_class):
    """With gradients of 0 only decay, scaled by the rate, changes weights."""
    names = ["kernel", "embeddings", "bias", "output_bias"]
    names += ["LayerNorm_gamma", "layer_normalization_beta"]
    variables = [keras.Variable([2.0, 1.0, 2.0], name=name) for name in names]
    optimizer = optimizer_class(0.1, weight_decay_rate=0.5)
    train(optimizer, variables, [np.zeros([1, 3], "float32")] * len(names))
    # LAMB moves by the rate times the norm of the weights, here 3.
    factor = 0.1 if optimizer_class is Lamb else 0.1 * 0.5
    for index, variable in enumerate(variables):
        expected = (1.0 - factor * (index < 2)) * np.array([2.0, 1.0, 2.0])
        np.testing.assert_allclose(variable, expected, rtol=1e-6)
    for slot in optimizer.slot_variables().values():
        assert not slot.numpy().any()


def test_lamb_has_ratio_one_where_a_norm_is_zero():
    zero = keras.Variable([0.0, 0.0], name="zero")
    still = keras.Variable([1.0, 2.0], name="still")
    gradients = [np.array([[1.0, -1.0]], "f4"), np.zeros([1, 2], "f4")]
    train(Lamb(0.01, weight_decay_rate=0.0), [zero, still], gradients)
    np.testing.assert_allclose(zero, [-0.01, 0.01], rtol=1e-4)
    np.testing.assert_array_equal(still, [1.0, 2.0])


def test_sparse_gradients_move_every_row():
    """Rows are added before clipping; decay and moments act on all rows."""
    found = []
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
        found.append(table.numpy())
    np.testing.assert_array_equal(*found)
    assert np.all(found[0] < 1.0)


# ------------------------------------------------------------- multipliers


def test_layerwise_rates_of_a_model():
    """Counts the variables of each factor."""
    config = BertConfig(
        vocab_size=31,
        hidden_size=6,
        num_hidden_layers=11,
        num_attention_heads=2,
        intermediate_size=7,
        max_position_embeddings=11,
    )
    model = BertClassifier(config, num_labels=5)
    model.build()
    assert {factor for _, factor in layerwise_rates(11, 1)} == {1}
    pairs = layerwise_rates(11, 0.5)
    counts = Counter(
        multiplier_of(v.path, pairs) for v in model.trainable_variables
    )
    # Embeddings: 3 tables, gamma, beta; a layer: 6 kernels, 6 biases, 2 norms;
    # the pooler's and the classifier's kernel and bias.
    layers = {0.5**power: 16 for power in range(1, 12)}
    assert counts == {0.5**12: 5, **layers, 1.0: 4}
    path = "classifier/bert/encoder/layer_10/output/dense/bias"
    assert multiplier_of(path, pairs) == 0.5
    # The first match counts.
    assert multiplier_of(path, [("dense", 3.0), *pairs]) == 3.0


@pytest.mark.parametrize(
    ("create", "message"),
    [
        (lambda: layerwise_rates(3, 0), "at most 1; got 0"),
        (lambda: layerwise_rates(3, 1.01), "at most 1; got 1.01"),
        (lambda: layerwise_rates(3, math.nan), "at most 1; got nan"),
        (lambda: check_multipliers([("x", 0), ("a", -1)]), "'a' in .* got -1"),
        (lambda: check_multipliers([("a", math.inf)]), "'a' in .* got inf"),
        (lambda: check_multipliers([("a", math.nan)]), "'a' in .* got nan"),
        (lambda: AdamWeightDecay(weight_decay=0.1), "weight_decay_rate inst"),
        (
            lambda: AdamWeightDecay().exclude_from_weight_decay(var_names="b"),
            r"to AdamWeightDecay\(",
        ),
        (lambda: WarmupLinearDecay(0.1, 0), "steps must be at least 1; got 0"),
        (lambda: WarmupLinearDecay(0.1, math.inf), "steps must .* got inf"),
        (lambda: Lamb(weight_decay_rate=-1), "decay_rate must .* got -1"),
        (lambda: Lamb(weight_decay_rate=True), "decay_rate must .* got True"),
        (lambda: Lamb(beta_1=2), "beta_1 must be .* below 1; got 2"),
        (lambda: Lamb(beta_2=1), "beta_2 must be .* below 1; got 1"),
        (lambda: Lamb(epsilon=math.inf), "epsilon must be .* got inf"),
        # Each character would be an expression.
        (
            lambda: AdamWeightDecay(exclude_from_weight_decay="bias"),
            "exclude_from_weight_decay must be a list .* got 'bias'",
        ),
    ],
)
def test_invalid_arguments(create, message):
    with pytest.raises(InputError, match=message):
        create()


# ------------------------------------------------------------------- slots


def test_slots_are_named_by_path_in_any_order_of_variables():
    """Keras's own names contain the position of the variable."""
    variables, gradients = kernel_and_bias(), random_gradients(2)
    found = []
    for order in (1, -1):
        optimizer = AdamWeightDecay(0.1)
        train(optimizer, variables[::order], gradients[::order])
        slots = optimizer.slot_variables()
        found.append({name: slot.numpy() for name, slot in slots.items()})
    first, second = found
    assert {name: slot.shape for name, slot in first.items()} == {
        "dense/kernel/adam_m": (5, 3),
        "dense/kernel/adam_v": (5, 3),
        "dense/bias/adam_m": (3,),
        "dense/bias/adam_v": (3,),
    }
    assert second.keys() == first.keys()
    for name, slot in first.items():
        np.testing.assert_array_equal(second[name], slot)


def test_slots_need_unique_paths():
    optimizer = AdamWeightDecay(0.1)
    optimizer.build([keras.Variable([1.0], name="twin") for _ in range(2)])
    with pytest.raises(ValueError, match="must be unique; several have twin"):
        optimizer.slot_variables()


# ---------------------------------------------------------- as Keras objects

UNUSUAL_ARGUMENTS = {
    "weight_decay_rate": 0.2,
    "beta_1": 0.8,
    "beta_2": 0.98,
    "epsilon": 1e-4,
    "exclude_from_weight_decay": ["gamma", "beta"],
    "exclude_from_layer_adaptation": ["beta"],
    "rate_multipliers": [["gamma", 0.5], ["beta", 0.0]],
    "global_clipnorm": 3.5,
}


@both
def test_get_config_has_every_argument(optimizer_class):
    names = inspect.signature(optimizer_class).parameters.keys()
    for name in (names | {"global_clipnorm"}) - {"learning_rate", "kwargs"}:
        default = optimizer_class(0.25).get_config()[name]
        value = UNUSUAL_ARGUMENTS.get(name, default is False)
        original = optimizer_class(0.25, **{name: value})
        assert original.get_config()[name] == value
        assert default != value
        copy = optimizer_class.from_config(original.get_config())
        assert copy.get_config() == original.get_config()


def toy_model():
    keras.utils.set_random_seed(3)
    return keras.Sequential(
        [keras.Input((3,)), keras.layers.Dense(5), keras.layers.Dense(1)]
    )


def fit(model, epochs=1):
    x = np.random.default_rng(2).normal(size=(20, 3)).astype("float32")
    y = x.sum(axis=1, keepdims=True)
    history = model.fit(x, y, 10, epochs, shuffle=False, verbose=0)
    return history.history["loss"]


@both
def test_compile_fit_save_and_load(tmp_path, optimizer_class):
    """Training continues exactly; a multiplier of 0 freezes variables."""
    model = toy_model()
    frozen, last = (layer.kernel for layer in model.layers)
    before = frozen.numpy(), last.numpy()
    optimizer = optimizer_class(
        WarmupLinearDecay(0.05, 60, 6),
        global_clipnorm=1.0,
        rate_multipliers=[(f"{model.layers[0].name}/kernel$", 0.0)],
    )
    # test_heads.py and tests/training/test_step.py compile steps.
    model.compile(optimizer, "mse", run_eagerly=True)
    losses = fit(model, 6)
    assert losses[-1] < 0.9 * losses[0]
    assert optimizer.iterations.numpy() == 12
    model.save(tmp_path / "toy.keras")
    copy = keras.saving.load_model(tmp_path / "toy.keras")
    assert isinstance(copy.optimizer, optimizer_class)
    assert copy.optimizer.get_config() == optimizer.get_config()
    assert fit(copy) == fit(model)
    for ours, theirs in zip(model.weights, copy.weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(frozen, before[0])
    assert (last.numpy() != before[1]).all()


def test_fit_on_two_replicas_learns_as_on_one():
    weights = []
    for replicas in (1, 2):
        with toy_task.mirrored(replicas).scope():
            model = toy_model()
            model.compile(Lamb(0.01), "mse")
        fit(model)
        weights.append(model.get_weights())
    for one, two in zip(*weights, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-6)
