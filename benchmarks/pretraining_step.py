"""The step that run_pretraining.py runs, on one batch, for benchmarks."""

from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf

from bert_tf.config import BertConfig
from bert_tf.optimization import AdamWeightDecay
from bert_tf.tasks.pretraining import PretrainingTask
from bert_tf.training.distribution import should_compile
from bert_tf.training.step import TrainingStep


def make(
    config: BertConfig,
    features: Mapping[str, tf.Tensor],
    jit_compile: bool | None = None,
) -> Callable[[], np.ndarray]:
    """A new model's updates, in the precision of Keras's policy.

    Args:
      config: Its shape.
      features: The batch of every step, as the pipeline makes them.
      jit_compile: As --use_xla has it; None decides by the device.

    Returns:
      A function that makes one update, waits for it, and gives its loss.
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
    one = tf.constant(1)
    return lambda: step.run(data, one)["loss"].numpy()
