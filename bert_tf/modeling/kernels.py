"""The operations between matrix products: plain, or fused by XLA on CPUs.

On CPUs TensorFlow's kernels read and write memory once per operation: a GELU
and its gradient take about twenty passes over their values. XLA fuses them into
one loop, but multiplies matrices more slowly than oneDNN. A training step on
CPUs therefore leaves matrix products to TensorFlow and lets XLA compile the
rest:

    with kernels.compiling(Compiled.PASSES):
        outputs = model(features, training=True, seed=seed)

Layers and losses always call `gelu`, `attend`, `residual_layer_norm` and
`cross_entropy`; each function chooses its own implementation. On GPUs and TPUs
XLA compiles everything. With JAX it does so on every device. JAX uses only two
implementations of this module: dropout, and attention in training.

Fused and plain results are equal up to rounding, except for the dropout masks.
The fused functions compute in float32. Arguments, results and what is kept for
the gradient have the precision of the first argument, but losses and a few
numbers per row are float32. Gradients mostly recompute intermediate values,
which costs less than storing them in memory.
"""

import contextlib
import contextvars
import enum
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import keras
import numpy as np
from keras import ops

# Only the backend's library need be installed.
if keras.config.backend() == "tensorflow":
    import tensorflow as tf
elif keras.config.backend() == "jax":
    import jax
else:
    import torch

# Compiling takes about 0.05 s for each operation and shape. For a tensor with
# fewer values, most training runs are too short to save as much time.
LEAST_SIZE = 2**17
# Where lengths differ from batch to batch, operations on a tensor are compiled
# for each length if its size, summed over all steps, is at least this number.
# An unknown length counts as the usual one, an unknown number of rows as 64.
LEAST_SIZE_OF_STEPS = 2**30
USUAL_ROWS = USUAL_LENGTH = 64


class Compiled(enum.Enum):
    """Which operations XLA compiles."""

    NOTHING = enum.auto()
    # Those between matrix products: for training with TensorFlow on CPUs.
    PASSES = enum.auto()
    EVERYTHING = enum.auto()


class _Step(NamedTuple):
    """The arguments of `compiling`."""

    compiled: Compiled = Compiled.NOTHING
    num_steps: int = 0
    usual_length: int = USUAL_LENGTH


_PLAIN = _Step()
# A context variable, not an argument: between a step and the functions of this
# module are Keras's `__call__` and models of users, whose `call` would have to
# pass it on.
_step = contextvars.ContextVar("step", default=_PLAIN)


@contextlib.contextmanager
def compiling(
    what: Compiled, num_steps: int = 0, usual_length: int = USUAL_LENGTH
) -> Iterator[None]:
    """Sets which operations XLA compiles in the `with` block.

    Args:
      what: The operations.
      num_steps: The number of steps that the training has. If there are few,
        operations on batches of unknown lengths are not compiled.
      usual_length: The usual length of batches whose lengths differ.
    """
    token = _step.set(_Step(what, num_steps, usual_length))
    try:
        yield
    finally:
        _step.reset(token)


def has_values(x) -> bool:
    """Returns whether an array has values that can be read at once.

    A tensor in a graph has no values. A PyTorch tensor on a GPU counts as one
    without values, since reading them would make the step wait.
    """
    if isinstance(x, np.ndarray):
        return True
    backend = keras.config.backend()
    if backend == "tensorflow":
        return isinstance(x, tf.Tensor) and hasattr(x, "numpy")
    if backend == "jax":
        # An array may be divided among processes.
        is_traced = isinstance(x, jax.core.Tracer)
        is_array = isinstance(x, jax.Array) and not is_traced
        return is_array and x.is_fully_addressable
    is_on_cpu = torch.is_tensor(x) and x.device.type == "cpu"
    return is_on_cpu and not torch.compiler.is_compiling()


