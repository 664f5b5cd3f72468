"""Keras models from checkpoints, and `.keras` files of them.

A `.keras` file contains the configuration. `vocab.txt` and `bert_tf.json` are
beside it, see `checkpoint.py`.
"""

import os
import re
import textwrap
import zipfile
import zlib

import keras
import numpy as np

from bert_tf import files, heads
from bert_tf.errors import InputError, in_file
from bert_tf.feature_model import adapted_layers
from bert_tf.interop.checkpoint import (
    CONFIG,
    KERAS_FILE,
    WITH_LABELS,
    Pretrained,
    local_file,
    with_metadata,
    write_metadata,
)
from bert_tf.modeling import BertModel, checkpoint_variables, encoder_config
from bert_tf.training.weights import (
    NEW_HEADS,
    is_adapter,
    restore,
    scope_of,
)

# The class for each head.
_CLASSES = {
    "encoder": BertModel,
    "pretraining": heads.BertPretrainer,
    "masked_lm": heads.BertPretrainer,
    "next_sentence": heads.BertPretrainer,
    "classifier": heads.BertClassifier,
    "choice": heads.BertMultipleChoice,
    "token": heads.BertTokenClassifier,
    "span": heads.BertSpanLabeler,
}

# What Keras, zipfile, json and h5py raise for a damaged file; h5py raises
# RuntimeError.
_DAMAGES = (
    *(OSError, EOFError, zipfile.BadZipFile, zlib.error),
    *(ValueError, TypeError, LookupError, AttributeError, RuntimeError),
)


def build_model(pretrained: Pretrained) -> keras.Model:
    """Builds the model that a checkpoint describes, with its weights.

    The model has the class of the checkpoint's head. Parts that the class has
    and the checkpoint lacks are set to zero; see `ModelWeights`.

    Raises:
      InputError: If the configuration or the head is unknown, or weights are
        missing or have other shapes.
    """
    config, head = pretrained.config, pretrained.head
    if config is None or head is None:
        missing = "configuration" if config is None else "head"
        raise in_file(pretrained.path, f"the {missing} is unknown.")
    options = {}
    if head in WITH_LABELS:
        shapes = pretrained.weights.shapes
        if "output_weights" not in shapes:
            raise in_file(
                pretrained.path, f"the {head} model has no output_weights."
            )
        options["num_labels"] = shapes["output_weights"][0]
    model = _CLASSES[head](config, **options)
    model.build()
    variables = checkpoint_variables(model)
    report = restore(variables, pretrained.weights, NEW_HEADS)
    for name in report.missing:
        variables[name].assign(keras.ops.zeros_like(variables[name]))
    return model


def head_of_model(model: keras.Model) -> str | None:
    """Returns the head of one of this project's models; None of others."""
    return head_of_class(type(model))


def head_of_class(
    model_class: type[keras.Model], preferred: str | None = None
) -> str | None:
    """Returns the head of a class of models or its base; None of other classes.

    Args:
      model_class: The class.
      preferred: The head to return if the class has several, as
        `BertPretrainer` does.
    """
    for base in model_class.__mro__:
        if names := [n for n, known in _CLASSES.items() if known is base]:
            return preferred if preferred in names else names[0]
    return None


class ModelWeights:
    """The weights of a Keras model, LoRA adapters merged: a `Weights`.

    A pooler or head whose matrices are zero is left out, since `build_model`
    sets parts to zero that the checkpoint lacked.
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
        }
        self._variables = {
            name: variable
            for name, variable in variables.items()
            if scope_of(name) not in empty and not is_adapter(name)
        }
        layers = adapted_layers(model).values()
        self._merged = {x._kernel.path: x.merged_kernel for x in layers}
        self.shapes = {
            name: tuple(v.shape) for name, v in self._variables.items()
        }

    def __contains__(self, name: str) -> bool:
        return name in self._variables

    def __getitem__(self, name: str) -> np.ndarray:
        variable = self._variables[name]
        if variable.path in self._merged:
            return self._merged[variable.path]()
        return keras.ops.convert_to_numpy(variable)


def read(path: str) -> Pretrained:
    """Reads a `.keras` file, or a folder that `write` wrote.

    No code from the file runs: Keras builds registered classes only.

    Raises:
      InputError: If the file is missing or damaged, or is not a model of this
        project.
    """
    if not path.endswith(".keras") and files.is_directory(path):
        path = os.path.join(path, KERAS_FILE)
    if not files.exists(path):
        raise in_file(path, "there is no such file.")
    model = _load(path)
    config = encoder_config(model)
    weights = ModelWeights(model, path)
    pretrained = with_metadata(
        Pretrained(path, weights, config, head=head_of_model(model)),
        os.path.dirname(path),
    )
    if config is not None and pretrained.config != config:
        raise in_file(
            path,
            f"the configuration in it differs from {CONFIG} beside it. "
            f"Correct or remove {CONFIG}.",
        )
    return pretrained


def _load(path: str) -> keras.Model:
    with local_file(path) as local:
        if not zipfile.is_zipfile(local):
            raise in_file(path, "this is not a .keras file, or it is cut off.")
        try:
            return keras.saving.load_model(local, compile=False, safe_mode=True)
        except _DAMAGES as error:
            reason = str(error).split("\n")[0].replace(local, path)
            reason = textwrap.shorten(reason, 200, placeholder=" ...")
            raise InputError(
                f"cannot read {path}: {reason}; the file is damaged or not a "
                "model that Keras saved"
            ) from error


def write(folder: str, pretrained: Pretrained) -> None:
    """Writes `model.keras` and the files beside it into an existing directory.

    Raises:
      InputError: If the weights do not make a whole model.
    """
    build_model(pretrained).save(os.path.join(folder, KERAS_FILE))
    write_metadata(folder, pretrained)
