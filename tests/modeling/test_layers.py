"""Exported models and int8 models."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_tf.checkpoints.pretrained import load_checkpoint
from bert_tf.errors import InputError
from bert_tf.modeling.dense import Dense
from bert_tf.modeling.encoder import BertModel
from bert_tf.modeling.heads import BertClassifier, BertMultipleChoice
from tests.backends import small_bert

# bfloat16 would round the ids of the last words: 29999 to 29952.
MANY_WORDS = dataclasses.replace(
    small_bert.CONFIG, vocab_size=30000, num_hidden_layers=1
)


def make(model_class, *arguments, **options) -> keras.Model:
    """A built model, never called, whose weights are all different."""
    return small_bert.fill(model_class(MANY_WORDS, *arguments, **options))


def last_words(model, batch: int, length: int) -> dict[str, np.ndarray]:
    """Each text repeats one of the last words; it ends in padding."""
    ids = np.arange(30000 - batch, 30000, dtype="int32")
    ids = ids.reshape(batch, *[1] * (model.input_rank - 1))
    shape = (batch, *[4] * (model.input_rank - 2), length)
    mask = (np.arange(length) <= length // 2).astype("int32")
    return {
        "input_ids": np.broadcast_to(ids, shape),
        "input_mask": np.broadcast_to(mask, shape),
        "segment_ids": np.ones(shape, "int32"),
    }


def assert_runs(run, model, **tolerance) -> None:
    """Compares the outputs for a batch of one and for a larger one."""
    for batch, length in ((1, 2), (7, 11)):
        words = last_words(model, batch, length)
        expected = small_bert.numbers(model(words))
        found = small_bert.numbers(run(**words))
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, **tolerance)
            # In bfloat16 all of the ids would be equal.
            assert len(np.unique(found[name], axis=0)) > 1 or batch == 1


@pytest.mark.parametrize(
    ("model_class", "arguments", "policy", "tolerance"),
    [
        (BertClassifier, [3], "float32", 1e-4),
        pytest.param(
            *(BertMultipleChoice, [], "mixed_bfloat16", 0.05),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_exported_models_take_ids(
    tmp_path, model_class, arguments, policy, tolerance
):
    model = make(model_class, *arguments, dtype=policy)
    if model_class is BertClassifier:
        small_bert.compiled(model)
        model.fit(last_words(model, 5, 7), np.arange(5) % 3, verbose=0)
    model.export(tmp_path, verbose=False)
    serve = tf.saved_model.load(tmp_path).signatures["serving_default"]
    assert serve.structured_input_signature[1] == {
        name: tf.TensorSpec([None] * model.input_rank, tf.int32, name)
        for name in ("input_ids", "input_mask", "segment_ids")
    }

    def run(**words):
        return serve(**{k: tf.constant(v) for k, v in words.items()})

    assert_runs(run, model, rtol=tolerance, atol=tolerance)


def test_export_with_another_signature(tmp_path):
    features = {
        name: keras.InputSpec(shape=(None, 5), dtype="int32", name=name)
        for name in ("input_ids", "position_ids")
    }
    make(BertModel).export(tmp_path, verbose=False, input_signature=[features])
    serve = tf.saved_model.load(tmp_path).signatures["serving_default"]
    assert serve.structured_input_signature[1] == {
        name: tf.TensorSpec([None, 5], tf.int32, name) for name in features
    }


def test_models_that_cannot_be_exported(tmp_path):
    model = BertClassifier(MANY_WORDS, 3, output_attentions=True)
    with pytest.raises(InputError, match=r"lists of them .output_attentions"):
        model.export(tmp_path)
    with pytest.raises(InputError, match=r"^filepath must be .* got None\.$"):
        make(BertModel).export(None)
    # Converters to these formats need float32.
    for format in ("onnx", "litert"):
        with pytest.raises(InputError, match="made with dtype='float32'"):
            make(BertModel, dtype="bfloat16").export(tmp_path, format=format)


# tests/backends/test_nested_models.py exports to ONNX.
@pytest.mark.slow
def test_litert(tmp_path):
    litert = pytest.importorskip("ai_edge_litert.interpreter")
    model, path = make(BertClassifier, 3), str(tmp_path / "model.tflite")
    model.export(path, format="litert", verbose=False)
    run = litert.Interpreter(path).get_signature_runner()
    assert_runs(run, model, rtol=1e-4, atol=1e-5)


# Keras's own model lists the layers that stay as they are.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Layer .* `quantize`")
def test_an_int8_model_inside_another(tmp_path):
    ids = keras.Input((None,), dtype="int32")
    encoder = make(BertModel)
    pooled = encoder({"input_ids": ids})["pooled_output"]
    model = keras.Model(ids, keras.layers.Dense(3)(pooled))
    model.quantize("int8")
    assert sum(v.dtype == "int8" for v in model.weights) == 8
    words = last_words(encoder, 5, 11)["input_ids"]
    expected = model(words)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(words), expected)
    model.export(tmp_path / "export", verbose=False)
    exported = tf.saved_model.load(tmp_path / "export")
    np.testing.assert_allclose(exported.serve(words), expected, atol=1e-5)


def test_an_int8_model_is_not_a_checkpoint(tmp_path):
    float32, int8 = make(BertClassifier, 3), make(BertClassifier, 3)
    int8.quantize("int8")
    for model, other in ((float32, int8), (int8, float32)):
        model.save(tmp_path / "model.keras")
        with pytest.raises(InputError, match="before you call quantize"):
            load_checkpoint(other, tmp_path / "model.keras")


def test_only_int8_quantization():
    layer = Dense(5)
    layer.build((None, 7))
    with pytest.raises(InputError, match=r"'int8'.* got 'int4'"):
        layer.quantize("int4")
    assert [v.dtype for v in layer.weights] == ["float32"] * 2
