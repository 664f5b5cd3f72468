"""What every side of benchmarks/training_step.py does: updates, on request.

A request has a model's shape, a batch's and for how long to train; a side
answers how many updates it made, and what share of the products that the
machine can do in the meantime were the model's. Nothing but the standard
library: it runs in every environment.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import request_lines

# A square matrix that makes a machine show how fast it can multiply.
SIZE = 2048

# Something to do, which has ended when it returns.
Act = Callable[[], Any]
# A request -> an update, and the product of two matrices of SIZE, of the same
# precision.
Make = Callable[[Mapping[str, Any]], tuple[Act, Act]]


def main(make: Make, packages: Iterable[str]) -> None:
    """Trains as it is asked; all requests of a process are of one model.

    Args:
      make: Makes the model, its optimizer and a batch.
      packages: Those whose versions matter.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--num_threads", type=int, required=True)
    num_threads = parser.parse_args().num_threads
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:num_threads])
    made: list[tuple[Act, Act]] = []

    def reply(request: Mapping[str, Any]) -> dict[str, Any]:
        if not made:
            made.append(make(request))
            for _ in range(2):  # It is compiled, and grows into its memory.
                made[0][0]()
        update, product = made[0]
        peak = 2.0 * SIZE**3 / median_seconds(product, 5)
        start, cpu_start = time.perf_counter(), time.process_time()
        seconds, times = 0.0, 0
        while times < 2 or seconds < request["least_seconds"]:
            update()
            seconds, times = time.perf_counter() - start, times + 1
        return {
            "times": times,
            "seconds": seconds,
            "cpu_seconds": time.process_time() - cpu_start,
            "share": request["flops"] * times / seconds / peak,
        }

    request_lines.serve(reply, packages)


def median_seconds(function: Act, times: int) -> float:
    """The median time of some calls, after one that is not counted."""
    function()
    measured = []
    for _ in range(times):
        started = time.perf_counter()
        function()
        measured.append(time.perf_counter() - started)
    return statistics.median(measured)
