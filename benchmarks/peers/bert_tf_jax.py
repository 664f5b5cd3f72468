"""bert_tf on Keras's JAX backend, for benchmarks/training_step.py on GPUs.

A compiled step takes weights, moments and random numbers and returns new ones
in the same memory. It needs jax_cuda.txt, and no TensorFlow.
"""

import os

os.environ["KERAS_BACKEND"] = "jax"
# JAX takes no more memory than it needs.
os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"

import functools

import jax
import keras
import side
from keras import ops

from bert_tf import AdamWeightDecay, BertConfig, BertPretrainer


def make(setup):
    precision = setup["precision"]
    batch = jax.device_put(side.batch_of(setup))
    step = training_step(BertConfig(**setup["config"]), batch, precision)
    shape = [setup["matrix_size"]] * 2
    matrix = jax.random.normal(jax.random.key(0), shape, precision)

    def repeated(work, times):
        for _ in range(times):
            last = work()
        return jax.block_until_ready(last)

    def peak_bytes():
        statistics = jax.devices()[0].memory_stats()
        return statistics and statistics["peak_bytes_in_use"]

    return side.Work(
        lambda: repeated(step, setup["steps"]),
        lambda: repeated(lambda: matrix @ matrix, setup["products"]),
        peak_bytes,
    )


def training_step(config, batch, precision):
    """Returns a function that makes one update and returns the loss."""
    if precision != "float32":
        keras.config.set_dtype_policy(f"mixed_{precision}")
    model = BertPretrainer(config)
    model.build()
    optimizer = AdamWeightDecay(1e-4, global_clipnorm=1.0)
    optimizer.build(model.trainable_variables)

    def mean_loss(labels, logits):
        return ops.mean(
            keras.losses.sparse_categorical_crossentropy(
                labels, logits, from_logits=True
            )
        )

    def loss_of(weights, others, batch):
        outputs, others = model.stateless_call(
            weights, others, batch, training=True
        )
        words = mean_loss(batch["masked_lm_ids"], outputs["masked_lm_logits"])
        sentences = mean_loss(
            batch["next_sentence_labels"][:, 0],
            outputs["next_sentence_logits"],
        )
        return words + sentences, others

    @functools.partial(jax.jit, donate_argnums=0)
    def update(state, batch):
        weights, others, slots = state
        gradient_of = jax.value_and_grad(loss_of, has_aux=True)
        (loss, others), gradients = gradient_of(weights, others, batch)
        weights, slots = optimizer.stateless_apply(slots, gradients, weights)
        return [weights, others, slots], loss

    state = [
        [variable.value for variable in variables]
        for variables in (
            model.trainable_variables,
            model.non_trainable_variables,
            optimizer.variables,
        )
    ]

    def step():
        nonlocal state
        state, loss = update(state, batch)
        return loss

    return step


if __name__ == "__main__":
    side.serve_training(make, ("jax", "jaxlib", "keras"))
