"""Models and layers called with `keras.Input`: shapes, dtypes, composition."""

import keras
import pytest

from bert_tf.modeling.encoder import BertModel
from bert_tf.modeling.heads import BertPretrainer
from tests.backends import small_bert
from tests.backends.small_bert import B, C, H, P, S


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
    if model_class is not BertPretrainer:
        assert shapes == model.compute_output_shape(fixed["input_ids"].shape)
    assert shapes == keras.tree.map_structure(
        lambda x: tuple(x.shape), dict(outputs)
    )
    functional = keras.Model(symbols, spec)
    small_bert.assert_close(
        small_bert.outputs(functional, inputs),
        small_bert.named(outputs),
        1e-6 if policy == "float32" else 0.05,
    )


@pytest.mark.parametrize("model_class", small_bert.MODELS)
def test_the_summary_shows_every_shape(model_class):
    lines = []
    model = small_bert.make(model_class)
    model.summary(expand_nested=True, print_fn=lines.append)
    table = "\n".join(lines)
    assert "embeddings (Embeddings)" in table
    assert f"None, {H})" in table
    assert "?" not in table
    assert "unbuilt" not in table
