"""Turns logits of classes and numbers into answers, and writes their files."""

import itertools
import os
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from absl import logging
from keras import ops

from bert_tf.base import files
from bert_tf.tasks.examples import Example
from bert_tf.tasks.task import most_probable

# In multi-label problems, all labels above this probability are predicted.
THRESHOLD = 0.5

# The tab, and all line ends of str.splitlines.
_BREAK = re.compile("\r\n|[\t\n\x0b\x0c\r\x1c-\x1e\x85\u2028\u2029]")
# Half of a surrogate pair, which JSON can contain but UTF-8 cannot encode.
_SURROGATE = re.compile("[\ud800-\udfff]")


def decode(problem: str, logits: Any) -> dict[str, Any]:
    """Returns the answers for texts, given their logits.

    Args:
      problem: One of `examples.PROBLEMS`.
      logits: An array or a tensor, float32 [n, C].

    Returns:
      For regression the predicted `score`, float32 [n]. Otherwise the
      `probabilities` of all labels, float32 [n, C], and, for multi-label
      problems, `is_present`, bools [n, C]; for others the `predicted_id` of the
      most probable label, int32 [n], and its `probability`, float32 [n].
    """
    values = _values(problem, logits)
    if problem == "regression":
        return {"score": values}
    if problem == "multi_label":
        return {"probabilities": values, "is_present": values > THRESHOLD}
    names = "predicted_id", "probability", "probabilities"
    return dict(zip(names, (*most_probable(values), values), strict=True))


def _values(problem: str, logits: Any) -> Any:
    """Returns `decode`'s probabilities, [n, C], or scores, [n]."""
    if problem == "regression":
        return logits[:, 0]
    return (ops.sigmoid if problem == "multi_label" else ops.softmax)(logits)


def probabilities(problem: str, logits: np.ndarray) -> np.ndarray:
    """Returns `decode`'s probabilities, [n, C], or scores, [n], float32."""
    values = _values(problem, np.asarray(logits, np.float32))
    return ops.convert_to_numpy(values)


def decide(problem: str, values: np.ndarray) -> np.ndarray:
    """Returns the predictions for given `probabilities`.

    These are the ids of classes, int64 [n]; for multi-label problems 1 for each
    predicted label and 0 for others, int64 [n, C]; for regression `values`.
    """
    if problem == "regression":
        return values
    if problem == "multi_label":
        return (values > THRESHOLD).astype(np.int64)
    return values.argmax(axis=-1)


def answers(
    problem: str, labels: Sequence[str], values: np.ndarray
) -> list[str] | list[float] | list[tuple[str, ...]]:
    """Returns the predictions as `Example.label` spells them."""
    decided = decide(problem, values)
    if problem == "regression":
        return decided.tolist()
    if problem == "multi_label":
        return [tuple(itertools.compress(labels, row)) for row in decided]
    return [labels[number] for number in decided]


def write_test_results(path: str, values: np.ndarray) -> None:
    """Writes `test_results.tsv` like the original.

    Each line has the `probabilities` of an example, without header and id.
    """
    _write(path, (map(str, row) for row in _as_table(values)))


def write_predictions(
    path: str,
    examples: Sequence[Example],
    problem: str,
    labels: Sequence[str],
    values: np.ndarray,
) -> None:
    """Writes `predictions.tsv` with texts and labels.

    The columns are `id`; `text`, or `text_a` and `text_b`, or `context` and
    the chosen `choice`; `prediction`; `label`, if the examples have labels;
    and `probability_` of each label, except for regression. Several labels of
    one example are joined by commas. `values` are the `probabilities`.
    """
    answered = answers(problem, labels, values)
    columns = {
        "id": [example.id for example in examples],
        **_texts(examples, values),
        "prediction": [_cell(answer) for answer in answered],
    }
    if any(example.label is not None for example in examples):
        columns["label"] = [_cell(example.label) for example in examples]
    if problem != "regression":
        for name, column in zip(labels, _as_table(values).T, strict=True):
            columns[f"probability_{name}"] = map(str, column)
    _write(path, [columns, *zip(*columns.values(), strict=True)])


def _texts(
    examples: Sequence[Example], values: np.ndarray
) -> dict[str, list[str]]:
    first = [example.text_a for example in examples]
    if any(example.choices for example in examples):
        best = decide("multiple_choice", values)
        chosen = [e.choices[n] for e, n in zip(examples, best, strict=True)]
        return {"context": first, "choice": chosen}
    if any(example.text_b is not None for example in examples):
        second = [example.text_b or "" for example in examples]
        return {"text_a": first, "text_b": second}
    return {"text": first}


def _cell(label: str | float | tuple[str, ...] | None) -> str:
    """Returns a label as text; a number with the digits of a float32."""
    if label is None:
        return ""
    if isinstance(label, tuple):
        return ",".join(label)
    return label if isinstance(label, str) else str(np.float32(label))


def write_submission(
    path: str,
    ids: Sequence[str],
    predictions: Sequence[str] | Sequence[float],
) -> None:
    """Writes one file of a submission to the GLUE leaderboard."""
    # The leaderboard accepts numbers from 0 to 5.
    cells = (
        x if isinstance(x, str) else f"{min(max(0.0, x), 5.0):.3f}"
        for x in predictions
    )
    rows = zip(ids, cells, strict=True)
    files.makedirs(os.path.dirname(path) or ".")
    _write(path, [("index", "prediction"), *rows])
    logging.info("Wrote %s: %d predictions", path, len(ids))


def _as_table(values: np.ndarray) -> np.ndarray:
    """Returns values [n, C] or [n] as float32 [n, C] or [n, 1]."""
    return np.asarray(values, np.float32).reshape(len(values), -1)


def _write(path: str, rows: Iterable[Iterable[str]]) -> None:
    with files.atomic_writer(path) as file:
        for row in rows:
            cells = (_SURROGATE.sub("\ufffd", _BREAK.sub(" ", x)) for x in row)
            file.write(("\t".join(cells) + "\n").encode())
