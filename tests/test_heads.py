"""The models with a head: numbers, names, dropout, saving, training."""

import keras
import numpy as np
import pytest
from keras import ops

from bert_tf import heads
from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.heads import (
    BertClassifier,
    BertMultipleChoice,
    BertPretrainer,
    BertSpanLabeler,
    BertTokenClassifier,
)
from bert_tf.modeling import BertModel, checkpoint_variables

# Odd sizes, no two alike: swapped axes cannot pass.
B, C, S, P, V, H = 5, 4, 11, 3, 37, 12
LABELS = 7
CONFIG = BertConfig(
    vocab_size=V,
    hidden_size=H,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=17,
    max_position_embeddings=13,
    type_vocab_size=2,
)
WITHOUT_DROPOUT = BertConfig.from_dict(
    CONFIG.to_dict()
    | {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
)
SEED = np.array([5, 6], "int32")

ARGUMENTS = {
    BertPretrainer: {},
    BertClassifier: {"num_labels": LABELS},
    BertTokenClassifier: {"num_labels": LABELS},
    BertMultipleChoice: {},
    BertSpanLabeler: {},
}
MODELS = list(ARGUMENTS)
WITH_OWN_DROPOUT = [BertClassifier, BertTokenClassifier, BertMultipleChoice]
HEADS = {
    BertPretrainer: {
        "cls/predictions/transform/dense/kernel": (H, H),
        "cls/predictions/transform/dense/bias": (H,),
        "cls/predictions/transform/LayerNorm/gamma": (H,),
        "cls/predictions/transform/LayerNorm/beta": (H,),
        "cls/predictions/output_bias": (V,),
        "cls/seq_relationship/output_weights": (2, H),
        "cls/seq_relationship/output_bias": (2,),
    },
    BertClassifier: {"output_weights": (LABELS, H), "output_bias": (LABELS,)},
    BertTokenClassifier: {
        "output_weights": (LABELS, H),
        "output_bias": (LABELS,),
    },
    BertMultipleChoice: {"output_weights": (1, H), "output_bias": (1,)},
    BertSpanLabeler: {
        "cls/squad/output_weights": (2, H),
        "cls/squad/output_bias": (2,),
    },
}
OUTPUTS = {
    BertPretrainer: {
        "masked_lm_logits": (B, P, V),
        "next_sentence_logits": (B, 2),
    },
    BertClassifier: {"logits": (B, LABELS)},
    BertTokenClassifier: {"logits": (B, S, LABELS)},
    BertMultipleChoice: {"logits": (B, C)},
    BertSpanLabeler: {"start_logits": (B, S), "end_logits": (B, S)},
}


def make(model_class, config=CONFIG, **arguments) -> keras.Model:
    """A model whose weights, biases too, are all different."""
    model = model_class(config, **(ARGUMENTS[model_class] | arguments))
    model.build()
    random = np.random.default_rng(3)
    for weight in model.weights:
        weight.assign(random.normal(0, 0.2, weight.shape))
    return model


def features(model_class) -> dict[str, np.ndarray]:
    random = np.random.default_rng(2)
    shape = (B, C, S) if model_class is BertMultipleChoice else (B, S)
    result = {
        "input_ids": random.integers(0, V, shape),
        "input_mask": np.broadcast_to(np.arange(S) < S - 2, shape).astype(int),
        "segment_ids": random.integers(0, 2, shape),
    }
    if model_class is BertPretrainer:
        result["masked_lm_positions"] = random.integers(0, S, (B, P))
    return result


def labels(model_class) -> dict[str, np.ndarray]:
    """A label below the last axis of each of the outputs."""
    random = np.random.default_rng(6)
    return {
        name: random.integers(0, shape[-1], shape[:-1])
        for name, shape in OUTPUTS[model_class].items()
    }


def arrays(outputs) -> dict[str, np.ndarray]:
    return {k: ops.convert_to_numpy(v) for k, v in outputs.items()}


def weights(model, name) -> np.ndarray:
    return ops.convert_to_numpy(checkpoint_variables(model)[name])


# Numbers.


def test_log_probabilities_are_the_originals(google_oracle):
    config, expected = google_oracle
    model = BertPretrainer(config)
    model.build()
    for name, variable in checkpoint_variables(model).items():
        variable.assign(expected[f"weights/{name}"])
    names = [*features(BertPretrainer)]
    outputs = model({name: expected[f"expected/{name}"] for name in names})
    for name in ("masked_lm", "next_sentence"):
        ours = ops.log_softmax(outputs[f"{name}_logits"])
        theirs = expected[f"expected/{name}_log_probs"]
        np.testing.assert_allclose(
            ops.reshape(ours, theirs.shape), theirs, atol=2e-5
        )


def test_input_and_output_share_the_table():
    model = make(BertPretrainer)
    inputs = features(BertPretrainer)
    before = np.array(model(inputs)["masked_lm_logits"])
    unused = np.setdiff1d(np.arange(V), inputs["input_ids"])[0]
    table = model.bert.embeddings.word_embeddings
    moved = np.array(table)
    # Not by one number: the hidden states have the mean 0.
    moved[unused] += np.arange(H)
    table.assign(moved)
    after = np.array(model(inputs)["masked_lm_logits"])
    changed = np.abs(after - before).max((0, 1)) > 1e-6
    assert np.flatnonzero(changed).tolist() == [unused]


def test_without_positions_every_position_is_scored():
    model, inputs = make(BertPretrainer), features(BertPretrainer)
    some = np.array(model(inputs)["masked_lm_logits"])
    positions = inputs.pop("masked_lm_positions")
    every = np.array(model(inputs)["masked_lm_logits"])
    assert every.shape == (B, S, V)
    expected = every[np.arange(B)[:, None], positions]
    np.testing.assert_allclose(some, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("model_class", "vectors"),
    [
        (BertClassifier, "pooled_output"),
        (BertTokenClassifier, "sequence_output"),
    ],
)
def test_label_scores_are_the_formula(model_class, vectors):
    model, inputs = make(model_class), features(model_class)
    x = np.array(model.bert(inputs)[vectors])
    matrix = weights(model, "output_weights")
    expected = x @ matrix.T + weights(model, "output_bias")
    np.testing.assert_allclose(model(inputs)["logits"], expected, atol=1e-5)


def test_start_and_end_are_the_two_rows():
    model, inputs = make(BertSpanLabeler), features(BertSpanLabeler)
    x = np.array(model.bert(inputs)["sequence_output"])
    matrix = weights(model, "cls/squad/output_weights")
    bias = weights(model, "cls/squad/output_bias")
    for row, name in enumerate(("start_logits", "end_logits")):
        expected = x @ matrix[row] + bias[row]
        np.testing.assert_allclose(model(inputs)[name], expected, atol=1e-5)


def test_each_choice_is_scored_on_its_own():
    model, inputs = make(BertMultipleChoice), features(BertMultipleChoice)
    logits = np.array(model(inputs)["logits"])
    for choice in range(C):
        alone = {k: v[:, choice : choice + 1] for k, v in inputs.items()}
        np.testing.assert_allclose(
            logits[:, choice : choice + 1], model(alone)["logits"], atol=1e-5
        )


def test_a_choice_has_positions_like_any_other_text():
    model = make(BertMultipleChoice)
    inputs = features(BertMultipleChoice)
    numbers = np.broadcast_to(np.arange(S)[::-1], inputs["input_ids"].shape)
    extra = {"position_ids": numbers, "example_ids": numbers // 4}
    rows = {k: v[1] for k, v in (inputs | extra).items()}
    pooled = model.bert(rows)["pooled_output"]
    np.testing.assert_allclose(
        model(inputs | extra)["logits"][1],
        heads.score(model, pooled)[:, 0],
        atol=1e-6,
    )
    with pytest.raises(InputError, match="Leave out cls_positions"):
        model(inputs | {"cls_positions": numbers[..., :1]})


def test_a_choice_needs_no_mask_and_no_segments():
    model, inputs = make(BertMultipleChoice), features(BertMultipleChoice)
    ids = inputs["input_ids"]
    np.testing.assert_array_equal(
        model({"input_ids": ids, "label_ids": np.zeros(B)})["logits"],
        model(
            {
                "input_ids": ids,
                "input_mask": np.ones_like(ids),
                "segment_ids": np.zeros_like(ids),
            }
        )["logits"],
    )


# Names, shapes, dtypes.


@pytest.mark.parametrize("model_class", MODELS)
def test_variables_are_named_as_in_a_tf1_checkpoint(model_class):
    found = {
        name: tuple(variable.shape)
        for name, variable in checkpoint_variables(make(model_class)).items()
    }
    encoder = {name for name in found if name.startswith("bert/")}
    assert len(encoder) == 5 + 16 * CONFIG.num_hidden_layers + 2
    assert {n: s for n, s in found.items() if n not in encoder} == HEADS[
        model_class
    ]


@pytest.mark.parametrize("model_class", MODELS)
def test_the_model_is_built_when_it_is_first_called(model_class):
    model = model_class(CONFIG.to_dict(), **ARGUMENTS[model_class])
    assert not model.built
    outputs = model(features(model_class))
    assert {k: v.shape for k, v in outputs.items()} == OUTPUTS[model_class]
    assert len(model.weights) == len(make(model_class).weights)


@pytest.mark.parametrize(
    "policy", ["float32", "bfloat16", "mixed_bfloat16", "mixed_float16"]
)
@pytest.mark.parametrize("model_class", MODELS)
def test_logits_are_float32_under_every_policy(model_class, policy):
    model = make(model_class, dtype=policy)
    single = make(model_class)(features(model_class))
    for name, value in model(features(model_class)).items():
        assert keras.backend.standardize_dtype(value.dtype) == "float32"
        np.testing.assert_allclose(value, single[name], atol=0.3, err_msg=name)


@pytest.mark.parametrize("model_class", MODELS)
def test_part_of_a_functional_model(model_class, tmp_path):
    """Announced shapes and dtypes are the real ones, sizes known or not."""
    inputs = {
        name: keras.Input((None,) * (value.ndim - 1), dtype="int32", name=name)
        for name, value in features(model_class).items()
    }
    inner = make(model_class, dtype="mixed_bfloat16")
    outputs = inner(inputs)
    expected = OUTPUTS[model_class]
    assert outputs.keys() == expected.keys()
    for name, spec in outputs.items():
        assert len(spec.shape) == len(expected[name])
        assert spec.dtype == "float32"
    outer = keras.Model(inputs, outputs)
    real = arrays(outer(features(model_class)))
    assert {name: value.shape for name, value in real.items()} == expected
    outer.save(tmp_path / "outer.keras")
    loaded = keras.models.load_model(tmp_path / "outer.keras")
    for name, value in loaded(features(model_class)).items():
        np.testing.assert_array_equal(value, real[name])


@pytest.mark.parametrize("model_class", MODELS)
def test_compute_output_shape(model_class):
    shapes = {k: v.shape for k, v in features(model_class).items()}
    model = model_class(CONFIG, **ARGUMENTS[model_class])
    assert model.compute_output_shape(shapes) == OUTPUTS[model_class]


@pytest.mark.parametrize("model_class", MODELS)
def test_attentions_beside_the_logits(model_class):
    """They sum to 1, have the announced shapes, and change no logit."""
    inputs = features(model_class)
    model = make(model_class, output_attentions=True, dtype="mixed_bfloat16")
    outputs = dict(model(inputs))
    shapes = model.compute_output_shape({k: v.shape for k, v in inputs.items()})
    symbols = model({k: keras.KerasTensor(v.shape) for k, v in inputs.items()})
    attentions = outputs.pop("attentions")
    assert len(attentions) == CONFIG.num_hidden_layers
    for value, shape, symbol in zip(
        attentions, shapes["attentions"], symbols["attentions"], strict=True
    ):
        assert value.shape == shape == symbol.shape
        assert value.dtype == symbol.dtype == "bfloat16"
        sums = ops.sum(ops.cast(value, "float32"), axis=-1)
        np.testing.assert_allclose(sums, 1.0, atol=0.02)
    expected = make(model_class, dtype="mixed_bfloat16")(inputs)
    for name, value in arrays(expected).items():
        np.testing.assert_allclose(outputs[name], value, atol=0.1)
    again = model_class.from_config(model.get_config())
    assert again.bert.output_attentions
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", dict.fromkeys(expected, loss), run_eagerly=True)
    model.fit(inputs, labels(model_class), verbose=0)
    assert set(model.predict(inputs, verbose=0)) == {*expected, "attentions"}


def test_compute_output_shape_without_positions():
    shape = BertPretrainer(CONFIG).compute_output_shape({"input_ids": (B, S)})
    assert shape["masked_lm_logits"] == (B, S, V)


@pytest.mark.parametrize("model_class", WITH_OWN_DROPOUT)
def test_output_weights_start_as_in_the_original(model_class):
    """sd 0.02, cut at two, whatever the config's range."""
    config = BertConfig(
        vocab_size=V, num_hidden_layers=1, initializer_range=0.5
    )
    model = model_class(config, **ARGUMENTS[model_class])
    model.build()
    matrix = weights(model, "output_weights")
    assert np.abs(matrix).max() <= 0.04
    assert 0.016 < matrix.std() < 0.019
    assert not weights(model, "output_bias").any()


@pytest.mark.parametrize("model_class", MODELS)
def test_too_long_a_sequence_is_an_error(model_class):
    model = model_class(CONFIG, **ARGUMENTS[model_class])
    axes = features(model_class)["input_ids"].ndim
    shape = (*(2,) * (axes - 1), CONFIG.max_position_embeddings + 1)
    with pytest.raises(InputError, match=r"at most 13 .*got 14"):
        model({"input_ids": np.zeros(shape, int)})
    with pytest.raises(InputError, match=r"at most 13 .*got 14"):
        model.compute_output_shape({"input_ids": shape})


@pytest.mark.parametrize("model_class", MODELS)
def test_ids_stay_exact_in_half_precision(model_class):
    """A keras.Input is of floats unless told, and bfloat16 has 8 bits."""
    config = BertConfig.from_dict(CONFIG.to_dict() | {"vocab_size": 1009})
    inner = make(model_class, config, dtype="mixed_bfloat16")
    inputs = features(model_class)
    ids = np.full_like(inputs["input_ids"], 1003)
    symbol = keras.Input((None,) * (ids.ndim - 1), name="input_ids")
    outer = keras.Model({"input_ids": symbol}, inner({"input_ids": symbol}))
    for name, value in outer({"input_ids": ids}).items():
        expected = inner({"input_ids": ids})[name]
        np.testing.assert_array_equal(value, expected)


# Dropout.


@pytest.mark.parametrize("model_class", MODELS)
def test_each_place_draws_a_mask_of_its_own(model_class, monkeypatch):
    model, masks = make(model_class), []
    original = keras.random.dropout

    def spy(inputs, rate, seed):
        masks.append(tuple(np.array(seed.next()).tolist()))
        return original(inputs, rate, seed=seed)

    monkeypatch.setattr(keras.random, "dropout", spy)
    model(features(model_class), training=True, seed=SEED)
    places = 1 + 3 * CONFIG.num_hidden_layers
    places += model_class in WITH_OWN_DROPOUT
    assert len(masks) == len(set(masks)) == places


@pytest.mark.parametrize("model_class", MODELS)
def test_dropout_is_a_function_of_the_seed(model_class):
    model, inputs = make(model_class), features(model_class)
    first, again, other = (
        arrays(model(inputs, training=True, seed=seed))
        for seed in (SEED, SEED, SEED + 1)
    )
    for name, value in first.items():
        np.testing.assert_array_equal(value, again[name])
        assert not np.allclose(value, other[name])


@pytest.mark.parametrize("model_class", WITH_OWN_DROPOUT)
def test_the_heads_own_dropout(model_class):
    """With none below it, it alone makes training differ from use."""
    inputs = features(model_class)
    assert model_class(CONFIG, **ARGUMENTS[model_class]).dropout.rate == 0.1
    for rate, differs in ((0.5, True), (0.0, False)):
        model = make(model_class, WITHOUT_DROPOUT, dropout=rate)
        used = model(inputs)["logits"]
        for seed in (SEED, None):
            trained = model(inputs, training=True, seed=seed)["logits"]
            assert np.allclose(used, trained) is not differs


# Saving, training, errors.


@pytest.mark.parametrize("model_class", MODELS)
def test_saved_model_gives_the_same_numbers(model_class, tmp_path):
    model = make(model_class, name="mine")
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded) is model_class
    assert loaded.get_config() == model.get_config()
    expected = model(features(model_class))
    for name, value in loaded(features(model_class)).items():
        np.testing.assert_array_equal(value, expected[name])


@pytest.mark.parametrize("model_class", MODELS)
def test_frozen_layers_are_saved_as_such(model_class, tmp_path):
    model = make(model_class, gradient_checkpointing=True)
    model.bert.freeze(1)
    names = [v.path for v in model.trainable_variables]
    assert not any("embeddings" in n or "layer_0" in n for n in names)
    assert any("layer_1" in name for name in names)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert [v.path for v in loaded.trainable_variables] == names
    assert loaded.bert.gradient_checkpointing


def losses_of_fit(model_class, optimizer, **arguments):
    """Fits one batch, step by step: a graph takes seconds to be made.

    Returns:
      The model, its weights before, and the loss before each update.
    """
    if model_class in WITH_OWN_DROPOUT:
        arguments["dropout"] = 0.0
    model = make(model_class, WITHOUT_DROPOUT, **arguments)
    before = [np.array(w) for w in model.weights]
    targets = labels(model_class)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, dict.fromkeys(targets, loss), run_eagerly=True)
    history = model.fit(features(model_class), targets, B, 6, verbose=0)
    return model, before, history.history["loss"]


