"""What watches a training run: progress, summaries, NaN, signals.

The loop calls each hook after every call into TensorFlow, which is one or
more steps, with what was recorded at each of those steps.
"""

import contextlib
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf
import tqdm
from absl import logging

from bert_tf import files
from bert_tf.errors import InputError
from bert_tf.training import results
from bert_tf.training.checkpoints import first_line
from bert_tf.training.results import Best, EvaluationResult, comparable_score

# TensorBoard's event files; the one that cannot be written is named.


class EventFile:
    """A new event file.

    Args:
      folder: Where it goes; None for a process that writes none.

    Raises:
      InputError: It cannot be written, at any time.
    """

    def __init__(self, folder: str | None):
        self._folder = folder
        with self._told():
            self._writer = (
                tf.summary.create_noop_writer()
                if folder is None
                else tf.summary.create_file_writer(folder)
            )

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Adds numbers by their names, and waits until they are written."""
        with self._told(), self._writer.as_default(step=step):
            for name, value in values.items():
                tf.summary.scalar(name, value)

    def close(self) -> None:
        with self._told():
            self._writer.close()

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except tf.errors.OpError as error:
            raise InputError(
                f"Cannot write TensorBoard's events to {self._folder}: "
                f"{first_line(error).rpartition('; ')[2]}."
            ) from error


# Training that has run into NaN or infinity: found, and told in one line.


class NonFiniteError(InputError):
    """The loss, a gradient or a weight is NaN or infinite."""


def require_finite_steps(step: int, records: Mapping[str, np.ndarray]) -> None:
    """Looks at the last steps of a run.

    Args:
      step: How many are done by now.
      records: `loss` and `gradient_norm` of each of the last n, floats [n].

    Raises:
      NonFiniteError: One is not a number; the first such step is named.
    """
    bad = ~np.isfinite(records["loss"] + records["gradient_norm"])
    if bad.any():
        index = int(bad.argmax())
        raise NonFiniteError(
            f"step {step - len(bad) + index + 1}: loss "
            f"{records['loss'][index]}, gradient norm "
            f"{records['gradient_norm'][index]}; no checkpoint has seen "
            "it. Lower --learning_rate, or use more warm-up steps"
        )


def require_finite_tensors(
    step: int, tensors: Mapping[str, np.ndarray]
) -> None:
    """Looks at what is to be saved at `step`, by name.

    Raises:
      NonFiniteError: A tensor holds what is no number.
    """
    for name, values in tensors.items():
        if not np.isfinite(values).all():
            raise NonFiniteError(
                f"step {step}: {name} is not finite and not saved; "
                "lower --learning_rate"
            )


# What watches a training run: progress, summaries, NaN, signals.


# What an evaluation leaves in the output directory.
HISTORY = "evaluations.jsonl"
BEST = "best"

Records = Mapping[str, np.ndarray]


class Hook:
    """A watcher that does nothing.

    Attributes:
      every: Steps of a period, whose multiples the loop always stops at; 0
        for a hook that takes the stops as they come.
      wants_stop: Whether training is to end here, as if this had been the
        last step. Asked before the first step and after all hooks were told.
    """

    every: int = 0
    wants_stop: bool = False

    def is_due(self, step: int) -> bool:
        """Whether a period ends at `step`."""
        return self.every > 0 and step % self.every == 0

    def begin(self, step: int) -> None:
        """Training starts at `step`."""

    def after_steps(self, step: int, records: Records) -> None:
        """Steps were run.

        Args:
          step: How many are done by now.
          records: Dict from the name of a quantity to its value at each of
            the last n steps, floats [n].
        """

    def end(self) -> None:
        """Training is over, by success or failure."""


@contextlib.contextmanager
def watching(hooks: Sequence[Hook], step: int) -> Iterator[None]:
    """Tells hooks that training starts at `step`, and ends when the block does.

    Where an error ends it, that error is told and not what follows from it:
    on a full disk the hooks cannot write, either.
    """
    for hook in hooks:
        hook.begin(step)
    try:
        yield
    except BaseException:
        for hook in hooks:
            with contextlib.suppress(InputError):
                hook.end()
        raise
    for hook in hooks:
        hook.end()


class NanWatch(Hook):
    """Stops the run at the first loss or gradient that is not a number."""

    def after_steps(self, step: int, records: Records) -> None:
        require_finite_steps(step, records)


class Progress(Hook):
    """A progress bar on a terminal, a log line every so often elsewhere.

    Args:
      total: Step at which the run ends.
      every: Steps between two log lines; 0 for none.
      bar: Whether to draw a bar; None asks the standard error stream.
    """

    def __init__(self, total: int, every: int, bar: bool | None = None):
        self.total = total
        self.every = every
        self.draws_bar = sys.stderr.isatty() if bar is None else bar

    def begin(self, step: int) -> None:
        self._bar = tqdm.tqdm(
            total=self.total,
            initial=step,
            unit="step",
            disable=not self.draws_bar,
            dynamic_ncols=True,
        )
        self._logged, self._since = step, time.monotonic()

    def after_steps(self, step: int, records: Records) -> None:
        loss = float(records["loss"][-1])
        self._bar.set_postfix_str(f"loss {loss:.4f}", refresh=False)
        self._bar.update(len(records["loss"]))
        is_due = self.is_due(step) or step == self.total
        if is_due and self.every and not self.draws_bar:
            self._log(step, loss)

    def _log(self, step: int, loss: float) -> None:
        now = time.monotonic()
        seconds = (now - self._since) / (step - self._logged)
        logging.info(
            "step %d of %d, loss %.4f, %.2f steps/s, %s left",
            step,
            self.total,
            loss,
            1.0 / seconds,
            tqdm.tqdm.format_interval((self.total - step) * seconds),
        )
        self._logged, self._since = step, now

    def end(self) -> None:
        self._bar.close()


class Summaries(Hook):
    """TensorBoard event files with the mean of each stretch of steps.

    Args:
      directory: Where the event file goes.
      every: Steps of one stretch.
      examples_per_step: The global batch; on average, if batches differ.
      tokens_per_example: Positions of one example, padding included; likewise.
    """

    def __init__(
        self,
        directory: str,
        every: int,
        examples_per_step: float,
        tokens_per_example: float,
    ):
        self.every = every
        self.examples_per_step = examples_per_step
        self.tokens_per_example = tokens_per_example
        self._directory = directory

    def begin(self, step: int) -> None:
        self._events = EventFile(self._directory)
        self._written, self._since = step, time.monotonic()
        self._waiting: list[Records] = []

    def after_steps(self, step: int, records: Records) -> None:
        self._waiting.append(records)
        self._step = step
        if self.is_due(step):
            self._write(step)

    def _write(self, step: int) -> None:
        now = time.monotonic()
        rate = (
            (step - self._written)
            * self.examples_per_step
            / (now - self._since)
        )
        means = {
            name: np.mean(np.concatenate([r[name] for r in self._waiting]))
            for name in self._waiting[0]
        }
        means["examples_per_second"] = rate
        means["tokens_per_second"] = rate * self.tokens_per_example
        self._events.write(step, means)
        self._written, self._since, self._waiting = step, now, []

    def end(self) -> None:
        if self._waiting:
            self._write(self._step)
        self._events.close()


class Evaluation(Hook):
    """Evaluates now and then, and at the last step.

    Metrics go into the log, to TensorBoard (`eval/`) and into
    `evaluations.jsonl`, from which a run that is resumed knows what came
    before. On request the weights of the best evaluation are kept in `best/`,
    and training ends early.

    Several processes evaluate together, so each of them needs this hook; one
    writes.

    Args:
      evaluate: Gives the metrics as they are now.
      output_dir: Where files go, or are read by those who do not write.
      every: Steps between two evaluations; 0 for the last step alone.
      last_step: Step at which training ends.
      writes: Whether this process is the one that writes.
      metric: Name of what decides which evaluation is the best. Higher is
        better, unless it is a loss.
      export: Writes the weights to a prefix, as `Estimator.export_weights`;
        None keeps none.
      patience: Training ends after so many evaluations without an
        improvement; 0 for not at all.

    Raises:
      InputError: No metric was named where one has to decide, or, later, the
        metrics lack it.
    """

    def __init__(
        self,
        evaluate: Callable[[], Mapping[str, float]],
        output_dir: str,
        *,
        every: int,
        last_step: int,
        writes: bool = True,
        metric: str | None = None,
        export: Callable[[str], None] | None = None,
        patience: int = 0,
    ):
        if metric is None and (export is not None or patience):
            raise InputError(
                "expected the name of the metric that decides which "
                "evaluation is the best. Received: none"
            )
        self.every = every
        self.metric = metric
        self._evaluate = evaluate
        self._last_step = last_step
        self._writes = writes
        self._export = export
        self._patience = patience
        self._events_folder = os.path.join(output_dir, "eval")
        self._history_file = os.path.join(output_dir, HISTORY)
        self._best_folder = os.path.join(output_dir, BEST)
        self._history: list[EvaluationResult] = []

    @property
    def wants_stop(self) -> bool:
        return self.metric is not None and results.is_exhausted(
            self._history, self.metric, self._patience
        )

    def begin(self, step: int) -> None:
        if self._writes and step == 0:
            results.remove_best(self._best_folder)
        elif self._writes:
            results.finish_saving_best(self._best_folder)
        self._history = (
            results.read_history(self._history_file, step) if step else []
        )
        if self._writes and files.exists(self._history_file):
            results.write_history(self._history_file, self._history)
        self._best = self._best_so_far()
        self._tell_if_exhausted()
        self._events = EventFile(self._events_folder if self._writes else None)

    def after_steps(self, step: int, records: Records) -> None:
        if not self.is_due(step) and step != self._last_step:
            return
        metrics = dict(self._evaluate())
        metrics.pop("global_step", None)  # Told anyway.
        logging.info(
            "step %d evaluated: %s",
            step,
            ", ".join(f"{name} {value:.4f}" for name, value in metrics.items()),
        )
        self._events.write(step, metrics)
        if self.metric is not None:
            # On every process, for none may wait for one that has failed.
            self._keep_best(step, results.value_of(metrics, self.metric))
        self._history.append(EvaluationResult(step, metrics))
        if self._writes:
            results.write_history(self._history_file, self._history)
        self._tell_if_exhausted()

    def end(self) -> None:
        self._events.close()

    def _best_so_far(self) -> Best | None:
        """What is in the folder, if it was chosen by this metric."""
        found = results.find_best(self._best_folder) if self._export else None
        if found and found.metric != self.metric:
            logging.warning(
                "%s is the best by %s: by %s, evaluations from now on count",
                self._best_folder,
                found.metric,
                self.metric,
            )
            return None
        return found

    def _keep_best(self, step: int, value: float) -> None:
        before = -math.inf
        if self._best is not None:
            before = comparable_score(self.metric, self._best.value)
        if (
            self._export is None
            or comparable_score(self.metric, value) <= before
        ):
            return
        self._best = Best(step, self.metric, float(value))
        if self._writes:
            results.save_best(self._best_folder, self._best, self._export)
            logging.info(
                "%s %.4f is the best so far: its weights are in %s",
                self.metric,
                value,
                self._best_folder,
            )

    def _tell_if_exhausted(self) -> None:
        if self.wants_stop:
            logging.info(
                "%s has not improved in the last %d evaluations of %s",
                self.metric,
                self._patience,
                self._history_file,
            )
