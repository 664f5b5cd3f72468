"""Blocks that are computed twice: the same gradients, and less to keep."""

import gc
import weakref

import keras
import numpy as np
import pytest
from keras import ops

from bert_tf.heads import BertPretrainer
from bert_tf.modeling import BertModel
from bert_tf.transformer import Intermediate
from tests.backends import small_bert
from tests.backends.gradients import gradients

SEED = np.array([5, 6], "int32")
BLOCKS = small_bert.CONFIG.num_hidden_layers


def square(outputs):
    """A loss that every output has a part in."""
    outputs = [ops.cast(x, "float32") for x in keras.tree.flatten(outputs)]
    return sum(ops.mean(x * x) for x in outputs)


def both(model_class, **arguments) -> list[keras.Model]:
    """The plain model, and the one that computes its blocks twice."""
    return [
        small_bert.make(
            model_class, gradient_checkpointing=checkpointing, **arguments
        )
        for checkpointing in (False, True)
    ]


@pytest.mark.parametrize(
    ("shown", "policy", "tolerance"),
    [
        (False, "float32", 1e-6),
        (True, "float32", 1e-6),
        # Sums in another order: one unit in the last of 8 bits.
        (False, "mixed_bfloat16", 5e-3),
    ],
)
def test_gradients_are_the_plain_ones(shown, policy, tolerance, fidelity):
    """With dropout, whose masks have to be drawn a second time."""
    shown = {"output_attentions": shown, "output_hidden_states": shown}
    plain, twice = both(BertModel, dtype=policy, **shown)
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


def test_outputs_are_the_plain_ones():
    plain, twice = both(BertModel)
    for arguments in ({}, {"training": True, "seed": SEED}):
        wanted, found = (
            small_bert.named(model(small_bert.features(), **arguments))
            for model in (plain, twice)
        )
        assert found.keys() == wanted.keys()
        for name, value in wanted.items():
            np.testing.assert_allclose(found[name], value, atol=1e-6)


def test_without_a_seed_each_call_draws_anew():
    _, twice = both(BertModel)
    first, second = (
        small_bert.named(twice(small_bert.features(), training=True))
        for _ in range(2)
    )
    gap = np.abs(first["sequence_output"] - second["sequence_output"]).max()
    assert gap > 0.1


def test_fit_gives_the_plain_weights():
    """Seeds are then drawn by the model itself, once for both passes."""
    weights = []
    for gradient_checkpointing in (False, True):
        keras.utils.set_random_seed(1)
        model = small_bert.make(
            BertModel,
            output_attentions=False,
            output_hidden_states=False,
            gradient_checkpointing=gradient_checkpointing,
        )
        model.compile(keras.optimizers.SGD(0.1), "mse", **small_bert.BRIEFLY)
        inputs = small_bert.features()
        targets = {
            name: np.zeros(shape, "float32")
            for name, shape in model.compute_output_shape(
                {name: value.shape for name, value in inputs.items()}
            ).items()
        }
        model.fit(inputs, targets, batch_size=1, shuffle=False, verbose=0)
        weights.append(small_bert.named_weights(model))
    start = small_bert.named_weights(small_bert.make(BertModel))
    name = "bert/encoder/layer_0/attention/self/query/kernel"
    assert np.abs(weights[0][name] - start[name]).max() > 1e-4
    for name, value in weights[0].items():
        np.testing.assert_allclose(weights[1][name], value, atol=1e-6)


def test_a_model_with_a_head_follows_its_encoder():
    plain, twice = both(BertPretrainer)
    assert twice.bert.encoder.gradient_checkpointing
    wanted, found = (
        gradients(
            model,
            small_bert.features(BertPretrainer),
            square,
            training=True,
            seed=SEED,
        )
        for model in (plain, twice)
    )
    for path, value in wanted.items():
        np.testing.assert_allclose(found[path], value, atol=1e-6, err_msg=path)


def outliving_the_forward_pass(model, monkeypatch) -> int:
    """How many results of the wide layers wait for the backward pass."""
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
    plain, twice = both(BertModel)
    assert outliving_the_forward_pass(plain, monkeypatch) >= BLOCKS
    assert outliving_the_forward_pass(twice, monkeypatch) == 0
