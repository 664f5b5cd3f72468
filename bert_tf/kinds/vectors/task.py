"""Text embeddings, trained on pairs of texts.

The cosine of a pair is fitted to its similarity, from -1 to 1. The texts of a
pair without a similarity belong together; other second texts of the batch are
its negatives (see `are_negatives`).

Sources: Henderson et al. 2017, "Efficient Natural Language Response Suggestion
for Smart Reply", 4.4; Reimers and Gurevych 2019, "Sentence-BERT".
"""

import dataclasses
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from bert_tf.config import TOKEN_POOLINGS, BertConfig
from bert_tf.data.batching import Features
from bert_tf.errors import InputError
from bert_tf.kinds.vectors import features as text_features
from bert_tf.modeling.encoder import BertModel
from bert_tf.tasks import metrics
from bert_tf.tasks.encoding import Encoding
from bert_tf.tasks.task import FineTuningTask, Rows, flatten

# "pooled" is the pooler's output; the others pool the last layer.
POOLINGS = ("pooled", *TOKEN_POOLINGS)

# How models compute vectors if their checkpoint does not record it.
DEFAULTS: Mapping[str, Any] = {"pooling": "mean", "normalize": True}

# Cosines are multiplied by this before the softmax over a batch, as in
# sentence-transformers' MultipleNegativesRankingLoss.
_SCALE = 20.0


def number_texts(features: Features) -> Features:
    """Adds `text_ids`, integers [n, 2]: equal numbers for equal texts.

    Args:
      features: Pairs of texts, with `input_ids` [n, 2, S].
    """
    text_ids = numbers_of(
        (first.tobytes(), second.tobytes())
        for first, second in features.arrays["input_ids"]
    )
    arrays = {**features.arrays, "text_ids": text_ids}
    return dataclasses.replace(features, arrays=arrays)


def numbers_of(pairs: Iterable[tuple[Hashable, Hashable]]) -> np.ndarray:
    """Returns numbers for texts, int32 [n, 2]: the same for equal texts."""
    numbers: dict[Hashable, int] = {}
    ids = [
        [numbers.setdefault(text, len(numbers)) for text in pair]
        for pair in pairs
    ]
    return np.array(ids, np.int32).reshape(-1, 2)


def require_negatives(text_ids: np.ndarray, batch_size: int) -> None:
    """Raises InputError if no pair has negatives: all losses would be 0.

    Args:
      text_ids: The pairs without a score, integers [n, 2]; see `number_texts`.
      batch_size: The number of pairs that a device computes at a time.
    """
    others = {*text_ids[:, 1].tolist()}
    matches = _matches(text_ids).values()
    if others and (batch_size < 2 or all(texts >= others for texts in matches)):
        raise InputError(
            "No pair has a negative, a different second text among the "
            f"{batch_size} pair(s) that a device computes at a time. Use "
            "larger batches, split batches into fewer parts, add pairs with "
            "other second texts, or pass similarities."
        )


def _matches(text_ids: np.ndarray) -> dict[int, set[int]]:
    """Returns the texts that are not negatives of each first text."""
    matches: dict[int, set[int]] = {}
    for first, second in text_ids.tolist():
        matches.setdefault(first, {first}).add(second)
    return matches


def pool(outputs: Mapping, input_mask: Any, pooling: str):
    """Returns the vectors of texts, float32 [B, H].

    Args:
      outputs: The outputs of a `BertModel`.
      input_mask: Integers [B, S].
      pooling: One of `POOLINGS`; see `TextEmbedder`.
    """
    if pooling == "pooled":
        return ops.cast(outputs["pooled_output"], "float32")
    states = ops.cast(outputs["sequence_output"], "float32")
    return text_features.POOLINGS[pooling](states, input_mask)


def unit(vectors):
    """Returns floats [..., H] with length 1; zeros stay zeros."""
    norms = ops.sqrt(ops.sum(ops.square(vectors), axis=-1, keepdims=True))
    return vectors / ops.maximum(norms, 1e-12)


def cosines(vectors):
    """Returns the cosine of each pair of vectors [B, 2, H], float32 [B]."""
    return ops.sum(unit(vectors[:, 0]) * unit(vectors[:, 1]), axis=-1)


def are_negatives(text_ids):
    """Returns which second texts are negatives of first texts, bools [B, B].

    A text is not a negative of itself or of any text it is paired with.

    Args:
      text_ids: The pairs, integers [B, 2]; see `number_texts`.
    """
    first, second = text_ids[:, 0], text_ids[:, 1]
    same_first = ops.cast(first[:, None] == first, "float32")
    same_second = ops.cast(second[:, None] == second, "float32")
    # The number of pairs of this first with this second text.
    pairs = ops.matmul(same_first, same_second)
    return ops.logical_and(pairs == 0, first[:, None] != second)


def pair_losses(scores, text_ids, vectors):
    """Returns the loss of each pair, float32 [B].

    For a pair with a score, the loss is the squared difference between the
    score and the cosine. For a pair without one, it is the cross-entropy of
    choosing its second text over the negatives of its first text in the batch.

    Args:
      scores: Floats [B]; NaN for a pair without a score.
      text_ids: Integers [B, 2]; see `number_texts`.
      vectors: Floats [B, 2, H].
    """
    is_scored = ops.logical_not(ops.isnan(scores))
    expected = ops.where(is_scored, scores, 0.0)
    errors = ops.square(cosines(vectors) - expected)
    logits = _SCALE * ops.matmul(
        unit(vectors[:, 0]), ops.transpose(unit(vectors[:, 1]))
    )  # [B, B]
    rows = ops.arange(ops.shape(logits)[0])
    is_candidate = ops.logical_or(
        are_negatives(text_ids), rows[:, None] == rows
    )
    entropies = keras.losses.sparse_categorical_crossentropy(
        rows, ops.where(is_candidate, logits, -1e9), from_logits=True
    )
    return ops.where(is_scored, errors, entropies)


