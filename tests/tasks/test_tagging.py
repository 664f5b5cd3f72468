"""Labels for words: losses by hand, scores, a tiny model."""

import numpy as np
import pytest

from bert_tf.errors import InputError
from bert_tf.modeling import checkpoint_variables
from bert_tf.tasks.tagging import TaggingTask
from tests.tasks import small_training
from tests.tasks.small_training import CONFIG, S, as_arrays, cut

LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
C = len(LABELS)
LENGTHS = np.array([5, 8, 9, 3, 7, 9])
SHORT = 9
B = len(LENGTHS)


def make(**options) -> TaggingTask:
    return TaggingTask(CONFIG, (), LABELS, **{"dropout": 0.0} | options)


def sentences(lengths, seed=3) -> dict[str, np.ndarray]:
    """Pieces at random, some of which start a word."""
    random = np.random.default_rng(seed)
    features = small_training.texts(lengths, random)
    starts = random.random([len(lengths), S]) < 0.6
    starts[:, 0] = False
    mask = starts.astype("int32") * features["input_mask"]
    label_ids = random.integers(0, C, mask.shape).astype("int32")
    return features | {"label_ids": label_ids * mask, "label_mask": mask}


def logits() -> dict[str, np.ndarray]:
    random = np.random.default_rng(4)
    return {"logits": random.normal(size=(B, S, C)).astype("float32")}


def losses_by_hand(features, outputs) -> list[float]:
    """The sum over the words of each sentence."""
    chances = np.exp(outputs["logits"].astype(float))
    chances /= chances.sum(-1, keepdims=True)
    return [
        -sum(
            np.log(chances[row, place, features["label_ids"][row, place]])
            for place in np.flatnonzero(features["label_mask"][row])
        )
        for row in range(B)
    ]


def kept(features, outputs) -> dict[str, np.ndarray]:
    return as_arrays(make().predictions(features, outputs))


def test_losses_by_hand():
    features, outputs = sentences(LENGTHS), logits()
    expected = losses_by_hand(features, outputs)
    [loss] = as_arrays(make().losses(features, outputs)).values()
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    [weights] = as_arrays(make().loss_weights(features)).values()
    assert weights.tolist() == features["label_mask"].sum(axis=1).tolist()
    assert loss.dtype == weights.dtype == np.float32
    np.testing.assert_allclose(kept(features, outputs)["loss"], expected, 1e-5)


def test_what_starts_no_word_has_no_loss():
    features, outputs = sentences(LENGTHS), logits()
    before = kept(features, outputs)
    outside = features["label_mask"] == 0
    outputs["logits"][outside] = 99.0
    features["label_ids"][outside] = C - 1
    after = kept(features, outputs)
    np.testing.assert_array_equal(after["loss"], before["loss"])
    assert make().score(after) == make().score(before)


def test_padding_changes_neither_losses_nor_gradients():
    small_training.assert_padding_changes_nothing(
        make(), sentences(LENGTHS), SHORT
    )


def test_padding_does_not_change_predictions():
    features, outputs = sentences(LENGTHS), logits()
    whole = kept(features, outputs)
    short = kept(cut(features, SHORT), cut(outputs, SHORT))
    assert whole["predicted_ids"].dtype == np.int32
    for name, value in short.items():
        np.testing.assert_allclose(cut(whole, SHORT)[name], value, rtol=1e-6)


def test_scores_by_hand():
    features, outputs = sentences(LENGTHS), logits()
    scores = make().score(kept(features, outputs))
    words = features["label_mask"] == 1
    right = outputs["logits"].argmax(-1) == features["label_ids"]
    assert scores == {
        "eval_accuracy": pytest.approx(right[words].mean()),
        "eval_loss": pytest.approx(
            np.sum(losses_by_hand(features, outputs)) / words.sum(), rel=1e-5
        ),
    }
    assert all(type(value) is float for value in scores.values())


def test_words_are_counted_over_all_examples():
    """Not by sentence: one of nine words counts nine times one of one."""
    mask = np.zeros([2, 11], "int32")
    mask[0, 1:10], mask[1, 1] = 1, 1
    predictions = {
        "label_mask": mask,
        "label_ids": mask,
        "predicted_ids": np.stack([mask[0], 0 * mask[1]]),
        "loss": np.array([1.0, 4.0], "float32"),
    }
    assert make().score(predictions) == {
        "eval_accuracy": 0.9,
        "eval_loss": 0.5,
    }


def test_without_words_there_is_nothing_to_score():
    nothing = np.zeros([2, 5], "int32")
    predictions = dict.fromkeys(
        ["label_mask", "label_ids", "predicted_ids"], nothing
    )
    predictions["loss"] = np.zeros(2, "float32")
    assert make().score(predictions) == {"eval_accuracy": 0, "eval_loss": 0}


@pytest.mark.parametrize("labels", [(), ("O",)])
def test_there_have_to_be_labels_to_choose_from(labels):
    with pytest.raises(InputError, match="at least 2 labels"):
        TaggingTask(CONFIG, (), labels)


def test_the_model_has_a_classifiers_head():
    model = make(frozen_layers=("layer_0",), dropout=0.25).build_model()
    variables = checkpoint_variables(model)
    assert variables["output_weights"].shape == (C, CONFIG.hidden_size)
    assert variables["output_bias"].shape == (C,)
    assert not model.bert.encoder.blocks[0].trainable
    assert model.dropout.rate == 0.25


def test_micro_batches_are_one_batch():
    """Each has a number of words of its own, one of them none."""
    features = sentences(LENGTHS)
    features["label_mask"][2:4] = 0
    small_training.assert_micro_batches_are_one_batch(make(), features)


def test_learns_eight_sentences_of_two_lengths_by_heart(tmp_path):
    lengths = np.array([5, 9, 9, 7, 11, 10, 11, 4])
    features = sentences(lengths)
    task = make()
    before, after, predictions = small_training.learn(task, features, tmp_path)
    assert after["eval_loss"] < 0.2 * before["eval_loss"]
    assert after["eval_accuracy"] == 1.0
    words = predictions["predicted_ids"][predictions["label_mask"] == 1]
    expected = features["label_ids"][features["label_mask"] == 1]
    np.testing.assert_array_equal(words, expected)
