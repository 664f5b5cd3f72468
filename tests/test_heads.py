"""The pre-training heads: the original's numbers, tying, training."""

import keras
import numpy as np
import pytest
from keras import ops

from bert_tf.config import BertConfig
from bert_tf.heads import BertPretrainer, MaskedLanguageModel
from bert_tf.modeling import checkpoint_variables

B, S, P, V, H = 5, 11, 3, 37, 12
CONFIG = BertConfig(
    vocab_size=V,
    hidden_size=H,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=17,
    max_position_embeddings=13,
    type_vocab_size=2,
)


def features() -> dict[str, np.ndarray]:
    random = np.random.default_rng(2)
    return {
        "input_ids": random.integers(0, V, (B, S)),
        "input_mask": np.ones((B, S), int),
        "segment_ids": random.integers(0, 2, (B, S)),
        "masked_lm_positions": random.integers(0, S, (B, P)),
    }


@pytest.fixture(scope="module")
def model() -> BertPretrainer:
    keras.utils.set_random_seed(1)
    model = BertPretrainer(CONFIG)
    model.build()
    return model


def test_log_probabilities_are_the_originals(google_oracle):
    config, arrays = google_oracle
    model = BertPretrainer(config)
    model.build()
    for name, variable in checkpoint_variables(model).items():
        variable.assign(arrays[f"weights/{name}"])
    outputs = model(
        {
            name: arrays[f"expected/{name}"]
            for name in (
                "input_ids",
                "input_mask",
                "segment_ids",
                "masked_lm_positions",
            )
        }
    )
    for name in ("masked_lm", "next_sentence"):
        ours = ops.log_softmax(outputs[f"{name}_logits"])
        expected = arrays[f"expected/{name}_log_probs"]
        np.testing.assert_allclose(
            ops.reshape(ours, expected.shape), expected, atol=2e-5
        )


def test_shapes(model):
    outputs = model(features())
    assert outputs["masked_lm_logits"].shape == (B, P, V)
    assert outputs["next_sentence_logits"].shape == (B, 2)


def test_logits_are_those_of_the_positions():
    """Position p of row b is scored, and no other."""
    head = MaskedLanguageModel(CONFIG)
    head.build()
    random = np.random.default_rng(0)
    x = random.normal(size=(B, S, H)).astype("float32")
    table = random.normal(size=(V, H)).astype("float32")
    positions = features()["masked_lm_positions"]
    logits = head(x, positions, table)
    for b in range(B):
        for p in range(P):
            alone = head(
                x[b : b + 1, positions[b, p]][:, None],
                np.zeros((1, 1), int),
                table,
            )
            np.testing.assert_allclose(logits[b, p], alone[0, 0], atol=1e-5)


def test_input_and_output_share_the_table(model):
    before = np.array(model(features())["masked_lm_logits"])
    table = model.bert.embeddings.word_embeddings
    unused = np.setdiff1d(np.arange(V), features()["input_ids"])[0]
    moved = np.array(table)
    # Not by one number: the hidden states have the mean 0.
    moved[unused] += np.arange(H)
    kept = np.array(table)
    table.assign(moved)
    after = np.array(model(features())["masked_lm_logits"])
    table.assign(kept)
    changed = np.abs(after - before).max((0, 1)) > 1e-6
    assert np.flatnonzero(changed).tolist() == [unused]


def test_saved_model_gives_the_same_numbers(model, tmp_path):
    path = tmp_path / "model.keras"
    model.save(path)
    loaded = keras.models.load_model(path)
    assert loaded.config == CONFIG
    expected = model(features())
    for name, value in loaded(features()).items():
        np.testing.assert_array_equal(value, expected[name])


def test_fit_trains_every_variable(model):
    """compile and fit, as for any Keras model."""
    model = keras.models.clone_model(model)
    model.compile(
        optimizer="adam",
        loss={
            name: keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            for name in ("masked_lm_logits", "next_sentence_logits")
        },
    )
    inputs = features()
    labels = {
        "masked_lm_logits": np.arange(B * P).reshape(B, P) % V,
        "next_sentence_logits": np.arange(B) % 2,
    }
    model(inputs)
    before = [np.array(w) for w in model.weights]
    history = model.fit(inputs, labels, epochs=3, batch_size=B, verbose=0)
    assert history.history["loss"][-1] < history.history["loss"][0]
    for weight, old in zip(model.weights, before, strict=True):
        assert not np.array_equal(weight, old), weight.path
