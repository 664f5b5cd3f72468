"""A tagger on a frozen BERT: numbers by hand, what learns and what does not."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from bilstm_by_hand import tagger_logits

from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.feature_tagger import (
    CHOICES,
    BertFeatureTagger,
    FeatureHead,
    choose,
)
from bert_tf.modeling import BertModel, checkpoint_variables

# Odd sizes, no two alike: swapped axes cannot pass.
B, S, V, H, L, C = 3, 5, 37, 10, 4, 6
CONFIG = BertConfig(
    vocab_size=V,
    hidden_size=H,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=17,
    max_position_embeddings=11,
    type_vocab_size=2,
)
LENGTHS = [S, 3, 1]
SEED = np.array([5, 6], "int32")

# What is tried of heads alone: a layer more than four.
LAYERS = 5
DEEPER = BertConfig.from_dict(CONFIG.to_dict() | {"num_hidden_layers": LAYERS})
WIDTHS = dict.fromkeys(CHOICES, H) | {"concat_last_four": 4 * H}
WEIGHTED = {"sum_last_four": 4, "sum_all": LAYERS}


def fill(model) -> None:
    """Makes all weights different, biases too."""
    random = np.random.default_rng(3)
    for weight in model.weights:
        weight.assign(random.normal(0, 0.4, weight.shape))


def make(layers="last", **options) -> BertFeatureTagger:
    model = BertFeatureTagger(CONFIG, C, layers, **{"lstm_size": L} | options)
    model.build()
    fill(model)
    return model


def make_head(layers) -> FeatureHead:
    head = FeatureHead(DEEPER, C, layers, L, dropout=0.0, name="head")
    head.build()
    return head


def features() -> dict[str, np.ndarray]:
    random = np.random.default_rng(2)
    mask = np.arange(S) < np.reshape(LENGTHS, [-1, 1])
    return {
        "input_ids": random.integers(0, V, (B, S)) * mask,
        "input_mask": mask.astype(int),
        "segment_ids": random.integers(0, 2, (B, S)) * mask,
    }


def hidden_states() -> list[np.ndarray]:
    random = np.random.default_rng(4)
    return [
        random.normal(size=(B, S, H)).astype("float32")
        for _ in range(LAYERS + 1)
    ]


def by_name(variables) -> dict[str, np.ndarray]:
    """Weights by their names in what they are a part of."""
    return {v.path.split("/", 1)[1]: np.array(v) for v in variables}


def combined_by_hand(layers, states, weights) -> np.ndarray:
    """The vectors that go into the LSTMs, [B, S, W]."""
    single = {"embeddings": 0, "second_to_last": LAYERS - 1, "last": LAYERS}
    if layers in single:
        return states[single[layers]]
    last = states[-4:] if "four" in layers else states[1:]
    if layers not in WEIGHTED:
        return np.concatenate(last, axis=-1)
    shares = np.exp(weights["layer_weights"])
    return np.tensordot(shares / shares.sum(), np.stack(last), axes=1)


def words(logits) -> np.ndarray:
    """Those of all places that are no padding."""
    return np.array(logits)[features()["input_mask"] == 1]


# Numbers.


@pytest.mark.parametrize("layers", CHOICES)
def test_scores_are_those_by_hand(layers):
    head, states = make_head(layers), hidden_states()
    fill(head)
    weights = by_name(head.weights)
    x = combined_by_hand(layers, states, weights)
    expected = tagger_logits(x, LENGTHS, weights)
    logits = head(states, features()["input_mask"])
    assert logits.shape == (B, S, C)
    assert logits.dtype == "float32"
    np.testing.assert_allclose(
        words(logits), np.concatenate(expected), rtol=1e-4, atol=1e-5
    )


def test_the_states_are_those_of_bert():
    """All that lies between: a sum of the blocks, without the embeddings."""
    model = make("sum_all")
    encoder = BertModel(CONFIG, output_hidden_states=True)
    encoder.build()
    encoder.set_weights(model.bert.get_weights())
    states = encoder(features())["hidden_states"]
    assert len(states) == CONFIG.num_hidden_layers + 1
    expected = model.head(states, features()["input_mask"])
    np.testing.assert_allclose(
        words(model(features())["logits"]), words(expected), atol=1e-5
    )


@pytest.mark.parametrize("layers", WEIGHTED)
def test_a_weighted_sum_starts_as_the_mean(layers):
    states = hidden_states()
    expected = np.mean(states[-WEIGHTED[layers] :], axis=0)
    found = make_head(layers).combine(states)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_padding_changes_nothing_elsewhere():
    model, inputs = make("sum_all"), features()
    expected = words(model(inputs)["logits"])
    inputs["input_ids"][inputs["input_mask"] == 0] = V - 1
    longer = {k: np.pad(v, [(0, 0), (0, 3)]) for k, v in inputs.items()}
    logits = np.array(model(longer)["logits"])[:, :S]
    np.testing.assert_allclose(words(logits), expected, atol=1e-5)
    for row, length in enumerate(LENGTHS):
        alone = {k: v[[row], :length] for k, v in inputs.items()}
        found = model(alone)["logits"][0]
        np.testing.assert_allclose(found, logits[row, :length], atol=1e-5)


def test_mask_and_segments_need_not_be_given():
    model, ids = make(), features()["input_ids"]
    more = {"input_mask": np.ones_like(ids), "segment_ids": np.zeros_like(ids)}
    np.testing.assert_array_equal(
        model({"input_ids": ids})["logits"],
        model({"input_ids": ids, **more})["logits"],
    )


# Names, shapes, dtypes.


@pytest.mark.parametrize("layers", CHOICES)
def test_names_and_shapes_of_the_weights(layers):
    weights = by_name(make_head(layers).weights)
    expected = {"output_weights": (C, 2 * L), "output_bias": (C,)}
    if layers in WEIGHTED:
        expected["layer_weights"] = (WEIGHTED[layers],)
    for number, width in enumerate((WIDTHS[layers], 2 * L)):
        for way in ("forward", "backward"):
            scope = f"bilstm_{number}/{way}_lstm/lstm_cell"
            expected |= {
                f"{scope}/kernel": (width, 4 * L),
                f"{scope}/recurrent_kernel": (L, 4 * L),
                f"{scope}/bias": (4 * L,),
            }
    assert {name: w.shape for name, w in weights.items()} == expected


def test_the_head_stands_beside_the_encoder():
    """Under a name of its choice: no other choice takes its weights."""
    encoder, model = BertModel(CONFIG), make("second_to_last")
    encoder.build()
    head = by_name(model.head.weights).keys()
    assert {n.split("/")[0] for n in head} == {"features_second_to_last"}
    names = checkpoint_variables(model).keys()
    assert names == checkpoint_variables(encoder).keys() | head


def test_no_two_lstms_start_alike():
    kernels = {
        weight.tobytes()
        for name, weight in by_name(make_head("last").weights).items()
        if name.endswith("recurrent_kernel")
    }
    assert len(kernels) == 4


def test_scores_are_float32_in_half_precision_too():
    logits = make("sum_all", dtype="mixed_bfloat16")(features())["logits"]
    assert logits.dtype == "float32"
    single = make("sum_all")(features())["logits"]
    np.testing.assert_allclose(words(logits), words(single), atol=0.3)


def test_part_of_a_functional_model(tmp_path):
    inputs = {
        name: keras.Input((None,), dtype="int32", name=name)
        for name in features()
    }
    outputs = make("sum_all", dtype="mixed_bfloat16")(inputs)
    assert outputs["logits"].shape == (None, None, C)
    assert outputs["logits"].dtype == "float32"
    outer = keras.Model(inputs, outputs)
    logits = outer(features())["logits"]
    assert logits.shape == (B, S, C)
    outer.save(tmp_path / "outer.keras")
    loaded = keras.models.load_model(tmp_path / "outer.keras")
    np.testing.assert_array_equal(loaded(features())["logits"], logits)


# What learns.


def new_paths(model) -> set[str]:
    return {v.path for v in model.head.weights}


def test_gradients_are_of_the_new_weights_alone():
    model = make("sum_all")
    inside = [v.value for v in model.bert.weights]
    new = [v.value for v in model.trainable_variables]
    with tf.GradientTape() as tape:
        tape.watch(inside)
        loss = tf.reduce_mean(model(features(), training=True)["logits"] ** 2)
    into_encoder, gradients = tape.gradient(loss, [inside, new])
    assert into_encoder == [None] * len(inside)
    assert {v.path for v in model.trainable_variables} == new_paths(model)
    for variable, gradient in zip(
        model.trainable_variables, gradients, strict=True
    ):
        assert np.abs(gradient).max() > 0, variable.path


def test_fit_leaves_the_encoder_as_it_was():
    model = make("sum_all", dropout=0.0)
    before = [np.array(w) for w in model.weights]
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    adam = keras.optimizers.Adam(0.03)
    model.compile(adam, {"logits": loss}, run_eagerly=True)
    labels = {"logits": np.random.default_rng(6).integers(0, C, (B, S))}
    losses = model.fit(features(), labels, B, epochs=2, verbose=0)
    assert losses.history["loss"][-1] < losses.history["loss"][0]
    moved = {
        weight.path
        for weight, old in zip(model.weights, before, strict=True)
        if not np.array_equal(weight, old)
    }
    assert moved == new_paths(model)


def test_the_encoder_has_no_dropout():
    """Its configuration has some; training is as use without the head's."""
    assert CONFIG.hidden_dropout_prob > 0
    model = make(dropout=0.0)
    trained = model(features(), training=True)["logits"]
    np.testing.assert_array_equal(trained, model(features())["logits"])


