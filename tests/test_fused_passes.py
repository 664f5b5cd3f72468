"""A fused pass gives what the layer gives without, its gradients too."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_tf import fused_passes
from bert_tf.layers import ACTIVATIONS
from bert_tf.transformer import attention_bias

SEED = (3, -5)
# Largest difference as a share of the largest number; bfloat16 has 8 bits.
TOLERANCES = {"float32": 2e-6, "bfloat16": 2e-2}
both_precisions = pytest.mark.parametrize("dtype", TOLERANCES)


def floats(*shape, dtype="float32", seed=0):
    values = np.random.default_rng(seed).normal(size=shape)
    return tf.cast(values, dtype)


def with_gradients(function, *arguments):
    """What a function gives, and its gradients for those that are floats."""
    watched = [x for x in arguments if x.dtype.is_floating]
    with tf.GradientTape() as tape:
        tape.watch(watched)
        result = function(*arguments)
        upstream = floats(*result.shape, dtype=result.dtype, seed=99)
        loss = tf.reduce_sum(result * upstream)
    return [result, *tape.gradient(loss, watched)]


def assert_same(found, expected, dtype):
    assert [x.dtype for x in found] == [x.dtype for x in expected]
    for one, other in zip(found, expected, strict=True):
        one, other = (tf.cast(x, "float32").numpy() for x in (one, other))
        tolerance = TOLERANCES[dtype] * np.abs(other).max()
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance)


@both_precisions
@pytest.mark.parametrize("approximate", [False, True])
def test_gelu(dtype, approximate):
    x = 3.0 * floats(7, 5, 11, dtype=dtype)
    activation = ACTIVATIONS["gelu_tanh" if approximate else "gelu_erf"]
    assert_same(
        with_gradients(lambda x: fused_passes.gelu(x, approximate), x),
        with_gradients(activation, x),
        dtype,
    )


def attention_probabilities(scores, bias):
    """What the fused pass gives, its gradient too, once it equals the other."""

    def unfused(scores):
        wide = tf.cast(scores, "float32") + bias
        return tf.cast(tf.nn.softmax(wide), scores.dtype)

    found = with_gradients(
        lambda s: fused_passes.attention_probabilities(s, bias, SEED, 0.0),
        scores,
    )
    assert_same(found, with_gradients(unfused, scores), scores.dtype.name)
    return [tf.cast(x, "float32").numpy() for x in found]


@both_precisions
def test_attention_probabilities(dtype):
    scores = floats(3, 2, 5, 7, dtype=dtype)
    bias = tf.where(floats(3, 1, 1, 7) > 0.8, -10000.0, 0.0)
    attention_probabilities(scores, bias)


@both_precisions
def test_attention_probabilities_from_left_to_right(dtype):
    """Of rows that are full, padded, and of one token: a bias [B, 1, S, S]."""
    scores = floats(3, 2, 7, 7, dtype=dtype)
    mask = tf.sequence_mask([7, 4, 1], 7, "int32")
    bias = attention_bias(mask, left_to_right=True)
    assert bias.shape == (3, 1, 7, 7)
    found, gradient = attention_probabilities(scores, bias)
    is_hidden = (
        np.triu(np.ones([7, 7], bool), 1) | (mask.numpy() == 0)[:, None, None]
    )
    is_hidden = np.broadcast_to(is_hidden, found.shape)
    assert not found[is_hidden].any()
    assert found[~is_hidden].all()
    assert not gradient[is_hidden].any()
    # One that sees itself alone does so whatever its score is.
    np.testing.assert_array_equal(found[:, :, 0, 0], 1.0)


@both_precisions
def test_normalized_sum(dtype):
    norm = keras.layers.LayerNormalization(epsilon=1e-3, dtype=dtype)
    norm.build((None, None, 13))
    x, residual = (floats(5, 7, 13, dtype=dtype, seed=s) for s in (1, 2))
    gamma, beta = (floats(13, dtype=dtype, seed=s) for s in (3, 4))

    def unfused(x, residual, gamma, beta):
        result = keras.ops.layer_normalization(
            x + residual, gamma, beta, axis=-1, epsilon=norm.epsilon
        )
        return tf.cast(result, dtype)

    assert_same(
        with_gradients(
            lambda *a: fused_passes.normalized_sum(*a, SEED, 0.0, norm.epsilon),
            *(x, residual, gamma, beta),
        ),
        with_gradients(unfused, x, residual, gamma, beta),
        dtype,
    )


@both_precisions
def test_cross_entropy(dtype):
    logits = 5.0 * floats(3, 4, 17, dtype=dtype)
    labels = tf.constant([[0, 16, 3, 3], [1, 2, 5, 8], [13, 0, 0, 7]])

    def unfused(logits):
        return keras.losses.sparse_categorical_crossentropy(
            labels, tf.cast(logits, "float32"), from_logits=True
        )

    assert_same(
        with_gradients(lambda x: fused_passes.cross_entropy(labels, x), logits),
        with_gradients(unfused, logits),
        dtype,
    )


def test_extreme_scores_stay_finite():
    logits = tf.constant([[1e30, -1e30, 0.0]])
    found = with_gradients(
        lambda x: fused_passes.cross_entropy(tf.constant([0]), x), logits
    )
    np.testing.assert_array_equal(found[0], [0.0])
    np.testing.assert_array_equal(found[1], [[0.0, 0.0, 0.0]])


def test_a_batch_without_examples():
    x, weights = tf.zeros([0, 3, 13]), tf.zeros([13])
    found = with_gradients(
        lambda *a: fused_passes.normalized_sum(*a, SEED, 0.1, 1e-12),
        *(x, x, weights, weights),
    )
    assert [tuple(value.shape) for value in found[:2]] == [(0, 3, 13)] * 2
    np.testing.assert_array_equal(found[3], np.zeros(13))


@both_precisions
def test_the_gradient_drops_what_was_dropped(dtype):
    scores = tf.zeros([3, 2, 64, 64], dtype)
    kept, gradient = with_gradients(
        lambda s: fused_passes.attention_probabilities(
            s, tf.zeros([3, 1, 1, 64]), SEED, 0.25
        ),
        scores,
    )
    kept = tf.cast(kept, "float32").numpy()
    # Even probabilities of 1/64, as many over 0.75 as stay.
    values, counts = np.unique(kept, return_counts=True)
    np.testing.assert_allclose(values, [0, 1 / 48], rtol=1e-2)
    assert abs(counts[0] / kept.size - 0.25) < 0.01
    # ds = p (m u - sum(m u p)), by hand from the mask that came out.
    upstream = tf.cast(floats(*kept.shape, dtype=dtype, seed=99), "float32")
    masked = (kept > 0) * upstream.numpy() / 0.75
    expected = (masked - masked.mean(-1, keepdims=True)) / 64
    difference = tf.cast(gradient, "float32").numpy() - expected
    limit = TOLERANCES[dtype] * np.abs(expected).max()
    assert np.abs(difference).max() < limit


def masks(count, rate=0.1, size=2**16):
    """Masks of seeds as a model has them: one step, site after site."""
    return np.stack(
        [
            fused_passes.keep_mask([size], tf.constant([77, 500 + site]), rate)
            for site in range(count)
        ]
    )


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5, 0.9])
def test_a_mask_keeps_its_share(rate):
    found = masks(8, rate)
    deviation = np.sqrt(rate * (1 - rate) / found[0].size)
    shares = found.mean(axis=1)
    assert np.abs(shares - (1 - rate)).max() <= 4 * deviation


def test_places_and_sites_are_independent():
    """No correlation beyond chance, of neighbours, columns, or layers."""
    found = masks(6).astype(float) - 0.9
    scale = found[0].size * 0.09
    limit = 4.5 / np.sqrt(found[0].size)
    for lag in (1, 2, 3, 4, 8, 16, 64, 128, 384, 768, 1024, 4096):
        for mask in found:
            assert abs(np.dot(mask[lag:], mask[:-lag])) / scale < limit
    together = found @ found.T / scale
    assert np.abs(together - np.diag(np.diag(together))).max() < limit


def test_masks_are_a_function_of_the_seed():
    first, second = masks(2), masks(2)
    np.testing.assert_array_equal(first, second)
    other = fused_passes.keep_mask([2**16], tf.constant([78, 500]), 0.1)
    assert (first[0] != other.numpy()).mean() > 0.1
