"""What the sides of training_step.py and gpu.py do: steps, on request.

A request has a model's shape, a batch's and for how long to train, or to run
the model forward; a side answers how often it did what it was asked, and what
share of the products that the machine can do in the meantime were the model's.
Nothing but the standard library: it runs in every environment.
"""

import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import request_lines
import timing

# Something to do, which has ended when it returns.
Act = Callable[[], Any]


class Work(NamedTuple):
    """What is timed.

    Attributes:
      steps: So many steps of the model as the request has `steps`.
      products: So many products of two square matrices as it has `products`, of
        its `matrix_size` and of the step's precision.
      peak_bytes: The most memory that a GPU has given; None elsewhere.
    """

    steps: Act
    products: Act
    peak_bytes: Callable[[], int | None] = lambda: None


Make = Callable[[Mapping[str, Any]], Work]


def main(make: Make, packages: Iterable[str]) -> None:
    """Steps as it is asked; all requests of a process are of one model.

    Args:
      make: Makes the model and a batch, and what works on them.
      packages: Those whose versions matter.
    """
    timing.threads()
    made: list[Work] = []

    def reply(request: Mapping[str, Any]) -> dict[str, Any]:
        if not made:
            made.append(make(request))
            for _ in range(2):  # It is compiled, and grows into its memory.
                made[0].steps()
        [work] = made
        flops = 2.0 * request["matrix_size"] ** 3 * request["products"]
        peak = flops / median_seconds(work.products, 5)
        told, _ = timing.repeat(
            work.steps, request["least_seconds"], least_times=2
        )
        rate = told["times"] / told["seconds"]
        return {
            **told,
            "share": request["flops"] * rate / peak,
            "peak_flops": peak,
            "peak_bytes": work.peak_bytes(),
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
