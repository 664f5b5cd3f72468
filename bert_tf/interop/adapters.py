"""Files of LoRA adapters: what `enable_lora` trains, without the base model.

A file is a safetensors file with the trained weights by their TF1 names: the
adapters and the head. Its metadata has the options of the adapters and a
checksum of all other weights, since adapters are useless with any others.
"""

import json
import os
import re
from collections.abc import Mapping
from typing import Any

import keras

from bert_tf.errors import InputError, in_file, shortened
from bert_tf.feature_model import FeatureModel
from bert_tf.interop.huggingface_weights import TensorFiles, write
from bert_tf.modeling import checkpoint_variables
from bert_tf.training.weights import checksum, is_adapter

# The key of the metadata, whose value is JSON.
_KEY = "bert_tf_lora"


def save(
    model: FeatureModel, path: str | os.PathLike[str], **facts: Any
) -> None:
    """Writes the adapters and the head; see `save_lora_weights`.

    Args:
      model: A model with adapters.
      path: The file.
      **facts: Facts that a model must share to load the file, such as the
        labels, as JSON.
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
    model: FeatureModel, path: str | os.PathLike[str], **facts: Any
) -> None:
    """Loads the file that `save` wrote; see `load_lora_weights`."""
    path = os.fspath(path)
    tensors = TensorFiles(path)
    if _KEY not in tensors.metadata:
        raise in_file(path, "save_lora_weights has not written this file.")
    record = json.loads(tensors.metadata[_KEY])
    values = {name: tensors.read(name) for name in tensors.shapes}
    model.build()
    ours, layers = model.adapters(), record["layers"]
    if ours and ours != layers:
        raise in_file(
            path,
            f"the adapters are {_described(layers)}; {model.name} has "
            f"{_described(ours)}. Load them into a model without adapters.",
        )
    for name, value in json.loads(json.dumps(facts)).items():
        theirs = record["facts"].get(name, value)
        if theirs != value:
            raise in_file(
                path,
                f"the adapters were trained with {name} {shortened(theirs)}; "
                f"{model.name} has {shortened(value)}.",
            )
    variables = checkpoint_variables(model)
    for name, value in sorted(values.items()):
        shape = tuple(variables[name].shape) if name in variables else None
        if shape != value.shape and not (is_adapter(name) and not ours):
            raise in_file(
                path,
                f"{name} has the shape {value.shape}; {model.name} has "
                f"{shape or 'no such weight'}.",
            )
    if _checksum_without(model, variables, values) != record["other_weights"]:
        raise in_file(
            path,
            f"the adapters were trained with other weights than {model.name} "
            "has. Make the model from the checkpoint that they started from.",
        )
    if not ours:
        model.add_adapters(layers)
        variables = checkpoint_variables(model)
    for name, value in values.items():
        variables[name].assign(value)


def _checksum_without(
    model: FeatureModel, variables: Mapping[str, Any], names: Mapping[str, Any]
) -> str:
    """Returns the checksum of all other weights that have an effect."""
    unused = re.compile(model.unused_variables)
    others = {
        name: variable
        for name, variable in variables.items()
        if name not in names and not unused.match(name)
    }
    return checksum(others)


def _described(layers: Mapping[str, Any]) -> str:
    """Returns the number of adapters and their rank and alpha."""
    options = sorted({tuple(values) for values in layers.values()})
    return f"{len(layers)} with (rank, lora_alpha) = {options}"
