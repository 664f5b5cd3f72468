"""LoRA adapters in PEFT's format: what `enable_lora` trains.

    adapter_config.json          rank, alpha and the names of the layers
    adapter_model.safetensors    the adapters and the head

Adapters only work with the weights that they were trained with. So the metadata
of the safetensors file has a checksum of these weights, and the labels; PEFT
ignores both.
"""

import json
import math
import os
import re
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
from absl import logging

from bert_tf.base import files
from bert_tf.checkpoints import huggingface_names
from bert_tf.checkpoints.checkpoint import (
    ADAPTERS,
    BOOLEAN,
    OBJECT,
    POSITIVE,
    TEXT,
    find_unsupported,
    one_of,
    parse,
    read_json,
    unsupported_format,
    write_json,
)
from bert_tf.checkpoints.huggingface_weights import TensorFiles, write
from bert_tf.checkpoints.weights import checksum, is_adapter
from bert_tf.errors import InputError, in_file, shortened
from bert_tf.modeling.transformer import LORA_LAYERS
from bert_tf.modeling.variables import checkpoint_variables

WHOLE = "adapter_model.safetensors"

# The key of the metadata, whose value is JSON.
_KEY = "bert_tf_lora"
_RECORD = {
    "facts": OBJECT,
    "other_weights": TEXT,
    # Files of earlier versions: rank and alpha by layer.
    "layers": OBJECT,
}

# PEFT's options that change the outputs, but not the tensors' names and shapes,
# which are checked separately. Other values of init_lora_weights change the
# weights of the model.
_OPTIONS = {
    "peft_type": one_of(["LORA"]),
    "lora_alpha": POSITIVE,
    "use_rslora": BOOLEAN,
    "alpha_pattern": one_of([{}]),
    "bias": one_of(["none"]),
    "fan_in_fan_out": one_of([False]),
    "init_lora_weights": one_of([True, "gaussian", "orthogonal"]),
    "use_dora": one_of([False]),
    "use_qalora": one_of([False]),
}
_PREFIX = "base_model.model."
_NAME = re.compile(r"(.+?)(?:\.lora_([AB]))?\.(weight|bias)")


def save(
    model: keras.Model, path: str | os.PathLike[str], **facts: Any
) -> None:
    """Writes the adapters and the head; see `save_lora_weights`.

    Args:
      model: A model with adapters.
      path: The folder.
      **facts: Facts, as JSON, that must also be true of a model that loads the
        folder, such as the labels.
    """
    layers = model.adapters()
    if not layers:
        raise InputError(
            f"{model.name} has no LoRA adapters. Call enable_lora first."
        )
    variables = checkpoint_variables(model)
    trained = {name: v for name, v in variables.items() if v.trainable}
    rows = {row.ours: row for row in huggingface_names.rows(model.config)}
    head = getattr(model, "head_name", "")
    rank, alpha = next(iter(layers.values()))
    tensors = {}
    for ours, variable in trained.items():
        value = keras.ops.convert_to_numpy(variable)
        layer, _, half = ours.partition("/lora_kernel_")
        row = rows.get(f"{layer}/kernel" if half else ours)
        # Heads that transformers lacks keep the names of this project.
        name = row.their_name(head) if row else ours
        if half:
            name = name.removesuffix("weight") + f"lora_{half.upper()}.weight"
            own_alpha = layers[layer.removeprefix("bert/")][1]
            if half == "b" and own_alpha != alpha:
                # PEFT's file has one alpha for all layers.
                value = value * (own_alpha / alpha)
            value = value.T
        elif row:
            value = row.turned(value)
        tensors[_PREFIX + name] = value
    options = {
        "base_model_name_or_path": model.checkpoint and model.checkpoint.path,
        "inference_mode": True,
        "lora_alpha": alpha,
        "peft_type": "LORA",
        "r": rank,
        **_modules(tensors, rank),
    }
    record = {"facts": facts, "other_weights": _other_weights(model, trained)}
    path = files.path_text(path, "The folder")
    write(os.path.join(path, WHOLE), tensors, {_KEY: json.dumps(record)})
    write_json(os.path.join(path, ADAPTERS), options)


def _modules(tensors: Mapping[str, np.ndarray], rank: int) -> dict[str, Any]:
    """Returns PEFT's options that name the modules of tensors."""
    ranks, whole = {}, set()
    for name, value in tensors.items():
        module, _, half = name.removeprefix(_PREFIX).partition(".lora_")
        if not half:
            whole.add(module.rpartition(".")[0])
        elif half.startswith("A"):
            ranks[module] = len(value)
    return {
        "target_modules": [*ranks],
        "rank_pattern": {n: own for n, own in ranks.items() if own != rank},
        # PEFT saves whole modules: cls.predictions with the word embeddings.
        "modules_to_save": sorted(whole - {"", "cls.predictions"}),
    }


