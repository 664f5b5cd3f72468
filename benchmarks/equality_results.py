"""How far runs on different devices ended apart, and the tables of it."""

import dataclasses
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from layouts import Layout
from pages import table
from worker_shares import Shares

from bert_tf.training import checkpoints

# The layout that the others are compared with, and how often it accumulates.
REFERENCE = ("one_device", 1)
# A training that was not clipped ends at least so far from one that was: what
# makes gradients longer on some devices would be seen.
APART = 1e-4

Tensors = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Difference:
    """How far two trainings ended apart.

    Attributes:
      weights: The largest of any weight.
      moments: The largest of any of Adam's moments, as a share of the largest
        moment of its kind. An update hardly depends on the length of a
        gradient; this does.
    """

    weights: float
    moments: float


@dataclasses.dataclass(frozen=True)
class Answers:
    """How far two evaluations are apart.

    Attributes:
      metrics: The largest difference of any metric.
      probabilities: The same of any class of any example; None if the script
        does not predict.
      rows: How many rows of predictions have another text or label.
    """

    metrics: float
    probabilities: float | None = None
    rows: int = 0


def read(folder: pathlib.Path, step: int) -> Tensors:
    """A checkpoint of a training."""
    reader = checkpoints.Reader(str(folder / f"model.ckpt-{step}"))
    return {name: reader[name] for name in reader.shapes}


def difference(tensors: Tensors, others: Tensors) -> Difference:
    """Compares two checkpoints.

    Raises:
      ValueError: They have not the same tensors, or counted other steps.
    """
    counters = [name for name in others if others[name].dtype.kind == "i"]
    if tensors.keys() != others.keys() or any(
        tensors[name] != others[name] for name in counters
    ):
        raise ValueError("expected the same tensors and steps")

    def largest(kind: str) -> tuple[float, float]:
        names = [n for n in others if n not in counters and kind_of(n) == kind]
        gaps = [np.abs(tensors[name] - others[name]).max() for name in names]
        sizes = [np.abs(others[name]).max() for name in names]
        return float(max(gaps)), float(max(sizes))

    moments = [largest("adam_m"), largest("adam_v")]
    return Difference(
        largest("weight")[0], max(gap / size for gap, size in moments)
    )


def require_apart(unclipped: Difference) -> None:
    """Sees that gradients were clipped.

    Args:
      unclipped: How far a training without clipping is from the reference.

    Raises:
      ValueError: It hardly is.
    """
    if unclipped.weights < APART:
        raise ValueError(
            "expected gradients longer than --max_grad_norm. Received: weights "
            f"that differ by {unclipped.weights:.1e} where none are clipped"
        )


def kind_of(name: str) -> str:
    """A tensor's part in training: weight, adam_m or adam_v."""
    last = name.rpartition("/")[2]
    return last if last.startswith("adam_") else "weight"


def compare_answers(
    folder: pathlib.Path, other: pathlib.Path, alike: bool = False
) -> Answers:
    """Compares what two evaluations have written.

    Args:
      folder: Of one.
      other: Of the other.
      alike: Whether their batches differ in size: what is said of batches is
        left out.
    """
    found, expected = metrics_in(folder), metrics_in(other)
    if alike and "eval_loss" in expected:
        # The original's `loss` is a mean of means of batches.
        del found["loss"], expected["loss"]
    if found.keys() != expected.keys():
        raise ValueError(f"expected metrics {set(expected)}: {set(found)}")
    gap = max(abs(found[name] - expected[name]) for name in expected)
    if not (other / "test_results.tsv").exists():
        return Answers(gap)
    ours, theirs = (
        np.loadtxt(path / "test_results.tsv", delimiter="\t")
        for path in (folder, other)
    )
    rows, others = (
        [line.split("\t")[:3] for line in lines_of(path / "predictions.tsv")]
        for path in (folder, other)
    )
    return Answers(
        gap,
        float(np.abs(ours - theirs).max()),
        sum(a != b for a, b in zip(rows, others, strict=True)),
    )


def metrics_in(folder: pathlib.Path) -> dict[str, float]:
    pairs = (
        line.split(" = ") for line in lines_of(folder / "eval_results.txt")
    )
    return {name: float(value) for name, value in pairs}


