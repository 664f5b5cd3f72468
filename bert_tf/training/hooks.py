"""What watches a training run: progress, summaries, NaN, signals.

The loop calls each hook after every call into TensorFlow, which is one or
more steps, with what was recorded at each of those steps.
"""

import contextlib
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from types import FrameType

import numpy as np
import tensorflow as tf
import tqdm
from absl import logging

from bert_tf.errors import InputError

Records = Mapping[str, np.ndarray]


class Hook:
    """A watcher that does nothing.

    Attributes:
      every: Steps of a period, whose multiples the loop always stops at; 0
        for a hook that takes the stops as they come.
    """

    every: int = 0

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


class NonFiniteError(InputError):
    """The loss or a gradient is NaN or infinite."""


class NanWatch(Hook):
    """Stops the run at the first loss or gradient that is not a number."""

    def after_steps(self, step: int, records: Records) -> None:
        bad = ~np.isfinite(records["loss"] + records["gradient_norm"])
        if bad.any():
            index = int(bad.argmax())
            raise NonFiniteError(
                f"step {step - len(bad) + index + 1}: loss "
                f"{records['loss'][index]}, gradient norm "
                f"{records['gradient_norm'][index]}; no checkpoint has seen "
                "it. Lower --learning_rate, or raise --num_warmup_steps"
            )


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
      examples_per_step: The global batch.
      tokens_per_example: Positions of one example, padding included.
    """

    def __init__(
        self,
        directory: str,
        every: int,
        examples_per_step: int,
        tokens_per_example: int,
    ):
        self.every = every
        self.examples_per_step = examples_per_step
        self.tokens_per_example = tokens_per_example
        self._directory = directory

    def begin(self, step: int) -> None:
        self._writer = tf.summary.create_file_writer(self._directory)
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
        with self._writer.as_default(step=step):
            for name, value in means.items():
                tf.summary.scalar(name, value)
        self._written, self._since, self._waiting = step, now, []

    def end(self) -> None:
        if self._waiting:
            self._write(self._step)
        self._writer.close()


class Evaluation(Hook):
    """Evaluates now and then, into the log and TensorBoard.

    Several processes evaluate together, so each of them needs this hook; one
    is given the directory.

    Args:
      every: Steps between two evaluations; 0 for none.
      evaluate: Gives the metrics as they are now.
      directory: Where the event file goes; None for no file.
    """

    def __init__(
        self,
        every: int,
        evaluate: Callable[[], Mapping[str, float]],
        directory: str | None,
    ):
        self.every = every
        self._evaluate = evaluate
        self._directory = directory

    def begin(self, step: int) -> None:
        self._writer = (
            tf.summary.create_file_writer(self._directory)
            if self._directory
            else tf.summary.create_noop_writer()
        )

    def after_steps(self, step: int, records: Records) -> None:
        if not self.is_due(step):
            return
        metrics = dict(self._evaluate())
        metrics.pop("global_step", None)  # Told anyway.
        logging.info(
            "step %d evaluated: %s",
            step,
            ", ".join(f"{name} {value:.4f}" for name, value in metrics.items()),
        )
        with self._writer.as_default(step=step):
            for name, value in metrics.items():
                tf.summary.scalar(name, value)

    def end(self) -> None:
        self._writer.close()


class StopSignal:
    """Remembers a SIGINT or SIGTERM until the loop can act on it.

    Attributes:
      received: The signal's number; 0 while there was none.
    """

    received = 0

    @contextlib.contextmanager
    def watch(self) -> Iterator["StopSignal"]:
        """Takes both signals; a second one has its usual effect."""
        watched = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.getsignal(number) for number in watched}

        def restore() -> None:
            for number, handler in before.items():
                signal.signal(number, handler)

        def remember(number: int, frame: FrameType | None) -> None:
            self.received = number
            restore()

        try:
            for number in watched:
                signal.signal(number, remember)
            yield self
        finally:
            restore()
