"""Dropout: where the original has it, at its rates and with its scale."""

import dataclasses

import keras
import numpy as np
from keras import ops

from bert_tf.modeling import kernels
from bert_tf.modeling.heads import BertClassifier
from tests.backends import small_bert

HIDDEN, ATTENTION, HEAD = 0.3, 0.15, 0.1
CONFIG = dataclasses.replace(
    small_bert.CONFIG,
    hidden_size=40,
    hidden_dropout_prob=HIDDEN,
    attention_probs_dropout_prob=ATTENTION,
    max_position_embeddings=53,
)
# After the embeddings; attention probabilities, attention output and
# feed-forward output of each layer; before the classes.
RATES = [HIDDEN, *[ATTENTION, HIDDEN, HIDDEN] * CONFIG.num_hidden_layers, HEAD]


def test_dropout_at_every_place(monkeypatch, fidelity):
    calls, seeds = [], set()
    name = "dropout"
    if keras.config.backend() == "jax":
        name = "_hashed_dropout"
    dropout = getattr(kernels, name)

    def watched(inputs, rate, seed):
        outputs = dropout(inputs, rate, seed=seed)
        calls.append([ops.convert_to_numpy(x) for x in (inputs, outputs)])
        seeds.add(tuple(ops.convert_to_numpy(seed).tolist()))
        return outputs

    monkeypatch.setattr(kernels, name, watched)
    batch = {
        "input_ids": small_bert.integers("ids", (41, 53), small_bert.V),
        "input_mask": 1 - small_bert.integers("mask", (41, 53), 10) // 9,
    }
    seed = ops.convert_to_tensor([7, 11], "int32")
    BertClassifier(CONFIG, num_labels=3)(batch, training=True, seed=seed)
    assert len(calls) == len(seeds) == len(RATES)
    deviations, gaps = [], []
    for (inputs, outputs), rate in zip(calls, RATES, strict=True):
        # The probability of attention to padding is zero.
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
