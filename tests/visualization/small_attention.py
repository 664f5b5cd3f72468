"""Attentions that no model has computed; no test by itself."""

import numpy as np

from bert_tf.tokenization.wordpiece import FullTokenizer
from bert_tf.visualization.attention import Attention, Passage, read_passage

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
    """As the tokenizer of this vocabulary has it."""
    return read_passage(FullTokenizer(VOCAB), text, text_b)


def attention(
    passage: Passage, num_layers: int = 3, num_heads: int = 5, seed: int = 0
) -> Attention:
    """Heads that each differ, float32; rows add up to 1."""
    size = len(passage.pieces)
    generator = np.random.default_rng(seed)
    scores = generator.normal(
        size=(num_layers, num_heads, size, size), scale=2.0
    )
    weights = np.exp(scores)
    weights /= weights.sum(-1, keepdims=True)
    return Attention(passage, weights.astype("float32"), "owner/model")
