"""Vectors to scores: positions, formulas, shapes, dtypes."""

import json

import keras
import numpy as np
import pytest
from keras import ops

from bert_tf.config import BertConfig
from bert_tf.heads import (
    MaskedLanguageModel,
    NextSentence,
    PretrainingHeads,
    Span,
    SpanHead,
    Transform,
)

B, S, P, V, H = 5, 11, 3, 37, 12
CONFIG = BertConfig(
    vocab_size=V,
    hidden_size=H,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=17,
    type_vocab_size=2,
)


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype("float32")


def positions() -> np.ndarray:
    return np.random.default_rng(2).integers(0, S, (B, P))


def filled(layer):
    """Builds a layer and gives it weights that are no zeros."""
    layer.build((None, None, H))
    random = np.random.default_rng(1)
    for weight in layer.weights:
        weight.assign(random.normal(size=weight.shape))
    return layer


def test_logits_are_those_of_the_positions():
    """Position p of row b is scored, and no other."""
    head = filled(MaskedLanguageModel(CONFIG))
    x, table = normal(B, S, H), normal(V, H)
    logits = head(x, positions(), table)
    assert logits.shape == (B, P, V)
    for b in range(B):
        for p in range(P):
            alone = head(
                x[b : b + 1, positions()[b, p]][:, None],
                np.zeros((1, 1), int),
                table,
            )
            np.testing.assert_allclose(logits[b, p], alone[0, 0], atol=1e-4)


def test_without_positions_all_are_scored():
    head = filled(MaskedLanguageModel(CONFIG))
    x, table = normal(B, S, H), normal(V, H)
    everywhere = np.tile(np.arange(S), (B, 1))
    np.testing.assert_array_equal(
        head(x, None, table), head(x, everywhere, table)
    )


@pytest.mark.parametrize(
    ("layer", "shape"), [(NextSentence, (B, H)), (Span, (B, S, H))]
)
def test_scores_are_the_formula(layer, shape):
    """Weights are [C, H] and used transposed."""
    layer, x = filled(layer(CONFIG)), normal(*shape)
    weights, bias = (np.array(w) for w in layer.weights)
    assert weights.shape == (2, H)
    np.testing.assert_allclose(layer(x), x @ weights.T + bias, atol=1e-5)


@pytest.mark.parametrize("policy", ["float32", "bfloat16", "mixed_float16"])
def test_scores_are_float32_and_of_the_shape_announced(policy):
    cases = [
        (MaskedLanguageModel, [(B, S, H), (B, P), (V, H)]),
        (NextSentence, [(B, H)]),
        (Span, [(B, S, H)]),
    ]
    for layer_class, shapes in cases:
        layer = filled(layer_class(CONFIG, dtype=policy))
        dtypes = ["float32", "int32", "float32"]
        inputs = [
            ops.ones(shape, dtype)
            for shape, dtype in zip(shapes, dtypes, strict=False)
        ]
        symbols = [
            keras.KerasTensor(shape, dtype)
            for shape, dtype in zip(shapes, dtypes, strict=False)
        ]
        real, spec = layer(*inputs), layer(*symbols)
        assert keras.backend.standardize_dtype(real.dtype) == "float32"
        assert (spec.shape, spec.dtype) == (tuple(real.shape), "float32")


def test_the_transform_keeps_shape_and_dtype():
    layer = Transform(CONFIG, dtype="mixed_bfloat16")
    spec = layer(keras.KerasTensor((B, None, H), "bfloat16"))
    assert (spec.shape, spec.dtype) == ((B, None, H), "bfloat16")


def test_output_weights_start_as_in_the_original():
    """sd 0.02 for fine-tuning, the config's range for pre-training."""
    config = BertConfig(vocab_size=V, initializer_range=0.3)
    for layer_class, deviation in ((Span, 0.02), (NextSentence, 0.3)):
        layer = layer_class(config)
        layer.build((None, None, config.hidden_size))
        weights, bias = (np.array(w) for w in layer.weights)
        assert np.abs(weights).max() <= 2 * deviation
        assert 0.8 * deviation < weights.std() < 0.95 * deviation
        assert not bias.any()


@pytest.mark.parametrize(
    "layer",
    [
        MaskedLanguageModel,
        NextSentence,
        PretrainingHeads,
        Span,
        SpanHead,
        Transform,
    ],
)
def test_config_round_trip(layer):
    made = layer(CONFIG, name="mine", dtype="mixed_bfloat16")
    text = json.dumps(keras.saving.serialize_keras_object(made))
    again = keras.saving.deserialize_keras_object(json.loads(text))
    assert type(again) is layer
    assert again.get_config() == made.get_config()
    assert again.config == CONFIG
