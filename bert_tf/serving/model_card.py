"""The model card: what an export is, where it comes from, how good it was."""

import dataclasses
import hashlib
import importlib.metadata
import json
import math
import os
from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from bert_tf import files
from bert_tf.modeling import checkpoint_variables
from bert_tf.serving.served import Served
from bert_tf.version import __version__

MODEL_CARD = "model_card.json"
# All weights are in this file of a SavedModel.
WEIGHTS = "variables/variables.data-00000-of-00001"


def model_card(
    served: Served,
    folder: str,
    name: str,
    metrics: Mapping[str, float | None] | None = None,
    source: str | None = None,
) -> dict[str, Any]:
    """Says what an export is, in values that JSON can hold.

    Args:
      served: What was exported.
      folder: The SavedModel, whose weights are hashed.
      name: The model's name on the server.
      metrics: How good it was; what is not finite is None in the card, and
        may be so already.
      source: The checkpoint that it was made from. Of a local path the card
        has the last part only, so that it is the same on every machine.

    Returns:
      The card. Its `encoding` is how texts become ids: the length at which
      they are cut, the casing, and whatever else that kind of model needs.
    """
    variables = checkpoint_variables(served.model).values()
    encoding = dataclasses.asdict(served.encoding)
    return {
        "name": name,
        "kind": served.kind,
        "source": source and _without_folder(source),
        "metrics": {
            key: _number(value) for key, value in (metrics or {}).items()
        },
        "labels": list(served.labels),
        "encoding": {
            key: value
            for key, value in encoding.items()
            if key not in ("vocab", "labels")
        },
        "vocab_size": len(served.encoding.vocab),
        "parameters": sum(math.prod(v.shape) for v in variables),
        "dtype_policy": served.model.dtype_policy.name,
        "weights": {
            "file": WEIGHTS,
            "sha256": _sha256(os.path.join(folder, WEIGHTS)),
        },
        "versions": {
            "bert_tf": __version__,
            "tensorflow": tf.__version__,
            "keras": keras.__version__,
            "tensorflow-text": importlib.metadata.version("tensorflow-text"),
        },
    }


def to_json(card: Mapping[str, Any]) -> str:
    """The text of the file."""
    text = json.dumps(card, indent=2, ensure_ascii=False, allow_nan=False)
    return f"{text}\n"


def _without_folder(source: str) -> str:
    """A checkpoint's name: of a local path the last part, else all of it."""
    is_elsewhere = files.is_remote(source) and not source.startswith("file://")
    return source if is_elsewhere else os.path.basename(source.rstrip("/"))


def _number(value: float | None) -> float | None:
    """A number of Python with the digits that it shows; JSON has no NaN."""
    if value is None or not math.isfinite(value):
        return None
    return json.loads(str(value))


def _sha256(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
