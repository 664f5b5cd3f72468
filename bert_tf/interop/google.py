"""TF1 checkpoints: Google's releases, and this project's own.

The names inside are this project's, so nothing is translated:

    bert_model.ckpt.index, .data-00000-of-00001    the weights
    bert_config.json, vocab.txt, bert_tf.json      see `checkpoint.py`
"""

import dataclasses
import os
import re
from collections.abc import Iterable, Mapping

import numpy as np

from bert_tf.interop.checkpoint import (
    Pretrained,
    with_companions,
    write_companions,
)
from bert_tf.training import checkpoints
from bert_tf.training.weights import BOOKKEEPING

PREFIX = "bert_model.ckpt"

# What the names of a checkpoint tell about its head.
_HEADS = {
    ("cls/predictions", "cls/seq_relationship"): "pretraining",
    ("cls/predictions",): "masked_lm",
    ("cls/seq_relationship",): "next_sentence",
    ("cls/squad",): "span",
    (): "encoder",
    # Not ("output",): classifier, tagger and choice are called the same.
}
_HEAD_SCOPE = re.compile(r"(cls/\w+|output)[/_]")


def read(path: str) -> Pretrained:
    """Reads a checkpoint with what lies beside it.

    Args:
      path: Its prefix, with or without `.index`, or its directory.

    Raises:
      InputError: There is no checkpoint, or one of the files is at fault.
    """
    weights = checkpoints.open_checkpoint(path)
    pretrained = with_companions(
        Pretrained(weights.path, weights), os.path.dirname(weights.path)
    )
    if pretrained.head is None:
        head = head_of(weights.shapes)
        pretrained = dataclasses.replace(pretrained, head=head)
    return pretrained


def head_of(names: Iterable[str]) -> str | None:
    """The kind of head that the names of variables tell of, or None."""
    scopes = {
        match[1]
        for match in map(_HEAD_SCOPE.match, names)
        if match and not BOOKKEEPING.match(match.string)
    }
    return _HEADS.get(tuple(sorted(scopes)))


def write(
    folder: str,
    pretrained: Pretrained,
    bookkeeping: Mapping[str, np.ndarray] | None = None,
) -> None:
    """Writes a release.

    Args:
      folder: An existing directory.
      pretrained: What to write.
      bookkeeping: Optimizer slots and `global_step`. With them it becomes a
        training directory, with `model.ckpt-STEP` for a name, from which
        training goes on.
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
    write_companions(folder, pretrained)
