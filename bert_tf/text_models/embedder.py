"""`TextEmbedder`: a vector for each text."""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from bert_tf import metrics
from bert_tf.data.batching import Features, in_memory
from bert_tf.data.schema import Feature, Schema
from bert_tf.errors import InputError, require_choice, wrong_value
from bert_tf.modeling import BertModel
from bert_tf.tasks.encoding import make_features
from bert_tf.tasks.examples import Example
from bert_tf.tasks.features import POOLINGS
from bert_tf.text_models.base import INPUTS, TextModel, text_features
from bert_tf.text_models.inputs import as_columns, plain

# The first is the pooler's output; the others are of the last layer.
_POOLINGS = ("pooled", "cls", "mean", "max")

# Cosines are multiplied by this before the softmax over a batch, as in
# sentence-transformers' MultipleNegativesRankingLoss.
_SCALE = 20.0


@keras.saving.register_keras_serializable("bert_tf")
class TextEmbedder(TextModel):
    """Turns texts into vectors, for search, clustering or other classifiers.

    Example:

        model = bert_tf.TextEmbedder.from_pretrained(
            "hf://google-bert/bert-base-uncased", normalize=True
        )
        vectors = model.predict(["The ferry was late.", "We had to wait."])
        print(vectors @ vectors.T)  # Cosines, [2, 2].

    `fit` takes pairs of texts. Without `y`, the texts of a pair belong
    together, and the other second texts of the batch are the wrong ones; larger
    batches are better. With `y`, numbers from 0 to 1, the cosine of a pair
    learns its number. `evaluate` with `y` returns the correlations `pearson`
    and `spearman` of cosines and numbers.

    Sources: Henderson et al. 2017, "Efficient Natural Language Response
    Suggestion for Smart Reply", 4.4; Reimers and Gurevych 2019,
    "Sentence-BERT".

    Args:
      model: A `BertModel`.
      tokenizer: See `TextModel`.
      pooling: What becomes the vector of a text: the "mean" or "max" of the
        last layer over all tokens, with [CLS] and [SEP]; "cls", the last
        layer at [CLS]; or "pooled", the pooler's output.
      normalize: Whether vectors have length 1.
      max_seq_length: See `TextModel`.
    """

    model_class = BertModel
    _needs_labels = False

    def __init__(
        self,
        model: BertModel,
        tokenizer: Any,
        pooling: str = "mean",
        normalize: bool = False,
        max_seq_length: int = 128,
        name: str = "text_embedder",
    ):
        require_choice("pooling", pooling, _POOLINGS)
        if pooling == "pooled" and model.pooler is None:
            raise InputError("The model has no pooler. Use another pooling.")
        super().__init__(model, tokenizer, max_seq_length, name=name)
        self.pooling = pooling
        self.normalize = normalize
        if pooling != "pooled" and model.pooler is not None:
            # It has no gradient.
            model.pooler.trainable = False

    def predict(self, x: Any, batch_size: int = 32) -> np.ndarray:
        """Returns a vector for each text, float32 [n, H].

        Args:
          x: Texts; a single string gives a vector [H].
          batch_size: The number of texts of full length at a time.
        """
        [texts] = _texts(x, 1)
        examples = [Example(str(n), text) for n, text in enumerate(texts)]
        features = text_features(examples, self._unlabelled_encoding())
        rows = self._outputs(features, batch_size, self._call)
        vectors = np.array(rows, np.float32)
        return vectors[0] if isinstance(x, (str, bytes)) else vectors

    def _scores(
        self, x: Any, y: Any, batch_size: int, options: dict[str, Any]
    ) -> dict[str, float]:
        if y is None:
            return super()._scores(x, y, batch_size, options)
        first, second = (
            _unit(ops.convert_to_tensor(self.predict(texts, batch_size)))
            for texts in _texts(x, 2)
        )
        cosines = ops.convert_to_numpy(ops.sum(first * second, axis=-1))
        scores = _scores(y, len(cosines))
        return metrics.compute(("pearson", "spearman"), scores, cosines, 0)

    def call(self, inputs, training=False):
        """Maps features, int32 [B, S], to vectors, float32 [B, H].

        Features of pairs, [B, 2, S], become [B, 2, H].
        """
        shape = ops.shape(inputs["input_ids"])
        flat = {
            name: ops.reshape(inputs[name], (-1, shape[-1])) for name in INPUTS
        }
        vectors = self._pool(self.model(flat, training=training), flat)
        return ops.reshape(vectors, (*shape[:-1], vectors.shape[-1]))

    def _pool(self, outputs: Mapping, inputs: Mapping):
        if self.pooling == "pooled":
            vectors = ops.cast(outputs["pooled_output"], "float32")
        else:
            is_token = ops.cast(inputs["input_mask"], "bool")[..., None]
            states = ops.cast(outputs["sequence_output"], "float32")
            vectors = POOLINGS[self.pooling](states, is_token)
        return _unit(vectors) if self.normalize else vectors

    def _features(self, x: Any, y: Any) -> Features:
        columns = _texts(x, 2)
        encoding = self._unlabelled_encoding()
        first, second = (
            make_features([Example("", text) for text in texts], encoding).batch
            for texts in columns
        )
        batch = {
            name: np.stack([first[name], second[name]], axis=1)
            for name in INPUTS
        }
        unknown = [np.nan] * len(columns[0])
        batch["scores"] = np.array(
            unknown if y is None else _scores(y, len(unknown)), np.float32
        )
        shape = (2, self.max_seq_length)
        schema: Schema = (
            *(
                Feature(name, shape, "int64", "max_seq_length")
                for name in INPUTS
            ),
            Feature("scores", (), "float32"),
        )
        return in_memory([batch], schema)

    def _arguments(self, batch: Mapping[str, np.ndarray]) -> tuple:
        return {name: batch[name] for name in INPUTS}, batch.get("scores")

    def _default_loss(self):
        return pair_loss

    def _served(self):
        from bert_tf.serving.served import ServedEncoder

        def choose(outputs, input_mask):
            pooled = self._pool(outputs, {"input_mask": input_mask})
            return {"vector": pooled}

        return ServedEncoder(self.model, self._encoding(), choose)

    def get_config(self):
        return {
            **super().get_config(),
            "pooling": self.pooling,
            "normalize": self.normalize,
        }


