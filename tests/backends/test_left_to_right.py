"""Left-to-right models: tokens attend only to those before them."""

import dataclasses

import numpy as np
import pytest

from bert_tf.modeling.encoder import BertModel
from tests.backends import small_bert
from tests.backends.small_bert import S, V, numbers

CONFIG = dataclasses.replace(
    small_bert.CONFIG, attention_direction="left_to_right"
)
# Rounding: sums over shorter sequences have another order.
ATOL = 2e-6


@pytest.fixture(scope="module")
def model():
    return small_bert.make(BertModel, CONFIG)


def encoded(model, inputs):
    return numbers(small_bert.call(model, inputs))


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_another_token_changes_nothing_before_it(policy):
    model = small_bert.make(BertModel, CONFIG, dtype=policy)
    inputs = small_bert.features()
    before = encoded(model, inputs)["sequence_output"]
    for position in range(1, S):
        ids = inputs["input_ids"].copy()
        ids[:, position] = (ids[:, position] + 1) % V
        after = encoded(model, inputs | {"input_ids": ids})["sequence_output"]
        np.testing.assert_array_equal(after[:, :position], before[:, :position])
        assert (after[0, position:] != before[0, position:]).any(-1).all()


def test_attention_equals_that_with_a_mask_made_by_hand(model):
    inputs = small_bert.features()
    both_ways = small_bert.make(BertModel)
    seen = np.tril(np.ones((S, S))) * inputs["input_mask"][:, None]
    outputs, _ = both_ways.encoder(
        both_ways.embeddings(inputs["input_ids"], inputs["segment_ids"]),
        np.where(seen, 0.0, -np.inf).astype("float32")[:, None],
    )
    found = encoded(model, inputs)["hidden_states"][1:]
    for layer, expected in zip(found, numbers(outputs), strict=True):
        np.testing.assert_allclose(layer, expected, rtol=0, atol=ATOL)


def test_the_last_token_is_pooled(model):
    """[CLS] attends only to itself."""
    inputs = small_bert.features()
    found = encoded(model, inputs)
    last = inputs["input_mask"].sum(axis=1) - 1
    vectors = found["sequence_output"][np.arange(len(last)), last]
    for pooled in (model.pooler(vectors[:, None]), model.pooled_output(inputs)):
        np.testing.assert_allclose(
            found["pooled_output"], numbers(pooled), rtol=0, atol=ATOL
        )
