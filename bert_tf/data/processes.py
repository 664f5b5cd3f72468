"""What is wrong with data and yet no reason to stop: counted, and told."""

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
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent import futures
from concurrent.futures.process import BrokenProcessPool
from typing import NoReturn, TypeVar

import tqdm
from absl import logging

from bert_tf import signals
from bert_tf.errors import InputError

# What is wrong with data and yet no reason to stop: counted, and told.


class Faults:
    """Counts each kind of fault and keeps the first of it.

    Those of several pieces of the data can be joined, in their order, so that
    a fault is told once however the data was cut up.
    """

    def __init__(self) -> None:
        self._counts: collections.Counter[str] = collections.Counter()
        self._firsts: dict[str, str] = {}

    def add(self, kind: str, example: str) -> None:
        """Counts one.

        Args:
          kind: A sentence without its end: what is so, and what was done.
          example: Which one it was and where it stands.
        """
        self._counts[kind] += 1
        self._firsts.setdefault(kind, example)

    def update(self, other: "Faults") -> None:
        """Counts all that `other` has, as what came later."""
        self._counts.update(other._counts)
        self._firsts = other._firsts | self._firsts

    @property
    def counts(self) -> Mapping[str, int]:
        """How many there are of each kind."""
        return dict(self._counts)

    @property
    def firsts(self) -> Mapping[str, str]:
        """The first one of each kind."""
        return dict(self._firsts)

    def tell(self) -> None:
        """Warns of each kind in one line of the log."""
        for kind, count in self._counts.items():
            logging.warning(
                "%s: %s; the first: %s", kind, f"{count:,}", self._firsts[kind]
            )


# How far a long job is: a bar on a terminal, now and then a log line else.


Item = TypeVar("Item")

SECONDS_BETWEEN_LINES = 30


def track(
    results: Iterable[Item],
    size: Callable[[Item], int],
    title: str,
    unit: str,
    total: int | None = None,
) -> Iterator[Item]:
    """Passes results on and shows how much is done.

    Args:
      results: What the job yields.
      size: The units of work that a result stands for.
      title: What is being done, for "Writing: 12,345 of ...".
      unit: What is counted, for "... 67,890 instances".
      total: All units, where known.
    """
    on_terminal = sys.stderr.isatty()
    start = last_line = time.monotonic()
    done = 0
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
            done += size(result)
            bar.update(size(result))
            now = time.monotonic()
            if not on_terminal and now - last_line > SECONDS_BETWEEN_LINES:
                last_line = now
                logging.info(_line(title, unit, done, total, now - start))


def _line(
    title: str, unit: str, done: int, total: int | None, seconds: float
) -> str:
    of_total = f" of {total:,}" if total else ""
    return f"{title}: {done:,}{of_total} {unit}, {done / seconds:,.0f} a second"


# One function over many tasks, in this process or in several.


Task = TypeVar("Task")
Result = TypeVar("Result")

# Enough that no worker waits for the reader of the results, few enough that
# the tasks and results under way stay a small part of the memory.
TASKS_PER_WORKER = 3


def available_cpus() -> int:
    """The CPUs that this process may use, which a job's owner may limit."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Pool:
    """Processes for several rounds of tasks; they end with the `with` block.

    None is started before there are two tasks in a round.

    Args:
      num_workers: Processes; with 1 everything runs in this one.
    """

    def __init__(self, num_workers: int) -> None:
        self._num_workers = num_workers
        self._executor = futures.ProcessPoolExecutor(
            num_workers,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_end_with_parent,
        )

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *exception: object) -> None:
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
          InputError: A worker was killed, most often for lack of memory.
        """
        tasks = iter(tasks)
        ahead = list(itertools.islice(tasks, 2))
        tasks = itertools.chain(ahead, tasks)
        if self._num_workers == 1 or len(ahead) < 2:
            return map(function, tasks)
        return self._run_in_workers(tasks, function)

    def _run_in_workers(
        self, tasks: Iterator[Task], function: Callable[[Task], Result]
    ) -> Iterator[Result]:
        pending: collections.deque[futures.Future[Result]]
        pending = collections.deque()
        try:
            for task in tasks:
                with _signals_blocked(), _script_hidden():
                    pending.append(self._executor.submit(function, task))
                if len(pending) == TASKS_PER_WORKER * self._num_workers:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        except BrokenProcessPool as error:
            raise InputError(
                "A worker process was killed from outside, most often for "
                f"lack of memory. Received: {self._num_workers} workers; try "
                "fewer"
            ) from error


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    """Starts workers deaf to Ctrl-C, which a terminal sends to all of a group.

    A worker inherits the mask. It ends when this process lets go of it, so
    that one process alone decides, and no worker prints a traceback.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals.STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _script_hidden() -> Iterator[None]:
    """Starts workers that do not import the script that runs here.

    `multiprocessing` has them do so, for functions that the script defines.
    One that trains imports TensorFlow, which takes longer than most jobs.
    """
    script = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


def _end_with_parent() -> None:
    """Makes a worker exit when its parent is gone, even by SIGKILL."""
    parent = multiprocessing.parent_process()
    assert parent is not None  # this runs in workers only

    def wait() -> NoReturn:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
