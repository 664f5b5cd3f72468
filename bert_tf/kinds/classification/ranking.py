"""Scores of pairs of texts, by which documents are ranked for a query."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from bert_tf.config import BertConfig
from bert_tf.kinds.classification.task import PROBLEM_TYPES
from bert_tf.modeling.heads import BertClassifier
from bert_tf.tasks import metrics
from bert_tf.tasks.encoding import Encoding
from bert_tf.tasks.task import FineTuningTask


class RankingTask(FineTuningTask):
    """Scores of a query and a document, or of lists of documents.

    Examples are pairs with a score, `label_ids` [B], or a query with D
    documents, whose features have one more axis. `label_shares`, [B, D], are
    then 1 for the first document, which is the positive one, and 0 for others.

    The loss of a pair is the squared error, or, with two outputs, the binary
    cross-entropy. The loss of a list is the cross-entropy of its positive
    document.

    Args:
      config: The configuration of the model.
      encoding: How pairs become features.
      labels: Two labels, of which the last one is for relevant documents; ()
        for a model with one output.
      options: Options of `FineTuningTask`.
    """

    kind = head = "classifier"
    has_teachers = False

    def __init__(
        self,
        config: BertConfig,
        encoding: Encoding,
        labels: Sequence[str] = (),
        **options: Any,
    ):
        super().__init__(config, encoding, **options)
        self.labels = tuple(labels)
        self.problem_type = PROBLEM_TYPES[
            "single_label" if labels else "regression"
        ]

    def make_model(self, **options: Any) -> keras.Model:
        return BertClassifier(self.config, self.num_outputs, **options)

    def facts(self) -> dict[str, Any]:
        return {**super().facts(), "is_pair": True}

    def element_losses(self, features: Mapping, outputs: Mapping) -> Any:
        scores = scores_of(outputs["logits"])
        if "label_shares" in features:
            return keras.losses.categorical_crossentropy(
                features["label_shares"], scores, from_logits=True
            )
        label_ids = ops.cast(features["label_ids"], "float32")
        if not self.labels:
            return ops.square(scores - label_ids)
        return keras.losses.binary_crossentropy(
            label_ids[:, None], scores[:, None], from_logits=True
        )

    def decode(self, outputs: Mapping) -> dict:
        """Returns the `score` of each pair, float32 [n].

        With two labels, it is the probability of the last one.
        """
        scores = scores_of(outputs["logits"])
        return {"score": ops.sigmoid(scores) if self.labels else scores}

    def score(
        self,
        predictions: Mapping[str, np.ndarray],
        examples: Sequence[Any] = (),
    ) -> dict[str, float]:
        """Returns the mean loss, and correlations of pairs or ranks of lists.

        `accuracy` is how often the positive document has a higher score than
        all others, and `mrr` its mean reciprocal rank.
        """
        scores = ops.convert_to_numpy(scores_of(predictions["logits"]))
        if "label_shares" in predictions:
            ranks = ranks_of_first(scores)
            found = {
                "accuracy": float(np.mean(ranks == 1)),
                "mrr": float(np.mean(1 / ranks)),
            }
        else:
            names = ("pearson", "spearman")
            found = metrics.compute(names, predictions["label_ids"], scores)
        found = {f"eval_{name}": value for name, value in found.items()}
        return {**found, **super().score(predictions)}


def scores_of(logits: Any) -> Any:
    """Returns scores [...] of logits [..., 1], or the log-odds of [..., 2]."""
    if logits.shape[-1] == 2:
        return logits[..., 1] - logits[..., 0]
    return logits[..., 0]


def ranks_of_first(scores: np.ndarray) -> np.ndarray:
    """Returns the rank of each query's first document, from 1, [n].

    On ties, the first document ranks last.

    Args:
      scores: Floats [n, D].
    """
    # A score of NaN is not higher than others.
    return 1 + np.sum(~(scores[:, :1] > scores[:, 1:]), axis=-1)
