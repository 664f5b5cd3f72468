"""What every side of benchmarks/serving.py does: it answers texts, on request.

A side and the benchmark talk by lines of JSON. The side begins, once its model
is loaded, with the versions of its packages. Each line that it is then sent is
a list of batches, lists of texts; it answers them one after another and says
how long each took, and what the answers were. It ends with its input.

Nothing but the standard library: it runs in every environment.
"""

import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

# Texts -> the label of each, and the probabilities of all labels for each.
Answer = Callable[[list[str]], tuple[list[str], list[list[float]]]]


def serve(answer: Answer, packages: Iterable[str]) -> None:
    """Answers what comes on standard input.

    Args:
      answer: From strings to names and numbers of Python; what is timed.
      packages: Those whose versions matter.
    """
    # Libraries may print, too: they get the file of the errors.
    with os.fdopen(os.dup(1), "w") as output:
        os.dup2(2, 1)
        versions = {name: importlib.metadata.version(name) for name in packages}
        _say(output, {"versions": versions})
        for line in sys.stdin:
            _say(output, answered(answer, json.loads(line)))


def _say(output, what: dict[str, Any]) -> None:
    output.write(json.dumps(what) + "\n")
    output.flush()


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
