"""Features with values that the model does not have."""

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
        ("input_ids", V, f"got {V}"),
        ("input_ids", 2.9, r"input_ids must be an integer .* got (2\.9|'floa)"),
        ("segment_ids", -1, "from 0 to 1 .* got -1"),
        ("segment_ids", 2, "segment_ids must be .* from 0 to 1 .* got 2"),
        ("segment_ids", 0.5, "segment_ids must be an integer"),
        ("input_mask", 2, "input_mask must be .* from 0 to 1 .* got 2"),
        ("input_mask", 0.5, r"input_mask .* got 0\.5"),
        ("input_mask", math.nan, "input_mask .* got nan"),
        ("position_ids", 11, "position_ids must be .* from 0 to 10 .* got 11"),
        ("cls_positions", 0.5, "cls_positions must be an integer"),
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


def test_values_in_range_are_accepted(models):
    mask = IDS > 0
    expected = models[BertModel]({"input_ids": IDS, "input_mask": mask})
    for features in (
        {"input_ids": IDS.tolist(), "input_mask": mask.tolist()},
        {"input_ids": tuple(map(tuple, IDS)), "input_mask": mask * 1.0},
        {"input_ids": IDS.astype("uint8"), "input_mask": mask.astype("int64")},
        # The examples in a row can have any numbers.
        {"input_ids": IDS, "input_mask": mask, "example_ids": IDS * 0 - 7},
    ):
        found = models[BertModel](features)["sequence_output"]
        np.testing.assert_allclose(
            ops.convert_to_numpy(found),
            ops.convert_to_numpy(expected["sequence_output"]),
            atol=1e-6,
        )


@pytest.mark.parametrize("value", ["text", [["a"]], [[1, 2], [3]], 5, [[0.5]]])
def test_arrays_must_be_integers(models, value):
    with pytest.raises(InputError, match=r"input_ids.* must be") as caught:
        models[BertModel]({"input_ids": value})
    assert "\n" not in str(caught.value)


def test_floats_of_a_functional_model_are_whole_numbers(models):
    floats = keras.Input((None,))
    outputs = models[BertModel]({"input_ids": floats})
    model = keras.Model(floats, outputs["pooled_output"])
    model(IDS)
    with pytest.raises(InputError, match="input_ids must be an integer"):
        model(IDS + 0.5)


def test_pooled_output_checks_too(models):
    features = {"input_ids": IDS - 1}
    with pytest.raises(InputError, match="got -1"):
        models[BertModel].pooled_output(features)
    with pytest.raises(InputError, match="got -1"):
        models[BertModel].check_features(features)


def test_predict_refuses_floats():
    model = small_bert.make(BertClassifier)
    model.compile("sgd", "mse")
    with pytest.raises(InputError, match="must be an integer from 0"):
        model.predict({"input_ids": IDS + 0.5}, verbose=0)


def test_config_none_is_an_error():
    for wrong in (None, "bert-base", 3, [CONFIG]):
        with pytest.raises(InputError, match="config must be a BertConfig"):
            BertModel(wrong)
