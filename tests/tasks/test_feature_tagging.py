"""Labels for words from a frozen BERT: which model, and that it learns."""

import re

import numpy as np
import pytest

from bert_tf.errors import InputError
from bert_tf.feature_tagger import BertFeatureTagger
from bert_tf.modeling import checkpoint_variables
from bert_tf.tasks.tagging import FeatureTaggingTask
from tests.tasks import small_training
from tests.tasks.small_training import CONFIG, H, S

LABELS = ("O", "B-PER", "I-PER")
LENGTHS = np.array([5, 9, 9, 7, 11, 10, 11, 4])
SHORT = 9


def make(**options) -> FeatureTaggingTask:
    defaults = {"layers": "last", "lstm_size": 13, "dropout": 0.0}
    return FeatureTaggingTask(CONFIG, (), LABELS, **defaults | options)


def sentences(lengths) -> dict[str, np.ndarray]:
    """Pieces at random, some of which start a word."""
    random = np.random.default_rng(3)
    features = small_training.texts(lengths, random)
    starts = random.random([len(lengths), S]) < 0.6
    starts[:, 0] = False
    mask = starts.astype("int32") * features["input_mask"]
    label_ids = random.integers(0, len(LABELS), mask.shape).astype("int32")
    return features | {"label_ids": label_ids * mask, "label_mask": mask}


def test_the_model_is_the_one_asked_for():
    model = make(layers="sum_all", lstm_size=3, dropout=0.25).build_model()
    assert type(model) is BertFeatureTagger
    assert model.head.options == {
        "num_labels": len(LABELS),
        "layers": "sum_all",
        "lstm_size": 3,
        "dropout": 0.25,
    }
    trained = {v.path for v in model.trainable_variables}
    assert trained == {v.path for v in model.head.weights}


def test_a_model_that_is_too_small_is_told_at_once():
    with pytest.raises(InputError, match="at least 4 layers"):
        make(layers="concat_last_four")


def test_a_checkpoint_may_lack_the_whole_head():
    task = make()
    names = task.checkpoint_variables(task.build_model())
    new = [name for name in names if name.startswith("features_last/")]
    assert len(new) == 2 * 2 * 3 + 2
    assert all(re.match(task.new_variables, name) for name in new)


def test_padding_changes_neither_losses_nor_gradients():
    lengths = np.minimum(LENGTHS, SHORT)
    small_training.assert_padding_changes_nothing(
        make(), sentences(lengths), SHORT
    )


@pytest.mark.slow
def test_learns_eight_sentences_of_two_lengths_by_heart(tmp_path):
    features = sentences(LENGTHS)
    before, after, predictions = small_training.learn(
        make(), features, tmp_path
    )
    assert after["eval_loss"] < 0.2 * before["eval_loss"]
    words = predictions["predicted_ids"][predictions["label_mask"] == 1]
    expected = features["label_ids"][features["label_mask"] == 1]
    assert np.mean(words == expected) > 0.95


def test_the_encoder_is_named_as_ever():
    model = make().build_model()
    variables = checkpoint_variables(model)
    table = variables["bert/embeddings/word_embeddings"]
    assert table.shape[1] == H
    assert not table.trainable
