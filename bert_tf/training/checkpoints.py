"""Checkpoints in the TF1 format, by name: either code reads the other's.

A checkpoint is a dict from name to array in TensorFlow's tensor-bundle files
(`PREFIX.index`, `PREFIX.data-00000-of-00001`), as TF1's Saver wrote it. A
training checkpoint holds the weights under their TF1 names, the optimizer's
slots beside them (`NAME/adam_m`, `NAME/adam_v`), `global_step`, and what an
exact resume needs (`training_state/...`).

Files are written aside and renamed, the index last: a reader finds a whole
checkpoint or none.
"""

import dataclasses
import os
import re
from collections.abc import Iterable, Mapping

import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf.errors import InputError

INDEX = ".index"
DATA = ".data-00000-of-00001"
# What a training checkpoint holds beside weights.
BOOKKEEPING = re.compile(r"^(global_step|training_state/.*|.*/adam_[mv])$")


def write(prefix: str, tensors: Mapping[str, np.ndarray | tf.Tensor]) -> None:
    """Writes `tensors` to the checkpoint `prefix`, all or nothing.

    Args:
      prefix: Path without `.index`.
      tensors: Dict from name to array or tensor.

    Raises:
      OSError: The files could not be written; none are left over.
    """
    tf.io.gfile.makedirs(os.path.dirname(prefix) or ".")
    aside = f"{prefix}.tmp-{os.getpid()}"
    try:
        with tf.device("CPU:0"):
            tf.raw_ops.SaveV2(
                prefix=aside,
                tensor_names=list(tensors),
                shape_and_slices=[""] * len(tensors),
                tensors=[tf.convert_to_tensor(t) for t in tensors.values()],
            )
        for ending in (DATA, INDEX):
            tf.io.gfile.rename(aside + ending, prefix + ending, overwrite=True)
    except tf.errors.OpError as error:
        raise OSError(f"cannot write checkpoint {prefix}: {error.message}")
    finally:
        for left_over in tf.io.gfile.glob(f"{aside}*"):
            tf.io.gfile.remove(left_over)


def find(path: str) -> str:
    """Returns the prefix of the checkpoint that `path` means.

    Args:
      path: A prefix, one with `.index` behind it, or a directory that holds
        training checkpoints or a single released one.

    Raises:
      InputError: There is none.
    """
    prefix = path.removesuffix(INDEX)
    if tf.io.gfile.exists(prefix + INDEX):
        return prefix
    if not tf.io.gfile.isdir(path):
        raise InputError(
            "expected a checkpoint: a prefix such as DIR/bert_model.ckpt, or "
            f"a directory that holds one. Received: {path!r}, and there is no "
            f"{prefix + INDEX}"
        )
    state = tf.train.get_checkpoint_state(path)
    if state is not None:
        return state.model_checkpoint_path
    found = tf.io.gfile.glob(os.path.join(path, "*" + INDEX))
    if len(found) != 1:
        raise InputError(
            f"expected one checkpoint in {path}. Received: {len(found)}; name "
            "the one that you mean by its prefix"
        )
    return found[0].removesuffix(INDEX)


class Reader:
    """The tensors of one checkpoint.

    Args:
      prefix: Path without `.index`.

    Raises:
      InputError: The files cannot be read.
    """

    def __init__(self, prefix: str):
        self.prefix = prefix
        try:
            self._reader = tf.train.load_checkpoint(prefix)
        except (tf.errors.OpError, ValueError, RuntimeError) as error:
            raise InputError(_unreadable(prefix, error)) from error
        self.shapes = self._reader.get_variable_to_shape_map()

    def __contains__(self, name: str) -> bool:
        return name in self.shapes

    def __getitem__(self, name: str) -> np.ndarray:
        try:
            return self._reader.get_tensor(name)
        except (tf.errors.OpError, ValueError, RuntimeError) as error:
            raise InputError(_unreadable(self.prefix, error)) from error


def _unreadable(prefix: str, error: Exception) -> str:
    reason = str(getattr(error, "message", error)).split("\n")[0]
    return (
        f"cannot read checkpoint {prefix}: {reason}; the file is damaged or "
        "not a TensorFlow checkpoint"
    )


