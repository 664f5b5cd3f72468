"""Files of LoRA adapters: what `enable_lora` trains, without the base model.

A file is a safetensors file with the trained weights by their TF1 names: the
adapters and the head. Its metadata has the options of the adapters and a
checksum of all other weights, because adapters only work with these.

PEFT's adapters can be read too; see `peft_adapters`.
"""

import dataclasses
import json
import os
import re
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
from absl import logging

from bert_tf.checkpoints import peft_adapters, settings_files
from bert_tf.checkpoints.huggingface_weights import TensorFiles, write
from bert_tf.checkpoints.settings_files import (
    COUNT,
    OBJECT,
    POSITIVE,
    TEXT,
    Check,
)
from bert_tf.checkpoints.weights import checksum, is_adapter
from bert_tf.errors import InputError, in_file, shortened
from bert_tf.modeling.transformer import LORA_LAYERS
from bert_tf.modeling.variables import checkpoint_variables

# The key of the metadata, whose value is JSON.
_KEY = "bert_tf_lora"
# Rank and alpha of a layer.
_SCALE = Check(
    lambda x: (
        isinstance(x, list)
        and len(x) == 2
        and COUNT.is_valid(x[0])
        and POSITIVE.is_valid(x[1])
    ),
    "a positive rank and a positive lora_alpha",
)
_CHECKS = {"layers": OBJECT, "facts": OBJECT, "other_weights": TEXT}


@dataclasses.dataclass(frozen=True)
class _Adapters:
    """The contents of a file.

    Attributes:
      layers: Rank and alpha by layer.
      values: The trained weights by their TF1 names.
      facts: Facts that must also be true of a model that loads the file.
      other_weights: The checksum of all other weights, if recorded.
    """

    layers: dict[str, list]
    values: dict[str, np.ndarray]
    facts: Mapping[str, Any]
    other_weights: str | None


def save(
    model: keras.Model, path: str | os.PathLike[str], **facts: Any
) -> None:
    """Writes the adapters and the head; see `save_lora_weights`.

    Args:
      model: A model with adapters.
      path: The file.
      **facts: Facts, as JSON, that must also be true of a model that loads the
        file, such as the labels.
    """
    layers = model.adapters()
    if not layers:
        raise InputError(
            f"{model.name} has no LoRA adapters. Call enable_lora first."
        )
    variables = checkpoint_variables(model)
    trained = {name: v for name, v in variables.items() if v.trainable}
    record = {
        "layers": layers,
        "facts": facts,
        "other_weights": _checksum_without(model, variables, trained),
    }
    tensors = {n: keras.ops.convert_to_numpy(v) for n, v in trained.items()}
    write(os.fspath(path), tensors, {_KEY: json.dumps(record)})


def load(
    model: keras.Model, path: str | os.PathLike[str], **facts: Any
) -> None:
    """Loads a file of `save` or of PEFT; see `load_lora_weights`."""
    path = os.fspath(path)
    model.build()
    if folder := peft_adapters.find(path):
        is_tied = "cls/predictions/output_bias" in checkpoint_variables(model)
        contents = peft_adapters.read(folder, model.config, is_tied)
        adapters = _Adapters(*contents, facts={}, other_weights=None)
    else:
        adapters = _read(path)
    _check(adapters, model, path, facts)
    if not model.adapters():
        model.add_adapters(adapters.layers)
    variables = checkpoint_variables(model)
    for name, value in adapters.values.items():
        variables[name].assign(value)


def _read(path: str) -> _Adapters:
    """Reads a file that `save` wrote."""
    tensors = TensorFiles(path)
    if _KEY not in tensors.metadata:
        raise in_file(path, "save_lora_weights has not written this file.")
    where = f"{path}: {_KEY}"
    record = settings_files.parse(tensors.metadata[_KEY], where)
    settings_files.check(record, _CHECKS, where)
    if missing := [key for key in _CHECKS if record.get(key) is None]:
        raise in_file(where, f"there is no {missing[0]!r}.")
    layers = record["layers"]
    settings_files.check(layers, dict.fromkeys(layers, _SCALE), where)
    if None in layers.values():
        raise in_file(where, "a layer has no rank.")
    for name in tensors.shapes:
        if not tensors.is_float(name):
            raise in_file(
                path, f"{name} must be a float; got {tensors.dtype(name)}."
            )
    return _Adapters(
        {name: [int(rank), alpha] for name, (rank, alpha) in layers.items()},
        {name: tensors.read(name) for name in tensors.shapes},
        record["facts"],
        record["other_weights"],
    )


