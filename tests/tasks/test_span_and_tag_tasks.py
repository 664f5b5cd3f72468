"""Losses, predictions and scores of the tasks with labels for tokens."""

import re

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.feature_tagger import BertFeatureTagger
from bert_tf.modeling import checkpoint_variables
from bert_tf.tasks.question_answering import SpanTask
from bert_tf.tasks.tagging import FeatureTaggingTask, TaggingTask
from tests.tasks import small_training
from tests.tasks.small_training import CONFIG, H, S, as_arrays, cut

LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
C = len(LABELS)
LENGTHS = np.array([5, 8, 9, 3, 7, 9])
SHORT = 9
B = len(LENGTHS)


def spans(**options) -> SpanTask:
    return SpanTask(CONFIG, (), **options)


def tags(**options) -> TaggingTask:
    return TaggingTask(CONFIG, (), LABELS, **{"dropout": 0.0} | options)


def feature_tags(**options) -> FeatureTaggingTask:
    defaults = {"layers": "last", "lstm_size": 13, "dropout": 0.0}
    return FeatureTaggingTask(CONFIG, (), LABELS, **defaults | options)


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


FEATURES = {spans: windows, tags: sentences, feature_tags: sentences}
for_all_tasks = pytest.mark.parametrize("make", FEATURES)


# ------------------------------------------------------------------- all tasks


@for_all_tasks
def test_padding_does_not_change_losses_and_gradients(make):
    small_training.assert_padding_changes_nothing(
        make(), FEATURES[make](LENGTHS), SHORT
    )


@pytest.mark.parametrize("make", [spans, tags])
def test_micro_batches_equal_one_batch(make):
    features = FEATURES[make](LENGTHS)
    if make is tags:  # A micro-batch without words.
        features["label_mask"][2:4] = 0
    small_training.assert_micro_batches_are_one_batch(make(), features)


@pytest.mark.parametrize(
    "make", [spans, tags, pytest.param(feature_tags, marks=pytest.mark.slow)]
)
def test_learns_eight_examples_of_two_lengths(make, tmp_path):
    features = FEATURES[make](np.array([5, 9, 9, 7, 11, 10, 11, 4]))
    before, after, kept = small_training.learn(make(), features, tmp_path)
    assert after["eval_loss"] < 0.2 * before["eval_loss"]
    if make is spans:
        for name in ("start", "end"):
            expected = features[f"{name}_positions"].tolist()
            assert kept[f"{name}_indexes"][:, 0].tolist() == expected
    else:
        is_word = features["label_mask"] == 1
        found = kept["predicted_ids"][kept["label_mask"] == 1]
        is_right = found == features["label_ids"][is_word]
        assert np.mean(is_right) > 0.95
        assert after["eval_accuracy"] == pytest.approx(np.mean(is_right))


# ----------------------------------------------------------------------- spans


def span_logits() -> dict[str, np.ndarray]:
    """Returns random logits; the highest are often those of padding."""
    random = np.random.default_rng(4)
    return {
        f"{name}_logits": random.normal(size=(B, S)).astype("float32")
        for name in ("start", "end")
    }


def cross_entropy(logits, label) -> float:
    chances = np.exp(logits.astype(float))
    return -np.log(chances[label] / chances.sum())


def predicted(task, features, outputs) -> dict[str, np.ndarray]:
    return as_arrays(task.predictions(features, outputs))


def test_span_losses():
    features, outputs = windows(LENGTHS), span_logits()
    expected = [
        np.mean(
            [
                cross_entropy(
                    outputs[f"{name}_logits"][row][: LENGTHS[row]],
                    features[f"{name}_positions"][row],
                )
                for name in ("start", "end")
            ]
        )
        for row in range(B)
    ]
    [loss] = as_arrays(spans().losses(features, outputs)).values()
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    [weights] = as_arrays(spans().loss_weights(features)).values()
    assert weights.tolist() == [1.0] * B
    assert loss.dtype == weights.dtype == np.float32
    kept = predicted(spans(), features, outputs)
    np.testing.assert_allclose(kept["loss"], expected, rtol=1e-5)
    losses = np.array([0.5, 1.0, 3.0], "float32")
    assert spans().score({"loss": losses}) == {"eval_loss": 1.5}


