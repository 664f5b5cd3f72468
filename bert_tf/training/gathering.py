"""From batches of predictions, in any order, to one array per quantity.

Replicas, readers and buckets of equal length all change the order in which
examples are seen. Each prediction therefore comes with its example's number.
"""

from collections.abc import Iterable, Mapping

import numpy as np

from bert_tf.errors import InputError

# The example of each row: where it stands in the data set, -1 for padding.
INDEX = "example_index"


def in_order(
    batches: Iterable[Mapping[str, np.ndarray]],
) -> dict[str, np.ndarray]:
    """Joins batches, in the order of their examples.

    Args:
      batches: Dicts from name to array [b, ...], any b, `example_index` [b]
        among them. Axes behind the first may differ in length from batch to
        batch, as those of tokens do.

    Returns:
      Dict from each other name to an array [n, ...], a row per example. Where
      a batch was shorter than another, zeros fill its rows up.

    Raises:
      InputError: There is no example.
      ValueError: An example is missing or comes more than once.
    """
    kept = [_real_rows(batch) for batch in batches]
    kept = [batch for batch in kept if batch[INDEX].size]
    if not kept:
        raise InputError("expected at least one example. Received: none")
    index = np.concatenate([batch.pop(INDEX) for batch in kept])
    order = np.argsort(index, kind="stable")
    wrong = np.flatnonzero(index[order] != np.arange(len(index)))
    if wrong.size:
        raise ValueError(
            "expected every example once. Received another number than one of "
            f"number {wrong[0]}"
        )
    # One quantity at a time, so that no more than one is there twice.
    return {
        name: _join([batch.pop(name) for batch in kept])[order]
        for name in list(kept[0])
    }


def _real_rows(batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    is_real = batch[INDEX] >= 0
    if is_real.all():
        return dict(batch)
    return {name: rows[is_real] for name, rows in batch.items()}


def _join(arrays: list[np.ndarray]) -> np.ndarray:
    """Concatenates [b, ...] along the first axis, filled up in the others."""
    longest = np.max([rows.shape[1:] for rows in arrays], axis=0)
    return np.concatenate([_fill_up(rows, longest) for rows in arrays])


def _fill_up(rows: np.ndarray, shape: np.ndarray) -> np.ndarray:
    if rows.shape[1:] == tuple(shape):
        return rows
    missing = [(0, 0), *((0, n) for n in shape - rows.shape[1:])]
    return np.pad(rows, missing)
