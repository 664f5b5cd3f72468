"""The files that sentence-transformers adds to a Hugging Face folder.

    modules.json                        the modules: Transformer, Pooling ...
    1_Pooling/config.json               how token vectors become an embedding
    sentence_bert_config.json           the sequence length and the casing
    config_sentence_transformers.json   prompts and the similarity function

Versions 2 to 6 of sentence-transformers write them differently; all are read.
"""

import json
import os
from collections.abc import Mapping
from typing import Any

from absl import logging

from bert_tf.base import files
from bert_tf.checkpoints.checkpoint import (
    BOOLEAN,
    COUNT,
    OBJECT,
    TEXT,
    TEXT_BY_NAME,
    Check,
    Pretrained,
    are_texts,
    read_json,
    read_settings,
)
from bert_tf.config import TOKEN_POOLINGS
from bert_tf.errors import in_file, listed, shortened

MODULES = "modules.json"
_POOLING = "1_Pooling/config.json"
_TRANSFORMER = "sentence_bert_config.json"
_SETTINGS = "config_sentence_transformers.json"
FILES = (MODULES, _POOLING, _TRANSFORMER, _SETTINGS)

# The modules of the supported models.
_ORDERS = (
    ["Transformer", "Pooling"],
    ["Transformer", "Pooling", "Normalize"],
)
# In older files each pooling is a key that is true or false.
_LEGACY = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_IN_POOLING = {
    **dict.fromkeys(_LEGACY, BOOLEAN),
    "include_prompt": BOOLEAN,
    "pooling_mode": Check(
        lambda value: isinstance(value, str) or (are_texts(value) and value),
        "a name or a list of names",
    ),
}
_IN_TRANSFORMER = {
    "max_seq_length": COUNT,
    "do_lower_case": BOOLEAN,
    "transformer_task": TEXT,
    "modality_config": OBJECT,
}
_IN_SETTINGS = {
    "prompts": TEXT_BY_NAME,
    "default_prompt_name": TEXT,
    "similarity_fn_name": TEXT,
}
_TASK = "feature-extraction"
_OUTPUT = "last_hidden_state"


def read(folder: str, longest: int) -> dict[str, Any]:
    """Reads how a folder's model computes embeddings.

    Args:
      folder: The folder of the model.
      longest: The largest sequence length of the model.

    Returns:
      Fields of `Pretrained` by name; {} if there is no modules.json.

    Raises:
      InputError: If a file is missing or invalid.
    """
    path = files.find_in(folder, MODULES)
    if path is None:
        return {}
    modules = _modules(path)
    transformer = read_settings(folder, _TRANSFORMER, _IN_TRANSFORMER)
    settings = read_settings(folder, _SETTINGS, _IN_SETTINGS)
    prompts = settings.get("prompts") or {}
    unsupported = _unsupported_output(transformer)
    fields: dict[str, Any] = {}
    kinds = [kind for kind, _ in modules]
    if kinds in _ORDERS:
        place = modules[1][1]
        config = files.find_in(folder, f"{place}/config.json")
        if config is None:
            raise in_file(path, f"{shortened(place)} has no config.json.")
        pooling = read_json(config, _IN_POOLING)
        fields["normalize"] = "Normalize" in kinds
        fields["pooling"], faults = _pooling(pooling, prompts)
        unsupported += faults
    else:
        unsupported.append(f"{MODULES} with {listed(kinds) or 'no modules'}")
    ignored = [*unsupported]
    similarity = settings.get("similarity_fn_name") or "cosine"
    if similarity != "cosine":
        # `fit` and `evaluate` compare vectors by their cosines.
        ignored.append(f"similarity by {_in_one_line(similarity)}")
    if ignored:
        logging.warning(
            "%s: ignoring what bert_tf does not support: %s",
            folder,
            listed(ignored),
        )
    return {
        **fields,
        "max_seq_length": _length(folder, transformer, longest),
        "prompts": prompts or None,
        "default_prompt_name": settings.get("default_prompt_name"),
        "unsupported_modules": tuple(unsupported),
        # Texts may be lower-cased before the tokenizer.
        **({"do_lower_case": True} if transformer.get("do_lower_case") else {}),
    }