@pytest.mark.parametrize("count", [1, 4, 20])
def test_best_indexes(count):
    features, outputs = windows(LENGTHS), span_logits()
    # Equal logits stay in order.
    outputs["start_logits"][2:] = [0, 2, 1, 2, 1, 2, 0, 2, 1, 9, 9]
    kept = predicted(spans(n_best_size=count), features, outputs)
    for name in ("start", "end"):
        indexes, scores = kept[f"{name}_indexes"], kept[f"{name}_logits"]
        assert indexes.shape == scores.shape == (B, count)
        assert (indexes.dtype, scores.dtype) == (np.int32, np.float32)
        logits = outputs[f"{name}_logits"]
        np.testing.assert_array_equal(kept[f"null_{name}_logits"], logits[:, 0])
        for row, length in enumerate(LENGTHS):
            order = np.argsort(-logits[row, :length], kind="stable")[:count]
            missing = count - len(order)
            assert indexes[row].tolist() == [*order, *[-1] * missing]
            expected = [*logits[row, order], *[-np.inf] * missing]
            assert scores[row].tolist() == expected


def test_best_indexes_do_not_depend_on_padding():
    features, outputs = windows(LENGTHS), span_logits()
    whole = predicted(spans(), features, outputs)
    short = predicted(spans(), cut(features, SHORT), cut(outputs, SHORT))
    assert whole.keys() == short.keys()
    for name, value in whole.items():
        np.testing.assert_allclose(short[name], value, rtol=1e-6)


def test_best_indexes_have_a_static_shape():
    """XLA needs it even if the length of the sequence is unknown."""
    task = spans(n_best_size=13)
    features, outputs = windows(LENGTHS), span_logits()
    eagerly = predicted(task, features, outputs)
    arguments = [
        {k: tf.TensorSpec([None] * v.ndim, v.dtype) for k, v in dict_.items()}
        for dict_ in (features, outputs)
    ]
    graph = tf.function(task.predictions, arguments).get_concrete_function()
    assert graph.structured_outputs["start_indexes"].shape[1] == 13
    assert graph.structured_outputs["end_logits"].shape[1] == 13
    compiled = tf.function(task.predictions, jit_compile=True)
    for kept in (graph(features, outputs), compiled(features, outputs)):
        for name, value in as_arrays(kept).items():
            np.testing.assert_allclose(value, eagerly[name], rtol=1e-6)


def test_span_predictions_without_answers():
    features, outputs = windows(LENGTHS), span_logits()
    del features["start_positions"], features["end_positions"]
    outputs["start_logits"][:] = np.nan
    kept = predicted(spans(), features, outputs)
    assert kept.keys() == {
        *("start_indexes", "start_logits", "end_indexes", "end_logits"),
        *("null_start_logits", "null_end_logits"),
    }
    # NaN has no position.
    assert (kept["start_indexes"] == -1).all()
    assert (kept["end_indexes"][:, 0] >= 0).all()


def test_the_model_of_spans():
    model = spans(frozen_layers=("embeddings",)).build_model()
    variables = checkpoint_variables(model)
    assert variables["cls/squad/output_weights"].shape == (2, 8)
    assert variables["cls/squad/output_bias"].shape == (2,)
    assert not variables["bert/embeddings/word_embeddings"].trainable
    with pytest.raises(InputError, match="n_best_size must be at least 1"):
        spans(n_best_size=0)


# ------------------------------------------------------------------------ tags


def tag_logits() -> dict[str, np.ndarray]:
    random = np.random.default_rng(4)
    return {"logits": random.normal(size=(B, S, C)).astype("float32")}


