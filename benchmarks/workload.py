"""The training step of a benchmark: its model, its batch, its products."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bert_tf import BertConfig

# The share of the tokens that is masked, as in `create_pretraining_data.py`.
MASKED = 0.15
# The fields of a configuration that all libraries have.
SHAPE = (
    *("vocab_size", "hidden_size", "num_hidden_layers"),
    *("num_attention_heads", "intermediate_size"),
    *("max_position_embeddings", "type_vocab_size"),
)


@dataclasses.dataclass(frozen=True)
class Workload:
    """A model, and a batch for it.

    Attributes:
      config: The configuration of the model.
      rows: The lengths of the examples in each row of the batch.
      max_seq_length: The length of a row.
      is_training: Whether to run pre-training steps, or the forward pass of
        the encoder.
    """

    config: BertConfig
    rows: tuple[tuple[int, ...], ...]
    max_seq_length: int
    is_training: bool = True

    @property
    def num_examples(self) -> int:
        return sum(map(len, self.rows))

    @property
    def max_predictions_per_seq(self) -> int:
        return round(MASKED * self.max_seq_length)

    def request(
        self,
        precision: str,
        device: str,
        *,
        steps: int,
        matrix_size: int,
        products: int,
        least_seconds: float,
    ) -> dict[str, Any]:
        """Returns what a side is asked for.

        Args:
          precision: The dtype of the products.
          device: "cpu" or "cuda".
          steps: The number of steps before the device is waited for.
          matrix_size: The size of the matrices that show its peak.
          products: The number of products of them.
          least_seconds: The least duration of a round.
        """
        return {
            "config": {name: getattr(self.config, name) for name in SHAPE},
            "rows": self.rows,
            "max_seq_length": self.max_seq_length,
            "max_predictions_per_seq": self.max_predictions_per_seq,
            "is_training": self.is_training,
            "precision": precision,
            "device": device,
            "steps": steps,
            "matrix_size": matrix_size,
            "products": products,
            "flops": steps * self.flops(),
            "least_seconds": least_seconds,
        }

    def flops(self) -> float:
        """Returns the FLOPs of the matrix products that a step needs.

        The backward pass has two products for each one of the forward pass.
        Products for padding, for words that are not masked, or between
        examples that share a row are not needed and not counted.
        """
        hidden = self.config.hidden_size
        per_token = (
            8 * hidden**2  # query, key, value, output
            + 4 * hidden * self.config.intermediate_size
        )
        lengths = [length for row in self.rows for length in row]
        blocks = self.config.num_hidden_layers * sum(
            length * per_token + 4 * length**2 * hidden  # scores and context
            for length in lengths
        )
        forward = blocks + 2 * hidden**2 * len(lengths)  # pooler
        if not self.is_training:
            return float(forward)
        word = 2 * hidden**2 + 2 * hidden * self.config.vocab_size
        words = len(self.rows) * self.max_predictions_per_seq
        return 3.0 * (forward + words * word)


def batch_of(
    request: Mapping[str, Any], seed: int = 0
) -> dict[str, np.ndarray]:
    """Returns a batch of random words, as the input pipeline makes it.

    If rows hold several examples it has the features of
    `bert_tf/data/sequence_packing.py` too.
    """
    rows, length = request["rows"], request["max_seq_length"]
    vocab_size = request["config"]["vocab_size"]
    random = np.random.default_rng(seed)
    shape = len(rows), length
    masked = len(rows), request["max_predictions_per_seq"]
    ends = np.array([sum(row) for row in rows])[:, None]
    features = {
        "input_ids": random.integers(vocab_size, size=shape),
        "input_mask": np.arange(length) < ends,
        "segment_ids": random.integers(2, size=shape),
        "masked_lm_positions": random.integers(ends, size=masked),
        "masked_lm_ids": random.integers(vocab_size, size=masked),
        "masked_lm_weights": np.ones(masked, "float32"),
        "next_sentence_labels": random.integers(2, size=(len(rows), 1)),
    }
    if max(map(len, rows)) > 1:
        features |= _shared_rows(rows, length, random)
    return {
        name: value if value.dtype == "float32" else value.astype("int32")
        for name, value in features.items()
    }


def _shared_rows(
    rows: Sequence[Sequence[int]], length: int, random: np.random.Generator
) -> dict[str, np.ndarray]:
    """Returns the features that separate the examples of a row, from 1 on."""
    example_ids, position_ids = np.zeros((2, len(rows), length), int)
    size = len(rows), max(map(len, rows))
    starts, weights = np.zeros(size, int), np.zeros(size, "float32")
    for row, lengths in enumerate(rows):
        start = 0
        for number, one in enumerate(lengths):
            example_ids[row, start : start + one] = number + 1
            position_ids[row, start : start + one] = np.arange(one)
            starts[row, number], weights[row, number] = start, 1.0
            start += one
    return {
        "example_ids": example_ids,
        "position_ids": position_ids,
        "cls_positions": starts,
        "next_sentence_labels": random.integers(2, size=size),
        "next_sentence_weights": weights,
    }
