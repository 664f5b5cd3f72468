"""The records of a pre-training run as batches of masked words or next tokens.

Records hold masked words. A model that predicts the next token uses the same
records, because they also contain the tokens that were masked.
"""

import dataclasses
from typing import Any

import tensorflow as tf
from absl import logging

from bert_tf.base import files
from bert_tf.data import pipeline, records
from bert_tf.data.records import ReadableRecords, Schema, find_readable
from bert_tf.data.sequence_packing import SequencePacking

# The number of examples that `PretrainingData.examples_per_row` measures.
EXAMPLES_TO_MEASURE = 4096

_MASKED = ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights")

_Batch = dict[str, tf.Tensor]

# By default, files are assumed to be undamaged.
_UNCHECKED = ReadableRecords()


def inspect_files(
    train_files: list[str], eval_files: list[str], skips_corrupt: bool
) -> ReadableRecords:
    """Finds the readable records of the files, if corrupt ones are skipped.

    Otherwise checks that training files are not truncated, where this is cheap:
    without the check, the error would appear after days of training.
    """
    if skips_corrupt:
        return find_readable(list(dict.fromkeys([*train_files, *eval_files])))
    for file in train_files:
        if not files.is_remote(file) and not file.endswith(".gz"):
            records.count_records(file)
    return _UNCHECKED


@dataclasses.dataclass(frozen=True)
class PretrainingData:
    """The records of a run.

    Attributes:
      random_seed: The seed of the order of the examples.
      max_eval_examples: The number of examples to evaluate on; None for all.
      is_packed: Whether short examples share rows. Batches then count rows.
      is_causal: Whether batches are converted by `next_tokens`.
    """

    train_files: list[str]
    eval_files: list[str]
    schema: Schema
    vocab_size: int
    random_seed: int
    max_eval_examples: int | None = None
    is_packed: bool = False
    is_causal: bool = False
    readable: ReadableRecords = _UNCHECKED

    def training(self, **share: Any) -> tf.data.Dataset:
        """Returns batches, see `pipeline.training_dataset`."""
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
        """Returns batches, see `pipeline.evaluation_dataset`."""
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
            "counts": self.readable.counts,
        }

    def _for_objective(self, batches: tf.data.Dataset) -> tf.data.Dataset:
        if not self.is_causal:
            return batches
        return pipeline.map_ahead(batches, next_tokens)

    def examples_per_row(self, train_batch_size: int) -> float:
        """Returns, and logs, the mean number of examples in a row."""
        if not self.is_packed:
            return 1.0
        fill = pipeline.fill(
            self.train_files,
            self.schema,
            SequencePacking(),
            EXAMPLES_TO_MEASURE,
            counts=self.readable.counts,
        )
        logging.info(
            "Packing, measured on %d examples: tokens fill %.1f %% of a row "
            "without packing and %.1f %% with packing, %.2f examples per row. "
            "An update of `train_batch_size=%d` rows has about %.0f examples",
            fill.examples,
            100 * fill.unpacked,
            100 * fill.packed,
            fill.examples_per_row,
            train_batch_size,
            train_batch_size * fill.examples_per_row,
        )
        return fill.examples_per_row


def next_tokens(features: _Batch) -> _Batch:
    """Converts a batch of masked words into one of next tokens.

    Args:
      features: A batch of `pretraining_schema` or of `SequencePacking.join`.

    Returns:
      The features without the masked words, with the original `input_ids`
      [B, S]; `next_token_ids`, int32 [B, S], the token after each; and
      `next_token_weights`, float32 [B, S], 1 where the next token belongs to
      the same example.
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
    """Returns the tokens before masking, int32 [B, S]."""
    ids = features["input_ids"]
    positions = features["masked_lm_positions"]  # [B, P]
    # Padding of the predictions is written to column S, which is dropped.
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
    """Appends a column of zeros: [B, n] -> [B, n + 1]."""
    return tf.pad(values, [[0, 0], [0, 1]])
