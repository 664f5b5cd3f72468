"""Truncation and packing against the original's loop."""

import csv

import numpy as np
import pytest

from bert_tf.errors import InputError
from bert_tf.tokenization.packing import pack, truncated_lengths
from bert_tf.tokenization.wordpiece import FullTokenizer


def truncated_by_loop(length_a, length_b, room):
    while length_a + length_b > room:
        if length_a > length_b:
            length_a -= 1
        else:
            length_b -= 1
    return length_a, length_b


def test_lengths_are_those_of_the_loop():
    for a in range(17):
        for b in range(17):
            for room in range(23):
                expected = truncated_by_loop(a, b, room)
                assert truncated_lengths(a, b, room) == expected


def test_lengths_of_arrays():
    a, b, room = np.indices((13, 11, 17)).reshape(3, -1)
    kept = np.transpose(truncated_lengths(a, b, room))
    expected = list(map(truncated_by_loop, a, b, room))
    np.testing.assert_array_equal(kept, expected)


def test_pack_pair():
    assert pack([5, 6], [7], 9, cls_id=2, sep_id=3) == (
        [2, 5, 6, 3, 7, 3],
        [0, 0, 0, 0, 1, 1],
    )


def test_pack_single():
    assert pack([5, 6], None, 9, cls_id=2, sep_id=3) == (
        [2, 5, 6, 3],
        [0, 0, 0, 0],
    )


def test_pack_empty_second_is_still_a_pair():
    assert pack([5], [], 9, cls_id=2, sep_id=3) == ([2, 5, 3, 3], [0, 0, 0, 1])


@pytest.mark.parametrize("max_seq_length", range(3, 17))
def test_pack_cuts_the_longer_at_its_end(max_seq_length):
    a, b = list(range(10, 17)), list(range(20, 25))
    keep_a, keep_b = truncated_by_loop(len(a), len(b), max_seq_length - 3)
    input_ids, segment_ids = pack(a, b, max_seq_length, cls_id=2, sep_id=3)
    assert input_ids == [2, *a[:keep_a], 3, *b[:keep_b], 3]
    assert segment_ids == [0] * (keep_a + 2) + [1] * (keep_b + 1)


def test_pack_single_is_cut():
    assert pack([5, 6, 7], None, 4, cls_id=2, sep_id=3)[0] == [2, 5, 6, 3]
    assert pack([5, 6, 7], None, 2, cls_id=2, sep_id=3)[0] == [2, 3]


@pytest.mark.parametrize(("ids_b", "max_seq_length"), [(None, 1), ([4], 2)])
def test_no_room(ids_b, max_seq_length):
    with pytest.raises(InputError, match=f"Received: {max_seq_length}"):
        pack([4], ids_b, max_seq_length, cls_id=2, sep_id=3)


def test_records_of_google(shared_data):
    """MRPC as google-research/bert's run_classifier.py wrote it."""
    import tensorflow as tf

    vocab = shared_data / "vocab" / "bert-base-uncased-vocab.txt"
    records = shared_data / "google_bert_outputs" / "mrpc" / "eval.tf_record"
    rows = shared_data / "glue" / "MRPC" / "dev.tsv"
    tokenizer = FullTokenizer(vocab)
    cls_id, sep_id = tokenizer.convert_tokens_to_ids(["[CLS]", "[SEP]"])
    dataset = tf.data.TFRecordDataset(str(records)).as_numpy_iterator()
    with open(rows, encoding="utf-8") as file:
        reader = csv.reader(file, delimiter="\t", quotechar=None, quoting=3)
        for row, record in zip(list(reader)[1:], dataset, strict=True):
            texts = map(tokenizer.encode, row[3:5])
            ids, segments = pack(*texts, 128, cls_id, sep_id)
            features = tf.train.Example.FromString(record).features.feature
            padding = [0] * (128 - len(ids))
            assert features["input_ids"].int64_list.value == ids + padding
            assert features["segment_ids"].int64_list.value == (
                segments + padding
            )
