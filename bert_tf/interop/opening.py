"""From a path to the checkpoint that it means, whatever its format."""

import os
import re

from absl import logging

from bert_tf import files
from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.interop import hub, huggingface, unopened
from bert_tf.interop.pretrained import KERAS_FILE, Pretrained
from bert_tf.training.weights import Weights

_WEB = re.compile(r"(https?|hf)://", re.IGNORECASE)

FORMATS = (
    "a TF1 checkpoint (DIR/bert_model.ckpt, or DIR), a Hugging Face folder "
    "(with config.json and model.safetensors), hf://OWNER/NAME[@REVISION], or "
    "a .keras file"
)


def open_pretrained(path: str | os.PathLike[str]) -> Pretrained:
    """Opens a checkpoint; its weights are read when they are asked for.

    Args:
      path: The prefix of a TF1 checkpoint, with or without `.index`, or its
        directory; a Hugging Face folder or its `.safetensors` file;
        `hf://owner/name[@revision]`; or a `.keras` file.

    Raises:
      InputError: There is none, it is damaged or of another kind. Pickles are
        refused: to read one is to run what its author wrote.
    """
    path = os.fspath(path)
    if path.startswith(hub.SCHEME):
        return huggingface.read(hub.download(path))
    if _WEB.match(path):
        raise InputError(
            f"expected {FORMATS}. Received: {path!r}; write hf://OWNER/NAME "
            "for a model of the Hub, or download it"
        )
    if not files.exists(path) and not files.exists(f"{path}.index"):
        raise InputError(
            f"expected {FORMATS}. Received: {path!r}, and there is nothing of "
            "that name"
        )
    if _is_huggingface(path):
        return huggingface.read(path)
    if path.endswith(".keras") or files.exists(os.path.join(path, KERAS_FILE)):
        # Keras is imported for those who need it, as TensorFlow below.
        from bert_tf.interop import keras_files

        return keras_files.read(path)
    return _read_tf1(path)


def open_weights(
    path: str | os.PathLike[str], config: BertConfig | None = None
) -> Weights:
    """The weights of `open_pretrained`, for a model of this configuration."""
    pretrained = open_pretrained(path)
    if config is not None:
        compare_configs(config, pretrained)
    return pretrained.weights


def compare_configs(ours: BertConfig, pretrained: Pretrained) -> None:
    """Compares what shapes do not tell but the numbers depend on.

    Raises:
      InputError: The number of attention heads differs. Another activation is
        remarked on: Google's weights are published under both forms of GELU.
        So is another direction of attention, in which training may go on.
    """
    theirs = pretrained.config
    if theirs is None:
        return
    if ours.num_attention_heads != theirs.num_attention_heads:
        raise InputError(
            f"expected {ours.num_attention_heads} attention heads, as the "
            f"model has. Received: {pretrained.path} with "
            f"{theirs.num_attention_heads}; make the model from the "
            "checkpoint's own configuration"
        )
    for name in ("hidden_act", "attention_direction"):
        if getattr(ours, name) != getattr(theirs, name):
            logging.warning(
                "The model computes %s where %s says %s: its outputs will not "
                "be those that the checkpoint was made with",
                getattr(ours, name),
                pretrained.path,
                getattr(theirs, name),
            )


def read_config(path: str | os.PathLike[str]) -> BertConfig:
    """Reads a configuration file: Google's, or Hugging Face's `config.json`.

    The same word means different things in them: "gelu" is the tanh form in
    Google's and the erf form in Hugging Face's.

    Raises:
      InputError: The file cannot be read or is no configuration of a BERT.
    """
    path = os.fspath(path)
    if "model_type" in files.read_json(path):
        return huggingface.read_config(path).config
    return BertConfig.from_json_file(path)


def _is_huggingface(path: str) -> bool:
    """Whether a path leads to Hugging Face's files, be they refused there."""
    if files.is_directory(path):
        return huggingface.is_folder(path)
    if path.endswith((".safetensors", ".safetensors.index.json")):
        return True
    # A TF1 prefix may end in .ckpt, as some pickles do.
    return files.exists(path) and unopened.find([path]) is not None


def _read_tf1(path: str) -> Pretrained:
    try:
        from bert_tf.interop import google
    except ImportError as error:
        raise InputError(
            f"expected TensorFlow, to read {path} as a TF1 checkpoint. "
            f"Received: {error}; install it, or convert the checkpoint to "
            "safetensors where it is"
        ) from None
    return google.read(path)
