"""The features that models accept."""

import dataclasses
import math

import keras
import numpy as np
import pytest
from keras import ops

from bert_tf.errors import InputError
from bert_tf.modeling.encoder import BertModel
from bert_tf.modeling.heads import BertClassifier, BertPretrainer
from tests.backends import small_bert
from tests.backends.small_bert import CONFIG, V

IDS = np.array([[1, 2, 3], [4, 5, 0]])


@pytest.fixture(scope="module")
def models():
    classes = (BertModel, BertPretrainer, BertClassifier)
    return {c: small_bert.make(c) for c in classes}


def changed(value, shape=(2, 3)):
    """Zeros, of the type of `value`, with `value` at one place."""
    values = np.zeros(shape, type(value))
    values[1, -1] = value
    return values


@pytest.mark.parametrize("convert", [np.asarray, ops.convert_to_tensor])
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("input_ids", -1, rf"from 0 to {V - 1} \(below vocab_size\); got -1"),
        ("input_ids", 2.9, r"input_ids must be an integer .* got (2\.9|'floa)"),
        ("segment_ids", 2, "segment_ids must be .* from 0 to 1 .* got 2"),
        ("input_mask", 0.5, r"input_mask .* got 0\.5"),
        ("input_mask", math.nan, "input_mask .* got nan"),
        ("position_ids", 11, "position_ids must be .* from 0 to 10 .* got 11"),
        ("cls_positions", 3, "cls_positions must be .* from 0 to 2 .* got 3"),
        ("masked_lm_positions", -1, "masked_lm_positions .* got -1"),
    ],
)
def test_values_out_of_range_are_errors(models, convert, name, value, message):
    shape = (2, 1) if name.endswith("positions") else (2, 3)
    features = {"input_ids": IDS, name: changed(value, shape)}
    for model in models.values():
        with pytest.raises(InputError, match=message) as caught:
            model({key: convert(x) for key, x in features.items()})
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (IDS, "a dict with 'input_ids'; got <class 'numpy.ndarray'>"),
        ({"ids": IDS}, r"a dict with 'input_ids'; got \['ids'\]"),
        ({"input_ids": None}, "a dict with 'input_ids'"),
        ({"attention_mask": IDS}, "'attention_mask'. Rename it to 'input_m"),
        ({"token_type_ids": IDS}, "'token_type_ids'. Rename it to 'segment"),
        ({"input_ids": IDS[0]}, r"\[batch, length\] .*; got \(3,\)"),
        ({"input_ids": IDS[:1, :0]}, r"length above 0; got \(1, 0\)"),
        ({"input_mask": IDS[:, :1]}, r"mask must be \(2, 3\).*got \(2, 1\)"),
        ({"cls_positions": IDS[:, 0]}, r"must be \(2, None\).*got \(2,\)"),
    ],
)
def test_wrong_features(models, features, message):
    if isinstance(features, dict) and "ids" not in features:
        features = {"input_ids": IDS, **features}
    with pytest.raises(InputError, match=message) as raised:
        models[BertModel](features)
    assert "\n" not in str(raised.value)


def test_features_can_be_keywords(models):
    encoder, seed = models[BertModel], np.array([5, 6], "int32")
    features = {"input_ids": IDS, "input_mask": np.array([[1, 1, 0]] * 2)}
    np.testing.assert_array_equal(
        *(
            small_bert.numbers(outputs["sequence_output"])
            for outputs in (
                encoder(features, training=True, seed=seed),
                encoder(**features, training=True, seed=seed),
            )
        )
    )
    inputs = {k: keras.Input((None,), dtype="int32") for k in features}
    model = keras.Model(inputs, encoder(**inputs)["pooled_output"])
    model = model.from_config(model.get_config())
    assert model(features).shape == (2, small_bert.H)
    with pytest.raises(InputError, match=r"'input_ids'.* got \['input_mask'\]"):
        encoder(input_mask=IDS)
    with pytest.raises(TypeError, match=r"unexpected keyword.*'input_mask'"):
        encoder({"input_ids": IDS}, input_mask=IDS)
    with pytest.raises(TypeError, match=r"unexpected keyword.*'input_masks'"):
        encoder(input_ids=IDS, input_masks=IDS)


def test_values_in_range_are_accepted(models):
    mask = IDS > 0
    expected = models[BertModel]({"input_ids": IDS, "input_mask": mask})
    for features in (
        {"input_ids": IDS.tolist(), "input_mask": mask.tolist()},
        {"input_ids": IDS, "input_mask": mask * 1.0, "segment_ids": None},
        {"input_ids": IDS.astype("uint8"), "input_mask": mask.astype("int64")},
        # The examples in a row can have any numbers.
        {"input_ids": IDS, "input_mask": mask, "example_ids": IDS * 0 - 7},
    ):
        found = models[BertModel](features)["sequence_output"]
        np.testing.assert_allclose(
            small_bert.numbers(found),
            small_bert.numbers(expected["sequence_output"]),
            atol=1e-6,
        )


@pytest.mark.parametrize("value", ["text", [["a"]], [[1, 2], [3]], 5])
def test_arrays_must_be_integers(models, value):
    with pytest.raises(InputError, match=r"input_ids.* must be") as caught:
        models[BertModel]({"input_ids": value})
    assert "\n" not in str(caught.value)


def test_floats_of_a_functional_model_are_whole_numbers():
    """bfloat16, which has 8 bits, would round them."""
    config = dataclasses.replace(CONFIG, vocab_size=600)
    encoder = small_bert.make(BertModel, config, dtype="mixed_bfloat16")
    floats = keras.Input((None,))
    outputs = encoder({"input_ids": floats})
    model = keras.Model(floats, outputs["pooled_output"])
    ids = np.array([[257, 511, 599]])
    np.testing.assert_allclose(
        small_bert.numbers(model(ids.astype("float32"))),
        small_bert.numbers(encoder({"input_ids": ids})["pooled_output"]),
        atol=0.05,
    )
    with pytest.raises(InputError, match="input_ids must be an integer"):
        model(IDS + 0.5)


def test_other_calls_check_too(models):
    model = models[BertModel]
    for call in (model.pooled_output, model.check_features):
        with pytest.raises(InputError, match="got -1"):
            call({"input_ids": IDS - 1})
    classifier = models[BertClassifier]
    classifier.compile("sgd", "mse")
    with pytest.raises(InputError, match="must be an integer from 0"):
        classifier.predict({"input_ids": IDS + 0.5}, verbose=0)


def test_config_none_is_an_error():
    for wrong in (None, "bert-base", 3, [CONFIG]):
        with pytest.raises(InputError, match="config must be a BertConfig"):
            BertModel(wrong)
