"""Knowledge distillation: a model also learns from the outputs of a teacher.

Source: Hinton et al. 2015, "Distilling the Knowledge in a Neural Network",
arXiv 1503.02531. A teacher does not change, so its outputs are computed once
and become features of the training set.
"""

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from absl import logging
from keras import ops

from bert_tf.checkpoints.compatibility import have_names, require_teacher
from bert_tf.config import BertConfig
from bert_tf.data.batching import Features
from bert_tf.errors import InputError, listed
from bert_tf.tasks.task import FineTuningTask, sum_of_rows

LOSS = "distillation_loss"
# The feature with the teacher's `logits` is `teacher_logits`.
PREFIX = "teacher_"
# The feature that is 1 for an example with a label and 0 for one without, [B].
# If it is missing, all examples have labels.
IS_LABELED = "is_labeled"


class DistillationTask:
    """A `FineTuningTask` with a second loss, from a teacher.

    loss = (1 - weight) * loss of the labels + weight * loss of the teacher

    The first is the mean over the labeled examples of a batch, the second over
    all examples. Everything else comes from the task.

    Args:
      task: The task of the student.
      weight: The weight of the teacher's loss, from 0 to 1.
      temperature: See `task.divergence`; without effect for regression.
    """

    def __init__(self, task: FineTuningTask, weight: float, temperature: float):
        self._task = task
        self._weight = weight
        self._temperature = temperature
        self.loss_names = (*task.loss_names, LOSS)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)

    def loss_weights(self, features: Mapping) -> dict:
        """See `Task`."""
        weights = self._labeled(features, self._task.loss_weights(features))
        soft = sum_of_rows(self._task.is_element(features))
        return {**weights, LOSS: soft}

    def losses(self, features: Mapping, outputs: Mapping) -> dict:
        """See `Task`; `features` include the outputs of `TeacherTask`."""
        losses = self._labeled(features, self._task.losses(features, outputs))
        soft = self._task.soft_losses(features, outputs, self._temperature)
        soft = sum_of_rows(soft * self._task.is_element(features))
        shares = {n: (1 - self._weight) * v for n, v in losses.items()}
        return {**shares, LOSS: self._weight * soft}

    def _labeled(self, features: Mapping, values: dict) -> dict:
        """Returns values [B] by name, 0 for examples without a label."""
        if IS_LABELED not in features:
            return values
        is_labeled = ops.cast(features[IS_LABELED], "float32")
        return {name: value * is_labeled for name, value in values.items()}


class TeacherTask:
    """Predicts the outputs of a teacher as features of the student.

    Args:
      task: The task of the student.
      config: The teacher's configuration.

    Attributes:
      order: The teacher's output for each of the student's labels; () for the
        same order.
    """

    def __init__(self, task: FineTuningTask, config: BertConfig):
        self._task = copy.copy(task)
        self._task.config = config
        self.order: Sequence[int] = ()
        # All variables that have an effect must be in the checkpoint.
        self.new_variables = task.unused_variables

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)

    def build_model(self, is_restored: bool = False) -> keras.Model:
        """See `Task`."""
        model = self._task.make_model()
        if is_restored:
            model.start_as_zeros()
        model.build()
        return model

    def predictions(self, features: Mapping, outputs: Mapping) -> dict:
        """Returns the logits with the prefix `teacher_`, float32.

        Their shape is [B, C]; for spans [B, S], for tags [B, C, S], since the
        last axis of a feature is the one that is padded.
        """
        del features
        logits_by_name = {}
        for name, logits in outputs.items():
            if self.order:
                logits = ops.take(logits, self.order, axis=-1)
            if self._task.head == "token":
                logits = ops.swapaxes(logits, 1, 2)
            logits_by_name[f"{PREFIX}{name}"] = logits
        return logits_by_name


def with_outputs(
    task: TeacherTask, features: Features, outputs: Mapping[str, np.ndarray]
) -> Features:
    """Adds the `predictions` of a teacher for all rows to their features."""
    sequences = features.sequences
    if task.head in ("span", "token"):
        # Every batch was padded to its longest row only.
        outputs = {
            name: _padded(values, features.max_seq_length)
            for name, values in outputs.items()
        }
        sequences += tuple(outputs)
    arrays = {**features.arrays, **outputs}
    return dataclasses.replace(features, arrays=arrays, sequences=sequences)


def _padded(values: np.ndarray, length: int) -> np.ndarray:
    """Returns values [..., S] with zeros up to a length."""
    padding = [(0, 0)] * (values.ndim - 1)
    return np.pad(values, [*padding, (0, length - values.shape[-1])])


def task_of_teacher(
    task: FineTuningTask,
    teacher: Any,
    name: str,
    rename: Callable[[tuple[str, ...]], tuple[str, ...]] = lambda names: names,
) -> TeacherTask:
    """Returns the task of a teacher.

    Args:
      task: The task of the student.
      teacher: The checkpoint of the teacher.
      name: The name of the teacher in messages.
      rename: Maps the teacher's labels to the spelling of the task.

    Raises:
      InputError: The checkpoint is not a fine-tuned model of the same task with
        the same labels, vocabulary and casing.
    """
    teacher_task = TeacherTask(task, teacher.config)
    require_teacher(teacher, teacher_task, name)
    if task.labels and task.head in ("classifier", "token"):
        try:
            labels = rename(teacher.labels or ())
        except InputError as error:
            raise InputError(f"{name}: {error}") from error
        teacher_task.order = label_order(labels, task.labels, name)
    return teacher_task


def label_order(
    theirs: Sequence[str], ours: Sequence[str], teacher: str
) -> list[int]:
    """Returns a teacher's output for each label of the student.

    Classes without names are taken to be in the student's order.

    Args:
      theirs: The labels of the teacher.
      ours: The labels of the student.
      teacher: The name of the teacher in messages.

    Raises:
      InputError: The labels of teacher and student differ.
    """
    if not theirs or not have_names(theirs):
        logging.warning(
            "The outputs of %s have no names. They are assigned to %s, in this "
            "order",
            teacher,
            listed(ours, most=20),
        )
        return []
    if {*theirs} != {*ours}:
        raise InputError(
            f"{teacher} has the labels {listed(theirs, most=20)}; the model to "
            f"train has {listed(ours, most=20)}. Pass a teacher with the same "
            "labels, in any order."
        )
    return [[*theirs].index(name) for name in ours]
