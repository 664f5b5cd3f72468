"""Models and layers called with `keras.Input`: shapes, dtypes, composition."""

import dataclasses

import keras
import numpy as np
import pytest

from bert_tf.modeling.encoder import BertModel
from bert_tf.modeling.heads import BertPretrainer
from tests.backends import small_bert
from tests.backends.small_bert import CONFIG, B, C, H, P, S


def described(tree) -> list:
    """Shapes and dtypes of tensors, real or not."""
    return [
        (tuple(x.shape), keras.backend.standardize_dtype(x.dtype))
        for x in keras.tree.flatten(tree)
    ]


def without_sizes(shape) -> tuple:
    """The shape of the same tensor if batch and lengths are unknown."""
    return tuple(None if size in (B, C, P, S) else size for size in shape)


@pytest.mark.parametrize(
    ("model_class", "policy"),
    [
        *((model_class, "float32") for model_class in small_bert.MODELS),
        (BertModel, "mixed_bfloat16"),
        (BertPretrainer, "mixed_bfloat16"),
    ],
)
def test_functional_models(model_class, policy):
    """Shapes and dtypes are known before the first call; numbers are equal."""
    model = small_bert.make(model_class, dtype=policy)
    inputs = small_bert.features(model_class)
    outputs = small_bert.call(model, inputs)
    symbols = small_bert.symbols(model_class)
    spec = model(symbols)
    assert spec.keys() == outputs.keys()
    assert described(spec) == [
        (without_sizes(shape), dtype) for shape, dtype in described(outputs)
    ]
    fixed = {
        name: keras.Input(batch_shape=value.shape, dtype="int32")
        for name, value in inputs.items()
    }
    assert described(model(fixed)) == described(outputs)
    shapes = model.compute_output_shape({k: v.shape for k, v in fixed.items()})
    assert shapes == keras.tree.map_structure(
        lambda x: tuple(x.shape), dict(outputs)
    )
    functional = keras.Model(symbols, spec)
    computed = small_bert.named(small_bert.call(functional, inputs))
    atol = 1e-6 if policy == "float32" else 0.05
    for name, value in small_bert.named(outputs).items():
        np.testing.assert_allclose(computed[name], value, atol=atol)


@pytest.mark.parametrize("model_class", small_bert.MODELS)
def test_output_shapes_follow_from_the_shape_of_input_ids(model_class):
    model = model_class(CONFIG, **small_bert.ARGUMENTS[model_class])
    shape = small_bert.features(model_class)["input_ids"].shape
    expected = model.compute_output_shape({"input_ids": shape})
    assert model.compute_output_shape(shape) == expected


@pytest.mark.parametrize("model_class", small_bert.MODELS)
def test_the_summary_shows_every_shape(model_class):
    lines = []
    options = small_bert.ARGUMENTS[model_class]
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


def test_ids_can_be_floats_under_any_policy():
    """`keras.Input((S,))` has floats, and bfloat16 has 8 bits."""
    config = dataclasses.replace(CONFIG, vocab_size=600)
    model = small_bert.make(BertModel, config, dtype="mixed_bfloat16")
    ids = np.array([[257, 511, 599]])
    floats = keras.Input((3,), name="input_ids")
    functional = keras.Model(floats, model({"input_ids": floats}))
    found, expected = (
        small_bert.numbers(small_bert.call(m, inputs))["pooled_output"]
        for m, inputs in (
            (functional, ids.astype("float32")),
            (model, {"input_ids": ids}),
        )
    )
    np.testing.assert_allclose(found, expected, atol=0.05)