def load(
    model: keras.Model, path: str | os.PathLike[str], **facts: Any
) -> None:
    """Loads what `save` or PEFT wrote; see `load_lora_weights`."""
    path = os.fspath(path)
    model.build()
    if os.path.basename(path).startswith("adapter_"):
        path = os.path.dirname(path) or os.curdir
    layers, values, record = _read(path, model)
    if not layers:
        raise in_file(path, "there are no LoRA adapters in it.")
    if model.adapters() not in ({}, layers):
        raise in_file(
            path,
            f"{model.name} has adapters of other layers, or with another rank "
            "or lora_alpha. Load the file into a model without adapters.",
        )
    recorded = record.get("facts") or {}
    for name, value in json.loads(json.dumps(facts)).items():
        theirs = recorded.get(name, value)
        if theirs != value:
            raise in_file(
                path,
                f"the adapters were trained with {name} {shortened(theirs)}; "
                f"{model.name} has {shortened(value)}. Make the model with the "
                f"same {name}.",
            )
    _check_shapes(layers, values, model, path)
    other_weights = record.get("other_weights")
    if other_weights is None:
        logging.warning(
            "%s: PEFT does not record which weights its adapters were trained "
            "with. Those weights must be the ones of %s",
            path,
            model.name,
        )
    elif other_weights != _other_weights(model, values):
        raise in_file(
            path,
            f"the adapters were trained with weights that {model.name} does "
            "not have. Make the model from the checkpoint that the adapters "
            "were trained on.",
        )
    if not model.adapters():
        model.add_adapters(layers)
    variables = checkpoint_variables(model)
    for name, value in values.items():
        variables[name].assign(value)


def _read(
    path: str, model: keras.Model
) -> tuple[dict[str, list], dict[str, np.ndarray], dict[str, Any]]:
    """Reads PEFT's folder, or a file of an earlier version with TF1 names.

    Returns:
      Rank and alpha by layer, as in `FeatureModel.adapters`; the trained
      weights by their TF1 names; and what bert_tf records beside them.

    Raises:
      InputError: If a file is missing or damaged, or an option or a tensor is
        not supported.
    """
    options: dict[str, Any] = {}
    if files.is_directory(path):
        options = read_json(os.path.join(path, ADAPTERS), _OPTIONS)
        names = files.listdir(path)
        other = None if WHOLE in names else find_unsupported(names)
        if other:
            raise unsupported_format(os.path.join(path, other))
        path = os.path.join(path, WHOLE)
    tensors = TensorFiles(path)
    text = tensors.metadata.get(_KEY, "{}")
    record = parse(text, f"{path}: {_KEY}", _RECORD)
    layers: dict[str, list] = {
        name: [int(rank), alpha]
        for name, (rank, alpha) in (record.get("layers") or {}).items()
    }
    variables = checkpoint_variables(model)
    by_theirs = {r.theirs: r for r in huggingface_names.rows(model.config)}
    values: dict[str, np.ndarray] = {}
    for theirs, shape in tensors.shapes.items():
        name = theirs.removeprefix(_PREFIX)
        if name in variables or is_adapter(name):
            values[name] = tensors.read(theirs)
            continue
        match = _NAME.fullmatch(name)
        row = match and by_theirs.get(
            huggingface_names.canonical(f"{match[1]}.{match[3]}")
        )
        half = match and match[2]
        if row is None or (half and len(shape) != 2):
            raise in_file(
                path,
                f"{shortened(theirs)} is not supported. Call merge_and_unload "
                "and save_pretrained of PEFT, and load the folder with "
                "from_pretrained.",
            )
        is_tied = "cls/predictions/output_bias" in variables
        if is_tied and row.ours.endswith("/word_embeddings"):
            raise in_file(
                path,
                "PEFT trains word_embeddings apart from the output matrix of "
                "masked words, which here is the same. Train the adapters "
                "without word_embeddings in modules_to_save.",
            )
        if not half:
            values[row.ours] = row.turned(tensors.read(theirs))
            continue
        layer = row.ours.removesuffix("/kernel")
        values[f"{layer}/lora_kernel_{half.lower()}"] = tensors.read(theirs).T
        if half == "A":
            rank = shape[0]
            # rsLoRA divides by the root of the rank, LoRA by the rank.
            scale = math.sqrt(rank) if options.get("use_rslora") else 1
            alpha = options.get("lora_alpha") or 8
            layers[layer.removeprefix("bert/")] = [rank, alpha * scale]
    return layers, values, record


def _check_shapes(
    layers: Mapping[str, list],
    values: Mapping[str, np.ndarray],
    model: keras.Model,
    path: str,
) -> None:
    expected: dict[str, tuple | None] = {
        name: tuple(variable.shape)
        for name, variable in checkpoint_variables(model).items()
        if not is_adapter(name)
    }
    for layer, (rank, _) in layers.items():
        kernel = expected.get(f"bert/{layer}/kernel")
        if not layer.endswith((*LORA_LAYERS.values(),)):
            kernel = None
        halves = f"bert/{layer}/lora_kernel_"
        expected[f"{halves}a"] = kernel and (kernel[0], rank)
        expected[f"{halves}b"] = kernel and (rank, kernel[1])
    found = {name: value.shape for name, value in values.items()}
    for name in sorted({*found, *filter(is_adapter, expected)}):
        if name not in found or found[name] != expected.get(name):
            raise in_file(
                path,
                f"{shortened(name)[1:-1]} must have the shape that it has in "
                f"{model.name}, {expected.get(name) or 'none'}; got "
                f"{found.get(name) or 'none'}. Load the adapters into the "
                "model that they were trained with.",
            )


def _other_weights(model: keras.Model, names: Mapping[str, Any]) -> str:
    """Returns the checksum of the used weights that are not in `names`."""
    unused = re.compile(model.unused_variables)
    return checksum(
        {
            name: variable
            for name, variable in checkpoint_variables(model).items()
            if name not in names and not unused.match(name)
        }
    )
