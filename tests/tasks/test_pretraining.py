"""Pre-training: the losses of the original, scores by hand."""

import dataclasses

import keras
import numpy as np
import pytest

from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.modeling import checkpoint_variables
from bert_tf.tasks.pretraining import PretrainingTask

B, S, P, V = 5, 7, 3, 23
CONFIG = BertConfig(
    vocab_size=V,
    hidden_size=6,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=11,
    max_position_embeddings=S,
    type_vocab_size=2,
)


def features() -> dict[str, np.ndarray]:
    random = np.random.default_rng(3)
    weights = np.array(
        [[1, 1, 1], [1, 1, 0], [1, 0, 0], [0, 0, 0], [1, 1, 0]], "float32"
    )
    return {
        "input_ids": random.integers(0, V, (B, S)).astype("int32"),
        "input_mask": np.ones((B, S), "int32"),
        "segment_ids": np.zeros((B, S), "int32"),
        "masked_lm_positions": random.integers(0, S, (B, P)).astype("int32"),
        "masked_lm_ids": random.integers(0, V, (B, P)).astype("int32"),
        "masked_lm_weights": weights,
        "next_sentence_labels": random.integers(0, 2, (B, 1)).astype("int32"),
    }


def outputs() -> dict[str, np.ndarray]:
    random = np.random.default_rng(4)
    return {
        "masked_lm_logits": random.normal(size=(B, P, V)).astype("float32"),
        "next_sentence_logits": random.normal(size=(B, 2)).astype("float32"),
    }


def log_softmax(x: np.ndarray) -> np.ndarray:
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


@pytest.fixture
def task() -> PretrainingTask:
    return PretrainingTask(CONFIG, S, P)


def as_arrays(tensors) -> dict[str, np.ndarray]:
    return {k: keras.ops.convert_to_numpy(v) for k, v in tensors.items()}


def test_losses_equal_those_of_the_original(google_oracle):
    config, arrays = google_oracle
    batch = {
        name: arrays[f"expected/{name}"]
        for name in (
            "input_ids",
            "input_mask",
            "segment_ids",
            "masked_lm_positions",
            "masked_lm_ids",
            "masked_lm_weights",
            "next_sentence_labels",
        )
    }
    task = PretrainingTask(config, 24, 5)
    model = task.build_model()
    for name, variable in checkpoint_variables(model).items():
        variable.assign(arrays[f"weights/{name}"])
    kept = as_arrays(task.predictions(batch, model(batch)))
    scores = task.score(kept)
    for name in ("masked_lm_loss", "next_sentence_loss"):
        assert scores[name] == pytest.approx(
            float(arrays[f"expected/{name}"]), abs=2e-5
        )


def test_losses_by_hand(task):
    batch, logits = features(), outputs()
    losses = as_arrays(task.losses(batch, logits))
    log_probabilities = log_softmax(logits["masked_lm_logits"])
    for b in range(B):
        expected = -sum(
            batch["masked_lm_weights"][b, p]
            * log_probabilities[b, p, batch["masked_lm_ids"][b, p]]
            for p in range(P)
        )
        assert losses["masked_lm_loss"][b] == pytest.approx(expected, abs=1e-5)
    label = batch["next_sentence_labels"][:, 0]
    np.testing.assert_allclose(
        losses["next_sentence_loss"],
        -log_softmax(logits["next_sentence_logits"])[np.arange(B), label],
        atol=1e-6,
    )


def test_weights_are_masked_words_and_examples(task):
    weights = as_arrays(task.loss_weights(features()))
    assert weights["masked_lm_loss"].tolist() == [3, 2, 1, 0, 2]
    assert weights["next_sentence_loss"].tolist() == [1] * B
    assert tuple(weights) == task.loss_names


def test_scores_by_hand(task):
    batch, logits = features(), outputs()
    scores = task.score(as_arrays(task.predictions(batch, logits)))
    hit = logits["masked_lm_logits"].argmax(-1) == batch["masked_lm_ids"]
    assert scores["masked_lm_accuracy"] == pytest.approx(
        (hit * batch["masked_lm_weights"]).sum() / 8
    )
    hit = (
        logits["next_sentence_logits"].argmax(-1)
        == batch["next_sentence_labels"][:, 0]
    )
    assert scores["next_sentence_accuracy"] == pytest.approx(hit.mean())
    assert scores["loss"] == pytest.approx(
        scores["masked_lm_loss"] + scores["next_sentence_loss"]
    )


def test_without_the_next_sentence():
    task = PretrainingTask(CONFIG, S, P, next_sentence=False)
    batch, logits = features(), outputs()
    assert task.loss_names == ("masked_lm_loss",)
    assert list(task.losses(batch, logits)) == ["masked_lm_loss"]
    scores = task.score(as_arrays(task.predictions(batch, logits)))
    assert sorted(scores) == ["loss", "masked_lm_accuracy", "masked_lm_loss"]
    assert scores["loss"] == scores["masked_lm_loss"]


