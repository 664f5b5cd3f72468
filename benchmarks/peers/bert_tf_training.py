"""run_pretraining.py's step, for benchmarks/training_step.py."""

import os
from collections.abc import Mapping
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import pretraining_step
import tensorflow as tf
import training
from random_examples import batch_of

from bert_tf.config import BertConfig


def make(request: Mapping[str, Any]):
    if request["precision"] == "bfloat16":
        keras.config.set_dtype_policy("mixed_bfloat16")
    config = BertConfig(**request["config"])
    matrix = tf.cast(
        tf.random.normal([request["matrix_size"]] * 2), request["precision"]
    )
    return training.Work(
        pretraining_step.make(config, batch_of(request)),
        lambda: tf.matmul(matrix, matrix).numpy(),
    )


if __name__ == "__main__":
    training.main(make, ("tensorflow", "keras"))
