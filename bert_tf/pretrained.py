"""Pre-trained weights: opens checkpoints of every format and fills models."""

import os
import re
from typing import Any

import keras
from absl import logging

from bert_tf import files
from bert_tf.config import BertConfig
from bert_tf.errors import InputError, in_file, wrong_value
from bert_tf.interop import hub, huggingface, keras_files
from bert_tf.interop.checkpoint import (
    KERAS_FILE,
    Pretrained,
    find_unsupported,
)
from bert_tf.modeling import FeatureModel, checkpoint_variables, encoder_config
from bert_tf.training.weights import (
    NEW_HEADS,
    Report,
    Selection,
    Weights,
    restore,
    scope_of,
)

FORMATS = (
    "a TF1 checkpoint (DIR/bert_model.ckpt, or DIR), a Hugging Face folder "
    "(with config.json and model.safetensors), hf://OWNER/NAME[@REVISION], or "
    "a .keras file"
)


def load_checkpoint(
    model: keras.Model,
    path: str | os.PathLike[str],
    may_lack: str = NEW_HEADS,
) -> Report:
    """Fills a model with the weights of a checkpoint, on any Keras backend.

    Example:

        config = bert_tf.load_config("bert-base/")
        model = bert_tf.BertClassifier(config, num_labels=3)
        bert_tf.load_checkpoint(model, "bert-base/")

    Args:
      model: One of this project's models, or any Keras model that contains one
        `BertModel`. The latter must be built, by a call for example.
      path: The prefix or directory of a TF1 checkpoint, a Hugging Face folder,
        `hf://owner/name[@revision]`, or a `.keras` file.
      may_lack: Regular expression: TF1 names of the variables that may be
        missing in the checkpoint. By default heads and the pooler; "" means
        that none may be missing.

    Returns:
      The variables that were filled, those that are missing and keep their
      values, and the weights of the checkpoint that were not used.

    Raises:
      InputError: If the checkpoint cannot be read or does not fit. The model
        is then unchanged.
    """
    variables = _variables(model)
    pretrained = open_pretrained(path)
    config = encoder_config(model)
    if config is not None:
        compare_configs(config, pretrained)
    report = restore(variables, _of_same_head(model, pretrained), may_lack)
    log = logging.warning if report.missing else logging.info
    log("Weights from %s: %s", pretrained.path, report)
    return report


def _variables(model: keras.Model) -> dict[str, keras.Variable]:
    """Returns the model's variables by their TF1 names."""
    if not model.built and isinstance(model, FeatureModel):
        model.build()
    variables = checkpoint_variables(model) if model.built else {}
    if not any(name.startswith("bert/") for name in variables):
        raise InputError(
            f"The model {model.name!r} has no BertModel, or it is not built. "
            "Call it once before loading weights."
        )
    return variables


def _of_same_head(model: keras.Model, pretrained: Pretrained) -> Weights:
    """Returns the weights, without a head of another kind with equal names."""
    ours, theirs = keras_files.head_of_model(model), pretrained.head
    same_names = {"classifier", "choice", "token"}
    weights = pretrained.weights
    if ours == theirs or not {ours, theirs} <= same_names:
        return weights
    logging.warning(
        "Ignoring the head of %s: it is for %s, the model's is for %s",
        pretrained.path,
        theirs,
        ours,
    )
    return Selection(weights, [n for n in weights.shapes if scope_of(n)])


def load_config(path: str | os.PathLike[str]) -> BertConfig:
    """Returns the configuration of a checkpoint; `path` as in load_checkpoint.

    Raises:
      InputError: If the checkpoint cannot be read or has no configuration.
    """
    pretrained = open_pretrained(path)
    if pretrained.config is None:
        raise in_file(
            pretrained.path,
            "there is no bert_config.json beside the checkpoint. Add it, or "
            "use BertConfig.from_json_file.",
        )
    return pretrained.config


