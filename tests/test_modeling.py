"""The encoder: the original's numbers, shapes, seeds, saving."""

import dataclasses
import inspect
import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from bert_tf import kernels
from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.heads import BertPretrainer
from bert_tf.interop import conversion
from bert_tf.modeling import BertModel, checkpoint_variables
from bert_tf.optimization import AdamWeightDecay
from bert_tf.pretrained import load_checkpoint, open_pretrained
from bert_tf.tasks.pretraining import PretrainingTask
from bert_tf.training.step import TrainingStep
from bert_tf.transformer import Embeddings, Encoder, Pooler
from tests.training import toy_task

# Odd sizes, no two alike: swapped axes cannot pass.
B, S, H, N, V = 3, 7, 20, 5, 53
CONFIG = BertConfig(
    vocab_size=V,
    hidden_size=H,
    num_hidden_layers=2,
    num_attention_heads=N,
    intermediate_size=31,
    max_position_embeddings=11,
    type_vocab_size=2,
)


def features(seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {
        "input_ids": random.integers(0, V, (B, S)),
        "input_mask": np.array([[1] * 7, [1] * 4 + [0] * 3, [1] + [0] * 6]),
        "segment_ids": random.integers(0, 2, (B, S)),
    }


@pytest.fixture(scope="module")
def model() -> BertModel:
    keras.utils.set_random_seed(1)
    model = BertModel(CONFIG, output_hidden_states=True, output_attentions=True)
    model.build()
    return model


def test_every_encoder_output_is_the_originals(google_oracle):
    config, arrays = google_oracle
    model = BertModel(config, output_hidden_states=True)
    model.build()
    for name, variable in checkpoint_variables(model).items():
        variable.assign(arrays[f"weights/{name}"])
    outputs = model(
        {
            name: arrays[f"expected/{name}"]
            for name in ("input_ids", "input_mask", "segment_ids")
        }
    )
    embedded, *layers = outputs["hidden_states"]
    for name, value in {
        "embedding_output": embedded,
        "all_encoder_layers": ops.stack(layers),
        "sequence_output": outputs["sequence_output"],
        "pooled_output": outputs["pooled_output"],
    }.items():
        expected = arrays[f"expected/{name}"]
        np.testing.assert_allclose(value, expected, atol=2e-5, err_msg=name)


def test_the_golden_copy_is_the_oracle(google_oracle, shared_data):
    _, arrays = google_oracle
    folder = shared_data / "google_oracle"
    config = BertConfig.from_json_file(str(folder / "bert_config.json"))
    assert config == google_oracle[0]
    expected = np.load(folder / "expected.npz")
    for name in expected.files:
        np.testing.assert_array_equal(
            arrays[f"expected/{name}"], expected[name]
        )


def test_variables_are_named_as_in_a_tf1_checkpoint(google_oracle):
    config, arrays = google_oracle
    model = BertPretrainer(config)
    model.build()
    shapes = {
        name.removeprefix("weights/"): arrays[name].shape
        for name in arrays.files
        if name.startswith("weights/") and name != "weights/global_step"
    }
    ours = {
        name: tuple(variable.shape)
        for name, variable in checkpoint_variables(model).items()
    }
    assert ours == shapes


def test_a_model_of_ones_own_keeps_the_names():
    inputs = {"input_ids": keras.Input((S,), dtype="int32", name="input_ids")}
    pooled = BertModel(CONFIG)(inputs)["pooled_output"]
    model = keras.Model(inputs, keras.layers.Dense(2, name="top")(pooled))
    names = checkpoint_variables(model)
    assert "bert/embeddings/word_embeddings" in names
    assert "top/kernel" in names


def test_shapes(model):
    outputs = model(features())
    assert outputs["sequence_output"].shape == (B, S, H)
    assert outputs["pooled_output"].shape == (B, H)
    assert [x.shape for x in outputs["hidden_states"]] == [(B, S, H)] * 3
    assert [x.shape for x in outputs["attentions"]] == [(B, N, S, S)] * 2


def test_mask_and_segments_have_defaults(model):
    ids = features()["input_ids"]
    explicit = model(
        {
            "input_ids": ids,
            "input_mask": np.ones_like(ids),
            "segment_ids": np.zeros_like(ids),
        }
    )
    np.testing.assert_array_equal(
        model({"input_ids": ids})["pooled_output"], explicit["pooled_output"]
    )


def test_padding_changes_nothing(model):
    short = {k: v[1:2, :4] for k, v in features().items()}
    long = {k: v[1:2] for k, v in features().items()}
    np.testing.assert_allclose(
        model(short)["sequence_output"][0],
        model(long)["sequence_output"][0, :4],
        atol=1e-5,
    )


def test_too_long_a_sequence_is_an_error(model):
    with pytest.raises(ValueError, match=r"at most 11 .*got 12"):
        model({"input_ids": np.zeros((1, 12), "int32")})


@pytest.mark.parametrize(
    ("layer", "arguments"),
    [
        (Embeddings, {}),
        (Encoder, {"output_attentions": True, "gradient_checkpointing": True}),
        (Pooler, {}),
        (
            BertModel,
            {
                "output_hidden_states": True,
                "output_attentions": True,
                "gradient_checkpointing": True,
                "frozen_layers": ["embeddings", "layer_0"],
                "add_pooling_layer": False,
            },
        ),
    ],
)
def test_config_round_trip(layer, arguments):
    """Every argument of the constructor, none of them at its default."""
    arguments |= {"config": CONFIG, "name": "mine", "dtype": "mixed_bfloat16"}
    names = {*inspect.signature(layer).parameters, "dtype", "name"} - {"kwargs"}
    assert arguments.keys() == names
    made = layer(**arguments)
    text = json.dumps(keras.saving.serialize_keras_object(made))
    again = keras.saving.deserialize_keras_object(json.loads(text))
    assert type(again) is layer
    assert again.get_config() == made.get_config()
    for name in names - {"dtype", "add_pooling_layer"}:
        assert getattr(again, name) == arguments[name], name
    assert again.dtype_policy.name == "mixed_bfloat16"


def test_saved_model_gives_the_same_numbers(model, tmp_path):
    path = tmp_path / "bert.keras"
    model.save(path)
    loaded = keras.models.load_model(path)
    expected = model(features())
    for name, value in loaded(features()).items():
        keras.tree.map_structure(
            np.testing.assert_array_equal, value, expected[name]
        )


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
    expected = model(features())["sequence_output"]
    assert bare.compute_output_shape({"input_ids": (B, S)}) == {
        "sequence_output": (B, S, H)
    }
    bare.save(tmp_path / "bare.keras")
    plan = conversion.plan(open_pretrained(tmp_path / "bare.keras"), "google")
    (tmp_path / "google").mkdir()
    conversion.write(plan, str(tmp_path / "google"))
    again = BertModel(CONFIG, add_pooling_layer=False)
    assert not load_checkpoint(again, tmp_path / "google").missing
    for same in (bare, again, keras.models.load_model(tmp_path / "bare.keras")):
        outputs = same(features())
        assert set(outputs) == {"sequence_output"}
        np.testing.assert_array_equal(outputs["sequence_output"], expected)
    bare.compile("sgd", "mse", jit_compile=False)
    bare.fit(features(), expected, verbose=0)
    with pytest.raises(InputError, match="add_pooling_layer=True"):
        bare.pooled_output(features())


def test_query_key_and_value_start_apart(model):
    attention = model.encoder.blocks[0].attention.self_attention
    assert not np.array_equal(attention.query.kernel, attention.key.kernel)
    assert not np.array_equal(attention.key.kernel, attention.value.kernel)


def test_initial_weights_are_cut_at_two_sigma(model):
    for name, variable in checkpoint_variables(model).items():
        value = np.array(variable)
        if name.endswith(("gamma", "beta", "bias")):
            assert (value == name.endswith("gamma")).all(), name
        else:
            assert np.abs(value).max() <= 0.04
            assert 0.014 < value.std() < 0.02


class TestSeeds:
    """Dropout is a function of the seed that is handed in."""

    seed = np.array([5, 6], "int32")

    def test_same_seed_same_output(self, model):
        first = model(features(), training=True, seed=self.seed)
        again = model(features(), training=True, seed=self.seed)
        np.testing.assert_array_equal(
            first["sequence_output"], again["sequence_output"]
        )

    def test_other_seed_other_output(self, model):
        first = model(features(), training=True, seed=self.seed)
        other = model(features(), training=True, seed=self.seed + 1)
        assert not np.allclose(
            first["sequence_output"], other["sequence_output"]
        )

    def test_without_training_the_seed_is_idle(self, model):
        np.testing.assert_array_equal(
            model(features(), seed=self.seed)["sequence_output"],
            model(features())["sequence_output"],
        )

    def test_without_a_seed_each_call_draws_anew(self, model):
        first = model(features(), training=True)["sequence_output"]
        assert not np.allclose(
            first, model(features(), training=True)["sequence_output"]
        )

    def test_each_place_has_a_mask_of_its_own(self):
        """Two blocks with the same weights still drop different values."""
        config = BertConfig.from_dict(
            CONFIG.to_dict() | {"hidden_dropout_prob": 0.5}
        )
        masks = []
        original = keras.random.dropout

        def spy(inputs, rate, seed):
            masks.append(tuple(np.array(seed.next()).tolist()))
            return original(inputs, rate, seed=seed)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(keras.random, "dropout", spy)
            BertModel(config)(features(), training=True, seed=self.seed)
        places = 1 + 3 * config.num_hidden_layers
        assert len(masks) == len(set(masks)) == places


def test_rows_and_not_tables_become_half_precision():
    """A table may be 90 MB, and a text has some dozen rows of it."""
    model = BertModel(CONFIG, dtype="mixed_bfloat16")
    spec = {"input_ids": tf.TensorSpec([None, None], tf.int32)}
    graph = tf.function(model).get_concrete_function(spec).graph
    cast = {
        tuple(op.inputs[0].shape)
        for op in graph.get_operations()
        if op.type == "Cast" and op.outputs[0].dtype == tf.bfloat16
    }
    # The smallest, of token types, is multiplied and not looked up.
    assert {(H, H), (None, None, H), (CONFIG.type_vocab_size, H)} <= cast
    assert not {(V, H), (CONFIG.max_position_embeddings, H)} & cast


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision(model, policy):
    half = BertModel(CONFIG, dtype=policy)
    half.build()
    ours = checkpoint_variables(half)
    for name, variable in checkpoint_variables(model).items():
        ours[name].assign(variable)
        assert ours[name].dtype == "float32"
    output = half(features())["sequence_output"]
    assert output.dtype == keras.DTypePolicy(policy).compute_dtype
    expected = model(features())["sequence_output"]
    np.testing.assert_allclose(ops.cast(output, "float32"), expected, atol=0.1)


def trained_by_our_loop(strategy, gradient_checkpointing, **options):
    """The moments after a step of the scripts' loop, with dropout."""
    config = dataclasses.replace(CONFIG, num_hidden_layers=1)
    task = PretrainingTask(config, S, 2)
    keras.utils.set_random_seed(5)
    with strategy.scope():
        model = BertPretrainer(
            config, gradient_checkpointing=gradient_checkpointing
        )
        model.build()
        optimizer = AdamWeightDecay(0.01)
        optimizer.build(model.trainable_variables)
    step = TrainingStep(task, model, optimizer, strategy, **options)
    random = np.random.default_rng(2)
    batch = {
        feature.name: random.integers(0, 2, (4, *feature.shape)).astype(
            feature.dtype.replace("64", "32")
        )
        for feature in task.schema
    }
    data = toy_task.training_data(batch)
    batches = strategy.distribute_datasets_from_function(
        lambda context: data(4 // strategy.num_replicas_in_sync)
    )
    step.run(iter(batches), tf.constant(1))
    return {k: v.numpy() for k, v in optimizer.slot_variables().items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("devices", "options"),
    [
        (1, {"jit_compile": True}),
        (1, {"jit_compile_passes": True}),
        (2, {}),
        (2, {"jit_compile": True}),
        (2, {"jit_compile_passes": True}),
    ],
)
def test_our_loop_computes_blocks_twice_with_the_same_masks(
    monkeypatch, devices, options
):
    monkeypatch.setattr(kernels, "LEAST_SIZE", 1)
    plain, twice = (
        trained_by_our_loop(toy_task.mirrored(devices), again, **options)
        for again in (False, True)
    )
    assert max(np.abs(value).max() for value in plain.values()) > 1e-3
    for name, value in plain.items():
        np.testing.assert_allclose(twice[name], value, atol=1e-7, err_msg=name)


def test_the_pooled_output_alone_is_the_same(model):
    alone = model.pooled_output(features())
    whole = model(features())["pooled_output"]
    assert alone.shape == (B, H)
    np.testing.assert_allclose(alone, whole, atol=2e-6)


def test_a_call_has_no_other_shapes_than_it_says():
    """An argument that changes them would be unknown to a functional model."""
    arguments = set(inspect.signature(BertModel.call).parameters)
    assert arguments == {"self", "inputs", "training", "seed"}


def test_dropout_falls_on_the_pooled_output_alone_as_well():
    model = BertModel(CONFIG)
    seeds = [ops.convert_to_tensor([1, n], "int32") for n in (2, 2, 3)]
    first, same, other = (
        model.pooled_output(features(), training=True, seed=seed)
        for seed in seeds
    )
    np.testing.assert_array_equal(first, same)
    assert np.abs(first - other).max() > 1e-4


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "bfloat16"])
def test_the_pooled_output_alone_is_of_the_same_type_and_names(policy):
    """Whoever asks first makes the weights."""
    alone, whole = (BertModel(CONFIG, dtype=policy) for _ in range(2))
    pooled = alone.pooled_output(features())
    expected = whole(features())["pooled_output"]
    assert pooled.dtype == expected.dtype
    assert [(v.path, v.dtype) for v in alone.weights] == [
        (v.path, v.dtype) for v in whole.weights
    ]
    alone.set_weights(whole.get_weights())
    np.testing.assert_allclose(
        ops.cast(alone.pooled_output(features()), "float32"),
        ops.cast(expected, "float32"),
        atol=2e-6 if policy == "float32" else 2e-2,
    )


