"""Hooks of the training loop: progress, TensorBoard, NaN, evaluation.

A call into TensorFlow runs one or more steps. After each call, the training
loop passes the values that were recorded at these steps to all hooks.
"""

import contextlib
import functools
import itertools
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tqdm
from absl import logging

from bert_tf.base import files
from bert_tf.checkpoints.weights import are_finite
from bert_tf.errors import InputError
from bert_tf.training import results
from bert_tf.training.results import (
    Best,
    EvaluationResult,
    Metric,
    comparable_score,
)

# The evaluation hook writes these into the output directory.
HISTORY = "evaluations.jsonl"
BEST = "best"

Records = Mapping[str, np.ndarray]


class Hook:
    """Base class, which does nothing.

    Attributes:
      every: The loop returns to Python at each multiple of this number of
        steps; 0 if the hook does not need that.
      wants_stop: Whether training should end at the current step. The loop asks
        before the first step, and after it has called all hooks.
    """

    every: int = 0
    wants_stop: bool = False

    def is_due(self, step: int) -> bool:
        """Returns whether `step` is a multiple of `every`."""
        return self.every > 0 and step % self.every == 0

    def begin(self, step: int) -> None:
        """Called when training starts at `step`."""

    def after_steps(self, step: int, records: Records) -> None:
        """Called after n more steps.

        Args:
          step: The number of steps done so far.
          records: Quantities by name, at each of the n steps: floats [n].
        """

    def end(self) -> None:
        """Called when training ends, by success or failure."""


@contextlib.contextmanager
def watching(hooks: Sequence[Hook], step: int) -> Iterator[None]:
    """Calls `begin` of all hooks, and `end` after the block.

    If the block fails, errors of `end` are ignored, since they probably have
    the same cause, such as a full disk.
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


# --------------------------------------------------------------- divergence


class NonFiniteError(InputError):
    """The loss, a gradient or a weight is NaN or infinite."""


class NanWatch(Hook):
    """Raises at the first step with a non-finite loss or gradient.

    Steps that float16's loss scaling has skipped do not count, unless the loss
    scale is below 1.
    """

    def after_steps(self, step: int, records: Records) -> None:
        norms = records["gradient_norm"]
        skipped = ~np.isfinite(norms) & (records.get("loss_scale", 0) >= 1)
        bad = ~np.isfinite(records["loss"] + norms) & ~skipped
        if bad.any():
            index = int(bad.argmax())
            raise NonFiniteError(
                f"step {step - len(bad) + index + 1}: loss "
                f"{records['loss'][index]}, gradient norm {norms[index]}; all "
                "checkpoints are from earlier steps. Lower `learning_rate`, or "
                "use more warm-up steps."
            )


class LossScaleLog(Hook):
    """Logs changes of the loss scale of float16.

    Args:
      scale: The loss scale at the beginning.
    """

    def __init__(self, scale: float):
        self._scale = scale

    def after_steps(self, step: int, records: Records) -> None:
        scales = [self._scale, *records["loss_scale"]]
        first = step - len(scales) + 2
        for number, (old, new) in enumerate(itertools.pairwise(scales), first):
            if new < old:
                logging.info(
                    "step %d was skipped, since its gradients are not finite "
                    "in float16: loss scale %g",
                    number,
                    new,
                )
            elif new > old:
                logging.info("step %d: loss scale %g", number, new)
        self._scale = scales[-1]


def require_finite_tensors(step: int, tensors: Mapping[str, Any]) -> None:
    """Raises NonFiniteError if a tensor of a checkpoint is not finite."""
    for name, values in tensors.items():
        if not are_finite(values):
            raise NonFiniteError(
                f"step {step}: {name} is not finite and was not saved. Lower "
                "`learning_rate`."
            )


# ----------------------------------------------------------------- progress


class Progress(Hook):
    """Draws a progress bar on a terminal; logs lines elsewhere.

    Args:
      total: The step at which the run ends.
      every: Steps between two log lines; 0 for no lines.
      bar: Whether to draw a bar; None to draw it if stderr is a terminal.
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
        self._logged_step, self._since = step, time.monotonic()

    def after_steps(self, step: int, records: Records) -> None:
        loss = float(records["loss"][-1])
        self._bar.set_postfix_str(f"loss {loss:.4f}", refresh=False)
        self._bar.update(len(records["loss"]))
        is_due = self.is_due(step) or step == self.total
        if is_due and self.every and not self.draws_bar:
            self._log(step, loss)

    def _log(self, step: int, loss: float) -> None:
        now = time.monotonic()
        seconds = (now - self._since) / (step - self._logged_step)
        logging.info(
            "step %d of %d, loss %.4f, %.2f steps/s, %s left",
            step,
            self.total,
            loss,
            1.0 / seconds,
            tqdm.tqdm.format_interval((self.total - step) * seconds),
        )
        self._logged_step, self._since = step, now

    def end(self) -> None:
        self._bar.close()


# -------------------------------------------------------------- TensorBoard


