"""What every side of benchmarks/serving.py does: it answers texts, on request.

A request (see request_lines.py) is a list of batches, lists of texts; the side
answers them one after another and says how long each took, and what the answers
were. Nothing but the standard library: it runs in every environment.
"""

import argparse
import functools
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import request_lines

# Texts -> the label of each, and the probabilities of all labels for each.
Answer = Callable[[list[str]], tuple[list[str], list[list[float]]]]


def parser() -> argparse.ArgumentParser:
    """The flags that every peer has."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--max_seq_length", type=int, default=128)
    parser.add_argument("--num_threads", type=int, default=2)
    return parser


def serve(answer: Answer, packages: Iterable[str]) -> None:
    """Answers what comes on standard input.

    Args:
      answer: From strings to names and numbers of Python; what is timed.
      packages: Those whose versions matter.
    """
    request_lines.serve(functools.partial(answered, answer), packages)


def answered(answer: Answer, batches: Sequence[list[str]]) -> dict[str, Any]:
    """The answers to some batches.

    Returns:
      `seconds` of each batch, `cpu_seconds` of all of them and all threads,
      and `labels` and `probabilities` of each text.
    """
    seconds: list[float] = []
    labels: list[str] = []
    probabilities: list[list[float]] = []
    cpu_start = time.process_time()
    for texts in batches:
        start = time.perf_counter()
        names, numbers = answer(texts)
        seconds.append(time.perf_counter() - start)
        labels += names
        probabilities += numbers
    return {
        "seconds": seconds,
        "cpu_seconds": time.process_time() - cpu_start,
        "labels": labels,
        "probabilities": probabilities,
    }
