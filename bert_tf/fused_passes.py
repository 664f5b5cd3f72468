"""What stands between two products, in one pass over memory each way.

For Keras's TensorFlow backend; `fusion.py` tells when. Each of these functions
equals what the layer does without it, dropout masks excepted. Inside, all is
float32; what goes in and out, and is kept for the gradient, has the precision
of the first argument. Mostly a gradient computes things again: that is more
work in the loop that is there, where keeping them were one more pass.
"""

import functools
import math
from collections.abc import Callable

import tensorflow as tf


def _one_pass(forward: Callable, backward: Callable) -> Callable:
    """Makes a differentiable function of two, both compiled by XLA.

    One for all layers: XLA compiles it once for each shape.

    Args:
      forward: Arguments -> what the function gives, and a tuple to be kept.
      backward: The gradient of what it gives, what was kept, and the arguments
        -> the gradients of the arguments.
    """
    forward = tf.function(forward, autograph=False, jit_compile=True)
    backward = tf.function(backward, autograph=False, jit_compile=True)

    # A graph of its own, made once: TensorFlow remembers a gradient, and the
    # graph that it is part of, for as long as the process lives.
    @tf.function(autograph=False)
    def apply(*arguments):
        @tf.custom_gradient
        def differentiable(*arguments):
            result, kept = forward(*arguments)

            def gradient(upstream):
                return backward(upstream, kept, *arguments)

            return result, gradient

        return differentiable(*arguments)

    # A variable would be an argument of another kind.
    return lambda *arguments: apply(*map(tf.convert_to_tensor, arguments))


def gelu(x, approximate: bool):
    """GELU of floats of any shape, by tanh or by erf: `layers.ACTIVATIONS`."""
    return _gelu(approximate)(x)


@functools.cache
def _gelu(approximate: bool):
    def share_and_slope(x):
        """GELU is x times a share; the share and its derivative."""
        if not approximate:
            density = tf.exp(-0.5 * x * x) * (1.0 / math.sqrt(2.0 * math.pi))
            return 0.5 * (1.0 + tf.math.erf(x * math.sqrt(0.5))), density
        scale, cubic = math.sqrt(2.0 / math.pi), 0.044715
        tanh = tf.tanh(scale * (x + cubic * x * x * x))
        slope = (1.0 - tanh * tanh) * (scale * (1.0 + 3.0 * cubic * x * x))
        return 0.5 * (1.0 + tanh), 0.5 * slope

    def forward(x):
        wide = _wide(x)
        share, _ = share_and_slope(wide)
        return tf.cast(wide * share, x.dtype), ()

    def backward(upstream, kept, x):
        wide = _wide(x)
        share, slope = share_and_slope(wide)
        return tf.cast(_wide(upstream) * (share + wide * slope), x.dtype)

    return _one_pass(forward, backward)


def attention_probabilities(scores, bias, seed, rate: float):
    """Softmax over the last axis, then dropout.

    Args:
      scores: Floats [B, N, Q, S].
      bias: float32, added to them, that broadcasts to [B, N, Q, S]. It gets no
        gradient.
      seed: Integers [2].
      rate: Of dropout.

    Returns:
      Floats [B, N, Q, S].
    """
    return _attention_probabilities(rate)(scores, bias, seed)


@functools.cache
def _attention_probabilities(rate: float):
    def forward(scores, bias, seed):
        probabilities = tf.nn.softmax(_wide(scores) + _wide(bias))
        probabilities = tf.cast(probabilities, scores.dtype)
        return dropped(probabilities, seed, rate), (probabilities,)

    def backward(upstream, kept, scores, bias, seed):
        probabilities = _wide(kept[0])
        upstream = _wide(dropped(upstream, seed, rate)) * probabilities
        total = tf.reduce_sum(upstream, axis=-1, keepdims=True)
        gradient = upstream - probabilities * total
        return tf.cast(gradient, scores.dtype), None, None

    return _one_pass(forward, backward)


def normalized_sum(x, residual, gamma, beta, seed, rate: float, epsilon: float):
    """Dropout of x, then the layer norm of its sum with the residual.

    Args:
      x: Floats [..., H].
      residual: Floats [..., H].
      gamma: Floats [H], what the norm is multiplied by.
      beta: Floats [H], what is added to it.
      seed: Integers [2].
      rate: Of dropout.
      epsilon: Added to the variance.

    Returns:
      Floats [..., H].
    """
    return _normalized_sum(rate, epsilon)(x, residual, gamma, beta, seed)