def _modules(path: str) -> list[tuple[str, str]]:
    """Returns the class and the folder of each module.

    The folder is added to a class that is unsupported there: a Transformer
    outside of the root, or another module in the root.
    """
    modules = []
    for module in read_json(path, {}, list):
        entry = module if isinstance(module, dict) else {}
        kind, place = entry.get("type"), entry.get("path")
        if not isinstance(kind, str) or not isinstance(place, str):
            raise in_file(
                path, "expected a list of modules with 'type' and 'path'."
            )
        kind = _in_one_line(kind.split(".")[-1])
        is_root = os.path.normpath(place) == os.curdir
        if is_root != (kind == "Transformer"):
            kind += f" in {shortened(place)}"
        modules.append((kind, place))
    return modules


def _unsupported_output(transformer: Mapping[str, Any]) -> list[str]:
    """Returns the output of a Transformer module if it is unsupported."""
    text = (transformer.get("modality_config") or {}).get("text")
    task = transformer.get("transformer_task") or _TASK
    output = isinstance(text, dict) and text.get("method_output_name")
    if task == _TASK and output in (False, None, _OUTPUT):
        return []
    return [f"Transformer with {_in_one_line(task)} and {_in_one_line(output)}"]


def _pooling(
    config: Mapping[str, Any], prompts: Mapping[str, str]
) -> tuple[str | None, list[str]]:
    """Returns the pooling and its unsupported settings."""
    modes = config.get("pooling_mode")
    if modes is None:
        modes = [mode for key, mode in _LEGACY.items() if config.get(key)]
        modes = modes or ["mean"]
    modes = [modes] if isinstance(modes, str) else list(modes)
    faults = []
    if len(modes) != 1 or modes[0] not in TOKEN_POOLINGS:
        faults.append(f"Pooling with {listed(map(_in_one_line, modes))}")
    if config.get("include_prompt") is False and any(prompts.values()):
        faults.append("Pooling without the prompt")
    return None if faults else modes[0], faults


def _in_one_line(name: Any) -> str:
    """Returns any name from a file as one short line."""
    return shortened(name).strip("'")


def _length(folder: str, transformer: Mapping[str, Any], longest: int) -> int:
    """Returns the sequence length, which version 6 keeps in the tokenizer."""
    length = transformer.get("max_seq_length")
    if length is None:
        tokenizer = read_settings(
            folder, "tokenizer_config.json", {"model_max_length": COUNT}
        )
        # A length such as 1e30 means no limit.
        length = tokenizer.get("model_max_length") or longest
    return int(min(length, longest))


def write(folder: str, pretrained: Pretrained) -> None:
    """Writes the files beside a Hugging Face model with a pooling.

    They have the format of version 2, which later versions can read.
    """
    if pretrained.pooling == "pooled":
        logging.warning(
            "sentence-transformers has no pooling 'pooled': %s is written "
            "without the files of sentence-transformers",
            folder,
        )
        return
    config = pretrained.config
    assert config is not None
    kinds = ["Transformer", "Pooling"]
    if pretrained.normalize:
        kinds.append("Normalize")
    contents: dict[str, Any] = {
        MODULES: [
            {
                "idx": number,
                "name": str(number),
                "path": f"{number}_{kind}" if number else "",
                "type": f"sentence_transformers.models.{kind}",
            }
            for number, kind in enumerate(kinds)
        ],
        _POOLING: {
            "word_embedding_dimension": config.hidden_size,
            **{k: mode == pretrained.pooling for k, mode in _LEGACY.items()},
            "include_prompt": True,
        },
        _TRANSFORMER: {
            "max_seq_length": pretrained.max_seq_length
            or config.max_position_embeddings,
            "do_lower_case": False,
        },
        _SETTINGS: {
            "prompts": dict(pretrained.prompts or {}),
            "default_prompt_name": pretrained.default_prompt_name,
            "similarity_fn_name": "cosine",
        },
    }
    if pretrained.normalize:
        contents["2_Normalize/config.json"] = {}
    for name, content in contents.items():
        text = json.dumps(content, indent=2) + "\n"
        files.write_text(os.path.join(folder, name), text)
