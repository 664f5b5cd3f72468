"""Exports in half precision hold what the model would cast, no more."""

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.feature_tagger import BertFeatureTagger
from bert_tf.heads import BertClassifier, BertPretrainer, BertSpanLabeler
from bert_tf.serving.export import StoredWeights
from tests.serving.small_served import CONFIG, random_weights

IDS = np.array([[2, 7, 11, 3, 0], [2, 5, 3, 0, 0]], np.int32)
FEATURES = {"input_ids": IDS, "input_mask": (IDS > 0).astype(np.int32)}
MODELS = {
    "classifier": lambda **more: BertClassifier(CONFIG, 3, **more),
    "spans": lambda **more: BertSpanLabeler(CONFIG, **more),
    "pretrainer": lambda **more: BertPretrainer(CONFIG, **more),
    "lstms": lambda **more: BertFeatureTagger(
        CONFIG, 3, layers="sum_all", lstm_size=5, **more
    ),
}


@pytest.mark.parametrize(
    "kind",
    [
        "classifier",
        "spans",
        "pretrainer",
        pytest.param("lstms", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(
    "policy",
    ["mixed_bfloat16", pytest.param("mixed_float16", marks=pytest.mark.slow)],
)
def test_the_answers_are_the_same_bit_for_bit(kind, policy):
    model = random_weights(MODELS[kind](dtype=policy))
    stored = StoredWeights(model)
    expected = model(FEATURES)
    for name, values in stored.used_by(model)(FEATURES).items():
        np.testing.assert_array_equal(values, expected[name])
    for name, variable in stored.by_name.items():
        is_wide = name.split("/")[-1] in ("gamma", "beta", "output_bias")
        dtype = "float32" if is_wide else policy.removeprefix("mixed_")
        assert variable.dtype == tf.as_dtype(dtype), name


def test_they_are_what_is_used():
    model = random_weights(BertClassifier(CONFIG, 3, dtype="mixed_bfloat16"))
    stored = StoredWeights(model)
    before = model(FEATURES)["logits"]
    stored.by_name["output_weights"].assign_add(
        tf.ones((3, CONFIG.hidden_size), tf.bfloat16)
    )
    np.testing.assert_array_equal(model(FEATURES)["logits"], before)
    after = stored.used_by(model)(FEATURES)["logits"]
    assert np.abs(after - before).max() > 0.1


@pytest.mark.parametrize("policy", ["float32", "bfloat16"])
def test_where_nothing_is_cast_the_variables_are_the_models_own(policy):
    model = BertClassifier(CONFIG, 3, dtype=policy)
    model.build()
    own = [id(variable.value) for variable in model.weights]
    assert [id(v) for v in StoredWeights(model).by_name.values()] == own
