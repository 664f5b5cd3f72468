"""Models and layers called with `keras.Input`: shapes, dtypes, composition."""

import dataclasses

import keras
import numpy as np
import pytest

from bert_tf.errors import InputError
from bert_tf.feature_tagger import BertFeatureTagger
from bert_tf.heads import BertPretrainer, HeadModel
from bert_tf.modeling import BertModel
from bert_tf.transformer import (
    Embeddings,
    Encoder,
    Pooler,
    TransformerBlock,
)
from tests.backends import small_bert
from tests.backends.small_bert import CONFIG, B, C, H, N, P, S

SIZES = (B, C, P, S)


def described(tree) -> list:
    """Shapes and dtypes of tensors, real or not."""
    return [
        (tuple(x.shape), keras.backend.standardize_dtype(x.dtype))
        for x in keras.tree.flatten(tree)
    ]


def without_sizes(tree) -> list:
    """The same tensors, when batch and lengths are not known.

    CONFIG has no size that is also one of these.
    """
    return keras.tree.map_structure(
        lambda x: keras.KerasTensor(
            [None if size in SIZES else size for size in x.shape],
            keras.backend.standardize_dtype(x.dtype),
        ),
        tree,
    )


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("model_class", small_bert.MODELS)
def test_models_know_their_shapes(model_class, policy):
    model = small_bert.make(model_class, dtype=policy)
    outputs = model(small_bert.features(model_class))
    symbols = model(small_bert.symbols(model_class))
    assert symbols.keys() == outputs.keys()
    assert described(symbols) == described(without_sizes(outputs))
    fixed = {
        name: keras.Input(batch_shape=value.shape, dtype="int32")
        for name, value in small_bert.features(model_class).items()
    }
    assert described(model(fixed)) == described(outputs)
    shapes = model.compute_output_shape({k: v.shape for k, v in fixed.items()})
    assert shapes == keras.tree.map_structure(
        lambda x: tuple(x.shape), dict(outputs)
    )


@pytest.mark.parametrize(
    ("layer_class", "shapes", "expected"),
    [
        (Embeddings, [(None, None)] * 2, (None, None, H)),
        (Pooler, [(None, None, H)], (None, H)),
        (
            TransformerBlock,
            [(None, None, H), (None, 1, 1, None)],
            ((None, None, H), (None, N, None, None)),
        ),
        (
            Encoder,
            [(None, S, H), (None, 1, 1, S)],
            ([(None, S, H)] * 2, ()),
        ),
    ],
)
def test_layers_know_their_shapes(layer_class, shapes, expected):
    inputs = [keras.Input(batch_shape=shape) for shape in shapes]
    symbols = layer_class(CONFIG)(*inputs)
    assert keras.tree.map_structure(lambda x: x.shape, symbols) == expected


def test_an_encoder_that_shows_attentions_knows_their_shape():
    encoder = Encoder(CONFIG, output_attentions=True)
    _, attentions = encoder(keras.Input((S, H)), keras.Input((1, 1, S)))
    assert [x.shape for x in attentions] == [(None, N, S, S)] * 2


def test_a_block_is_built_by_its_first_call():
    """Keras passes the shapes of all tensors by the names of arguments."""
    block = TransformerBlock(CONFIG)
    output, probabilities = block(keras.Input((7, H)), keras.Input((1, 1, 7)))
    assert len(block.weights) == 16
    assert output.shape == (None, 7, H)
    assert probabilities.shape == (None, N, 7, 7)


@pytest.mark.parametrize("model_class", [*small_bert.MODELS, BertFeatureTagger])
def test_the_summary_shows_every_shape(model_class):
    lines = []
    tagger = {"num_labels": 2, "layers": "sum_all", "lstm_size": 3}
    options = dict(small_bert.ARGUMENTS.get(model_class, tagger))
    if issubclass(model_class, HeadModel) and model_class is not (
        BertPretrainer
    ):
        options["bilstm_head"] = True
    features = small_bert.features(model_class)
    shapes = {name: value.shape for name, value in features.items()}
    for build in (
        lambda model: model.build(),
        lambda model: model.build(shapes),
        lambda model: model(small_bert.symbols(model_class)),
    ):
        model = model_class(CONFIG, **options)
        build(model)
        model.summary(expand_nested=True, print_fn=lines.append)
    table = "\n".join(lines)
    assert table.count("embeddings (Embeddings)") == 3
    assert table.count(f"None, {H})") >= 3
    assert "?" not in table
    assert "unbuilt" not in table


@pytest.mark.parametrize("model_class", small_bert.MODELS)
def test_a_functional_model_computes_the_same(model_class):
    """Hidden states and attentions too, which have lists of their own."""
    model = small_bert.make(model_class)
    symbols = small_bert.symbols(model_class)
    functional = keras.Model(symbols, model(symbols))
    inputs = small_bert.features(model_class)
    computed = small_bert.named(functional(inputs))
    expected = small_bert.named(model(inputs))
    assert computed.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(computed[name], value, atol=1e-6)


def test_one_input_is_enough():
    model = small_bert.make(BertModel)
    ids = keras.Input((None,), dtype="int32", name="input_ids")
    pooled = model({"input_ids": ids})["pooled_output"]
    top = keras.Model(ids, keras.layers.Dense(2)(pooled))
    values = small_bert.features()["input_ids"]
    assert small_bert.numbers(top(values)).shape == (B, 2)


def test_ids_may_come_as_floats_under_any_policy():
    """`keras.Input((S,))` is of floats, and bfloat16 has 8 bits of them."""
    config = dataclasses.replace(CONFIG, vocab_size=600)
    model = BertModel(config, dtype="mixed_bfloat16")
    model.build()
    ids = np.array([[257, 511, 599]])
    floats = keras.Input((3,), name="input_ids")
    functional = keras.Model(floats, model({"input_ids": floats}))
    np.testing.assert_array_equal(
        small_bert.numbers(functional(ids.astype("float32"))["pooled_output"]),
        small_bert.numbers(model({"input_ids": ids})["pooled_output"]),
    )


def test_too_long_a_sequence_is_an_error_before_there_are_numbers():
    model = small_bert.make(BertModel)
    with pytest.raises(InputError, match=r"at most 11 .*got 12"):
        model({"input_ids": keras.Input((12,), dtype="int32")})


class Wrapper(keras.layers.Layer):
    """Somebody's layer around ours, whose shapes Keras has to trace."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.block = TransformerBlock(CONFIG)

    def call(self, x, attention_bias):
        return self.block(x, attention_bias)[0]


def test_layers_can_be_traced():
    x = keras.Input((None, H))
    bias = keras.Input((1, 1, None))
    assert Wrapper()(x, bias).shape == (None, None, H)
