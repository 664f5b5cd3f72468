"""`CrossEncoder`: scores pairs of texts, and ranks documents."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from absl import logging
from keras import ops

from bert_tf.config import BertConfig
from bert_tf.data.batching import Features
from bert_tf.errors import InputError, require_names, wrong_value
from bert_tf.kinds.classification.task import PROBLEM_TYPES, activation_of
from bert_tf.modeling.heads import BertClassifier
from bert_tf.tasks import metrics
from bert_tf.tasks.encoding import Encoding
from bert_tf.tasks.examples import Example
from bert_tf.tasks.task import FineTuningTask, flatten
from bert_tf.text_models.inputs import (
    best_texts,
    is_missing,
    plain,
    require_one_length,
    text_of,
)
from bert_tf.text_models.text_model import NAME_THE_CLASSES, TextModel

# The score of the padding of a list.
_LOWEST = -1e9


class PairEncoding(Encoding):
    """How pairs become rows [n, S], or queries with documents [n, D, S]."""

    def features(self, examples: Sequence[Example]) -> Features:
        """Returns the features of pairs with scores, or of `_lists`.

        Raises:
          InputError: If all documents of a query have the same tokens.
        """
        if not examples[0].choices:
            return super().features(examples)
        counts = np.array([len(example.choices) for example in examples])
        most = counts.max()
        padded = [
            dataclasses.replace(
                example, choices=(*example.choices, *[""] * (most - count))
            )
            for example, count in zip(examples, counts, strict=True)
        ]
        of_choices = dataclasses.replace(
            self, problem="multiple_choice", num_choices=int(most)
        )
        features = super(PairEncoding, of_choices).features(padded)
        is_padding = np.arange(most) >= counts[:, None]
        ids = features.arrays["input_ids"]
        is_tied = (ids == ids[:, :1]).all(axis=-1) & ~is_padding
        is_tied[:, 0] = False
        is_padding |= is_tied
        has_none = is_padding[:, 1:].all(axis=1)
        if has_none.any():
            raise InputError(
                f"Example {has_none.argmax()}: all negative documents equal "
                "the positive one. Add another one, or leave the example out."
            )
        if is_tied.any():
            logging.warning(
                "Example %d: a negative document equals the positive one. Such "
                "documents are ignored.",
                is_tied.any(axis=1).argmax(),
            )
        # Keep [CLS]: the vectors of a text without tokens might be NaN.
        features.arrays["input_mask"][..., 1:][is_padding] = 0
        del features.arrays["label_ids"]
        shares = np.zeros(is_padding.shape, np.float32)
        shares[:, 0] = 1
        features.arrays["label_shares"] = shares
        return features


class RankingTask(FineTuningTask):
    """Scores of a query and a document, or of lists of documents.

    Examples are pairs with a score, `label_ids` [B], or lists: a query with D
    documents. Features of lists have one more axis, and `label_shares`, [B, D]:
    1 for the first document, which is the positive one, and 0 for others.

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