class EventFile:
    """A new event file of TensorBoard in a folder; None to write nothing.

    All methods raise an InputError if the file cannot be written.
    """

    def __init__(self, folder: str | None):
        self._input_errors = functools.partial(
            files.input_errors,
            *("write TensorBoard's events to", str(folder), tf.errors.OpError),
        )
        with self._input_errors():
            self._writer = (
                tf.summary.create_noop_writer()
                if folder is None
                else tf.summary.create_file_writer(folder)
            )

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Adds numbers and waits until they are written."""
        with self._input_errors(), self._writer.as_default(step=step):
            for name, value in values.items():
                tf.summary.scalar(name, value)

    def close(self) -> None:
        with self._input_errors():
            self._writer.close()


class Summaries(Hook):
    """Writes the mean of the recorded values to TensorBoard.

    Args:
      directory: The folder of the event file.
      every: Steps to average over.
      examples_per_step: The mean number of examples in a global batch.
      tokens_per_example: The mean number of tokens in an example.
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
        self._written_step, self._since = step, time.monotonic()
        self._waiting: list[Records] = []

    def after_steps(self, step: int, records: Records) -> None:
        self._waiting.append(records)
        self._step = step
        if self.is_due(step):
            self._write(step)

    def _write(self, step: int) -> None:
        now = time.monotonic()
        examples = (step - self._written_step) * self.examples_per_step
        rate = examples / (now - self._since)
        means = {
            name: _finite_mean([r[name] for r in self._waiting])
            for name in self._waiting[0]
        }
        means["examples_per_second"] = rate
        means["tokens_per_second"] = rate * self.tokens_per_example
        self._events.write(step, means)
        self._written_step, self._since, self._waiting = step, now, []

    def end(self) -> None:
        if self._waiting:
            self._write(self._step)
        self._events.close()


def _finite_mean(arrays: Sequence[np.ndarray]) -> float:
    """Returns the mean, ignoring skipped steps; NaN if all were skipped."""
    values = np.concatenate(arrays)
    is_finite = np.isfinite(values)
    return np.mean(values[is_finite]) if is_finite.any() else math.nan


# --------------------------------------------------------------- evaluation


class Evaluation(Hook):
    """Evaluates during training and at the last step.

    Writes the metrics to the log, to TensorBoard (`eval/`) and to
    `evaluations.jsonl`, from which a resumed run reads earlier metrics.
    Optionally keeps the weights of the best evaluation in `best/`, and ends
    training early.

    All processes evaluate together, so each of them needs this hook.

    Args:
      evaluate: Returns the current metrics.
      output_dir: The folder of the files.
      every: Steps between two evaluations; 0 for the last step only.
      last_step: The step at which training ends.
      writes: Whether this process writes the files.
      metric: The metric that decides which evaluation is the best.
      export: Writes the weights, as `Estimator.export_weights`; None not to
        keep the best weights.
      patience: Training ends after this number of evaluations without an
        improvement; 0 to disable.

    Raises:
      InputError: `metric` is missing although `export` or `patience` need it;
        later, if `evaluate` does not return it.
    """

    def __init__(
        self,
        evaluate: Callable[[], Mapping[str, float]],
        output_dir: str,
        *,
        every: int,
        last_step: int,
        writes: bool = True,
        metric: Metric | None = None,
        export: Callable[[str], None] | None = None,
        patience: int = 0,
    ):
        if metric is None and (export is not None or patience):
            raise InputError(
                "Keeping the best weights and stopping early need the name of "
                "a metric."
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
        self._best = self._find_best()
        self._log_if_exhausted()
        self._events = EventFile(self._events_folder if self._writes else None)

    def after_steps(self, step: int, records: Records) -> None:
        if not self.is_due(step) and step != self._last_step:
            return
        metrics = dict(self._evaluate())
        metrics.pop("global_step", None)
        logging.info(
            "step %d evaluated: %s",
            step,
            ", ".join(f"{name} {value:.4f}" for name, value in metrics.items()),
        )
        self._events.write(step, metrics)
        if self.metric is not None:
            # A missing metric must raise on every process, or the others would
            # wait for this one.
            self._keep_best(step, results.value_of(metrics, self.metric))
        self._history.append(EvaluationResult(step, metrics))
        if self._writes:
            results.write_history(self._history_file, self._history)
        self._log_if_exhausted()

    def end(self) -> None:
        self._events.close()

    def _find_best(self) -> Best | None:
        """Returns the best evaluation so far, if it has the same metric."""
        best = results.find_best(self._best_folder) if self._export else None
        if best and best.metric != self.metric:
            logging.warning(
                "%s was chosen by %s and is ignored, as the metric is now %s",
                self._best_folder,
                best.metric,
                self.metric,
            )
            return None
        return best

    def _keep_best(self, step: int, value: float) -> None:
        if self._export is None:
            return
        before = -math.inf
        if self._best is not None:
            before = comparable_score(self.metric, self._best.value)
        if comparable_score(self.metric, value) <= before:
            return
        self._best = Best(step, self.metric, float(value))
        if self._writes:
            results.save_best(self._best_folder, self._best, self._export)
            logging.info(
                "%s %.4f is the best so far: saved the weights in %s",
                self.metric,
                value,
                self._best_folder,
            )

    def _log_if_exhausted(self) -> None:
        if self.wants_stop:
            logging.info(
                "%s has not improved in the last %d evaluations of %s",
                self.metric,
                self._patience,
                self._history_file,
            )
