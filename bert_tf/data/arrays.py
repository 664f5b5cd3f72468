"""Batches of arrays in memory for Keras, as tf.data datasets.

Keras makes such datasets too, but a thread of TensorFlow tunes them. It sleeps
for up to a minute at a time, and the data cannot end before it wakes up: `fit`,
`evaluate` and `predict` took up to twice as long as their steps.
"""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_tf.data import pipeline

# Keras's default.
_BATCH_SIZE = 32
# Arguments with which Keras has to read the arrays itself.
_OTHER_ARGUMENTS = (
    # From `fit`, after each epoch: Keras has the data already.
    "_use_cached_eval_dataset",
    "class_weight",
    "steps",
    "steps_per_epoch",
    "validation_split",
    "validation_steps",
)


def batched(arguments: Mapping[str, Any], shuffle: bool) -> dict[str, Any]:
    """Replaces the arrays among the arguments of a method of Keras.

    Args:
      arguments: The arguments of `fit`, `evaluate` or `predict` by name.
      shuffle: The default of the argument `shuffle`.

    Returns:
      Equivalent arguments. Those that need more than batches of arrays are
      returned as they are.
    """
    if any(arguments.get(name) for name in _OTHER_ARGUMENTS):
        return dict(arguments)
    others = dict(arguments)
    columns = [others.pop(name, None) for name in ("x", "y", "sample_weight")]
    batch_size = others.pop("batch_size", None) or _BATCH_SIZE
    dataset = _dataset(columns, batch_size, others.pop("shuffle", shuffle))
    if dataset is None:
        return dict(arguments)
    if isinstance(others.get("validation_data"), tuple):
        size = others.pop("validation_batch_size", None) or batch_size
        held_out = _dataset(others["validation_data"], size, False)
        if held_out is None:
            return dict(arguments)
        others["validation_data"] = held_out
    if shuffle:
        others["shuffle"] = False  # The dataset shuffles.
    return {**others, "x": dataset}


def _dataset(columns, batch_size: int, shuffle: bool) -> tf.data.Dataset | None:
    """Returns batches of inputs, targets and weights, or None.

    Args:
      columns: An array or a dict of arrays; then arrays, or None at the end.
      batch_size: The number of examples in a batch.
      shuffle: Whether the order is random and differs between epochs.
    """
    given = [x for x in columns if x is not None]
    first, *others = given or [None]
    leaves = [
        *(first.values() if isinstance(first, dict) else [first]),
        *others,
    ]
    # Keras also takes nested inputs, and arrays of other libraries.
    if (
        any(x is None for x in columns[: len(given)])
        or shuffle not in (True, False)
        or not all(map(_is_plain, leaves))
        or len({len(x) for x in leaves}) != 1
    ):
        return None
    with tf.device("CPU"):
        tensors = tf.nest.map_structure(_as_tensor, tuple(given))
    count = len(leaves[0])
    rows = tf.data.Dataset.range(count)
    if shuffle:
        rows = rows.shuffle(count)
    return pipeline.map_ahead(
        rows.batch(batch_size),
        lambda ids: tf.nest.map_structure(lambda x: tf.gather(x, ids), tensors),
    )


def _is_plain(x) -> bool:
    """Returns whether `x` is a tensor or an array of numbers, not empty."""
    is_plain = isinstance(x, tf.Tensor) or (
        isinstance(x, np.ndarray) and x.dtype.kind in "biuf"
    )
    return is_plain and x.ndim > 0 and len(x) > 0


def _as_tensor(x) -> tf.Tensor:
    """Returns a tensor, with Keras's default dtype for floats."""
    x = tf.convert_to_tensor(x)
    return tf.cast(x, keras.config.floatx()) if x.dtype.is_floating else x