def test_tag_losses_and_scores():
    features, outputs = sentences(LENGTHS), tag_logits()
    is_word = features["label_mask"] == 1
    logits, labels = outputs["logits"], features["label_ids"].copy()
    expected = [
        sum(
            cross_entropy(logits[row, n], labels[row, n])
            for n in np.flatnonzero(is_word[row])
        )
        for row in range(B)
    ]
    [loss] = as_arrays(tags().losses(features, outputs)).values()
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    [weights] = as_arrays(tags().loss_weights(features)).values()
    assert weights.tolist() == is_word.sum(axis=1).tolist()
    assert loss.dtype == weights.dtype == np.float32
    kept = predicted(tags(), features, outputs)
    np.testing.assert_allclose(kept["loss"], expected, rtol=1e-5)
    best = logits.argmax(-1)
    assert kept["predicted_ids"].dtype == np.int32
    np.testing.assert_array_equal(kept["predicted_ids"], best)
    scores = tags().score(kept)
    accuracy = (best == labels)[is_word].mean()
    assert scores == {
        "eval_accuracy": pytest.approx(accuracy),
        "eval_loss": pytest.approx(np.sum(expected) / is_word.sum(), rel=1e-5),
    }
    assert all(type(value) is float for value in scores.values())
    # Positions that begin no word do not count.
    outputs["logits"][~is_word] = 99.0
    features["label_ids"][~is_word] = C - 1
    after = predicted(tags(), features, outputs)
    np.testing.assert_array_equal(after["loss"], kept["loss"])
    assert tags().score(after) == scores


def test_tags_do_not_depend_on_padding():
    features, outputs = sentences(LENGTHS), tag_logits()
    whole = predicted(tags(), features, outputs)
    short = predicted(tags(), cut(features, SHORT), cut(outputs, SHORT))
    for name, value in short.items():
        np.testing.assert_allclose(cut(whole, SHORT)[name], value, rtol=1e-6)


def test_scores_are_means_over_words_of_all_examples():
    mask = np.zeros([2, 11], "int32")
    mask[0, 1:10], mask[1, 1] = 1, 1
    predictions = {
        "label_mask": mask,
        "label_ids": mask,
        "predicted_ids": np.stack([mask[0], 0 * mask[1]]),
        "loss": np.array([1.0, 4.0], "float32"),
    }
    assert tags().score(predictions) == {
        "eval_accuracy": 0.9,
        "eval_loss": 0.5,
    }
    nothing = {name: 0 * value for name, value in predictions.items()}
    assert tags().score(nothing) == {"eval_accuracy": 0, "eval_loss": 0}


def test_the_model_of_tags():
    model = tags(frozen_layers=("layer_0",), dropout=0.25).build_model()
    variables = checkpoint_variables(model)
    assert variables["output_weights"].shape == (C, CONFIG.hidden_size)
    assert variables["output_bias"].shape == (C,)
    assert not model.bert.encoder.blocks[0].trainable
    assert model.dropout.rate == 0.25
    for labels in ((), ("O",)):
        with pytest.raises(InputError, match="at least 2 labels"):
            TaggingTask(CONFIG, (), labels)


# --------------------------------------------------------- feature-based tagger


def test_the_model_of_the_feature_based_task():
    task = feature_tags(layers="sum_all", lstm_size=3, dropout=0.25)
    model = task.build_model()
    assert type(model) is BertFeatureTagger
    assert model.head.options == {
        "num_labels": C,
        "layers": "sum_all",
        "lstm_size": 3,
        "dropout": 0.25,
    }
    trained = {v.path for v in model.trainable_variables}
    assert trained == {v.path for v in model.head.weights}
    table = checkpoint_variables(model)["bert/embeddings/word_embeddings"]
    assert table.shape[1] == H
    assert not table.trainable
    with pytest.raises(InputError, match="concat_last_four"):
        feature_tags(layers="concat_last_four")


def test_a_checkpoint_may_lack_the_whole_head():
    task = feature_tags()
    names = task.checkpoint_variables(task.build_model())
    new = [name for name in names if name.startswith("features_last/")]
    assert len(new) == 2 * 2 * 3 + 2
    assert all(re.match(task.new_variables, name) for name in new)
