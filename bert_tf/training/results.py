"""The files that say how good a model is."""

import dataclasses
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence

from absl import logging

from bert_tf import files
from bert_tf.errors import InputError

# The files that say how good a model is.


def write_results(path: str, metrics: Mapping[str, float]) -> None:
    """Writes `eval_results.txt` as the original does: sorted `key = value`.

    Args:
      path: The file; it appears as a whole.
      metrics: Dict from name to number.

    Raises:
      InputError: It could not be written.
    """
    lines = [f"{name} = {metrics[name]!s}" for name in sorted(metrics)]
    files.write_text(path, "".join(f"{line}\n" for line in lines))
    logging.info("***** Eval results *****")
    for line in lines:
        logging.info("  %s", line)


def write_json(path: str, metrics: Mapping[str, float], **facts: str) -> None:
    """Writes `eval_results.json`: one object, sorted by name.

    JSON has no word for what is not a number or infinite: such a value, the
    correlation with a constant say, is null.

    Args:
      path: The file; it appears as a whole.
      metrics: Dict from name to number.
      **facts: What else is to be said, in words.

    Raises:
      InputError: It could not be written.
    """
    values = {**finite_or_null(metrics), **facts}
    text = json.dumps(values, indent=2, sort_keys=True)
    files.write_text(path, text + "\n")


# What evaluations during training have found, and what follows from it.


# What evaluations during training have found, and what follows from it.


@dataclasses.dataclass(frozen=True)
class EvaluationResult:
    """One evaluation.

    Attributes:
      step: Updates that the model had seen.
      metrics: Its metrics by name.
    """

    step: int
    metrics: Mapping[str, float]


def is_loss(metric: str) -> bool:
    """Whether lower is better: for every metric with "loss" in its name."""
    return "loss" in metric


def comparable_score(metric: str, value: float) -> float:
    """A number that is the higher the better `value` is.

    What is no number (a correlation with a constant is NaN) is minus infinity.
    """
    if not math.isfinite(value):
        return -math.inf
    return -value if is_loss(metric) else value


def value_of(metrics: Mapping[str, float], metric: str) -> float:
    """The value of a metric that a user has named.

    Raises:
      InputError: There is none of that name; those that there are are listed.
    """
    if metric not in metrics:
        raise InputError(
            f"expected a metric among {', '.join(sorted(metrics))}. Received: "
            f"{metric!r}"
        )
    return metrics[metric]


def improvements(history: Iterable[EvaluationResult], metric: str) -> list[int]:
    """The places in the history that were better than all before them.

    Args:
      history: Evaluations in the order of their steps.
      metric: What to judge them by.

    Returns:
      Indices, the last one that of the best; ties go to the first, and what
      is no number is never better.

    Raises:
      InputError: The metric is missing.
    """
    best = -math.inf
    found: list[int] = []
    for index, evaluated in enumerate(history):
        this = comparable_score(metric, value_of(evaluated.metrics, metric))
        if this > best:
            best = this
            found.append(index)
    return found


def is_exhausted(
    history: Sequence[EvaluationResult], metric: str, patience: int
) -> bool:
    """Whether the last `patience` evaluations have improved nothing.

    Args:
      history: Evaluations in the order of their steps.
      metric: What to judge them by.
      patience: How many; 0 for no end of it.
    """
    if not patience:
        return False
    last = max(improvements(history, metric), default=-1)
    return len(history) - 1 - last >= patience


def read_history(path: str, last_step: int) -> list[EvaluationResult]:
    """Reads a history up to a step; later ones will be made anew.

    Args:
      path: The file; none is the history of a new run.
      last_step: The step that the run is at.

    Raises:
      InputError: The file cannot be read or holds something else.
    """
    if not files.exists(path):
        return []
    lines = files.read_text(path).splitlines()
    history = [
        _parse(line, f"{path}:{number}") for number, line in enumerate(lines, 1)
    ]
    return [evaluated for evaluated in history if evaluated.step <= last_step]


def write_history(path: str, history: Iterable[EvaluationResult]) -> None:
    """Writes a history, an evaluation a line; it appears as a whole."""
    lines = [
        json.dumps({"step": e.step, **finite_or_null(e.metrics)})
        for e in history
    ]
    files.write_text(path, "".join(f"{line}\n" for line in lines))


