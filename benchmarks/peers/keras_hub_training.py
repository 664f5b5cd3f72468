"""KerasHub's BERT with its masked-word head, for benchmarks/training_step.py.

Its encoder and head, and a next-sentence classifier as its users would add it,
in Keras's training step. It needs keras_hub.txt, TensorFlow and Keras.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import keras_hub
import side
import tensorflow as tf


def make(setup):
    if setup["precision"] == "bfloat16":
        keras.config.set_dtype_policy("mixed_bfloat16")
    model = pretrainer(setup["config"], setup["max_predictions_per_seq"])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.AdamW(
        1e-4, weight_decay=0.01, epsilon=1e-6, global_clipnorm=1.0
    )
    model.compile(optimizer, [loss, loss])
    batch = side.batch_of(setup)
    features = {
        "token_ids": batch["input_ids"],
        "padding_mask": batch["input_mask"],
        "segment_ids": batch["segment_ids"],
    }
    inputs = [features, batch["masked_lm_positions"]]
    labels = [batch["masked_lm_ids"], batch["next_sentence_labels"]]
    matrix = tf.cast(
        tf.random.normal([setup["matrix_size"]] * 2), setup["precision"]
    )
    return side.Work(
        lambda: model.train_on_batch(inputs, labels),
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


if __name__ == "__main__":
    side.serve_training(make, ("keras-hub", "keras", "tensorflow"))
