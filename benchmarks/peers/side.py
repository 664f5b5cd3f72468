"""Shared by the sides of a benchmark: requests and replies, timing, batches.

A side gets its setup as JSON on the command line. It first writes a line of
JSON with the versions of its packages, then answers each line of JSON that it
reads with another. It ends when its input ends. Only the standard library and
NumPy are used: this runs in every environment.
"""

import importlib.metadata
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np


def serve(
    start: Callable[[dict], Callable[[Any], dict]], packages: Iterable[str]
) -> None:
    """Replies to the requests on standard input.

    Args:
      start: Maps the setup to a function from a request to the reply.
        "request_cpu_seconds" is added to the reply: the CPU time of the whole
        request, including work that is not timed.
      packages: The packages whose versions are reported.
    """
    setup = json.loads(sys.argv[1])
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[: setup["num_threads"]])
    # Libraries may print: that goes to standard error.
    with os.fdopen(os.dup(1), "w") as output:
        os.dup2(2, 1)

        def write(message: dict) -> None:
            output.write(json.dumps(message) + "\n")
            output.flush()

        reply = start(setup)
        versions = {name: importlib.metadata.version(name) for name in packages}
        write({"versions": versions})
        for line in sys.stdin:
            before = time.process_time()
            answer = reply(json.loads(line))
            answer["request_cpu_seconds"] = time.process_time() - before
            write(answer)


def repeat(
    work: Callable[[], Any], least_seconds: float, least_times: int = 1
) -> tuple[dict[str, float], Any]:
    """Repeats the work for a time, and at least a number of times.

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


# Training.

# Runs the number of steps of the setup, and as many products of matrices. Each
# returns when done.
Work = tuple[Callable[[], Any], Callable[[], Any]]


def serve_training(
    make: Callable[[Mapping[str, Any]], Work], packages: Iterable[str]
) -> None:
    """Runs the steps of the setup on request.

    Besides the times, the reply has "peak_flops", the speed of large matrix
    products just before the steps, and "share", the fraction of it that the
    model's matrix products reach.
    """

    def start(setup: Mapping[str, Any]) -> Callable[[Any], dict]:
        work = make(setup)
        for _ in range(2):  # Compiles, then allocates.
            work[0]()
        return lambda least_seconds: measure(work, setup, least_seconds)

    serve(start, packages)


def measure(
    work: Work, setup: Mapping[str, Any], least_seconds: float
) -> dict[str, Any]:
    steps, products = work
    flops = 2.0 * setup["matrix_size"] ** 3 * setup["products"]
    products()
    rounds = [repeat(products, 0.0)[0]["seconds"] for _ in range(5)]
    peak = flops / statistics.median(rounds)
    usage, _ = repeat(steps, least_seconds, least_times=2)
    rate = usage["times"] / usage["seconds"]
    return {
        **usage,
        "share": setup["flops"] * rate / peak,
        "peak_flops": peak,
    }


def batch_of(setup: Mapping[str, Any], seed: int = 0) -> dict[str, np.ndarray]:
    """Returns a batch of random words without padding.

    It has the features of bert_tf's pre-training examples.
    """
    size, length = setup["batch_size"], setup["max_seq_length"]
    vocab_size = setup["config"]["vocab_size"]
    random = np.random.default_rng(seed)
    # Different positions in each row.
    order = random.permuted(np.tile(np.arange(length), (size, 1)), axis=1)
    masked = size, setup["max_predictions_per_seq"]
    features = {
        "input_ids": random.integers(vocab_size, size=(size, length)),
        "input_mask": np.ones((size, length)),
        "segment_ids": random.integers(2, size=(size, length)),
        "masked_lm_positions": order[:, : masked[1]],
        "masked_lm_ids": random.integers(vocab_size, size=masked),
        "next_sentence_labels": random.integers(2, size=(size, 1)),
    }
    features = {name: x.astype("int32") for name, x in features.items()}
    return {**features, "masked_lm_weights": np.ones(masked, "float32")}
