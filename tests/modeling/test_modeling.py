"""The encoder: initial weights, pooled_output, larger vocabularies."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_tf.checkpoints.pretrained import load_checkpoint
from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.modeling import heads, kernels
from bert_tf.modeling.encoder import BertModel, resize_vocabulary
from bert_tf.modeling.variables import checkpoint_variables
from tests.backends import small_bert
from tests.backends.gradients import gradients
from tests.backends.small_bert import CONFIG, WITHOUT_DROPOUT, B, H, S, V

EXAMPLES = {"example_ids": np.array([[1] * 5 + [2] * 2] * B)}
SEED = np.array([5, 6], "int32")
CLS = {"cls_positions": np.array([[1, 5], [0, 3], [0, 0]])}


@pytest.fixture(scope="module")
def model() -> BertModel:
    return small_bert.make(BertModel)


@pytest.mark.parametrize("model_class", small_bert.MODELS)
def test_initial_weights_are_the_originals(model_class):
    """Cut at two sigma; heads for fine-tuning ignore the config's range."""
    config = BertConfig(V, num_hidden_layers=1, initializer_range=0.3)
    model = model_class(config, **small_bert.ARGUMENTS[model_class])
    keras.utils.set_random_seed(1)
    model.build()
    drawn = []
    for name, variable in checkpoint_variables(model).items():
        value = np.array(variable)
        if name.endswith(("gamma", "beta", "bias")):
            assert (value == name.endswith("gamma")).all(), name
            continue
        is_new = name in ("output_weights", "cls/squad/output_weights")
        deviation = 0.02 if is_new else 0.3
        assert np.abs(value).max() <= 2 * deviation, name
        assert 0.8 < value.std() / deviation < 0.95, name
        drawn.append(value.flat[0] / deviation)
    assert len(np.unique(drawn)) == len(drawn)


@pytest.mark.filterwarnings("error:Gradients do not exist")
def test_without_a_pooler(model, tmp_path, caplog):
    """Loads, trains, saves and converts as a model with one does."""
    model.save(tmp_path / "whole.keras")
    bare = BertModel(CONFIG, add_pooling_layer=False)
    with caplog.at_level("WARNING"):
        report = load_checkpoint(bare, tmp_path / "whole.keras")
    assert report.left_over == tuple(
        f"bert/pooler/dense/{name}" for name in ("bias", "kernel")
    )
    assert not caplog.records
    inputs = small_bert.features()
    expected = model(inputs)["sequence_output"]
    assert bare.compute_output_shape({"input_ids": (B, S)}) == {
        "sequence_output": (B, S, H)
    }
    bare.save(tmp_path / "bare.keras")
    bare.save_pretrained(tmp_path / "google", "tf1")
    again = BertModel(CONFIG, add_pooling_layer=False)
    assert not load_checkpoint(again, tmp_path / "google").missing
    for same in (bare, again, keras.models.load_model(tmp_path / "bare.keras")):
        outputs = same(inputs)
        assert set(outputs) == {"sequence_output"}
        np.testing.assert_array_equal(outputs["sequence_output"], expected)
    bare.compile("sgd", "mse", run_eagerly=True)
    bare.fit(inputs, expected, verbose=0)
    with pytest.raises(InputError, match="add_pooling_layer=True"):
        bare.pooled_output(inputs)


def test_rows_and_not_tables_become_half_precision():
    """A table may have 90 MB, and a text needs some dozen of its rows."""
    config = dataclasses.replace(CONFIG, num_hidden_layers=1)
    model = BertModel(config, dtype="mixed_bfloat16")
    spec = {"input_ids": tf.TensorSpec([None, None], tf.int32)}
    graph = tf.function(model).get_concrete_function(spec).graph
    cast = {
        tuple(op.inputs[0].shape)
        for op in graph.get_operations()
        if op.type == "Cast" and op.outputs[0].dtype == tf.bfloat16
    }
    # The smallest table, of token types, is multiplied and not looked up.
    assert {(H, H), (None, None, H), (CONFIG.type_vocab_size, H)} <= cast
    assert not {(V, H), (CONFIG.max_position_embeddings, H)} & cast


