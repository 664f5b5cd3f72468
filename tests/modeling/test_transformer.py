"""The layers of BERT: masks, precision, configuration."""

import inspect
import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.modeling import heads, kernels, transformer
from bert_tf.modeling.dense import Dense
from bert_tf.modeling.transformer import (
    ACTIVATIONS,
    SelfAttention,
    attention_bias,
    last_positions,
)
from tests.backends.small_bert import CONFIG, H, S

MASK = np.array([[1, 1, 1, 0, 1, 0, 0]])
EXAMPLES = np.array([[1, 1, 2, 2, 2, 0, 0]])
LAYERS = [
    layer_class
    for module in (heads, transformer)
    for layer_class in vars(module).values()
    if isinstance(layer_class, type)
    and issubclass(layer_class, transformer.BertLayer)
    and layer_class.__module__ == module.__name__
    and layer_class is not transformer.BertLayer
]


@pytest.mark.parametrize("layer_class", LAYERS)
def test_config_round_trip(layer_class):
    arguments = {}
    if layer_class is transformer.Encoder:
        arguments = {"output_attentions": True, "gradient_checkpointing": True}
    parameters = inspect.signature(layer_class).parameters.keys()
    assert parameters == {*arguments, "config", "kwargs"}
    made = layer_class(
        CONFIG.to_dict(), name="mine", dtype="mixed_bfloat16", **arguments
    )
    text = json.dumps(keras.saving.serialize_keras_object(made))
    again = keras.saving.deserialize_keras_object(json.loads(text))
    assert type(again) is layer_class
    assert again.get_config() == made.get_config()
    assert again.config == CONFIG
    assert again.dtype_policy.name == "mixed_bfloat16"


@pytest.mark.parametrize("left_to_right", [False, True])
@pytest.mark.parametrize("examples", [None, EXAMPLES])
def test_attention_bias(left_to_right, examples):
    bias = np.array(attention_bias(MASK, examples, left_to_right))
    is_shared = left_to_right or examples is not None
    assert bias.shape == (1, 1, S if is_shared else 1, S)
    bias = np.broadcast_to(bias, (1, 1, S, S))
    for query in range(S):
        for key in range(S):
            is_seen = MASK[0, key] and (key <= query or not left_to_right)
            if examples is not None:
                is_seen = is_seen and examples[0, query] == examples[0, key]
            assert bias[0, 0, query, key] == (0 if is_seen else -10000)


def test_a_row_of_padding_attends_evenly():
    """-inf in place of -10000 would give NaN."""
    layer = SelfAttention(CONFIG)
    layer.build()
    x = np.random.default_rng(0).normal(size=(1, S, H)).astype("float32")
    context, probabilities = layer(x, attention_bias(np.zeros((1, S))))
    _, expected = layer(x, attention_bias(np.ones((1, S))))
    np.testing.assert_allclose(probabilities, expected, atol=1e-3)
    assert np.isfinite(context).all()


ROWS = np.array([[1] * 7, [1] * 4 + [0] * 3, [0] * 7])
IDS = np.array([[1, 1, 1, 2, 3, 3, 3], [1, 2, 2, 2, 0, 0, 0], [0] * 7])
STARTS = np.array([[0, 3, 4], [0, 1, 0], [0, 0, 0]])


@pytest.mark.parametrize(
    ("ids", "starts", "expected"),
    [
        (None, None, [[6], [3], [0]]),
        (IDS, None, [[2], [0], [0]]),
        (IDS, STARTS, [[2, 3, 6], [0, 3, 0], [0, 0, 0]]),
        # Without ids a row is one example, wherever it is said to start.
        (None, STARTS, [[6] * 3, [3] * 3, [0] * 3]),
    ],
)
def test_last_positions_of_examples(ids, starts, expected):
    assert np.array(last_positions(ROWS, ids, starts)).tolist() == expected


@pytest.mark.parametrize("name", ["gelu_tanh", "gelu_erf"])
def test_gelus_are_exact_in_half_precision(name):
    """Except for rounding the argument and the result."""
    x = np.linspace(-6, 6, 1201, dtype="float32")
    x = keras.ops.cast(x, "bfloat16")
    found = ACTIVATIONS[name](x)
    assert found.dtype == "bfloat16"
    exact = ACTIVATIONS[name](keras.ops.cast(x, "float64"))
    found = keras.ops.cast(found, "float32")
    np.testing.assert_allclose(found, exact, rtol=2**-8, atol=1e-6)


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("shape", [(3, 7), (2, 3, 7), (0, 3, 7)])
def test_dense_computes_as_kerass(policy, shape):
    x = np.linspace(-2, 2, np.prod(shape), dtype="float32").reshape(shape)
    outputs = []
    for layer_class in (Dense, keras.layers.Dense):
        layer = layer_class(5, dtype=policy)
        layer.build((None, 7))
        kernel = np.linspace(-1, 1, 35).reshape(7, 5)
        layer.set_weights([kernel, np.arange(5.0)])
        outputs.append(layer(x))
    assert outputs[0].dtype == outputs[1].dtype
    np.testing.assert_array_equal(*outputs)


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize(
    ("compiled", "is_fused"),
    [
        (kernels.Compiled.NOTHING, True),
        (kernels.Compiled.EVERYTHING, False),
    ],
)
def test_a_bias_follows_its_matrix_product(policy, compiled, is_fused):
    """TensorFlow fuses both on CPUs, unless a reshape is in between."""
    layer = Dense(5, dtype=policy)
    spec = tf.TensorSpec([None, None, 7])
    with kernels.compiling(compiled):
        graph = tf.function(layer).get_concrete_function(spec).graph
    biased = {
        op.inputs[0].op.type
        for op in graph.get_operations()
        if op.type in ("BiasAdd", "AddV2")
    }
    assert (biased == {"MatMul"}) is is_fused


@pytest.mark.parametrize(
    ("compiled", "rank"),
    [(kernels.Compiled.NOTHING, 2), (kernels.Compiled.PASSES, 3)],
)
def test_a_gelu_follows_its_matrix_product(compiled, rank):
    """TensorFlow fuses both too; but XLA compiles a GELU by its size."""
    ranks = []

    def gelu(x):
        ranks.append(len(x.shape))
        return x

    layer = Dense(5)
    layer.build((None, 7))
    spec = tf.TensorSpec([None, None, 7])
    with kernels.compiling(compiled):
        function = tf.function(lambda x: layer.activated(x, gelu))
        function.get_concrete_function(spec)
    assert ranks == [rank]


@pytest.mark.parametrize("mode", ["int4", "float8"])
def test_only_int8_quantization(mode):
    layer = Dense(5)
    layer.build((None, 7))
    with pytest.raises(InputError, match=f"'int8'.* got '{mode}'"):
        layer.quantize(mode)
    assert [v.dtype for v in layer.weights] == ["float32"] * 2
