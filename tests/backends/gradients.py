"""Gradients on every backend."""

from collections.abc import Callable

import keras
import numpy as np
from keras import ops

from bert_tf.kinds.pretraining.task import PretrainingTask
from tests.backends.small_bert import numbers


def gradients(
    model: keras.Model, inputs, loss: Callable, **arguments
) -> dict[str, np.ndarray]:
    """Returns path -> gradient of `loss(model(inputs, **arguments))`.

    Includes all trainable variables; zeros if a variable has no influence.
    """
    compute = {"tensorflow": _tensorflow, "jax": _jax, "torch": _torch}
    values = compute[keras.config.backend()](model, inputs, loss, arguments)
    paths = [v.path for v in model.trainable_variables]
    return numbers(dict(zip(paths, values, strict=True)))


def pretraining_losses(task: PretrainingTask, features, outputs) -> dict:
    """Returns the mean losses of a batch, by name."""
    features = {k: ops.convert_to_tensor(v) for k, v in features.items()}
    values = task.losses(features, outputs)
    weights = task.loss_weights(features)
    return {
        name: ops.sum(value) / ops.sum(weights[name])
        for name, value in values.items()
    }


def _tensorflow(model, inputs, loss, arguments):
    import tensorflow as tf

    variables = [v.value for v in model.trainable_variables]
    with tf.GradientTape() as tape:
        value = loss(model(inputs, **arguments))
    found = tape.gradient(value, variables, unconnected_gradients="zero")
    return [tf.convert_to_tensor(g) for g in found]


def _jax(model, inputs, loss, arguments):
    import jax

    other = [v.value for v in model.non_trainable_variables]

    def compute(values):
        outputs, _ = model.stateless_call(values, other, inputs, **arguments)
        return loss(outputs)

    # XLA compiles one program faster than one for each operation.
    gradient = jax.jit(jax.grad(compute))
    return gradient([v.value for v in model.trainable_variables])


def _torch(model, inputs, loss, arguments):
    variables = [v.value for v in model.trainable_variables]
    model.zero_grad()
    loss(model(inputs, **arguments)).backward()
    return [ops.zeros_like(v) if v.grad is None else v.grad for v in variables]
