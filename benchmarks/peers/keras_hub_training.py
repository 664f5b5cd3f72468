"""KerasHub's BERT with its head for masked words, for training_step.py.

Its encoder and head, and a next-sentence classifier as its users would put it
beside them, in Keras's own training step. It needs what keras_hub.txt lists
above TensorFlow and Keras, and nothing of bert_tf.
"""

import os
from collections.abc import Mapping
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import keras_hub
import numpy as np
import tensorflow as tf
import training


def make(request: Mapping[str, Any]):
    if request["precision"] == "bfloat16":
        keras.config.set_dtype_policy("mixed_bfloat16")
    model = pretrainer(request["config"], request["max_predictions_per_seq"])
    model.compile(
        keras.optimizers.AdamW(
            1e-4, weight_decay=0.01, epsilon=1e-6, global_clipnorm=1.0
        ),
        [
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        ],
    )
    batch = random_batch(request)
    matrix = tf.cast(
        tf.random.normal([request["matrix_size"]] * 2), request["precision"]
    )
    return training.Work(
        lambda: model.train_on_batch(*batch),
        lambda: tf.matmul(matrix, matrix).numpy(),
    )


def pretrainer(config: Mapping[str, Any], max_predictions: int) -> keras.Model:
    encoder = keras_hub.models.BertBackbone(
        vocabulary_size=config["vocab_size"],
        num_layers=config["num_hidden_layers"],
        num_heads=config["num_attention_heads"],
        hidden_dim=config["hidden_size"],
        intermediate_dim=config["intermediate_size"],
        max_sequence_length=config["max_position_embeddings"],
    )
    places = keras.Input([max_predictions], dtype="int32", name="places")
    outputs = encoder.output
    words = keras_hub.layers.MaskedLMHead(
        token_embedding=encoder.token_embedding,
        intermediate_activation="gelu",
    )(outputs["sequence_output"], mask_positions=places)
    follows = keras.layers.Dense(2)(outputs["pooled_output"])
    return keras.Model([encoder.input, places], [words, follows])


def random_batch(request: Mapping[str, Any]):
    """Full-length examples of random ids."""
    random = np.random.default_rng(0)
    size, length = len(request["rows"]), request["max_seq_length"]
    vocab_size = request["config"]["vocab_size"]
    shape = size, length
    masked = size, request["max_predictions_per_seq"]
    features = {
        "token_ids": random.integers(vocab_size, size=shape, dtype="i"),
        "padding_mask": np.ones(shape, "int32"),
        "segment_ids": random.integers(2, size=shape, dtype="i"),
    }
    places = random.integers(length, size=masked, dtype="i")
    words = random.integers(vocab_size, size=masked, dtype="i")
    return [features, places], [words, np.ones(size, "int32")]


if __name__ == "__main__":
    training.main(make, ("keras-hub", "keras", "tensorflow"))
