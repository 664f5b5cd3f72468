"""Files with the results of evaluations: metrics, their history, best weights.

The best evaluation and the time to stop are functions of the history, which is
kept in a file, so that a resumed run decides as if it had never stopped.
"""

import dataclasses
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Self

from absl import logging

from bert_tf.base import files
from bert_tf.errors import in_file, require_choice, shortened

# ------------------------------------------------------------- one evaluation


def write_results(path: str, metrics: Mapping[str, float]) -> None:
    """Writes and logs `key = value` lines, sorted, as in the original."""
    lines = [f"{name} = {metrics[name]!s}" for name in sorted(metrics)]
    files.write_text(path, "".join(f"{line}\n" for line in lines))
    logging.info("***** Eval results *****")
    for line in lines:
        logging.info("  %s", line)


def write_json(path: str, metrics: Mapping[str, float], **facts: str) -> None:
    """Writes metrics and facts as one JSON object, sorted by name.

    Metrics that are not finite become null.
    """
    values = {**finite_or_null(metrics), **facts}
    text = json.dumps(values, indent=2, sort_keys=True)
    files.write_text(path, text + "\n")


def finite_or_null(values: Mapping[str, float]) -> dict[str, float | None]:
    """Replaces NaN and infinity, which JSON does not have, by None.

    NumPy numbers become Python numbers with the same printed digits.
    """
    return {
        name: json.loads(str(value)) if math.isfinite(value) else None
        for name, value in values.items()
    }


def null_to_nan(values: Mapping[str, float | None]) -> dict[str, float]:
    """Converts numbers from JSON to floats, None to NaN; keeps integers."""
    return {
        name: math.nan if x is None else x if isinstance(x, int) else float(x)
        for name, x in values.items()
    }


class Metric(str):
    """The name of the metric by which models are compared.

    Attributes:
      lower_is_better: Whether a lower value is better, as for a loss.
    """

    lower_is_better: bool

    def __new__(cls, name: str, lower_is_better: bool = False) -> Self:
        metric = super().__new__(cls, name)
        metric.lower_is_better = lower_is_better
        return metric


def value_of(metrics: Mapping[str, float], metric: str) -> float:
    """Returns a metric that the user has named; raises if it is missing."""
    require_choice("The metric", metric, sorted(metrics))
    return metrics[metric]


def comparable_score(metric: Metric, value: float) -> float:
    """Returns a number that is higher for a better value of a metric.

    A non-finite value, such as the correlation with a constant, becomes minus
    infinity.
    """
    if not math.isfinite(value):
        return -math.inf
    return -value if metric.lower_is_better else value


# --------------------------------------------------- history of evaluations


@dataclasses.dataclass(frozen=True)
class EvaluationResult:
    """The metrics of the model, by name, after `step` updates."""

    step: int
    metrics: Mapping[str, float]


def is_exhausted(
    history: Sequence[EvaluationResult], metric: Metric, patience: int
) -> bool:
    """Returns whether the last `patience` evaluations brought no improvement.

    Scores of 0.5, 0.7, 0.6 and 0.7 exhaust a patience of 2. A patience of 0 is
    never exhausted. All evaluations must have the metric.
    """
    if not patience:
        return False
    scores = [
        comparable_score(metric, value_of(evaluated.metrics, metric))
        for evaluated in history
    ]
    best = max(scores, default=-math.inf)
    since_best = len(scores)
    if best > -math.inf:
        since_best -= scores.index(best) + 1
    return since_best >= patience


def read_history(path: str, last_step: int) -> list[EvaluationResult]:
    """Reads the evaluations up to `last_step`, from which the run resumes.

    The file need not exist.

    Raises:
      InputError: The file cannot be read or has an invalid line.
    """
    if not files.exists(path):
        return []
    history = []
    for number, line in enumerate(files.read_text(path).splitlines(), 1):
        try:
            values = json.loads(line)
            step = int(values.pop("step"))
            history.append(EvaluationResult(step, null_to_nan(values)))
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            raise in_file(
                path,
                'expected {"step": NUMBER, "METRIC": NUMBER, ...}, found '
                f"{shortened(line)}. Remove the file.",
                number,
            ) from error
    return [evaluated for evaluated in history if evaluated.step <= last_step]


def write_history(path: str, history: Iterable[EvaluationResult]) -> None:
    """Writes one line of JSON for each evaluation."""
    lines = [
        json.dumps({"step": e.step, **finite_or_null(e.metrics)})
        for e in history
    ]
    files.write_text(path, "".join(f"{line}\n" for line in lines))


# ----------------------------------------------- weights of the best evaluation

# New weights are written under names with the prefix _NEXT, `next.best.json`
# last, and then renamed, `best.json` last. So a run that is killed at any
# moment leaves either the old or the new weights.
WEIGHTS = "bert_model.ckpt"
LABEL = "best.json"
_INDEX = WEIGHTS + ".index"
_NEXT = "next."


@dataclasses.dataclass(frozen=True)
class Best:
    """The evaluation with the best value of a metric, after `step` updates."""

    step: int
    metric: str
    value: float


def best_prefix(folder: str) -> str:
    """Returns the path of the checkpoint in the folder."""
    return os.path.join(folder, WEIGHTS)


def find_best(folder: str) -> Best | None:
    """Returns the evaluation of the weights in a folder; None if it has none.

    Raises:
      InputError: `best.json` cannot be read or has other contents.
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
        raise in_file(
            path,
            "expected the keys step, metric and value, found "
            f"{shortened(values)}. Remove {folder}.",
        ) from error


def save_best(folder: str, best: Best, export: Callable[[str], None]) -> None:
    """Replaces the weights in a folder.

    Args:
      folder: The folder.
      best: The evaluation of the new weights.
      export: `Estimator.export_weights`.
    """
    finish_saving_best(folder)
    export(os.path.join(folder, _NEXT + WEIGHTS))
    label = json.dumps(dataclasses.asdict(best))
    files.write_text(os.path.join(folder, _NEXT + LABEL), f"{label}\n")
    finish_saving_best(folder)


def finish_saving_best(folder: str) -> None:
    """Completes or undoes a save that a killed run began.

    Only the process that writes may call it, before others read.
    """
    names = [name for name in _names(folder) if name.startswith(_NEXT)]
    if _NEXT + LABEL not in names:
        _remove(folder, names)
        return
    if _NEXT + _INDEX in names:
        # The old index must never be beside new data.
        _remove(folder, {LABEL, _INDEX} & set(_names(folder)))
    for name in sorted(names, key=_order):
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
    _remove(folder, sorted(names, key=_order, reverse=True))


def _order(name: str) -> int:
    """Sorts data before the index, and the index before the label."""
    return {_INDEX: 1, LABEL: 2}.get(name.removeprefix(_NEXT), 0)


def _names(folder: str) -> list[str]:
    return files.listdir(folder) if files.is_directory(folder) else []


def _remove(folder: str, names: Iterable[str]) -> None:
    for name in names:
        files.remove(os.path.join(folder, name))
