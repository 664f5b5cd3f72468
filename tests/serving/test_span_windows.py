"""Windows in closed form in a graph are those of `data.windows`."""

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.serving.spans import lay_windows
from bert_tf.tasks.questions import Question, SpanEncoding, make_windows

VOCAB = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "a")
MAX_QUERY_LENGTH = 7


def laid(num_pieces, query_lengths, max_seq_length, doc_stride):
    """Those of tensors whose shapes are not known."""
    lengths = tf.TensorSpec([None], tf.int64)
    function = tf.function(
        lambda pieces, query: lay_windows(
            pieces, query, max_seq_length, doc_stride
        ),
        input_signature=[lengths, lengths],
    )
    return function(
        tf.constant(num_pieces, tf.int64), tf.constant(query_lengths, tf.int64)
    )


def made(num_pieces, query_lengths, max_seq_length, doc_stride):
    encoding = SpanEncoding(
        VOCAB, True, None, max_seq_length, doc_stride, MAX_QUERY_LENGTH
    )
    questions = [
        Question("q", "a " * query, "a " * pieces)
        for pieces, query in zip(num_pieces, query_lengths, strict=True)
    ]
    return make_windows(questions, encoding, with_positions=False).windows


@pytest.mark.parametrize("doc_stride", [1, 2, 5, 11, 128])
@pytest.mark.parametrize("max_seq_length", [11, 13, 41])
def test_windows_are_those_of_data(max_seq_length, doc_stride):
    random = np.random.default_rng(max_seq_length * doc_stride)
    num_pieces = [0, 1, *random.integers(0, 61, 29), 0, 307, 0]
    query_lengths = random.integers(0, MAX_QUERY_LENGTH + 1, len(num_pieces))
    sizes = num_pieces, query_lengths, max_seq_length, doc_stride
    windows, expected = laid(*sizes), made(*sizes)
    assert windows.question.numpy().tolist() == [w.question for w in expected]
    assert windows.first.numpy().tolist() == [w.first for w in expected]
    is_max_context = [w.is_max_context.tolist() for w in expected]
    assert windows.is_max_context.to_list() == is_max_context
    origins = np.cumsum(num_pieces) - num_pieces
    # Every second character is a piece.
    assert windows.pieces.to_list() == [
        (w.starts // 2 + origins[w.question]).tolist() for w in expected
    ]


def test_windows_of_one_score_to_the_last_bit_are_the_earlier():
    """The last window is a hundred pieces shorter: the sums are rounded."""
    for num_pieces in range(217, 240, 3):
        sizes = [num_pieces], [0], 120, 100
        is_max_context = [w.is_max_context.tolist() for w in made(*sizes)]
        assert laid(*sizes).is_max_context.to_list() == is_max_context


@pytest.mark.parametrize("num_pieces", [[], [0], [0, 0, 0]])
def test_no_pieces_are_no_windows(num_pieces):
    windows = laid(num_pieces, [3] * len(num_pieces), 13, 5)
    assert windows.question.shape == windows.first.shape == [0]
    assert windows.pieces.to_list() == windows.is_max_context.to_list() == []
