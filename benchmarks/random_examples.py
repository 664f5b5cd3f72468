"""Pre-training examples of random words, as the pipeline makes batches."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

INTEGERS = "int32"


def pretraining_batch(
    rows: Sequence[Sequence[int]],
    max_seq_length: int,
    max_predictions_per_seq: int,
    vocab_size: int,
    seed: int = 0,
) -> dict[str, np.ndarray]:
    """A batch whose rows hold one example each, or several.

    Args:
      rows: The lengths of the examples in each row.
      max_seq_length: Positions of a row; those behind its examples are padding.
      max_predictions_per_seq: Masked positions of a row.
      vocab_size: Words there are.
      seed: Another one gives other words.

    Returns:
      The features of `schema.pretraining_schema`, and, if rows hold several
      examples, those that `data/sequence_packing.py` adds.
    """
    random = np.random.default_rng(seed)
    shape = len(rows), max_seq_length
    masked = len(rows), max_predictions_per_seq
    ends = np.array([sum(row) for row in rows])[:, None]
    features = {
        "input_ids": random.integers(vocab_size, size=shape),
        "input_mask": np.arange(max_seq_length) < ends,
        "segment_ids": random.integers(2, size=shape),
        "masked_lm_positions": random.integers(ends, size=masked),
        "masked_lm_ids": random.integers(vocab_size, size=masked),
        "masked_lm_weights": np.ones(masked, "float32"),
        "next_sentence_labels": random.integers(2, size=(len(rows), 1)),
    }
    if max(map(len, rows)) > 1:
        features |= shared_rows(rows, max_seq_length, random)
    return {
        name: value if value.dtype == "float32" else value.astype(INTEGERS)
        for name, value in features.items()
    }


def batch_of(request: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The batch that a side is asked for, see `Workload.request`."""
    return pretraining_batch(
        request["rows"],
        request["max_seq_length"],
        request["max_predictions_per_seq"],
        request["config"]["vocab_size"],
    )


def shared_rows(
    rows: Sequence[Sequence[int]],
    max_seq_length: int,
    random: np.random.Generator,
) -> dict[str, np.ndarray]:
    """What tells the examples of a row apart; padding has the number 0."""
    tokens = np.zeros((2, len(rows), max_seq_length), INTEGERS)
    examples = len(rows), max(map(len, rows))
    starts = np.zeros(examples, INTEGERS)
    weights = np.zeros(examples, "float32")
    for row, lengths in enumerate(rows):
        start = 0
        for number, length in enumerate(lengths):
            place = slice(start, start + length)
            tokens[0, row, place] = number + 1
            tokens[1, row, place] = np.arange(length)
            starts[row, number], weights[row, number] = start, 1.0
            start += length
    return {
        "example_ids": tokens[0],
        "position_ids": tokens[1],
        "cls_positions": starts,
        "next_sentence_labels": random.integers(2, size=examples),
        "next_sentence_weights": weights,
    }
