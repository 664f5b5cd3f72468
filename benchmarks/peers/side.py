"""What the sides of a benchmark share: requests and replies, and timing.

A side first writes a line of JSON with the versions of its packages, then
answers each line of JSON that it reads with another. It ends with its input.
Only the standard library is used: this runs in every environment.
"""

import importlib.metadata
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple


def serve(reply: Callable[[Any], dict], packages: Iterable[str]) -> None:
    """Replies to the requests on standard input.

    Args:
      reply: From a request to the reply. "request_cpu_seconds" is added: the
        CPU time of the whole request, including work that is not timed.
      packages: The packages whose versions are reported.
    """
    # Libraries may print: that goes to standard error.
    with os.fdopen(os.dup(1), "w") as output:
        os.dup2(2, 1)

        def write(message: dict) -> None:
            output.write(json.dumps(message) + "\n")
            output.flush()

        versions = {name: importlib.metadata.version(name) for name in packages}
        write({"versions": versions})
        for line in sys.stdin:
            start = time.process_time()
            answer = reply(json.loads(line))
            answer["request_cpu_seconds"] = time.process_time() - start
            write(answer)


def limit_threads(num_threads: int) -> None:
    """Restricts this process to a number of cores."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:num_threads])


def repeat(
    work: Callable[[], Any], least_seconds: float, least_times: int = 1
) -> tuple[dict[str, float], Any]:
    """Does the work until a time is over, and at least a number of times.

    Returns:
      The number of "times" and their "seconds" and "cpu_seconds", and what
      `work` returned last.
    """
    start, cpu_start = time.perf_counter(), time.process_time()
    seconds, times, result = 0.0, 0, None
    while times < least_times or seconds < least_seconds:
        result = work()
        seconds, times = time.perf_counter() - start, times + 1
    cpu_seconds = time.process_time() - cpu_start
    usage = {"times": times, "seconds": seconds, "cpu_seconds": cpu_seconds}
    return usage, result


class Work(NamedTuple):
    """What a side of a training benchmark does. Each call returns when done.

    Attributes:
      steps: Runs the number of steps of the request.
      products: Multiplies square matrices, as often as the request says.
      peak_bytes: Returns the peak memory of the GPU, or None elsewhere.
    """

    steps: Callable[[], Any]
    products: Callable[[], Any]
    peak_bytes: Callable[[], int | None] = lambda: None


def serve_training(
    make: Callable[[Mapping[str, Any]], Work],
    num_threads: int,
    packages: Iterable[str],
) -> None:
    """Runs steps on request; all requests of a process are the same.

    Beside the times the reply has "peak_flops", what large products of
    matrices reach just before the steps, and the "share" of it that the
    products of the model reach.
    """
    limit_threads(num_threads)
    made: list[Work] = []

    def reply(request: Mapping[str, Any]) -> dict[str, Any]:
        if not made:
            made.append(make(request))
            for _ in range(2):  # Compiles, then allocates.
                made[0].steps()
        [work] = made
        flops = 2.0 * request["matrix_size"] ** 3 * request["products"]
        work.products()
        rounds = [repeat(work.products, 0.0)[0]["seconds"] for _ in range(5)]
        peak = flops / statistics.median(rounds)
        usage, _ = repeat(work.steps, request["least_seconds"], least_times=2)
        rate = usage["times"] / usage["seconds"]
        more = {"share": request["flops"] * rate / peak, "peak_flops": peak}
        if peak_bytes := work.peak_bytes():
            more["peak_bytes"] = peak_bytes
        return {**usage, **more}

    serve(reply, packages)
