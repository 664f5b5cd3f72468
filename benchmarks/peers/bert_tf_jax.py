"""bert_tf on Keras's JAX backend, for benchmarks/gpu.py.

Weights, moments and random numbers go into a step that is compiled as a whole
and come out of it; their memory is given away, so that the new ones take the
place of the old. Trained is in mixed precision, run forward with weights in
bfloat16.

It needs what jax_cuda.txt lists, and no TensorFlow.
"""

import os

os.environ["KERAS_BACKEND"] = "jax"

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import keras
import training
from keras import ops
from random_examples import batch_of

from bert_tf import AdamWeightDecay, BertConfig, BertModel
from bert_tf.tasks.pretraining import PretrainingTask

Arrays = list[jax.Array]
# Of what `batch_of` gives, what the encoder takes.
FEATURES = (
    *("input_ids", "input_mask", "segment_ids"),
    *("position_ids", "example_ids", "cls_positions"),
)


def make(request: Mapping[str, Any]) -> training.Work:
    config = BertConfig(**request["config"])
    batch = jax.device_put(batch_of(request))
    make_step = training_step if request["is_training"] else forward_pass
    step = make_step(config, batch, request["precision"])
    matrix = jax.random.normal(
        jax.random.key(0),
        [request["matrix_size"]] * 2,
        request["precision"],
    )

    def steps() -> None:
        for _ in range(request["steps"]):
            last = step()
        jax.block_until_ready(last)

    def products() -> None:
        for _ in range(request["products"]):
            last = matrix @ matrix
        last.block_until_ready()

    return training.Work(steps, products, peak_bytes)


def training_step(
    config: BertConfig, batch: Mapping[str, jax.Array], precision: str
) -> Callable[[], jax.Array]:
    """Forward, backward, clipping, update; gives the loss."""
    if precision != "float32":
        keras.config.set_dtype_policy(f"mixed_{precision}")
    length = batch["input_ids"].shape[1]
    masked = batch["masked_lm_ids"].shape[1]
    task = PretrainingTask(config, length, masked)
    model = task.build_model()
    optimizer = AdamWeightDecay(1e-4, global_clipnorm=1.0)
    optimizer.build(model.trainable_variables)

    def loss_of(weights: Arrays, others: Arrays, batch):
        outputs, others = model.stateless_call(
            weights, others, batch, training=True
        )
        totals = task.losses(batch, outputs)
        counts = task.loss_weights(batch)
        means = [ops.sum(totals[n]) / ops.sum(counts[n]) for n in totals]
        return sum(means), others

    @functools.partial(jax.jit, donate_argnums=0)
    def update(state: tuple[Arrays, Arrays, Arrays], batch):
        weights, others, slots = state
        gradient_of = jax.value_and_grad(loss_of, has_aux=True)
        (loss, others), gradients = gradient_of(weights, others, batch)
        weights, slots = optimizer.stateless_apply(slots, gradients, weights)
        return (weights, others, slots), loss

    state = tuple(
        [variable.value for variable in variables]
        for variables in (
            model.trainable_variables,
            model.non_trainable_variables,
            optimizer.variables,
        )
    )

    def step() -> jax.Array:
        nonlocal state
        state, loss = update(state, batch)
        return loss

    return step


def forward_pass(
    config: BertConfig, batch: Mapping[str, jax.Array], precision: str
) -> Callable[[], dict[str, jax.Array]]:
    """The encoder and its pooler; gives the vectors of both."""
    model = BertModel(config, dtype=precision)
    model.build()
    weights, others = (
        [variable.value for variable in variables]
        for variables in (
            model.trainable_variables,
            model.non_trainable_variables,
        )
    )
    inputs = {name: batch[name] for name in FEATURES if name in batch}

    @jax.jit
    def encode(weights: Arrays, others: Arrays, inputs):
        outputs, _ = model.stateless_call(weights, others, inputs)
        return outputs

    return lambda: encode(weights, others, inputs)


def peak_bytes() -> int | None:
    statistics = jax.devices()[0].memory_stats()
    return statistics and statistics["peak_bytes_in_use"]


if __name__ == "__main__":
    training.main(make, ("jax", "jaxlib", "keras"))
