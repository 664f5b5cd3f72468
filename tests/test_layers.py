"""Dropout by seed, parts that follow their owner, exported and int8 models."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_tf import kernels
from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.feature_tagger import BertFeatureTagger
from bert_tf.heads import (
    BertClassifier,
    BertMultipleChoice,
)
from bert_tf.modeling import BertModel
from bert_tf.pretrained import load_checkpoint
from bert_tf.transformer import ACTIVATIONS, BertLayer, Dense, Dropout, fold_in

CONFIG = BertConfig(vocab_size=7, hidden_size=4, num_attention_heads=2)
SEED = np.array([5, 6], "int32")


def test_share_and_scale_of_what_is_kept():
    x = np.ones((100, 1000), "float32")
    kept = np.array(Dropout(0.3)(x, training=True, seed=SEED))
    assert abs((kept == 0).mean() - 0.3) < 0.01
    np.testing.assert_allclose(kept[kept > 0], 1 / 0.7, rtol=1e-6)


def test_masks_of_different_seeds_are_independent():
    x = np.ones((100, 1000), "float32")
    first, second = (
        np.array(Dropout(0.5)(x, training=True, seed=seed)) > 0
        for seed in (SEED, fold_in(keras.ops.convert_to_tensor(SEED), 1))
    )
    assert abs((first & second).mean() - 0.25) < 0.01


@pytest.mark.parametrize("arguments", [{"training": False}, {}])
def test_dropout_is_off_without_training(arguments):
    x = np.ones((3, 5), "float32")
    np.testing.assert_array_equal(Dropout(0.5)(x, seed=SEED, **arguments), x)


def test_no_seed_stays_none():
    assert fold_in(None, 3) is None


def test_the_two_gelus_differ_as_published():
    """The tanh form is up to 5e-4 off the erf form."""
    x = np.linspace(-4, 4, 201, dtype="float32")
    inner = np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)
    tanh_form = 0.5 * x * (1 + np.tanh(inner))
    np.testing.assert_allclose(
        ACTIVATIONS["gelu_tanh"](x), tanh_form, atol=1e-6
    )
    gap = np.abs(np.array(ACTIVATIONS["gelu_erf"](x)) - tanh_form).max()
    assert 1e-4 < gap < 5e-4


@pytest.mark.parametrize("name", ["gelu_tanh", "gelu_erf"])
def test_gelus_are_exact_in_half_precision(name):
    """But for the rounding of what goes in and of what comes out."""
    x = np.linspace(-6, 6, 1201, dtype="float32")
    x = keras.ops.cast(keras.ops.convert_to_tensor(x), "bfloat16")
    got = ACTIVATIONS[name](x)
    assert keras.backend.standardize_dtype(got.dtype) == "bfloat16"
    exact = ACTIVATIONS[name](keras.ops.cast(x, "float64"))
    np.testing.assert_allclose(
        keras.ops.convert_to_numpy(keras.ops.cast(got, "float32")),
        keras.ops.convert_to_numpy(exact),
        rtol=2**-8,
        atol=1e-6,
    )


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("shape", [(3, 7), (2, 3, 7), (0, 3, 7)])
def test_dense_is_the_librarys(policy, shape):
    layers = [kind(5, dtype=policy) for kind in (Dense, keras.layers.Dense)]
    for layer in layers:
        layer.build((None, 7))
        kernel = np.linspace(-1, 1, 35).reshape(7, 5)
        layer.set_weights([kernel, np.arange(5.0)])
    x = np.linspace(-2, 2, np.prod(shape), dtype="float32").reshape(shape)
    got, expected = (layer(x) for layer in layers)
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(got, expected)


def test_a_bias_stands_behind_its_product_in_half_precision():
    layer = Dense(5, dtype="mixed_bfloat16")
    spec = tf.TensorSpec([None, None, 7])

    def biased():
        """Kinds of the operations that a bias is added to."""
        # Another function each time: a graph is remembered by its function.
        graph = (
            tf.function(lambda x: layer(x)).get_concrete_function(spec).graph
        )
        return {
            op.inputs[0].op.type
            for op in graph.get_operations()
            if op.type in ("BiasAdd", "AddV2")
        }

    assert biased() == {"MatMul"}
    with kernels.compiling(kernels.Compiled.EVERYTHING):
        assert "MatMul" not in biased()


def test_parts_follow_the_policy_and_the_config():
    layer = BertLayer(CONFIG, dtype="mixed_bfloat16")
    for part in (
        layer.make_dense(3),
        layer.make_layer_norm(),
        layer.make_dropout(0.1),
        layer.make_inner(BertLayer, "inner"),
    ):
        assert part.dtype_policy.name == "mixed_bfloat16"
    assert layer.make_inner(BertLayer, "inner").config is CONFIG


def test_each_weight_has_an_initializer_of_its_own():
    keras.utils.set_random_seed(3)
    layer = BertLayer(CONFIG)
    first, second = (layer.make_initializer()((4, 4)) for _ in range(2))
    assert not np.allclose(first, second)


def test_a_config_may_come_as_a_dict():
    assert BertLayer(CONFIG.to_dict()).config == CONFIG


IDS = np.array([[3, 1, 4], [1, 5, 2]])


@pytest.fixture(scope="module")
def encoder():
    config = BertConfig(
        vocab_size=7,
        hidden_size=4,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=3,
        max_position_embeddings=5,
        type_vocab_size=2,
    )
    return BertModel(config)


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ({"attention_mask": IDS}, "'attention_mask'. Rename it to 'input_m"),
        ({"token_type_ids": IDS}, "'token_type_ids'. Rename it to 'segment"),
        ({"input_ids": None}, "a dict with 'input_ids'"),
        ({"input_ids": IDS[0]}, r"2 axes.* got \(3,\)"),
        ({"input_ids": IDS[None]}, r"2 axes.* got \(1, 2, 3\)"),
        (
            {"input_mask": IDS[:, :1]},
            r"mask must be \(2, 3\).*got \(2, 1\)",
        ),
        ({"segment_ids": IDS[:1]}, r"shape of segment_ids.*\(1, 3\)"),
        (
            {"position_ids": IDS[:, :2]},
            r"position_ids must be \(2, 3\)",
        ),
        ({"example_ids": IDS[0]}, r"shape of example_ids.*got \(3,\)"),
        ({"cls_positions": IDS[:1]}, r"must be \(2, None\).*got \(1, 3\)"),
        ({"cls_positions": IDS[:, 0]}, r"must be \(2, None\).*got \(2,\)"),
    ],
)
def test_features_that_would_be_misunderstood(encoder, features, message):
    with pytest.raises(InputError, match=message) as raised:
        encoder({"input_ids": IDS, **features})
    assert "\n" not in str(raised.value)


def test_features_may_be_lists_and_none(encoder):
    expected = encoder({"input_ids": IDS})["sequence_output"]
    given = {"input_ids": IDS.tolist(), "input_mask": None, "label": IDS[:1]}
    np.testing.assert_array_equal(encoder(given)["sequence_output"], expected)


def test_features_may_be_keywords(encoder):
    features = {"input_ids": IDS, "input_mask": np.array([[1, 1, 0]] * 2)}
    expected = encoder(features, training=True, seed=SEED)
    found = encoder(**features, training=True, seed=SEED)
    np.testing.assert_array_equal(
        found["sequence_output"], expected["sequence_output"]
    )
    inputs = {k: keras.Input((None,), dtype="int32") for k in features}
    model = keras.Model(inputs, encoder(**inputs)["pooled_output"])
    model = model.from_config(model.get_config())
    assert model(features).shape == (2, 4)
    with pytest.raises(InputError, match=r"'input_ids'.* got \['input_mask'\]"):
        encoder(input_mask=IDS)
    with pytest.raises(TypeError, match=r"unexpected keyword.*'input_mask'"):
        encoder({"input_ids": IDS}, input_mask=IDS)
    with pytest.raises(TypeError, match=r"unexpected keyword.*'input_masks'"):
        encoder(input_ids=IDS, input_masks=IDS)


def test_a_built_model_may_be_built_again(encoder):
    encoder.build()
    weights = [v.numpy() for v in encoder.weights]
    encoder.build()
    assert len(weights) == len(encoder.weights)


# bfloat16 would round the ids of the last words: 29999 to 29952.
MANY_WORDS = BertConfig(
    vocab_size=30000,
    hidden_size=12,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=17,
    max_position_embeddings=13,
    type_vocab_size=2,
)
ARGUMENTS = {
    BertModel: {},
    BertClassifier: {"num_labels": 3},
    BertMultipleChoice: {},
    BertFeatureTagger: {"num_labels": 3, "layers": "last", "lstm_size": 5},
}


def make(model_class, **arguments) -> keras.Model:
    """A built model, never called, whose weights are all different."""
    model = model_class(MANY_WORDS, **ARGUMENTS[model_class], **arguments)
    model.build()
    random = np.random.default_rng(3)
    for weight in model.weights:
        weight.assign(random.normal(0, 0.3, weight.shape))
    return model


def last_words(model_class, batch: int, length: int) -> dict[str, np.ndarray]:
    """Each text repeats one of the last words; it ends in padding."""
    choices = [4] if model_class is BertMultipleChoice else []
    ids = np.arange(30000 - batch, 30000, dtype="int32")
    ids = np.broadcast_to(
        ids.reshape(batch, *[1] * len(choices), 1), (batch, *choices, length)
    )
    mask = (np.arange(length) <= length // 2).astype("int32")
    return {
        "input_ids": ids,
        "input_mask": np.broadcast_to(mask, ids.shape),
        "segment_ids": np.ones_like(ids),
    }


def numbers(outputs) -> dict[str, np.ndarray]:
    return {k: np.array(v).astype("float32") for k, v in outputs.items()}


def assert_exported(folder, model) -> None:
    """The SavedModel has named integer inputs and computes as the model."""
    serve = tf.saved_model.load(folder).signatures["serving_default"]
    axes = [None] * model.input_rank
    assert serve.structured_input_signature[1] == {
        name: tf.TensorSpec(axes, tf.int32, name)
        for name in ("input_ids", "input_mask", "segment_ids")
    }
    for batch, length in ((1, 2), (7, 13)):
        words = last_words(type(model), batch, length)
        expected = numbers(model(words))
        got = numbers(serve(**{k: tf.constant(v) for k, v in words.items()}))
        assert got.keys() == expected.keys()
        for name, value in expected.items():
            scale = np.abs(value).max()
            np.testing.assert_allclose(got[name], value, atol=0.05 * scale)
            # As bfloat16 all of their ids would be one.
            assert len(np.unique(got[name], axis=0)) > 1 or batch == 1


# Of each kind; the others share the code of `BertClassifier`.
@pytest.mark.parametrize("model_class", [BertMultipleChoice, BertFeatureTagger])
def test_an_exported_model_takes_ids(model_class, tmp_path):
    model = make(model_class, dtype="mixed_bfloat16")
    model.export(tmp_path / "export", verbose=False)
    assert_exported(tmp_path / "export", model)


def test_lists_of_tensors_cannot_be_exported(tmp_path):
    model = BertClassifier(MANY_WORDS, 3, output_attentions=True)
    with pytest.raises(InputError, match=r"lists of them .output_attentions"):
        model.export(tmp_path)


def test_a_model_can_be_exported_wherever_its_weights_come_from(tmp_path):
    saved = make(BertClassifier)
    saved.save(tmp_path / "model.keras")
    filled = BertClassifier(MANY_WORDS, 3)
    load_checkpoint(filled, tmp_path / "model.keras")
    trained = make(BertClassifier)
    trained.compile("sgd", keras.losses.SparseCategoricalCrossentropy())
    trained.fit(last_words(BertClassifier, 5, 7), np.arange(5) % 3, verbose=0)
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    for number, model in enumerate((filled, trained, loaded)):
        model.export(tmp_path / str(number), verbose=False)
        assert_exported(tmp_path / str(number), model)


def test_a_signature_of_ones_own(tmp_path):
    model = make(BertModel)
    features = {
        name: keras.InputSpec(shape=(None, 5), dtype="int32", name=name)
        for name in ("input_ids", "position_ids")
    }
    model.export(tmp_path, verbose=False, input_signature=[features])
    serve = tf.saved_model.load(tmp_path).signatures["serving_default"]
    assert serve.structured_input_signature[1] == {
        name: tf.TensorSpec([None, 5], tf.int32, name) for name in features
    }


def run_onnx(path, words):
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(path)
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, words), strict=True))


def run_litert(path, words):
    litert = pytest.importorskip("ai_edge_litert.interpreter")
    return litert.Interpreter(str(path)).get_signature_runner()(**words)


@pytest.mark.parametrize(
    ("name", "format", "run"),
    [
        ("model.onnx", "onnx", run_onnx),
        ("model.tflite", "litert", run_litert),
    ],
)
def test_other_formats(tmp_path, name, format, run):
    if format == "onnx":
        pytest.importorskip("tf2onnx")
    model = make(BertClassifier)
    model.export(tmp_path / name, format=format, verbose=False)
    for batch, length in ((1, 2), (7, 13)):
        words = last_words(BertClassifier, batch, length)
        np.testing.assert_allclose(
            run(tmp_path / name, words)["logits"],
            numbers(model(words))["logits"],
            rtol=1e-4,
            atol=1e-5,
        )
    half = make(BertClassifier, dtype="mixed_bfloat16")
    with pytest.raises(InputError, match="made with dtype='float32'"):
        half.export(tmp_path / "half", format=format)
    assert not (tmp_path / "half").exists()


# Keras lists the layers that stay as they are, such as layer norms.
UNQUANTIZED = pytest.mark.filterwarnings("ignore:Layer .* `quantize`")


def int8_names(model) -> list[str]:
    return [v.path for v in model.weights if v.dtype == "int8"]


@UNQUANTIZED
def test_an_int8_model_inside_of_another_one(tmp_path):
    ids = keras.Input((None,), dtype="int32")
    outputs = make(BertModel)({"input_ids": ids})
    model = keras.Model(ids, keras.layers.Dense(3)(outputs["pooled_output"]))
    model.quantize("int8")
    assert len(int8_names(model)) == 8
    words = last_words(BertModel, 5, 11)["input_ids"]
    expected = model(words)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(words), expected)
    model.export(tmp_path / "export", verbose=False)
    exported = tf.saved_model.load(tmp_path / "export")
    np.testing.assert_allclose(exported.serve(words), expected, atol=1e-5)


@UNQUANTIZED
def test_an_int8_model_is_not_a_checkpoint(tmp_path):
    model = make(BertClassifier)
    model.quantize("int8")
    model.save(tmp_path / "model.keras")
    with pytest.raises(InputError, match="before you call quantize"):
        load_checkpoint(make(BertClassifier), tmp_path / "model.keras")
    make(BertClassifier).save(tmp_path / "float.keras")
    with pytest.raises(InputError, match="before you call quantize"):
        load_checkpoint(model, tmp_path / "float.keras")


@UNQUANTIZED
@pytest.mark.parametrize("mode", ["int4", "float8"])
def test_quantized_to_anything_else(mode):
    model = make(BertClassifier)
    with pytest.raises(InputError, match=f"'int8'.* got '{mode}'"):
        model.quantize(mode)
    assert not int8_names(model)
    assert len(model.weights) == len(make(BertClassifier).weights)
