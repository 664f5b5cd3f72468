"""TF1 checkpoints: Google's releases, and those that this project trains.

The variables have this project's names, so nothing is translated:

    bert_model.ckpt.index, .data-00000-of-00001    the weights
    bert_config.json, vocab.txt, bert_tf.json      see `checkpoint.py`
"""

import dataclasses
import os
import re
from collections.abc import Iterable, Mapping

import numpy as np

from bert_tf.checkpoints import tf1 as checkpoints
from bert_tf.checkpoints.checkpoint import (
    Pretrained,
    with_metadata,
    write_metadata,
)
from bert_tf.checkpoints.huggingface_names import head_of_parts
from bert_tf.checkpoints.weights import BOOKKEEPING, Merged

PREFIX = "bert_model.ckpt"

# The parts of a model by the scopes of their variables.
_PARTS = {
    "cls/predictions": "masked_lm",
    "cls/seq_relationship": "next_sentence",
    "cls/squad": "span",
    "output": "classes",
}
_HEAD_SCOPE = re.compile(r"(cls/\w+|output)[/_]")


def read(path: str) -> Pretrained:
    """Reads a checkpoint and the files beside it.

    The path is its prefix, with or without `.index`, or its directory. Raises
    InputError if there is no checkpoint, or one of the files is invalid.
    """
    weights = Merged(checkpoints.open_checkpoint(path))
    pretrained = with_metadata(
        Pretrained(weights.path, weights), os.path.dirname(weights.path)
    )
    if pretrained.head is None:
        head = head_of(weights.shapes)
        pretrained = dataclasses.replace(pretrained, head=head)
    return pretrained


def head_of(names: Iterable[str]) -> str | None:
    """Returns the head that variables belong to by name, if unambiguous."""
    scopes = {
        match[1]
        for match in map(_HEAD_SCOPE.match, names)
        if match and not BOOKKEEPING.match(match.string)
    }
    # Google's models always have a pooler.
    return head_of_parts({"pooler", *(_PARTS.get(x, x) for x in scopes)})


def write(
    folder: str,
    pretrained: Pretrained,
    bookkeeping: Mapping[str, np.ndarray] | None = None,
) -> None:
    """Writes a checkpoint and the files beside it into an existing directory.

    With `bookkeeping`, optimizer slots and `global_step`, the directory becomes
    an output folder with `model.ckpt-STEP`, from which training can resume.
    """
    weights = pretrained.weights
    tensors = {
        name: weights[name]
        for name in weights.shapes
        if not BOOKKEEPING.match(name)
    }
    if bookkeeping is None:
        checkpoints.write(os.path.join(folder, PREFIX), tensors)
    else:
        manager = checkpoints.CheckpointManager(folder)
        step = int(bookkeeping["global_step"])
        manager.save(step, {**tensors, **bookkeeping})
    write_metadata(folder, pretrained)
