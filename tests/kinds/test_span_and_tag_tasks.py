"""Losses, predictions and scores of the tasks that label tokens."""

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.kinds.spans.squad_files import SpanEncoding
from bert_tf.kinds.spans.task import SpanTask, best_indexes
from bert_tf.kinds.tags.conll_files import TaggingEncoding
from bert_tf.kinds.tags.task import TaggingTask
from bert_tf.modeling.variables import checkpoint_variables
from tests.tasks import small_training
from tests.tasks.small_training import CONFIG, S, as_arrays, cut

LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
C = len(LABELS)
LENGTHS = np.array([5, 8, 9, 3, 7, 9])
SHORT = 9
B = len(LENGTHS)


def spans(**options) -> SpanTask:
    return SpanTask(CONFIG, SpanEncoding((), True, None, S, 1, 1), **options)


def tagging(labels=LABELS) -> TaggingEncoding:
    return TaggingEncoding((), True, None, S, labels)


def tags(**options) -> TaggingTask:
    return TaggingTask(CONFIG, tagging(), **{"dropout": 0.0} | options)


def windows(lengths) -> dict[str, np.ndarray]:
    random = np.random.default_rng(3)
    starts = random.integers(0, lengths)
    return small_training.texts(lengths, random) | {
        "start_positions": starts.astype("int32"),
        "end_positions": random.integers(starts, lengths).astype("int32"),
    }


def sentences(lengths) -> dict[str, np.ndarray]:
    """Returns random tokens, some of which are the first of a word."""
    random = np.random.default_rng(3)
    features = small_training.texts(lengths, random)
    starts = random.random([len(lengths), S]) < 0.6
    starts[:, 0] = False
    mask = starts.astype("int32") * features["input_mask"]
    label_ids = random.integers(0, C, mask.shape).astype("int32")
    return features | {"label_ids": label_ids * mask, "label_mask": mask}


FEATURES = {spans: windows, tags: sentences}


@pytest.mark.parametrize("make", FEATURES)
def test_padding_does_not_change_losses_and_gradients(make):
    small_training.assert_padding_changes_nothing(
        make(), FEATURES[make](LENGTHS), SHORT
    )


def test_only_words_have_class_weights():
    weights = np.array([1, 5], "float32")
    task = TaggingTask(CONFIG, tagging(("O", "X")), class_weights=weights)
    features = {
        "label_ids": np.array([[0, 0, 1, 0, 0, 0]]),
        "label_mask": np.array([[0, 1, 1, 0, 0, 0]]),
    }
    found = task.element_weights(features)
    assert np.asarray(found).tolist() == [[0, 1, 5, 0, 0, 0]]


def span_logits() -> dict[str, np.ndarray]:
    """Returns random logits; the highest often belong to padding."""
    random = np.random.default_rng(4)
    return {
        f"{name}_logits": random.normal(size=(B, S)).astype("float32")
        for name in ("start", "end")
    }


def cross_entropy(logits, label) -> float:
    weights = np.exp(logits.astype(float))
    return -np.log(weights[label] / weights.sum())


def assert_losses(task, features, outputs, expected, weights):
    [loss] = as_arrays(task.losses(features, outputs)).values()
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    [found] = as_arrays(task.loss_weights(features)).values()
    assert found.tolist() == weights
    assert loss.dtype == found.dtype == np.float32
    kept = as_arrays(task.predictions(features, outputs))
    np.testing.assert_allclose(kept["loss"], expected, rtol=1e-5)
    return kept


def test_span_losses():
    features, outputs = windows(LENGTHS), span_logits()
    expected = np.mean(
        [
            [
                cross_entropy(logits[:length], label)
                for logits, length, label in zip(
                    outputs[f"{name}_logits"],
                    LENGTHS,
                    features[f"{name}_positions"],
                    strict=True,
                )
            ]
            for name in ("start", "end")
        ],
        axis=0,
    )
    assert_losses(spans(), features, outputs, expected, [1.0] * B)
    losses = np.array([0.5, 1.0, 3.0], "float32")
    assert spans().score({"loss": losses}) == {"eval_loss": 1.5}


