"""`.keras` files: everything that a model is, there and back again."""

import keras
import numpy as np
import pytest

from bert_tf.heads import BertClassifier, BertPretrainer
from bert_tf.modeling import BertModel, resize_vocabulary
from tests.backends import small_bert


def assert_equal(computed, expected):
    assert computed.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(computed[name], value, err_msg=name)


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("model_class", small_bert.MODELS)
def test_a_model_comes_back_bit_equal(model_class, policy, tmp_path):
    options = {
        "gradient_checkpointing": True,
        "frozen_layers": ["embeddings", "layer_0"],
    }
    model = small_bert.make(model_class, dtype=policy, **options)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded) is model_class
    assert loaded.get_config() == model.get_config()
    trainable, expected = (
        [v.path for v in m.trainable_variables] for m in (loaded, model)
    )
    assert trainable == expected
    inputs = small_bert.features(model_class)
    assert_equal(
        small_bert.named(loaded(inputs)), small_bert.named(model(inputs))
    )


def test_a_functional_model_comes_back_bit_equal(tmp_path):
    symbols = small_bert.symbols()
    outputs = small_bert.make(BertModel)(symbols)
    dense = keras.layers.Dense(3)(outputs["hidden_states"][1])
    model = keras.Model(symbols, {"top": dense, **outputs})
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    inputs = small_bert.features()
    assert_equal(
        small_bert.named(loaded(inputs)), small_bert.named(model(inputs))
    )


def int8_names(model) -> set[str]:
    return {v.path for v in model.weights if v.dtype == "int8"}


def cosine(a, b) -> float:
    return np.sum(a * b) / np.linalg.norm(a) / np.linalg.norm(b)


# Keras lists the layers that stay as they are, such as layer norms.
@pytest.mark.filterwarnings("ignore:Layer .* `quantize`")
@pytest.mark.parametrize(
    ("model_class", "activations", "filters", "count"),
    [
        # 6 dense layers in each block, the pooler, and the masked-LM head's.
        (BertPretrainer, "default", None, 14),
        (BertPretrainer, None, None, 14),
        (BertClassifier, "default", "query|key", 4),
    ],
)
def test_an_int8_model_comes_back_bit_equal(
    model_class, activations, filters, count, tmp_path
):
    model = small_bert.make(model_class)
    inputs = small_bert.features(model_class)
    exact = small_bert.named(model(inputs))
    config = keras.quantizers.Int8QuantizationConfig(
        activation_quantizer=activations
    )
    model.quantize(config=config, filters=filters)
    expected = small_bert.named(model(inputs))
    assert len(int8_names(model)) == count
    for name, value in expected.items():
        assert 0.99 < cosine(value, exact[name]) < 0.9999999
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert int8_names(loaded) == int8_names(model)
    assert_equal(small_bert.named(loaded(inputs)), expected)
    larger = small_bert.named(
        resize_vocabulary(model, small_bert.V + 1)(inputs)
    )
    for name, value in expected.items():
        same = larger[name][..., : value.shape[-1]]
        np.testing.assert_allclose(same, value, rtol=1e-5, atol=1e-6)
