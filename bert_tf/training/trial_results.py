"""What several trainings of one task have found: medians, spreads, the best.

The best setting is the one with the best median over its seeds; one lucky seed
makes none. A trial that diverged counts as the worst there is.
"""

import dataclasses
import json
import math
import os
import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from absl import logging

from bert_tf import files
from bert_tf.errors import InputError
from bert_tf.training.history import (
    finite_or_null,
    goodness,
    null_to_nan,
    value_of,
)

RESULT = "trial.json"
SUMMARY = "trials.json"
TABLE = "trials.tsv"


@dataclasses.dataclass(frozen=True)
class Trial:
    """What tells one training of a task from another.

    Attributes:
      train_batch_size: Examples of one update.
      learning_rate: Peak rate.
      num_train_epochs: Times that the training set is gone through.
      random_seed: Decides new weights, dropout and the order of data.
    """

    train_batch_size: int
    learning_rate: float
    num_train_epochs: float
    random_seed: int

    @property
    def name(self) -> str:
        """Its folder's, such as batch32_rate5e-05_epochs3_seed12345."""
        return f"{self.setting_name}_seed{self.random_seed}"

    @property
    def setting_name(self) -> str:
        """What the names of its setting's trials begin with."""
        return (
            f"batch{self.train_batch_size}_rate{_short(self.learning_rate)}"
            f"_epochs{_short(self.num_train_epochs)}"
        )

    @property
    def setting(self) -> tuple[int, float, float]:
        """What it shares with the trials of other seeds."""
        return self.train_batch_size, self.learning_rate, self.num_train_epochs


@dataclasses.dataclass(frozen=True)
class Result:
    """What became of a trial.

    Attributes:
      trial: Its settings.
      metrics: Its metrics; none if it diverged.
      failure: Why it diverged; None if it did not.
      kept: Whether its files are still there, and not the metrics alone.
    """

    trial: Trial
    metrics: Mapping[str, float]
    failure: str | None = None
    kept: bool = True

    def goodness(self, metric: str) -> float:
        """The higher the better; minus infinity where there is no number.

        Raises:
          InputError: The metric is missing.
        """
        if self.failure is not None:
            return -math.inf
        return goodness(metric, value_of(self.metrics, metric))


@dataclasses.dataclass(frozen=True)
class Spread:
    """How a metric differs between seeds.

    Attributes:
      median: The middle one, or the mean of the two in the middle.
      minimum: The lowest.
      maximum: The highest.
      standard_deviation: That of a sample (n - 1); 0 of a single trial.
      count: Trials that have a number; the others are NaN if none has.
    """

    median: float
    minimum: float
    maximum: float
    standard_deviation: float
    count: int


@dataclasses.dataclass(frozen=True)
class Setting:
    """The trials of one batch size, rate and number of epochs."""

    results: tuple[Result, ...]

    @property
    def metrics(self) -> dict[str, Spread]:
        """The spread of every metric, over the trials that have it."""
        names = dict.fromkeys(n for r in self.results for n in r.metrics)
        return {
            name: spread_of(
                r.metrics[name] for r in self.results if name in r.metrics
            )
            for name in names
        }

    @property
    def num_failures(self) -> int:
        """How many trials diverged."""
        return sum(result.failure is not None for result in self.results)

    def rank(self, metric: str) -> tuple[float, float]:
        """The higher the better: the median, then the best trial."""
        values = [result.goodness(metric) for result in self.results]
        return statistics.median(values), max(values)

    def best(self, metric: str) -> Result:
        """Its best trial, the first on ties."""
        return max(self.results, key=lambda result: result.goodness(metric))


@dataclasses.dataclass(frozen=True)
class Summary:
    """What several trials have found, as far as they are done.

    Attributes:
      metric: What decides.
      settings: In the order of the trials.
    """

    metric: str
    settings: tuple[Setting, ...]

    @property
    def best_setting(self) -> Setting:
        """The one of the best median, the first on ties."""
        return max(self.settings, key=lambda setting: setting.rank(self.metric))

    @property
    def best(self) -> Result:
        """The best trial of the best setting."""
        return self.best_setting.best(self.metric)


