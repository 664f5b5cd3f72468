"""Windows: splits texts that are longer than the model's sequences.

`task.Rows.pool` joins the outputs of the windows of a text.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np

from bert_tf.config import TOKEN_POOLINGS

Item = TypeVar("Item")

# How the outputs of a text's windows become the outputs of the text.
WINDOW_POOLINGS = tuple(name for name in TOKEN_POOLINGS if name != "cls")


def window_spans(
    num_tokens: int, room: int, doc_stride: int
) -> list[tuple[int, int]]:
    """Returns the tokens [start, end) of each window over a text.

    Windows advance by `doc_stride`, but never by more than their length, until
    one reaches the end: 10 tokens, room for 4 and a stride of 3 give
    [(0, 4), (3, 7), (6, 10)]. A text without tokens has one empty window.
    """
    step = max(1, min(room, doc_stride))
    starts = range(0, max(num_tokens - room, 0) + step, step)
    return [(start, min(start + room, num_tokens)) for start in starts]


def max_context(
    spans: Sequence[tuple[int, int]], num_tokens: int
) -> list[np.ndarray]:
    """Returns for each window whether it owns each of its tokens, bool [n].

    Vectorized `_check_is_max_context` of the original: the score of a token in
    a window is the smaller number of tokens to its left and right, plus 1 % of
    the window's length. The first window with the highest score owns it.
    """
    best, owner = np.full(num_tokens, -1.0), np.zeros(num_tokens, int)
    for number, (start, end) in enumerate(spans):
        left = np.arange(end - start)
        score = np.minimum(left, left[::-1]) + 0.01 * len(left)
        is_better = score > best[start:end]
        best[start:end][is_better] = score[is_better]
        owner[start:end][is_better] = number
    return [
        owner[start:end] == number for number, (start, end) in enumerate(spans)
    ]


def split_texts(
    texts: Iterable[Item],
    num_characters: Callable[[Item], int],
    doc_stride: int,
    num_windows: int,
) -> Iterator[list[Item]]:
    """Yields texts in parts of about `num_windows` windows each.

    The number of windows is estimated at three characters per token, without
    tokenizing. A part has at least one text.
    """
    part: list[Item] = []
    size = 0
    for text in texts:
        count = 1 + num_characters(text) // (3 * doc_stride)
        if part and size + count > num_windows:
            yield part
            part, size = [], 0
        part.append(text)
        size += count
    if part:
        yield part