@functools.cache
def _normalized_sum(rate: float, epsilon: float):
    def forward(x, residual, gamma, beta, seed):
        total = _wide(dropped(x, seed, rate)) + _wide(residual)
        mean = tf.reduce_mean(total, axis=-1, keepdims=True)
        variance = tf.reduce_mean((total - mean) ** 2, axis=-1, keepdims=True)
        inverse = tf.math.rsqrt(variance + epsilon)  # [..., 1]
        normal = (total - mean) * inverse
        result = normal * _wide(gamma) + _wide(beta)
        return tf.cast(result, x.dtype), (tf.cast(normal, x.dtype), inverse)

    def backward(upstream, kept, x, residual, gamma, beta, seed):
        normal, inverse = map(_wide, kept)
        upstream = _wide(upstream)
        scaled = upstream * _wide(gamma)
        mean = tf.reduce_mean(scaled, axis=-1, keepdims=True)
        along = tf.reduce_mean(scaled * normal, axis=-1, keepdims=True)
        total = inverse * (scaled - mean - normal * along)
        total = tf.cast(total, x.dtype)
        rows = tuple(range(len(x.shape) - 1))
        return (
            dropped(total, seed, rate),
            total,
            tf.cast(tf.reduce_sum(upstream * normal, rows), gamma.dtype),
            tf.cast(tf.reduce_sum(upstream, rows), beta.dtype),
            None,
        )

    return _one_pass(forward, backward)


def cross_entropy(labels, logits):
    """-log softmax(logits)[labels]: integers [...], floats [..., C] -> [...].

    The losses are float32.
    """
    return _cross_entropy()(logits, labels)


@functools.cache
def _cross_entropy():
    def is_label(logits, labels):
        return tf.range(logits.shape[-1]) == labels[..., None]

    def forward(logits, labels):
        wide = _wide(logits)
        highest = tf.reduce_max(wide, axis=-1, keepdims=True)
        total = tf.reduce_sum(tf.exp(wide - highest), axis=-1, keepdims=True)
        normalizer = highest + tf.math.log(total)  # [..., 1]
        found = tf.where(is_label(logits, labels), wide, 0.0)
        losses = normalizer[..., 0] - tf.reduce_sum(found, axis=-1)
        return losses, (normalizer,)

    def backward(upstream, kept, logits, labels):
        probabilities = tf.exp(_wide(logits) - kept[0])
        gradient = tf.where(
            is_label(logits, labels), probabilities - 1.0, probabilities
        )
        return tf.cast(gradient * upstream[..., None], logits.dtype), None

    return _one_pass(forward, backward)


def dropped(x, seed, rate: float):
    """Dropout whose mask is made twice rather than kept: [...] -> [...].

    Args:
      x: Floats.
      seed: Integers [2].
      rate: The share that becomes zero; the others grow by 1 / (1 - rate).
    """
    if not rate:
        return x
    scaled = x * tf.cast(1.0 / (1.0 - rate), x.dtype)
    return tf.where(keep_mask(tf.shape(x), seed, rate), scaled, 0.0)


def keep_mask(shape, seed, rate: float):
    """Which numbers dropout keeps, without a stream of random numbers.

    XLA takes a hundred times as long on a CPU for one of those as for a hash
    of each place and the seed.

    Args:
      shape: Of the mask, integers, of fewer than 2^31 places.
      seed: Integers [2].
      rate: The share of False.

    Returns:
      Booleans of the shape, True with the probability 1 - rate.
    """
    first, second = tf.unstack(tf.cast(seed, tf.uint32))
    places = tf.reshape(tf.range(tf.reduce_prod(shape)), shape)
    key = _mixed(_mixed(first) + second)
    bits = _mixed(tf.cast(places, tf.uint32) + key)
    return bits >= tf.constant(round(rate * 2**32), tf.uint32)


def _mixed(x):
    """A bijection of 32 bits: shifts and multiplications in turn.

    The constants are those of "lowbias32" (C. Wellons, 2018), found by search:
    a bit of the argument changes each bit of the result in very nearly half of
    all cases.
    """
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B), (16, 1)):
        shifted = tf.bitwise.right_shift(x, tf.constant(shift, tf.uint32))
        x = tf.bitwise.bitwise_xor(x, shifted)
        x = x * tf.constant(factor, tf.uint32)
    return x


def _wide(x):
    return tf.cast(x, tf.float32)
