"""Contexts in windows, inside a graph: `data.windows` on tensors.

A context that is too long for one sequence comes in several windows, which
overlap; the numbers of `data.windows`, for a batch of questions at once.
"""

from typing import NamedTuple

import tensorflow as tf

# [CLS] and a [SEP] behind the question and behind the window.
_NUM_SPECIAL = 3


class Windows(NamedTuple):
    """What W windows show, those of a question in order.

    Attributes:
      question: Which question each is of, int64 [W].
      first: The place of its first piece of the context, int64 [W]; the
        others follow.
      pieces: Which pieces it shows: numbers of those of all contexts, one
        context behind another; int64, ragged [W, (L)].
      is_max_context: Whether no other window shows the piece with more around
        it, nor an earlier one with as much; bool, ragged [W, (L)].
    """

    question: tf.Tensor
    first: tf.Tensor
    pieces: tf.RaggedTensor
    is_max_context: tf.RaggedTensor


def lay_windows(
    num_pieces: tf.Tensor,
    query_lengths: tf.Tensor,
    max_seq_length: int,
    doc_stride: int,
) -> Windows:
    """Lays windows over contexts, as many as it takes to reach the end.

    A context without pieces has none.

    Args:
      num_pieces: Pieces of the context of each question, int64 [B].
      query_lengths: Pieces of each question itself, cut, int64 [B].
      max_seq_length: Places of a sequence.
      doc_stride: Pieces between two starts; never more than a window.
    """
    room = max_seq_length - _NUM_SPECIAL - query_lengths  # [B]
    step = tf.minimum(room, doc_stride)
    # Rounded up, as a division that rounds down does with the sign changed.
    steps = -(-tf.maximum(num_pieces - room, 0) // step)
    numbers = tf.ragged.range(tf.where(num_pieces > 0, steps + 1, 0))
    question = numbers.value_rowids()  # [W]
    start = numbers.values * tf.gather(step, question)
    length = tf.minimum(
        tf.gather(room, question), tf.gather(num_pieces, question) - start
    )
    origin = tf.gather(tf.cumsum(num_pieces, exclusive=True), question)
    begin = origin + start
    pieces = tf.ragged.range(begin, begin + length)
    return Windows(
        question,
        tf.gather(query_lengths, question) + 2,
        pieces,
        _max_context(pieces, tf.reduce_sum(num_pieces)),
    )


def _max_context(
    pieces: tf.RaggedTensor, num_pieces: tf.Tensor
) -> tf.RaggedTensor:
    """The original's `_check_is_max_context`, for all pieces at once.

    The score of a window is the lesser of the pieces to the left and to the
    right, plus a hundredth of its length; of equal ones the first counts.
    """
    window = pieces.value_rowids()  # [P], all pieces of all windows
    left = tf.ragged.range(pieces.row_lengths()).values
    length = tf.gather(pieces.row_lengths(), window)
    around = tf.minimum(left, length - 1 - left)
    # In double precision, for the same ones to be equal as in Python.
    score = tf.cast(around, tf.float64) + 0.01 * tf.cast(length, tf.float64)
    piece = pieces.values
    best = tf.math.unsorted_segment_max(score, piece, num_pieces)
    is_best = score == tf.gather(best, piece)
    owner = tf.math.unsorted_segment_min(
        tf.where(is_best, window, window.dtype.max), piece, num_pieces
    )
    return pieces.with_values(tf.gather(owner, piece) == window)
