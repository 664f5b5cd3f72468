"""Weights by name, and how they fill the variables of a model.

Does not import TensorFlow: weights of any file fill variables of any Keras
backend.
"""

import dataclasses
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from bert_tf.errors import InputError, in_file, listed

# Tensors of a training checkpoint that are not weights.
BOOKKEEPING = re.compile(r"^(global_step|training_state/.*|.*/adam_[mv])$")

# lora_alpha / rank of the adapters; a checkpoint without it has the scale 1.
LORA_SCALE = "training_state/lora_scale"

# Variables that may be missing when a model starts from another model's
# weights: a new head, and the pooler, which some models do not have.
NEW_HEADS = r"(?!bert/(embeddings|encoder)/)"

_REMEDY = "Pass its configuration, or another checkpoint."


class Weights(Protocol):
    """Arrays by their TF1 names, read on access.

    Attributes:
      path: The file or folder, for messages.
      shapes: Dict from name to shape, for all arrays.
    """

    path: str
    shapes: Mapping[str, Sequence[int]]

    def __contains__(self, name: str) -> bool:
        return name in self.shapes

    def __getitem__(self, name: str) -> np.ndarray: ...


class Selection(Weights):
    """`Weights` with only the given names of a checkpoint."""

    def __init__(self, weights: Weights, names: Iterable[str]):
        self.path = weights.path
        self.shapes = {name: weights.shapes[name] for name in names}
        self._weights = weights

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self.shapes:
            raise KeyError(name)
        return self._weights[name]


def is_adapter(name: str) -> bool:
    """Returns whether a variable is half a LoRA adapter, or a slot of one."""
    return "/lora_kernel_" in name


class Merged(Selection):
    """The weights of a training checkpoint with LoRA adapters merged."""

    def __init__(self, weights: Weights):
        names = [name for name in weights.shapes if not is_adapter(name)]
        super().__init__(weights, names)

    def __getitem__(self, name: str) -> np.ndarray:
        value = super().__getitem__(name)
        layer = name.removesuffix("/kernel")
        a, b = f"{layer}/lora_kernel_a", f"{layer}/lora_kernel_b"
        if a not in self._weights:
            return value
        change = self._weights[a] @ self._weights[b]
        if LORA_SCALE in self._weights:
            change *= self._weights[LORA_SCALE]
        return value + change


@dataclasses.dataclass(frozen=True)
class Report:
    """The names that `restore` could match, or not.

    Attributes:
      filled: Variables that got a value from the checkpoint.
      missing: Variables that the checkpoint does not have.
      left_over: Weights of the checkpoint that the model does not have;
        optimizer slots and counters are not listed.
    """

    filled: tuple[str, ...]
    missing: tuple[str, ...]
    left_over: tuple[str, ...]

    def __str__(self) -> str:
        text = f"{len(self.filled)} variables filled"
        text += f", {len(self.left_over)} weights unused"
        if self.left_over:
            text += f" ({listed(self.left_over, most=4)})"
        return f"{text}; missing: {listed(self.missing, most=4) or 'nothing'}"


def restore(
    variables: Mapping[str, Any], weights: Weights, may_lack: str = ""
) -> Report:
    """Fills variables with weights; changes none if one does not fit.

    LoRA adapters are merged if the variables have none.

    Args:
      variables: The variables by name.
      weights: The weights.
      may_lack: Regular expression of variables that may be missing and then
        keep their value. A scope must be missing as a whole, since half a head
        is a mistake. Empty if no variable may be missing.

    Raises:
      InputError: A shape differs or a variable is missing.
    """
    if not any(map(is_adapter, variables)):
        weights = Merged(weights)
    filled = [name for name in variables if name in weights]
    missing = [name for name in variables if name not in weights]
    _check_missing(filled, missing, may_lack, weights.path)
    for name in filled:
        remedy = _REMEDY
        if may_lack and re.match(may_lack, name):
            remedy = "convert_checkpoint.py --head=encoder removes the head."
        require_shape(weights, name, variables[name].shape, remedy)
    # Read everything before anything is assigned: a file may be damaged.
    values = {name: weights[name] for name in filled}
    # The largest value is copied last, when the others are freed.
    for name in sorted(values, key=lambda name: values[name].nbytes):
        variables[name].assign(values.pop(name))
    left_over = sorted(
        name
        for name in weights.shapes
        if name not in variables and not BOOKKEEPING.match(name)
    )
    return Report(tuple(filled), tuple(missing), tuple(left_over))


def require_shape(
    weights: Weights, name: str, shape: Sequence[int], remedy: str = _REMEDY
) -> None:
    """Raises InputError if weights lack a name or its shape differs."""
    ours = list(shape)
    theirs = [*weights.shapes[name]] if name in weights.shapes else "none"
    if ours != theirs:
        raise InputError(
            f"Checkpoint {weights.path} does not fit the configuration: "
            f"expected {name} of shape {ours}, found {theirs}. {remedy}"
        )


def are_finite(value: np.ndarray) -> bool:
    """Returns whether numbers can be weights; True for other types.

    The squares of floats must have a finite sum in float32. One pass finds NaN,
    infinities and numbers such as 3e38, which overflow in any product.
    """
    value = np.asarray(value)
    if value.dtype.kind not in "fV":  # bfloat16 has the kind V.
        return True
    with np.errstate(over="ignore", invalid="ignore"):
        numbers = value.astype(np.float32, copy=False).ravel("K")
        return bool(np.isfinite(np.vdot(numbers, numbers)))


def require_finite(value: np.ndarray, name: str, path: str) -> None:
    """Raises InputError unless `are_finite` holds for weights in a file."""
    if not are_finite(value):
        raise in_file(
            path,
            f"{name} has numbers that are NaN, infinite or too large to "
            "compute with. Use an earlier checkpoint, or download it again.",
        )


def checksum(arrays: Mapping[str, Any]) -> str:
    """Returns the SHA-256 of names, types, shapes and values, in hex.

    Args:
      arrays: Tensors or arrays by name, which are read in place; or variables,
        which are copied one at a time.
    """
    digest = hashlib.sha256()
    for name in sorted(arrays):
        value = np.asarray(arrays[name])
        digest.update(f"{name} {value.dtype} {value.shape}\n".encode())
        digest.update(value.reshape(-1).view(np.uint8))
    return digest.hexdigest()


def _check_missing(
    filled: Sequence[str], missing: Sequence[str], may_lack: str, path: str
) -> None:
    present_scopes = {scope_of(name) for name in filled}

    def may_be_new(name: str) -> bool:
        is_head = bool(may_lack) and re.match(may_lack, name) is not None
        return is_head and scope_of(name) not in present_scopes

    lacking = [name for name in missing if not may_be_new(name)]
    if lacking and is_adapter(lacking[0]):
        raise InputError(
            f"Checkpoint {path} has no LoRA adapters, but the model has. Load "
            "the checkpoint before you call enable_lora."
        )
    if lacking:
        raise InputError(
            f"Checkpoint {path} does not fit the model: it lacks "
            f"{len(lacking)} of {len(filled) + len(missing)} variables, "
            f"{lacking[0]!r} first. Pass the configuration of the checkpoint, "
            "or another checkpoint."
        )


def scope_of(name: str) -> str:
    """Returns the first two scopes, which name a part such as a head.

    cls/predictions/transform/dense/kernel -> cls/predictions;
    bert/pooler/dense/bias -> bert/pooler; output_bias -> "". All LoRA adapters
    are one part.
    """
    if is_adapter(name):
        return "lora"
    return "/".join(name.split("/")[:-1][:2])
