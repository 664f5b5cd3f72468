"""`.keras` files: this project's models as Keras itself saves them.

The configuration is inside. `vocab.txt` and `bert_tf.json` lie beside it, as
in a release of ours, see `checkpoint.py`.
"""

import os
import re
import textwrap
import zipfile
import zlib

import keras
import numpy as np

from bert_tf import files, heads
from bert_tf.errors import InputError
from bert_tf.interop.checkpoint import (
    CONFIG,
    KERAS_FILE,
    Pretrained,
    local_file,
    with_companions,
    write_companions,
)
from bert_tf.modeling import BertModel, checkpoint_variables, encoder_config
from bert_tf.training.weights import NEW_HEADS, restore, scope_of

# `.keras` files: this project's models as Keras itself saves them.


# What Keras, zipfile, json and h5py raise where a file is damaged.
# RecursionError is a RuntimeError, and so is what h5py raises.
_DAMAGES = (
    *(OSError, EOFError, zipfile.BadZipFile, zlib.error),
    *(ValueError, TypeError, LookupError, AttributeError, RuntimeError),
)


class ModelWeights:
    """The weights of a Keras model: a `Weights`.

    A pooler or head whose matrices are zero is not there: `build_model` makes
    it so where a class has more parts than the checkpoint had.

    Args:
      model: A built model that `checkpoint_variables` takes.
      path: Where it is from.
    """

    def __init__(self, model: keras.Model, path: str):
        self.path = path
        variables = checkpoint_variables(model)
        empty = {
            scope_of(name)
            for name, variable in variables.items()
            if re.match(NEW_HEADS, name) and is_zero_matrix(variable)
        }
        self._variables = {
            name: variable
            for name, variable in variables.items()
            if scope_of(name) not in empty
        }
        self.shapes = {
            name: tuple(v.shape) for name, v in self._variables.items()
        }

    def __contains__(self, name: str) -> bool:
        return name in self._variables

    def __getitem__(self, name: str) -> np.ndarray:
        return keras.ops.convert_to_numpy(self._variables[name])


def is_zero_matrix(variable: keras.Variable) -> bool:
    """True if a matrix is nothing but zeros; False for vectors."""
    return len(variable.shape) == 2 and not np.any(
        keras.ops.convert_to_numpy(variable)
    )


def read(path: str) -> Pretrained:
    """Reads a `.keras` file, or a directory of ours, with what lies beside.

    Nothing in it is run: Keras makes registered classes only.

    Raises:
      InputError: It is missing, damaged, or no model of ours is in it.
    """
    if not path.endswith(".keras") and files.is_directory(path):
        path = os.path.join(path, KERAS_FILE)
    if not files.exists(path):
        raise InputError(f"expected a .keras file. Received: no {path}")
    model = _load(path)
    config = encoder_config(model)
    pretrained = with_companions(
        Pretrained(
            path, ModelWeights(model, path), config, head=head_of_model(model)
        ),
        os.path.dirname(path),
    )
    if config is not None and pretrained.config != config:
        raise InputError(
            f"expected {CONFIG} beside {path} to say what is in it. Received: "
            "another configuration; remove it, or put it right"
        )
    return pretrained


def _load(path: str) -> keras.Model:
    with local_file(path) as local:
        if not zipfile.is_zipfile(local):
            raise InputError(
                f"expected a .keras file. Received: {path}, which is none, or "
                "is cut off"
            )
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
    """Writes `model.keras` into an existing directory.

    Raises:
      InputError: Its weights do not make a whole model.
    """
    build_model(pretrained).save(os.path.join(folder, KERAS_FILE))
    write_companions(folder, pretrained)


# A Keras model from a checkpoint: the class that fits its head, filled.


# The class for each kind of head, and whether its labels are counted.
_CLASSES = {
    "encoder": (BertModel, False),
    "pretraining": (heads.BertPretrainer, False),
    "masked_lm": (heads.BertPretrainer, False),
    "next_sentence": (heads.BertPretrainer, False),
    "classifier": (heads.BertClassifier, True),
    "choice": (heads.BertMultipleChoice, False),
    "token": (heads.BertTokenClassifier, True),
    "span": (heads.BertSpanLabeler, False),
}


def build_model(pretrained: Pretrained) -> keras.Model:
    """Makes the model that a checkpoint describes, with its weights.

    A part that the class has and the checkpoint has not is zero, as none that
    was trained is: see `keras_files.ModelWeights`.

    Raises:
      InputError: There is no configuration, the kind of head is not known, or
        weights are missing or of another shape.
    """
    if pretrained.config is None or pretrained.head is None:
        raise InputError(
            "expected a configuration and a head. Received: "
            f"{pretrained.path} with config={pretrained.config}, "
            f"head={pretrained.head}"
        )
    model_class, counts_labels = _CLASSES[pretrained.head]
    more = {}
    if counts_labels:
        more["num_labels"] = num_labels(pretrained)
    model = model_class(pretrained.config, **more)
    model.build()
    variables = checkpoint_variables(model)
    report = restore(variables, pretrained.weights, NEW_HEADS)
    for name in report.missing:
        variables[name].assign(keras.ops.zeros_like(variables[name]))
    return model


def num_labels(pretrained: Pretrained) -> int:
    """The number of classes of a classifier or tagger.

    Raises:
      InputError: It has no weights for classes.
    """
    shapes = pretrained.weights.shapes
    if "output_weights" not in shapes:
        raise InputError(
            f"expected output_weights in {pretrained.path}, as a "
            f"{pretrained.head} has them. Received: none"
        )
    return shapes["output_weights"][0]


def head_of_model(model: keras.Model) -> str | None:
    """The kind of head of one of this project's models; None of others."""
    for head, (model_class, _) in _CLASSES.items():
        if type(model) is model_class:
            return head
    return None
