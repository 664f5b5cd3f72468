"""What a converted model answers, beside what the export itself does."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bert_tf.serving.exported import Arrays, Exported, join_rows
from bert_tf.serving.runtimes import Run

# By how much a float32 model may be off: of numbers up to 1 so much, of larger
# ones, logits for example, so much of the largest.
TOLERANCE = 1e-4
# A class or a tag may change where two are equally likely.
MOST_CHANGED = 1e-3

_ROWS_AT_A_TIME = 32
# Batches of random ids: rows, and places as a share of the most there can be.
_SHAPES = ((1, 0.0), (1, 1.0), (2, 0.1), (7, 0.3), (5, 0.7), (3, 1.0))

# From rows of any number to the answers to all of them, in their order.
Ask = Callable[[Mapping[str, np.ndarray]], Arrays]


class Measured(NamedTuple):
    """What a model said.

    Attributes:
      answers: To each question, in the order in which they were asked.
      scores: How good it was, if it was scored.
    """

    answers: list[Arrays]
    scores: dict[str, float]


class Difference(NamedTuple):
    """By how much two models differ.

    Attributes:
      largest: Of two floats; infinite where shapes differ or one is none.
      relative: The same, of outputs whose largest number is above 1 divided by
        that.
      output: Where that is.
      changed: The share of whole numbers and booleans that are not the same,
        of the output with most of them.
    """

    largest: float
    relative: float
    output: str
    changed: float

    @property
    def is_rounding(self) -> bool:
        """Whether both compute the same."""
        return self.relative <= TOLERANCE and self.changed <= MOST_CHANGED


def random_features(exported: Exported, seed: int = 0) -> list[Arrays]:
    """Batches of several sizes and lengths, of ids out of the vocabulary.

    Rows are of many lengths, one piece at least, with padding behind.

    Returns:
      Dicts of `Exported.token_inputs`, int32 [b, ..., S].
    """
    draw = np.random.default_rng(seed)
    most = exported.card["encoding"]["max_seq_length"]
    inner = exported.token_inputs["input_ids"].shape[1:-1]
    batches = []
    for num_rows, share in _SHAPES:
        length = max(1, round(share * most))
        shape = (num_rows, *inner, length)
        ends = draw.integers(1, length + 1, shape[:-1])[..., np.newaxis]
        seconds = draw.integers(0, length + 1, shape[:-1])[..., np.newaxis]
        places = np.arange(length)
        is_second = (places >= seconds) & (exported.num_segments > 1)
        ids = draw.integers(0, exported.card["vocab_size"], shape)
        mask = places < ends  # [b, ..., S]
        batches.append(
            {
                "input_ids": (ids * mask).astype(np.int32),
                "input_mask": mask.astype(np.int32),
                "segment_ids": (is_second & mask).astype(np.int32),
            }
        )
    return batches


def measure(
    run: Run,
    batches: Sequence[Mapping[str, np.ndarray]],
    score: Callable[[Ask], Mapping[str, float]] | None = None,
) -> Measured:
    """Asks a model all that it is compared by.

    Args:
      run: The model.
      batches: What to ask, as it is.
      score: What to score it by: a function that asks by itself.
    """
    answers = [run(batch) for batch in batches]

    def ask(features: Mapping[str, np.ndarray]) -> Arrays:
        answers.append(answer_rows(run, features))
        return answers[-1]

    return Measured(answers, dict(score(ask)) if score else {})


def answer_rows(run: Run, features: Mapping[str, np.ndarray]) -> Arrays:
    """What a model answers to any number of rows.

    They are asked some at a time, those of about one length together, cut to
    the longest of them.

    Args:
      run: The model.
      features: Int32 [n, ..., S], at least one row.

    Returns:
      Dict of arrays [n, ...] in the order of the rows; 0 behind what was cut.
    """
    mask = features["input_mask"]
    places = np.arange(1, mask.shape[-1] + 1)
    lengths = (mask * places).reshape(len(mask), -1).max(axis=1)
    order = np.argsort(lengths, kind="stable")
    parts = []
    for start in range(0, len(order), _ROWS_AT_A_TIME):
        rows = order[start : start + _ROWS_AT_A_TIME]
        longest = max(1, lengths[rows].max())
        parts.append(
            run({n: ids[rows, ..., :longest] for n, ids in features.items()})
        )
    places_of = np.argsort(order)
    return {n: values[places_of] for n, values in join_rows(parts).items()}


def difference(expected: Measured, found: Measured) -> Difference:
    """Compares two models that were asked the same."""
    largest, relative, output, changed = 0.0, 0.0, "", 0.0
    for name in expected.answers[0]:
        pairs = [
            (one[name], other[name])
            for one, other in zip(expected.answers, found.answers, strict=True)
        ]
        if any(one.shape != other.shape for one, other in pairs):
            return Difference(math.inf, math.inf, name, 1.0)
        if pairs[0][0].dtype.kind != "f":
            changed = max(changed, _share_changed(pairs))
            continue
        off, most = _largest_difference(pairs)
        largest = max(largest, off)
        if not output or off / max(1.0, most) > relative:
            relative, output = off / max(1.0, most), name
    return Difference(largest, relative, output, changed)


_Pairs = Sequence[tuple[np.ndarray, np.ndarray]]


def _largest_difference(pairs: _Pairs) -> tuple[float, float]:
    """Of floats of equal shapes, and the largest of the first ones."""
    if not all(np.isfinite(other).all() for _, other in pairs):
        return math.inf, 1.0
    off = max(np.abs(one - other).max(initial=0.0) for one, other in pairs)
    most = max(np.abs(one).max(initial=0.0) for one, _ in pairs)
    return float(off), float(most)


def _share_changed(pairs: _Pairs) -> float:
    num_changed = sum(np.count_nonzero(one != other) for one, other in pairs)
    return num_changed / max(1, sum(one.size for one, _ in pairs))


def cosines(expected: Measured, found: Measured) -> dict[str, float]:
    """Returns the mean and the lowest cosine similarity of two models' vectors.

    Vectors are the last axes of outputs of floats. Vectors of zeros, which
    stand for padding in the expected answers, are ignored.
    """
    similarities = np.concatenate(
        [
            _cosines(one[name], other[name])
            for one, other in zip(expected.answers, found.answers, strict=True)
            for name in one
            if one[name].dtype.kind == "f" and one[name].ndim > 1
        ]
    )
    return {
        "mean cosine": float(similarities.mean()),
        "lowest cosine": float(similarities.min()),
    }


def _cosines(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Cosine similarities of vectors [..., W], those of zeros left out: [n]."""
    one, other = (
        values.astype(np.float64).reshape(-1, values.shape[-1])
        for values in (one, other)
    )  # [N, W]
    lengths, others = (np.linalg.norm(v, axis=1) for v in (one, other))
    products = lengths * np.maximum(others, np.finfo(np.float32).tiny)
    is_vector = lengths > 0
    return (one * other).sum(axis=1)[is_vector] / products[is_vector]


class Row(NamedTuple):
    """A line of the table.

    Attributes:
      name: The file.
      size: In bytes.
      difference: From the export; None for that itself.
      scores: As `Measured` has them.
    """

    name: str
    size: int
    difference: Difference | None
    scores: Mapping[str, float]


def table(rows: Sequence[Row]) -> str:
    """What there is to choose between: size, difference and scores.

    Args:
      rows: The export first; the others are compared with it.

    Returns:
      A table of Markdown, its columns aligned. What a score loses or gains
      stands behind it.
    """
    first = rows[0]
    cells = [["file", "MB", "largest difference", *first.scores]]
    cells += [_cells(row, first) for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    cells.insert(1, ["-" * width for width in widths])
    return "\n".join(
        f"| {' | '.join(map(str.ljust, line, widths))} |" for line in cells
    )


def _cells(row: Row, first: Row) -> list[str]:
    off = "-" if row.difference is None else f"{row.difference.largest:.1e}"
    return [
        row.name,
        f"{row.size / 1e6:.1f}",
        off,
        *(
            f"{value:.4f}"
            if row is first
            else f"{value:.4f} ({value - first.scores[name]:+.4f})"
            for name, value in row.scores.items()
        ),
    ]
