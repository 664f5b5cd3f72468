"""Knowledge distillation: a model also learns from the outputs of a teacher.

Source: Hinton et al. 2015, "Distilling the Knowledge in a Neural Network",
arXiv 1503.02531. A teacher does not change, so its outputs become features of
the training set.
"""

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from absl import logging
from keras import ops

from bert_tf.checkpoints.checkpoint import have_names
from bert_tf.checkpoints.pretrained import require_teacher
from bert_tf.config import BertConfig
from bert_tf.data.batching import Features
from bert_tf.errors import InputError, listed
from bert_tf.tasks.task import IS_LABELED, FineTuningTask

# The feature with the teacher's `logits` is `teacher_logits`.
PREFIX = "teacher_"


class TeacherTask:
    """Predicts the outputs of a teacher as features of the student.

    Args:
      task: The task of the student.
      config: The teacher's configuration.

    Attributes:
      head: The kind of head, see `FineTuningTask`.
      order: The index of the teacher's output for each label of the student; ()
        for the same order.
    """

    def __init__(self, task: FineTuningTask, config: BertConfig):
        self._task = copy.copy(task)
        self._task.config = config
        self.head = task.head
        self.order: Sequence[int] = ()
        # All variables that have an effect must be in the checkpoint.
        self.new_variables = task.unused_variables
        self.checkpoint_variables = task.checkpoint_variables

    lora_rank = lora_alpha = None

    def build_model(self, is_restored: bool = False) -> keras.Model:
        """See `Task`."""
        return self._task.make_model().build_weights(is_restored)

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
            if self.head == "token":
                logits = ops.swapaxes(logits, 1, 2)
            logits_by_name[f"{PREFIX}{name}"] = logits
        return logits_by_name


def with_outputs(
    task: TeacherTask, features: Features, outputs: Mapping[str, np.ndarray]
) -> Features:
    """Adds the `predictions` of a teacher for all rows to their features."""
    sequences = features.sequences
    if task.head in ("span", "token"):
        # Each batch was only padded to its own longest row.
        longest = features.max_seq_length
        outputs = {
            name: np.pad(
                x, [*[(0, 0)] * (x.ndim - 1), (0, longest - x.shape[-1])]
            )
            for name, x in outputs.items()
        }
        sequences += tuple(outputs)
    arrays = {**features.arrays, **outputs}
    return dataclasses.replace(features, arrays=arrays, sequences=sequences)


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
    require_teacher(teacher, task, name)
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
    """Returns the index of a teacher's output for each label of the student.

    Classes without names are assumed to be in the student's order; returns [].

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
