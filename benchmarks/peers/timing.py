"""What sides do that are asked to work for some time.

Nothing but the standard library: it runs in every environment.
"""

import argparse
import os
import time
from collections.abc import Callable
from typing import Any


def threads() -> int:
    """What --num_threads says; this process keeps to as many cores."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--num_threads", type=int, required=True)
    number = parser.parse_args().num_threads
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:number])
    return number


def repeat(
    work: Callable[[], Any], least_seconds: float, least_times: int = 1
) -> tuple[dict[str, float], Any]:
    """Does the work again and again.

    Args:
      work: What is timed; it has ended when it returns.
      least_seconds: When to stop, at the earliest.
      least_times: Likewise.

    Returns:
      How many "times" it was done, and the "seconds" and "cpu_seconds" of all
      of them, of all threads; and what the last one gave.
    """
    start, cpu_start = time.perf_counter(), time.process_time()
    seconds, times, result = 0.0, 0, None
    while times < least_times or seconds < least_seconds:
        result = work()
        seconds, times = time.perf_counter() - start, times + 1
    cpu_seconds = time.process_time() - cpu_start
    told = {"times": times, "seconds": seconds, "cpu_seconds": cpu_seconds}
    return told, result