def _check(
    adapters: _Adapters, model: keras.Model, path: str, facts: Mapping[str, Any]
) -> None:
    """Raises InputError unless a model, which is built, can load a file."""
    ours, layers = model.adapters(), adapters.layers
    if not layers:
        raise in_file(path, "there are no LoRA adapters in it.")
    if ours and ours != layers:
        raise in_file(
            path,
            f"the adapters are {_summary(layers)}; {model.name} has "
            f"{_summary(ours)}. Load them into a model without adapters.",
        )
    for name, value in json.loads(json.dumps(facts)).items():
        theirs = adapters.facts.get(name, value)
        if theirs != value:
            raise in_file(
                path,
                f"the adapters were trained with {name} {shortened(theirs)}; "
                f"{model.name} has {shortened(value)}. Make the model with the "
                f"same {name}.",
            )
    variables = checkpoint_variables(model)
    shapes = {
        name: tuple(variable.shape)
        for name, variable in variables.items()
        if not is_adapter(name)
    } | _adapter_shapes(layers, model, path)
    for name, value in sorted(adapters.values.items()):
        if shapes.get(name) != value.shape:
            raise in_file(
                path,
                f"{shortened(name)[1:-1]} has the shape {value.shape}; "
                f"{model.name} has {shapes.get(name) or 'no such weight'}. "
                "Load the adapters into the model that they were trained with.",
            )
    if missing := {*filter(is_adapter, shapes)} - {*adapters.values}:
        raise in_file(
            path, f"there is no {min(missing)}. Is the file complete?"
        )
    if adapters.other_weights is None:
        logging.warning(
            "%s: PEFT does not record which weights its adapters were trained "
            "with. Those weights must be the ones of %s",
            path,
            model.name,
        )
    elif adapters.other_weights != _checksum_without(
        model, variables, adapters.values
    ):
        raise in_file(
            path,
            f"the adapters were trained with weights that {model.name} does "
            "not have. Make the model from the checkpoint that the adapters "
            "were trained on.",
        )


def _adapter_shapes(
    layers: Mapping[str, list], model: keras.Model, path: str
) -> dict[str, tuple[int, int]]:
    """Returns the shapes of the adapters of layers, by their TF1 names."""
    kernels = {
        name: weight.shape
        for name, weight in checkpoint_variables(model).items()
        if name.endswith("/kernel")
    }
    possible = {
        f"encoder/layer_{n}/{layer}"
        for n in range(model.config.num_hidden_layers)
        for layer in LORA_LAYERS.values()
    }
    shapes = {}
    for layer, (rank, _) in layers.items():
        if layer not in possible:
            raise in_file(
                path,
                f"there is an adapter of {shortened(layer)}, which is not a "
                f"layer of {model.name} that can have one. Merge the adapters "
                "in the program that wrote them.",
            )
        height, width = kernels[f"bert/{layer}/kernel"]
        shapes[f"bert/{layer}/lora_kernel_a"] = (height, rank)
        shapes[f"bert/{layer}/lora_kernel_b"] = (rank, width)
    return shapes


def _checksum_without(
    model: keras.Model, variables: Mapping[str, Any], names: Mapping[str, Any]
) -> str:
    """Returns the checksum of all other weights that have an effect."""
    unused = re.compile(model.unused_variables)
    others = {
        name: variable
        for name, variable in variables.items()
        if name not in names and not unused.match(name)
    }
    return checksum(others)


def _summary(layers: Mapping[str, Any]) -> str:
    """Returns the number of adapters and their rank and alpha."""
    options = sorted({tuple(values) for values in layers.values()})
    return f"{len(layers)} with (rank, lora_alpha) = {options}"
