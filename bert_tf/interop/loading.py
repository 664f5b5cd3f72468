"""Somebody's weights into a Keras model, and configurations."""

import os

import keras
from absl import logging

from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.interop.assembly import head_of_model
from bert_tf.interop.opening import (
    compare_configs,
    open_pretrained,
    read_config,
)
from bert_tf.interop.pretrained import Pretrained
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
