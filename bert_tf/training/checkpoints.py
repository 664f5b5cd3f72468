"""Checkpoints in the TF1 format, by name: either code reads the other's.

A checkpoint is a dict from name to array in TensorFlow's tensor-bundle files
(`PREFIX.index`, `PREFIX.data-00000-of-00001`), as TF1's Saver wrote it. A
training checkpoint holds the weights under their TF1 names, the optimizer's
slots beside them (`NAME/adam_m`, `NAME/adam_v`), `global_step`, and what an
exact resume needs (`training_state/...`).

Files are written aside and renamed, the index last: a reader finds a whole
checkpoint or none.
"""

import os
import re
import shutil
from collections.abc import Mapping

import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf import files
from bert_tf.errors import InputError

INDEX = ".index"
DATA = ".data-00000-of-00001"
# What TensorFlow raises for a damaged file; LookupError where it is too short.
_UNREADABLE = (tf.errors.OpError, LookupError, RuntimeError, ValueError)

# Where in TensorFlow's code it happened, which tells a user nothing.
_NODE = re.compile(r"\{\{.*?\}\} ?| \[Op:\w+\].*")
_ENDING = re.compile(r"\.(index|meta|data-\d{5}-of-\d{5})$")
_ASIDE = ".tmp-"
# Bytes of a tensor in the index, with its name: BERT's have 30 to 40.
_INDEX_ENTRY = 40
# A file of a training directory's checkpoint: its step and what it is. TF1
# wrote `.meta` too, and other numbers of data files.
_OF_STEP = re.compile(
    r"model\.ckpt-(\d+)(\.index|\.meta|\.data-\d{5}-of-\d{5}|\.tmp-.*)"
)


def write(prefix: str, tensors: Mapping[str, np.ndarray | tf.Tensor]) -> None:
    """Writes `tensors` to the checkpoint `prefix`, all or nothing.

    Args:
      prefix: Path without `.index`.
      tensors: Dict from name to array or tensor.

    Raises:
      OSError: The files could not be written; none are left over.
    """
    try:
        _write(prefix, tensors)
    except tf.errors.ResourceExhaustedError as error:
        raise OSError(_no_room(prefix, tensors, error)) from error
    except tf.errors.OpError as error:
        raise OSError(
            f"cannot write checkpoint {prefix}: {first_line(error)}"
        ) from error


def _write(prefix: str, tensors: Mapping[str, np.ndarray | tf.Tensor]) -> None:
    folder, name = os.path.split(prefix)
    aside = f"{prefix}{_ASIDE}{os.getpid()}"
    try:
        tf.io.gfile.makedirs(folder or ".")
        with tf.device("CPU:0"):
            tf.raw_ops.SaveV2(
                prefix=aside,
                tensor_names=list(tensors),
                shape_and_slices=[""] * len(tensors),
                tensors=[tf.convert_to_tensor(t) for t in tensors.values()],
            )
        if tf.io.gfile.exists(prefix + INDEX):
            # It must not be found beside the data of another.
            tf.io.gfile.remove(prefix + INDEX)
        for ending in (DATA, INDEX):
            tf.io.gfile.rename(aside + ending, prefix + ending, overwrite=True)
    finally:
        # Those of a killed run too: a checkpoint has one writer.
        for file in _list(folder):
            if file.startswith(name + _ASIDE):
                tf.io.gfile.remove(os.path.join(folder, file))


def first_line(error: tf.errors.OpError) -> str:
    """What TensorFlow says of an error, without where in its code it was."""
    return _NODE.sub("", error.message.split("\n")[0])


def _no_room(
    prefix: str,
    tensors: Mapping[str, np.ndarray | tf.Tensor],
    error: tf.errors.OpError,
) -> str:
    """What is needed and what is there, once the half that fitted is gone."""
    reason = first_line(error).rpartition("; ")[2]  # Without the file aside.
    values = map(np.asarray, tensors.values())
    needed = sum(value.nbytes + _INDEX_ENTRY for value in values)
    there = ""
    if not files.is_remote(prefix):
        free = shutil.disk_usage(os.path.dirname(prefix) or ".").free
        there = f" and finds {free:,}"
    return (
        f"cannot write checkpoint {prefix}: {reason}. It takes about "
        f"{needed:,} bytes{there}; make room and give the same command again: "
        "what was saved before is whole"
    )


def _list(folder: str) -> list[str]:
    """The names in a directory; none if there is no such directory."""
    folder = folder or "."
    return tf.io.gfile.listdir(folder) if tf.io.gfile.isdir(folder) else []


def find(path: str) -> str:
    """Returns the prefix of the checkpoint that `path` means.

    Args:
      path: A prefix, the name of one of its files, or a directory that holds
        training checkpoints or a single released one.

    Raises:
      InputError: There is none.
    """
    prefix = _ENDING.sub("", path)
    if tf.io.gfile.exists(prefix + INDEX):
        return prefix
    if tf.io.gfile.isdir(path):
        return _find_in(path)
    raise InputError(
        "expected a checkpoint: a prefix such as DIR/bert_model.ckpt, or a "
        f"directory that holds one. Received: {path!r}, and there is no "
        f"{prefix + INDEX}"
    )


