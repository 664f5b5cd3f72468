"""Trains on epochs that end in a smaller batch; equality.py compares them.

    python benchmarks/ragged_epochs.py --output_dir=/tmp/ragged \\
        --train_batch_size=24 --num_train_steps=30 \\
        --gradient_accumulation_steps=3

The data has 29 examples, so every second batch has 5. It is split as a full
batch is: of two replicas the first gets 5 examples and the second none; of
three micro-batches two get 2 and one gets 1. The scripts have no such batches,
but custom data may: this is how to pass it to `Estimator`.
"""

# Before anything that imports TensorFlow.
from bert_tf import start_tensorflow

start_tensorflow.quietly()

import dataclasses

import numpy as np
import tensorflow as tf
from small_tasks import CONFIG, LENGTH, PREDICTIONS, pretraining_examples

from bert_tf import cli
from bert_tf.base.options import option
from bert_tf.config import BertConfig
from bert_tf.jobs import settings
from bert_tf.jobs.settings import DeviceOptions, TrainingOptions
from bert_tf.kinds.pretraining.task import PretrainingTask
from bert_tf.training.estimator import Estimator, TrainingData

NUM_EXAMPLES = 29


@dataclasses.dataclass(frozen=True, kw_only=True)
class RaggedConfig(TrainingOptions, DeviceOptions):
    """Options of this program."""

    output_dir: str = option("Folder of the checkpoints.", per_worker=True)
    num_train_steps: int = option("Number of steps.", default=30)
    num_warmup_steps: int = option("Steps of linear warm-up.", default=3)


def run(config: RaggedConfig) -> None:
    """Trains on epochs whose last batch is smaller."""
    strategy = settings.connect(config)
    training = settings.training_config(
        config, config.num_train_steps, config.num_warmup_steps
    )
    task = PretrainingTask(BertConfig.from_dict(CONFIG), LENGTH, PREDICTIONS)
    estimator = Estimator(task, strategy, training, config.output_dir)
    examples = pretraining_examples(NUM_EXAMPLES)
    estimator.train(training_data(examples, config.train_batch_size))


def training_data(
    examples: dict[str, np.ndarray], global_batch_size: int
) -> TrainingData:
    """Returns a function that makes a data set of all epochs."""
    count = len(next(iter(examples.values())))

    def make(
        batch_size: int, num_shards: int, shard: int, start_example: int = 0
    ) -> tf.data.Dataset:
        first = np.arange(0, count, global_batch_size)[:, np.newaxis]
        first = first + np.arange(0, global_batch_size, batch_size)
        # The replicas of a worker are adjacent.
        first = first.reshape(len(first), num_shards, -1)[:, shard]
        steps_done = start_example // global_batch_size
        return (
            tf.data.Dataset.from_tensor_slices(first.reshape(-1))
            .repeat()
            .skip(steps_done * first.shape[1])
            .map(lambda start: rows(start, start + batch_size))
        )

    def rows(start: tf.Tensor, end: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the examples that exist, possibly none."""
        return {k: tf.constant(v)[start:end] for k, v in examples.items()}

    return make


if __name__ == "__main__":
    cli.main(run)
