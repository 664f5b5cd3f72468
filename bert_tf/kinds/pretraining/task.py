"""The task of pre-training: its losses and scores."""

from collections.abc import Mapping

import keras
import numpy as np
from keras import ops

from bert_tf.config import BertConfig
from bert_tf.data.schema import pretraining_schema
from bert_tf.errors import wrong_value
from bert_tf.modeling import kernels
from bert_tf.modeling.heads import BertPretrainer
from bert_tf.tasks.task import Task

# The features that hold the ids to predict and their weights, by objective.
OBJECTIVES = {
    "masked_lm": ("masked_lm_ids", "masked_lm_weights"),
    "causal_lm": ("next_token_ids", "next_token_weights"),
}


class PretrainingTask(Task):
    """The two objectives of section 3.1 of the paper, equally weighted.

    In section 5.1, "No NSP" leaves out the second objective. "LTR" leaves it
    out too, and predicts every token from the tokens before it.

    If several examples share a row (`data/sequence_packing.py`),
    `next_sentence_labels` has a column for each, [B, K], and
    `next_sentence_weights` marks those that exist. Predictions are sums over
    the examples of a row.

    Args:
      config: The configuration of the model.
      max_seq_length: The sequence length of the records.
      max_predictions_per_seq: The number of masked positions of a record,
        including padding.
      next_sentence: Whether the second objective is trained and scored; if
        not, records need not have its labels.
      objective: One of `OBJECTIVES`. A causal LM needs batches of
        `next_tokens`; all positions are scored.

    Raises:
      InputError: The model sees the tokens that it must predict.
    """

    def __init__(
        self,
        config: BertConfig,
        max_seq_length: int,
        max_predictions_per_seq: int,
        next_sentence: bool = True,
        objective: str = "masked_lm",
    ):
        if objective == "causal_lm" and not config.is_left_to_right:
            raise wrong_value(
                "`attention_direction`",
                "left_to_right with `objective=causal_lm`",
                config.attention_direction,
                "Otherwise the model would see the tokens that it must "
                "predict.",
            )
        self.config = config
        self.next_sentence = next_sentence
        self.objective = objective
        self._ids, self._weights = OBJECTIVES[objective]
        self.loss_names = (f"{objective}_loss",)
        if next_sentence:
            self.loss_names += ("next_sentence_loss",)
        else:
            self.unused_variables = r"bert/pooler/|cls/seq_relationship/"
        self.schema = tuple(
            feature
            for feature in pretraining_schema(
                max_seq_length, max_predictions_per_seq
            )
            if next_sentence or feature.name != "next_sentence_labels"
        )

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

        A causal LM also has `perplexity`, e to the power of its loss.
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


def _next_sentence_weights(features: Mapping):
    """Returns 1 for each example of a row, else 0, float32 [B, K]."""
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
