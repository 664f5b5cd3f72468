"""The step of run_pretraining.py, for benchmarks/training_step.py."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import side
import tensorflow as tf

from bert_tf import AdamWeightDecay, BertConfig
from bert_tf.tasks.pretraining import PretrainingTask
from bert_tf.training.distribution import should_compile
from bert_tf.training.step import TrainingStep


def make_step(config, features, jit_compile=None):
    """Returns a function that makes one update of a new model.

    Args:
      config: The configuration of the model.
      features: The batch of every step.
      jit_compile: Whether XLA compiles the step; None decides by the device.
    """
    strategy = tf.distribute.get_strategy()
    length = features["input_ids"].shape[1]
    masked = features["masked_lm_positions"].shape[1]
    task = PretrainingTask(config, length, masked)
    with strategy.scope():
        model = task.build_model()
        optimizer = AdamWeightDecay(1e-4)
        optimizer.build(model.trainable_variables)
    step = TrainingStep(
        task,
        model,
        optimizer,
        strategy,
        jit_compile=should_compile(strategy, jit_compile),
        jit_compile_passes=jit_compile is not False,
    )
    data = iter(tf.data.Dataset.from_tensors(dict(features)).repeat())
    return lambda: step.run(data, tf.constant(1))["loss"].numpy()


def make(setup):
    if setup["precision"] == "bfloat16":
        keras.config.set_dtype_policy("mixed_bfloat16")
    matrix = tf.cast(
        tf.random.normal([setup["matrix_size"]] * 2), setup["precision"]
    )
    return side.Work(
        make_step(BertConfig(**setup["config"]), side.batch_of(setup)),
        lambda: tf.matmul(matrix, matrix).numpy(),
    )


if __name__ == "__main__":
    side.serve_training(make, ("tensorflow", "keras"))
