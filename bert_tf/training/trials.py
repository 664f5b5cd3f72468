"""Several trainings of one task: other seeds, other settings.

Fine-tuning on a small task depends on the seed, and the paper chose batch size,
rate and epochs of each task on its development set (appendix A.3). Here each
training is a trial with a folder of its own, `trials/NAME`. Its result is
written last: the same command again finds what is done and goes on from there.
"""

import dataclasses
import itertools
import os
from collections.abc import Callable, Mapping, Sequence

from absl import logging

from bert_tf import files
from bert_tf.errors import InputError
from bert_tf.training.divergence import NonFiniteError
from bert_tf.training.trial_results import (
    Result,
    Setting,
    Summary,
    Trial,
    forget_result,
    read_result,
    summarize,
    write_result,
    write_summary,
)

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
