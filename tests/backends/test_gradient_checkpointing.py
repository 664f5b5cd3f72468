"""Gradient checkpointing: the same gradients, with less memory."""

import gc
import weakref

import keras
import numpy as np
import pytest
from keras import ops

from bert_tf.modeling.encoder import BertModel
from bert_tf.modeling.transformer import Intermediate
from tests.backends import small_bert
from tests.backends.gradients import gradients

WITHOUT_LISTS = {"output_attentions": False, "output_hidden_states": False}
SEED = np.array([5, 6], "int32")
BLOCKS = small_bert.CONFIG.num_hidden_layers


def square(outputs):
    """A loss of every output."""
    outputs = [ops.cast(x, "float32") for x in keras.tree.flatten(outputs)]
    return sum(ops.mean(x * x) for x in outputs)


def both(**arguments) -> list[keras.Model]:
    """The plain model, and the one that recomputes its blocks."""
    models = []
    for again in (False, True):
        keras.utils.set_random_seed(1)
        arguments["gradient_checkpointing"] = again
        models.append(small_bert.make(BertModel, **arguments))
    return models


@pytest.mark.parametrize(
    ("policy", "options", "seed", "tolerance"),
    [
        ("float32", {}, SEED, 1e-6),
        # The model draws the seed itself, once for both passes.
        ("float32", {}, None, 1e-6),
        ("float32", {"frozen_layers": ["layer_0"]}, SEED, 1e-6),
        # Sums in another order: one unit in the last of 8 bits.
        ("mixed_bfloat16", WITHOUT_LISTS, SEED, 5e-3),
    ],
)
def test_gradients_are_the_plain_ones(
    policy, options, seed, tolerance, fidelity
):
    """With dropout, whose masks are drawn a second time."""
    plain, twice = both(dtype=policy, **options)
    inputs = small_bert.features()
    results = []
    for model, training in ((plain, True), (twice, True), (plain, False)):
        # Keras's dropout on PyTorch uses the global generator.
        keras.utils.set_random_seed(1)
        results.append(
            gradients(model, inputs, square, training=training, seed=seed)
        )
    wanted, found, undropped = results
    assert found.keys() == wanted.keys()
    gap = max(np.abs(found[path] - wanted[path]).max() for path in wanted)
    fidelity(
        f"backends: gradients with gradient checkpointing, {policy}",
        gap,
        tolerance,
    )
    kernel = "bert/encoder/layer_1/attention/self/query/kernel"
    assert np.abs(undropped[kernel] - wanted[kernel]).max() > 0.01


def outliving_the_forward_pass(model, monkeypatch) -> int:
    """The number of wide layers' results kept for the backward pass."""
    if keras.config.backend() == "jax":
        return _residuals_of_jax(model)
    seen = []
    original = Intermediate.call

    def spy(self, x):
        result = original(self, x)
        seen.append(weakref.ref(result))
        return result

    monkeypatch.setattr(Intermediate, "call", spy)
    alive = []

    def loss(outputs):
        gc.collect()
        alive.append(sum(reference() is not None for reference in seen))
        return square(outputs)

    gradients(model, small_bert.features(), loss, training=True, seed=SEED)
    return alive[0]


def _residuals_of_jax(model) -> int:
    import jax

    other = [v.value for v in model.non_trainable_variables]

    def loss(values):
        inputs = small_bert.features()
        outputs, _ = model.stateless_call(
            values, other, inputs, training=True, seed=SEED
        )
        return square(outputs)

    _, pullback = jax.vjp(loss, [v.value for v in model.trainable_variables])
    wide = small_bert.CONFIG.intermediate_size
    shape = (small_bert.B, small_bert.S, wide)
    return sum(x.shape == shape for x in jax.tree.leaves(pullback))


def test_nothing_inside_a_block_is_kept(monkeypatch):
    plain, twice = both()
    assert outliving_the_forward_pass(plain, monkeypatch) >= BLOCKS
    assert outliving_the_forward_pass(twice, monkeypatch) == 0
