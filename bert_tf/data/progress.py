"""How far a long job is: a bar on a terminal, now and then a log line else."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import tqdm
from absl import logging

Result = TypeVar("Result")

SECONDS_BETWEEN_LINES = 30


def track(
    results: Iterable[Result],
    size: Callable[[Result], int],
    title: str,
    unit: str,
    total: int | None = None,
) -> Iterator[Result]:
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
