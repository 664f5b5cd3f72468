"""Heads on a BiLSTM, and the tagger on a frozen BERT."""

import keras
import numpy as np
import pytest

from bert_tf.errors import InputError
from bert_tf.modeling.encoder import BertModel
from bert_tf.modeling.feature_tagger import BertFeatureTagger
from bert_tf.modeling.heads import (
    BertClassifier,
    BertMultipleChoice,
    BertSpanLabeler,
    BertTokenClassifier,
)
from bert_tf.modeling.variables import checkpoint_variables
from tests.backends import small_bert
from tests.backends.gradients import gradients
from tests.backends.small_bert import B, H, S, numbers
from tests.bilstm_by_hand import bilstm, tagger_logits

MODELS = [
    BertClassifier,
    BertTokenClassifier,
    BertMultipleChoice,
    BertSpanLabeler,
]


def by_hand(model_class, weights, x):
    """The scores of one sequence, floats [length, H]: [C] or [length, C]."""
    vectors = bilstm(x.astype(float), weights, "bilstm")
    if model_class in (BertClassifier, BertMultipleChoice):
        vectors = np.concatenate([vectors[-1, :H], vectors[0, H:]])
    scope = "cls/squad/" if model_class is BertSpanLabeler else ""
    matrix, bias = (
        weights[f"{scope}{name}"] for name in ("output_weights", "output_bias")
    )
    return vectors @ matrix.T + bias


@pytest.mark.parametrize("model_class", MODELS)
def test_scores_by_hand(model_class):
    """From the last states of both directions, or from each token's states."""
    model = small_bert.make(model_class, bilstm_head=True)
    inputs = small_bert.features(model_class)
    weights = numbers(checkpoint_variables(model))
    flat = {name: value.reshape(-1, S) for name, value in inputs.items()}
    encoded = numbers(small_bert.call(model.bert, flat))["sequence_output"]
    outputs = numbers(small_bert.call(model, inputs))
    if model_class is BertSpanLabeler:
        found = np.stack(list(outputs.values()), axis=-1)  # [B, S, 2]
    else:
        found = outputs["logits"]
    if model_class is BertMultipleChoice:
        found = found.reshape(-1, 1)
    for row, length in enumerate(flat["input_mask"].sum(axis=1)):
        expected = by_hand(model_class, weights, encoded[row, :length])
        kept = found[row, :length] if expected.ndim == 2 else found[row]
        np.testing.assert_allclose(kept, expected, rtol=1e-4, atol=1e-5)


def fresh(seed):
    """The weights of a new model, by name."""
    keras.utils.set_random_seed(seed)
    model = BertClassifier(small_bert.CONFIG, num_labels=2, bilstm_head=True)
    model.build()
    return numbers(checkpoint_variables(model))


def test_initial_weights_depend_on_the_seed():
    first, again, other = map(fresh, (5, 5, 6))
    for name, value in first.items():
        np.testing.assert_array_equal(again[name], value, err_msg=name)
    kernels = [name for name in first if name.endswith("kernel")]
    assert sum("bilstm" in name for name in kernels) == 4
    for name in kernels:
        assert not np.array_equal(other[name], first[name]), name
    encoder = checkpoint_variables(small_bert.make(BertModel))
    assert [n for n in first if n.startswith("bert/")] == list(encoder)


@pytest.mark.parametrize("model_class", [BertClassifier, BertSpanLabeler])
def test_all_but_the_pooler_is_trained(model_class):
    found = gradients(
        small_bert.make(model_class, bilstm_head=True),
        small_bert.features(),
        lambda outputs: sum(
            keras.ops.mean(value**2) for value in outputs.values()
        ),
        training=True,
    )
    assert any("bilstm" in path for path in found)
    assert not any("pooler" in path for path in found)
    for path, gradient in found.items():
        # A softmax ignores what is added to all scores of a query.
        if "key/bias" not in path:
            assert np.abs(gradient).max() > 0, path


def test_examples_that_share_a_row_are_refused():
    model = small_bert.make(BertClassifier, bilstm_head=True)
    ids = np.ones((B, S), "int32")
    with pytest.raises(InputError, match=r"Leave out cls_positions and exam"):
        model(
            {
                "input_ids": ids,
                "example_ids": ids,
                "cls_positions": np.zeros((B, 2), "int32"),
            }
        )


def test_tagger_by_hand():
    model = small_bert.fill(
        BertFeatureTagger(
            small_bert.CONFIG, small_bert.LABELS, "sum_all", 4, dropout=0.0
        )
    )
    inputs = small_bert.features()
    weights = {
        name.removeprefix("features_sum_all/"): value
        for name, value in numbers(checkpoint_variables(model)).items()
    }
    states = numbers(small_bert.call(model.bert, inputs))["hidden_states"][1:]
    shares = np.exp(weights["layer_weights"])
    x = np.tensordot(shares / shares.sum(), np.stack(states), axes=1)
    lengths = inputs["input_mask"].sum(axis=1)
    logits = numbers(small_bert.call(model, inputs))["logits"]
    for row, expected in enumerate(tagger_logits(x, lengths, weights)):
        found = logits[row, : lengths[row]]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    found = gradients(
        model,
        inputs,
        lambda outputs: keras.ops.mean(outputs["logits"] ** 2),
        training=True,
    )
    assert set(found) == {v.path for v in model.head.weights}
    for path, gradient in found.items():
        assert np.abs(gradient).max() > 0, path
