"""Heads of tasks on a BiLSTM, on every backend."""

import keras
import numpy as np
import pytest

from bert_tf.errors import InputError
from bert_tf.heads import (
    BertClassifier,
    BertMultipleChoice,
    BertSpanLabeler,
    BertTokenClassifier,
)
from bert_tf.modeling import BertModel, checkpoint_variables
from tests.backends import small_bert
from tests.backends.gradients import gradients
from tests.backends.small_bert import B, H, S, numbers
from tests.bilstm_by_hand import bilstm

MODELS = [
    BertClassifier,
    BertTokenClassifier,
    BertMultipleChoice,
    BertSpanLabeler,
]
OUTPUT = {BertSpanLabeler: "cls/squad/"}


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    return small_bert.make(request.param, bilstm_head=True)


def by_hand(model_class, weights, x):
    """The scores of one sequence, floats [length, H]: [C] or [length, C]."""
    vectors = bilstm(x.astype(float), weights, "bilstm")
    if model_class in (BertClassifier, BertMultipleChoice):
        vectors = np.concatenate([vectors[-1, :H], vectors[0, H:]])
    scope = OUTPUT.get(model_class, "")
    matrix, bias = (
        weights[f"{scope}{name}"] for name in ("output_weights", "output_bias")
    )
    return vectors @ matrix.T + bias


def test_scores_by_hand(model):
    """Of the states at the end of either direction, and of every place."""
    model_class = type(model)
    inputs = small_bert.features(model_class)
    weights = numbers(checkpoint_variables(model))
    flat = {name: value.reshape(-1, S) for name, value in inputs.items()}
    encoded = numbers(model.bert(flat)["sequence_output"])
    lengths = flat["input_mask"].sum(axis=1)
    outputs = numbers(model(inputs))
    if model_class is BertSpanLabeler:
        found = np.stack(list(outputs.values()), axis=-1)  # [B, S, 2]
    else:
        found = outputs["logits"]
    if model_class is BertMultipleChoice:
        found = found.reshape(-1, 1)
    for row, length in enumerate(lengths):
        expected = by_hand(model_class, weights, encoded[row, :length])
        kept = found[row, :length] if expected.ndim == 2 else found[row]
        np.testing.assert_allclose(kept, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("model_class", "policy"),
    [(BertClassifier, "bfloat16"), (BertSpanLabeler, "mixed_bfloat16")],
)
def test_scores_in_bfloat16_are_near_those_in_float32(model_class, policy):
    """As near as those without a BiLSTM: see test_policies.py."""
    inputs = small_bert.features(model_class)
    half, model = (
        small_bert.make(model_class, bilstm_head=True, dtype=dtype)
        for dtype in (policy, "float32")
    )
    assert half.bilstm.compute_dtype == "bfloat16"
    wanted = small_bert.named(model(inputs))
    for name, value in small_bert.named(half(inputs)).items():
        assert np.isfinite(value).all(), name
        np.testing.assert_allclose(value, wanted[name], atol=0.15)
        # Or it were no other computation.
        assert not np.array_equal(value, wanted[name]), name


def fresh(seed):
    """The weights of a new model, by name."""
    keras.utils.set_random_seed(seed)
    model = BertClassifier(small_bert.CONFIG, num_labels=2, bilstm_head=True)
    model.build()
    return numbers(checkpoint_variables(model))


def test_a_seed_decides_every_weight():
    first, again, other = map(fresh, (5, 5, 6))
    assert first.keys() == again.keys()
    for name, value in first.items():
        np.testing.assert_array_equal(again[name], value, err_msg=name)
    drawn = [name for name in first if name.endswith("kernel")]
    assert sum("bilstm" in name for name in drawn) == 4
    for name in drawn:
        assert not np.array_equal(other[name], first[name]), name


def test_all_but_the_pooler_is_trained(model):
    found = gradients(
        model,
        small_bert.features(type(model)),
        lambda outputs: sum(
            keras.ops.mean(value**2) for value in outputs.values()
        ),
        training=True,
    )
    assert any("bilstm" in path for path in found)
    assert not any("pooler" in path for path in found)
    for path, gradient in found.items():
        # What is added to all scores of a query, a softmax does not see.
        if "key/bias" not in path:
            assert np.abs(gradient).max() > 0, path


def test_a_model_comes_back_bit_equal(model, tmp_path):
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    inputs = small_bert.features(type(model))
    expected = small_bert.named(model(inputs))
    for name, value in small_bert.named(loaded(inputs)).items():
        np.testing.assert_array_equal(value, expected[name])


def test_without_it_a_head_has_the_weights_that_it_had():
    for model_class in MODELS:
        model = small_bert.make(model_class)
        names = checkpoint_variables(model)
        assert not any("lstm" in name for name in names)
        output = names[f"{OUTPUT.get(model_class, '')}output_weights"]
        assert output.shape[1] == H
        assert model.get_config()["bilstm_head"] is False


def test_examples_that_share_a_row_are_refused():
    model = small_bert.make(BertClassifier, bilstm_head=True)
    ids = np.ones((B, S), "int32")
    with pytest.raises(InputError, match=r"Leave out cls_positions and exam.*"):
        model(
            {
                "input_ids": ids,
                "example_ids": ids,
                "cls_positions": np.zeros((B, 2), "int32"),
            }
        )


def test_the_encoder_is_that_of_any_model(model):
    names = [n for n in checkpoint_variables(model) if n.startswith("bert/")]
    encoder = small_bert.make(BertModel)
    assert names == list(checkpoint_variables(encoder))
