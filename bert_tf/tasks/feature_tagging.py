"""A label for every word, from vectors of a BERT that is not trained."""

from collections.abc import Sequence
from typing import Any

import keras

from bert_tf.config import BertConfig
from bert_tf.data.schema import Schema
from bert_tf.feature_tagger import BertFeatureTagger, choose
from bert_tf.tasks.tagging import TaggingTask


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
