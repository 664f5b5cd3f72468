"""The features that models accept, exported models, int8 models."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_tf.checkpoints.pretrained import load_checkpoint
from bert_tf.errors import InputError
from bert_tf.modeling.encoder import BertModel
from bert_tf.modeling.heads import BertClassifier, BertMultipleChoice
from tests.backends import small_bert

SEED = np.array([5, 6], "int32")
IDS = np.array([[3, 1, 4], [1, 5, 2]])


@pytest.fixture(scope="module")
def encoder():
    return small_bert.make(BertModel)


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (IDS, "a dict with 'input_ids'; got <class 'numpy.ndarray'>"),
        ({"ids": IDS}, r"a dict with 'input_ids'; got \['ids'\]"),
        ({"input_ids": None}, "a dict with 'input_ids'"),
        ({"attention_mask": IDS}, "'attention_mask'. Rename it to 'input_m"),
        ({"token_type_ids": IDS}, "'token_type_ids'. Rename it to 'segment"),
        ({"input_ids": IDS[0]}, r"\[batch, length\] .*; got \(3,\)"),
        ({"input_ids": IDS[None]}, r"\[batch, length\] .*; got \(1, 2, 3\)"),
        ({"input_ids": IDS[:1, :0]}, r"length above 0; got \(1, 0\)"),
        ({"input_mask": IDS[:, :1]}, r"mask must be \(2, 3\).*got \(2, 1\)"),
        ({"segment_ids": IDS[:1]}, r"shape of segment_ids.*\(1, 3\)"),
        ({"position_ids": IDS[:, :2]}, r"position_ids must be \(2, 3\)"),
        ({"example_ids": IDS[0]}, r"shape of example_ids.*got \(3,\)"),
        ({"cls_positions": IDS[:1]}, r"must be \(2, None\).*got \(1, 3\)"),
        ({"cls_positions": IDS[:, 0]}, r"must be \(2, None\).*got \(2,\)"),
    ],
)
def test_wrong_features(encoder, features, message):
    if isinstance(features, dict) and "ids" not in features:
        features = {"input_ids": IDS, **features}
    with pytest.raises(InputError, match=message) as raised:
        encoder(features)
    assert "\n" not in str(raised.value)


def test_features_can_be_lists_or_none(encoder):
    expected = encoder({"input_ids": IDS})["sequence_output"]
    given = {"input_ids": IDS.tolist(), "input_mask": None, "label": IDS[:1]}
    np.testing.assert_array_equal(encoder(given)["sequence_output"], expected)


def test_features_can_be_keywords(encoder):
    features = {"input_ids": IDS, "input_mask": np.array([[1, 1, 0]] * 2)}
    expected = encoder(features, training=True, seed=SEED)
    found = encoder(**features, training=True, seed=SEED)
    np.testing.assert_array_equal(
        found["sequence_output"], expected["sequence_output"]
    )
    inputs = {k: keras.Input((None,), dtype="int32") for k in features}
    model = keras.Model(inputs, encoder(**inputs)["pooled_output"])
    model = model.from_config(model.get_config())
    assert model(features).shape == (2, small_bert.H)
    with pytest.raises(InputError, match=r"'input_ids'.* got \['input_mask'\]"):
        encoder(input_mask=IDS)
    for arguments, features in (
        ([{"input_ids": IDS}], {"input_mask": IDS}),
        ([], {"input_ids": IDS, "input_masks": IDS}),
    ):
        with pytest.raises(TypeError, match=r"unexpected keyword.*'input_mask"):
            encoder(*arguments, **features)


def test_a_second_build_changes_nothing(encoder):
    weights = list(encoder.weights)
    encoder.build()
    assert [v is w for v, w in zip(encoder.weights, weights, strict=True)]


# bfloat16 would round the ids of the last words: 29999 to 29952.
MANY_WORDS = dataclasses.replace(
    small_bert.CONFIG, vocab_size=30000, num_hidden_layers=1
)
ARGUMENTS = {
    BertModel: {},
    BertClassifier: {"num_labels": 3},
    BertMultipleChoice: {},
}


def make(model_class, **arguments) -> keras.Model:
    """A built model, never called, whose weights are all different."""
    arguments |= ARGUMENTS[model_class]
    return small_bert.fill(model_class(MANY_WORDS, **arguments))


def last_words(model_class, batch: int, length: int) -> dict[str, np.ndarray]:
    """Each text repeats one of the last words; it ends in padding."""
    choices = [4] if model_class is BertMultipleChoice else []
    ids = np.arange(30000 - batch, 30000, dtype="int32")
    ids = np.broadcast_to(
        ids.reshape(batch, *[1] * len(choices), 1), (batch, *choices, length)
    )
    mask = (np.arange(length) <= length // 2).astype("int32")
    return {
        "input_ids": ids,
        "input_mask": np.broadcast_to(mask, ids.shape),
        "segment_ids": np.ones_like(ids),
    }


def assert_exported(folder, model) -> None:
    """The SavedModel has named integer inputs and computes as the model."""
    serve = tf.saved_model.load(folder).signatures["serving_default"]
    axes = [None] * model.input_rank
    assert serve.structured_input_signature[1] == {
        name: tf.TensorSpec(axes, tf.int32, name)
        for name in ("input_ids", "input_mask", "segment_ids")
    }
    for batch, length in ((1, 2), (7, 11)):
        words = last_words(type(model), batch, length)
        expected = small_bert.numbers(model(words))
        tensors = {k: tf.constant(v) for k, v in words.items()}
        got = small_bert.numbers(serve(**tensors))
        assert got.keys() == expected.keys()
        for name, value in expected.items():
            scale = np.abs(value).max()
            np.testing.assert_allclose(got[name], value, atol=0.05 * scale)
            # In bfloat16 all of the ids would be equal.
            assert len(np.unique(got[name], axis=0)) > 1 or batch == 1


@pytest.mark.slow
def test_exported_models_take_ids(tmp_path):
    model = make(BertMultipleChoice, dtype="mixed_bfloat16")
    model.export(tmp_path / "export", verbose=False)
    assert_exported(tmp_path / "export", model)


def test_a_trained_model_is_exported(tmp_path):
    model = make(BertClassifier)
    model.compile(
        "sgd", keras.losses.SparseCategoricalCrossentropy(), run_eagerly=True
    )
    model.fit(last_words(BertClassifier, 5, 7), np.arange(5) % 3, verbose=0)
    model.export(tmp_path / "export", verbose=False)
    assert_exported(tmp_path / "export", model)


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
    model, path = make(BertClassifier), str(tmp_path / "model.tflite")
    model.export(path, format="litert", verbose=False)
    run = litert.Interpreter(path).get_signature_runner()
    for batch, length in ((1, 2), (7, 11)):
        words = last_words(BertClassifier, batch, length)
        found, expected = run(**words)["logits"], model(words)["logits"]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


# Keras's own model lists the layers that stay as they are.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Layer .* `quantize`")
def test_an_int8_model_inside_another(tmp_path):
    ids = keras.Input((None,), dtype="int32")
    outputs = make(BertModel)({"input_ids": ids})
    model = keras.Model(ids, keras.layers.Dense(3)(outputs["pooled_output"]))
    model.quantize("int8")
    assert sum(v.dtype == "int8" for v in model.weights) == 8
    words = last_words(BertModel, 5, 11)["input_ids"]
    expected = model(words)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(words), expected)
    model.export(tmp_path / "export", verbose=False)
    exported = tf.saved_model.load(tmp_path / "export")
    np.testing.assert_allclose(exported.serve(words), expected, atol=1e-5)


def test_an_int8_model_is_not_a_checkpoint(tmp_path):
    float32, int8 = make(BertClassifier), make(BertClassifier)
    int8.quantize("int8")
    for model, other in ((float32, int8), (int8, float32)):
        model.save(tmp_path / "model.keras")
        with pytest.raises(InputError, match="before you call quantize"):
            load_checkpoint(other, tmp_path / "model.keras")
