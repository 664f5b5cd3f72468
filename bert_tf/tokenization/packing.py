"""Packs token ids as `[CLS] a [SEP] b [SEP]`."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bert_tf.errors import wrong_value


def truncated_lengths(
    length_a: Any,
    length_b: Any,
    room: Any,
    minimum: Callable[[Any, Any], Any] = np.minimum,
    maximum: Callable[[Any, Any], Any] = np.maximum,
) -> tuple[Any, Any]:
    """Returns how many tokens of each sequence of a pair to keep.

    The original (`_truncate_seq_pair`) drops one token at a time from the
    longer sequence, from the second if both are equal, until both fit. So
    each sequence may keep half of the room, or what the other one leaves if
    that is more. If the room is odd, the first sequence gets the larger half.

    For example, 9 and 5 tokens with room for 7 keep (4, 3); 9 and 2 tokens
    keep (5, 2).

    Args:
      length_a: The length of the first sequence: an int or an array of ints.
      length_b: The length of the second sequence.
      room: The number of tokens to keep in all, at least 0.
      minimum: `np.minimum` or, for tensors, `tf.minimum`.
      maximum: `np.maximum` or, for tensors, `tf.maximum`.
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
    """Packs one or two sequences, truncating them at their ends.

    Args:
      ids_a: The token ids of the first sequence.
      ids_b: The token ids of the second sequence, or None.
      max_seq_length: The largest length, including special tokens.

    Returns:
      (input_ids, segment_ids), of equal length, without padding. Segment 0
      ends with the first `[SEP]`.

    Raises:
      InputError: If the special tokens do not fit.
    """
    room = max_seq_length - (2 if ids_b is None else 3)
    if room < 0:
        raise wrong_value(
            "max_seq_length",
            "large enough for [CLS] and a [SEP] after each sequence",
            max_seq_length,
        )
    if ids_b is None:
        input_ids = [cls_id, *ids_a[:room], sep_id]
        return input_ids, [0] * len(input_ids)
    keep_a, keep_b = truncated_lengths(len(ids_a), len(ids_b), room)
    first = [cls_id, *ids_a[:keep_a], sep_id]
    second = [*ids_b[:keep_b], sep_id]
    return first + second, [0] * len(first) + [1] * len(second)
