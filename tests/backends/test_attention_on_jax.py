"""Attention with dropout in training, on JAX."""

import keras
import numpy as np
import pytest

from bert_tf.modeling import kernels
from bert_tf.modeling.transformer import attention_bias

pytestmark = pytest.mark.skipif(
    keras.config.backend() != "jax", reason="Keras is not on JAX here"
)
B, N, Q, S, D = 3, 2, 7, 11, 5


@pytest.fixture(params=["float32", "bfloat16"])
def arguments(request):
    """Scores, values, and upstream gradients."""
    import jax.numpy as jnp

    rng = np.random.default_rng(0)
    return [
        jnp.asarray(rng.normal(size=shape), request.param)
        for shape in ((B, N, Q, S), (B, N, S, D), (B, N, Q, D))
    ]


@pytest.mark.parametrize("factor", [1.0, 1e5])
@pytest.mark.parametrize("rate", [0.0, 0.25])
def test_gradient_is_that_of_softmax_and_dropout(arguments, rate, factor):
    import jax

    scores, value, upstream = arguments
    # The last example has no tokens: all of its keys have the same bias.
    bias = attention_bias(np.arange(S) < np.array([[11], [4], [0]]))
    bias = bias * factor
    seed = np.array([5, 2**31 - 1], "int32")
    keep = kernels.keep_mask(scores.shape, seed, rate)

    def expected(scores, value):
        probabilities = jax.nn.softmax(scores.astype("float32") + bias)
        dropped = probabilities * keep / (1 - rate)
        return dropped.astype(value.dtype) @ value

    def attend(scores, value):
        return kernels.attend(scores, bias, value, rate, seed)[0]

    wanted, wanted_gradient = jax.vjp(expected, scores, value)
    found, gradient = jax.vjp(attend, scores, value)
    limit = 1e-6 if scores.dtype == "float32" else 0.02
    for a, b in zip(
        [found, *gradient(upstream)],
        [wanted, *wanted_gradient(upstream)],
        strict=True,
    ):
        a, b = np.asarray(a, "float32"), np.asarray(b, "float32")
        assert np.abs(a - b).max() <= limit * np.abs(b).max()
    shapes = [x.shape for x in jax.tree.leaves(gradient)]
    assert shapes.count(scores.shape) == 1  # The scores; no probabilities.
