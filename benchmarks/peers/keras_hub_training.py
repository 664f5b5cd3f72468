"""KerasHub's BERT with its masked-word head, for benchmarks/training_step.py.

Its encoder and head, and a next-sentence classifier as its users would add it,
in Keras's training step. It needs keras_hub.txt, TensorFlow and Keras.
"""

import argparse
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import keras_hub
import numpy as np
import side
import tensorflow as tf


def make(request):
    if request["precision"] == "bfloat16":
        keras.config.set_dtype_policy("mixed_bfloat16")
    model = pretrainer(request["config"], request["max_predictions_per_seq"])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.AdamW(
        1e-4, weight_decay=0.01, epsilon=1e-6, global_clipnorm=1.0
    )
    model.compile(optimizer, [loss, loss])
    batch = random_batch(request)
    matrix = tf.cast(
        tf.random.normal([request["matrix_size"]] * 2), request["precision"]
    )
    return side.Work(
        lambda: model.train_on_batch(*batch),
        lambda: tf.matmul(matrix, matrix).numpy(),
    )


def pretrainer(config, max_predictions):
    encoder = keras_hub.models.BertBackbone(
        vocabulary_size=config["vocab_size"],
        num_layers=config["num_hidden_layers"],
        num_heads=config["num_attention_heads"],
        hidden_dim=config["hidden_size"],
        intermediate_dim=config["intermediate_size"],
        max_sequence_length=config["max_position_embeddings"],
    )
    positions = keras.Input([max_predictions], dtype="int32", name="positions")
    outputs = encoder.output
    words = keras_hub.layers.MaskedLMHead(
        token_embedding=encoder.token_embedding,
        intermediate_activation="gelu",
    )(outputs["sequence_output"], mask_positions=positions)
    follows = keras.layers.Dense(2)(outputs["pooled_output"])
    return keras.Model([encoder.input, positions], [words, follows])


def random_batch(request):
    """Returns full-length examples of random ids, and labels."""
    random = np.random.default_rng(0)
    size, length = len(request["rows"]), request["max_seq_length"]
    vocab_size = request["config"]["vocab_size"]
    masked = size, request["max_predictions_per_seq"]
    features = {
        "token_ids": random.integers(
            vocab_size, size=(size, length), dtype="i"
        ),
        "padding_mask": np.ones((size, length), "int32"),
        "segment_ids": random.integers(2, size=(size, length), dtype="i"),
    }
    positions = random.integers(length, size=masked, dtype="i")
    words = random.integers(vocab_size, size=masked, dtype="i")
    return [features, positions], [words, np.ones(size, "int32")]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--num_threads", type=int, required=True)
    side.serve_training(
        make,
        parser.parse_args().num_threads,
        ("keras-hub", "keras", "tensorflow"),
    )
