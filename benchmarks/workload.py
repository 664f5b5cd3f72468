"""What a step has to do: a model, a batch, and their products of matrices."""

import dataclasses
from typing import Any

from bert_tf.config import BertConfig

# The share of the tokens that is masked, as in `create_pretraining_data.py`.
MASKED = 0.15
# What all sides call the same, and mean the same by.
SHAPE = (
    *("vocab_size", "hidden_size", "num_hidden_layers"),
    *("num_attention_heads", "intermediate_size"),
    *("max_position_embeddings", "type_vocab_size"),
)


@dataclasses.dataclass(frozen=True)
class Workload:
    """A model, and a batch for it.

    Attributes:
      config: The model's shape.
      rows: The lengths of the examples in each row of the batch.
      max_seq_length: Positions of a row.
      is_training: Whether it is a training step on masked words and the next
        sentence, or the forward pass of the encoder alone.
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

    def request(self) -> dict[str, Any]:
        """What each side of a benchmark is told of it."""
        return {
            "config": {name: getattr(self.config, name) for name in SHAPE},
            "rows": self.rows,
            "max_seq_length": self.max_seq_length,
            "max_predictions_per_seq": self.max_predictions_per_seq,
            "is_training": self.is_training,
        }

    def flops(self) -> float:
        """Multiplications and additions of the matrix products it needs.

        A backward pass has two products for each of the forward pass. What a
        side computes for padding, for words that are not masked, or between
        examples that share a row is not counted: others do without.
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
