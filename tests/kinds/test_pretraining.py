"""Pre-training: the losses of the original, scores by hand."""

import dataclasses
import re

import numpy as np
import pytest

from bert_tf.errors import InputError
from bert_tf.kinds.pretraining.task import PretrainingTask
from bert_tf.modeling.variables import checkpoint_variables
from tests.tasks.small_training import CONFIG, S, V, as_arrays

B, P = 5, 3
LEFT_TO_RIGHT = dataclasses.replace(CONFIG, attention_direction="left_to_right")


@pytest.fixture
def features() -> dict[str, np.ndarray]:
    random = np.random.default_rng(3)
    weights = [[1, 1, 1], [1, 1, 0], [1, 0, 0], [0, 0, 0], [1, 1, 0]]
    return {
        "input_ids": random.integers(0, V, (B, S)).astype("int32"),
        "input_mask": np.ones((B, S), "int32"),
        "segment_ids": np.zeros((B, S), "int32"),
        "masked_lm_positions": random.integers(0, S, (B, P)).astype("int32"),
        "masked_lm_ids": random.integers(0, V, (B, P)).astype("int32"),
        "masked_lm_weights": np.array(weights, "float32"),
        "next_sentence_labels": random.integers(0, 2, (B, 1)).astype("int32"),
    }


@pytest.fixture
def outputs() -> dict[str, np.ndarray]:
    random = np.random.default_rng(4)
    return {
        "masked_lm_logits": random.normal(size=(B, P, V)).astype("float32"),
        "next_sentence_logits": random.normal(size=(B, 2)).astype("float32"),
    }


@pytest.fixture
def task() -> PretrainingTask:
    return PretrainingTask(CONFIG, S, P)


def cross_entropy(logits, label_ids, weights):
    """Returns the weighted sum of each row's losses, [B]."""
    log_probabilities = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    chosen = np.take_along_axis(log_probabilities, label_ids[..., None], -1)
    return -(chosen[..., 0] * weights).sum(axis=1)


def test_losses_equal_those_of_the_original(google_oracle):
    config, arrays = google_oracle
    task = PretrainingTask(config, 24, 5)
    batch = {
        feature.name: arrays[f"expected/{feature.name}"]
        for feature in task.schema
    }
    model = task.build_model()
    for name, variable in checkpoint_variables(model).items():
        variable.assign(arrays[f"weights/{name}"])
    kept = as_arrays(task.predictions(batch, model(batch)))
    scores = task.score(kept)
    for name in ("masked_lm_loss", "next_sentence_loss"):
        expected = float(arrays[f"expected/{name}"])
        assert scores[name] == pytest.approx(expected, abs=2e-5)


def test_losses_and_scores_by_hand(task, features, outputs):
    logits, ids = outputs["masked_lm_logits"], features["masked_lm_ids"]
    ids[:, 1:] = logits.argmax(-1)[:, 1:]  # Some are right.
    losses = as_arrays(task.losses(features, outputs))
    weights = features["masked_lm_weights"]
    words = cross_entropy(logits, ids, weights)
    np.testing.assert_allclose(losses["masked_lm_loss"], words, atol=1e-5)
    labels = features["next_sentence_labels"]
    pair_logits = outputs["next_sentence_logits"]
    pairs = cross_entropy(pair_logits[:, None], labels, 1)
    np.testing.assert_allclose(losses["next_sentence_loss"], pairs, atol=1e-6)
    totals = as_arrays(task.loss_weights(features))
    assert totals["masked_lm_loss"].tolist() == [3, 2, 1, 0, 2]
    assert totals["next_sentence_loss"].tolist() == [1] * B
    assert tuple(losses) == tuple(totals) == task.loss_names
    is_word = ((logits.argmax(-1) == ids) * weights).sum() / 8
    is_next = (pair_logits.argmax(-1) == labels[:, 0]).mean()
    scores = task.score(as_arrays(task.predictions(features, outputs)))
    assert scores == {
        "masked_lm_accuracy": pytest.approx(is_word),
        "masked_lm_loss": pytest.approx(words.sum() / 8),
        "next_sentence_accuracy": pytest.approx(is_next),
        "next_sentence_loss": pytest.approx(pairs.mean()),
        "loss": pytest.approx(words.sum() / 8 + pairs.mean()),
    }
    features["masked_lm_weights"] *= 0
    scores = task.score(as_arrays(task.predictions(features, outputs)))
    assert scores["masked_lm_accuracy"] == scores["masked_lm_loss"] == 0


def test_without_the_next_sentence(task, features, outputs):
    other = PretrainingTask(CONFIG, S, P, next_sentence=False)
    names = [feature.name for feature in task.schema]
    assert names[-1] == "next_sentence_labels"
    assert [feature.name for feature in other.schema] == names[:-1]
    assert other.loss_names == ("masked_lm_loss",)
    assert list(other.losses(features, outputs)) == ["masked_lm_loss"]
    assert re.match(other.unused_variables, "bert/pooler/dense/kernel")
    assert not re.match(task.unused_variables, "bert/pooler/dense/kernel")
    scores = other.score(as_arrays(other.predictions(features, outputs)))
    assert sorted(scores) == ["loss", "masked_lm_accuracy", "masked_lm_loss"]
    assert scores["loss"] == scores["masked_lm_loss"]


def test_a_causal_loss_by_hand():
    task = PretrainingTask(LEFT_TO_RIGHT, S, P, False, "causal_lm")
    random = np.random.default_rng(5)
    ids = random.integers(0, V, (B, S)).astype("int32")
    weights = np.tri(B, S).astype("float32")
    batch = {"next_token_ids": ids, "next_token_weights": weights}
    logits = random.normal(size=(B, S, V)).astype("float32")
    ids[:, ::2] = logits.argmax(-1)[:, ::2]
    outputs = {"masked_lm_logits": logits}
    expected = cross_entropy(logits, ids, weights)
    [loss] = as_arrays(task.losses(batch, outputs)).values()
    np.testing.assert_allclose(loss, expected, rtol=0, atol=1e-5)
    [total] = as_arrays(task.loss_weights(batch)).values()
    assert total.tolist() == [1, 2, 3, 4, 5]
    scores = task.score(as_arrays(task.predictions(batch, outputs)))
    is_right = weights * (logits.argmax(-1) == ids)
    loss = sum(expected) / 15
    assert scores == {
        "causal_lm_accuracy": pytest.approx(is_right.sum() / 15),
        "causal_lm_loss": pytest.approx(loss),
        "perplexity": pytest.approx(np.exp(loss)),
        "loss": pytest.approx(loss),
    }


def test_causal_lm_needs_left_to_right_attention():
    words = "left_to_right with.*got 'bidirectional'"
    with pytest.raises(InputError, match=words):
        PretrainingTask(CONFIG, S, P, objective="causal_lm")
