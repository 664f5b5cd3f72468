"""A small model with each head, as arrays by name."""

import numpy as np

from bert_tf.config import BertConfig
from bert_tf.interop.checkpoint import Pretrained
from bert_tf.interop.huggingface_names import PARTS_OF_HEAD, rows

CONFIG = BertConfig(
    vocab_size=23,
    hidden_size=12,
    num_hidden_layers=2,
    num_attention_heads=3,
    intermediate_size=17,
    max_position_embeddings=19,
    type_vocab_size=2,
)
NUM_LABELS = {"classifier": 5, "token": 7, "choice": 1}
VOCAB = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqr")


class Arrays(dict):
    """A `Weights` in memory."""

    path = "memory"

    @property
    def shapes(self):
        return {name: value.shape for name, value in self.items()}


def arrays(head, config=CONFIG, pooler=True, seed=0):
    """Random weights of a model with this head, by their TF1 names."""
    generator = np.random.default_rng(seed)
    parts = {*PARTS_OF_HEAD[head]} | ({"pooler"} if pooler else set())
    return Arrays(
        {
            row.ours: generator.normal(
                size=[size or NUM_LABELS[head] for size in row.shape],
                scale=0.5,
            ).astype("float32")
            for row in rows(config)
            if row.part in parts
        }
    )


def slots(weights, step=11, seed=1):
    """Adam's slots for these weights."""
    generator = np.random.default_rng(seed)
    named = {
        f"{name}/{slot}": generator.random(value.shape, dtype="float32")
        for name, value in weights.items()
        for slot in ("adam_m", "adam_v")
    }
    return {**named, "global_step": np.int64(step)}


def pretrained(head, config=CONFIG, **more):
    """A whole checkpoint in memory."""
    labels = None
    if head in ("classifier", "token"):
        labels = tuple(f"label {n}" for n in range(NUM_LABELS[head]))
    facts = {
        "path": "memory",
        "weights": arrays(head, config),
        "config": config,
        "vocab": VOCAB,
        "do_lower_case": True,
        "labels": labels,
        "head": head,
    }
    return Pretrained(**facts | more)


def assert_same_weights(ours, theirs):
    """Compares names and values."""
    assert set(ours.shapes) == set(theirs.shapes)
    for name in ours.shapes:
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)
