"""Releases in Google's layout."""

import numpy as np
import pytest
from interop.small_models import (
    Arrays,
    arrays,
    assert_same_weights,
    pretrained,
    slots,
)

from bert_tf.errors import InputError
from bert_tf.interop import google
from bert_tf.interop.checkpoint import HEADS
from bert_tf.training import checkpoints


@pytest.mark.parametrize("head", HEADS)
def test_what_was_written_is_read(tmp_path, head):
    whole = pretrained(head)
    google.write(str(tmp_path), whole)
    for path in (tmp_path, tmp_path / "bert_model.ckpt"):
        read = google.read(str(path))
        assert_same_weights(read.weights, whole.weights)
        for fact in ("config", "vocab", "do_lower_case", "labels", "head"):
            assert getattr(read, fact) == getattr(whole, fact), fact


def test_a_release_of_googles_has_no_facts(tmp_path):
    google.write(str(tmp_path), pretrained("pretraining"))
    (tmp_path / "bert_tf.json").unlink()
    read = google.read(str(tmp_path / "bert_model.ckpt.index"))
    assert read.head == "pretraining"
    assert read.do_lower_case is None


@pytest.mark.parametrize(
    ("head", "seen"),
    [
        # Three of them call their weights the same.
        (head, None if head in ("classifier", "choice", "token") else head)
        for head in HEADS
    ],
)
def test_the_names_tell_the_head(head, seen):
    names = list(arrays(head))
    assert google.head_of(names) == seen
    assert google.head_of([*names, *slots(arrays(head))]) == seen


def test_names_of_several_heads_tell_nothing():
    assert google.head_of([*arrays("span"), *arrays("classifier")]) is None


def test_a_training_directory_keeps_the_optimizer(tmp_path):
    whole = pretrained("pretraining")
    kept = slots(whole.weights, step=23)
    google.write(str(tmp_path), whole, kept)
    manager = checkpoints.CheckpointManager(str(tmp_path))
    assert manager.steps() == [23]
    reader = checkpoints.Reader(manager.latest())
    assert_same_weights(reader, Arrays({**whole.weights, **kept}))
    assert google.read(str(tmp_path)).config == whole.config


def test_without_a_config_it_is_weights_alone(tmp_path):
    weights = {"bert/embeddings/word_embeddings": np.ones((2, 3), "f4")}
    checkpoints.write(str(tmp_path / "x.ckpt"), weights)
    read = google.read(str(tmp_path))
    assert read.config is None
    assert read.vocab is None
    assert_same_weights(read.weights, Arrays(weights))


def test_the_config_beside_it_is_checked(tmp_path):
    google.write(str(tmp_path), pretrained("encoder"))
    (tmp_path / "bert_config.json").write_text('{"vocab_size": -1}')
    with pytest.raises(InputError, match=r"-1 \(in .*bert_config.json\)"):
        google.read(str(tmp_path))


def test_tf1s_pretraining_checkpoint(shared_data):
    folder = shared_data / "checkpoints" / "tf1_tiny_keras_bert"
    read = google.read(str(folder))
    assert read.head == "pretraining"
    assert read.config.hidden_size == 4
    assert len(read.vocab) == 15
    assert "global_step" in read.weights
