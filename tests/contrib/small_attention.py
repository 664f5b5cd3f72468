"""Attention weights that no model computed. Not a test."""

import numpy as np

from bert_tf.contrib.attention_page import AttentionMaps, Passage, read_passage
from bert_tf.tokenization.wordpiece import FullTokenizer

VOCAB = (
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    *("the", "cat", "sat", "on", "mat", "un", "##break", "##able", "cafe"),
    *("it", "was", "soft", "script", "alert", "b", "weights", "facts"),
    *".,-_&;!?()<>/'\"{}$=1",
    *("שלום", "עולם", "東", "京"),
)
TEXT = "The unbreakable cat sat on the mat."
TEXT_B = "It was soft, it was unbreakable!"
NASTY = (
    '</script><script>alert(1)</script> <b>&amp; "cafe" \'$1$ {{weights}} '
    "{{facts}} <!-- [MASK] Café 東京"
)


def passage(text: str = TEXT, text_b: str | None = None) -> Passage:
    return read_passage(FullTokenizer(VOCAB), text, text_b)


def attention(
    passage: Passage, num_layers: int = 3, num_heads: int = 5
) -> AttentionMaps:
    """Returns float32 weights that differ between heads; rows sum to 1."""
    size = len(passage.pieces)
    shape = (num_layers, num_heads, size, size)
    weights = np.exp(np.random.default_rng(0).normal(size=shape, scale=2.0))
    weights /= weights.sum(-1, keepdims=True)
    return AttentionMaps(passage, weights.astype("float32"), "owner/model")