def spread_of(values: Iterable[float]) -> Spread:
    """The spread of some numbers; what is none is left out."""
    numbers = [float(value) for value in values if math.isfinite(value)]
    if not numbers:
        return Spread(math.nan, math.nan, math.nan, math.nan, 0)
    return Spread(
        statistics.median(numbers),
        min(numbers),
        max(numbers),
        statistics.stdev(numbers) if len(numbers) > 1 else 0.0,
        len(numbers),
    )


def summarize(metric: str, results: Iterable[Result]) -> Summary:
    """Puts the trials of one setting together, in the order given."""
    groups: dict[tuple, list[Result]] = {}
    for result in results:
        groups.setdefault(result.trial.setting, []).append(result)
    return Summary(metric, tuple(Setting(tuple(g)) for g in groups.values()))


def write_result(folder: str, result: Result) -> None:
    """Notes in a trial's folder that it is done; the last thing to do."""
    values = dataclasses.asdict(result)
    values["metrics"] = finite_or_null(result.metrics)
    _write_json(os.path.join(folder, RESULT), values)


def read_result(folder: str, trial: Trial) -> Result | None:
    """What is noted in a trial's folder.

    Returns:
      None if it is not done, or what was done had other settings.
    """
    path = os.path.join(folder, RESULT)
    if not files.exists(path):
        return None
    try:
        values = files.read_json(path)
        if values["trial"] != dataclasses.asdict(trial):
            return None
        metrics = null_to_nan(values["metrics"])
        return Result(trial, metrics, values["failure"], values["kept"])
    except (InputError, KeyError, TypeError, AttributeError) as error:
        logging.warning("%s is damaged, its trial not done: %s", path, error)
        return None


def forget_result(folder: str) -> None:
    """The trial is not done any more."""
    files.remove(os.path.join(folder, RESULT))


def write_summary(folder: str, summary: Summary) -> None:
    """Writes `trials.json`, and `trials.tsv`: a line per setting and metric."""
    values = {
        "metric": summary.metric,
        "best": summary.best.trial.name,
        "settings": [_setting_values(s) for s in summary.settings],
    }
    _write_json(os.path.join(folder, SUMMARY), values)
    rows = [_COLUMNS, *_rows(summary)]
    text = "".join("\t".join(row) + "\n" for row in rows)
    files.write_text(os.path.join(folder, TABLE), text)


_SETTING = ("train_batch_size", "learning_rate", "num_train_epochs")
_SPREAD = ("median", "minimum", "maximum", "standard_deviation")
_COLUMNS = (*_SETTING, "trials", "diverged", "metric", *_SPREAD, "best")


def _setting_values(setting: Setting) -> dict[str, Any]:
    values = zip(_SETTING, setting.results[0].trial.setting, strict=True)
    return {
        **dict(values),
        "metrics": {
            name: finite_or_null(dataclasses.asdict(spread))
            for name, spread in setting.metrics.items()
        },
        "trials": [
            {
                "name": result.trial.name,
                "random_seed": result.trial.random_seed,
                "failure": result.failure,
                "metrics": finite_or_null(result.metrics),
            }
            for result in setting.results
        ],
    }


def _rows(summary: Summary) -> Iterable[tuple[str, ...]]:
    for setting in summary.settings:
        for name, spread in setting.metrics.items():
            decides = setting is summary.best_setting and name == summary.metric
            yield (
                *map(_short, setting.results[0].trial.setting),
                str(len(setting.results)),
                str(setting.num_failures),
                name,
                *(f"{getattr(spread, column):.4f}" for column in _SPREAD),
                summary.best.trial.name if decides else "",
            )


def _short(number: float) -> str:
    """All its digits, but 3 for 3.0."""
    return repr(number).removesuffix(".0")


def _write_json(path: str, values: Mapping[str, Any]) -> None:
    files.write_text(path, json.dumps(values, indent=2) + "\n")
