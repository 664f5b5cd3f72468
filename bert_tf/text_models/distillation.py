"""The outputs of a teacher, which `fit` of a text model learns from."""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from bert_tf.base.options import number_fault
from bert_tf.checkpoints.checkpoint import Pretrained, have_names
from bert_tf.checkpoints.conversion import as_checkpoint
from bert_tf.checkpoints.pretrained import open_pretrained
from bert_tf.config import require_number
from bert_tf.data.batching import Features
from bert_tf.errors import InputError, wrong_value
from bert_tf.tasks.distillation import task_of_teacher, with_outputs
from bert_tf.tasks.task import IS_LABELED, FineTuningTask
from bert_tf.text_models.batches import stacked
from bert_tf.text_models.progress import Progress

# The teacher's batch size for rows of `max_seq_length`.
_BATCH_SIZE = 32
# The options of `fit`, with the scripts' defaults and ranges.
_OPTIONS = {
    "distillation_weight": (0.9, 0.0, 1.0),
    "temperature": (2.0, 0.1, 100.0),
}


def teacher_options(
    has_teacher: bool, **options: float | None
) -> tuple[float, ...]:
    """Returns the options of a distillation, with their defaults.

    Raises:
      InputError: An option is not valid, or has no effect.
    """
    values = []
    for name, (default, least, most) in _OPTIONS.items():
        value = options[name]
        if value is not None and not has_teacher:
            raise InputError(
                f"`{name}` has no effect without `teacher`. Leave it out, or "
                "pass `teacher`."
            )
        value = default if value is None else value
        require_number(f"`{name}`", value, "a finite number", lambda _: True)
        if fault := number_fault(float(value), least, most):
            raise InputError(f"`{name}` {fault}.")
        values.append(value)
    return tuple(values)


class TeacherOutputs:
    """The outputs of a teacher for the texts that a student learns from.

    Args:
      student: The text model to train.
      teacher: A text model of the same class, or the path of its checkpoint.
      weight: The weight of the teacher's loss.
      temperature: See `task.divergence`.

    Raises:
      InputError: The teacher does not fit the student.
    """

    def __init__(
        self, student: Any, teacher: Any, weight: float, temperature: float
    ):
        task = student.make_task()
        if not task.has_teachers:
            name = type(student).__name__
            raise InputError(f"`fit` of a {name} has no `teacher`.")
        name = "`teacher`"
        if isinstance(teacher, (str, os.PathLike)):
            name = f"`teacher={os.fspath(teacher)}`"
            checkpoint = open_pretrained(teacher)
        elif type(teacher) is type(student):
            checkpoint = _described(teacher)
        else:
            expected = f"a {type(student).__name__}, or a path"
            raise wrong_value("`teacher`", expected, teacher)
        self._task = task_of_teacher(task, checkpoint, name)
        if type(teacher) is not type(student):
            teacher = _opened(student, checkpoint, task, teacher)
        self._teacher = teacher
        self._weight = weight
        self._temperature = temperature

    def task_of(self, task: FineTuningTask) -> Any:
        """Returns the task of the student, with the teacher's loss."""
        return task.student(self._weight, self._temperature)

    def added_to(self, features: Features) -> Features:
        """Returns the features of rows with the outputs of the teacher."""
        teacher = self._teacher

        def call(batch: Mapping[str, np.ndarray]) -> Any:
            outputs = teacher._outputs_of_task(teacher._call(batch))
            return self._task.predictions(batch, outputs)

        progress = Progress(teacher, "predict")
        rows = teacher._outputs(features, _BATCH_SIZE, call, progress)
        return with_outputs(self._task, features, stacked(rows))


def _described(teacher: Any) -> Pretrained:
    """Describes a text model as a checkpoint, for comparison."""
    task = teacher.make_task()
    checkpoint = as_checkpoint(teacher.model, teacher.tokenizer, **task.facts())
    # The problem was chosen when the model was made.
    return dataclasses.replace(checkpoint, activation_fn=None)


def _opened(
    student: Any, checkpoint: Pretrained, task: FineTuningTask, path: Any
) -> Any:
    """Returns the text model of a checkpoint that fits the student."""
    options: dict[str, Any] = {"max_seq_length": student.max_seq_length}
    if hasattr(student, "problem"):
        # Only the teacher's logits are used.
        options["problem"] = student.problem
    if task.labels and not have_names(checkpoint.labels or ()):
        options["labels"] = task.labels
    return type(student).from_pretrained(path, **options)


def only_labeled(features: Features) -> Features:
    """Returns the rows of texts with labels.

    Raises:
      InputError: If no text has a label.
    """
    arrays = dict(features.arrays)
    is_labeled = arrays.pop(IS_LABELED, None)
    if is_labeled is None:
        return features
    if not is_labeled.any():
        raise InputError("No text has a label. Pass labels for some texts.")
    return dataclasses.replace(
        features,
        arrays={name: x[is_labeled] for name, x in arrays.items()},
        lengths=features.lengths[is_labeled],
    )
