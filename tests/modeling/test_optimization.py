"""Optimizers, their slots and layer-wise learning rates; see tests/parity."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.modeling.optimization import (
    AdamWeightDecay,
    Lamb,
    WarmupLinearDecay,
    check_multipliers,
    layerwise_rates,
    multiplier_of,
)
from tests.parity import formulas
from tests.training import toy_task

both = pytest.mark.parametrize("optimizer_class", [AdamWeightDecay, Lamb])


class CorrectedAdam(formulas.PaperLamb):
    """Adam with bias correction."""

    def scale(self, update):
        return 1.0


def kernel_and_beta():
    """Variables of prime sizes; the second one does not decay."""
    random = np.random.default_rng(0)
    shapes = {"kernel": (5, 3), "layer_normalization_beta": (3,)}
    with keras.name_scope("dense"):
        return [
            keras.Variable(
                random.normal(size=shape), None, "float32", name=name
            )
            for name, shape in shapes.items()
        ]


def random_gradients(count, seed=1):
    """Returns gradients [count, 5, 3] of the kernel, [count, 3] of beta."""
    random = np.random.default_rng(seed)
    return [
        random.normal(size=(count, *shape)).astype("float32")
        for shape in ((5, 3), (3,))
    ]


def train(optimizer, variables, gradients):
    for step in zip(*gradients, strict=True):
        optimizer.apply([tf.constant(g) for g in step], variables)


@pytest.mark.parametrize(
    ("optimizer_class", "correct", "formula"),
    [
        (AdamWeightDecay, False, formulas.Adam),
        (AdamWeightDecay, True, CorrectedAdam),
        (Lamb, True, formulas.AuthorsLamb),
    ],
)
def test_bias_correction_and_rate_multipliers(
    optimizer_class, correct, formula
):
    """Multipliers scale updates with weight decay, but not the moments."""
    variables, gradients = kernel_and_beta(), random_gradients(5)
    optimizer = optimizer_class(
        0.03,
        weight_decay_rate=0.13,
        rate_multipliers=[("kernel", 0.25), ("^dense/.*beta$", 3), ("", 0)],
        bias_correction=correct,
    )
    twins = [
        formula(v.numpy(), decay, np.float64)
        for v, decay in zip(variables, (0.13, 0.0), strict=True)
    ]
    train(optimizer, variables, gradients)
    slots = optimizer.slot_variables()
    for v, twin, each, rate in zip(
        variables, twins, gradients, (0.25 * 0.03, 3 * 0.03), strict=True
    ):
        for gradient in each:
            twin.step(gradient, rate)
        np.testing.assert_allclose(v, twin.w, rtol=2e-5, atol=1e-6)
        np.testing.assert_allclose(slots[f"{v.path}/adam_m"], twin.m, rtol=1e-4)
        np.testing.assert_allclose(slots[f"{v.path}/adam_v"], twin.v, rtol=1e-4)


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


def test_layerwise_rates():
    assert {factor for _, factor in layerwise_rates(11, 1)} == {1}
    pairs = layerwise_rates(11, 0.5)
    for part, power in (
        ("embeddings/LayerNorm/gamma", 12),
        ("encoder/layer_1/output/dense/bias", 10),
        ("encoder/layer_10/output/dense/bias", 1),
        ("pooler/dense/kernel", 0),
    ):
        path = f"classifier/bert/{part}"
        assert multiplier_of(path, pairs) == 0.5**power
        # The first match counts.
        assert multiplier_of(path, [("bert", 3.0), *pairs]) == 3.0


REFUSED = [
    (lambda: layerwise_rates(3, 0), "at most 1; got 0"),
    (lambda: check_multipliers([("x", 0), ("a", -1)]), "'a' in .* got -1"),
    (lambda: AdamWeightDecay(weight_decay=0.1), "weight_decay_rate inst"),
    (
        lambda: AdamWeightDecay().exclude_from_weight_decay(var_names="b"),
        r"to AdamWeightDecay\(",
    ),
    (lambda: WarmupLinearDecay(0.1, 0), "steps must be at least 1; got 0"),
    (lambda: Lamb(weight_decay_rate=-1), "decay_rate must .* got -1"),
    (lambda: Lamb(beta_2=1), "beta_2 must be .* below 1; got 1"),
    (lambda: Lamb(epsilon=math.inf), "epsilon must be .* got inf"),
    # Each character would be an expression.
    (
        lambda: AdamWeightDecay(exclude_from_weight_decay="bias"),
        "exclude_from_weight_decay must be a list .* got 'bias'",
    ),
]


@pytest.mark.parametrize(("create", "message"), REFUSED)
def test_invalid_arguments(create, message):
    with pytest.raises(InputError, match=message):
        create()


def test_slots_are_named_by_path_in_any_order_of_variables():
    """Keras's own names contain the position of the variable."""
    variables = kernel_and_beta()
    for order in (1, -1):
        optimizer = AdamWeightDecay(0.1)
        optimizer.build(variables[::order])
        slots = optimizer.slot_variables()
        assert {name: slot.shape for name, slot in slots.items()} == {
            "dense/kernel/adam_m": (5, 3),
            "dense/kernel/adam_v": (5, 3),
            "dense/layer_normalization_beta/adam_m": (3,),
            "dense/layer_normalization_beta/adam_v": (3,),
        }


def test_slots_need_unique_paths():
    optimizer = AdamWeightDecay(0.1)
    optimizer.build([keras.Variable([1.0], name="twin") for _ in range(2)])
    with pytest.raises(ValueError, match="must be unique; several have twin"):
        optimizer.slot_variables()


def test_fit_on_two_replicas_learns_as_on_one():
    weights = []
    x = np.random.default_rng(2).normal(size=(20, 3)).astype("float32")
    for replicas in (1, 2):
        keras.utils.set_random_seed(3)
        with toy_task.mirrored(replicas).scope():
            model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(5)])
            model.compile(Lamb(0.01), "mse")
        model.fit(x, x.sum(1, keepdims=True), 10, shuffle=False, verbose=0)
        weights.append(model.get_weights())
    for one, two in zip(*weights, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-6)
