"""Losses and answers of the fine-tuning tasks, on every backend."""

import numpy as np
from keras import ops

from bert_tf.heads import BertSpanLabeler, BertTokenClassifier
from bert_tf.tasks.question_answering import SpanTask
from bert_tf.tasks.tagging import TaggingTask
from tests.backends import small_bert
from tests.backends.small_bert import CONFIG, LABELS, B, S, numbers


def log_softmax(x: np.ndarray) -> np.ndarray:
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def test_spans():
    features = small_bert.features() | {
        "start_positions": np.array([3, 1, 0], "int32"),
        "end_positions": np.array([6, 3, 0], "int32"),
    }
    outputs = numbers(small_bert.make(BertSpanLabeler)(features))
    task = SpanTask(CONFIG, (), n_best_size=5)
    kept = numbers(task.predictions(features, outputs))
    lengths = features["input_mask"].sum(axis=1)
    for row, length in enumerate(lengths):
        losses = []
        for name in ("start", "end"):
            logits = outputs[f"{name}_logits"][row, :length]
            places = np.argsort(-logits, kind="stable")[:5].tolist()
            missing = 5 - len(places)
            expected = places + [-1] * missing
            assert kept[f"{name}_indexes"][row].tolist() == expected
            scores = [*logits[places], *[-np.inf] * missing]
            assert kept[f"{name}_logits"][row].tolist() == scores
            losses.append(
                -log_softmax(logits)[features[f"{name}_positions"][row]]
            )
        assert np.isclose(kept["loss"][row], np.mean(losses), atol=1e-6)
    [weights] = task.loss_weights(features).values()
    assert ops.convert_to_numpy(weights).tolist() == [1.0] * B


def test_tags():
    features = small_bert.features() | {
        "label_ids": small_bert.integers("label_ids", (B, S), LABELS),
        "label_mask": small_bert.integers("label_mask", (B, S), 2),
    }
    outputs = numbers(small_bert.make(BertTokenClassifier)(features))
    task = TaggingTask(CONFIG, (), [f"tag {n}" for n in range(LABELS)])
    kept = numbers(task.predictions(features, outputs))
    chosen = features["label_ids"][..., np.newaxis]
    losses = -np.take_along_axis(log_softmax(outputs["logits"]), chosen, -1)
    expected = (losses[..., 0] * features["label_mask"]).sum(axis=1)
    np.testing.assert_allclose(kept["loss"], expected, rtol=1e-4)
    best = outputs["logits"].argmax(axis=-1)
    np.testing.assert_array_equal(kept["predicted_ids"], best)
