"""From a path to the checkpoint that it means, whatever its format."""

import os
import re
from typing import Any

import keras
from absl import logging

from bert_tf import files
from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.interop import checkpoint, hub, huggingface
from bert_tf.interop.checkpoint import KERAS_FILE, Pretrained
from bert_tf.interop.keras_files import head_of_model
from bert_tf.layers import FromConfig
from bert_tf.modeling import checkpoint_variables, encoder_config
from bert_tf.tokenization.wordpiece import load_vocab
from bert_tf.training.weights import (
    NEW_HEADS,
    Report,
    Selection,
    Weights,
    restore,
    scope_of,
)

# From a path to the checkpoint that it means, whatever its format.


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
    return files.exists(path) and bool(checkpoint.find_unsupported([path]))


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


# Somebody's weights into a Keras model, and configurations.


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
      model: One of this project's models, or any Keras model that holds one
        `BertModel`; the latter built, as it is once it was called.
      path: The prefix or directory of a TF1 checkpoint, a Hugging Face folder,
        `hf://owner/name[@revision]`, or a `.keras` file.
      may_lack: Regular expression: variables that the checkpoint may lack, by
        their TF1 names. Heads, and the pooler, unless told; "" for none.

    Returns:
      Which variables were filled, are missing and keep their values, and what
      of the checkpoint is left over.

    Raises:
      InputError: The checkpoint cannot be read or does not fit. The model is
        then as it was.
    """
    variables = _variables(model)
    pretrained = open_pretrained(path)
    ours = encoder_config(model)
    if ours is not None:
        compare_configs(ours, pretrained)
    report = restore(variables, _of_its_kind(model, pretrained), may_lack)
    log = logging.warning if report.missing else logging.info
    log("Weights from %s: %s", pretrained.path, report)
    return report


def _variables(model: keras.Model) -> dict[str, keras.Variable]:
    """The variables of a model by their TF1 names, the encoder's included."""
    if not model.built and isinstance(model, FromConfig):
        model.build()
    variables = checkpoint_variables(model) if model.built else {}
    if not any(name.startswith("bert/") for name in variables):
        raise InputError(
            "expected a model with a BertModel in it, built, as it is once it "
            f"was called. Received: {model.name!r}, with "
            f"{len(variables)} variables and none of an encoder"
        )
    return variables


def _of_its_kind(model: keras.Model, pretrained: Pretrained) -> Weights:
    """The weights, without a head of another kind that has the same names."""
    ours, theirs = head_of_model(model), pretrained.head
    alike = {"classifier", "choice", "token"}
    weights = pretrained.weights
    if ours == theirs or not {ours, theirs} <= alike:
        return weights
    logging.warning(
        "The head of %s is of kind %s, the model's of kind %s: it is not taken",
        pretrained.path,
        theirs,
        ours,
    )
    kept = [name for name in weights.shapes if scope_of(name)]
    return Selection(weights, kept)


def load_config(path: str | os.PathLike[str]) -> BertConfig:
    """The configuration of a checkpoint; `path` as in `load_checkpoint`.

    Raises:
      InputError: The checkpoint cannot be read or has no configuration.
    """
    pretrained = open_pretrained(path)
    if pretrained.config is None:
        raise InputError(
            "expected bert_config.json beside the checkpoint. Received: "
            f"{pretrained.path} without one; put it there, or use "
            "BertConfig.from_json_file"
        )
    return pretrained.config


def load_model(path: str | os.PathLike[str], **options: Any) -> Any:
    """Loads a whole model, as `keras.models.load_model` does.

    For the weights alone, of this and other formats, see `load_checkpoint`.

    Args:
      path: A `.keras` file of a model with classes of bert_tf in it.
      **options: What Keras's function takes: `compile`, `custom_objects` ...

    Returns:
      The `keras.Model`.
    """
    return keras.models.load_model(path, **options)


def find_config(
    bert_config_file: str | None,
    model_size: str | None,
    init_checkpoint: str | None,
    vocab_file: str | None,
) -> BertConfig:
    """The configuration of a model to be trained, by what is named of these.

    Args:
      bert_config_file: Google's or Hugging Face's.
      model_size: What `BertConfig.from_name` knows, in the place of a file.
      init_checkpoint: What brings its own where neither is given.
      vocab_file: Whose words a model of a named size has.

    Raises:
      InputError: There is none, or two of them, or it is at fault.
    """
    if model_size and bert_config_file:
        raise InputError(
            "expected --model_size or --bert_config_file. Received: both"
        )
    if model_size:
        if not vocab_file:
            raise InputError(
                f"expected --vocab_file with --model_size={model_size}, which "
                "has as many words. Received: none"
            )
        return BertConfig.from_name(model_size, len(load_vocab(vocab_file)))
    if bert_config_file:
        return read_config(bert_config_file)
    if init_checkpoint:
        return load_config(init_checkpoint)
    raise InputError(
        "expected --bert_config_file, --model_size, or --init_checkpoint with "
        "a configuration of its own. Received: none of them"
    )
