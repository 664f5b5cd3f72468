"""A task that trains quickly, for tests of the training loop.

It has what the loop must handle: two losses with different weights, dropout,
and an embedding table.
"""

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from bert_tf.data.records import Feature
from bert_tf.modeling.transformer import Dropout
from bert_tf.tasks.task import Task

ROWS, WIDTH, CLASSES = 7, 5, 3


class ToyModel(keras.Model):
    """The mean of some rows of a table, dropout, a dense head."""

    def __init__(self, dropout_rate: float, classes: int):
        super().__init__(name="toy")
        self.table = keras.layers.Embedding(ROWS, WIDTH, name="bert")
        self.dropout = Dropout(dropout_rate)
        self.head = keras.layers.Dense(classes, name="head", dtype="float32")

    def build(self, input_shape=None):
        self.table.build()
        self.head.build((None, WIDTH))

    def call(self, features, training=False, seed=None):
        x = ops.mean(self.table(features["ids"]), axis=1)
        x = self.dropout(x, training=training, seed=seed)
        return {"pooled": ops.cast(x, "float32"), "logits": self.head(x)}


class ToyTask(Task):
    """Learns a class, and to keep the pooled vector small."""

    schema = (
        Feature("ids", (4,)),
        Feature("label", ()),
        Feature("weight", (), "float32"),
    )
    loss_names = ("class_loss", "size_loss")
    new_variables = "head/"
    unused_variables = r"(?!)"

    def __init__(self, dropout_rate: float = 0.0, classes: int = CLASSES):
        self.dropout_rate = dropout_rate
        self.classes = classes

    def build_model(self, is_restored=False):
        model = ToyModel(self.dropout_rate, self.classes)
        model.build()
        return model

    def loss_weights(self, features):
        return {
            "class_loss": features["weight"],
            "size_loss": ops.ones_like(features["weight"]),
        }

    def losses(self, features, outputs):
        class_loss = keras.losses.sparse_categorical_crossentropy(
            features["label"], outputs["logits"], from_logits=True
        )
        return {
            "class_loss": class_loss * features["weight"],
            "size_loss": ops.sum(ops.square(outputs["pooled"]), axis=-1),
        }

    def predictions(self, features, outputs):
        return {
            "ids": features["ids"],
            "weight": features["weight"],
            "logits": outputs["logits"],
            **self.losses(features, outputs),
        }

    def score(self, predictions):
        total, weight = predictions["class_loss"].sum(), predictions["weight"]
        return {"loss": float(total / weight.sum()), "examples": len(weight)}


def examples(count: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Random features; the weights of the second half are much larger."""
    random = np.random.default_rng(seed)
    weight = random.uniform(0.1, 0.5, count)
    weight[count // 2 :] *= 17
    return {
        "ids": random.integers(0, ROWS, [count, 4]).astype("int32"),
        "label": random.integers(0, CLASSES, count).astype("int32"),
        "weight": weight.astype("float32"),
    }


def training_data(features: dict[str, np.ndarray]):
    """Repeats the examples, for `Estimator.train`."""

    def make(batch_size, num_shards=1, shard=0, start_example=0):
        return (
            tf.data.Dataset.from_tensor_slices(features)
            .repeat()
            .skip(start_example)
            .shard(num_shards, shard)
            .batch(batch_size, drop_remainder=True)
        )

    return make


def evaluation_data(features: dict[str, np.ndarray]):
    """Every example once, then padding, for `Estimator.evaluate`."""
    count = len(features["weight"])

    def make(batch_size, num_shards, shard):
        padding = -count % (batch_size * num_shards)
        padded = {
            name: np.pad(v, [(0, padding)] + [(0, 0)] * (v.ndim - 1))
            for name, v in features.items()
        }
        is_real = np.arange(count + padding) < count
        padded["is_real_example"] = is_real.astype("int32")
        padded["example_index"] = np.arange(count + padding, dtype="int32")
        return (
            tf.data.Dataset.from_tensor_slices(padded)
            .shard(num_shards, shard)
            .batch(batch_size, drop_remainder=True)
        )

    return make


def two_devices() -> tf.distribute.Strategy:
    return mirrored(2)


def mirrored(replicas: int) -> tf.distribute.Strategy:
    """Replicas on CPUs of conftest.py; see CONTRIBUTING.md."""
    return tf.distribute.MirroredStrategy(
        [f"CPU:{index}" for index in range(replicas)],
        cross_device_ops=tf.distribute.ReductionToOneDevice(),
    )
