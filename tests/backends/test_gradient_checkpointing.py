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

SEED = np.array([5, 6], "int32")
BLOCKS = small_bert.CONFIG.num_hidden_layers


def square(outputs):
    """A loss of every output."""
    outputs = [ops.cast(x, "float32") for x in keras.tree.flatten(outputs)]
    return sum(ops.mean(x * x) for x in outputs)


def both(**arguments) -> list[keras.Model]:
    """The plain model, and the one that recomputes its blocks."""
    return [
        small_bert.make(
            BertModel, gradient_checkpointing=checkpointing, **arguments
        )
        for checkpointing in (False, True)
    ]


WITHOUT_LISTS = {"output_attentions": False, "output_hidden_states": False}


@pytest.mark.parametrize(
    ("policy", "options", "tolerance"),
    [
        ("float32", {}, 1e-6),
        # Sums in another order: one unit in the last of 8 bits.
        ("mixed_bfloat16", WITHOUT_LISTS, 5e-3),
    ],
)
def test_gradients_are_the_plain_ones(policy, options, tolerance, fidelity):
    """With dropout, whose masks are drawn a second time."""
    plain, twice = both(dtype=policy, **options)
    inputs = small_bert.features()
    wanted, found, undropped = (
        gradients(model, inputs, square, training=training, seed=SEED)
        for model, training in ((plain, True), (twice, True), (plain, False))
    )
    assert found.keys() == wanted.keys()
    gap = max(np.abs(found[path] - wanted[path]).max() for path in wanted)
    fidelity(
        f"backends: gradients with gradient checkpointing, {policy}",
        gap,
        tolerance,
    )
    kernel = "bert/encoder/layer_0/attention/self/query/kernel"
    assert np.abs(undropped[kernel] - wanted[kernel]).max() > 0.01


def test_fit_gives_the_plain_weights():
    """The model draws the seed itself, once for both passes."""
    weights = []
    inputs = small_bert.features()
    for gradient_checkpointing in (False, True):
        keras.utils.set_random_seed(1)
        model = small_bert.make(
            BertModel,
            gradient_checkpointing=gradient_checkpointing,
            **WITHOUT_LISTS,
        )
        start = small_bert.named_weights(model)
        model.compile(keras.optimizers.SGD(0.1), "mse", **small_bert.BRIEFLY)
        targets = {
            name: np.zeros(shape, "float32")
            for name, shape in model.compute_output_shape(
                {name: value.shape for name, value in inputs.items()}
            ).items()
        }
        model.fit(inputs, targets, batch_size=small_bert.B, verbose=0)
        weights.append(small_bert.named_weights(model))
    name = "bert/encoder/layer_0/attention/self/query/kernel"
    assert np.abs(weights[0][name] - start[name]).max() > 1e-4
    for name, value in weights[0].items():
        np.testing.assert_allclose(weights[1][name], value, atol=1e-6)


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
