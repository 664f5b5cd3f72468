"""Packs several examples into rows with a plain loop. Not a test."""

from collections.abc import Sequence

import numpy as np

TOKENS = ("input_ids", "input_mask", "segment_ids")
MASKED = ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights")


def pack(
    batch: dict[str, np.ndarray], rows: Sequence[Sequence[int]], most: int
) -> dict[str, np.ndarray]:
    """Packs examples as `SequencePacking.join` does.

    Args:
      batch: Features of examples, each [n, ...]: the pre-training features, or
        TOKENS alone. The mask ends an example, the weights its masked words.
      rows: The examples of each row.
      most: The largest number of examples in a row.
    """
    shape = len(rows), batch["input_ids"].shape[1]
    packed = {
        name: np.zeros((len(rows), *values.shape[1:]), values.dtype)
        for name, values in batch.items()
        if name in (*TOKENS, *MASKED)
    }
    for name in ("position_ids", "example_ids"):
        packed[name] = np.zeros(shape, "int32")
    for name in ("cls_positions", "next_sentence_labels"):
        packed[name] = np.zeros((len(rows), most), "int32")
    packed["next_sentence_weights"] = np.zeros((len(rows), most), "float32")
    for row, members in enumerate(rows):
        start = first_masked = 0
        for slot, example in enumerate(members):
            length = batch["input_mask"][example].sum()
            places = slice(start, start + length)
            for name in TOKENS:
                packed[name][row, places] = batch[name][example, :length]
            packed["position_ids"][row, places] = np.arange(length)
            packed["example_ids"][row, places] = slot + 1
            packed["cls_positions"][row, slot] = start
            packed["next_sentence_weights"][row, slot] = 1
            if "masked_lm_weights" in batch:
                count = (batch["masked_lm_weights"][example] != 0).sum()
                masked = slice(first_masked, first_masked + count)
                for name in MASKED:
                    packed[name][row, masked] = batch[name][example, :count]
                packed["masked_lm_positions"][row, masked] += start
                packed["next_sentence_labels"][row, slot] = batch[
                    "next_sentence_labels"
                ][example, 0]
                first_masked += count
            start += length
    return packed