# `pooled_output` computes the last block for one position.


@pytest.mark.parametrize(
    ("policy", "extra"),
    [
        ("float32", {}),
        ("float32", EXAMPLES),
        ("float32", EXAMPLES | CLS),
        ("mixed_bfloat16", EXAMPLES | CLS),
        ("bfloat16", {}),
    ],
)
def test_pooled_output_is_that_of_a_call(policy, extra):
    alone, whole = (BertModel(CONFIG, dtype=policy) for _ in range(2))
    inputs = small_bert.features() | extra
    # The first call creates the weights; lists are features too.
    pooled = alone.pooled_output({k: v.tolist() for k, v in inputs.items()})
    expected = whole(inputs)["pooled_output"]
    assert (pooled.shape, pooled.dtype) == (expected.shape, expected.dtype)
    assert [(v.path, v.dtype) for v in alone.weights] == [
        (v.path, v.dtype) for v in whole.weights
    ]
    alone.set_weights(whole.get_weights())
    np.testing.assert_allclose(
        small_bert.numbers(alone.pooled_output(inputs)),
        small_bert.numbers(expected),
        atol=2e-6 if policy == "float32" else 2e-2,
    )


def test_pooled_output_in_a_functional_model(model):
    symbols = small_bert.symbols()
    pooled = model.pooled_output(symbols)
    assert pooled.shape == (None, H)
    inputs = small_bert.features()
    np.testing.assert_allclose(
        keras.Model(symbols, pooled)(inputs),
        model.pooled_output(inputs),
        atol=2e-6,
    )


class Pooled(keras.Model):
    """A custom model that does not pass on `training`."""

    def __init__(self, bert):
        super().__init__()
        self.bert = bert

    def call(self, inputs):
        return self.bert.pooled_output(inputs)


def test_pooled_output_inherits_training(model):
    """From the layer that calls it, as a call of the model does."""
    outer, inputs = Pooled(model), small_bert.features()
    first, second = (outer(inputs, training=True) for _ in range(2))
    assert np.abs(first - second).max() > 1e-4
    np.testing.assert_array_equal(outer(inputs), outer(inputs, training=False))
    seeded = [
        model.pooled_output(inputs, training=True, seed=np.array([1, n]))
        for n in (2, 2, 3)
    ]
    np.testing.assert_array_equal(seeded[0], seeded[1])
    assert np.abs(seeded[0] - seeded[2]).max() > 1e-4


def test_gradients_of_pooled_output():
    """Of blocks that are recomputed, too; dropout is off."""
    model = small_bert.make(BertModel, WITHOUT_DROPOUT)
    outer = Pooled(model)
    inputs = small_bert.features()
    expected = gradients(
        model, inputs, lambda x: tf.reduce_sum(x["pooled_output"] ** 3)
    )
    for model.gradient_checkpointing in (False, True):
        found = gradients(
            outer, inputs, lambda x: tf.reduce_sum(x**3), training=True
        )
        small_bert.assert_close(found, expected, 2e-6)


