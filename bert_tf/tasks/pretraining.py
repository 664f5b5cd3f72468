"""Pre-training: the data, the losses and the scores.

Records hold masked words. A model that predicts the next token uses the same
records, because they also contain the tokens that were masked.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import logging
from keras import ops

from bert_tf import files, kernels
from bert_tf.config import BertConfig
from bert_tf.data import pipeline, records
from bert_tf.data.records import ReadableRecords, find_readable
from bert_tf.data.schema import Schema, pretraining_schema
from bert_tf.data.sequence_packing import SequencePacking
from bert_tf.errors import listed, wrong_value
from bert_tf.heads import BertPretrainer
from bert_tf.tasks.task import Task

# The number of examples that `PretrainingData.examples_per_row` measures.
EXAMPLES_TO_MEASURE = 4096

_MASKED = ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights")

_Batch = dict[str, tf.Tensor]

# By default, files are assumed to be undamaged.
_UNCHECKED = ReadableRecords()


def look_through(
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
      train_files: The files to train on.
      eval_files: The files to evaluate on.
      schema: The schema of the records.
      vocab_size: The vocabulary size of the model.
      random_seed: The seed of the order of the examples.
      max_eval_examples: The number of examples to evaluate on; None for all.
      is_packed: Whether short examples share rows. Batches then count rows.
      is_causal: Whether batches are converted by `next_tokens`.
      salvaged: The readable records of the files.
    """

    train_files: list[str]
    eval_files: list[str]
    schema: Schema
    vocab_size: int
    random_seed: int
    max_eval_examples: int | None = None
    is_packed: bool = False
    is_causal: bool = False
    salvaged: ReadableRecords = _UNCHECKED

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
            "ranges": self.salvaged.ranges,
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
            ranges=self.salvaged.ranges,
        )
        logging.info(
            "Packing, measured on %d examples: tokens fill %.1f %% of a row "
            "without packing and %.1f %% with packing, %.2f examples per row. "
            "An update of --train_batch_size=%d rows has about %.0f examples",
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
    # Padding of the predictions is written to column S, which is cut off.
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


# For each objective the features with the ids to predict and their weights.
OBJECTIVES = {
    "masked_lm": ("masked_lm_ids", "masked_lm_weights"),
    "causal_lm": ("next_token_ids", "next_token_weights"),
}


class PretrainingTask(Task):
    """The two objectives of section 3.1 of the paper, equally weighted.

    In section 5.1, "No NSP" leaves out the second objective, and "LTR" also
    predicts every token from the tokens before it instead of masked words.

    If several examples share a row (`data/sequence_packing.py`),
    `next_sentence_labels` has a column for each, [B, K], and
    `next_sentence_weights` marks those that exist. Predictions are then sums
    over the examples of a row.

    Args:
      config: The configuration of the model.
      max_seq_length: The sequence length of the records.
      max_predictions_per_seq: Masked positions of a record, with padding.
      next_sentence: Whether the second objective is trained and scored; if
        not, records need not have its labels.
      objective: One of `OBJECTIVES`. A causal LM needs batches of
        `next_tokens`; all positions are scored.

    Raises:
      InputError: The objective is unknown, or the model sees the tokens that it
        must predict.
    """

    def __init__(
        self,
        config: BertConfig,
        max_seq_length: int,
        max_predictions_per_seq: int,
        next_sentence: bool = True,
        objective: str = "masked_lm",
    ):
        _check_objective(objective, config)
        self.config = config
        self.next_sentence = next_sentence
        self.objective = objective
        self._ids, self._weights = OBJECTIVES[objective]
        self._schema = tuple(
            feature
            for feature in pretraining_schema(
                max_seq_length, max_predictions_per_seq
            )
            if next_sentence or feature.name != "next_sentence_labels"
        )

    @property
    def schema(self) -> Schema:
        return self._schema

    @property
    def loss_names(self) -> tuple[str, ...]:
        if self.next_sentence:
            return (f"{self.objective}_loss", "next_sentence_loss")
        return (f"{self.objective}_loss",)

    @property
    def unused_variables(self) -> str:
        """The variables without effect on scores, as a regular expression."""
        unused = r"bert/pooler/|cls/seq_relationship/"
        return r"(?!)" if self.next_sentence else unused

    def build_model(self) -> keras.Model:
        model = BertPretrainer(self.config)
        model.build()
        return model

    def loss_weights(self, features: Mapping) -> dict:
        weights = features[self._weights]
        result = {f"{self.objective}_loss": ops.sum(weights, axis=-1)}
        if self.next_sentence:
            result["next_sentence_loss"] = ops.sum(
                _next_sentence_weights(features), axis=-1
            )
        return result

    def losses(self, features: Mapping, outputs: Mapping) -> dict:
        """Returns the losses; source: `get_masked_lm_output`.

        The original adds 1e-5 to the sum of the weights, so that a batch
        without masked words does not divide by 0; here its loss is 0.
        """
        loss = kernels.cross_entropy(
            features[self._ids], outputs["masked_lm_logits"]
        )  # [B, P or S]
        loss = ops.sum(loss * features[self._weights], axis=-1)
        result = {f"{self.objective}_loss": loss}
        if self.next_sentence:
            next_sentence_loss = kernels.cross_entropy(
                features["next_sentence_labels"],
                _next_sentence_logits(features, outputs),
            )  # [B, K]
            result["next_sentence_loss"] = ops.sum(
                next_sentence_loss * _next_sentence_weights(features), axis=-1
            )
        return result

    def predictions(self, features: Mapping, outputs: Mapping) -> dict:
        weights = features[self._weights]
        correct = _is_correct(features[self._ids], outputs["masked_lm_logits"])
        result = {
            "words_weight": ops.sum(weights, axis=-1),
            "words_correct": ops.sum(weights * correct, axis=-1),
            **self.losses(features, outputs),
        }
        if self.next_sentence:
            weights = _next_sentence_weights(features)
            correct = _is_correct(
                features["next_sentence_labels"],
                _next_sentence_logits(features, outputs),
            )
            result |= {
                "next_sentence_weight": ops.sum(weights, axis=-1),
                "next_sentence_correct": ops.sum(weights * correct, axis=-1),
            }
        return result

    def score(self, predictions: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Returns accuracy and mean loss with the keys of the original.

        A causal LM has `perplexity`, too: e to the power of its loss.
        """
        total = {
            name: float(np.sum(values, dtype=np.float64))
            for name, values in predictions.items()
        }
        name = self.objective
        words = max(total["words_weight"], 1.0)
        result = {
            f"{name}_accuracy": total["words_correct"] / words,
            f"{name}_loss": total[f"{name}_loss"] / words,
        }
        if name == "causal_lm":
            result["perplexity"] = float(np.exp(result["causal_lm_loss"]))
        if self.next_sentence:
            pairs = max(total["next_sentence_weight"], 1.0)
            result |= {
                "next_sentence_accuracy": total["next_sentence_correct"]
                / pairs,
                "next_sentence_loss": total["next_sentence_loss"] / pairs,
            }
        losses = [v for name, v in result.items() if name.endswith("_loss")]
        return {**result, "loss": sum(losses)}


def _check_objective(objective: str, config: BertConfig) -> None:
    if objective not in OBJECTIVES:
        one_of = f"one of {listed(OBJECTIVES, last='or')}"
        raise wrong_value("--objective", one_of, objective)
    if objective == "causal_lm" and not config.is_left_to_right:
        raise wrong_value(
            "--attention_direction",
            "left_to_right with --objective=causal_lm",
            config.attention_direction,
            "Otherwise the model would see the tokens that it must predict.",
        )


def _next_sentence_weights(features: Mapping):
    """Returns 1 where there is an example, float32 [B, K]; K is 1 unpacked."""
    labels = features["next_sentence_labels"]
    ones = ops.ones_like(labels, dtype="float32")
    return features.get("next_sentence_weights", ones)


def _next_sentence_logits(features: Mapping, outputs: Mapping):
    """Returns [B, K, 2]; without `cls_positions` a model gives [B, 2]."""
    examples = features["next_sentence_labels"].shape[1]
    return ops.reshape(outputs["next_sentence_logits"], (-1, examples, 2))


def _is_correct(labels, logits):
    """Returns 1 where the label has the highest logit, float32 [...]."""
    return ops.cast(
        ops.equal(ops.cast(ops.argmax(logits, axis=-1), "int32"), labels),
        "float32",
    )