@pytest.mark.parametrize("positions", [None, [[1, 5], [0, 3], [0, 0]]])
def test_the_pooled_output_alone_of_a_row_of_examples(model, positions):
    inputs = features() | {"example_ids": np.array([[1] * 5 + [2] * 2] * B)}
    if positions is not None:
        inputs["cls_positions"] = np.array(positions)
    alone = model.pooled_output(inputs)
    assert alone.shape == ((B, 2, H) if positions else (B, H))
    whole = model(inputs)["pooled_output"]
    np.testing.assert_allclose(alone, whole, atol=2e-6)


class Pooled(keras.layers.Layer):
    """A layer of somebody's own, which says nothing of training."""

    def __init__(self, bert):
        super().__init__()
        self.bert = bert

    def call(self, inputs):
        return self.bert.pooled_output(inputs)


def test_the_pooled_output_trains_where_the_layer_around_it_does(model):
    """As a call of the model would."""
    layer = Pooled(model)
    first, second, plain = (
        layer(features(), training=training) for training in (True, True, False)
    )
    assert np.abs(first - second).max() > 1e-4
    np.testing.assert_array_equal(plain, layer(features()))


def test_the_pooled_output_alone_in_a_functional_model(model):
    symbols = {
        name: keras.Input((None,), dtype="int32", name=name)
        for name in features()
    }
    pooled = model.pooled_output(symbols)
    assert pooled.shape == (None, H)
    functional = keras.Model(symbols, pooled)
    np.testing.assert_allclose(
        functional(features()), model.pooled_output(features()), atol=2e-6
    )


def test_gradients_of_the_pooled_output_alone_are_the_same():
    """Of blocks that are computed twice, too; dropout is off."""
    config = dataclasses.replace(
        CONFIG, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    model = BertModel(config)

    def gradients(pooled):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(pooled(features(), training=True) ** 3)
        variables = [v.value for v in model.trainable_variables]
        return map(tf.convert_to_tensor, tape.gradient(loss, variables))

    model.build()
    expected = list(
        gradients(lambda *args, **kw: model(*args, **kw)["pooled_output"])
    )
    for model.gradient_checkpointing in (False, True):
        found = gradients(model.pooled_output)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, atol=2e-6)


def test_the_pooled_output_alone_is_as_particular(model):
    with pytest.raises(InputError, match="Rename it to 'input_mask'"):
        model.pooled_output({**features(), "attention_mask": np.ones((B, S))})
    given = {name: value.tolist() for name, value in features().items()}
    np.testing.assert_array_equal(
        model.pooled_output(given), model.pooled_output(features())
    )
