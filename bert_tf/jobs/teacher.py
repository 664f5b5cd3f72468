"""The teacher of a distillation: opens it and computes its outputs once.

    python run_classifier.py --teacher=base_output/release ...

The student's examples are tokenized once, so both models must have the same
vocabulary and casing. The outputs become features of the training set: the
teacher is used neither in the training steps nor in what they save.
"""

import dataclasses
import gc
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from absl import logging

from bert_tf.data import cache
from bert_tf.data.batching import Features
from bert_tf.errors import InputError, in_file, wrong_value
from bert_tf.interop.checkpoint import (
    HEADS,
    Pretrained,
    require_sizes,
)
from bert_tf.jobs.settings import DistillationOptions
from bert_tf.jobs.start import Start, head_difference
from bert_tf.pretrained import open_pretrained
from bert_tf.tasks.classification import require_activation
from bert_tf.tasks.distillation import (
    DistillationTask,
    TeacherTask,
    label_order,
    token_difference,
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
      task: Computes its outputs.
      checksum: The checksum of its weights.
      student_task: The student's task, with the teacher's part of the loss.
    """

    pretrained: Pretrained
    task: TeacherTask
    checksum: str
    student_task: DistillationTask

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
            path,
            lambda _: self.pretrained.weights,
        )
        outputs = estimator.predict(make_data)
        # The model is in a cycle of references with its traced functions.
        del estimator
        gc.collect()
        return with_outputs(self.task, features, outputs)


def find_teacher(
    config: DistillationOptions,
    start: Start,
    task: Any,
    rename: Callable[[_Labels], _Labels] = lambda labels: labels,
) -> Teacher | None:
    """Opens --teacher, if the run trains with one.

    Args:
      config: The options of the job.
      start: The checkpoint, vocabulary and casing of the student.
      task: The student's `FineTuningTask`.
      rename: Maps the teacher's labels to the spelling of the task.

    Raises:
      InputError: The teacher cannot be read, or is not a fine-tuned model of
        the same task with the same labels, vocabulary and casing.
    """
    path = config.teacher
    if path is None or not config.do_train:
        return None
    pretrained = open_pretrained(path)
    if pretrained.config is None or pretrained.vocab is None:
        raise in_file(
            path,
            "a teacher needs its bert_config.json and its vocab.txt beside the "
            "checkpoint. Add them.",
        )
    require_sizes(pretrained.config, pretrained.weights)
    if fault := token_difference(pretrained, start):
        raise InputError(
            f"`teacher={path}` has {fault} than the model to train, and texts "
            "are tokenized once for both. Name another teacher or another "
            "`init_checkpoint`."
        )
    most = pretrained.config.max_position_embeddings
    if config.max_seq_length > most:
        raise wrong_value(
            "`max_seq_length`",
            f"at most {most}, the max_position_embeddings of the teacher",
            config.max_seq_length,
        )
    teacher_task = TeacherTask(task, pretrained.config, pretrained.bilstm_head)
    _require_same_task(pretrained, teacher_task, path)
    if HEADS[task.head].has_labels and task.labels:
        try:
            labels = rename(pretrained.labels or ())
        except InputError as error:
            raise InputError(f"`teacher={path}`: {error}") from error
        teacher_task.order = label_order(
            labels, task.labels, f"`teacher={path}`"
        )
    weights = pretrained.weights
    blocks = (weights[name].tobytes() for name in sorted(weights.shapes))
    student_task = DistillationTask(
        task, config.distillation_weight, config.temperature
    )
    return Teacher(
        pretrained, teacher_task, cache.checksum(blocks), student_task
    )


def _require_same_task(
    pretrained: Pretrained, task: TeacherTask, path: str
) -> None:
    """Raises InputError if a checkpoint is no fine-tuned model of a task."""
    is_span = task.head == "span"
    weights_name = "cls/squad/output_weights" if is_span else "output_weights"
    fault = head_difference(pretrained, task, is_trained=False)
    if weights_name not in pretrained.weights:
        fault = "it has no such head"
    if fault:
        raise InputError(
            f"`teacher={path}` is not a fine-tuned model of this task: {fault}."
        )
    if task.head == "classifier":
        require_activation(
            f"`teacher={path}`",
            pretrained.activation_fn,
            task.problem,
            "Remove it from its config.json to learn from the outputs before "
            "it.",
        )
