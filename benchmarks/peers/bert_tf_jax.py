"""bert_tf on Keras's JAX backend, for benchmarks/gpu.py.

A compiled step takes weights, moments and random numbers and returns new ones
in the same memory. Training is in mixed precision, the forward pass with
weights in bfloat16. It needs jax_cuda.txt, and no TensorFlow.
"""

import argparse
import os

os.environ["KERAS_BACKEND"] = "jax"

import functools

import jax
import keras
import side
from keras import ops
from workload import batch_of

from bert_tf import AdamWeightDecay, BertConfig, BertModel, BertPretrainer

# The features that the encoder takes.
FEATURES = (
    *("input_ids", "input_mask", "segment_ids"),
    *("position_ids", "example_ids", "cls_positions"),
)


def make(request):
    config = BertConfig(**request["config"])
    batch = jax.device_put(batch_of(request))
    make_step = training_step if request["is_training"] else forward_pass
    step = make_step(config, batch, request["precision"])
    shape = [request["matrix_size"]] * 2
    matrix = jax.random.normal(jax.random.key(0), shape, request["precision"])

    def repeated(work, times):
        for _ in range(times):
            last = work()
        jax.block_until_ready(last)

    return side.Work(
        lambda: repeated(step, request["steps"]),
        lambda: repeated(lambda: matrix @ matrix, request["products"]),
        peak_bytes,
    )


def values(variables):
    return [variable.value for variable in variables]


def training_step(config, batch, precision):
    """Returns a function that makes one update and returns the loss."""
    if precision != "float32":
        keras.config.set_dtype_policy(f"mixed_{precision}")
    model = BertPretrainer(config)
    model.build()
    optimizer = AdamWeightDecay(1e-4, global_clipnorm=1.0)
    optimizer.build(model.trainable_variables)
    # Rows that are not shared hold one example each.
    follows = batch["next_sentence_labels"]
    is_shared = "next_sentence_weights" in batch
    weights_of_follows = batch.get(
        "next_sentence_weights", ops.ones(follows.shape)
    )

    def loss_of(weights, others, batch):
        outputs, others = model.stateless_call(
            weights, others, batch, training=True
        )
        logits = outputs["next_sentence_logits"]
        words = mean_loss(
            batch["masked_lm_ids"],
            outputs["masked_lm_logits"],
            batch["masked_lm_weights"],
        )
        sentences = mean_loss(
            follows,
            logits if is_shared else logits[:, None],
            weights_of_follows,
        )
        return words + sentences, others

    @functools.partial(jax.jit, donate_argnums=0)
    def update(state, batch):
        weights, others, slots = state
        gradient_of = jax.value_and_grad(loss_of, has_aux=True)
        (loss, others), gradients = gradient_of(weights, others, batch)
        weights, slots = optimizer.stateless_apply(slots, gradients, weights)
        return (weights, others, slots), loss

    state = (
        values(model.trainable_variables),
        values(model.non_trainable_variables),
        values(optimizer.variables),
    )

    def step():
        nonlocal state
        state, loss = update(state, batch)
        return loss

    return step


def mean_loss(labels, logits, weights):
    losses = keras.losses.sparse_categorical_crossentropy(
        labels, logits, from_logits=True
    )
    return ops.sum(losses * weights) / ops.sum(weights)


def forward_pass(config, batch, precision):
    """Returns a function that runs the encoder and its pooler."""
    model = BertModel(config, dtype=precision)
    model.build()
    weights = values(model.trainable_variables)
    others = values(model.non_trainable_variables)
    inputs = {name: batch[name] for name in FEATURES if name in batch}

    @jax.jit
    def encode(weights, others, inputs):
        outputs, _ = model.stateless_call(weights, others, inputs)
        return outputs

    return lambda: encode(weights, others, inputs)


def peak_bytes():
    statistics = jax.devices()[0].memory_stats()
    return statistics and statistics["peak_bytes_in_use"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--num_threads", type=int, required=True)
    side.serve_training(
        make, parser.parse_args().num_threads, ("jax", "jaxlib", "keras")
    )
