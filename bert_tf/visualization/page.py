"""Attention as a page to look at: one file, which asks nobody for anything.

What it looks like and does is in `page.html`; here the numbers are put in.
"""

import base64
import importlib.resources
import json
import re
import zlib
from typing import Any

import numpy as np

from bert_tf.visualization.attention import Attention

# Weights are kept as integers, of 16 bits where there are at most so many of
# them: BERT-Base with 128 pieces, and a page of some 4 MB. Of more weights
# the first 12 bits are kept, which are half as many bytes when compressed.
MOST_FINE_WEIGHTS = 3_000_000
FINE_LEVELS, COARSE_LEVELS = 2**16 - 1, 2**12 - 1

_SLOT = re.compile(r"\{\{(facts|weights)\}\}")


def write_page(
    attention: Attention,
    layer: int = 0,
    head: int = 0,
    join_pieces: bool = True,
    special_tokens: bool = True,
) -> str:
    """Makes the page.

    Args:
      attention: What is to be seen.
      layer: The layer that is shown first, from 0.
      head: Its head, from 0.
      join_pieces: Whether words are shown first, or their pieces.
      special_tokens: Whether `[CLS]` and `[SEP]` are shown at first.

    Returns:
      HTML; texts and weights are of ASCII characters in it.
    """
    levels = _levels(attention.weights)
    start = {
        "layer": layer,
        "head": head,
        "joined": join_pieces,
        "specials": special_tokens,
    }
    slots = {
        "facts": _as_script({**_facts(attention, levels), "start": start}),
        "weights": base64.b64encode(pack(attention.weights, levels)).decode(),
    }
    template = importlib.resources.files(__package__).joinpath("page.html")
    # All at once: what is put into one slot is not looked through again.
    return _SLOT.sub(
        lambda slot: slots[slot[1]], template.read_text(encoding="utf-8")
    )


def pack(weights: np.ndarray, levels: int) -> bytes:
    """Rounds weights to multiples of 1/levels and compresses them.

    Args:
      weights: Floats from 0 to 1.
      levels: At most 65535.

    Returns:
      A zlib stream of the high bytes of all integers, then the low bytes: the
      former are nearly all 0, for most weights are small.
    """
    whole = np.rint(np.clip(weights, 0, 1) * levels).astype("<u2")
    low, high = np.ascontiguousarray(whole).view(np.uint8).reshape(-1, 2).T
    return zlib.compress(high.tobytes() + low.tobytes())


def _levels(weights: np.ndarray) -> int:
    return FINE_LEVELS if weights.size <= MOST_FINE_WEIGHTS else COARSE_LEVELS


def _facts(attention: Attention, levels: int) -> dict[str, Any]:
    """All that the page knows beside the weights."""
    passage = attention.passage
    return {
        "model": attention.model,
        "layers": attention.num_layers,
        "heads": attention.num_heads,
        "levels": levels,
        "directions": passage.directions,
        "pieces": passage.pieces,
        "words": [
            {
                "text": word.text,
                "first": word.first,
                "end": word.end,
                "segment": word.segment,
                "special": word.is_special,
                "spaced": word.follows_space,
            }
            for word in passage.words
        ],
    }


def _as_script(facts: dict[str, Any]) -> str:
    """JSON that can stand in a <script>, whatever the texts hold.

    All but ASCII is escaped already, halves of surrogate pairs too. Without
    "<" there is neither an end of the script nor a comment in it.
    """
    return json.dumps(facts).replace("<", "\\u003c")