def _texts(x: Any, count: int) -> list[list[str]]:
    """Returns one column of texts, or two.

    Raises:
      InputError: If there are none, or pairs instead of texts or vice versa.
    """
    columns = as_columns(x, ("text_a", "text_b")[:count])
    if len(columns) != count:
        expected = "single texts" if count == 1 else "pairs of texts"
        raise InputError(f"Expected {expected}; got {len(columns)} columns.")
    if not columns[0]:
        raise InputError("There are no texts.")
    return columns


def _scores(y: Any, count: int) -> np.ndarray:
    """Returns the numbers of pairs, floats [count].

    Raises:
      InputError: If there are more or fewer, or one is not a number.
    """
    scores = plain(y)
    if len(scores) != count:
        raise wrong_value(
            "The number of scores", f"{count}, the number of pairs", len(scores)
        )
    try:
        return np.array(scores, float)
    except (TypeError, ValueError):
        raise wrong_value("The scores", "numbers", scores) from None


def _unit(vectors):
    """Returns floats [..., H] with length 1; zeros stay zeros."""
    norms = ops.sqrt(ops.sum(ops.square(vectors), axis=-1, keepdims=True))
    return vectors / ops.maximum(norms, 1e-12)


@keras.saving.register_keras_serializable("bert_tf")
def pair_loss(scores, vectors):
    """Returns the loss of each pair, float32 [B].

    A pair with a score: the squared difference to its cosine. A pair without:
    the cross-entropy of its second text among all second texts of the batch.

    Args:
      scores: Floats [B]; NaN for a pair without a score.
      vectors: Floats [B, 2, H].
    """
    first, second = _unit(vectors[:, 0]), _unit(vectors[:, 1])
    is_scored = ops.logical_not(ops.isnan(scores))
    expected = ops.where(is_scored, scores, 0.0)
    errors = ops.square(ops.sum(first * second, axis=-1) - expected)
    cosines = ops.matmul(first, ops.transpose(second))  # [B, B]
    entropies = keras.losses.sparse_categorical_crossentropy(
        ops.arange(ops.shape(cosines)[0]), _SCALE * cosines, from_logits=True
    )
    return ops.where(is_scored, errors, entropies)