def runs_op_by_op() -> bool:
    """Returns whether models run op by op.

    They do with PyTorch, and with TensorFlow on CPUs, where its matrix products
    are faster than XLA's.
    """
    backend = keras.config.backend()
    if backend != "tensorflow":
        return backend == "torch"
    return not (
        tf.config.list_logical_devices("GPU")
        or tf.config.list_logical_devices("TPU")
    )


def are_passes_compiled() -> bool:
    """Returns whether XLA compiles the operations between matrix products."""
    return _step.get().compiled is Compiled.PASSES


def compiles_updates() -> bool:
    """Returns whether XLA compiles the update of each variable.

    With several replicas the update communicates between devices, which a
    compiled program cannot do. On other backends it is False.
    """
    return are_passes_compiled() and not tf.distribute.has_strategy()


def is_all_compiled() -> bool:
    """Returns whether XLA compiles everything, matrix products included."""
    return _step.get().compiled is Compiled.EVERYTHING


def is_fused(x) -> bool:
    """Returns whether the operations on a tensor are fused.

    They are if the tensor is large. If part of its shape is unknown, its usual
    size, summed over all steps, must be large; see `LEAST_SIZE_OF_STEPS`.
    """
    if not are_passes_compiled():
        return False
    shape = tuple(x.shape)
    if None in shape:
        step = _step.get()
        assumed = [step.usual_length if n is None else n for n in shape]
        if shape[0] is None:
            assumed[0] = USUAL_ROWS
        is_large = math.prod(assumed) * step.num_steps >= LEAST_SIZE_OF_STEPS
    else:
        is_large = math.prod(shape) >= LEAST_SIZE
    return is_large and _has_own_gradient(x)


def _has_own_gradient(x) -> bool:
    """Returns whether the gradients of this file are used, fused or not.

    They keep less in memory than TensorFlow's gradients. They are not used for
    float64, which would lose precision.
    """
    return are_passes_compiled() and x.dtype.size <= 4


def gelu(x, approximate: bool):
    """Computes GELU, by tanh if approximate, else by erf.

    On TensorFlow, it computes in float32 at least: in bfloat16, Keras's erf
    form is several per cent off, and a quarter as fast. That form calls erfc,
    which on CPUs is half as fast as erf. The result has the dtype of `x`.
    """
    if keras.config.backend() != "tensorflow":
        return keras.activations.gelu(x, approximate=approximate)
    if _has_own_gradient(x):
        # The gradient keeps x only; TensorFlow's own keeps five such tensors.
        return _fused_gelu(approximate, is_fused(x))(x)
    wide = ops.cast(x, keras.backend.result_type(x.dtype, "float32"))
    if approximate:
        wide = keras.activations.gelu(wide, approximate=True)
    else:
        # The form that LiteRT's converter knows.
        wide = 0.5 * wide * (1.0 + ops.erf(wide * math.sqrt(0.5)))
    return ops.cast(wide, x.dtype)


def attend(scores, bias, value, rate: float = 0.0, seed=None):
    """Computes the softmax over the last axis, dropout, and weighted sums.

    Args:
      scores: Floats [B, N, Q, S].
      bias: Floats that broadcast to [B, N, Q, S], added to the scores in
        float32. Some implementations give the bias no gradient.
      value: Floats [B, N, S, D].
      rate, seed: See `dropout`.

    Returns:
      The sums of values, floats [B, N, Q, D], and the probabilities before
      dropout, floats [B, N, Q, S].
    """
    biased = ops.cast(scores, "float32") + ops.cast(bias, "float32")
    probabilities = ops.cast(ops.softmax(biased), scores.dtype)
    # In a compiled function, the probabilities before dropout are computed only
    # if something uses them.
    if seed is not None and keras.config.backend() == "jax":
        return _attention_on_jax(rate)(scores, bias, value, seed), probabilities
    if seed is not None and is_fused(scores):
        fused = _fused_attention_probabilities(rate)
        return ops.matmul(fused(scores, bias, seed), value), probabilities
    dropped = dropout(probabilities, rate, seed)
    return ops.matmul(dropped, value), probabilities