@pytest.mark.slow
def test_lengths_are_compiled_when_they_occur(monkeypatch):
    """With the gradients, and dropout masks, of a compiled fixed length."""
    monkeypatch.setattr(kernels, "LEAST_SIZE", 1)
    monkeypatch.setattr(kernels, "LEAST_SIZE_OF_STEPS", 1)
    model = small_bert.make(BertModel, CONFIG)
    weights = [v.value for v in model.encoder.trainable_variables]

    def compute(features):
        with tf.GradientTape() as tape:
            outputs = model(features, training=True, seed=SEED)
            loss = tf.reduce_mean(outputs["sequence_output"] ** 3)
        return tape.gradient(loss, weights)

    features = {k: tf.constant(v) for k, v in small_bert.features().items()}
    shapes = {k: tf.TensorSpec([None, None], tf.int32) for k in features}
    with kernels.compiling(kernels.Compiled.PASSES, num_steps=1):
        any_length = tf.function(compute, [shapes], autograph=False)
        any_length.get_concrete_function()
    for length in (3, 5):
        cut = {name: value[:, :length] for name, value in features.items()}
        with kernels.compiling(kernels.Compiled.PASSES):
            expected = compute(cut)
        for one, other in zip(any_length(cut), expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_recomputed_blocks_have_the_masks_of_fused_kernels(monkeypatch):
    monkeypatch.setattr(kernels, "LEAST_SIZE", 1)
    config = dataclasses.replace(CONFIG, num_hidden_layers=1)
    plain, twice = (
        small_bert.make(BertModel, config, gradient_checkpointing=again)
        for again in (False, True)
    )
    with kernels.compiling(kernels.Compiled.PASSES):
        plain, twice = (
            gradients(
                model,
                small_bert.features(),
                lambda outputs: tf.reduce_mean(outputs["pooled_output"] ** 2),
                training=True,
                seed=SEED,
            )
            for model in (plain, twice)
        )
    assert max(np.abs(value).max() for value in plain.values()) > 1e-3
    small_bert.assert_close(twice, plain, 1e-7)


MORE = 5
GROWING = ("bert/embeddings/word_embeddings", "cls/predictions/output_bias")


@pytest.mark.parametrize(
    ("model_class", "policy"),
    [
        *((model_class, "float32") for model_class in small_bert.MODELS),
        (heads.BertPretrainer, "bfloat16"),
    ],
)
def test_only_the_vocabulary_grows(model_class, policy):
    model = small_bert.make(model_class, dtype=policy)
    model.layers[0].trainable = False
    model.weights[-1].trainable = False  # Not in the config.
    before = small_bert.arrays(model)
    larger = resize_vocabulary(model, V + MORE)
    assert type(larger) is model_class
    assert larger.config.vocab_size == V + MORE
    expected = model.get_config() | {"config": larger.config.to_dict()}
    assert larger.get_config() == expected
    for old, new in zip(model.weights, larger.weights, strict=True):
        assert new.path == old.path
        assert new.dtype == old.dtype
        assert new.trainable is old.trainable
    after = small_bert.arrays(larger)
    for name, value in before.items():
        np.testing.assert_array_equal(after[name][: len(value)], value)
        new = after[name][len(value) :]
        assert len(new) == (MORE if name in GROWING else 0), name
        mean = value.mean(0, keepdims=True)
        rtol = 1e-5 if policy != "bfloat16" else 1e-2
        np.testing.assert_allclose(new, mean + 0 * new, rtol=rtol, atol=1e-6)
    # The old model does not share the weights of the copy.
    for weight in larger.weights:
        weight.assign(keras.ops.zeros_like(weight))
    small_bert.assert_close(small_bert.arrays(model), before, 0)


def test_unbuilt_models_and_equal_sizes():
    for size in (V, V + MORE):
        larger = resize_vocabulary(BertModel(CONFIG), size)
        assert larger.embeddings.word_embeddings.shape == (size, H)


@pytest.mark.parametrize(
    ("model_class", "vocab_size", "message"),
    [
        (BertModel, V - 1, f"at least {V}.* got {V - 1}"),
        (BertModel, 40.0, "a positive integer; got 40.0.$"),
        (keras.Sequential, V, "Sequential is not a model"),
    ],
)
def test_invalid_resizes_are_refused(model_class, vocab_size, message):
    model = model_class(CONFIG) if model_class is BertModel else model_class()
    with pytest.raises(InputError, match=message):
        resize_vocabulary(model, vocab_size)
