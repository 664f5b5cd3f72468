"""The tagger on a frozen BERT, on every backend."""

import keras
import numpy as np
import pytest
from keras import ops

from bert_tf.feature_tagger import BertFeatureTagger
from bert_tf.modeling import checkpoint_variables
from tests.backends import small_bert
from tests.backends.gradients import gradients
from tests.backends.small_bert import CONFIG, LABELS, numbers
from tests.bilstm_by_hand import tagger_logits

SCOPE = "features_sum_all/"


@pytest.fixture(scope="module")
def model():
    made = BertFeatureTagger(CONFIG, LABELS, "sum_all", 4, dropout=0.0)
    made.build()
    for name, variable in checkpoint_variables(made).items():
        variable.assign(small_bert.weight(name, tuple(variable.shape)))
    return made


def test_scores_by_hand(model):
    inputs = small_bert.features()
    weights = {
        name.removeprefix(SCOPE): value
        for name, value in numbers(checkpoint_variables(model)).items()
    }
    states = numbers(model.bert(inputs)["hidden_states"])[1:]
    shares = np.exp(weights["layer_weights"])
    x = np.tensordot(shares / shares.sum(), np.stack(states), axes=1)
    lengths = inputs["input_mask"].sum(axis=1)
    logits = numbers(model(inputs))["logits"]
    for row, expected in enumerate(tagger_logits(x, lengths, weights)):
        found = logits[row, : lengths[row]]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_gradients_are_of_the_new_weights_alone(model):
    found = gradients(
        model,
        small_bert.features(),
        lambda outputs: ops.mean(outputs["logits"] ** 2),
        training=True,
    )
    assert set(found) == {v.path for v in model.head.weights}
    for path, gradient in found.items():
        assert np.abs(gradient).max() > 0, path


def test_a_model_comes_back_bit_equal(model, tmp_path):
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    inputs = small_bert.features()
    expected = numbers(model(inputs))["logits"]
    np.testing.assert_array_equal(numbers(loaded(inputs))["logits"], expected)


def test_it_knows_its_shape(model):
    logits = model(small_bert.symbols())["logits"]
    assert tuple(logits.shape) == (None, None, LABELS)
    assert logits.dtype == "float32"
