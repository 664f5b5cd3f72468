"""The block: attention by its formula, padding, configuration."""

import inspect
import json

import keras
import numpy as np
import pytest

from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.transformer import (
    Attention,
    Encoder,
    Intermediate,
    ResidualOutput,
    SelfAttention,
    TransformerBlock,
    attention_bias,
    last_positions,
)

# Odd sizes, no two alike: swapped axes cannot pass.
B, S, H, N, I = 3, 7, 20, 5, 31  # noqa: E741
CONFIG = BertConfig(
    vocab_size=53,
    hidden_size=H,
    num_hidden_layers=2,
    num_attention_heads=N,
    intermediate_size=I,
)
MASK = np.array([[1] * 7, [1] * 4 + [0] * 3, [1] + [0] * 6])


def test_heads_must_divide_the_width():
    config = BertConfig(vocab_size=99, hidden_size=37)
    for layer_class in (SelfAttention, Encoder):
        with pytest.raises(InputError, match=r"hidden_size=37, num_att.*=12"):
            layer_class(config)


def test_a_row_of_padding_alone_attends_evenly():
    layer = SelfAttention(CONFIG)
    layer.build()
    x = np.random.default_rng(0).normal(size=(1, S, H)).astype("float32")
    context, probabilities = layer(x, attention_bias(np.zeros((1, S))))
    _, expected = layer(x, attention_bias(np.ones((1, S))))
    np.testing.assert_allclose(probabilities, expected, atol=1e-3)
    assert np.isfinite(context).all()


def test_a_bias_hides_padding_and_other_examples():
    ids = np.array([[1, 1, 2, 2, 2, 0, 0]])
    mask = np.array([[1, 1, 1, 0, 1, 0, 0]])
    assert attention_bias(mask).shape == (1, 1, 1, S)
    bias = np.array(attention_bias(mask, ids))
    assert bias.shape == (1, 1, S, S)
    for query in range(S):
        for key in range(S):
            is_seen = mask[0, key] and ids[0, query] == ids[0, key]
            assert bias[0, 0, query, key] == (0 if is_seen else -10000)


def test_a_bias_from_left_to_right_hides_what_comes_later():
    ids = np.array([[1, 1, 2, 2, 2, 0, 0]])
    mask = np.array([[1, 1, 1, 0, 1, 0, 0]])
    alone = np.array(attention_bias(mask, left_to_right=True))
    shared = np.array(attention_bias(mask, ids, left_to_right=True))
    assert alone.shape == shared.shape == (1, 1, S, S)
    for query in range(S):
        for key in range(S):
            is_seen = mask[0, key] and key <= query
            assert alone[0, 0, query, key] == (0 if is_seen else -10000)
            is_seen = is_seen and ids[0, query] == ids[0, key]
            assert shared[0, 0, query, key] == (0 if is_seen else -10000)


def test_the_last_positions_of_rows_and_of_examples_in_them():
    mask = np.array([[1] * 7, [1] * 4 + [0] * 3, [0] * 7])
    assert np.array(last_positions(mask)).tolist() == [[6], [3], [0]]
    ids = np.array([[1, 1, 1, 2, 3, 3, 3], [1, 2, 2, 2, 0, 0, 0], [0] * 7])
    starts = np.array([[0, 3, 4], [0, 1, 0], [0, 0, 0]])
    found = np.array(last_positions(mask, ids, starts))
    assert found.tolist() == [[2, 3, 6], [0, 3, 0], [0, 0, 0]]
    # Without numbers a row is one example, wherever it is asked.
    found = np.array(last_positions(mask, None, starts))
    assert found.tolist() == [[6] * 3, [3] * 3, [0] * 3]
    assert np.array(last_positions(mask, ids)).tolist() == [[2], [0], [0]]


def test_attention_is_the_formula():
    """softmax(Q K^T / sqrt(D)) V, head by head, in plain NumPy."""
    layer = SelfAttention(CONFIG)
    layer.build()
    x = np.random.default_rng(3).normal(size=(B, S, H)).astype("float32")
    context, _ = layer(x, attention_bias(MASK))
    q, k, v = (
        x @ np.array(p.kernel) + np.array(p.bias)
        for p in (layer.query, layer.key, layer.value)
    )
    width = H // N
    for head in range(N):
        part = slice(head * width, (head + 1) * width)
        scores = q[..., part] @ k[..., part].swapaxes(1, 2) / width**0.5
        scores += (MASK[:, None] - 1) * 10000.0
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        np.testing.assert_allclose(
            context[..., part], weights @ v[..., part], atol=1e-5
        )


@pytest.mark.parametrize(
    ("layer", "width", "shapes"),
    [
        (SelfAttention, H, [(B, S, H), (B, N, S, S)]),
        (Attention, H, [(B, S, H), (B, N, S, S)]),
        (TransformerBlock, H, [(B, S, H), (B, N, S, S)]),
        (Intermediate, H, [(B, S, I)]),
        (ResidualOutput, I, [(B, S, H)]),
    ],
)
def test_shapes_with_and_without_numbers(layer, width, shapes):
    second = {
        Intermediate: (),
        ResidualOutput: (np.zeros((B, S, H), "float32"),),
    }
    rest = second.get(layer, (attention_bias(MASK),))
    layer = layer(CONFIG)
    outputs = layer(np.zeros((B, S, width), "float32"), *rest)
    assert [x.shape for x in keras.tree.flatten(outputs)] == shapes
    rest = [
        keras.Input(batch_shape=[None if n in (B, S) else n for n in x.shape])
        for x in rest
    ]
    symbols = layer(keras.Input((None, width)), *rest)
    assert [x.shape for x in keras.tree.flatten(symbols)] == [
        tuple(None if size in (B, S) else size for size in shape)
        for shape in shapes
    ]


@pytest.mark.parametrize(
    "layer",
    [Attention, Intermediate, ResidualOutput, SelfAttention, TransformerBlock],
)
def test_config_round_trip(layer):
    assert inspect.signature(layer).parameters.keys() == {"config", "kwargs"}
    made = layer(CONFIG, name="mine", dtype="mixed_bfloat16")
    text = json.dumps(keras.saving.serialize_keras_object(made))
    again = keras.saving.deserialize_keras_object(json.loads(text))
    assert type(again) is layer
    assert again.get_config() == made.get_config()
    assert again.config == CONFIG
    assert again.dtype_policy.name == "mixed_bfloat16"


@pytest.mark.parametrize("number", [1, 2, S])
@pytest.mark.parametrize("layer", [SelfAttention, Attention, TransformerBlock])
def test_the_first_positions_need_not_wait_for_the_others(layer, number):
    block = layer(CONFIG)
    block.build()
    x = np.random.default_rng(1).normal(size=(B, S, H)).astype("float32")
    bias = attention_bias(MASK)
    outputs, probabilities = block(x, bias)
    first, of_first = block(x, bias, num_queries=number)
    assert first.shape == (B, number, H)
    np.testing.assert_allclose(first, outputs[:, :number], atol=2e-6)
    np.testing.assert_allclose(
        of_first, probabilities[:, :, :number], atol=2e-6
    )