@keras.saving.register_keras_serializable("bert_tf")
class CrossEncoder(TextModel):
    """Scores pairs of a query and a document, and ranks documents.

    Example:

        model = bert_tf.CrossEncoder.from_pretrained(
            "hf://google-bert/bert-base-uncased", num_labels=1
        )
        model.fit(lists)  # A query, a positive document, and negatives.
        model.rank("who wrote it", ["it is long", "ada wrote it"])
        # For example [{'index': 1, 'score': 3.1, 'text': 'ada wrote it'},
        #              {'index': 0, 'score': -1.2, 'text': 'it is long'}]

    `fit` and `evaluate` take pairs with scores, `y`. Without `y`, they take
    lists: a query, a positive document and one or more negatives, as rows or as
    a tuple of columns. A batch has `batch_size` queries with all their
    documents; shorter lists are padded to the longest one. Negatives with the
    tokens of the positive document are ignored. See `RankingTask` for losses
    and scores.

    `predict` returns a dict for each pair. Its `score` is the output of the
    model or, with two labels, the probability of the last one.

    For lists, losses and metrics passed to `compile` compare [1, 0, 0, ...]
    with the scores of a query, which are -1e9 for padding. For pairs, they
    compare the scores `y`, [B, 1], with the scores of the model, [B, 1].

    Args:
      model: A `BertClassifier` with one or two outputs.
      tokenizer: A `FullTokenizer` or a `BertTokenizer`.
      labels: For a model with two outputs, the names of the classes, the last
        one for relevant documents. By default the checkpoint's, or LABEL_0 and
        LABEL_1. `predict` then returns scores from 0 to 1.
      max_seq_length: The longest sequence, in tokens with [CLS] and [SEP].

    Raises:
      InputError: If the model has more than two outputs.
    """

    model_class = BertClassifier
    task_class = RankingTask
    _needs_labels = False
    is_pair = True

    def __init__(
        self,
        model: BertClassifier,
        tokenizer: Any,
        labels: Sequence[str] | None = None,
        max_seq_length: int = 128,
        name: str = "cross_encoder",
    ):
        super().__init__(model, tokenizer, max_seq_length, name=name)
        self.labels: tuple[str, ...] = ()
        if model.num_labels > 1:
            default = model.labels or ("LABEL_0", "LABEL_1")
            self.labels = require_names(labels or default, NAME_THE_CLASSES)
        if model.num_labels != max(1, len(self.labels)) or len(self.labels) > 2:
            raise wrong_value(
                "The number of outputs of the model",
                "1, or 2 with two labels, the last one for relevant documents",
                model.num_labels,
            )

    def call(self, inputs, training=False):
        """Maps features to scores; used by `fit`.

        Pairs, with features int32 [B, S], have scores [B, 1]. Lists of D
        documents, with features [B, D, S], have scores [B, D].
        """
        shape = ops.shape(inputs["input_ids"])
        if len(shape) == 2:
            logits = super().call(inputs, training=training)
            return scores_of(logits)[:, None]
        flat = flatten(inputs)
        scores = scores_of(super().call(flat, training=training))
        # A text has [CLS] and [SEP]; the padding of a list has only [CLS].
        is_padding = ops.sum(flat["input_mask"], axis=-1) == 1
        scores = ops.where(is_padding, _LOWEST, scores)
        return ops.reshape(scores, shape[:-1])

    def _outputs_of_task(self, y_pred):
        # Pairs have one score, lists at least two.
        is_pair = y_pred.shape[-1] == 1
        return {"logits": y_pred if is_pair else y_pred[..., None]}

    def rank(
        self,
        query: str,
        documents: Sequence[str],
        top_k: int | None = None,
        batch_size: int = 32,
    ) -> list[dict[str, Any]]:
        """Sorts documents by how well they answer a query, the best first.

        Args:
          query: The first text of all pairs.
          documents: The second texts.
          top_k: The number of documents to return; by default all.
          batch_size: Batch size for pairs of `max_seq_length`; batches of
            shorter pairs are larger.

        Returns:
          Dicts of `index`, the number of a document, its `score` and its
          `text`. Equal scores keep their order.
        """
        texts = plain(documents)
        rows = self.predict(
            [(query, text) for text in texts], batch_size, verbose=0
        )
        scores = np.array([row["score"] for row in rows])
        return best_texts(scores, texts, top_k)

    def examples(self, x: Any, y: Any) -> list[Example]:
        if y is not None or not _are_lists(x):
            return super().examples(x, y)
        return _lists(x)

    def _labelled(self, x: Any, y: Any) -> list[Example]:
        examples = self.examples(x, y)
        if y is None and not examples[0].choices:
            raise InputError(
                "Labels are missing: pass x and y, or a data set of both. "
                "Without labels, an example is a query, a positive document "
                "and at least one negative document."
            )
        return examples

    def _encoding(self) -> PairEncoding:
        return self.make_encoding(PairEncoding, problem="regression")

    def make_task(self, **options):
        return RankingTask(
            self.model.config, self._encoding(), self.labels, **options
        )

    def _targets(self, batch: Mapping[str, np.ndarray]) -> np.ndarray:
        if "label_shares" in batch:
            return batch["label_shares"]
        return batch["label_ids"][:, None]

    def _facts(self):
        return {**super()._facts(), **activation_of(self.model, "regression")}


def _are_lists(x: Any) -> bool:
    """Returns whether rows have more than two texts."""
    if isinstance(x, tuple):
        return len(x) > 2
    rows = () if isinstance(x, (str, bytes, Mapping)) else plain(x)
    return any(isinstance(row, (tuple, list)) and len(row) > 2 for row in rows)


def _lists(x: Any) -> list[Example]:
    """Returns queries whose choices are the documents, the positive one first.

    Missing texts at the end of rows are ignored.
    """
    if isinstance(x, tuple):
        one = isinstance(x[0], (str, bytes))
        columns = [[text] if one else plain(text) for text in x]
        require_one_length(columns)
        rows = [*zip(*columns, strict=True)]
    else:
        rows = [*map(tuple, plain(x))]
    examples = []
    for number, row in enumerate(rows):
        texts = [text for text in row if not is_missing(text)]
        if len(texts) < 3 or any(map(is_missing, row[: len(texts)])):
            raise wrong_value(
                f"Example {number}",
                "a query, a positive document and at least one negative "
                "document",
                texts,
            )
        query, *documents = (text_of(text, number) for text in texts)
        examples.append(Example("", query, choices=tuple(documents)))
    return examples
