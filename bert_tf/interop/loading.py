"""`load_checkpoint`: somebody's weights into a Keras model."""

import os

import keras
from absl import logging

from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.interop.opening import open_pretrained
from bert_tf.modeling import checkpoint_variables
from bert_tf.training.weights import NEW_HEADS, Report, restore


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
        `BertModel`. It is built if it is not yet.
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
    if not model.built:
        model.build()
    pretrained = open_pretrained(path)
    _check_config(model, pretrained.config, pretrained.path)
    report = restore(checkpoint_variables(model), pretrained.weights, may_lack)
    log = logging.warning if report.missing else logging.info
    log("Weights from %s: %s", pretrained.path, report)
    return report


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


def _check_config(
    model: keras.Model, theirs: BertConfig | None, path: str
) -> None:
    """Compares what shapes do not tell but the numbers depend on."""
    ours = getattr(model, "config", None)
    if theirs is None or not isinstance(ours, BertConfig):
        return
    if ours.num_attention_heads != theirs.num_attention_heads:
        raise InputError(
            f"expected {ours.num_attention_heads} attention heads, as the "
            f"model has. Received: {path} with {theirs.num_attention_heads}; "
            "make the model from the checkpoint's own configuration"
        )
    if ours.hidden_act != theirs.hidden_act:
        logging.warning(
            "The model computes %s where %s says %s: its outputs will differ "
            "a little from those that the checkpoint was made with",
            ours.hidden_act,
            path,
            theirs.hidden_act,
        )
