"""Whether a checkpoint fits a task: the same checks for scripts and Python.

A checkpoint is a `checkpoints.checkpoint.Pretrained`. The task is a
`tasks.task.FineTuningTask`, or a `Wanted` where less is known.
"""

import dataclasses
import re
from collections.abc import Collection, Sequence
from typing import Any

from absl import logging

from bert_tf.checkpoints.checkpoint import Pretrained
from bert_tf.checkpoints.weights import Weights
from bert_tf.errors import InputError, listed, require_names, wrong_value

_SPAN_WEIGHTS = "cls/squad/output_weights"


@dataclasses.dataclass(frozen=True)
class Wanted:
    """The head that a model needs; None means as in the checkpoint.

    Attributes:
      head: A key of `huggingface_names.HEADS`.
      kind: The kind of task, see `FineTuningTask`.
      problem_type: What the labels of a classifier mean.
      num_outputs: The number of outputs.
      labels: The names of the classes.
    """

    head: str | None
    kind: str | None = None
    problem_type: str | None = None
    num_outputs: int | None = None
    labels: Sequence[str] | None = None


def have_names(labels: Collection[str]) -> bool:
    """Returns whether the classes have names: not Hugging Face's LABEL_0 ..."""
    return not all(re.fullmatch(r"LABEL_\d+", label) for label in labels)


def head_difference(
    pretrained: Pretrained, wanted: Any, is_trained: bool
) -> str | None:
    """Returns how a checkpoint's head differs from the wanted one, or None.

    The names of labels are compared for training only: otherwise the task has
    the model's labels, or the user has renamed them.
    """
    shapes = pretrained.weights.shapes
    shape = shapes.get("output_weights")
    if shape is None and _SPAN_WEIGHTS not in shapes:
        return None
    for name, theirs in (
        ("head", pretrained.head),
        ("kind", pretrained.kind or pretrained.head),
        ("problem_type", pretrained.problem_type),
    ):
        ours = getattr(wanted, name)
        if None not in (theirs, ours) and theirs != ours:
            return f"its {name.replace('_', ' ')} is {theirs}, not {ours}"
    if shape is not None and wanted.num_outputs not in (None, shape[0]):
        return f"its head has {shape[0]} outputs, not {wanted.num_outputs}"
    labels = pretrained.labels or ()
    # If classes share a name, names cannot be matched.
    if not is_trained or len({*labels}) < len(labels) or not have_names(labels):
        return None
    if wanted.labels is None or {*labels} == {*wanted.labels}:
        return None
    return f"its labels are {listed(labels)}"


def keeps_head(
    pretrained: Pretrained, wanted: Any, is_trained: bool = True
) -> bool:
    """Returns whether a model takes the head of a checkpoint; logs if not.

    Training may start from a model of another task, for example RTE from a
    model of MNLI; its head is dropped.

    Args:
      pretrained: The checkpoint.
      wanted: The head that the model needs.
      is_trained: Whether a new head can be trained.

    Raises:
      InputError: The head belongs to another task and no new head will be
        trained.
    """
    difference = head_difference(pretrained, wanted, is_trained)
    if difference is None:
        return True
    if not is_trained:
        raise InputError(
            f"{pretrained.path} is a model of another task: {difference}. Pass "
            "another model, or `do_train`."
        )
    if wanted.head == "encoder":
        logging.info("The head of %s is not used", pretrained.path)
    else:
        logging.warning(
            "Training a new head: the head of %s belongs to another task: %s",
            pretrained.path,
            difference,
        )
    return False


def num_rows(weights: Weights) -> int | None:
    """Returns the number of outputs of a classifier or tagger, if known."""
    shape = weights.shapes.get("output_weights")
    return None if shape is None else shape[0]