def _find_in(folder: str) -> str:
    """The newest checkpoint of a directory, or the only one."""
    try:
        state = tf.train.get_checkpoint_state(folder)
    except ValueError:
        state = None  # The file `checkpoint` is damaged.
    if state is not None:
        # By name alone: the directory may have been moved.
        name = os.path.basename(state.model_checkpoint_path)
        newest = os.path.join(folder, name)
        if tf.io.gfile.exists(newest + INDEX):
            return newest
    found = [
        os.path.join(folder, name.removesuffix(INDEX))
        for name in sorted(_list(folder))
        if name.endswith(INDEX) and _ASIDE not in name
    ]
    if len(found) != 1:
        names = ": " + ", ".join(map(os.path.basename, found)) if found else ""
        raise InputError(
            f"expected one checkpoint in {folder}. Received: {len(found)}"
            f"{names}; give the prefix of the one that you mean"
        )
    return found[0]


def require_plain(path: str) -> None:
    """Raises InputError for a path that TensorFlow would not find again."""
    special = sorted(set(path) & set("*?[]\\"))
    if special:
        raise InputError(
            f"expected a path without {' '.join(special)}, which TensorFlow "
            "takes for a pattern when it reads a checkpoint. Received: "
            f"{path}; choose another name"
        )


class Reader:
    """The tensors of one checkpoint: a `Weights`.

    Args:
      prefix: Path without `.index`.

    Attributes:
      path: The prefix.
      shapes: Dict from name to shape.

    Raises:
      InputError: The files cannot be read.
    """

    def __init__(self, prefix: str):
        require_plain(prefix)
        self.path = prefix
        try:
            # Not `tf.train.load_checkpoint`: where folders are but prefixes of
            # names, it takes this one for a folder.
            self._reader = tf.compat.v1.train.NewCheckpointReader(prefix)
        except _UNREADABLE as error:
            raise InputError(_unreadable(prefix, error)) from error
        self.shapes = self._reader.get_variable_to_shape_map()

    def __contains__(self, name: str) -> bool:
        return name in self.shapes

    def __getitem__(self, name: str) -> np.ndarray:
        try:
            return self._reader.get_tensor(name)
        except _UNREADABLE as error:
            raise InputError(_unreadable(self.path, error)) from error


def open_checkpoint(path: str) -> Reader:
    """Opens the checkpoint that `path` means; see `find`."""
    return Reader(find(path))


def _unreadable(prefix: str, error: Exception) -> str:
    reason = str(getattr(error, "message", error)).split("\n")[0]
    return (
        f"cannot read checkpoint {prefix}: {reason}; the file is damaged or "
        "not a TensorFlow checkpoint"
    )


class CheckpointManager:
    """The checkpoints `model.ckpt-STEP` of one training directory.

    Args:
      directory: Where they are.
      keep: How many of the newest are kept; 0 keeps all.

    Raises:
      InputError: The directory's name would keep checkpoints from being read.
    """

    def __init__(self, directory: str, keep: int = 5):
        require_plain(directory)
        self.directory = directory
        self.keep = keep

    def prefix(self, step: int) -> str:
        return os.path.join(self.directory, f"model.ckpt-{step}")

    def steps(self) -> list[int]:
        """The steps that have a checkpoint, in rising order."""
        files = map(_OF_STEP.fullmatch, _list(self.directory))
        return sorted(int(f[1]) for f in files if f and f[2] == INDEX)

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
        """Writes the checkpoint of `step`, the newest from now on.

        Removes those beyond `keep`, and later ones, which `latest` could not
        read.
        """
        prefix = self.prefix(step)
        write(prefix, tensors)
        steps = [earlier for earlier in self.steps() if earlier <= step]
        kept = steps[-self.keep :]  # All of them if keep is 0.
        self._write_state(kept)
        self._sweep(kept)
        return prefix

    def remove_leftovers(self) -> None:
        """Removes what a killed run left; for the one process that writes."""
        self._sweep(self.steps())

    def _write_state(self, steps: list[int]) -> None:
        """Writes the file `checkpoint`, which names the newest to TF1."""
        names = [os.path.basename(self.prefix(step)) for step in steps]
        lines = [f'model_checkpoint_path: "{names[-1]}"']
        lines += [f'all_model_checkpoint_paths: "{name}"' for name in names]
        path = os.path.join(self.directory, "checkpoint")
        files.write_text(path, "".join(f"{line}\n" for line in lines))

    def _sweep(self, kept: list[int]) -> None:
        """Removes the other checkpoints, and what a killed run left behind."""
        files = map(_OF_STEP.fullmatch, _list(self.directory))
        old = [
            file[0]
            for file in files
            if file and (int(file[1]) not in kept or _ASIDE in file[2])
        ]
        # An index goes first: without it the rest is no checkpoint.
        for name in sorted(old, key=lambda name: not name.endswith(INDEX)):
            tf.io.gfile.remove(os.path.join(self.directory, name))
