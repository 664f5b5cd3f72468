"""Checkpoints in TensorFlow 1's format: Google's and bert_tf's.

The variables have this project's names, so nothing is translated:

    bert_model.ckpt.index, .data-00000-of-00001    the weights
    bert_config.json, vocab.txt, bert_tf.json      see `checkpoint.py`

A training checkpoint also has the optimizer's slots (`NAME/adam_m`,
`NAME/adam_v`), `global_step`, and the state that an exact resume needs
(`training_state/...`).

Files are written under temporary names and renamed, the index last, so that a
reader finds a complete checkpoint or none.
"""

import dataclasses
import os
import re
import shutil
from collections.abc import Iterable, Mapping

import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf.base import files
from bert_tf.checkpoints.checkpoint import (
    Pretrained,
    with_metadata,
    write_metadata,
)
from bert_tf.checkpoints.huggingface_names import head_of_parts, rows
from bert_tf.checkpoints.weights import Merged, Weights, require_finite
from bert_tf.config import BertConfig
from bert_tf.errors import InputError, in_file, listed, reason

PREFIX = "bert_model.ckpt"
INDEX = ".index"
DATA = ".data-00000-of-00001"
# TensorFlow's errors for damaged files; LookupError for truncated ones.
_UNREADABLE = (tf.errors.OpError, LookupError, RuntimeError, ValueError)

_ENDING = re.compile(r"\.(index|meta|data-\d{5}-of-\d{5})$")
_TEMPORARY = ".tmp-"
# Bytes of a tensor's entry in the index: 30 to 40 for BERT's tensors.
_INDEX_ENTRY = 40
# A file of a training checkpoint: its step and kind. TF1 also wrote `.meta`,
# and several data files.
_OF_STEP = re.compile(
    r"model\.ckpt-(\d+)(\.index|\.meta|\.data-\d{5}-of-\d{5}|\.tmp-.*)"
)


def write(prefix: str, tensors: Mapping[str, np.ndarray | tf.Tensor]) -> None:
    """Writes a checkpoint, completely or not at all.

    Args:
      prefix: The path without `.index`.
      tensors: The arrays or tensors by name.

    Raises:
      OSError: The files could not be written.
    """
    try:
        _write(prefix, tensors)
    except tf.errors.OpError as error:
        message = f"Cannot write checkpoint {prefix}: {reason(error)}."
        if isinstance(error, tf.errors.ResourceExhaustedError):
            values = map(np.asarray, tensors.values())
            needed = sum(value.nbytes + _INDEX_ENTRY for value in values)
            message += f" It needs about {needed:,} bytes"
            if not files.is_remote(prefix):
                usage = shutil.disk_usage(os.path.dirname(prefix) or ".")
                message += f", and {usage.free:,} are free"
            message += (
                ". Make room and rerun the same command; earlier checkpoints "
                "are complete."
            )
        raise OSError(message) from error


def _write(prefix: str, tensors: Mapping[str, np.ndarray | tf.Tensor]) -> None:
    folder, name = os.path.split(prefix)
    temporary = f"{prefix}{_TEMPORARY}{os.getpid()}"
    try:
        tf.io.gfile.makedirs(folder or ".")
        with tf.device("CPU:0"):
            tf.raw_ops.SaveV2(
                prefix=temporary,
                tensor_names=list(tensors),
                shape_and_slices=[""] * len(tensors),
                tensors=[tf.convert_to_tensor(t) for t in tensors.values()],
            )
        if tf.io.gfile.exists(prefix + INDEX):
            # The old index must never be beside new data.
            tf.io.gfile.remove(prefix + INDEX)
        for ending in (DATA, INDEX):
            tf.io.gfile.rename(
                temporary + ending, prefix + ending, overwrite=True
            )
    finally:
        # A checkpoint has one writer, so other temporary files are leftovers of
        # killed runs.
        for file in _list(folder):
            if file.startswith(name + _TEMPORARY):
                tf.io.gfile.remove(os.path.join(folder, file))


