"""run_pretraining.py's step, for benchmarks/training_step.py."""

import os
from collections.abc import Mapping
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import pretraining_step
import tensorflow as tf
import training

from bert_tf.config import BertConfig


def make(request: Mapping[str, Any]):
    if request["precision"] == "bfloat16":
        keras.config.set_dtype_policy("mixed_bfloat16")
    update = pretraining_step.make(
        BertConfig(**request["config"]), random_batch(request)
    )
    matrix = tf.cast(
        tf.random.normal([training.SIZE] * 2), request["precision"]
    )
    return update, lambda: tf.matmul(matrix, matrix).numpy()


def random_batch(request: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Full-length examples of random ids."""
    random = np.random.default_rng(0)
    size, length = request["batch_size"], request["max_seq_length"]
    vocab_size = request["config"]["vocab_size"]
    shape = size, length
    masked = size, request["max_predictions_per_seq"]
    return {
        "input_ids": random.integers(vocab_size, size=shape, dtype="i"),
        "input_mask": np.ones(shape, "int32"),
        "segment_ids": random.integers(2, size=shape, dtype="i"),
        "masked_lm_positions": random.integers(length, size=masked, dtype="i"),
        "masked_lm_ids": random.integers(vocab_size, size=masked, dtype="i"),
        "masked_lm_weights": np.ones(masked, "float32"),
        "next_sentence_labels": np.ones((size, 1), "int32"),
    }


if __name__ == "__main__":
    training.main(make, ("tensorflow", "keras"))