@pytest.mark.parametrize("length", [SHORT, S])
@pytest.mark.parametrize("count", [4, 20])
def test_best_indexes(count, length):
    outputs = span_logits()
    # Equal logits stay in order.
    outputs["start_logits"][2:] = [0, 2, 1, 2, 1, 2, 0, 2, 1, 9, 9]
    features, outputs = cut(windows(LENGTHS), length), cut(outputs, length)
    kept = as_arrays(best_indexes(outputs, features["input_mask"], count))
    for name in ("start", "end"):
        indexes, scores = kept[f"{name}_indexes"], kept[f"{name}_logits"]
        assert indexes.shape == scores.shape == (B, count)
        assert (indexes.dtype, scores.dtype) == (np.int32, np.float32)
        logits = outputs[f"{name}_logits"]
        np.testing.assert_array_equal(kept[f"null_{name}_logits"], logits[:, 0])
        for row, end in enumerate(LENGTHS):
            order = np.argsort(-logits[row, :end], kind="stable")[:count]
            missing = count - len(order)
            assert indexes[row].tolist() == [*order, *[-1] * missing]
            expected = [*logits[row, order], *[-np.inf] * missing]
            assert scores[row].tolist() == expected


def test_best_indexes_have_a_static_shape():
    """XLA needs it, even if the sequence length is unknown."""
    task = spans()
    features, outputs = windows(LENGTHS), span_logits()
    arguments = [
        {k: tf.TensorSpec([None] * v.ndim, v.dtype) for k, v in dict_.items()}
        for dict_ in (features, outputs)
    ]
    graph = tf.function(task.predictions, arguments).get_concrete_function()
    assert graph.structured_outputs["start_indexes"].shape[1] == S
    assert graph.structured_outputs["end_logits"].shape[1] == S


def test_span_predictions_without_answers():
    features, outputs = windows(LENGTHS), span_logits()
    del features["start_positions"], features["end_positions"]
    outputs["start_logits"][:] = np.nan
    kept = as_arrays(spans().predictions(features, outputs))
    assert "loss" not in kept
    assert (kept["start_indexes"] == -1).all()  # NaN has no position.
    assert (kept["end_indexes"][:, 0] >= 0).all()


def test_tag_losses_and_scores():
    features = sentences(LENGTHS)
    random = np.random.default_rng(4)
    logits = random.normal(size=(B, S, C)).astype("float32")
    is_word, labels = features["label_mask"] == 1, features["label_ids"].copy()
    expected = [
        sum(
            cross_entropy(logits[row, n], labels[row, n])
            for n in np.flatnonzero(is_word[row])
        )
        for row in range(B)
    ]
    weights = is_word.sum(axis=1).tolist()
    outputs = {"logits": logits}
    kept = assert_losses(tags(), features, outputs, expected, weights)
    best = logits.argmax(-1)
    assert kept["predicted_ids"].dtype == np.int32
    np.testing.assert_array_equal(kept["predicted_ids"], best)
    scores = tags().score(kept)
    assert scores == {
        "eval_accuracy": pytest.approx((best == labels)[is_word].mean()),
        "eval_loss": pytest.approx(np.sum(expected) / is_word.sum(), rel=1e-5),
    }
    # Tokens that do not begin a word do not count.
    logits[~is_word] = 99.0
    features["label_ids"][~is_word] = C - 1
    after = as_arrays(tags().predictions(features, {"logits": logits}))
    np.testing.assert_array_equal(after["loss"], kept["loss"])
    assert tags().score(after) == scores


def test_options_of_the_model():
    model = tags(frozen_layers=("layer_0",), dropout=0.25).build_model()
    assert checkpoint_variables(model)["output_bias"].shape == (C,)
    assert not model.bert.encoder.blocks[0].trainable
    assert model.dropout.rate == 0.25


def test_a_single_label_is_refused():
    with pytest.raises(InputError, match="at least 2 labels"):
        TaggingTask(CONFIG, tagging(("O",)))
