"""Rates by the paths of variables."""

import math

import pytest

from bert_tf.errors import InputError
from bert_tf.optimization import (
    check_multipliers,
    layerwise_rates,
    multiplier_of,
)


def test_the_first_match_holds_and_none_is_one():
    pairs = [("layer_1/", 0.5), ("kernel$", 0.25), ("layer", 0.0)]
    found = [
        multiplier_of(path, pairs)
        for path in ("layer_1/kernel", "layer_2/kernel", "layer_2/bias", "head")
    ]
    assert found == [0.5, 0.25, 0.0, 1.0]


def test_rates_shrink_towards_the_words():
    pairs = layerwise_rates(12, 0.5)
    expected = {
        "bert/embeddings/word_embeddings": 2.0**-13,
        "bert/embeddings/LayerNorm/gamma": 2.0**-13,
        "bert/encoder/layer_0/attention/self/query/kernel": 2.0**-12,
        "bert/encoder/layer_1/output/dense/bias": 2.0**-11,
        "bert/encoder/layer_10/output/dense/bias": 2.0**-2,
        "classifier/bert/encoder/layer_11/intermediate/dense/kernel": 0.5,
        "bert/pooler/dense/kernel": 1.0,
        "output_weights": 1.0,
        "cls/predictions/transform/LayerNorm/beta": 1.0,
    }
    assert {path: multiplier_of(path, pairs) for path in expected} == expected


def test_every_variable_of_a_model_has_its_rate():
    from bert_tf.config import BertConfig
    from bert_tf.heads import BertClassifier

    config = BertConfig(
        vocab_size=31,
        hidden_size=6,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=7,
        max_position_embeddings=11,
    )
    model = BertClassifier(config, num_labels=5)
    model.build()
    pairs = layerwise_rates(3, 0.5)
    counts = {}
    for variable in model.trainable_variables:
        rate = multiplier_of(variable.path, pairs)
        counts[rate] = counts.get(rate, 0) + 1
    # Embeddings: 3 tables, gamma, beta; a layer: 6 kernels, 6 biases, 2 norms;
    # the pooler's and the classifier's kernel and bias.
    assert counts == {2.0**-4: 5, 2.0**-3: 16, 2.0**-2: 16, 0.5: 16, 1.0: 4}


def test_no_decay_is_one_rate_for_all():
    assert {factor for _, factor in layerwise_rates(3, 1.0)} == {1.0}


@pytest.mark.parametrize("decay", [0, -0.5, 1.01, math.nan])
def test_a_decay_out_of_range(decay):
    with pytest.raises(InputError, match=f"up to 1. Received: {decay}"):
        layerwise_rates(3, decay)


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        (("a", -1), r"of 0 up. Received: -1.0 for 'a'"),
        (("a", math.inf), "Received: inf for 'a'"),
        (("a", math.nan), "Received: nan for 'a'"),
        (("(", 1), r"Received: '\(' \(missing \)"),
    ],
)
def test_pairs_that_cannot_be_used(pair, message):
    with pytest.raises(InputError, match=message):
        check_multipliers([("fine", 0), pair])


def test_what_json_makes_of_pairs_is_understood():
    assert check_multipliers([["a", 1], ("b", 0)]) == (("a", 1.0), ("b", 0.0))
