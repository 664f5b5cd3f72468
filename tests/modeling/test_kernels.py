"""Fused operations: when they are used, their values, gradients and masks."""

import functools
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_tf.modeling import kernels
from bert_tf.modeling.dense import Dense
from bert_tf.modeling.kernels import Compiled, compiling
from bert_tf.modeling.transformer import (
    ACTIVATIONS,
    SelfAttention,
    attention_bias,
)
from tests.backends.small_bert import CONFIG, H, S

SEED = (3, -5)
# Largest difference as a share of the largest number; bfloat16 has 8 bits.
TOLERANCES = {"float32": 2e-6, "bfloat16": 2e-2}


@pytest.fixture(params=TOLERANCES)
def dtype(request):
    return request.param


def floats(*shape, dtype="float32", seed=0):
    values = np.random.default_rng(seed).normal(size=shape)
    return tf.cast(values, dtype)


def numbers(tensor) -> np.ndarray:
    return tf.cast(tensor, "float32").numpy()


def with_gradients(function, *arguments):
    """Returns the result and the gradients of the floating arguments."""
    watched = [x for x in arguments if x.dtype.is_floating]
    with tf.GradientTape() as tape:
        tape.watch(watched)
        result = function(*arguments)
        upstream = floats(*result.shape, dtype=result.dtype, seed=99)
        loss = tf.reduce_sum(result * upstream)
    return [result, *tape.gradient(loss, watched)]


def fused(function, *arguments):
    """Returns the result and gradients where tensors of any size are fused."""
    with (
        mock.patch.object(kernels, "LEAST_SIZE", 1),
        compiling(Compiled.PASSES),
    ):
        assert kernels.is_fused(arguments[0])
        return with_gradients(function, *arguments)


def in_small_batches(function, *arguments):
    """Returns the same where tensors are too small to be fused."""
    with compiling(Compiled.PASSES):
        assert not kernels.is_fused(arguments[0])
        return with_gradients(function, *arguments)


def operations_in_small_batches(function, *arguments) -> set[str]:
    """Returns the types of operations of such a training step."""
    traced = tf.function(functools.partial(in_small_batches, function))
    graph = traced.get_concrete_function(*arguments).graph
    return {operation.type for operation in graph.get_operations()}


def assert_near(found, expected, dtype):
    assert [x.dtype for x in found] == [x.dtype for x in expected]
    for one, other in zip(
        map(numbers, found), map(numbers, expected), strict=True
    ):
        atol = TOLERANCES[dtype] * np.abs(other).max()
        np.testing.assert_allclose(one, other, rtol=0, atol=atol)


