"""Builds Keras models from checkpoints; reads and writes `.keras` files.

A `.keras` file contains the configuration. `vocab.txt` and `bert_tf.json` are
beside it; see `checkpoint.py`.
"""

import dataclasses
import json
import os
import re
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from absl import logging

import bert_tf
from bert_tf.base import files
from bert_tf.checkpoints.checkpoint import (
    KERAS_FILE,
    Pretrained,
    local_file,
    with_metadata,
    write_metadata,
)
from bert_tf.checkpoints.huggingface_names import HEADS, rows
from bert_tf.checkpoints.weights import (
    NEW_HEADS,
    Weights,
    checksum,
    is_adapter,
    require_finite,
    restore,
    scope_of,
)
from bert_tf.errors import in_file, listed, reason
from bert_tf.modeling.dense import adapted_layers, dense_layers
from bert_tf.modeling.variables import checkpoint_variables, encoder_config

# What Keras, zipfile, json and h5py raise for a file that they cannot load;
# h5py raises RuntimeError.
_FAILURES = (
    *(OSError, EOFError, zipfile.BadZipFile, zlib.error),
    *(ValueError, TypeError, LookupError, AttributeError, RuntimeError),
)

# Keras's classes that run code of the file's author; its `safe_mode` refuses
# only some of them.
_WITH_CODE = (
    *("FlaxLayer", "JaxLayer", "Lambda", "TFSMLayer", "TorchModuleWrapper"),
    "__lambda__",
)


def build_model(pretrained: Pretrained) -> keras.Model:
    """Builds the model that a checkpoint describes, with its weights.

    The model has the class of the checkpoint's head. Parts of the class that
    the checkpoint lacks are set to zero, which `ModelWeights` leaves out.

    Args:
      pretrained: A checkpoint that `conversion.plan` accepts.
    """
    config, head = pretrained.config, pretrained.head
    assert config is not None
    assert head is not None
    options = {}
    if HEADS[head].has_labels:
        shape = pretrained.weights.shapes["output_weights"]
        options["num_labels"] = shape[0]
    model_class = getattr(bert_tf, HEADS[head].model)
    model = model_class.from_config({"config": config.to_dict(), **options})
    model.build()
    variables = checkpoint_variables(model)
    report = restore(variables, pretrained.weights, NEW_HEADS)
    for name in report.missing:
        variables[name].assign(keras.ops.zeros_like(variables[name]))
    return model


def heads_of(model_class: type[keras.Model]) -> list[str]:
    """Returns the heads that a model class can have, its `head_name` first."""
    head = getattr(model_class, "head_name", None)
    name = HEADS[head].model if head else None
    return [head for head, row in HEADS.items() if row.model == name]


def head_of_model(model: keras.Model, weights: Weights) -> str | None:
    """Returns the first head of a model's class that has all its weights.

    If every head lacks some, returns "encoder"; for an unknown class, None.
    """
    heads = heads_of(type(model))
    if not heads:
        return None
    lost = {x.part for x in rows(model.config) if x.ours not in weights}
    whole = [head for head in heads if not lost & {*HEADS[head].parts}]
    return [*whole, "encoder"][0]


def random_weights(model: keras.Model) -> Sequence[str]:
    """Returns the TF1 names of the weights that are still random.

    These belong to a head or a pooler that the checkpoint lacked and that has
    not been trained or loaded since.
    """
    names, before = getattr(model, "random_variables", None) or ((), None)
    if not names or any(x.quantization_mode for _, x in dense_layers(model)):
        return ()  # Quantization changed the values, so checksums differ.
    variables = checkpoint_variables(model)
    if checksum({name: variables[name] for name in names}) == before:
        return names
    model.random_variables = None
    return ()


def warn_if_random(model: keras.Model) -> None:
    """Warns once if outputs depend on random weights."""
    if model.is_warned_of_random:
        return
    # Warns once, since computing the checksum for each answer is slow.
    model.is_warned_of_random = True
    warn_of_random(model, "Call fit first")


def warn_of_random(model: keras.Model, advice: str) -> None:
    unused, names = model.unused_variables, random_weights(model)
    if needed := [n for n in names if not re.match(unused, n)]:
        logging.warning(
            "%s: the part with %s is random, since the checkpoint lacks it. %s",
            model.name,
            listed(needed, most=4),
            advice,
        )


