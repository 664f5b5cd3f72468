"""Frozen layers, and learning rates by layer."""

import re

import numpy as np
import pytest

from bert_tf.errors import InputError
from bert_tf.modeling.encoder import BertModel
from bert_tf.modeling.heads import BertClassifier
from bert_tf.modeling.optimization import AdamWeightDecay, layerwise_rates
from bert_tf.modeling.variables import checkpoint_variables
from tests.backends import small_bert
from tests.backends.small_bert import trainable

FROZEN = re.compile("bert/(embeddings|encoder/layer_0)/")


def test_freezing_again_replaces_what_is_frozen():
    """Before the model is built, or later."""
    model = BertModel(small_bert.CONFIG)
    model.freeze(1)
    small_bert.fill(model)
    names = set(checkpoint_variables(model))
    assert trainable(model) == {n for n in names if not FROZEN.match(n)}
    assert trainable(model) < names
    for arguments, frozen in (
        ((2,), ["embeddings", "layer_0", "layer_1"]),
        ((1,), ["embeddings", "layer_0"]),
        # For words that were added to the vocabulary.
        ((2, False), ["layer_0", "layer_1"]),
        ((0, False), []),
    ):
        model.freeze(*arguments)
        assert model.frozen_layers == frozen
    assert len(model.trainable_variables) == len(model.weights)


def test_the_config_has_the_frozen_layers():
    model = small_bert.make(BertClassifier)
    model.bert.trainable = False
    again = small_bert.fill(BertClassifier.from_config(model.get_config()))
    assert trainable(again) == {"output_weights", "output_bias"}


@pytest.mark.parametrize("lora", [False, True])
def test_trainable_unfreezes_every_layer(lora):
    """Also if it is True already, as TensorFlow ignores equal values."""
    model = small_bert.make(BertClassifier)
    if lora:
        model.enable_lora(2)
        model.merge_lora()
    else:
        model.bert.freeze(2)
    assert len(model.trainable_variables) < len(model.weights)
    assert model.trainable
    model.trainable = True
    assert len(model.trainable_variables) == len(model.weights)
    assert not model.bert.frozen_layers
    model.trainable = False
    assert not model.trainable_variables


def test_unknown_layers_are_errors():
    for count in (-1, 3, "x", None):
        with pytest.raises(InputError, match=rf"from 0 to 2.* got {count!r}"):
            BertModel(small_bert.CONFIG).freeze(count)
    with pytest.raises(InputError, match=r"layer_1 or pooler.*layer_2"):
        BertModel(small_bert.CONFIG, frozen_layers=["layer_2"])


def test_fit_moves_only_the_other_layers():
    model = small_bert.make(BertClassifier, gradient_checkpointing=True)
    model.bert.freeze(1)
    moved = small_bert.moved_by_training(small_bert.compiled(model), 0, 1)
    assert moved == trainable(model) != set(checkpoint_variables(model))
    slots = model.optimizer.slot_variables()
    assert {name.rpartition("/")[0] for name in slots} == {
        v.path for v in model.trainable_variables
    }


def first_step(rate_multipliers):
    """The change of each weight in one step."""
    model = small_bert.classifier_to_train(
        lambda schedule, **options: AdamWeightDecay(
            0.01, rate_multipliers=rate_multipliers, **options
        )
    )
    before = small_bert.named_weights(model)
    small_bert.train(model, 0, 1)
    after = small_bert.named_weights(model)
    return {name: after[name] - before[name] for name in after}


def test_learning_rates_by_layer():
    rates = (("bert/encoder/layer_0/", 0.0), *layerwise_rates(2, 0.5))
    plain, multiplied = first_step(()), first_step(rates)
    assert all(step.any() for step in plain.values())
    expected = {"embeddings/": 0.125, "layer_0/": 0.0, "layer_1/": 0.5}
    for name, step in multiplied.items():
        factor = next((f for key, f in expected.items() if key in name), 1.0)
        np.testing.assert_allclose(
            step, factor * plain[name], rtol=1e-3, atol=1e-6, err_msg=name
        )
