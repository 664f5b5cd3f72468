"""Dtype policies: half precision, but not in softmax, layer norm and logits."""

from unittest import mock

import keras
import numpy as np
import pytest
from keras import ops

from bert_tf.modeling import heads
from bert_tf.modeling.encoder import BertModel
from bert_tf.modeling.optimization import AdamWeightDecay, Lamb
from bert_tf.modeling.transformer import ResidualOutput
from tests.backends import small_bert

# Policy -> compute dtype, dtype of the weights, largest difference from
# float32: some units in the last of 8 or 11 bits, through two blocks.
POLICIES = {
    "bfloat16": ("bfloat16", "bfloat16", 0.15),
    "mixed_bfloat16": ("bfloat16", "float32", 0.15),
    "mixed_float16": ("float16", "float32", 0.02),
}


@pytest.mark.parametrize(
    ("model_class", "policy"),
    [
        *((BertModel, policy) for policy in POLICIES),
        *((heads.BertPretrainer, policy) for policy in POLICIES),
        (heads.BertClassifier, "bfloat16"),
        (heads.BertSpanLabeler, "mixed_bfloat16"),
    ],
)
def test_outputs_are_near_those_of_float32(model_class, policy):
    compute_dtype, variable_dtype, tolerance = POLICIES[policy]
    inputs = small_bert.features(model_class)
    exact = small_bert.make(model_class)
    model = small_bert.make(model_class, dtype=policy)
    assert {v.dtype for v in model.weights} == {variable_dtype}
    with mock.patch.object(ops, "softmax", wraps=ops.softmax) as softmax:
        outputs = dict(small_bert.call(model, inputs))
    for arguments, _ in softmax.call_args_list:
        dtype = keras.backend.standardize_dtype(arguments[0].dtype)
        assert dtype == "float32"
    assert softmax.call_count == small_bert.CONFIG.num_hidden_layers
    for name, value in outputs.items():
        expected = "float32" if name.endswith("logits") else compute_dtype
        for tensor in keras.tree.flatten(value):
            assert keras.backend.standardize_dtype(tensor.dtype) == expected
    wanted = small_bert.outputs(exact)
    for name, value in small_bert.named(outputs).items():
        np.testing.assert_allclose(value, wanted[name], atol=tolerance)
        assert not np.array_equal(value, wanted[name]), name


def test_layer_norm_is_computed_in_float32():
    """The square of 300 is more than float16 can represent."""
    layer = ResidualOutput(small_bert.CONFIG, dtype="mixed_float16")
    layer.build((None, None, small_bert.H))
    x = np.linspace(-300.0, 300.0, small_bert.H, dtype="float32")
    computed = small_bert.numbers(layer(np.zeros_like(x)[None], x[None]))
    np.testing.assert_allclose(computed[0], x / x.std(), atol=2e-3)


@pytest.mark.parametrize(
    ("policy", "optimizer_class"),
    [
        ("mixed_float16", AdamWeightDecay),  # In Keras's LossScaleOptimizer.
        ("bfloat16", Lamb),
    ],
)
def test_fit_stays_finite_and_moves_every_weight(policy, optimizer_class):
    model = small_bert.make(heads.BertClassifier, dtype=policy)
    small_bert.compiled(model, optimizer_class(0.1))
    before = small_bert.named_weights(model)
    small_bert.train(model, 0, 2)
    for name, value in small_bert.named_weights(model).items():
        assert np.isfinite(value).all(), name
        assert not np.array_equal(value, before[name]), name