def retrieval_scores(
    text_ids: np.ndarray, vectors: np.ndarray
) -> dict[str, float]:
    """Scores the search for the second text of each first text.

    Args:
      text_ids: Integers [n, 2]; see `number_texts`.
      vectors: Floats [n, 2, H].

    Returns:
      `accuracy`: how often the second text has a higher cosine than all
        negatives; `mrr`: its mean reciprocal rank.
    """
    first, second = (ops.convert_to_numpy(unit(vectors[:, n])) for n in (0, 1))
    # Each second text once.
    others, rows = np.unique(text_ids[:, 1], return_index=True)
    right = _matches(text_ids)
    ranks = []
    for n, a in enumerate(text_ids[:, 0].tolist()):
        is_wrong = ~np.isin(others, [*right[a]])
        to_candidates = second[rows] @ first[n]
        ranks.append(
            1 + np.sum(to_candidates[is_wrong] >= second[n] @ first[n])
        )
    return {
        "accuracy": float(np.mean(np.equal(ranks, 1))),
        "mrr": float(np.mean(1 / np.array(ranks))),
    }


class TextEncoder(BertModel):
    """A `BertModel` whose inputs may have more axes, [..., S].

    Its outputs have one row for each text.
    """

    def check_features(self, inputs):
        return super().check_features(flatten(inputs))


class EmbeddingTask(FineTuningTask):
    """Text embeddings.

    Args:
      config: The configuration of the model.
      encoding: How pairs become features, to train and to score; or how texts
        become features, to predict vectors.
      pooling: One of `POOLINGS`.
      normalize: Whether predicted vectors have length 1.
      is_scored: Whether all pairs have a score. Otherwise `retrieval_scores`
        evaluates the search for second texts.
      options: Options of `FineTuningTask`.
    """

    kind = head = "encoder"
    has_teachers = False
    loss_names = ("pair_loss",)

    def __init__(
        self,
        config: BertConfig,
        encoding: Encoding,
        pooling: str = DEFAULTS["pooling"],
        normalize: bool = DEFAULTS["normalize"],
        is_scored: bool = True,
        **options: Any,
    ):
        super().__init__(config, encoding, **options)
        self.pooling = pooling
        self.normalize = normalize
        self._is_scored = is_scored
        self.metrics = ("spearman", "pearson", "loss")
        if not is_scored:
            self.metrics = ("accuracy", "mrr")

    def make_model(self, **options: Any) -> keras.Model:
        return TextEncoder(
            self.config,
            add_pooling_layer=self.pooling == "pooled",
            **options,
        )

    def row_outputs(self, features: Mapping, outputs: Mapping) -> dict:
        """Returns the `vector` of each row, [B, H], and its `num_tokens`, [B].

        `outputs` come from a `BertModel`, or already have a `vector`.
        """
        mask = features["input_mask"]
        vector = outputs.get("vector")
        if vector is None:
            vector = pool(outputs, mask, self.pooling)
        return {"vector": vector, "num_tokens": ops.sum(mask, axis=-1)}

    def join(self, outputs: Mapping, rows: Rows) -> dict:
        """See `FineTuningTask`; in a mean, each token has the same weight."""
        if getattr(self.encoding, "doc_stride", None) is None:
            return dict(outputs)
        pooling = self.encoding.window_pooling
        values = outputs["vector"], pooling, outputs["num_tokens"]
        return {"vector": rows.pool(*values)}

    def decode(self, outputs: Mapping) -> dict:
        """Returns the `vector` of each text; of length 1 with `normalize`."""
        vector = outputs["vector"]
        return {"vector": unit(vector) if self.normalize else vector}

    def answers(
        self, decoded: Mapping[str, np.ndarray], examples: Sequence[Any]
    ) -> Any:
        """Returns the vectors, float32 [n, H]."""
        return decoded["vector"]

    def _pairs(self, features: Mapping, outputs: Mapping):
        """Returns the vectors of pairs, float32 [B, 2, H]."""
        rows = self.row_outputs(flatten(features), outputs)
        vectors = self.decode(rows)["vector"]
        return ops.reshape(vectors, (-1, 2, vectors.shape[-1]))

    def element_losses(self, features: Mapping, outputs: Mapping) -> Any:
        """Returns `pair_losses` of the batch that the device computes."""
        vectors = self._pairs(features, outputs)
        return pair_losses(features["label_ids"], features["text_ids"], vectors)

    def predictions(self, features: Mapping, outputs: Mapping) -> dict:
        """Returns cosines and scores; without scores also the vectors."""
        vectors = self._pairs(features, outputs)
        results = {"cosines": cosines(vectors), "scores": features["label_ids"]}
        if self._is_scored:
            return results
        return {**results, "vectors": vectors, "text_ids": features["text_ids"]}

    def score(
        self,
        predictions: Mapping[str, np.ndarray],
        examples: Sequence[Any] = (),
    ) -> dict[str, float]:
        """Returns the metrics, with `eval_` before their names."""
        if not self._is_scored:
            scores = retrieval_scores(
                predictions["text_ids"], predictions["vectors"]
            )
        else:
            gold, predicted = predictions["scores"], predictions["cosines"]
            scores = metrics.compute(
                ("pearson", "spearman"), gold, predicted, 0
            )
            scores["loss"] = float(np.mean(np.square(gold - predicted)))
        return {f"eval_{name}": scores[name] for name in self.metrics}
