"""The weights of an export, in the precision in which they are used.

A model of mixed precision keeps its weights in float32, for an optimizer to
change, and casts them whenever it computes. Nothing changes an export: there
they are cast once, when it is written, which makes it half as large and spares
a single text a quarter of its time. The answers are the same, bit for bit.
"""

import functools
from collections.abc import Callable

import keras
import tensorflow as tf

from bert_tf.modeling import checkpoint_variables

# How the names end of what is used in float32 under any policy: by layer norms,
# and where scores are made.
_WIDE = ("/gamma", "/beta", "output_bias")


class StoredWeights:
    """Variables that an export has in the place of a model's own.

    Args:
      model: A built model.

    Attributes:
      by_name: Raw variables by their TF1 names: in the model's compute dtype
        if it casts them anyway, else the model's own.
    """

    def __init__(self, model: keras.Model):
        self.by_name: dict[str, tf.Variable] = {}
        self._cast: list[tuple[keras.Variable, tf.Variable]] = []
        for name, variable in checkpoint_variables(model).items():
            stored = variable.value
            if variable.dtype != model.compute_dtype and not name.endswith(
                _WIDE
            ):
                stored = tf.Variable(
                    tf.cast(stored, model.compute_dtype), trainable=False
                )
                self._cast.append((variable, stored))
            self.by_name[name] = stored

    def used_by(self, method: Callable) -> Callable:
        """A method of the model that computes with these variables instead."""

        @functools.wraps(method)
        def call(*arguments):
            scope = keras.StatelessScope()
            for variable, stored in self._cast:
                # Its constructor would make float32 of them again.
                scope.add_update((variable, stored))
            with scope:
                return method(*arguments)

        return call
