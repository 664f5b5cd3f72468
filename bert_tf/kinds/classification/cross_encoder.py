"""Lists of documents, from which `TextClassifier` learns to rank.

A list has a query, a positive document and negatives, and becomes the choices
of an example: D pairs of texts, where D is the number of documents of the
longest list.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from absl import logging
from keras import ops

from bert_tf.data.batching import Features
from bert_tf.errors import InputError
from bert_tf.tasks.encoding import Encoding
from bert_tf.tasks.examples import Example
from bert_tf.text_models.label_metrics import is_right_first, reciprocal_ranks

# The score of the padding of a list.
_LOWEST = -1e9


def require_scores(problem: str, labels: Sequence[str], name: str) -> None:
    """Raises InputError unless a classifier has a score to rank pairs by.

    Args:
      problem: The classifier's problem.
      labels: Its labels.
      name: What needs the score.
    """
    has_two = problem == "single_label" and len(labels) == 2
    if problem != "regression" and not has_two:
        raise InputError(
            f"{name} needs a regression or a model with two labels of which "
            f"one is right; got {problem} with {len(labels)} labels."
        )


def list_encoding(encoding: Encoding, num_documents: int) -> Encoding:
    """Returns how lists become features.

    Args:
      encoding: The classifier's encoding of texts.
      num_documents: The number of documents of the longest list, D.
    """
    return dataclasses.replace(
        encoding,
        problem="multiple_choice",
        labels=(),
        num_choices=num_documents,
        doc_stride=None,
    )


def list_features(
    lists: Sequence[Sequence[str | None]], encoding: Encoding
) -> Features:
    """Returns the features of lists, [n, D, S].

    Args:
      lists: The result of `inputs.as_lists`.
      encoding: The classifier's encoding of texts.

    Raises:
      InputError: If a pair has no score to rank it by, or texts have windows.
    """
    problem, labels = encoding.problem, encoding.labels
    require_scores(problem, labels, "A list of documents")
    if encoding.doc_stride is not None:
        raise InputError(
            "Lists of documents are not read in windows. Load the model with "
            "doc_stride=None."
        )
    examples = [
        Example("", query or "", choices=tuple(text or "" for text in texts))
        for query, *texts in lists
    ]
    features = list_encoding(encoding, len(lists[0]) - 1).features(examples)
    is_padding = np.equal(np.array(lists, object)[:, 1:], None)
    ids = features.arrays["input_ids"]
    is_tied = (ids == ids[:, :1]).all(axis=-1) & ~is_padding
    is_tied[:, 0] = False
    is_padding |= is_tied
    has_none = is_padding[:, 1:].all(axis=1)
    if has_none.any():
        raise InputError(
            f"Example {has_none.argmax()}: all negative documents equal the "
            "positive one. Add another one, or leave the example out."
        )
    if is_tied.any():
        logging.warning(
            "Example %d: a negative document equals the positive one. Such "
            "documents are ignored.",
            is_tied.any(axis=1).argmax(),
        )
    # Keep [CLS]: the vectors of a text without tokens might be NaN.
    features.arrays["input_mask"][..., 1:][is_padding] = 0
    targets = np.zeros(is_padding.shape, np.float32)
    targets[:, 0] = 1
    features.arrays["label_shares"] = targets
    return features


def scores_of_lists(logits: Any, input_mask: Any, shape: Sequence[Any]) -> Any:
    """Returns the score of each document, floats [B, D].

    Args:
      logits: The logits of all pairs, [B * D, C]: C is 1 for a regression, else
        2.
      input_mask: The mask of all pairs, integers [B * D, S].
      shape: B and D.
    """
    # With two labels, the log-odds of the last one; `rank` returns its sigmoid.
    scores = logits[:, -1]
    if logits.shape[-1] == 2:
        scores = scores - logits[:, 0]
    # Texts have [CLS] and [SEP]; the padding of lists has [CLS] alone.
    is_padding = ops.sum(input_mask, axis=-1) == 1
    return ops.reshape(ops.where(is_padding, _LOWEST, scores), shape)


def list_metrics() -> list[keras.metrics.Metric]:
    """Returns Keras's metrics of lists."""
    metric = keras.metrics.MeanMetricWrapper
    return [
        metric(is_right_first, name="accuracy"),
        metric(reciprocal_ranks, name="mrr"),
    ]
