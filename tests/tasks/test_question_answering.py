"""Answers in a text: losses by hand, the best places, a tiny model."""

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.modeling import checkpoint_variables
from bert_tf.tasks.question_answering import SpanTask
from tests.tasks import small_training
from tests.tasks.small_training import CONFIG, S, as_arrays, cut

LENGTHS = np.array([5, 8, 9, 3, 7, 9])
SHORT = 9
B = len(LENGTHS)


def make(**options) -> SpanTask:
    return SpanTask(CONFIG, (), **options)


def windows(lengths, seed=3) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    starts = random.integers(0, lengths)
    return small_training.texts(lengths, random) | {
        "start_positions": starts.astype("int32"),
        "end_positions": random.integers(starts, lengths).astype("int32"),
    }


def logits(seed=4) -> dict[str, np.ndarray]:
    """Of any model: the highest are often those of padding."""
    random = np.random.default_rng(seed)
    return {
        f"{name}_logits": random.normal(size=(B, S)).astype("float32")
        for name in ("start", "end")
    }


def cross_entropy(scores, length, place) -> float:
    """Of one row, by the definition of a softmax without padding."""
    chances = np.exp(scores[:length].astype(float))
    return -np.log(chances[place] / chances.sum())


def losses_by_hand(features, outputs) -> list[float]:
    return [
        np.mean(
            [
                cross_entropy(
                    outputs[f"{name}_logits"][row],
                    LENGTHS[row],
                    features[f"{name}_positions"][row],
                )
                for name in ("start", "end")
            ]
        )
        for row in range(B)
    ]


# Losses.


def test_losses_by_hand():
    features, outputs = windows(LENGTHS), logits()
    [loss] = as_arrays(make().losses(features, outputs)).values()
    expected = losses_by_hand(features, outputs)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    [weights] = as_arrays(make().loss_weights(features)).values()
    assert weights.tolist() == [1.0] * B
    assert loss.dtype == weights.dtype == np.float32
    kept = as_arrays(make().predictions(features, outputs))
    np.testing.assert_allclose(kept["loss"], expected, rtol=1e-5)


def test_the_score_is_the_mean_loss():
    losses = np.array([0.5, 1.0, 3.0], "float32")
    assert make().score({"loss": losses}) == {"eval_loss": 1.5}


def test_padding_changes_neither_losses_nor_gradients():
    small_training.assert_padding_changes_nothing(
        make(), windows(LENGTHS), SHORT
    )


# The best places.


def best_by_hand(scores, length, count):
    """A stable sort, as the original's."""
    order = sorted(range(length), key=lambda place: -scores[place])[:count]
    missing = count - len(order)
    return (
        order + [-1] * missing,
        [scores[place] for place in order] + [-np.inf] * missing,
    )


@pytest.mark.parametrize("count", [1, 4, 20])
def test_best_places_by_hand(count):
    features, outputs = windows(LENGTHS), logits()
    kept = as_arrays(make(n_best_size=count).predictions(features, outputs))
    for name in ("start", "end"):
        places, scores = kept[f"{name}_indexes"], kept[f"{name}_logits"]
        assert places.shape == scores.shape == (B, count)
        assert (places.dtype, scores.dtype) == (np.int32, np.float32)
        for row, length in enumerate(LENGTHS):
            expected_places, expected_scores = best_by_hand(
                outputs[f"{name}_logits"][row], length, count
            )
            assert places[row].tolist() == expected_places
            assert scores[row].tolist() == expected_scores


def test_equal_logits_stand_in_the_order_of_their_places():
    features, outputs = windows(LENGTHS), logits()
    outputs["start_logits"][:] = [0, 2, 1, 2, 1, 2, 0, 2, 1, 9, 9]
    kept = as_arrays(make(n_best_size=7).predictions(features, outputs))
    assert kept["start_indexes"].tolist() == [
        [1, 3, 2, 4, 0, -1, -1],
        [1, 3, 5, 7, 2, 4, 0],
        [1, 3, 5, 7, 2, 4, 8],
        [1, 2, 0, -1, -1, -1, -1],
        [1, 3, 5, 2, 4, 0, 6],
        [1, 3, 5, 7, 2, 4, 8],
    ]


def test_padding_does_not_change_the_best_places():
    features, outputs = windows(LENGTHS), logits()
    whole = as_arrays(make().predictions(features, outputs))
    short = as_arrays(
        make().predictions(cut(features, SHORT), cut(outputs, SHORT))
    )
    assert whole.keys() == short.keys()
    for name, value in whole.items():
        np.testing.assert_allclose(short[name], value, rtol=1e-6)


def test_a_compiled_graph_of_any_length_gives_the_same():
    """Its shape is known, as XLA asks, where that of the sequence is not."""
    task = make(n_best_size=13)
    features, outputs = windows(LENGTHS), logits()
    eagerly = as_arrays(task.predictions(features, outputs))
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


def test_null_logits_are_those_of_the_first_place():
    outputs = logits()
    kept = as_arrays(make().predictions(windows(LENGTHS), outputs))
    for name in ("start_logits", "end_logits"):
        first = outputs[name][:, 0]
        np.testing.assert_array_equal(kept[f"null_{name}"], first)


def test_windows_without_answers_have_no_loss():
    features = windows(LENGTHS)
    del features["start_positions"], features["end_positions"]
    assert set(make().predictions(features, logits())) == {
        *("start_indexes", "start_logits", "end_indexes", "end_logits"),
        *("null_start_logits", "null_end_logits"),
    }


def test_logits_that_are_no_numbers_have_no_places():
    outputs = logits()
    outputs["start_logits"][:] = np.nan
    kept = as_arrays(make().predictions(windows(LENGTHS), outputs))
    assert (kept["start_indexes"] == -1).all()
    assert (kept["end_indexes"][:, 0] >= 0).all()


def test_at_least_one_place_is_kept():
    with pytest.raises(InputError, match="n_best_size must be at least 1"):
        make(n_best_size=0)


# Models.


def test_the_model_has_the_originals_head():
    model = make(frozen_layers=("embeddings",)).build_model()
    variables = checkpoint_variables(model)
    assert variables["cls/squad/output_weights"].shape == (2, 8)
    assert variables["cls/squad/output_bias"].shape == (2,)
    assert not variables["bert/embeddings/word_embeddings"].trainable


def test_micro_batches_are_one_batch():
    small_training.assert_micro_batches_are_one_batch(make(), windows(LENGTHS))


def test_learns_eight_windows_of_two_lengths_by_heart(tmp_path):
    lengths = np.array([5, 9, 9, 7, 11, 10, 11, 4])
    features = windows(lengths)
    task = make(n_best_size=3)
    before, after, kept = small_training.learn(task, features, tmp_path)
    assert after["eval_loss"] < 0.2 * before["eval_loss"]
    for name in ("start", "end"):
        expected = features[f"{name}_positions"].tolist()
        assert kept[f"{name}_indexes"][:, 0].tolist() == expected
        assert kept[f"{name}_logits"].shape == (8, 3)
