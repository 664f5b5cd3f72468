"""Sides that are asked for steps of a model, as training_step.py and gpu.py do.

Their programs are in benchmarks/peers; see `peers/training.py`.
"""

import contextlib
import dataclasses
import pathlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import answerers
import benchmark_flags
import measured
import peer_environment
import turns
import turns_section
from absl import flags
from answerers import Answerer, answerer
from places import PEERS
from turns import Case, Comparison
from workload import Workload

# --help shows them among those of the program.
flags.disclaim_key_flags()

FLAGS = flags.FLAGS
EAGER, COMPILED = "eager", "compiled"


@dataclasses.dataclass(frozen=True)
class Pace:
    """How much a device is asked for before anybody waits for it.

    Attributes:
      steps: Of the model.
      matrix_size: Of the matrices that show how fast it can multiply.
      products: Of such matrices.
    """

    steps: int
    matrix_size: int
    products: int


def define_flags(titles: Mapping[str, str], rounds: int) -> None:
    """The flags of such a benchmark, for sides with these titles."""
    benchmark_flags.define_rounds(rounds)
    flags.DEFINE_float("least_seconds", 5.0, "Of a round of a side.")
    benchmark_flags.define_num_threads()
    benchmark_flags.define_some("variants", titles)
    benchmark_flags.define_output()
    flags.DEFINE_bool(
        "go_on", False, "Measure only those cases that --output does not have."
    )
    benchmark_flags.define_interpreter("peer_python", "huggingface")


def request_of(
    workload: Workload, precision: str, device: str, pace: Pace
) -> dict[str, Any]:
    """What a side is asked, see `peers/training.py`.

    Args:
      workload: What a step has to do.
      precision: Of its products.
      device: "cpu" or "cuda".
      pace: See there.
    """
    return {
        **workload.request(),
        **dataclasses.asdict(pace),
        "precision": precision,
        "device": device,
        "flops": pace.steps * workload.flops(),
        "least_seconds": FLAGS.least_seconds,
    }


def left_out() -> dict[str, str]:
    """Sides that cannot be measured here, and why."""
    return peer_environment.left_out({COMPILED} & {*FLAGS.variants})


def measured_sides(comparison: Comparison) -> list[str]:
    return [name for name in FLAGS.variants if name not in comparison.left_out]


def go_on(comparison: Comparison) -> None:
    """Takes over the cases that --output has, by all sides in every round.

    Raises:
      SystemExit: They were measured elsewhere, or on other things.
    """
    path = pathlib.Path(FLAGS.output or "")
    if not FLAGS.go_on or not path.is_file():
        return
    old = Comparison.read(path)
    for name in ("title", "machine", "facts", "titles"):
        found, expected = getattr(old, name), getattr(comparison, name)
        if found != expected:
            raise SystemExit(
                f"error: expected a file with the {name} {expected} as "
                f"--output, to go on with. Received: {path}, with {found}"
            )
    whole = [
        case
        for case in old.cases
        if all(
            len(old.of(case, side)) >= FLAGS.rounds
            for side in measured_sides(comparison)
        )
    ]
    comparison.turns += [turn for turn in old.turns if turn.case in whole]
    comparison.aims |= {case: old.aims[case] for case in whole}
    comparison.versions |= old.versions


def measure(
    comparison: Comparison,
    cases: Iterable[Case],
    command: Callable[[str], list[str]],
    variables: Callable[[str], Mapping[str, str]],
) -> None:
    """Lets sides take turns, started anew for each case; prints the section.

    Args:
      comparison: Where the turns go.
      cases: The work.
      command: From a side to its interpreter, its program in benchmarks/peers,
        and what else it is told.
      variables: From a side to variables of its own.
    """
    threads = measured.hold_to_cpus(FLAGS.num_threads)
    keep = turns_section.keeper(comparison, FLAGS.output)

    def start(
        side: str, folder: pathlib.Path
    ) -> contextlib.AbstractContextManager[Answerer]:
        python, program, *more = command(side)
        number = f"--num_threads={FLAGS.num_threads}"
        return answerer(
            [python, str(PEERS / program), number, *more],
            folder / f"{side}.stderr",
            {**threads, **peer_environment.quiet(folder), **variables(side)},
        )

    go_on(comparison)
    known = comparison.cases
    for case in cases:
        if case.name in known:
            continue
        with answerers.together(start, case.requests) as sides:
            turns.take(comparison, [case], sides, FLAGS.rounds, keep)
    print(turns_section.section(comparison))


def transformers_command(side: str) -> list[str]:
    """See `measure`, for EAGER and COMPILED."""
    python = benchmark_flags.interpreter("peer_python", "huggingface")
    more = ["--compile"] if side == COMPILED else []
    return [python, "huggingface_training.py", *more]