@pytest.mark.parametrize("model_class", MODELS)
@pytest.mark.filterwarnings("error:Gradients do not exist")
def test_fit_trains_every_variable(model_class):
    """But for a pooler that nothing follows, which is frozen."""
    optimizer = keras.optimizers.Adam(0.01)
    model, before, losses = losses_of_fit(model_class, optimizer)
    assert losses[-1] < losses[0]
    for weight, old in zip(model.weights, before, strict=True):
        is_idle = "pooler" in weight.path and model_class in (
            BertTokenClassifier,
            BertSpanLabeler,
        )
        # What all choices share cannot change which is the best.
        if model_class is BertMultipleChoice and "output_bias" in weight.path:
            continue
        assert np.array_equal(weight, old) is is_idle, weight.path
        assert weight.trainable is not is_idle


@pytest.mark.parametrize("policy", ["bfloat16", "mixed_float16"])
def test_fit_in_half_precision(policy):
    # Keras's Adam keeps its moments in the weights' type, too coarse for it.
    *_, losses = losses_of_fit(
        BertClassifier, keras.optimizers.SGD(0.1), dtype=policy
    )
    assert losses[-1] < losses[0]


def test_labels_need_no_dict():
    """One loss and plain labels do where there is one output; in a graph."""
    model = make(BertClassifier)
    model.compile(
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=False,
    )
    inputs, targets = features(BertClassifier), labels(BertClassifier)["logits"]
    history = model.fit(inputs, targets, batch_size=B, verbose=0).history
    assert 0 <= history["accuracy"][0] <= 1
    best = model.predict(inputs, verbose=0)["logits"].argmax(-1)
    expected = np.mean(best == targets)
    result = model.evaluate(inputs, targets, verbose=0, return_dict=True)
    assert result["accuracy"] == pytest.approx(expected)


