"""Pre-training: masked words or the next token, and the next sentence."""

from collections.abc import Mapping

import keras
import numpy as np
from keras import ops

from bert_tf import fusion
from bert_tf.config import BertConfig
from bert_tf.data.schema import Schema, pretraining_schema
from bert_tf.errors import InputError
from bert_tf.heads import BertPretrainer
from bert_tf.tasks.task import Task

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
        loss = _cross_entropy(
            features[self._ids], outputs["masked_lm_logits"]
        )  # [B, P or S]
        loss = ops.sum(loss * features[self._weights], axis=-1)
        result = {f"{self.objective}_loss": loss}
        if self.next_sentence:
            next_sentence_loss = _cross_entropy(
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


def _cross_entropy(labels, logits):
    """-log softmax(logits)[labels]: [...], [..., C] -> float32 [...]."""
    if passes := fusion.passes_for(logits):
        return passes.cross_entropy(labels, logits)
    return keras.losses.sparse_categorical_crossentropy(
        labels, logits, from_logits=True
    )


def _is_correct(labels, logits):
    """1 where the highest logit is the label's: [...], [..., C] -> [...]."""
    return ops.cast(
        ops.equal(ops.cast(ops.argmax(logits, axis=-1), "int32"), labels),
        "float32",
    )