LEFT_TO_RIGHT = dataclasses.replace(CONFIG, attention_direction="left_to_right")


def test_a_causal_loss_by_hand():
    """The mean over all next tokens, and the perplexity."""
    task = PretrainingTask(LEFT_TO_RIGHT, S, P, False, "causal_lm")
    random = np.random.default_rng(5)
    batch = {
        "next_token_ids": random.integers(0, V, (B, S)).astype("int32"),
        "next_token_weights": np.tri(B, S).astype("float32"),
    }
    logits = random.normal(size=(B, S, V)).astype("float32")
    outputs = {"masked_lm_logits": logits}
    losses = as_arrays(task.losses(batch, outputs))
    weights = as_arrays(task.loss_weights(batch))
    assert tuple(losses) == tuple(weights) == task.loss_names
    assert weights["causal_lm_loss"].tolist() == [1, 2, 3, 4, 5]
    log_probabilities = log_softmax(logits)
    expected = [
        -sum(
            log_probabilities[b, s, batch["next_token_ids"][b, s]]
            for s in range(b + 1)
        )
        for b in range(B)
    ]
    np.testing.assert_allclose(
        losses["causal_lm_loss"], expected, rtol=0, atol=1e-5
    )
    scores = task.score(as_arrays(task.predictions(batch, outputs)))
    assert list(scores) == [
        "causal_lm_accuracy",
        "causal_lm_loss",
        "perplexity",
        "loss",
    ]
    assert scores["loss"] == pytest.approx(sum(expected) / 15)
    assert scores["perplexity"] == pytest.approx(np.exp(scores["loss"]))


@pytest.mark.parametrize(
    ("config", "objective", "words"),
    [
        (CONFIG, "causal_lm", "left_to_right with.*got 'bidirectional'"),
        (LEFT_TO_RIGHT, "lm", "masked_lm or causal_lm; got 'lm'"),
    ],
)
def test_invalid_objectives(config, objective, words):
    with pytest.raises(InputError, match=words):
        PretrainingTask(config, S, P, objective=objective)


def test_records_need_no_unused_labels(task):
    names = [feature.name for feature in task.schema]
    other = PretrainingTask(CONFIG, S, P, next_sentence=False)
    assert names[-1] == "next_sentence_labels"
    assert [feature.name for feature in other.schema] == names[:-1]


def test_batches_without_masked_words_score_zero(task):
    batch = features()
    batch["masked_lm_weights"] *= 0
    scores = task.score(as_arrays(task.predictions(batch, outputs())))
    assert scores["masked_lm_accuracy"] == scores["masked_lm_loss"] == 0


def test_packed_rows_have_the_sums_of_their_losses(task):
    """The five examples in two rows, each with its own logits."""
    batch, logits = features(), outputs()
    kept = as_arrays(task.predictions(batch, logits))
    rows, K = [[3, 0], [4, 2, 1]], 4
    labels = np.zeros((2, K), "int32")
    weights = np.zeros((2, K), "float32")
    next_sentence_logits = np.full((2, K, 2), 9.0, "float32")
    for row, members in enumerate(rows):
        for slot, example in enumerate(members):
            labels[row, slot] = batch["next_sentence_labels"][example, 0]
            weights[row, slot] = 1
            next_sentence_logits[row, slot] = logits["next_sentence_logits"][
                example
            ]

    def in_rows(values):
        """[B, P, ...] to [2, K * P, ...], zeros where no example is."""
        filler = np.zeros((1, *values.shape[1:]), values.dtype)
        padded = np.concatenate([values, filler])
        slots = [[*members, *[B] * (K - len(members))] for members in rows]
        return padded[slots].reshape(2, K * P, *values.shape[2:])

    packed = {
        "masked_lm_ids": in_rows(batch["masked_lm_ids"]),
        "masked_lm_weights": in_rows(batch["masked_lm_weights"]),
        "next_sentence_labels": labels,
        "next_sentence_weights": weights,
    }
    packed_logits = {
        "masked_lm_logits": in_rows(logits["masked_lm_logits"]),
        "next_sentence_logits": next_sentence_logits,
    }
    found = as_arrays(task.predictions(packed, packed_logits))
    assert found.keys() == kept.keys()
    for name, values in found.items():
        expected = [kept[name][members].sum() for members in rows]
        np.testing.assert_allclose(values, expected, rtol=1e-6, err_msg=name)
    totals = as_arrays(task.loss_weights(packed))
    assert totals["masked_lm_loss"].tolist() == [3, 5]
    assert totals["next_sentence_loss"].tolist() == [2, 3]
    assert task.score(found) == pytest.approx(task.score(kept))


def test_schema_and_model_fit(task):
    batch = features()
    assert {f.name: (B, *f.shape) for f in task.schema} == {
        name: values.shape for name, values in batch.items()
    }
    result = task.build_model()(batch)
    assert result["masked_lm_logits"].shape == (B, P, V)
