"""Loading a `.keras` file: the classes in it must be known to Keras first.

Importing this module makes them known, all of them; a program that does no
more than load a model may never have used one by name.
"""

import importlib
import importlib.util
import os

import keras

_REGISTERING = [
    "bert_tf.feature_tagger",
    "bert_tf.heads",
    "bert_tf.training.optimization",
]
# The tokenizer in a graph needs TensorFlow, which other backends do without.
if importlib.util.find_spec("tensorflow_text"):
    _REGISTERING.append("bert_tf.text.graph")

for _name in _REGISTERING:
    importlib.import_module(_name)


def load_model(path: str | os.PathLike[str], **options) -> keras.Model:
    """Loads a whole model, as `keras.models.load_model` does.

    For the weights alone, of this and other formats, see `load_checkpoint`.

    Args:
      path: A `.keras` file of a model with classes of bert_tf in it.
      **options: What Keras's function takes: `compile`, `custom_objects` ...
    """
    return keras.models.load_model(path, **options)
