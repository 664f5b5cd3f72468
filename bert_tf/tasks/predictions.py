"""From logits to answers, and to the files that hold them.

All files are tables of tabs and lines with no quoting whatever (pandas reads
them with `quoting=3`). A tab or a line break inside a text, and whatever else
some reader takes for one, becomes a space.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from absl import logging

from bert_tf import files
from bert_tf.data.examples import Example

# Multi-label problems answer with the labels that are more likely than not.
THRESHOLD = 0.5

# What the leaderboard accepts for STS-B, its one task with numbers.
SCORE_RANGE = (0.0, 5.0)

# The tab and what str.splitlines takes for the end of a line.
_BREAK = re.compile("\r\n|[\t\n\x0b\x0c\r\x1c-\x1e\x85\u2028\u2029]")
# Half a character, as JSON can spell it: no encoding has bytes for it.
_SURROGATE = re.compile("[\ud800-\udfff]")

Row = Iterable[str]


def _softmax(logits: np.ndarray) -> np.ndarray:
    from scipy import special

    return special.softmax(logits, axis=-1)


def _sigmoid(logits: np.ndarray) -> np.ndarray:
    from scipy import special

    return special.expit(logits)


_PROBABILITIES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "single_label": _softmax,
    "multiple_choice": _softmax,
    "multi_label": _sigmoid,
    "regression": lambda logits: logits[:, 0],
}


def probabilities(problem: str, logits: np.ndarray) -> np.ndarray:
    """How likely each label is.

    Args:
      problem: One of `bert_tf.data.examples.PROBLEMS`.
      logits: Floats [n, C].

    Returns:
      Float32 [n, C]; for regression the numbers themselves, [n].
    """
    values = _PROBABILITIES[problem](np.asarray(logits, np.float64))
    return values.astype(np.float32)


def decide(problem: str, values: np.ndarray) -> np.ndarray:
    """What is answered where `values` are the probabilities.

    Args:
      problem: One of `bert_tf.data.examples.PROBLEMS`.
      values: What `probabilities` gave.

    Returns:
      The number of the class, int64 [n]; for multi-label problems 1 for each
      label that is answered, int64 [n, C]; for regression `values`.
    """
    if problem == "regression":
        return values
    if problem == "multi_label":
        return (values > THRESHOLD).astype(np.int64)
    return values.argmax(axis=-1)


def answers(
    problem: str, labels: Sequence[str], values: np.ndarray
) -> list[str] | list[float] | list[tuple[str, ...]]:
    """The same in the words of the data set, as `Example.label` has them."""
    decided = decide(problem, values)
    if problem == "regression":
        return decided.tolist()
    if problem == "multi_label":
        return [
            tuple(
                name for name, chosen in zip(labels, row, strict=True) if chosen
            )
            for row in decided
        ]
    return [labels[number] for number in decided]


def write_test_results(path: str, values: np.ndarray) -> None:
    """Writes `test_results.tsv` as the original does.

    A line an example, with the probability of each class in the order of the
    labels; no header, no id. Regression has the number alone.

    Args:
      path: The file; it appears as a whole.
      values: What `probabilities` gave.
    """
    _write(path, (map(str, row) for row in _as_table(values)))


def write_predictions(
    path: str,
    examples: Sequence[Example],
    problem: str,
    labels: Sequence[str],
    values: np.ndarray,
) -> None:
    """Writes `predictions.tsv`, for people.

    The columns: `id`; `text`, or `text_a` and `text_b`, or `context` and
    `choice`, the one that is chosen; `prediction`; `label`, if the file had
    any; and `probability_` of each label. Several labels of one example are
    joined by commas. Regression has no probabilities.

    Args:
      path: The file; it appears as a whole.
      examples: What was asked.
      problem: One of `bert_tf.data.examples.PROBLEMS`.
      labels: Their names, C; none for regression.
      values: What `probabilities` gave for the examples, in their order.
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
    """The columns with the texts; a pair's second text may be missing."""
    first = [example.text_a for example in examples]
    if any(example.choices for example in examples):
        chosen = [
            example.choices[number]
            for example, number in zip(
                examples, decide("multiple_choice", values), strict=True
            )
        ]
        return {"context": first, "choice": chosen}
    if any(example.text_b is not None for example in examples):
        second = [example.text_b or "" for example in examples]
        return {"text_a": first, "text_b": second}
    return {"text": first}


def _cell(label: str | float | tuple[str, ...] | None) -> str:
    """A label as people read it; a float32 has no more digits than it means."""
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
    """Writes one file of a GLUE submission, as the leaderboard takes it.

    Args:
      path: The file, named as the leaderboard wants it, such as "MNLI-m.tsv";
        its folder is made if need be.
      ids: The column `index` of the test file.
      predictions: What `answers` gave: names of labels, or numbers (STS-B),
        which are brought into the range of the leaderboard.
    """
    rows = zip(ids, map(_leaderboard_cell, predictions), strict=True)
    files.makedirs(os.path.dirname(path) or ".")
    _write(path, [("index", "prediction"), *rows])
    logging.info("Wrote %s: %d predictions", path, len(ids))


def _leaderboard_cell(prediction: str | float) -> str:
    if isinstance(prediction, str):
        return prediction
    low, high = SCORE_RANGE
    return f"{min(max(low, prediction), high):.3f}"


def _as_table(values: np.ndarray) -> np.ndarray:
    """[n, C] or [n] -> float32 [n, C]."""
    return np.asarray(values, np.float32).reshape(len(values), -1)


def _write(path: str, rows: Iterable[Row]) -> None:
    with files.atomic_writer(path) as file:
        for line in _lines(rows):
            file.write(line)  # TensorFlow's files know no `writelines`.


def _lines(rows: Iterable[Row]) -> Iterator[bytes]:
    for row in rows:
        cells = (_SURROGATE.sub("\ufffd", _BREAK.sub(" ", x)) for x in row)
        yield ("\t".join(cells) + "\n").encode()