def residual_layer_norm(
    x,
    residual,
    norm: keras.layers.LayerNormalization,
    rate: float = 0.0,
    seed=None,
):
    """Applies dropout to `x` and normalizes its sum with the residual.

    Args:
      x: Floats [..., H].
      residual: Floats [..., H].
      norm: A layer normalization of the last axis, built.
      rate, seed: See `dropout`.

    Returns:
      Floats [..., H].
    """
    if seed is None or not _has_own_gradient(x):
        return norm(dropout(x, rate, seed) + residual)
    jit_compile = is_fused(x)
    if not jit_compile:
        # TensorFlow draws the masks. The gradient of the rest keeps only the
        # normalized values; TensorFlow's own keeps two such tensors.
        x, rate = dropout(x, rate, seed), 0.0
    function = _fused_residual_layer_norm(rate, norm.epsilon, jit_compile)
    return function(x, residual, norm.gamma, norm.beta, seed)


def cross_entropy(labels, logits):
    """Computes -log softmax(logits)[labels].

    Args:
      labels: Integers [...].
      logits: Floats [..., C].

    Returns:
      Floats [...], float32 if fused.
    """
    if is_fused(logits):
        return _fused_cross_entropy()(logits, labels)
    return keras.losses.sparse_categorical_crossentropy(
        labels, logits, from_logits=True
    )


def dropout(x, rate: float, seed):
    """Applies dropout with a mask that the seed determines.

    So a training step can be repeated, recomputed or resumed; the masks of
    Keras's layer depend on a counter. On JAX the mask is a hash, as in the
    fused functions.

    Args:
      x: Floats of any shape.
      rate: The share that becomes 0; the rest is divided by 1 - rate.
      seed: Integers [2], or None for no dropout.
    """
    if seed is None or not rate:
        return x
    backend = keras.config.backend()
    if backend == "jax":
        return _hashed_dropout(x, rate, seed)
    if backend == "tensorflow":
        return tf.nn.experimental.stateless_dropout(x, rate, seed)
    if seed.is_meta:  # Only shapes are computed.
        return x
    number = int(seed[0] + seed[1]) & 0xFFFFFFFF
    return keras.random.dropout(x, rate, seed=number)


# Fused implementations. Each is compiled once per shape for the whole model.


def _fuse(
    forward: Callable,
    backward: Callable,
    needed: Sequence[int],
    jit_compile: bool = True,
) -> Callable:
    """Returns a differentiable function that XLA compiles.

    Args:
      forward: Maps arguments to the result and a tuple for the gradient.
      backward: Maps the gradient of the result, the tuple and the needed
        arguments to the gradients of all arguments.
      needed: The positions of the arguments that the gradient needs. Others
        are not kept in memory.
      jit_compile: Whether XLA compiles the function; if not, it still has the
        gradient.
    """
    compile_ = functools.partial(
        tf.function, autograph=False, jit_compile=jit_compile
    )
    forward, backward = compile_(forward), compile_(backward)

    # A separate graph, made once: TensorFlow keeps a gradient function, and
    # the graph around it, until the process ends.
    @tf.function(autograph=False)
    def apply(*arguments):
        @tf.custom_gradient
        def differentiable(*arguments):
            result, residuals = forward(*arguments)

            def gradient(upstream):
                return backward(
                    upstream, residuals, *(arguments[n] for n in needed)
                )

            return result, gradient

        return differentiable(*arguments)

    # Variables and tensors would be traced separately.
    return lambda *arguments: apply(*map(tf.convert_to_tensor, arguments))


