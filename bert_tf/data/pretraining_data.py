"""What a pre-training run reads: records as batches, for either objective.

The records hold masked words. What a model that predicts the next token has to
see is in them all the same: the true tokens of the masked places are known.
"""

import dataclasses
from typing import Any

import tensorflow as tf
from absl import logging

from bert_tf import files
from bert_tf.data import pipeline, records
from bert_tf.data.record_files import Salvage, salvage
from bert_tf.data.schema import Schema
from bert_tf.data.sequence_packing import SequencePacking

# Of these the log says how full rows are, packed and unpacked.
EXAMPLES_TO_MEASURE = 4096

_MASKED = ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights")

_Batch = dict[str, tf.Tensor]

# What is known of files that nobody has looked through.
_UNSEEN = Salvage()


def look_through(
    train_files: list[str], eval_files: list[str], skips_corrupt: bool
) -> Salvage:
    """Finds what of damaged files can be read, if that is to be done without.

    Else a file that is cut off is an error where that costs little to see: it
    shall not show after days of training.
    """
    if skips_corrupt:
        return salvage(list(dict.fromkeys([*train_files, *eval_files])))
    for file in train_files:
        if not files.is_remote(file) and not file.endswith(".gz"):
            records.count_records(file)
    return _UNSEEN


@dataclasses.dataclass(frozen=True)
class PretrainingData:
    """The records of a run.

    Attributes:
      train_files: What to train on.
      eval_files: What to evaluate on.
      schema: Of the records.
      vocab_size: Of the model.
      random_seed: Decides the order of the examples.
      max_eval_examples: Where evaluation stops; None for all there are.
      is_packed: Whether short examples share rows, which is what is counted
        then.
      is_causal: Whether batches are what `next_tokens` makes of them.
      salvaged: What of the files is sound.
    """

    train_files: list[str]
    eval_files: list[str]
    schema: Schema
    vocab_size: int
    random_seed: int
    max_eval_examples: int | None = None
    is_packed: bool = False
    is_causal: bool = False
    salvaged: Salvage = _UNSEEN

    def training(self, **share: Any) -> tf.data.Dataset:
        """See `pipeline.training_dataset`."""
        return self._for_objective(
            pipeline.training_dataset(
                self.train_files,
                self.schema,
                seed=self.random_seed,
                **self._reading,
                **share,
            )
        )

    def evaluation(self, **share: Any) -> tf.data.Dataset:
        """See `pipeline.evaluation_dataset`."""
        return self._for_objective(
            pipeline.evaluation_dataset(
                self.eval_files,
                self.schema,
                max_examples=self.max_eval_examples,
                **self._reading,
                **share,
            )
        )

    @property
    def _reading(self) -> dict[str, Any]:
        return {
            "vocab_size": self.vocab_size,
            "packing": SequencePacking() if self.is_packed else None,
            "stretches": self.salvaged.stretches,
        }

    def _for_objective(self, batches: tf.data.Dataset) -> tf.data.Dataset:
        if not self.is_causal:
            return batches
        return pipeline.map_ahead(batches, next_tokens)

    def examples_per_row(self, train_batch_size: int) -> float:
        """How many examples share a row on average, which is logged; else 1."""
        if not self.is_packed:
            return 1.0
        fill = pipeline.fill(
            self.train_files,
            self.schema,
            SequencePacking(),
            EXAMPLES_TO_MEASURE,
            stretches=self.salvaged.stretches,
        )
        logging.info(
            "Packing: of %d examples, tokens fill %.1f %% of a row each, and "
            "%.1f %% of the rows that they share, %.2f to a row. An update of "
            "--train_batch_size=%d rows has about %.0f examples",
            fill.examples,
            100 * fill.unpacked,
            100 * fill.packed,
            fill.examples_per_row,
            train_batch_size,
            train_batch_size * fill.examples_per_row,
        )
        return fill.examples_per_row


def next_tokens(features: _Batch) -> _Batch:
    """Makes a batch of masked words one of next tokens.

    Args:
      features: What `pretraining_schema` or `SequencePacking.join` has.

    Returns:
      The same without the masked words, with `input_ids` [B, S] as they were
      before any was masked; and `next_token_ids`, int32 [B, S], the token
      behind each, with `next_token_weights`, float32 [B, S]: 1 where there is
      one that belongs to the same example.
    """
    ids, mask = unmasked(features), features["input_mask"]
    counts = mask[:, 1:]  # [B, S - 1]
    if "example_ids" in features:
        numbers = features["example_ids"]
        is_same = tf.equal(numbers[:, 1:], numbers[:, :-1])
        counts *= tf.cast(is_same, counts.dtype)
    return {
        **{name: v for name, v in features.items() if name not in _MASKED},
        "input_ids": ids,
        "next_token_ids": _filled(ids[:, 1:]),
        "next_token_weights": tf.cast(_filled(counts), tf.float32),
    }


def unmasked(features: _Batch) -> tf.Tensor:
    """The tokens before any was masked, int32 [B, S]."""
    ids = features["input_ids"]
    positions = features["masked_lm_positions"]  # [B, P]
    # What fills up the predictions goes behind the end, and is cut off.
    positions = tf.where(
        tf.not_equal(features["masked_lm_weights"], 0.0),
        positions,
        ids.shape[1],
    )
    rows = tf.broadcast_to(
        tf.range(tf.shape(ids)[0])[:, tf.newaxis], tf.shape(positions)
    )
    restored = tf.tensor_scatter_nd_update(
        _filled(ids),
        tf.stack([rows, positions], axis=-1),
        features["masked_lm_ids"],
    )  # [B, S + 1]
    return restored[:, :-1]


def _filled(values: tf.Tensor) -> tf.Tensor:
    """A column of zeros behind values [B, n]: [B, n + 1]."""
    return tf.pad(values, [[0, 0], [0, 1]])