def test_a_number_of_labels_that_numpy_counted():
    model = BertClassifier(CONFIG, np.max([0, 2]) + 1)
    assert type(model.get_config()["num_labels"]) is int
    assert model.num_labels == 3


@pytest.mark.parametrize("model_class", [BertClassifier, BertTokenClassifier])
@pytest.mark.parametrize("num_labels", [0, -1, 2.0, True, "2", None])
def test_a_number_of_labels_that_makes_no_sense(model_class, num_labels):
    message = rf"^num_labels must be a positive integer; got {num_labels!r}.$"
    with pytest.raises(InputError, match=message):
        model_class(CONFIG, num_labels)


@pytest.mark.parametrize("model_class", [BertModel, *MODELS])
@pytest.mark.parametrize(
    ("inputs", "received"),
    [
        ({"ids": [[1]], "input_mask": [[1]]}, r"\['ids', 'input_mask'\]"),
        (np.ones((2, 3), int), "<class 'numpy.ndarray'>"),
    ],
)
def test_inputs_without_ids(model_class, inputs, received):
    model = model_class(CONFIG, name="m", **ARGUMENTS.get(model_class, {}))
    message = rf"^The input of m must be a dict .* got {received}\.$"
    with pytest.raises(InputError, match=message):
        model(inputs)
