"""Trains one task with several seeds or hyperparameters and finds the best.

The best setting (batch size, learning rate, number of epochs) is the one with
the best median over its seeds, so that one lucky seed does not decide. A trial
whose training diverged counts as the worst.

Each trial has a folder `trials/NAME` with a `trial.json`, written when the
trial is finished. `trials.tsv` compares all settings.
"""

import dataclasses
import itertools
import json
import math
import os
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence

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
TABLE = "trials.tsv"

# The values of --search: batch sizes, learning rates and numbers of epochs.
SEARCHES: Mapping[str, tuple[Sequence[float], ...]] = {
    "paper": ((16, 32), (5e-5, 3e-5, 2e-5), (2.0, 3.0, 4.0)),
}

_COLUMNS = (
    *named(FineTuningOptions, decides="setting"),
    *("trials", "diverged", "metric"),
    *("median", "minimum", "maximum", "standard_deviation", "best"),
)


@dataclasses.dataclass(frozen=True)
class Trial:
    """One training: its hyperparameters and its seed."""

    train_batch_size: int
    learning_rate: float
    num_train_epochs: float
    random_seed: int

    @property
    def setting(self) -> tuple[str, str, str]:
        """The hyperparameters, not rounded; 3.0 becomes "3"."""
        batch_size, *others = dataclasses.astuple(self)[:3]
        rate, epochs = (repr(x).removesuffix(".0") for x in others)
        return str(batch_size), rate, epochs

    @property
    def name(self) -> str:
        """The name of the trial's folder."""
        batch_size, rate, epochs = self.setting
        seed = self.random_seed
        return f"batch{batch_size}_rate{rate}_epochs{epochs}_seed{seed}"


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


# Trains and evaluates a trial in its folder, or resumes an interrupted one.
# Returns the metrics.
RunOne = Callable[[Trial, str], Mapping[str, float]]


def plan(base: Trial, num_seeds: int, search: str | None = None) -> list[Trial]:
    """Returns the trials to run, one setting after another.

    Args:
      base: Has the first seed and, without `search`, the only setting.
      num_seeds: The number of trials of each setting.
      search: A name in `SEARCHES`, or None.
    """
    trials = [base]
    if search:
        trials = [
            Trial(int(batch_size), rate, epochs, base.random_seed)
            for batch_size, rate, epochs in itertools.product(*SEARCHES[search])
        ]
    return [
        dataclasses.replace(trial, random_seed=base.random_seed + number)
        for trial in trials
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
    """Runs the unfinished trials and returns the result of `best_of`.

    A trial that diverges is logged and skipped. In the end, the weights of all
    trials but the best are discarded. If a later run with another metric or
    more seeds chooses another trial, that one is trained again.

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
        result, folder = found[trial], folder_of(output_dir, trial)
        if result is None:
            files.makedirs(folder)
            logging.info("***** Trial %s *****", trial.name)
            try:
                result = Result(trial, dict(run_one(trial, folder)))
            except NonFiniteError as error:
                logging.warning("Trial %s diverged: %s", trial.name, error)
                result = Result(trial, {}, failure=str(error))
            if writes:
                write_result(folder, result)
        results.append(result)
        best = best_of(results, metric)
        table = table_of(results, metric)
        if writes:
            path = os.path.join(output_dir, TABLE)
            files.write_text(path, "".join(f"{line}\n" for line in table))
    if best.failure is not None:
        raise InputError(
            f"All {len(trials)} training runs diverged. The last error: "
            f"{results[-1].failure}"
        )
    if writes:
        for trial in trials:
            if trial != best.trial:
                discard(folder_of(output_dir, trial))
    logging.info("***** Trials *****")
    for line in table:
        logging.info("  %s", line)
    logging.info("The best trial by %s: %s", metric, best.trial.name)
    return best


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


def spread_of(values: Iterable[float]) -> tuple[float, float, float, float]:
    """Returns median, minimum, maximum and standard deviation.

    Numbers that are not finite are ignored. The standard deviation divides by
    n - 1, and is 0 for a single number.
    """
    numbers = [float(value) for value in values if math.isfinite(value)]
    if not numbers:
        return (math.nan,) * 4
    deviation = statistics.stdev(numbers) if len(numbers) > 1 else 0.0
    return statistics.median(numbers), min(numbers), max(numbers), deviation


# Files.


def write_result(folder: str, result: Result) -> None:
    """Records in a trial's folder that the trial is finished."""
    values = dataclasses.asdict(result)
    values["metrics"] = finite_or_null(result.metrics)
    path = os.path.join(folder, RESULT)
    files.write_text(path, json.dumps(values, indent=2) + "\n")


def read_result(folder: str, trial: Trial) -> Result | None:
    """Returns the result that is recorded in a trial's folder.

    Returns:
      None if the trial is not finished, or the folder holds another trial.
    """
    path = os.path.join(folder, RESULT)
    values = files.read_json(path) if files.exists(path) else {}
    if values.get("trial") != dataclasses.asdict(trial):
        return None
    return Result(trial, null_to_nan(values["metrics"]), values["failure"])


def table_of(results: Sequence[Result], metric: Metric) -> list[str]:
    """Returns the lines of `trials.tsv`: one for each setting and metric."""
    best = best_of(results, metric).trial
    rows = [_COLUMNS]
    for setting, group in _by_setting(results).items():
        num_failures = sum(result.failure is not None for result in group)
        for name in dict.fromkeys(n for r in group for n in r.metrics):
            spread = spread_of(r.metrics.get(name, math.nan) for r in group)
            decides = setting == best.setting and name == metric
            rows.append(
                (
                    *setting,
                    str(len(group)),
                    str(num_failures),
                    name,
                    *(f"{number:.4f}" for number in spread),
                    best.name if decides else "",
                )
            )
    return ["\t".join(row) for row in rows]
