"""What several trainings of one task have found: medians, spreads, the best.

The best setting is the one with the best median over its seeds; one lucky seed
makes none. A trial that diverged counts as the worst there is.
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

from bert_tf import files
from bert_tf.errors import InputError
from bert_tf.training.hooks import NonFiniteError
from bert_tf.training.results import (
    comparable_score,
    finite_or_null,
    null_to_nan,
    value_of,
)

# What several trainings of one task have found: medians, spreads, the best.


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
        return comparable_score(metric, value_of(self.metrics, metric))


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


# Several trainings of one task: other seeds, other settings.


FOLDER = "trials"

# The searches by name: batch sizes, rates, epochs.
SEARCHES: Mapping[str, tuple[Sequence[float], ...]] = {
    "paper": ((16, 32), (5e-5, 3e-5, 2e-5), (2.0, 3.0, 4.0)),
}

# Trains and evaluates a trial in a folder, which it finds as it left it if it
# was interrupted; gives the metrics.
RunOne = Callable[[Trial, str], Mapping[str, float]]


def plan(base: Trial, num_seeds: int, search: str | None = None) -> list[Trial]:
    """The trials to run, those of one setting after another.

    Args:
      base: Its seed is the first; its settings hold where no search is made.
      num_seeds: Trials of each setting.
      search: A name among SEARCHES; None for the one setting of `base`.

    Raises:
      InputError: There is no such search, or `num_seeds` is below 1.
    """
    if num_seeds < 1:
        raise InputError(f"expected --num_seeds of 1 up. Received: {num_seeds}")
    if search is not None and search not in SEARCHES:
        raise InputError(
            f"expected --search among {', '.join(SEARCHES)}. Received: {search}"
        )
    settings = [
        (int(batch_size), rate, epochs)
        for batch_size, rate, epochs in itertools.product(
            *SEARCHES[search] if search else [[value] for value in base.setting]
        )
    ]
    return [
        Trial(*setting, base.random_seed + number)
        for setting in settings
        for number in range(num_seeds)
    ]


def folder_of(output_dir: str, trial: Trial) -> str:
    """Where a trial has its files."""
    return os.path.join(output_dir, FOLDER, trial.name)


def run(
    trials: Sequence[Trial],
    run_one: RunOne,
    output_dir: str,
    metric: str,
    discard: Callable[[str], None] = lambda folder: None,
    *,
    writes: bool = True,
) -> Summary:
    """Runs the trials that are not done, and says which is the best.

    `trials.json` and `trials.tsv` in `output_dir` tell what is known after each
    of them. A trial that diverges is told and passed over.

    Args:
      trials: From `plan`.
      run_one: See `RunOne`.
      output_dir: Where everything goes.
      metric: What decides; lower is better for a loss.
      discard: Removes what is large in the folder of a trial that is not the
        best, and leaves `trial.json`; called again, it does nothing. While the
        seeds of a setting are not all done, its best trial is kept beside the
        best of the settings that are. Where another metric or more seeds make
        a trial the best whose files are gone, it is run again.
      writes: Whether this process is the one that writes, of several that run
        the trials together and find the same.

    Raises:
      InputError: All trials diverged, or the metric is missing.
    """
    book = _Book(trials, output_dir, metric, discard, writes)
    for trial in book.missing():
        book.add(_run(trial, run_one, output_dir, writes))
    summary = book.close()
    # Nothing is discarded on the way: it ends, even if no two runs are equal.
    while not summary.best.kept:
        logging.info("The best is %s; once more", summary.best.trial.name)
        best = summary.best.trial
        if writes:
            # Or a run that is killed meanwhile would be taken for the old one.
            forget_result(folder_of(output_dir, best))
        book.results[best] = _run(best, run_one, output_dir, writes)
        summary = book.summary()
    summary = book.close()
    _tell(summary)
    return summary


def _tell(summary: Summary) -> None:
    """Logs the spread of what decides, and which trial is kept."""
    for setting in summary.settings:
        name = setting.results[0].trial.setting_name
        for metric, spread in setting.metrics.items():
            logging.info(
                "%s: %s median %.4f, from %.4f to %.4f, standard deviation "
                "%.4f, %d training(s)",
                name,
                metric,
                spread.median,
                spread.minimum,
                spread.maximum,
                spread.standard_deviation,
                spread.count,
            )
    logging.info("Kept by %s: %s", summary.metric, summary.best.trial.name)


def _run(
    trial: Trial, run_one: RunOne, output_dir: str, writes: bool
) -> Result:
    """Runs a trial and notes what became of it."""
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


class _Book:
    """Who is done, who is the best, whose files may go."""

    def __init__(
        self,
        trials: Sequence[Trial],
        output_dir: str,
        metric: str,
        discard: Callable[[str], None],
        writes: bool,
    ):
        self._trials = trials
        self._output_dir = output_dir
        self._metric = metric
        self._discard = discard
        self._writes = writes
        self.results: dict[Trial, Result] = {}
        for trial in trials:
            folder = folder_of(output_dir, trial)
            result = read_result(folder, trial)
            if result is not None:
                self.results[trial] = result
            if result is not None and not result.kept and writes:
                discard(folder)  # A run may have been killed before it did.

    def missing(self) -> list[Trial]:
        """The trials that are not done."""
        return [trial for trial in self._trials if trial not in self.results]

    def add(self, result: Result) -> None:
        """A trial is done."""
        self.results[result.trial] = result
        self._settle()

    def close(self) -> Summary:
        """All are done.

        Raises:
          InputError: All of them diverged.
        """
        summary = self._settle()
        if summary.best.failure is not None:
            raise InputError(
                "expected a training that does not diverge. Received: all "
                f"{len(self._trials)} did; the last said: "
                f"{summary.settings[-1].results[-1].failure}"
            )
        return summary

    def summary(self) -> Summary:
        """What is known, in the order of the trials."""
        done = [self.results[t] for t in self._trials if t in self.results]
        return summarize(self._metric, done)

    def _settle(self) -> Summary:
        summary = self.summary()
        for result in self.results.values():
            result.goodness(self._metric)  # Fails if the metric is missing.
        keep = self._candidates(summary)
        for trial, result in self.results.items():
            if result.kept and trial not in keep:
                self.results[trial] = dataclasses.replace(result, kept=False)
                self._give_up(self.results[trial])
        if self._writes:
            write_summary(self._output_dir, summary)
        return summary

    def _give_up(self, result: Result) -> None:
        if self._writes:
            folder = folder_of(self._output_dir, result.trial)
            # Noted first: what is noted as kept is there.
            write_result(folder, result)
            self._discard(folder)

    def _candidates(self, summary: Summary) -> set[Trial]:
        """The trials that may be the best when all are done."""
        unfinished = {trial.setting for trial in self.missing()}

        def is_finished(setting: Setting) -> bool:
            return setting.results[0].trial.setting not in unfinished

        found = {
            setting.best(self._metric).trial
            for setting in summary.settings
            if not is_finished(setting)
        }
        finished = tuple(filter(is_finished, summary.settings))
        if finished:
            found.add(Summary(self._metric, finished).best.trial)
        return found
