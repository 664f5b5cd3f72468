"""Trains one task with several seeds or hyperparameters and finds the best.

The best setting (batch size, learning rate, number of epochs) is the one with
the best median over its seeds, so that one lucky seed does not decide. A trial
whose training diverged counts as the worst.

Each trial has a folder `trials/NAME` with a `trial.json`, written when the
trial is finished. `trials.json` and `trials.tsv` compare all trials.
"""

import dataclasses
import itertools
import json
import math
import os
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from absl import logging

from bert_tf.base import files
from bert_tf.base.options import named
from bert_tf.errors import InputError
from bert_tf.jobs.settings import FineTuningOptions
from bert_tf.training.hooks import NonFiniteError
from bert_tf.training.results import (
    Metric,
    comparable_score,
    finite_or_null,
    null_to_nan,
    value_of,
)

FOLDER = "trials"
RESULT = "trial.json"
SUMMARY = "trials.json"
TABLE = "trials.tsv"

# The values of --search: batch sizes, learning rates and numbers of epochs.
SEARCHES: Mapping[str, tuple[Sequence[float], ...]] = {
    "paper": ((16, 32), (5e-5, 3e-5, 2e-5), (2.0, 3.0, 4.0)),
}

_SETTING = tuple(named(FineTuningOptions, decides="setting"))
_SPREAD = ("median", "minimum", "maximum", "standard_deviation")
_COLUMNS = (*_SETTING, "trials", "diverged", "metric", *_SPREAD, "best")


@dataclasses.dataclass(frozen=True)
class Trial:
    """The hyperparameters and the seed of one training."""

    train_batch_size: int
    learning_rate: float
    num_train_epochs: float
    random_seed: int

    @property
    def setting(self) -> tuple[int, float, float]:
        """The hyperparameters, which trials with other seeds share."""
        return self.train_batch_size, self.learning_rate, self.num_train_epochs

    @property
    def setting_name(self) -> str:
        """The setting in words, such as batch32_rate5e-05_epochs3."""
        batch_size, rate, epochs = map(_short, self.setting)
        return f"batch{batch_size}_rate{rate}_epochs{epochs}"

    @property
    def name(self) -> str:
        """The name of the trial's folder, which ends with the seed."""
        return f"{self.setting_name}_seed{self.random_seed}"


@dataclasses.dataclass(frozen=True)
class Result:
    """The result of a trial.

    Attributes:
      trial: The trial.
      metrics: Its metrics by name; empty if it diverged.
      failure: The error message if it diverged, else None.
    """

    trial: Trial
    metrics: Mapping[str, float]
    failure: str | None = None

    def score(self, metric: Metric) -> float:
        """Returns a number that is higher for better results.

        Raises:
          InputError: The metric is missing.
        """
        if self.failure is not None:
            return -math.inf
        return comparable_score(metric, value_of(self.metrics, metric))


# Trains and evaluates a trial in its folder, resuming if it was interrupted;
# returns the metrics.
RunOne = Callable[[Trial, str], Mapping[str, float]]


def plan(base: Trial, num_seeds: int, search: str | None = None) -> list[Trial]:
    """Returns the trials to run, one setting after another.

    Args:
      base: Has the first seed and, without `search`, the only setting.
      num_seeds: The number of trials of each setting.
      search: A name in `SEARCHES`, or None.
    """
    grid = SEARCHES[search] if search else [[value] for value in base.setting]
    return [
        Trial(int(batch_size), rate, epochs, base.random_seed + number)
        for batch_size, rate, epochs in itertools.product(*grid)
        for number in range(num_seeds)
    ]


def folder_of(output_dir: str, trial: Trial) -> str:
    """Returns the folder of a trial."""
    return os.path.join(output_dir, FOLDER, trial.name)


def run(
    trials: Sequence[Trial],
    run_one: RunOne,
    output_dir: str,
    metric: Metric,
    discard: Callable[[str], None],
    *,
    writes: bool = True,
) -> Result:
    """Runs the unfinished trials and returns the best result of all trials.

    After each trial, `trials.json` and `trials.tsv` are updated. A trial that
    diverges is logged and skipped. In the end, the weights of all trials but
    the best are discarded. If another metric or more seeds decide later, the
    weights of the best trial may be gone; training it again restores them.

    Args:
      trials: The trials, from `plan`.
      run_one: Trains and evaluates one trial.
      output_dir: The folder of all trials.
      metric: The metric that decides.
      discard: Removes the weights in the folder of a trial, if there are any.
      writes: Whether this process writes, if several run the trials together.

    Raises:
      InputError: All trials diverged, or the metric is missing.
    """
    found = {t: read_result(folder_of(output_dir, t), t) for t in trials}
    results: list[Result] = []
    for trial in trials:
        result = found[trial] or _run(trial, run_one, output_dir, writes)
        results.append(result)
        best = best_of(results, metric)
        if writes:
            write_summary(output_dir, metric, results)
    if best.failure is not None:
        raise InputError(
            f"All {len(trials)} training runs diverged. The last error: "
            f"{results[-1].failure}"
        )
    if writes:
        for trial in trials:
            if trial != best.trial:
                discard(folder_of(output_dir, trial))
    _log(results)
    logging.info("The best trial by %s: %s", metric, best.trial.name)
    return best