def load_model(path: str | os.PathLike[str], **options: Any) -> keras.Model:
    """Loads a whole model, as `keras.models.load_model` does.

    For the weights only, of any format, see `load_checkpoint`.

    Args:
      path: A `.keras` file of a model with classes of bert_tf in it.
      **options: Options of Keras's function: `compile`, `custom_objects` ...
    """
    return keras.models.load_model(path, **options)


def read_config(path: str | os.PathLike[str]) -> BertConfig:
    """Reads a configuration file: Google's, or Hugging Face's `config.json`.

    "gelu" means the tanh form in Google's files and the erf form in Hugging
    Face's.

    Raises:
      InputError: If the file cannot be read or is not for a BERT.
    """
    path = os.fspath(path)
    if "model_type" in files.read_json(path):
        return huggingface.read_config(path).config
    return BertConfig.from_json_file(path)


def open_pretrained(path: str | os.PathLike[str]) -> Pretrained:
    """Opens a checkpoint of any format. Weights are read on access.

    Args:
      path: The prefix of a TF1 checkpoint, with or without `.index`, or its
        directory; a Hugging Face folder or its `.safetensors` file;
        `hf://owner/name[@revision]`; or a `.keras` file.

    Raises:
      InputError: If there is no checkpoint, or it is damaged or of another
        format. Pickles are refused: opening one runs code of its author.
    """
    path = os.fspath(path)
    if path.startswith(hub.SCHEME):
        return huggingface.read(hub.download(path))
    if re.match(r"(https?|hf)://", path, re.IGNORECASE):
        advice = "Write hf://OWNER/NAME for a model of the Hub, or download it."
        raise wrong_value("The checkpoint", FORMATS, path, advice)
    if not files.exists(path) and not files.exists(f"{path}.index"):
        raise in_file(path, f"there is no such checkpoint; expected {FORMATS}.")
    if _is_huggingface(path):
        return huggingface.read(path)
    if path.endswith(".keras") or files.exists(os.path.join(path, KERAS_FILE)):
        return keras_files.read(path)
    try:
        # Needs TensorFlow, which may be missing on other backends of Keras.
        from bert_tf.interop import google
    except ImportError as error:
        raise in_file(
            path,
            f"reading a TF1 checkpoint needs TensorFlow ({error}). Install it, "
            "or convert the checkpoint to safetensors on another machine.",
        ) from None
    return google.read(path)


def _is_huggingface(path: str) -> bool:
    """Returns whether Hugging Face's files are at a path, readable or not."""
    if files.is_directory(path):
        return huggingface.is_folder(path)
    if path.endswith((".safetensors", ".safetensors.index.json")):
        return True
    # Both a TF1 prefix and a pickle may end in .ckpt.
    return files.exists(path) and find_unsupported([path]) is not None


def open_weights(
    path: str | os.PathLike[str], config: BertConfig | None = None
) -> Weights:
    """Returns the weights of `open_pretrained`, for a model with `config`."""
    pretrained = open_pretrained(path)
    if config is not None:
        compare_configs(config, pretrained)
    return pretrained.weights


def compare_configs(config: BertConfig, pretrained: Pretrained) -> None:
    """Compares options that change the outputs but no shapes.

    A different activation is logged only: Google's weights are published with
    both forms of GELU. So is a different direction of attention, since training
    may continue with another one.

    Raises:
      InputError: If the number of attention heads differs.
    """
    theirs = pretrained.config
    if theirs is None:
        return
    if config.num_attention_heads != theirs.num_attention_heads:
        raise wrong_value(
            "num_attention_heads of the model",
            f"{theirs.num_attention_heads}, as in {pretrained.path}",
            config.num_attention_heads,
            "Use the checkpoint's configuration.",
        )
    for name in ("hidden_act", "attention_direction"):
        if getattr(config, name) != getattr(theirs, name):
            logging.warning(
                "The model has %s=%s, but %s has %s: outputs will differ from "
                "those of the model that was saved",
                name,
                getattr(config, name),
                pretrained.path,
                getattr(theirs, name),
            )
