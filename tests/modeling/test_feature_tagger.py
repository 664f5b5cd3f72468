"""The tagger on a frozen BERT: numbers by hand, weights that are trained."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf
from bilstm_by_hand import tagger_logits

from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.kinds.vectors.hidden_states import CHOICES
from bert_tf.modeling.encoder import BertModel
from bert_tf.modeling.feature_tagger import BertFeatureTagger, FeatureHead
from bert_tf.modeling.heads import BertClassifier
from bert_tf.modeling.variables import checkpoint_variables

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

# Tests of heads have one layer more than `concat_last_four` uses.
LAYERS = 5
DEEPER = dataclasses.replace(CONFIG, num_hidden_layers=LAYERS)
WEIGHTED = {"sum_last_four": 4, "sum_all": LAYERS}


def fill(model) -> None:
    """Makes all weights different, including the biases."""
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


@pytest.fixture
def features() -> dict[str, np.ndarray]:
    random = np.random.default_rng(2)
    mask = np.arange(S) < np.reshape(LENGTHS, [-1, 1])
    return {
        "input_ids": random.integers(0, V, (B, S)) * mask,
        "input_mask": mask.astype(int),
        "segment_ids": random.integers(0, 2, (B, S)) * mask,
    }


@pytest.fixture
def states() -> list[np.ndarray]:
    random = np.random.default_rng(4)
    return [*random.normal(size=(LAYERS + 1, B, S, H)).astype("float32")]


def by_name(variables) -> dict[str, np.ndarray]:
    """Returns weights by their names in the head."""
    return {v.path.split("/", 1)[1]: np.array(v) for v in variables}


def combined_by_hand(layers, states, weights) -> np.ndarray:
    """Returns the vectors that the LSTMs read, [B, S, W]."""
    single = {"embeddings": 0, "second_to_last": LAYERS - 1, "last": LAYERS}
    if layers in single:
        return states[single[layers]]
    last = states[-4:] if "four" in layers else states[1:]
    if layers not in WEIGHTED:
        return np.concatenate(last, axis=-1)
    shares = np.exp(weights["layer_weights"])
    return np.tensordot(shares / shares.sum(), np.stack(last), axes=1)


def words(logits) -> np.ndarray:
    """Returns the scores of all tokens, without padding."""
    return np.concatenate(
        [np.array(row)[:n] for row, n in zip(logits, LENGTHS, strict=True)]
    )


@pytest.mark.parametrize("layers", CHOICES)
def test_scores_by_hand(layers, states, features):
    head = make_head(layers)
    if layers in WEIGHTED:  # The initial combination is the mean.
        mean = np.mean(states[-WEIGHTED[layers] :], axis=0)
        found = head.combine(states)
        np.testing.assert_allclose(found, mean, rtol=1e-5, atol=1e-6)
    fill(head)
    weights = by_name(head.weights)
    x = combined_by_hand(layers, states, weights)
    expected = np.concatenate(tagger_logits(x, LENGTHS, weights))
    logits = head(states, features["input_mask"])
    assert logits.shape == (B, S, C)
    np.testing.assert_allclose(words(logits), expected, rtol=1e-4, atol=1e-5)


def test_the_head_reads_the_states_of_bert(features):
    model = make("sum_all")
    encoder = BertModel(CONFIG, output_hidden_states=True)
    encoder.build()
    encoder.set_weights(model.bert.get_weights())
    states = encoder(features)["hidden_states"]
    expected = model.head(states, features["input_mask"])
    found = words(model(features)["logits"])
    np.testing.assert_allclose(found, words(expected), atol=1e-5)


def test_padding_changes_nothing_elsewhere(features):
    model = make("sum_all")
    expected = words(model(features)["logits"])
    features["input_ids"][features["input_mask"] == 0] = V - 1
    longer = {k: np.pad(v, [(0, 0), (0, 3)]) for k, v in features.items()}
    np.testing.assert_allclose(
        words(model(longer)["logits"]), expected, atol=1e-5
    )
    alone = {k: v[[1], : LENGTHS[1]] for k, v in features.items()}
    found = model(alone)["logits"][0]
    np.testing.assert_allclose(found, expected[S : S + 3], atol=1e-5)
    # Mask and segments are optional.
    ids = features["input_ids"]
    given = {"input_mask": np.ones_like(ids), "segment_ids": 0 * ids}
    np.testing.assert_array_equal(
        model({"input_ids": ids})["logits"],
        model({"input_ids": ids} | given)["logits"],
    )


@pytest.mark.parametrize(
    ("layers", "width"), [("last", H), ("concat_last_four", 4 * H)]
)
def test_names_and_shapes_of_the_weights(layers, width):
    weights = by_name(make_head(layers).weights)
    expected = {"output_weights": (C, 2 * L), "output_bias": (C,)}
    for scope, size in (("bilstm_0", width), ("bilstm_1", 2 * L)):
        for direction in ("forward", "backward"):
            cell = f"{scope}/{direction}_lstm/lstm_cell"
            expected[f"{cell}/kernel"] = (size, 4 * L)
            expected[f"{cell}/recurrent_kernel"] = (L, 4 * L)
            expected[f"{cell}/bias"] = (4 * L,)
    assert {name: w.shape for name, w in weights.items()} == expected
    kernels = [w for name, w in weights.items() if "recurrent" in name]
    assert len({kernel.tobytes() for kernel in kernels}) == 4


def test_names_contain_the_choice_of_layers():
    """A checkpoint of one choice cannot be loaded for another."""
    names = checkpoint_variables(make("second_to_last"))
    scopes = {name.split("/")[0] for name in names}
    assert scopes == {"bert", "features_second_to_last"}


def test_saved_in_a_functional_model_in_half_precision(features, tmp_path):
    inputs = {
        name: keras.Input((None,), dtype="int32", name=name)
        for name in features
    }
    model = make("sum_all", dropout=0.25, dtype="mixed_bfloat16", name="mine")
    outputs = model(inputs)
    assert outputs["logits"].shape == (None, None, C)
    assert outputs["logits"].dtype == "float32"
    outer = keras.Model(inputs, outputs)
    logits = outer(features)["logits"]
    single = make("sum_all")(features)["logits"]
    np.testing.assert_allclose(words(logits), words(single), atol=0.3)
    outer.save(tmp_path / "outer.keras")
    loaded = keras.models.load_model(tmp_path / "outer.keras")
    np.testing.assert_array_equal(loaded(features)["logits"], logits)
    inner = loaded.get_layer("mine")
    assert inner.get_config() == model.get_config()
    assert not inner.bert.trainable
    head = FeatureHead.from_config(model.head.get_config())
    assert head.get_config() == model.head.get_config()


def test_only_the_head_is_trained(features):
    model = make("sum_all", dropout=0.0)
    new = {v.path for v in model.head.weights}
    inside = [v.value for v in model.bert.weights]
    with tf.GradientTape() as tape:
        tape.watch(inside)
        loss = tf.reduce_mean(model(features, training=True)["logits"] ** 2)
    assert tape.gradient(loss, inside) == [None] * len(inside)
    before = [np.array(w) for w in model.weights]
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    adam = keras.optimizers.Adam(0.03)
    model.compile(adam, {"logits": loss}, run_eagerly=True)
    labels = {"logits": np.random.default_rng(6).integers(0, C, (B, S))}
    losses = model.fit(features, labels, B, epochs=2, verbose=0)
    assert losses.history["loss"][-1] < losses.history["loss"][0]
    moved = {
        weight.path
        for weight, old in zip(model.weights, before, strict=True)
        if not np.array_equal(weight, old)
    }
    assert moved == new


def test_dropout_of_the_head_only(features):
    assert CONFIG.hidden_dropout_prob > 0
    model = make(dropout=0.0)
    expected = np.array(model(features)["logits"])
    trained = model(features, training=True)["logits"]
    np.testing.assert_array_equal(trained, expected)
    model = make(dropout=0.5)
    first, again, other = (
        np.array(model(features, training=True, seed=seed)["logits"])
        for seed in (SEED, SEED, None)
    )
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, other)
    assert not np.allclose(first, expected)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": "first"}, "must be one of embeddings, .* got 'first'"),
        ({"lstm_size": 7.5}, "lstm_size must be .* integer; got 7.5"),
        ({"num_labels": True}, "num_labels must be .* integer; got True"),
        ({"num_labels": 10**12}, "num_labels must be at most 10,000,000; got"),
        ({"lstm_size": 10**12}, "lstm_size must be at most 10,000,000; got"),
        ({"dropout": 1.5}, r"dropout must be at least 0 .* got 1\.5"),
        ({"dropout": None}, "dropout must be at least 0 .* got None"),
        ({"layers": ["last"]}, r"must be one of .* got \['last'\]"),
    ],
)
def test_invalid_arguments(changes, message):
    arguments = {"num_labels": C, "layers": "last", "lstm_size": L, **changes}
    with pytest.raises(InputError, match=message):
        BertFeatureTagger(CONFIG, **arguments)


@pytest.mark.parametrize("labels", [["x", "y"], ["x", "y", "z"]])
def test_the_head_of_a_classifier_is_left_out(tmp_path, labels):
    """Of a TF1 checkpoint that does not say what its head is."""
    classifier = BertClassifier(CONFIG, num_labels=2)
    classifier.save_pretrained(tmp_path / "start", format="tf1")
    (tmp_path / "start" / "bert_tf.json").unlink()
    model = BertFeatureTagger.from_pretrained(
        tmp_path / "start", labels=labels, layers="last"
    )
    assert model.get_config()["num_labels"] == len(labels)
    assert model.checkpoint.labels == tuple(labels)
    name = "bert/embeddings/word_embeddings"
    ours, theirs = (checkpoint_variables(x)[name] for x in (model, classifier))
    np.testing.assert_array_equal(ours, theirs)
