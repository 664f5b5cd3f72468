"""Weights by name: what a model takes them from, and how.

Free of TensorFlow: weights may come from any file and go into the variables
of any Keras backend.
"""

import dataclasses
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from bert_tf.errors import InputError

# What a training checkpoint holds beside weights.
BOOKKEEPING = re.compile(r"^(global_step|training_state/.*|.*/adam_[mv])$")

# Variables that may be missing where a model starts from the weights of
# another: a new head, and the pooler, which is part of none of the models
# that were trained without one.
NEW_HEADS = r"(?!bert/(embeddings|encoder)/)"


class Weights(Protocol):
    """Arrays by their TF1 names, read when they are asked for.

    Attributes:
      path: Where they are from, for messages.
      shapes: Dict from name to shape, of all there is.
    """

    path: str
    shapes: Mapping[str, Sequence[int]]

    def __contains__(self, name: str) -> bool: ...

    def __getitem__(self, name: str) -> np.ndarray: ...


class Selection:
    """Some of the weights of a checkpoint: a `Weights`.

    Args:
      weights: Where they are from.
      names: Which.
    """

    def __init__(self, weights: Weights, names: Iterable[str]):
        self.path = weights.path
        self.shapes: Mapping[str, Sequence[int]] = {
            name: weights.shapes[name] for name in names
        }
        self._weights = weights

    def __contains__(self, name: str) -> bool:
        return name in self.shapes

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self.shapes:
            raise KeyError(name)
        return self._weights[name]


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


def restore(
    variables: Mapping[str, Any], weights: Weights, may_lack: str = ""
) -> Report:
    """Fills variables with weights; changes none if one does not fit.

    Args:
      variables: Dict from name to variable.
      weights: What to fill them with.
      may_lack: Regular expression: variables whose names match it may be
        missing and then keep their value, but only with all others of their
        scope: half a head is a mistake. Empty: none may.

    Returns:
      What was filled, missing and left over.

    Raises:
      InputError: A shape differs or a variable is missing.
    """
    filled = [name for name in variables if name in weights]
    missing = [name for name in variables if name not in weights]
    _check_missing(filled, missing, may_lack, weights.path)
    for name in filled:
        ours, theirs = list(variables[name].shape), list(weights.shapes[name])
        if ours != theirs:
            remedy = "give that configuration, or another checkpoint"
            if may_lack and re.match(may_lack, name):
                remedy = (
                    "convert_checkpoint.py --head=encoder leaves the head out"
                )
            raise InputError(
                f"checkpoint {weights.path} was made with another "
                f"configuration: expected {name} of shape {ours}. Received: "
                f"{theirs}; {remedy}"
            )
    values = {name: weights[name] for name in filled}
    for name, value in values.items():
        variables[name].assign(value)
    left_over = sorted(
        name
        for name in weights.shapes
        if name not in variables and not BOOKKEEPING.match(name)
    )
    return Report(tuple(filled), tuple(missing), tuple(left_over))


def checksum(variables: Mapping[str, Any]) -> str:
    """SHA-256 of the names, types, shapes and values of variables, in hex."""
    seen = hashlib.sha256()
    for name in sorted(variables):
        value = variables[name].numpy()
        seen.update(f"{name} {value.dtype} {value.shape}\n".encode())
        seen.update(value.tobytes())
    return seen.hexdigest()


def _check_missing(
    filled: Iterable[str], missing: Iterable[str], may_lack: str, path: str
) -> None:
    begun = {scope_of(name) for name in filled}

    def may_be_new(name: str) -> bool:
        is_head = bool(may_lack) and re.match(may_lack, name) is not None
        return is_head and scope_of(name) not in begun

    lacking = [name for name in missing if not may_be_new(name)]
    if lacking:
        total = len([*filled, *missing])
        raise InputError(
            f"checkpoint {path} does not fit the model: it lacks "
            f"{len(lacking)} of {total} variables, the first is "
            f"{lacking[0]!r}; give the configuration that it was made with, "
            "or a checkpoint that has them"
        )


def scope_of(name: str) -> str:
    """What is there as a whole or not at all: the first two scopes.

    cls/predictions/transform/dense/kernel -> cls/predictions;
    bert/pooler/dense/bias -> bert/pooler; output_bias -> "".
    """
    return "/".join(name.split("/")[:-1][:2])