@dataclasses.dataclass(frozen=True)
class Report:
    """What became of each name when weights were read.

    Attributes:
      filled: Variables that took their value from the checkpoint.
      missing: Variables that the checkpoint does not have.
      left_over: Weights of the checkpoint that the model does not have;
        optimizer slots and counters are not counted.
    """

    filled: tuple[str, ...]
    missing: tuple[str, ...]
    left_over: tuple[str, ...]

    def __str__(self) -> str:
        text = f"{len(self.filled)} variables filled"
        for what in ("missing", "left_over"):
            names = getattr(self, what)
            title = what.replace("_", " ")
            text += f", {len(names)} {title}"
            if names:
                shown = ", ".join(names[:4]) + (", ..." if names[4:] else "")
                text += f" ({shown})"
        return text


def restore(variables: Mapping, prefix: str, may_lack: str = "") -> Report:
    """Fills variables from a checkpoint; changes none if one does not fit.

    Args:
      variables: Dict from name to variable.
      prefix: Path without `.index`.
      may_lack: Regular expression: names that match it may be missing and
        then keep their value. Empty: none may.

    Returns:
      What was filled, missing and left over.

    Raises:
      InputError: A shape differs or a variable is missing.
    """
    reader = Reader(prefix)
    filled = [name for name in variables if name in reader]
    missing = [name for name in variables if name not in reader]
    _check_missing(missing, may_lack, prefix, len(variables))
    for name in filled:
        ours, theirs = tuple(variables[name].shape), reader.shapes[name]
        if ours != tuple(theirs):
            raise InputError(
                f"checkpoint {prefix} was made for another configuration: "
                f"expected {name} of shape {list(ours)}. Received: {theirs}"
            )
    values = {name: reader[name] for name in filled}
    for name, value in values.items():
        variables[name].assign(value)
    left_over = sorted(
        name
        for name in reader.shapes
        if name not in variables and not BOOKKEEPING.match(name)
    )
    return Report(tuple(filled), tuple(missing), tuple(left_over))


def _check_missing(
    missing: Iterable[str], may_lack: str, prefix: str, total: int
) -> None:
    lacking = [
        name for name in missing if not may_lack or not re.match(may_lack, name)
    ]
    if lacking:
        raise InputError(
            f"checkpoint {prefix} does not fit the model: it lacks "
            f"{len(lacking)} of {total} variables, the first is {lacking[0]!r}"
        )


class CheckpointManager:
    """The checkpoints `model.ckpt-STEP` of one training directory.

    Args:
      directory: Where they are.
      keep: How many of the newest are kept; 0 keeps all.
    """

    def __init__(self, directory: str, keep: int = 5):
        self.directory = directory
        self.keep = keep

    def prefix(self, step: int) -> str:
        return os.path.join(self.directory, f"model.ckpt-{step}")

    def steps(self) -> list[int]:
        """The steps that have a checkpoint, in rising order."""
        pattern = os.path.join(self.directory, "model.ckpt-*" + INDEX)
        endings = (
            path.removesuffix(INDEX).rpartition("-")[2]
            for path in tf.io.gfile.glob(pattern)
        )
        return sorted(int(step) for step in endings if step.isdigit())

    def latest(self) -> str | None:
        """The newest checkpoint that can be read; says what it passes over."""
        for step in reversed(self.steps()):
            prefix = self.prefix(step)
            try:
                reader = Reader(prefix)
                for name in reader.shapes:
                    _ = reader[name]
            except InputError as error:
                logging.warning("%s; trying the checkpoint before it", error)
            else:
                return prefix
        if self.steps():
            raise InputError(
                f"no checkpoint in {self.directory} can be read; remove the "
                "directory or name another --output_dir"
            )
        return None

    def save(self, step: int, tensors: Mapping) -> str:
        """Writes the checkpoint of `step` and removes those beyond `keep`."""
        prefix = self.prefix(step)
        write(prefix, tensors)
        steps = self.steps()
        kept = steps[-self.keep :] if self.keep else steps
        self._write_state([self.prefix(step) for step in kept])
        for old in steps[: len(steps) - len(kept)]:
            # The index goes first: without it the rest is no checkpoint.
            for ending in (INDEX, DATA):
                tf.io.gfile.remove(self.prefix(old) + ending)
        return prefix

    def _write_state(self, prefixes: list[str]) -> None:
        """Writes the file `checkpoint`, which names the newest to TF1."""
        names = [os.path.basename(prefix) for prefix in prefixes]
        lines = [f'model_checkpoint_path: "{names[-1]}"']
        lines += [f'all_model_checkpoint_paths: "{name}"' for name in names]
        path = os.path.join(self.directory, "checkpoint")
        aside = f"{path}.tmp-{os.getpid()}"
        with tf.io.gfile.GFile(aside, "w") as file:
            file.write("\n".join(lines) + "\n")
        tf.io.gfile.rename(aside, path, overwrite=True)
