"""`.keras` files: everything that a model is, there and back again."""

import keras
import numpy as np
import pytest

from bert_tf.modeling import BertModel
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