def finite_or_null(values: Mapping[str, float]) -> dict[str, float | None]:
    """Numbers as JSON can hold them, which knows neither NaN nor infinity.

    NumPy's numbers become Python's, of the digits that they show.
    """
    return {
        name: json.loads(str(value)) if math.isfinite(value) else None
        for name, value in values.items()
    }


def null_to_nan(values: Mapping[str, float | None]) -> dict[str, float]:
    """The other way; what was infinite is NaN now, and a count a count."""
    return {name: _number(value) for name, value in values.items()}


def _number(value: float | None) -> float:
    if value is None:
        return math.nan
    return value if isinstance(value, int) else float(value)


def _parse(line: str, where: str) -> EvaluationResult:
    try:
        values = json.loads(line)
        return EvaluationResult(int(values.pop("step")), null_to_nan(values))
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise InputError(
            'expected {"step": NUMBER, "METRIC": NUMBER, ...} at '
            f"{where}. Received: {line[:80]!r}; remove the file"
        ) from error


# The weights that an evaluation during training has found to be the best.


WEIGHTS = "bert_model.ckpt"
LABEL = "best.json"
_INDEX = WEIGHTS + ".index"
_NEXT = "next."


@dataclasses.dataclass(frozen=True)
class Best:
    """What the weights are.

    Attributes:
      step: Updates that they have seen.
      metric: The name of what they are best by.
      value: Its value.
    """

    step: int
    metric: str
    value: float


def best_prefix(folder: str) -> str:
    """The checkpoint in the folder, as `Estimator.load_weights` takes it."""
    return os.path.join(folder, WEIGHTS)


def find_best(folder: str) -> Best | None:
    """What the weights in the folder are, once settled; None without any.

    Raises:
      InputError: `best.json` cannot be read or holds something else.
    """
    path = os.path.join(folder, LABEL)
    if not files.exists(path):
        return None
    values = files.read_json(path)
    try:
        return Best(
            int(values["step"]), str(values["metric"]), float(values["value"])
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"expected step, metric and value in {path}. Received: {values}; "
            f"remove {folder}"
        ) from error


def save_best(folder: str, best: Best, export: Callable[[str], None]) -> None:
    """Puts new weights in the place of those that are there.

    Args:
      folder: Where they go.
      best: What they are.
      export: Writes them to a prefix, as `Estimator.export_weights` does.
    """
    finish_saving_best(folder)
    export(os.path.join(folder, _NEXT + WEIGHTS))
    label = json.dumps(dataclasses.asdict(best))
    files.write_text(os.path.join(folder, _NEXT + LABEL), f"{label}\n")
    finish_saving_best(folder)


def finish_saving_best(folder: str) -> None:
    """Finishes what a killed run had begun, or undoes it.

    For the one process that writes, before any reads.
    """
    names = [name for name in _names(folder) if name.startswith(_NEXT)]
    if _NEXT + LABEL not in names:
        _remove(folder, names)
        return
    if _NEXT + _INDEX in names:
        # Without an index there is no checkpoint: never does the older one
        # stand beside newer data.
        _remove(folder, {LABEL, _INDEX} & set(_names(folder)))
    for name in sorted(names, key=_turn):
        files.rename(
            os.path.join(folder, name),
            os.path.join(folder, name.removeprefix(_NEXT)),
        )


def remove_best(folder: str) -> None:
    """Removes the weights of an earlier run."""
    names = [
        name
        for name in _names(folder)
        if name.removeprefix(_NEXT).startswith((LABEL, WEIGHTS))
    ]
    _remove(folder, sorted(names, key=_turn, reverse=True))


def _turn(name: str) -> int:
    """When a file is put in its place: data, the index, what labels them."""
    name = name.removeprefix(_NEXT)
    return {_INDEX: 1, LABEL: 2}.get(name, 0)


def _names(folder: str) -> list[str]:
    return files.listdir(folder) if files.is_directory(folder) else []


def _remove(folder: str, names: Iterable[str]) -> None:
    for name in names:
        files.remove(os.path.join(folder, name))
