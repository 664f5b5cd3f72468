"""A label for every word: named entities, parts of speech."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from bert_tf.config import BertConfig
from bert_tf.data.schema import Schema
from bert_tf.errors import InputError
from bert_tf.feature_tagger import BertFeatureTagger, choose
from bert_tf.heads import BertTokenClassifier
from bert_tf.tasks.task import FineTuningTask


class TaggingTask(FineTuningTask):
    """What `run_ner.py` trains; section 5.3 of the paper.

    The first piece of a word answers for it: there `label_mask` is 1. What
    else is in the sequence (further pieces, [CLS], padding) has no loss and no
    tag. An example weighs as many words as it has, so that the loss is the
    mean over all words of the global batch.

    Args:
      config: The model to train.
      schema: Of its records, see `tagging_schema`.
      labels: The tags, in the order of the logits.
      dropout: See `BertTokenClassifier`.
      frozen_layers: See `BertModel`.
      gradient_checkpointing: See `BertModel`.
      bilstm_head: See `heads.TaskModel`.

    Raises:
      InputError: There are not two labels to choose from.
    """

    head = "token"
    unused_variables = r"bert/pooler/"

    def __init__(
        self,
        config: BertConfig,
        schema: Schema,
        labels: Sequence[str],
        *,
        dropout: float = 0.1,
        frozen_layers: Sequence[str] = (),
        gradient_checkpointing: bool = False,
        bilstm_head: bool = False,
    ):
        if len(labels) < 2:
            raise InputError(
                "expected at least 2 labels for the words. Received: "
                f"{', '.join(labels) or 'none'}"
            )
        super().__init__(
            config,
            schema,
            labels,
            dropout=dropout,
            frozen_layers=frozen_layers,
            gradient_checkpointing=gradient_checkpointing,
            bilstm_head=bilstm_head,
        )

    @property
    def loss_names(self) -> tuple[str, ...]:
        return ("label_loss",)

    def make_model(self, **options: Any) -> keras.Model:
        return BertTokenClassifier(self.config, len(self.labels), **options)

    def loss_weights(self, features: Mapping) -> dict:
        return {"label_loss": ops.sum(_is_word(features), axis=-1)}

    def losses(self, features: Mapping, outputs: Mapping) -> dict:
        """See `Task`; the sum over the words of an example."""
        return {"label_loss": _loss(features, outputs)}

    def predictions(self, features: Mapping, outputs: Mapping) -> dict:
        """The likeliest label of every piece.

        Args:
          features: `label_ids` and `label_mask` [b, S].
          outputs: `logits` [b, S, C].

        Returns:
          Dict of `predicted_ids`, int32 [b, S], which mean something where
          `label_mask` is 1; `label_ids` and `label_mask` as they came; and
          `loss`, float32 [b], the sum over the words.
        """
        best = ops.argmax(outputs["logits"], axis=-1)
        return {
            "predicted_ids": ops.cast(best, "int32"),
            "label_ids": features["label_ids"],
            "label_mask": features["label_mask"],
            "loss": _loss(features, outputs),
        }

    def score(self, predictions: Mapping[str, np.ndarray]) -> dict[str, float]:
        """The share of words with the right label, and their mean loss.

        Entities need whole sentences, see `ner.score`.
        """
        is_word = predictions["label_mask"] == 1
        is_right = predictions["predicted_ids"] == predictions["label_ids"]
        words = max(np.count_nonzero(is_word), 1)
        return {
            "eval_accuracy": float(
                np.count_nonzero(is_right & is_word) / words
            ),
            "eval_loss": float(
                np.sum(predictions["loss"], dtype=float) / words
            ),
        }


def _is_word(features: Mapping):
    """1.0 at the first piece of each word, float32 [b, S]."""
    return ops.cast(features["label_mask"], "float32")


def _loss(features: Mapping, outputs: Mapping):
    """The cross-entropies of an example's words, added: float32 [b]."""
    losses = keras.losses.sparse_categorical_crossentropy(
        features["label_ids"], outputs["logits"], from_logits=True
    )  # [b, S]
    return ops.sum(losses * _is_word(features), axis=-1)


# A label for every word, from vectors of a BERT that is not trained.


class FeatureTaggingTask(TaggingTask):
    """What `run_ner.py --mode=feature_based` trains; table 7 of the paper.

    Args:
      config: The model that the vectors are from.
      schema: Of its records, see `tagging_schema`.
      labels: The tags, in the order of the logits.
      layers: See `BertFeatureTagger`.
      lstm_size: See there.
      dropout: See there.

    Raises:
      InputError: There are not two labels to choose from, or the model has
        too few layers.
    """

    # What all others can make of its checkpoints.
    head = "encoder"

    def __init__(
        self,
        config: BertConfig,
        schema: Schema,
        labels: Sequence[str],
        *,
        layers: str = "concat_last_four",
        lstm_size: int = 768,
        dropout: float = 0.1,
    ):
        choose(layers, config)
        super().__init__(config, schema, labels, dropout=dropout)
        self._features = {"layers": layers, "lstm_size": lstm_size}

    def make_model(self, *, dropout: float, **of_training: Any) -> keras.Model:
        """See `FineTuningTask`; nothing of the encoder is to be trained."""
        return BertFeatureTagger(
            self.config, len(self.labels), dropout=dropout, **self._features
        )
