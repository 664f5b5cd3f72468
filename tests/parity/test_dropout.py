"""Dropout where the original has it, at its rates, with its scale."""

import keras
import numpy as np
import pytest
from keras import ops

from bert_tf.config import BertConfig
from bert_tf.heads import BertClassifier

HIDDEN, ATTENTION, HEAD = 0.3, 0.15, 0.1
LAYERS = 2
CONFIG = BertConfig(
    vocab_size=97,
    hidden_size=40,
    num_hidden_layers=LAYERS,
    num_attention_heads=5,
    intermediate_size=61,
    hidden_dropout_prob=HIDDEN,
    attention_probs_dropout_prob=ATTENTION,
    max_position_embeddings=53,
    type_vocab_size=2,
)
# After the embeddings; attention probabilities, attention output and
# feed-forward output of each layer; before the classes.
RATES = [HIDDEN, *[ATTENTION, HIDDEN, HIDDEN] * LAYERS, HEAD]


@pytest.fixture
def places(monkeypatch):
    """(input, output) of every dropout of one training pass, in turn."""
    seen = []
    dropout = keras.random.dropout

    def watched(inputs, rate, seed):
        outputs = dropout(inputs, rate, seed=seed)
        seen.append([ops.convert_to_numpy(x) for x in (inputs, outputs)])
        return outputs

    monkeypatch.setattr(keras.random, "dropout", watched)
    random = np.random.default_rng(5)
    batch = {
        "input_ids": random.integers(0, 97, (41, 53)),
        "input_mask": (random.random((41, 53)) < 0.9).astype("int32"),
    }
    seed = ops.convert_to_tensor([7, 11], "int32")
    BertClassifier(CONFIG, num_labels=3)(batch, training=True, seed=seed)
    return seen


def test_dropout_at_every_place(places, fidelity):
    assert len(places) == len(RATES)
    deviations, gaps = [], []
    for (inputs, outputs), rate in zip(places, RATES, strict=True):
        # Attention to padding is zero before.
        outputs, inputs = outputs[inputs != 0], inputs[inputs != 0]
        dropped = outputs == 0
        sigma = np.sqrt(rate * (1 - rate) / dropped.size)
        deviations.append(abs(dropped.mean() - rate) / sigma)
        kept = outputs[~dropped] * (1 - rate) / inputs[~dropped]
        gaps.append(np.abs(kept - 1).max())
    fidelity(
        "model: dropout, share of zeros at each of 8 places: distance from "
        "its rate in standard deviations",
        max(deviations),
        4,
    )
    fidelity(
        "model: dropout, what is kept: relative difference from the value "
        "over 1 - rate",
        max(gaps),
        1e-6,
    )
