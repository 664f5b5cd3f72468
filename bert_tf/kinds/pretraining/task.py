"""The task of pre-training: its losses and scores."""

from collections.abc import Iterator, Mapping

import keras
import numpy as np
from keras import ops

from bert_tf.config import BertConfig
from bert_tf.data.records import pretraining_schema
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

    In section 5.1, "No NSP" and "LTR" leave out the second objective. "LTR"
    predicts every token from the tokens before it.

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

    def build_model(self, is_restored: bool = False) -> keras.Model:
        return BertPretrainer(self.config).build_weights(is_restored)

    def loss_weights(self, features: Mapping) -> dict:
        return {
            f"{name}_loss": ops.sum(weights, axis=-1)
            for name, weights in self._weights_of(features).items()
        }

    def losses(self, features: Mapping, outputs: Mapping) -> dict:
        """Returns the losses; source: `get_masked_lm_output`.

        The original adds 1e-5 to the sum of the weights, so that a batch
        without masked words does not divide by 0; here its loss is 0.
        """
        return {
            f"{name}_loss": ops.sum(
                kernels.cross_entropy(labels, logits) * weights, axis=-1
            )
            for name, labels, logits, weights in self._parts(features, outputs)
        }

    def predictions(self, features: Mapping, outputs: Mapping) -> dict:
        result = self.losses(features, outputs)
        for name, labels, logits, weights in self._parts(features, outputs):
            best = ops.cast(ops.argmax(logits, axis=-1), "int32")
            is_correct = ops.cast(ops.equal(best, labels), "float32")
            result[f"{name}_weight"] = ops.sum(weights, axis=-1)
            result[f"{name}_correct"] = ops.sum(weights * is_correct, axis=-1)
        return result

    def _weights_of(self, features: Mapping) -> dict:
        """Returns the weights of each part of the loss, float32 [B, N]."""
        weights = {self.objective: features[self._weights]}
        if self.next_sentence:
            weights["next_sentence"] = _next_sentence_weights(features)
        return weights

    def _parts(self, features: Mapping, outputs: Mapping) -> Iterator[tuple]:
        """Yields each part: name, labels [B, N], logits and weights."""
        weights = self._weights_of(features)
        yield (
            *(self.objective, features[self._ids]),
            *(outputs["masked_lm_logits"], weights[self.objective]),
        )
        if self.next_sentence:
            labels = features["next_sentence_labels"]
            # Without `cls_positions` a model gives [B, 2].
            logits = ops.reshape(
                outputs["next_sentence_logits"], (-1, labels.shape[1], 2)
            )
            yield "next_sentence", labels, logits, weights["next_sentence"]

    def score(self, predictions: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Returns accuracy and mean loss with the keys of the original.

        A causal LM also has `perplexity`, e to the power of its loss.
        """
        total = {
            name: float(np.sum(values, dtype=np.float64))
            for name, values in predictions.items()
        }
        result = {}
        for loss in self.loss_names:
            name = loss.removesuffix("_loss")
            weight = max(total[f"{name}_weight"], 1.0)
            result[f"{name}_accuracy"] = total[f"{name}_correct"] / weight
            result[loss] = total[loss] / weight
        if self.objective == "causal_lm":
            result["perplexity"] = float(np.exp(result["causal_lm_loss"]))
        return {**result, "loss": sum(result[loss] for loss in self.loss_names)}


def _next_sentence_weights(features: Mapping):
    """Returns 1 for each example of a row, else 0, float32 [B, K]."""
    labels = features["next_sentence_labels"]
    ones = ops.ones_like(labels, dtype="float32")
    return features.get("next_sentence_weights", ones)
