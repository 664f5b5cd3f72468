"""The teacher of a distillation: opens it and computes its outputs once.

    python run_classifier.py --teacher=base_output/release ...

The student's examples are tokenized once, so both models must have the same
vocabulary and casing. The outputs become features of the training set:
training steps do not use the teacher, and checkpoints do not contain it.
"""

import dataclasses
import gc
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from absl import logging

from bert_tf.checkpoints.checkpoint import Pretrained, require_sizes
from bert_tf.checkpoints.pretrained import open_pretrained
from bert_tf.data import cache
from bert_tf.data.batching import Features
from bert_tf.tasks.distillation import (
    TeacherTask,
    task_of_teacher,
    with_outputs,
)
from bert_tf.training.estimator import Estimator, EvaluationData
from bert_tf.training.settings import TrainingConfig

_Labels = tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Teacher:
    """A fine-tuned model from which another model learns.

    Attributes:
      pretrained: The checkpoint.
      task: The task that computes the teacher's outputs.
      checksum: The checksum of the teacher's weights.
    """

    pretrained: Pretrained
    task: TeacherTask
    checksum: str

    def add_outputs(
        self,
        features: Features,
        strategy: tf.distribute.Strategy,
        training: TrainingConfig,
        make_data: EvaluationData,
    ) -> Features:
        """Returns a training set with the teacher's outputs.

        Args:
          features: The training set.
          strategy: The devices.
          training: The settings of the student's training.
          make_data: Returns the training set for `Estimator.predict`.
        """
        path = self.pretrained.path
        logging.info("Outputs of the teacher %s: %d rows", path, len(features))
        estimator = Estimator(
            self.task,
            strategy,
            training,
            None,
            lambda: self.pretrained.weights,
        )
        outputs = estimator.predict(make_data)
        # A cycle of references with traced functions keeps the model alive.
        del estimator
        gc.collect()
        return with_outputs(self.task, features, outputs)


def find_teacher(
    path: str,
    task: Any,
    rename: Callable[[_Labels], _Labels],
) -> Teacher:
    """Opens --teacher.

    Args:
      path: The checkpoint of the teacher.
      task: The student's `FineTuningTask`.
      rename: Maps the teacher's labels to the spelling of the task.

    Raises:
      InputError: The teacher cannot be read, or is not a fine-tuned model of
        the same task with the same labels, vocabulary and casing.
    """
    pretrained = open_pretrained(path)
    teacher_task = task_of_teacher(
        task, pretrained, f"`teacher={path}`", rename
    )
    require_sizes(pretrained.config, pretrained.weights)
    weights = pretrained.weights
    blocks = (weights[name].tobytes() for name in sorted(weights.shapes))
    return Teacher(pretrained, teacher_task, cache.checksum(blocks))