def test_dropout_is_a_function_of_the_seed():
    """Without one it is there all the same."""
    model = make(dropout=0.5)
    first, again, other = (
        np.array(model(features(), training=True, seed=seed)["logits"])
        for seed in (SEED, SEED, None)
    )
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, other)
    assert not np.allclose(first, model(features())["logits"])


# Saving, errors.


def test_a_saved_model_is_the_same(tmp_path):
    model = make("sum_all", dropout=0.25, name="mine")
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded) is BertFeatureTagger
    assert loaded.get_config() == model.get_config()
    assert {v.path for v in loaded.trainable_variables} == new_paths(model)
    np.testing.assert_array_equal(
        loaded(features())["logits"], model(features())["logits"]
    )


def test_the_head_can_be_made_again_by_itself():
    head = make("sum_all").head
    again = type(head).from_config(head.get_config())
    assert again.get_config() == head.get_config()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": "first"}, "must be one of embeddings, .* got 'first'"),
        ({"lstm_size": 0}, "lstm_size must be .* integer; got 0"),
        ({"lstm_size": 7.5}, "lstm_size must be .* integer; got 7.5"),
        (
            {"num_labels": True},
            "num_labels must be .* integer; got True",
        ),
        ({"num_labels": "2"}, "num_labels must be .* integer; got '2'"),
    ],
)
def test_arguments_that_make_no_sense(changes, message):
    arguments = {"num_labels": C, "layers": "last", "lstm_size": L, **changes}
    with pytest.raises(InputError, match=message):
        BertFeatureTagger(CONFIG, **arguments)


@pytest.mark.parametrize(
    ("num_layers", "possible"),
    [
        (1, {"embeddings", "last", "sum_all"}),
        (3, {"embeddings", "second_to_last", "last", "sum_all"}),
        (4, {*CHOICES}),
    ],
)
def test_a_model_may_have_too_few_layers(num_layers, possible):
    config = BertConfig.from_dict(
        CONFIG.to_dict() | {"num_hidden_layers": num_layers}
    )
    for layers in CHOICES:
        if layers in possible:
            assert choose(layers, config) == CHOICES[layers]
            continue
        message = f"for a model with {num_layers} layers; got .{layers}."
        with pytest.raises(InputError, match=message):
            BertFeatureTagger(config, C, layers, lstm_size=L)


def test_too_long_a_sequence_is_an_error():
    ids = np.zeros((2, CONFIG.max_position_embeddings + 1), int)
    with pytest.raises(InputError, match=r"at most 11 .*got 12"):
        make()({"input_ids": ids})
