"""A section of docs/performance.md, from a file of rounds (see turns.py).

    python benchmarks/turns_section.py build/tokenization.json \\
        docs/performance.md tokenization

writes it there; without a page it is printed.
"""

import pathlib
import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

from circumstances import ROUNDS, machine_line, sides_lines
from measured import BYTES_PER_MIB
from pages import publish, table
from turns import OURS, Comparison, Turn


class Extra(NamedTuple):
    """A column that some comparisons have.

    Attributes:
      title: For the readers.
      what: An attribute of turns.
      form: How its median is written.
      unit: In which.
    """

    title: str
    what: str
    form: str
    unit: float = 1

    def show(self, comparison: Comparison, case: str, side: str) -> str:
        number = comparison.median(case, side, self.what)
        return "" if number is None else format(number / self.unit, self.form)


EXTRAS = (
    Extra("memory, MiB", "peak_bytes", ",.0f", BYTES_PER_MIB),
    Extra("matmul peak, GFLOP/s", "peak_flops", ",.0f", 1e9),
    Extra("share of it", "share", ".0%"),
)


def line(comparison: Comparison, turn: Turn) -> str:
    """A round, as it is told when it has ended."""
    number = 1 / turn.rate if comparison.shows_seconds else turn.rate
    return (
        f"{turn.case}: {comparison.titles[turn.side]}: "
        f"{show(number)} {comparison.unit} in {turn.seconds:.2f} s "
        f"({turn.cpu_seconds:.2f} s of CPU, others "
        f"{turn.other_cpu_seconds:.1f} s)"
    )


def keeper(
    comparison: Comparison, output: str | None
) -> Callable[[Turn], None]:
    """What `turns.take` tells each turn to: it prints, and keeps the file.

    Args:
      comparison: That has the turns.
      output: The file's path, if there is to be one.
    """

    def keep(turn: Turn) -> None:
        print(line(comparison, turn), flush=True)
        if output:
            comparison.write(pathlib.Path(output))

    return keep


def section(comparison: Comparison) -> str:
    """Everything that was measured, in Markdown."""
    parts = [
        [f"## {comparison.title}"],
        ["```", comparison.command, "```"],
        list(circumstances(comparison)),
        table(rows(comparison)),
    ]
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def circumstances(comparison: Comparison) -> Iterator[str]:
    """A list of what the numbers depend on."""
    yield machine_line(comparison.machine)
    for fact in comparison.facts:
        yield f"- {fact}"
    yield ROUNDS
    yield from sides_lines(
        comparison.versions, comparison.left_out, comparison.titles.__getitem__
    )


def rows(comparison: Comparison) -> Iterator[list[str]]:
    """A row for each side of each case."""
    more = [
        extra
        for extra in EXTRAS
        if any(getattr(turn, extra.what) for turn in comparison.turns)
    ]
    yield [
        "",
        "side",
        "rounds (timed)",
        comparison.unit,
        *(extra.title for extra in more),
        "bert_tf is times as fast",
        "aim",
    ]
    for case in comparison.cases:
        for side in comparison.sides(case):
            turns = comparison.of(case, side)
            aim = comparison.aims.get(case, {}).get(side)
            is_peer = side != OURS
            times = comparison.times_as_fast(case, side)
            yield [
                case,
                comparison.titles[side],
                f"{len(turns)} ({sum(turn.is_timed for turn in turns)})",
                spread(comparison, case, side),
                *(extra.show(comparison, case, side) for extra in more),
                f"{times:.2f}" if is_peer else "",
                "" if aim is None else f"{aim:.2g}",
            ]


def spread(comparison: Comparison, case: str, side: str) -> str:
    """The median, and from where to where it goes."""
    found = comparison.spread(case, side)
    numbers = [found.median, found.low, found.high]
    if comparison.shows_seconds:
        numbers = [1 / found.median, 1 / found.high, 1 / found.low]
    median, low, high = map(show, numbers)
    return f"{median} ({low} to {high})"


def show(number: float) -> str:
    """Three digits or more."""
    digits = 2 if number < 10 else 1 if number < 100 else 0
    return f"{number:,.{digits}f}"


def main(results: str, page: str | None = None, name: str = "") -> None:
    publish(section(Comparison.read(pathlib.Path(results))), page, name)


if __name__ == "__main__":
    main(*sys.argv[1:])
