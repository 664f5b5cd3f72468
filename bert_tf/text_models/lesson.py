"""What a text model learns from a teacher in `fit`."""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from bert_tf.config import require_number, require_positive
from bert_tf.data.batching import Features
from bert_tf.errors import InputError, wrong_value
from bert_tf.tasks.distillation import (
    DistillationTask,
    TeacherTask,
    label_order,
    token_difference,
    with_outputs,
)
from bert_tf.tasks.task import FineTuningTask
from bert_tf.text_models.batches import stacked
from bert_tf.text_models.progress import Progress

# The rows of full length that the teacher computes at a time.
_BATCH_SIZE = 32


class Lesson:
    """The outputs of a teacher for the texts that a student learns from.

    Args:
      student: The text model to train.
      teacher: A text model of the same class, or the path of its checkpoint.
      weight: The share of the teacher in the loss.
      temperature: See `task.divergence`.

    Raises:
      InputError: The teacher does not fit the student, or an option is not
        valid.
    """

    def __init__(
        self, student: Any, teacher: Any, weight: float, temperature: float
    ):
        task = student.make_task()
        if not task.has_teachers:
            name = type(student).__name__
            raise InputError(f"`fit` of a {name} has no `teacher`.")
        if isinstance(teacher, (str, os.PathLike)):
            teacher = type(student).from_pretrained(teacher)
        if type(teacher) is not type(student):
            expected = f"a {type(student).__name__}, or a path"
            raise wrong_value("`teacher`", expected, teacher)
        require_number(
            *("`distillation_weight`", weight, "from 0 to 1"),
            lambda share: 0 <= share <= 1,
        )
        require_positive("`temperature`", temperature)
        self._teacher = teacher
        self._weight = weight
        self._temperature = temperature
        theirs = teacher.make_task()
        difference = token_difference(theirs.encoding, task.encoding)
        if not difference and theirs.problem_type != task.problem_type:
            difference = "another problem"
        if difference:
            raise InputError(
                f"The teacher has {difference} than the model to train."
            )
        config = teacher.model.config
        if student.max_seq_length > config.max_position_embeddings:
            raise wrong_value(
                "`max_seq_length`",
                f"at most {config.max_position_embeddings}, the "
                "max_position_embeddings of the teacher",
                student.max_seq_length,
            )
        self._task = TeacherTask(task, config, bilstm_head=False)
        if task.labels:
            self._task.order = label_order(
                theirs.labels, task.labels, "The teacher"
            )

    def task_of(self, task: FineTuningTask) -> Any:
        """Returns the task of the student, with the teacher's part."""
        return DistillationTask(task, self._weight, self._temperature)

    def taught(self, features: Features) -> Features:
        """Returns the features of rows with the outputs of the teacher."""
        teacher = self._teacher

        def call(batch: Mapping[str, np.ndarray]) -> Any:
            outputs = teacher._outputs_of_task(teacher._call(batch))
            return self._task.predictions(batch, outputs)

        progress = Progress(teacher, "predict")
        rows = teacher._outputs(features, _BATCH_SIZE, call, progress)
        return with_outputs(self._task, features, stacked(rows))