def _list(folder: str) -> list[str]:
    """Returns the names in a folder, which need not exist."""
    folder = folder or "."
    return tf.io.gfile.listdir(folder) if tf.io.gfile.isdir(folder) else []


def find(path: str) -> str:
    """Returns the prefix of a checkpoint.

    Args:
      path: The prefix, one of the checkpoint's files, or a folder with training
        checkpoints or a single released one.

    Raises:
      InputError: There is no checkpoint, or the folder has several and no valid
        file `checkpoint`.
    """
    prefix = _ENDING.sub("", path)
    if tf.io.gfile.exists(prefix + INDEX):
        return prefix
    if tf.io.gfile.isdir(path):
        return _find_in(path)
    raise InputError(
        f"No checkpoint found at {path!r}: {prefix + INDEX} does not exist. "
        "Pass a prefix such as DIR/bert_model.ckpt, or the folder of a "
        "checkpoint."
    )


def _find_in(folder: str) -> str:
    """Returns the newest training checkpoint of a folder, or the only one."""
    try:
        state = tf.train.get_checkpoint_state(folder)
    except ValueError:
        state = None  # The file `checkpoint` is damaged.
    if state is not None:
        # The folder may have been moved, so that only the name is valid.
        name = os.path.basename(state.model_checkpoint_path)
        newest = os.path.join(folder, name)
        if tf.io.gfile.exists(newest + INDEX):
            return newest
    names = [
        name.removesuffix(INDEX)
        for name in sorted(_list(folder))
        if name.endswith(INDEX) and _TEMPORARY not in name
    ]
    if not names:
        raise InputError(f"No checkpoint found in {folder}.")
    if len(names) > 1:
        raise InputError(
            f"Found {len(names)} checkpoints in {folder}: {listed(names)}. "
            "Pass the prefix of one of them."
        )
    return os.path.join(folder, names[0])


def require_plain(path: str) -> None:
    """Raises InputError for a path that TensorFlow reads as a pattern."""
    special = sorted(set(path) & set("*?[]\\"))
    if special:
        raise in_file(
            path,
            f"the path of a checkpoint must not contain {' '.join(special)}, "
            "which TensorFlow takes for a pattern. Choose another name.",
        )


class Reader(Weights):
    """The tensors of a checkpoint; raises InputError if it is unreadable."""

    def __init__(self, prefix: str):
        require_plain(prefix)
        for ending in (INDEX, DATA):
            # TensorFlow would wait for a pipe forever.
            files.require_file(prefix + ending)
        self.path = prefix
        try:
            # In gs://, where folders are only prefixes of names,
            # `tf.train.load_checkpoint` would mistake the prefix for a folder.
            self._reader = tf.compat.v1.train.NewCheckpointReader(prefix)
        except _UNREADABLE as error:
            raise self._unreadable(error) from error
        self.shapes = self._reader.get_variable_to_shape_map()

    def __getitem__(self, name: str) -> np.ndarray:
        try:
            value = self._reader.get_tensor(name)
        except _UNREADABLE as error:
            raise self._unreadable(error) from error
        require_finite(value, name, self.path)
        return value

    def _unreadable(self, error: Exception) -> InputError:
        return InputError(
            f"Cannot read checkpoint {self.path}: {reason(error)}. The file is "
            "damaged or not a TensorFlow checkpoint."
        )


def open_checkpoint(path: str) -> Reader:
    """Opens the checkpoint at `path`; see `find`."""
    return Reader(find(path))