class ModelWeights(Weights):
    """The weights of a Keras model, LoRA adapters merged.

    A pooler or head that the checkpoint lacked is left out. Its matrices are
    zero after `build_model`; otherwise they are still random.
    """

    def __init__(self, model: keras.Model, path: str):
        self.path = path
        variables = checkpoint_variables(model)
        empty = {
            scope_of(name)
            for name, variable in variables.items()
            if re.match(NEW_HEADS, name)
            and len(variable.shape) == 2
            and not np.any(keras.ops.convert_to_numpy(variable))
        } | {*map(scope_of, random_weights(model))}
        self._variables = {
            name: variable
            for name, variable in variables.items()
            if scope_of(name) not in empty and not is_adapter(name)
        }
        layers = adapted_layers(model).values()
        self._merged_kernels = {x._kernel.path: x.merged_kernel for x in layers}
        self.shapes = {
            name: tuple(v.shape) for name, v in self._variables.items()
        }

    def __getitem__(self, name: str) -> np.ndarray:
        variable = self._variables[name]
        if variable.path in self._merged_kernels:
            return self._merged_kernels[variable.path]()
        if keras.config.backend() == "tensorflow":
            # Shares the memory of the variable. `convert_to_numpy` copies it
            # twice.
            return np.asarray(keras.ops.convert_to_tensor(variable))
        return keras.ops.convert_to_numpy(variable)


def read(path: str) -> Pretrained:
    """Reads a `.keras` file, or a folder that `write` wrote.

    No code from the file runs: Keras builds registered classes only.

    Raises:
      InputError: If the file is missing or damaged, or is not a model of this
        project.
    """
    path = _file_at(path)
    model = load_model(path, compile=False)
    weights = ModelWeights(model, path)
    pretrained = with_metadata(
        Pretrained(path, weights, head=head_of_model(model, weights)),
        os.path.dirname(path),
    )
    config = encoder_config(model) or pretrained.config
    return dataclasses.replace(pretrained, config=config)


def is_keras(path: str) -> bool:
    """Returns whether a path is a `.keras` file, or a folder with one."""
    return path.endswith(".keras") or files.exists(f"{path}/{KERAS_FILE}")


def _file_at(path: str) -> str:
    if not path.endswith(".keras") and files.is_directory(path):
        path = os.path.join(path, KERAS_FILE)
    if not files.exists(path):
        raise in_file(path, "there is no such file.")
    return path


def load_model(
    path: str | os.PathLike[str],
    custom_objects: Mapping[str, Any] | None = None,
    compile: bool = True,
    safe_mode: bool = True,
) -> keras.Model:
    """Loads a whole model, as `keras.models.load_model` does.

    For the weights only, of any format, see `load_checkpoint`.

    Args:
      path: A `.keras` file of a model that contains classes of bert_tf.
      custom_objects, compile, safe_mode: See Keras's function.

    Raises:
      InputError: If the file is missing, damaged or not a `.keras` file, or
        contains code, which Keras runs only with `safe_mode=False`.
    """
    path = _file_at(files.path_text(path))
    objects: list[dict[str, Any]] = []
    try:
        with local_file(path) as local:
            with zipfile.ZipFile(local) as archive:
                config = archive.read("config.json")
            json.loads(config, object_hook=objects.append)
            for values in reversed(objects):  # Outer objects first.
                kind = str(values.get("class_name"))
                if kind in _WITH_CODE and safe_mode:
                    raise ValueError(
                        f"it contains a {kind}, which runs code of the file's "
                        "author. safe_mode=False trusts the author"
                    )
                # Keras finds only classes that are imported.
                name = str(values.get("registered_name")).partition(">")[2]
                if name in bert_tf.__all__:
                    getattr(bert_tf, name)
            model = keras.saving.load_model(
                local, custom_objects, compile, safe_mode
            )
    except _FAILURES as error:
        message = f"Keras cannot load the file: {reason(error)[:300]}."
        raise in_file(path, message) from error
    for variable in model.weights:
        value = keras.ops.convert_to_numpy(variable)
        require_finite(value, variable.path, path)
    return model


def write(folder: str, pretrained: Pretrained) -> None:
    """Writes `model.keras` and the files beside it into an existing directory.

    Raises InputError if the weights do not make a whole model.
    """
    build_model(pretrained).save(os.path.join(folder, KERAS_FILE))
    write_metadata(folder, pretrained)
