"""LoRA adapters of PEFT: `adapter_config.json`, `adapter_model.safetensors`.

Options that are not listed here change what the adapters compute; if set, they
are rejected by name. PEFT's `merge_and_unload` turns any adapters into an
ordinary model.
"""

import math
import os
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from bert_tf.base import files
from bert_tf.checkpoints import huggingface_names, settings_files
from bert_tf.checkpoints.checkpoint import find_unsupported, unsupported_format
from bert_tf.checkpoints.huggingface_weights import TensorFiles
from bert_tf.checkpoints.settings_files import BOOLEAN, COUNT, OBJECT, POSITIVE
from bert_tf.config import BertConfig
from bert_tf.errors import InputError, in_file, shortened

CONFIG = "adapter_config.json"
WHOLE = "adapter_model.safetensors"

_CHECKS = {
    "r": COUNT,
    "lora_alpha": POSITIVE,
    "use_rslora": BOOLEAN,
    "rank_pattern": OBJECT,
}
# Options that do not change the outputs, or whose effect is in the tensors.
_HARMLESS = {
    "auto_mapping",
    "base_model_name_or_path",
    "exclude_modules",
    "inference_mode",
    "layers_pattern",
    "layers_to_transform",
    "lora_dropout",
    "megatron_core",
    "modules_to_save",
    "peft_version",
    "qalora_group_size",
    "revision",
    "target_modules",
    "task_type",
}
# The supported values. Other ways to initialize adapters change the model.
_VALUES = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "init_lora_weights": (True, "gaussian", "orthogonal"),
}
_NAME = re.compile(r"base_model\.model\.(.+?)(?:\.lora_([AB]))?\.(weight|bias)")
_ADVICE = (
    "Call merge_and_unload and save_pretrained of PEFT, and load the folder "
    "with from_pretrained."
)


def find(path: str) -> str | None:
    """Returns the folder of PEFT's files that a path refers to, or None."""
    folder = path if files.is_directory(path) else os.path.dirname(path)
    is_theirs = os.path.basename(path).startswith("adapter_model.")
    is_theirs |= folder == path
    return folder if is_theirs and files.find_in(folder, CONFIG) else None


def not_a_model(folder: str) -> InputError:
    """Returns the error for adapters in place of a model."""
    base = settings_files.read(folder, CONFIG, {}).get(
        "base_model_name_or_path"
    )
    return in_file(
        folder,
        "this folder has PEFT adapters, not a model. Load the model "
        f"that they belong to ({shortened(base)}), then call "
        "load_lora_weights with this folder.",
    )


def read(
    folder: str, config: BertConfig, is_tied: bool
) -> tuple[dict[str, list], dict[str, np.ndarray]]:
    """Reads adapters, and the layers that were trained with them.

    Args:
      folder: The folder.
      config: The configuration of the model.
      is_tied: Whether the word embeddings are also the model's output matrix.

    Returns:
      Rank and alpha by layer, as in `FeatureModel.adapters`; and the values by
      their TF1 names.

    Raises:
      InputError: If a file is missing or damaged, or an option or a tensor is
        not supported.
    """
    path = os.path.join(folder, CONFIG)
    options = settings_files.read_file(path, _CHECKS)
    _check_options(options, path)
    rank, alpha = int(options.get("r") or 8), options.get("lora_alpha") or 8
    other = find_unsupported(files.listdir(folder))
    if other and not files.find_in(folder, WHOLE):
        raise unsupported_format(os.path.join(folder, other))
    tensors = TensorFiles(os.path.join(folder, WHOLE))
    by_name = {row.theirs: row for row in huggingface_names.rows(config)}
    layers: dict[str, list] = {}
    values: dict[str, np.ndarray] = {}
    for name, shape in tensors.shapes.items():
        match = _NAME.fullmatch(name)
        theirs = match and huggingface_names.canonical(f"{match[1]}.{match[3]}")
        row = by_name.get(theirs or "")
        if (
            match is None
            or row is None
            or not tensors.is_float(name)
            or (match[2] and len(shape) != 2)
        ):
            raise in_file(
                tensors.path, f"{shortened(name)} is not supported. {_ADVICE}"
            )
        if is_tied and row.ours == "bert/embeddings/word_embeddings":
            raise in_file(
                tensors.path,
                "PEFT trains word_embeddings apart from the output matrix of "
                "masked words, which here is the same. Train the adapters "
                "without word_embeddings in modules_to_save.",
            )
        if not match[2]:
            values[row.ours] = row.turned(tensors.read(name))
            continue
        layer = row.ours.removesuffix("/kernel")
        part = f"{layer}/lora_kernel_{match[2].lower()}"
        values[part] = np.ascontiguousarray(tensors.read(name).T)
        if match[2] == "A":
            own = shape[0] if options.get("rank_pattern") else rank
            # rsLoRA divides by the root of the rank, LoRA by the rank.
            scale = math.sqrt(own) if options.get("use_rslora") else 1
            layers[layer.removeprefix("bert/")] = [own, alpha * scale]
    return layers, values


def _check_options(options: Mapping[str, Any], path: str) -> None:
    for name, value in options.items():
        if name in _VALUES:
            is_known = value in _VALUES[name]
        else:
            is_known = not value or name in _HARMLESS or name in _CHECKS
        if value is not None and not is_known:
            raise in_file(
                path,
                f"the option {shortened(name)} of PEFT must not be "
                f"{shortened(value)}. {_ADVICE}",
            )
