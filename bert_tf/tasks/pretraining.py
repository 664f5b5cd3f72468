"""Pre-training: masked words or the next token, and the next sentence."""

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
from bert_tf.errors import InputError
from bert_tf.heads import BertPretrainer
from bert_tf.tasks.task import Task

# What a pre-training run reads: records as batches, for either objective.


# Of these the log says how full rows are, packed and unpacked.
EXAMPLES_TO_MEASURE = 4096

_MASKED = ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights")

_Batch = dict[str, tf.Tensor]

# What is known of files that nobody has looked through.
_UNSEEN = ReadableRecords()


def look_through(
    train_files: list[str], eval_files: list[str], skips_corrupt: bool
) -> ReadableRecords:
    """Finds what of damaged files can be read, if that is to be done without.

    Else a file that is cut off is an error where that costs little to see: it
    shall not show after days of training.
    """
    if skips_corrupt:
        return find_readable(list(dict.fromkeys([*train_files, *eval_files])))
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
    salvaged: ReadableRecords = _UNSEEN

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
            "ranges": self.salvaged.ranges,
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
            ranges=self.salvaged.ranges,
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


# Pre-training: masked words or the next token, and the next sentence.


# What is to be predicted of words, and where a batch has it: the ids, and how
# much each of them counts.
OBJECTIVES = {
    "masked_lm": ("masked_lm_ids", "masked_lm_weights"),
    "causal_lm": ("next_token_ids", "next_token_weights"),
}


class PretrainingTask(Task):
    """The two objectives of section 3.1 of the paper, equally weighted.

    Section 5.1 does without the second ("No NSP"), and predicts in the place
    of masked words every token from those before it ("LTR").

    Where several examples share a row, as `data/sequence_packing.py` makes
    them, `next_sentence_labels` has a column for each, [B, K], and
    `next_sentence_weights` tells which are there. What is kept of a row is
    then the sum over its examples.

    Args:
      config: The model to train.
      max_seq_length: Length of the records.
      max_predictions_per_seq: Masked positions of a record, padding included.
      next_sentence: Whether the second objective is trained and scored; if
        not, records need not have its labels.
      objective: One of `OBJECTIVES`. What a causal LM reads of a batch comes
        from `data.pretraining_data.next_tokens`; all positions are scored.

    Raises:
      InputError: The objective is unknown, or the model sees what it has to
        predict.
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
        """What decides no score, as a regular expression."""
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
        """See `Task`; source: `get_masked_lm_output`.

        The original adds 1e-5 to the sum of the weights, against a batch
        without masked words; here such a batch has the loss 0.
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
        """Accuracy and mean loss of both objectives; keys of the original.

        Of a causal LM also `perplexity`, e to the power of its loss.
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
        raise InputError(
            f"expected one of {', '.join(OBJECTIVES)} as objective. Received: "
            f"{objective!r}"
        )
    if objective == "causal_lm" and not config.is_left_to_right:
        raise InputError(
            "expected --attention_direction=left_to_right with "
            "--objective=causal_lm, or the model would see the tokens that it "
            f"has to predict. Received: {config.attention_direction}"
        )


def _next_sentence_weights(features: Mapping):
    """1 where there is an example, float32 [B, K]; K is 1 if none share."""
    labels = features["next_sentence_labels"]
    ones = ops.ones_like(labels, dtype="float32")
    return features.get("next_sentence_weights", ones)


def _next_sentence_logits(features: Mapping, outputs: Mapping):
    """[B, K, 2]; a model that was given no `cls_positions` gives [B, 2]."""
    examples = features["next_sentence_labels"].shape[1]
    return ops.reshape(outputs["next_sentence_logits"], (-1, examples, 2))


def _is_correct(labels, logits):
    """1 where the highest logit is the label's: [...], [..., C] -> [...]."""
    return ops.cast(
        ops.equal(ops.cast(ops.argmax(logits, axis=-1), "int32"), labels),
        "float32",
    )