@functools.cache
def _fused_gelu(approximate: bool, jit_compile: bool):
    def cdf_and_slope(x):
        """Returns f and f' where GELU(x) = x f(x)."""
        if not approximate:
            density = tf.exp(-0.5 * x * x) * (1.0 / math.sqrt(2.0 * math.pi))
            return 0.5 * (1.0 + tf.math.erf(x * math.sqrt(0.5))), density
        scale, cubic = math.sqrt(2.0 / math.pi), 0.044715
        tanh = tf.tanh(scale * (x + cubic * x * x * x))
        slope = (1.0 - tanh * tanh) * (scale * (1.0 + 3.0 * cubic * x * x))
        return 0.5 * (1.0 + tanh), 0.5 * slope

    def forward(x):
        wide = _wide(x)
        cdf, _ = cdf_and_slope(wide)
        return tf.cast(wide * cdf, x.dtype), ()

    def backward(upstream, residuals, x):
        wide = _wide(x)
        cdf, slope = cdf_and_slope(wide)
        return tf.cast(_wide(upstream) * (cdf + wide * slope), x.dtype)

    return _fuse(forward, backward, [0], jit_compile)


@functools.cache
def _fused_attention_probabilities(rate: float):
    def forward(scores, bias, seed):
        probabilities = tf.nn.softmax(_wide(scores) + _wide(bias))
        probabilities = tf.cast(probabilities, scores.dtype)
        return _hashed_dropout(probabilities, rate, seed), (probabilities,)

    def backward(upstream, residuals, seed):
        dtype, probabilities = upstream.dtype, _wide(residuals[0])
        upstream = _wide(_hashed_dropout(upstream, rate, seed)) * probabilities
        total = tf.reduce_sum(upstream, axis=-1, keepdims=True)
        gradient = upstream - probabilities * total
        return tf.cast(gradient, dtype), None, None

    return _fuse(forward, backward, [2])


@functools.cache
def _attention_on_jax(rate: float):
    """Returns a function for the first result of `attend`, with a gradient.

    The gradient keeps no probabilities: it computes them again from the scores
    and two numbers for each row. Unlike the gradient of a softmax, it has no
    sums over rows of probabilities, which are slow on GPUs. `jax.jvp` cannot be
    used.
    """

    def probabilities_of(scores, bias, highest, log_sum):
        return ops.exp(_wide(scores) + _wide(bias) - highest - log_sum)

    def dropped(probabilities, seed, dtype):
        return ops.cast(_hashed_dropout(probabilities, rate, seed), dtype)

    @jax.custom_vjp
    def attention(*arguments):
        return forward(*arguments)[0]

    def forward(scores, bias, value, seed):
        biased = _wide(scores) + _wide(bias)
        # Two numbers, since their sum would round away the second one where the
        # bias is large.
        highest = ops.max(biased, axis=-1, keepdims=True)
        log_sum = ops.logsumexp(biased - highest, axis=-1, keepdims=True)
        row = highest, log_sum  # Each [B, N, Q, 1].
        probabilities = probabilities_of(scores, bias, *row)
        context = ops.matmul(dropped(probabilities, seed, value.dtype), value)
        return context, (scores, bias, value, seed, row, context)

    def backward(residuals, upstream):
        # Without the barrier, XLA would keep the probabilities.
        residuals, upstream = jax.lax.optimization_barrier(
            (residuals, upstream)
        )
        scores, bias, value, seed, row, context = residuals
        probabilities = probabilities_of(scores, bias, *row)
        # Equals the sum over keys of probabilities times their gradients.
        total = _wide(upstream) * _wide(context)
        total = ops.sum(total, axis=-1, keepdims=True)  # [B, N, Q, 1]
        gradient = ops.matmul(upstream, ops.transpose(value, (0, 1, 3, 2)))
        gradient = _hashed_dropout(_wide(gradient), rate, seed) - total
        weights = dropped(probabilities, seed, value.dtype)
        return (
            ops.cast(probabilities * gradient, scores.dtype),
            None,
            ops.matmul(ops.transpose(weights, (0, 1, 3, 2)), upstream),
            None,
        )

    attention.defvjp(forward, backward)
    return attention