class CheckpointManager:
    """The checkpoints `model.ckpt-STEP` of a training, in one folder.

    Keeps the newest `keep` checkpoints, or all if `keep` is 0. Raises
    InputError for a folder that `require_plain` refuses.
    """

    def __init__(self, directory: str, keep: int = 5):
        require_plain(directory)
        self.directory = directory
        self.keep = keep

    def prefix(self, step: int) -> str:
        return os.path.join(self.directory, f"model.ckpt-{step}")

    def steps(self) -> list[int]:
        """Returns the steps that have a checkpoint, sorted."""
        matches = map(_OF_STEP.fullmatch, _list(self.directory))
        return sorted(int(f[1]) for f in matches if f and f[2] == INDEX)

    def latest(self) -> str | None:
        """Returns the newest readable checkpoint, or None.

        Logs a warning for each newer one that is damaged.

        Raises:
          InputError: All checkpoints are damaged.
        """
        for step in reversed(self.steps()):
            prefix = self.prefix(step)
            try:
                reader = Reader(prefix)
                for name in reader.shapes:
                    _ = reader[name]
            except InputError as error:
                logging.warning("%s Trying the checkpoint before it.", error)
            else:
                return prefix
        if self.steps():
            raise InputError(
                f"All checkpoints in {self.directory} are damaged. Remove the "
                "folder, or pass another `output_dir`."
            )
        return None

    def save(self, step: int, tensors: Mapping) -> str:
        """Writes the checkpoint of `step` and removes old ones.

        Checkpoints of later steps are removed too: `latest` has found them to
        be damaged.
        """
        prefix = self.prefix(step)
        write(prefix, tensors)
        steps = [earlier for earlier in self.steps() if earlier <= step]
        remaining = steps[-self.keep :]  # All steps if `keep` is 0.
        # TF1 reads this file to find the newest checkpoint.
        names = [os.path.basename(self.prefix(step)) for step in remaining]
        lines = [f'model_checkpoint_path: "{names[-1]}"']
        lines += [f'all_model_checkpoint_paths: "{name}"' for name in names]
        path = os.path.join(self.directory, "checkpoint")
        files.write_text(path, "".join(f"{line}\n" for line in lines))
        self._remove_others(remaining)
        return prefix

    def remove_leftovers(self) -> None:
        """Removes incomplete files of killed runs.

        Only the process that writes the checkpoints may call this.
        """
        self._remove_others(self.steps())

    def _remove_others(self, remaining: list[int]) -> None:
        """Removes checkpoints of other steps, and incomplete files."""
        matches = map(_OF_STEP.fullmatch, _list(self.directory))
        old = [
            file[0]
            for file in matches
            if file and (int(file[1]) not in remaining or _TEMPORARY in file[2])
        ]
        # The index goes first: files without an index are not a checkpoint.
        for name in sorted(old, key=lambda name: not name.endswith(INDEX)):
            tf.io.gfile.remove(os.path.join(self.directory, name))


# Whole models: the weights and the files beside them.

# The part of the model that has each variable; sizes do not matter.
_PARTS = {x.ours: x.part for x in rows(BertConfig(1, num_hidden_layers=1))}


def read(path: str) -> Pretrained:
    """Reads a checkpoint and the files beside it.

    The path is its prefix, with or without `.index`, or its directory. Raises
    InputError if there is no checkpoint, or one of the files is invalid.
    """
    weights = Merged(open_checkpoint(path))
    pretrained = with_metadata(
        Pretrained(weights.path, weights), os.path.dirname(weights.path)
    )
    if pretrained.head is None:
        head = head_of(weights.shapes)
        pretrained = dataclasses.replace(pretrained, head=head)
    return pretrained


def head_of(names: Iterable[str]) -> str | None:
    """Returns the head that the names of variables determine, or None."""
    # Google's models always have a pooler.
    parts = {_PARTS[name] for name in names if name in _PARTS}
    return head_of_parts(parts | {"pooler"})


def write_pretrained(
    folder: str,
    pretrained: Pretrained,
    bookkeeping: Mapping[str, np.ndarray] | None = None,
) -> None:
    """Writes a checkpoint and the files beside it into an existing directory.

    With `bookkeeping`, optimizer slots and `global_step`, the directory becomes
    an output folder with `model.ckpt-STEP`, from which training can resume.
    """
    weights = pretrained.weights
    tensors = {name: weights[name] for name in weights.shapes}
    if bookkeeping is None:
        write(os.path.join(folder, PREFIX), tensors)
    else:
        manager = CheckpointManager(folder)
        step = int(bookkeeping["global_step"])
        manager.save(step, {**tensors, **bookkeeping})
    write_metadata(folder, pretrained)
