"""Rows are computed some at a time, and shown text by text."""

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.heads import BertTokenClassifier
from bert_tf.serving.served import BATCH_SIZE, in_batches, rows_by_text
from bert_tf.serving.tags import ServedTagger
from bert_tf.tasks.ner import TaggingEncoding
from tests.serving.small_served import CONFIG, VOCAB

PAD, UNK, CLS, SEP = range(4)
LENGTH = 5


@pytest.mark.parametrize("is_graph", [False, True])
@pytest.mark.parametrize(
    "count", [0, 1, BATCH_SIZE, BATCH_SIZE + 1, 3 * BATCH_SIZE + 7]
)
def test_parts_make_the_whole(count, is_graph):
    sizes = []

    def compute(features):
        ids = features["input_ids"]
        tf.py_function(lambda x: sizes.append(len(x)), [ids], [])
        return {
            "sums": ids + features["segment_ids"],
            "pairs": tf.stack([ids, -ids], axis=2),
            "not_wanted": ids,
        }

    def run(features):
        length = tf.shape(features["input_ids"])[1]
        nothing = {
            "pairs": tf.zeros([0, length, 2], tf.int32),
            "sums": tf.zeros([0, length], tf.int32),
        }
        return in_batches(compute, features, nothing)

    any_shape = tf.TensorSpec([None, None], tf.int32)
    if is_graph:
        names = ("input_ids", "segment_ids")
        run = tf.function(run, [dict.fromkeys(names, any_shape)])
    ids = np.arange(count * LENGTH, dtype="int32").reshape(count, LENGTH)
    done = run(
        {"input_ids": tf.constant(ids), "segment_ids": tf.ones_like(ids)}
    )
    assert set(done) == {"pairs", "sums"}
    assert (done["sums"].numpy() == ids + 1).all()
    assert (done["pairs"].numpy() == np.stack([ids, -ids], axis=2)).all()
    assert done["pairs"].shape == (count, LENGTH, 2)
    assert sum(sizes) == count
    assert all(0 < size <= BATCH_SIZE for size in sizes)


def test_rows_are_shown_by_text():
    encoding = TaggingEncoding(VOCAB, True, None, LENGTH, ("O", "B"))
    served = ServedTagger(BertTokenClassifier(CONFIG, 2), encoding)
    ids = tf.constant([[CLS, SEP], [CLS, UNK], [UNK, SEP]])
    features = {"input_ids": ids, "input_mask": tf.ones_like(ids)}
    texts = tf.constant([1, 1, 3], tf.int64)
    num_rows, seen = rows_by_text(served, features, texts, tf.constant(4))
    assert num_rows.numpy().tolist() == [0, 2, 0, 1]
    nothing = [PAD, PAD]
    assert seen["input_ids"].numpy().tolist() == [
        [nothing, nothing],
        [[CLS, SEP], [CLS, UNK]],
        [nothing, nothing],
        [[UNK, SEP], nothing],
    ]
    assert seen["input_mask"].numpy().sum(axis=(1, 2)).tolist() == [0, 4, 0, 2]
    assert seen["tokens"].numpy()[3, 0].tolist() == [b"[UNK]", b"[SEP]"]
