"""`[CLS] a [SEP] b [SEP]`, and what to cut when it is too long."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bert_tf.errors import InputError


def truncated_lengths(
    length_a: Any,
    length_b: Any,
    room: Any,
    minimum: Callable[[Any, Any], Any] = np.minimum,
    maximum: Callable[[Any, Any], Any] = np.maximum,
) -> tuple[Any, Any]:
    """Says how much of a pair is kept so that it fits.

    The original drops one piece at a time from the longer sequence, from the
    second on a tie, until both fit (`_truncate_seq_pair`). In the end neither
    has lost more than it takes to give each half of the room, or to give it
    what the other leaves over; the first has the odd place.

    Args:
      length_a: Pieces of the first sequence: an int or any array of ints.
      length_b: Pieces of the second.
      room: Places for both together, not negative.
      minimum: The element-wise minimum of such arrays.
      maximum: Their element-wise maximum.

    Returns:
      (keep_a, keep_b), which are (4, 3) for 9 and 5 pieces in a room of 7,
      and (5, 2) for 9 and 2.
    """
    keep_a = minimum(length_a, maximum(room - room // 2, room - length_b))
    keep_b = minimum(length_b, maximum(room // 2, room - length_a))
    return keep_a, keep_b


def pack(
    ids_a: Sequence[int],
    ids_b: Sequence[int] | None,
    max_seq_length: int,
    cls_id: int,
    sep_id: int,
) -> tuple[list[int], list[int]]:
    """Packs one or two sequences, cut at their ends where too long.

    Args:
      ids_a: Ids of the first sequence.
      ids_b: Ids of the second, or None where there is only one.
      max_seq_length: Places for everything, special tokens included.
      cls_id: Id of `[CLS]`.
      sep_id: Id of `[SEP]`.

    Returns:
      (input_ids, segment_ids), equally long, not padded. Segment 0 ends with
      the first `[SEP]`.

    Raises:
      InputError: If not even the special tokens fit.
    """
    room = max_seq_length - (2 if ids_b is None else 3)
    if room < 0:
        raise InputError(
            "Expected max_seq_length to hold [CLS] and a [SEP] for each "
            f"sequence. Received: {max_seq_length}"
        )
    if ids_b is None:
        input_ids = [cls_id, *ids_a[:room], sep_id]
        return input_ids, [0] * len(input_ids)
    keep_a, keep_b = truncated_lengths(len(ids_a), len(ids_b), room)
    first = [cls_id, *ids_a[:keep_a], sep_id]
    second = [*ids_b[:keep_b], sep_id]
    return first + second, [0] * len(first) + [1] * len(second)