@functools.cache
def _fused_residual_layer_norm(rate: float, epsilon: float, jit_compile: bool):
    def forward(x, residual, gamma, beta, seed):
        total = _wide(_hashed_dropout(x, rate, seed)) + _wide(residual)
        mean = tf.reduce_mean(total, axis=-1, keepdims=True)
        variance = tf.reduce_mean((total - mean) ** 2, axis=-1, keepdims=True)
        inverse = tf.math.rsqrt(variance + epsilon)  # [..., 1]
        normal = (total - mean) * inverse
        result = normal * _wide(gamma) + _wide(beta)
        return tf.cast(result, x.dtype), (tf.cast(normal, x.dtype), inverse)

    def backward(upstream, residuals, gamma, seed):
        normal, inverse = map(_wide, residuals)
        dtype, upstream = upstream.dtype, _wide(upstream)
        scaled = upstream * _wide(gamma)
        mean = tf.reduce_mean(scaled, axis=-1, keepdims=True)
        along = tf.reduce_mean(scaled * normal, axis=-1, keepdims=True)
        total = inverse * (scaled - mean - normal * along)
        total = tf.cast(total, dtype)
        rows = tuple(range(len(total.shape) - 1))
        return (
            _hashed_dropout(total, rate, seed),
            total,
            tf.cast(tf.reduce_sum(upstream * normal, rows), gamma.dtype),
            tf.cast(tf.reduce_sum(upstream, rows), gamma.dtype),
            None,
        )

    return _fuse(forward, backward, [2, 4], jit_compile)


@functools.cache
def _fused_cross_entropy():
    def is_label(logits, labels):
        return tf.range(tf.shape(logits)[-1]) == labels[..., None]

    def forward(logits, labels):
        wide = _wide(logits)
        highest = tf.reduce_max(wide, axis=-1, keepdims=True)
        total = tf.reduce_sum(tf.exp(wide - highest), axis=-1, keepdims=True)
        normalizer = highest + tf.math.log(total)  # [..., 1]
        label_logits = tf.where(is_label(logits, labels), wide, 0.0)
        losses = normalizer[..., 0] - tf.reduce_sum(label_logits, axis=-1)
        return losses, (normalizer,)

    def backward(upstream, residuals, logits, labels):
        probabilities = tf.exp(_wide(logits) - residuals[0])
        gradient = tf.where(
            is_label(logits, labels), probabilities - 1.0, probabilities
        )
        return tf.cast(gradient * upstream[..., None], logits.dtype), None

    return _fuse(forward, backward, [0, 1])


def _hashed_dropout(x, rate: float, seed):
    """Applies dropout with a mask that the gradient computes a second time."""
    if not rate:
        return x
    keep = keep_mask(ops.shape(x), seed, rate)
    scaled = x * ops.cast(1.0 / (1.0 - rate), x.dtype)
    return ops.where(keep, scaled, ops.zeros([], x.dtype))


def keep_mask(shape, seed, rate: float):
    """Returns which values dropout keeps, a hash of position and seed.

    On CPUs XLA's random numbers take a hundred times as long.

    Args:
      shape: Shape of the mask, integers, with fewer than 2^31 elements.
      seed: Integers [2].
      rate: The probability of each value to be False.
    """
    first, second = ops.unstack(ops.cast(seed, "uint32"), 2)
    positions = ops.reshape(ops.arange(math.prod(shape), dtype="int32"), shape)
    key = _mix(_mix(first) + second)
    bits = _mix(ops.cast(positions, "uint32") + key)
    return bits >= ops.convert_to_tensor(round(rate * 2**32), "uint32")


def _mix(x):
    """Permutes the 32-bit integers so that close ones become unrelated.

    This is "lowbias32" (C. Wellons, 2018): flipping one bit of the argument
    flips each bit of the result with a probability near 0.5.
    """
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B), (16, 1)):
        shifted = ops.bitwise_right_shift(
            x, ops.convert_to_tensor(shift, "uint32")
        )
        x = ops.bitwise_xor(x, shifted)
        x = x * ops.convert_to_tensor(factor, "uint32")
    return x


def _wide(x):
    return ops.cast(x, "float32")