def lines_of(path: pathlib.Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


@dataclasses.dataclass
class Results:
    """What was found, by the layout's key.

    Attributes:
      trained: Layout, parts and workload -> the difference from one device.
      without_clipping: Workload -> the difference of a training on one device
        whose gradients are not clipped: what the others would be if something
        were wrong.
      answered: Whether each device had as many examples at once as the one ->
        layout and workload -> the difference from one device.
      left_out: Layout -> why it could not be run.
      shares: What workers have read, for each number of them.
    """

    trained: dict[tuple[str, int, str], Difference] = dataclasses.field(
        default_factory=dict
    )
    without_clipping: dict[str, Difference] = dataclasses.field(
        default_factory=dict
    )
    answered: dict[bool, dict[tuple[str, str], Answers]] = dataclasses.field(
        default_factory=lambda: {False: {}, True: {}}
    )
    left_out: dict[str, str] = dataclasses.field(default_factory=dict)
    shares: list[Shares] = dataclasses.field(default_factory=list)


def section(
    results: Results, layouts: Mapping[str, Layout], scripts: Mapping[str, str]
) -> str:
    """All that was found, in Markdown.

    Args:
      results: Of `equality.measure`.
      layouts: By their key, in the order of the rows.
      scripts: Workload -> its name for readers, in the order of the columns.
    """
    parts = [
        "Largest difference of any weight from that of one device, and of any "
        "of Adam's moments as a share of the largest:",
        "\n".join(table(_trained(results, layouts, scripts))),
        "Largest difference, from one device's, of what one and the same model "
        "answers, if each device has as many examples at once as the one "
        "(without the classifier's `loss`, a mean of means of batches):",
        "\n".join(table(_answered(results, True, layouts, scripts))),
        "The same if they share one batch: products of other sizes are rounded "
        "in other ways.",
        "\n".join(table(_answered(results, False, layouts, scripts))),
        "What workers read, each example once:",
        "\n".join(table(_shared(results.shares))),
    ]
    return "\n\n".join(parts) + "\n"


def _trained(
    results: Results, layouts: Mapping[str, Layout], scripts: Mapping[str, str]
) -> Iterator[Sequence[str]]:
    """A row for each layout and number of parts."""
    yield ["devices", "parts of a batch", *scripts.values()]
    for name, parts in sorted(
        {(name, parts) for name, parts, _ in results.trained},
        key=lambda row: (list(layouts).index(row[0]), row[1]),
    ):
        cells = (
            _show(results.trained.get((name, parts, key))) for key in scripts
        )
        yield [layouts[name].title, str(parts), *cells]
    yield from _absent(results, layouts, 1 + len(scripts))
    cells = (_show(results.without_clipping.get(key)) for key in scripts)
    yield ["*one device, gradients not clipped*", "1", *cells]


def _show(found: Difference | None) -> str:
    if found is None:
        return ""
    return f"{_number(found.weights)}, {_number(found.moments)}"


def _number(value: float) -> str:
    return f"{value:.1e}" if value else "0"  # Not next to nothing: nothing.


def _answered(
    results: Results,
    alike: bool,
    layouts: Mapping[str, Layout],
    scripts: Mapping[str, str],
) -> Iterator[Sequence[str]]:
    """A row for each layout."""
    answered = results.answered[alike]
    keys = [key for key in scripts if any(k == key for _, k in answered)]
    yield [
        "devices",
        *(f"metrics of {scripts[key]}" for key in keys),
        "probabilities",
        "other rows or labels",
    ]
    for name in [n for n in layouts if any(n == m for m, _ in answered)]:
        found = [answered[name, key] for key in keys]
        probabilities = [
            answers.probabilities
            for answers in found
            if answers.probabilities is not None
        ]
        yield [
            layouts[name].title,
            *(_number(answers.metrics) for answers in found),
            _number(max(probabilities)) if probabilities else "",
            str(sum(answers.rows for answers in found)),
        ]
    yield from _absent(results, layouts, 2 + len(keys))


def _shared(found: Sequence[Shares]) -> Iterator[Sequence[str]]:
    """A row for each number of workers."""
    yield ["workers", "in an epoch of training", "in an evaluation"]
    for shares in found:
        numbers = (shares.trained, shares.evaluated)
        yield [
            str(len(shares.trained)),
            *(" + ".join(map(str, counts)) for counts in numbers),
        ]


def _absent(
    results: Results, layouts: Mapping[str, Layout], columns: int
) -> Iterable[Sequence[str]]:
    for name, reason in results.left_out.items():
        title = f"{layouts[name].title}: not run, for {reason}"
        yield [title, *[""] * columns]