def large(dtype="float32"):
    return tf.zeros([kernels.LEAST_SIZE // 256, 256], dtype)


def test_only_large_passes_are_fused():
    assert not kernels.is_fused(large())
    with compiling(Compiled.PASSES):
        assert kernels.is_fused(large())
        assert kernels.is_fused(large("bfloat16"))
        assert not kernels.is_fused(large()[1:])  # Too small.
        assert not kernels.is_fused(large("float64"))  # Would lose precision.
        assert not kernels.is_fused(keras.Input((2**20,)))  # Unknown size.
        with compiling(Compiled.EVERYTHING):
            assert not kernels.is_fused(large())
            assert kernels.is_all_compiled()
        assert not kernels.is_all_compiled()
    with pytest.raises(KeyError), compiling(Compiled.PASSES):
        raise KeyError
    assert not kernels.is_fused(large())


def test_unknown_lengths_are_fused_in_long_trainings_of_long_texts():
    fused = {}

    @tf.function(input_signature=[tf.TensorSpec([32, None, 384])])
    def trace(x):
        for steps, length in ((0, 64), (400, 64), (1400, 64), (1400, 16)):
            with compiling(Compiled.PASSES, steps, length):
                wide = tf.concat([x] * 4, -1)
                found = [kernels.is_fused(x), kernels.is_fused(wide)]
                fused[steps, length] = found

    trace.get_concrete_function()
    assert fused == {
        (0, 64): [False, False],
        (400, 64): [False, True],
        (1400, 64): [True, True],
        (1400, 16): [False, True],
    }


@pytest.mark.parametrize(
    ("compiled", "biased", "rank"),
    [
        (kernels.Compiled.NOTHING, {"MatMul"}, 2),
        (kernels.Compiled.PASSES, {"MatMul"}, 3),
        (kernels.Compiled.EVERYTHING, {"Reshape"}, 3),
    ],
)
def test_bias_and_gelu_follow_the_matrix_product(compiled, biased, rank):
    """TensorFlow fuses them on CPUs, unless a reshape is in between.

    XLA compiles a GELU by its size.
    """
    ranks = []

    def gelu(x):
        ranks.append(len(x.shape))
        return x

    layer = Dense(5)
    layer.build((None, 7))
    spec = tf.TensorSpec([None, None, 7])
    with kernels.compiling(compiled):
        function = tf.function(lambda x: layer.activated(x, gelu))
        graph = function.get_concrete_function(spec).graph
    found = {
        op.inputs[0].op.type
        for op in graph.get_operations()
        if op.type in ("BiasAdd", "AddV2")
    }
    assert found == biased
    assert ranks == [rank]


# Fused and plain operations have equal values and gradients.


@pytest.mark.parametrize("approximate", [False, True])
def test_gelu(dtype, approximate):
    gelu = functools.partial(kernels.gelu, approximate=approximate)
    x = 3.0 * floats(7, 5, 11, dtype=dtype)
    plain = with_gradients(gelu, x)
    assert_near(fused(gelu, x), plain, dtype)
    assert_near(in_small_batches(gelu, x), plain, dtype)
    # TensorFlow's gradient would keep the results of these operations.
    assert {"Erf", "Tanh"}.isdisjoint(operations_in_small_batches(gelu, x))


@pytest.mark.parametrize("name", ["gelu_tanh", "gelu_erf"])
def test_gelus_are_exact_in_half_precision(name):
    """Except for rounding the argument and the result."""
    x = np.linspace(-6, 6, 1201, dtype="float32")
    x = keras.ops.cast(x, "bfloat16")
    found = ACTIVATIONS[name](x)
    assert found.dtype == "bfloat16"
    exact = ACTIVATIONS[name](keras.ops.cast(x, "float64"))
    found = keras.ops.cast(found, "float32")
    np.testing.assert_allclose(found, exact, rtol=2**-8, atol=1e-6)


def dropped_probabilities(scores, bias, rate):
    """Returns what `attend` multiplies with the values."""
    identity = tf.eye(scores.shape[-1], batch_shape=scores.shape[:2])
    identity = tf.cast(identity, scores.dtype)
    seed = tf.constant(SEED)
    return kernels.attend(scores, bias, identity, rate, seed)[0]


@pytest.mark.parametrize("left_to_right", [False, True])
def test_attention_probabilities(dtype, left_to_right):
    scores = floats(3, 2, 7, 7, dtype=dtype)
    mask = tf.sequence_mask([7, 4, 1], 7, "int32")
    bias = attention_bias(mask, left_to_right=left_to_right)

    def dropped(scores):
        return dropped_probabilities(scores, bias, 0.0)

    found = fused(dropped, scores)
    assert_near(found, with_gradients(dropped, scores), dtype)
    probabilities, gradient = map(numbers, found)
    hidden = np.broadcast_to(bias.numpy() < 0, scores.shape)
    assert not probabilities[hidden].any()
    assert probabilities[~hidden].all()
    assert not gradient[hidden].any()


def test_a_row_of_padding_attends_evenly():
    """-inf in place of -10000 would give NaN."""
    layer = SelfAttention(CONFIG)
    layer.build()
    x = np.random.default_rng(0).normal(size=(1, S, H)).astype("float32")
    context, probabilities = layer(x, attention_bias(np.zeros((1, S))))
    _, expected = layer(x, attention_bias(np.ones((1, S))))
    np.testing.assert_allclose(probabilities, expected, atol=1e-3)
    assert np.isfinite(context).all()


def test_residual_layer_norm(dtype):
    class Norm:
        """A layer whose weights are arguments, so that they get gradients."""

        epsilon = 1e-3

        def __init__(self, gamma, beta):
            self.gamma, self.beta = gamma, beta

        def __call__(self, x):
            normal = keras.ops.layer_normalization(
                x, self.gamma, self.beta, axis=-1, epsilon=self.epsilon
            )
            return tf.cast(normal, dtype)

    def norm(x, residual, *weights, rate=0.0):
        seed = tf.constant(SEED)
        layer = Norm(*weights)
        return kernels.residual_layer_norm(x, residual, layer, rate, seed)

    rows = [floats(5, 7, 13, dtype=dtype, seed=s) for s in (1, 2)]
    weights = [floats(13, dtype=dtype, seed=s) for s in (3, 4)]
    arguments = (*rows, *weights)
    assert_near(
        fused(norm, *arguments), with_gradients(norm, *arguments), dtype
    )
    dropping = functools.partial(norm, rate=0.25)
    assert_near(
        in_small_batches(dropping, *arguments),
        with_gradients(dropping, *arguments),
        dtype,
    )
    # TensorFlow's gradient would keep the mean.
    assert "Rsqrt" not in operations_in_small_batches(dropping, *arguments)


def test_cross_entropy(dtype):
    logits = 5.0 * floats(3, 4, 17, dtype=dtype)
    labels = tf.constant([[0, 16, 3, 3], [1, 2, 5, 8], [13, 0, 0, 7]])
    assert_near(
        fused(lambda x: kernels.cross_entropy(labels, x), logits),
        with_gradients(
            lambda x: kernels.cross_entropy(labels, tf.cast(x, "float32")),
            logits,
        ),
        dtype,
    )


def test_cross_entropy_of_extreme_logits():
    loss, gradient = fused(
        lambda x: kernels.cross_entropy(tf.constant([0]), x),
        tf.constant([[1e30, -1e30, 0.0]]),
    )
    np.testing.assert_array_equal(loss, [0.0])
    np.testing.assert_array_equal(gradient, [[0.0, 0.0, 0.0]])


def test_gradient_has_the_mask_of_the_values(dtype):
    bias = tf.zeros([3, 1, 1, 64])
    kept, gradient = map(
        numbers,
        fused(
            lambda s: dropped_probabilities(s, bias, 0.25),
            tf.zeros([3, 2, 64, 64], dtype),
        ),
    )
    # Uniform probabilities of 1/64, divided by 0.75 where they are kept.
    values, counts = np.unique(kept, return_counts=True)
    np.testing.assert_allclose(values, [0, 1 / 48], rtol=1e-2)
    assert abs(counts[0] / kept.size - 0.25) < 0.01
    # ds = p (m u - sum(m u p)), by hand from the mask of the values.
    upstream = numbers(floats(*kept.shape, dtype=dtype, seed=99))
    masked = (kept > 0) * upstream / 0.75
    expected = (masked - masked.mean(-1, keepdims=True)) / 64
    limit = TOLERANCES[dtype] * np.abs(expected).max()
    assert np.abs(gradient - expected).max() < limit


def masks(count, rate, size=2**16, step=77):
    """Returns the masks of one step's seeds, site after site."""
    return np.stack(
        [
            kernels.keep_mask([size], tf.constant([step, 500 + site]), rate)
            for site in range(count)
        ]
    )


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5, 0.9])
def test_a_mask_keeps_its_share(rate):
    found = masks(8, rate)
    deviation = np.sqrt(rate * (1 - rate) / found[0].size)
    assert np.abs(found.mean(axis=1) - (1 - rate)).max() <= 4 * deviation
    np.testing.assert_array_equal(found, masks(8, rate))
    assert (found != masks(8, rate, step=78)).any() == (rate > 0)


def test_masks_are_independent_across_positions_and_sites():
    """There is no correlation of neighbours, columns or layers."""
    found = masks(6, 0.1) - 0.9
    scale = found[0].size * 0.09
    limit = 4.5 / np.sqrt(found[0].size)
    for lag in (1, 2, 3, 4, 8, 16, 64, 128, 384, 768, 1024, 4096):
        for mask in found:
            assert abs(np.dot(mask[lag:], mask[:-lag])) / scale < limit
    together = found @ found.T / scale
    assert np.abs(together - np.diag(np.diag(together))).max() < limit
