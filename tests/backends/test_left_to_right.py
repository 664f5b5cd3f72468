"""Tokens that look at those before them alone, on every backend."""

import dataclasses

import keras
import numpy as np
import pytest

from bert_tf.heads import (
    BertClassifier,
    BertMultipleChoice,
    BertPretrainer,
    BertSpanLabeler,
    BertTokenClassifier,
)
from bert_tf.modeling import BertModel
from tests import packed_rows
from tests.backends import small_bert
from tests.backends.small_bert import S, V, numbers

CONFIG = dataclasses.replace(
    small_bert.CONFIG, attention_direction="left_to_right"
)
# Rounding: shorter sequences are added up in another order.
ATOL = 2e-6


@pytest.fixture(scope="module")
def model():
    return small_bert.make(BertModel, CONFIG)


def cut(inputs, length):
    return {name: value[..., :length] for name, value in inputs.items()}


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_each_vector_is_that_of_the_sequence_up_to_it(policy):
    model = small_bert.make(BertModel, CONFIG, dtype=policy)
    inputs = small_bert.features()
    whole = numbers(small_bert.call(model, inputs))["sequence_output"]
    atol = ATOL if policy == "float32" else 0.05
    for length in range(2, S):
        part = numbers(small_bert.call(model, cut(inputs, length)))[
            "sequence_output"
        ]
        np.testing.assert_allclose(whole[:, :length], part, rtol=0, atol=atol)


def test_another_token_changes_nothing_before_it(model):
    inputs = small_bert.features()
    before = numbers(small_bert.call(model, inputs))["sequence_output"]
    for place in range(1, S):
        ids = inputs["input_ids"].copy()
        ids[:, place] = (ids[:, place] + 1) % V
        after = numbers(small_bert.call(model, inputs | {"input_ids": ids}))[
            "sequence_output"
        ]
        np.testing.assert_array_equal(after[:, :place], before[:, :place])
        assert np.abs(after[0, place:] - before[0, place:]).min() > 1e-6


def test_it_is_the_encoder_with_a_mask_made_by_hand(model):
    inputs = small_bert.features()
    both_ways = small_bert.make(BertModel)
    seen = np.tril(np.ones((S, S))) * inputs["input_mask"][:, None]
    outputs, _ = both_ways.encoder(
        both_ways.embeddings(inputs["input_ids"], inputs["segment_ids"]),
        np.where(seen, 0.0, -np.inf).astype("float32")[:, None],
    )
    found = numbers(small_bert.call(model, inputs))["hidden_states"][1:]
    for layer, expected in zip(found, numbers(outputs), strict=True):
        np.testing.assert_allclose(layer, expected, rtol=0, atol=ATOL)


def test_the_last_token_is_pooled(model):
    """[CLS] has seen nothing but itself."""
    inputs = small_bert.features()
    found = numbers(small_bert.call(model, inputs))
    last = inputs["input_mask"].sum(axis=1) - 1
    vectors = found["sequence_output"][np.arange(len(last)), last]
    expected = numbers(model.pooler(vectors[:, None]))
    np.testing.assert_allclose(
        found["pooled_output"], expected, rtol=0, atol=ATOL
    )
    alone = numbers(model.pooled_output(inputs))
    np.testing.assert_allclose(alone, found["pooled_output"], rtol=0, atol=ATOL)


def test_examples_in_a_row_are_those_alone(model):
    lengths = np.array([3, 1, 4, 2])
    mask = (np.arange(S) < lengths[:, None]).astype("int32")
    alone = {
        "input_ids": small_bert.integers("ids", mask.shape, V) * mask,
        "input_mask": mask,
        "segment_ids": small_bert.integers("segments", mask.shape, 2) * mask,
    }
    rows = [[2, 1], [0, 3]]
    expected = numbers(small_bert.call(model, alone))["pooled_output"]
    found = numbers(small_bert.call(model, packed_rows.pack(alone, rows, 3)))[
        "pooled_output"
    ]
    for row, members in enumerate(rows):
        for slot, example in enumerate(members):
            np.testing.assert_allclose(
                found[row, slot], expected[example], rtol=0, atol=ATOL
            )


@pytest.mark.parametrize(
    "model_class",
    [BertClassifier, BertTokenClassifier, BertMultipleChoice, BertSpanLabeler],
)
def test_padding_changes_no_head(model_class):
    model = small_bert.make(model_class, CONFIG)
    inputs = small_bert.features(model_class)
    found = small_bert.named(small_bert.call(model, inputs))
    for row, length in ((0, S), (1, 4)):
        short = {k: v[row : row + 1] for k, v in cut(inputs, length).items()}
        for name, value in small_bert.named(
            small_bert.call(model, short)
        ).items():
            whole = found[name][row]
            kept = whole if whole.shape == value[0].shape else whole[:length]
            np.testing.assert_allclose(kept, value[0], rtol=0, atol=ATOL)


def test_in_a_functional_model_and_saved(tmp_path):
    model = small_bert.make(BertPretrainer, CONFIG)
    symbols = small_bert.symbols(BertPretrainer)
    functional = keras.Model(symbols, model(symbols))
    inputs = small_bert.features(BertPretrainer)
    expected = small_bert.named(small_bert.call(model, inputs))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.config == CONFIG
    for other in (functional, loaded):
        for name, value in small_bert.named(other(inputs)).items():
            np.testing.assert_allclose(value, expected[name], rtol=0, atol=ATOL)
