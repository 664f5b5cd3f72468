"""`.keras` files: models come back bit-equal."""

import dataclasses

import keras
import numpy as np
import pytest

from bert_tf.modeling import heads
from bert_tf.modeling.encoder import BertModel, resize_vocabulary
from tests.backends import small_bert
from tests.backends.small_bert import CONFIG, V, assert_close, outputs

FROZEN = {
    "gradient_checkpointing": True,
    "frozen_layers": ["embeddings", "layer_0"],
}
LEFT_TO_RIGHT = dataclasses.replace(CONFIG, attention_direction="left_to_right")


@pytest.mark.parametrize(
    ("model_class", "config", "options"),
    [
        (BertModel, CONFIG, FROZEN),
        (heads.BertClassifier, CONFIG, FROZEN),
        (heads.BertPretrainer, LEFT_TO_RIGHT, {}),
    ],
)
def test_models(model_class, config, options, tmp_path):
    options = small_bert.ARGUMENTS.get(model_class, {}) | options
    model = model_class(config, dtype="mixed_bfloat16", **options)
    small_bert.fill(model)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded) is model_class
    assert loaded.config == config
    assert loaded.get_config() == model.get_config()
    assert small_bert.trainable(loaded) == small_bert.trainable(model)
    assert_close(outputs(loaded), outputs(model), 0)


def int8_names(model) -> set[str]:
    return {v.path for v in model.weights if v.dtype == "int8"}


def cosine(a, b) -> float:
    return np.sum(a * b) / np.linalg.norm(a) / np.linalg.norm(b)


# Keras would list the layers that stay as they are, such as layer norms.
@pytest.mark.filterwarnings("error:Layer .* `quantize`")
@pytest.mark.parametrize(
    ("model_class", "activations", "filters", "count"),
    [
        # 6 dense layers in each block, the pooler, and the masked-LM head's.
        pytest.param(
            *(heads.BertPretrainer, "default", None, 14),
            marks=pytest.mark.slow,
        ),
        (heads.BertClassifier, None, "query|key", 4),
    ],
)
def test_an_int8_model(model_class, activations, filters, count, tmp_path):
    model = small_bert.make(model_class)
    exact = outputs(model)
    config = keras.quantizers.Int8QuantizationConfig(
        activation_quantizer=activations
    )
    model.quantize(config=config, filters=filters)
    expected = outputs(model)
    assert len(int8_names(model)) == count
    for name, value in expected.items():
        assert cosine(value, exact[name]) > 0.99
        assert not np.array_equal(value, exact[name])
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert int8_names(loaded) == int8_names(model)
    assert_close(outputs(loaded), expected, 0)
    larger = outputs(resize_vocabulary(model, V + 1))
    for name, value in expected.items():
        same = larger[name][..., : value.shape[-1]]
        np.testing.assert_allclose(same, value, rtol=1e-5, atol=1e-6)


def test_a_map_of_dtype_policies():
    """One layer is quantized from the start, by the model's `dtype`.

    Keras cannot write an int8 layer with such a map to a file.
    """
    path = "bert/encoder/layer_0/intermediate/dense"
    policies = keras.dtype_policies.DTypePolicyMap("float32")
    policies[path] = "int8_from_float32"
    model = BertModel(CONFIG, dtype=policies)
    model.build()
    dense = model.encoder.blocks[0].intermediate.dense
    assert (dense.path, dense.quantization_mode) == (path, "int8")
    copied = BertModel.from_config(model.get_config())
    assert copied.get_config() == model.get_config()
    copied.build()
    copied.set_weights(model.get_weights())
    assert_close(outputs(copied), outputs(model), 0)
