"""Runs functions in several processes and shows their progress."""

import collections
import contextlib
import itertools
import multiprocessing
import os
import signal
import sys
import threading
import time
import types
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from concurrent.futures.process import BrokenProcessPool
from typing import NoReturn, TypeVar

import tqdm
from absl import logging

from bert_tf.base import signals
from bert_tf.errors import InputError, reason

Item = TypeVar("Item")
Task = TypeVar("Task")
Result = TypeVar("Result")

SECONDS_BETWEEN_LINES = 30
# Enough that no worker waits for the results to be read, and few enough that
# pending tasks and results need little memory.
TASKS_PER_WORKER = 3


class Faults:
    """Counts the faults of data by kind and keeps the first of each kind.

    The faults of several parts of the data can be merged in order. Each kind is
    then logged once, regardless of how the data was divided.
    """

    def __init__(self) -> None:
        self.counts: collections.Counter[str] = collections.Counter()
        self.firsts: dict[str, str] = {}

    def add(self, kind: str, example: str) -> None:
        """Counts a fault.

        Args:
          kind: What is wrong and what was done, without a period.
          example: The faulty item and its position.
        """
        self.counts[kind] += 1
        self.firsts.setdefault(kind, example)

    def update(self, other: "Faults") -> None:
        """Adds the faults of a later part of the data."""
        self.counts.update(other.counts)
        self.firsts = other.firsts | self.firsts

    def log(self) -> None:
        """Logs a warning for each kind."""
        for kind, count in self.counts.items():
            logging.warning(
                "%s: %s; the first: %s", kind, f"{count:,}", self.firsts[kind]
            )


def track(
    results: Iterable[Item],
    size: Callable[[Item], int],
    title: str,
    unit: str,
    total: int | None = None,
) -> Iterator[Item]:
    """Yields the results and shows the progress, as a bar or in the log.

    Args:
      results: The results of the work.
      size: Returns the number of units of work of a result.
      title: The work, for "Writing: 12,345 of ...".
      unit: The unit, for "... 67,890 instances".
      total: The number of all units, if known.
    """
    on_terminal = sys.stderr.isatty()
    start = last_line = time.monotonic()
    count = 0
    of_total = f" of {total:,}" if total else ""
    with tqdm.tqdm(
        desc=title,
        unit=f" {unit}",
        unit_scale=True,
        total=total,
        leave=False,
        disable=not on_terminal,
    ) as bar:
        for result in results:
            yield result
            count += size(result)
            bar.update(size(result))
            now = time.monotonic()
            if not on_terminal and now - last_line > SECONDS_BETWEEN_LINES:
                last_line = now
                rate = f"{count / (now - start):,.0f} a second"
                logging.info(f"{title}: {count:,}{of_total} {unit}, {rate}")


def available_cpus() -> int:
    """Returns the number of CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Pool:
    """Processes for several rounds of tasks; they end with the `with` block.

    Processes are started only for a round of two tasks or more. Where the
    system has no semaphores for worker processes, tasks run in this process.

    Args:
      num_workers: The number of processes. With 1, tasks run in this process.
    """

    def __init__(self, num_workers: int) -> None:
        self._num_workers = num_workers
        self._executor: futures.ProcessPoolExecutor | None = None

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *exception: object) -> None:
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)

    def run(
        self, tasks: Iterable[Task], function: Callable[[Task], Result]
    ) -> Iterator[Result]:
        """Yields `function(task)` for each task, in the order of the tasks.

        Args:
          tasks: Read lazily, a few tasks ahead of the results.
          function: Pure and picklable: a function of a module other than
            `__main__`, or a `functools.partial` of one. Its exceptions are
            raised here.

        Raises:
          InputError: If a worker cannot be started, or was killed, usually for
            lack of memory.
        """
        tasks = iter(tasks)
        ahead = list(itertools.islice(tasks, 2))
        tasks = itertools.chain(ahead, tasks)
        if self._num_workers > 1 and len(ahead) == 2:
            self._executor = self._executor or self._make_executor()
            if self._executor is not None:
                return self._run_in_workers(self._executor, tasks, function)
        return map(function, tasks)

    def _make_executor(self) -> futures.ProcessPoolExecutor | None:
        """Returns the executor of the workers; None without semaphores."""
        try:
            return futures.ProcessPoolExecutor(
                self._num_workers,
                mp_context=multiprocessing.get_context("spawn"),
                initializer=_end_with_parent,
            )
        except (ImportError, NotImplementedError, OSError) as error:
            # The results are the same, and a slow run is better than none.
            logging.warning(
                "Working in 1 process instead of %d, since worker processes "
                "need semaphores: %s. On Linux, mount a writable tmpfs at "
                "/dev/shm.",
                self._num_workers,
                reason(error),
            )
            self._num_workers = 1
            return None

    def _run_in_workers(
        self,
        executor: futures.ProcessPoolExecutor,
        tasks: Iterator[Task],
        function: Callable[[Task], Result],
    ) -> Iterator[Result]:
        pending: collections.deque[futures.Future[Result]] = collections.deque()
        try:
            for task in tasks:
                try:
                    with _signals_blocked(), _script_hidden():
                        pending.append(executor.submit(function, task))
                except OSError as error:
                    raise InputError(
                        f"Cannot start a worker process: {reason(error)}. "
                        f"Use fewer than {self._num_workers} workers."
                    ) from error
                if len(pending) == TASKS_PER_WORKER * self._num_workers:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        except BrokenProcessPool as error:
            raise InputError(
                "A worker process was killed, usually for lack of memory. Use "
                f"fewer than {self._num_workers} workers."
            ) from error


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    """Makes workers started in the block ignore Ctrl-C and other stop signals.

    Workers inherit the signal mask. They end when this process ends the pool,
    so no worker prints a traceback.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals.STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _script_hidden() -> Iterator[None]:
    """Keeps workers started in the block from importing the running script.

    `multiprocessing` would import it, since it may define the functions. A
    training script imports TensorFlow, which takes longer than most tasks.
    """
    script = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


def _end_with_parent() -> None:
    """Makes a worker exit when its parent ends, even by SIGKILL."""
    parent = multiprocessing.parent_process()
    assert parent is not None  # This runs in workers only.

    def wait() -> NoReturn:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