def wanted_classes(
    pretrained: Pretrained,
    wanted: Wanted,
    labels: Sequence[str] | None,
    num_labels: int | None,
) -> tuple[bool, Wanted]:
    """Returns whether the checkpoint has a head for classes, and the new head.

    The head of the checkpoint fits if it has the same labels, in any order, or
    the same number of unnamed classes, which then get the names.
    """
    has_names = labels is not None
    if labels is not None:
        labels = require_names(labels)
        if not labels:
            raise wrong_value("labels", "at least one name", labels)
        if num_labels not in (None, len(labels)):
            raise wrong_value(
                "num_labels", f"{len(labels)}, the number of labels", num_labels
            )
        num_labels = len(labels)
    rows = num_rows(pretrained.weights)
    is_ours = rows is not None and pretrained.head in (None, wanted.head)
    is_ours &= wanted.kind in (None, pretrained.kind or wanted.head)
    if num_labels is None and not is_ours:
        raise InputError(
            f"{pretrained.path} has no head of this kind. Pass labels=[...] or "
            "num_labels for a new head."
        )
    problem, theirs = None, pretrained.labels
    if is_ours and num_labels in (None, rows):
        num_labels, labels = rows, labels or theirs
        if {*(labels or ())} == {*(theirs or ())}:
            problem = pretrained.problem_type
    is_number = pretrained.problem_type == "regression"
    if is_ours and is_number and has_names and len(labels or ()) > 1:
        problem = "single_label_classification"
    wanted = dataclasses.replace(
        wanted, num_outputs=num_labels, labels=labels, problem_type=problem
    )
    # A class without a `head_name` has a head that no checkpoint has.
    return rows is not None and wanted.head is not None, wanted


def warn_of_problem(pretrained: Pretrained, problem_type: str) -> None:
    """Warns if a head is recorded with a different problem type."""
    theirs = pretrained.problem_type
    # One output may be read as a number or as the logit of one label.
    if theirs in (None, "regression", problem_type):
        return
    if problem_type != "regression":
        logging.warning(
            "The head of %s is kept, but its problem type is %s, not %s",
            *(pretrained.path, theirs, problem_type),
        )


def require_activation(
    path: str, activation_fn: str | None, problem: str, advice: str
) -> None:
    """Raises InputError if a recorded activation would be ignored."""
    name = (activation_fn or "Identity").split(".")[-1]
    if name != "Identity" and (name, problem) != ("Sigmoid", "multi_label"):
        raise InputError(
            f"{path} records the activation_fn {activation_fn}, which is not "
            f"applied to the output of {problem}. {advice}"
        )


def require_teacher(teacher: Any, task: Any, name: str) -> None:
    """Raises InputError unless a model can be the teacher of another.

    The labels are compared by `tasks.distillation.label_order`.

    Args:
      teacher: The checkpoint of the teacher.
      task: The task of the student.
      name: The name of the teacher in messages.
    """
    if teacher.config is None or teacher.vocab is None:
        raise InputError(
            f"{name} needs its bert_config.json and vocab.txt beside the "
            "checkpoint. Add them."
        )
    if fault := _token_difference(teacher, task.encoding):
        raise InputError(
            f"{name} has {fault} than the model to train, and texts are "
            "tokenized once for both. Pass another teacher, or start from "
            "another checkpoint."
        )
    most = teacher.config.max_position_embeddings
    if task.encoding.max_seq_length > most:
        raise wrong_value(
            "`max_seq_length`",
            f"at most {most}, the max_position_embeddings of the teacher",
            task.encoding.max_seq_length,
        )
    if fault := _missing(teacher, task) or head_difference(
        teacher, task, is_trained=False
    ):
        raise InputError(
            f"{name} is not a fine-tuned model of this task: {fault}."
        )
    if hasattr(task, "problem"):
        require_activation(
            name,
            teacher.activation_fn,
            task.problem,
            "Remove it from the teacher's config.json to learn from the "
            "outputs before it.",
        )


def _missing(teacher: Any, task: Any) -> str | None:
    """Returns the trained part that a teacher lacks, or None."""
    shapes = teacher.weights.shapes
    head = _SPAN_WEIGHTS if task.head == "span" else "output_weights"
    if head not in shapes:
        return "it has no such head"
    pooler = "bert/pooler/dense/kernel"
    if pooler in shapes or re.match(task.unused_variables, pooler):
        return None
    return "it has no pooler"


def _token_difference(teacher: Any, student: Any) -> str | None:
    """Returns how a teacher's tokens differ from the student's, or None.

    Both have the attributes `vocab`, `do_lower_case` and `strip_accents` of a
    `TextEncoding`.
    """
    if tuple(teacher.vocab) != tuple(student.vocab):
        return "another vocabulary"
    if teacher.do_lower_case is None:
        return None  # Unknown, as in most TF1 checkpoints.
    strips = [
        x.do_lower_case if x.strip_accents is None else x.strip_accents
        for x in (teacher, student)
    ]
    if teacher.do_lower_case != student.do_lower_case or strips[0] != strips[1]:
        return "another casing"
    return None