def _run(
    trial: Trial, run_one: RunOne, output_dir: str, writes: bool
) -> Result:
    """Runs a trial and records its result."""
    folder = folder_of(output_dir, trial)
    files.makedirs(folder)
    logging.info("***** Trial %s *****", trial.name)
    try:
        result = Result(trial, dict(run_one(trial, folder)))
    except NonFiniteError as error:
        logging.warning("Trial %s diverged: %s", trial.name, error)
        result = Result(trial, {}, failure=str(error))
    if writes:
        write_result(folder, result)
    return result


def best_of(results: Iterable[Result], metric: Metric) -> Result:
    """Returns the best result of the best setting, the first on ties.

    Settings are compared by their medians, and then by their best trials.

    Raises:
      InputError: The metric is missing.
    """

    def rank(group: list[Result]) -> tuple[float, float]:
        scores = [result.score(metric) for result in group]
        return statistics.median(scores), max(scores)

    best_setting = max(_by_setting(results).values(), key=rank)
    return max(best_setting, key=lambda result: result.score(metric))


def _by_setting(results: Iterable[Result]) -> dict[tuple, list[Result]]:
    """Groups results by setting, in order."""
    groups: dict[tuple, list[Result]] = {}
    for result in results:
        groups.setdefault(result.trial.setting, []).append(result)
    return groups


def spread_of(values: Iterable[float]) -> dict[str, float]:
    """Returns statistics of some numbers; non-finite values are ignored.

    Returns:
      The median, minimum, maximum, standard deviation (of a sample, with
      n - 1; 0 for a single number) and the count.
    """
    numbers = [float(value) for value in values if math.isfinite(value)]
    if not numbers:
        return {**dict.fromkeys(_SPREAD, math.nan), "count": 0}
    return {
        "median": statistics.median(numbers),
        "minimum": min(numbers),
        "maximum": max(numbers),
        "standard_deviation": statistics.stdev(numbers)
        if len(numbers) > 1
        else 0.0,
        "count": len(numbers),
    }


def _spreads(results: Sequence[Result]) -> dict[str, dict[str, float]]:
    """Returns the spread of every metric, over the results that have it."""
    names = dict.fromkeys(name for r in results for name in r.metrics)
    return {
        name: spread_of(r.metrics[name] for r in results if name in r.metrics)
        for name in names
    }


def _log(results: Iterable[Result]) -> None:
    """Logs the spread of every metric of every setting."""
    for group in _by_setting(results).values():
        for metric, spread in _spreads(group).items():
            logging.info(
                "%s: %s median %.4f, from %.4f to %.4f, standard deviation "
                "%.4f, %d training(s)",
                group[0].trial.setting_name,
                metric,
                *spread.values(),
            )


# Files.


def write_result(folder: str, result: Result) -> None:
    """Records in a trial's folder that the trial is finished."""
    values = dataclasses.asdict(result)
    values["metrics"] = finite_or_null(result.metrics)
    _write_json(os.path.join(folder, RESULT), values)


def read_result(folder: str, trial: Trial) -> Result | None:
    """Returns the result that is recorded in a trial's folder.

    Returns:
      None if the trial is not finished or had another setting, or its result
      is damaged.
    """
    path = os.path.join(folder, RESULT)
    if not files.exists(path):
        return None
    try:
        values = files.read_json(path)
        if values["trial"] != dataclasses.asdict(trial):
            return None
        metrics = null_to_nan(values["metrics"])
        return Result(trial, metrics, values["failure"])
    except (InputError, KeyError, TypeError, AttributeError) as error:
        logging.warning("%s is damaged; running the trial: %s", path, error)
        return None


def write_summary(
    folder: str, metric: Metric, results: Sequence[Result]
) -> None:
    """Writes `trials.json`, and `trials.tsv` with a row per setting and metric.

    Args:
      folder: The folder of both files.
      metric: The metric that decides.
      results: The results so far.
    """
    best = best_of(results, metric).trial
    settings, rows = [], [_COLUMNS]
    for setting, group in _by_setting(results).items():
        spreads = _spreads(group)
        settings.append(
            {
                **dict(zip(_SETTING, setting, strict=True)),
                "metrics": {n: finite_or_null(s) for n, s in spreads.items()},
                "trials": [
                    {
                        "name": result.trial.name,
                        "random_seed": result.trial.random_seed,
                        "failure": result.failure,
                        "metrics": finite_or_null(result.metrics),
                    }
                    for result in group
                ],
            }
        )
        num_failures = sum(result.failure is not None for result in group)
        for name, spread in spreads.items():
            decides = setting == best.setting and name == metric
            rows.append(
                (
                    *map(_short, setting),
                    str(len(group)),
                    str(num_failures),
                    name,
                    *(f"{spread[column]:.4f}" for column in _SPREAD),
                    best.name if decides else "",
                )
            )
    values = {"metric": metric, "best": best.name, "settings": settings}
    _write_json(os.path.join(folder, SUMMARY), values)
    text = "".join("\t".join(row) + "\n" for row in rows)
    files.write_text(os.path.join(folder, TABLE), text)


def _short(number: float) -> str:
    """Returns a number with all its digits, but 3 for 3.0."""
    return repr(number).removesuffix(".0")


def _write_json(path: str, values: Mapping[str, Any]) -> None:
    files.write_text(path, json.dumps(values, indent=2) + "\n")
