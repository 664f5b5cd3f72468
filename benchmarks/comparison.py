"""What all benchmarks share: sides that take turns, statistics, and pages.

A benchmark gives the same cases to several sides, round by round, and another
side begins each round. Every round is kept in a JSON file (`--output`) and
summarised in a section of a Markdown page (`--page`). The section of an
existing file of results is written by

    python benchmarks/comparison.py build/gpu.json docs/performance.md gpu
"""

import dataclasses
import json
import os
import re
import shlex
import sys
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from typing import Any, Self

import numpy as np
from sides import Side, busy_seconds, machine

from bert_tf import files
from bert_tf.errors import in_file, listed, wrong_value
from bert_tf.options import Options, option

# The side that the others are compared with.
OURS = "ours"
MIB = 2**20
# A round counts as undisturbed if other programs used less than this share of
# one core meanwhile: they slow down threads that wait for each other.
MOST_OF_OTHERS = 0.1


# Options.


def rounds_option(default: int) -> int:
    return option("Number of rounds.", default=default, at_least=1)


def threads_option() -> int:
    return option(
        "Number of cores for each side. Default: all.", default=None, at_least=1
    )


def python_option(peer: str) -> str | None:
    return option(
        f"Python interpreter with the packages of peers/{peer}.txt. Default: a "
        "virtual environment, which is created.",
        default=None,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportOptions(Options):
    """Where to write the results."""

    output: str | None = option("JSON file of the results.", default=None)
    page: str | None = option(
        "Markdown page whose section is replaced.", default=None
    )


def require_known(
    flag: str, values: Iterable[str], known: Collection[str]
) -> None:
    """Raises InputError unless every value of a list is known."""
    for value in values:
        if value not in known:
            choices = listed(known, last="or")
            raise wrong_value(f"--{flag}", f"some of {choices}", value)


# Results.


@dataclasses.dataclass(frozen=True)
class Case:
    """Work that sides are given.

    Attributes:
      name: The name of the case on the page.
      amount: The amount of work, in the unit of the comparison.
      requests: Side -> what it is asked.
    """

    name: str
    amount: float
    requests: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Turn:
    """One round of one side.

    Attributes:
      case: The name of the case.
      side: The name of the side.
      amount: The amount of work that was done.
      seconds: The time that it took.
      cpu_seconds: The CPU time that it took, on all cores.
      other_cpu_seconds: The CPU time of other programs meanwhile.
      more: Other measurements by name, such as "peak_bytes".
    """

    case: str
    side: str
    amount: float
    seconds: float
    cpu_seconds: float
    other_cpu_seconds: float
    more: dict[str, float] = dataclasses.field(default_factory=dict)

    @property
    def rate(self) -> float:
        return self.amount / self.seconds

    @property
    def is_timed(self) -> bool:
        """Whether next to nothing else ran meanwhile."""
        return self.other_cpu_seconds <= MOST_OF_OTHERS * self.seconds


def timed(turns: Sequence[Turn]) -> list[Turn]:
    """Returns the undisturbed rounds, or all if every round was disturbed."""
    return [turn for turn in turns if turn.is_timed] or list(turns)


@dataclasses.dataclass
class Comparison:
    """The results of a benchmark on one machine, kept in a JSON file.

    Attributes:
      title: The title of the section.
      unit: The unit of the amounts, per second; "s" to show seconds instead.
      titles: Side -> its name on the page, in the order of the rows.
      command: The command line.
      machine: See `machine`.
      facts: Sentences about what all sides are given.
      versions: Side -> package -> version.
      left_out: Side -> why it was not measured.
    """

    title: str
    unit: str
    titles: dict[str, str]
    command: str = dataclasses.field(
        default_factory=lambda: shlex.join(["python", *sys.argv])
    )
    machine: str = dataclasses.field(default_factory=machine)
    facts: list[str] = dataclasses.field(default_factory=list)
    versions: dict[str, dict[str, str]] = dataclasses.field(
        default_factory=dict
    )
    left_out: dict[str, str] = dataclasses.field(default_factory=dict)
    turns: list[Turn] = dataclasses.field(default_factory=list)

    def write(self, path: str) -> None:
        files.makedirs(os.path.dirname(path) or ".")
        text = json.dumps(dataclasses.asdict(self), indent=1)
        files.write_text(path, text + "\n")

    @classmethod
    def read(cls, path: str) -> Self:
        fields = files.read_json(path)
        turns = [Turn(**turn) for turn in fields.pop("turns")]
        return cls(**fields, turns=turns)

    @property
    def cases(self) -> list[str]:
        return list(dict.fromkeys(turn.case for turn in self.turns))

    def sides(self, case: str) -> list[str]:
        found = {turn.side for turn in self.turns if turn.case == case}
        return [side for side in self.titles if side in found]

    def of(self, case: str, side: str) -> list[Turn]:
        return [t for t in self.turns if (t.case, t.side) == (case, side)]

    def rates(self, case: str, side: str) -> list[float]:
        return [turn.rate for turn in timed(self.of(case, side))]

    def more(self, case: str, side: str, name: str) -> list[float]:
        turns = timed(self.of(case, side))
        return [turn.more[name] for turn in turns if name in turn.more]


def take_turns(
    comparison: Comparison,
    cases: Sequence[Case],
    sides: Mapping[str, Side],
    rounds: int,
    output: str | None,
) -> None:
    """Lets all sides do all cases in turn; prints and keeps every round."""
    comparison.versions |= {name: side.versions for name, side in sides.items()}
    for number in range(rounds):
        for case in cases:
            names = [name for name in sides if name in case.requests]
            for name in rotated(names, number):
                busy = busy_seconds()
                reply = dict(sides[name].ask(case.requests[name]))
                busy = busy_seconds() - busy
                seconds, cpu = reply.pop("seconds"), reply.pop("cpu_seconds")
                own = reply.pop("request_cpu_seconds", cpu)
                turn = Turn(
                    case.name,
                    name,
                    case.amount * reply.pop("times"),
                    seconds,
                    cpu,
                    max(0.0, busy - own),
                    reply,
                )
                comparison.turns.append(turn)
                print(_line(comparison, turn), flush=True)
                if output:
                    comparison.write(output)


def rotated(names: Sequence[str], number: int) -> list[str]:
    """Returns the names with another one first in every round."""
    first = number % len(names)
    return [*names[first:], *names[:first]]


# Statistics.


def spread(
    numbers: Sequence[float], form: Callable[[float], str] | None = None
) -> str:
    """Returns "MEDIAN (LEAST to MOST)", or the median if all look the same."""
    form = form or shown
    median, low, high = map(
        form, (np.median(numbers), min(numbers), max(numbers))
    )
    return median if low == high else f"{median} ({low} to {high})"


def shown(number: float) -> str:
    """Returns a number with three digits or more."""
    digits = 2 if number < 10 else 1 if number < 100 else 0
    return f"{number:,.{digits}f}"


def ratio(
    ours: Sequence[float], theirs: Sequence[float]
) -> tuple[float, float, float]:
    """Returns the ratio of two medians and the ends of its 95 % interval.

    The interval is a bootstrap over the rounds of both sides. With a single
    round of a side it is the ratio itself.
    """

    def of_medians(a, b, axis=-1):
        return np.median(a, axis=axis) / np.median(b, axis=axis)

    from scipy import stats  # Not in the environments of the peers.

    value = float(of_medians(np.array(ours), np.array(theirs)))
    if min(len(ours), len(theirs)) < 2:
        return value, value, value
    interval = stats.bootstrap(
        (ours, theirs),
        of_medians,
        n_resamples=999,
        method="percentile",
        random_state=np.random.default_rng(0),
    ).confidence_interval
    return value, float(interval.low), float(interval.high)


def ratio_cell(ours: Sequence[float], theirs: Sequence[float]) -> str:
    value, low, high = (f"{number:.2f}" for number in ratio(ours, theirs))
    return value if low == high else f"{value} ({low} to {high})"


# Pages.

# Measurement -> the title of its column, its unit and its format.
COLUMNS = {
    "median_seconds": ("median, ms", 1e-3, ",.2f"),
    "p90_seconds": ("90 % below, ms", 1e-3, ",.2f"),
    "peak_bytes": ("memory, MiB", MIB, ",.0f"),
    "peak_flops": ("matmul peak, GFLOP/s", 1e9, ",.0f"),
    "share": ("share of it", 1, ".0%"),
}
ROUNDS = (
    "- Medians of rounds (least to most) in which the sides take turns. Rounds "
    f"during which other programs used more than {MOST_OF_OTHERS:.0%} of a "
    "core count only if there are no others. Ratios are of medians, with a "
    "bootstrapped 95 % interval"
)


def _line(comparison: Comparison, turn: Turn) -> str:
    number = 1 / turn.rate if comparison.unit == "s" else turn.rate
    return (
        f"{turn.case}: {comparison.titles[turn.side]}: {shown(number)} "
        f"{comparison.unit} in {turn.seconds:.2f} s ({turn.cpu_seconds:.2f} s "
        f"of CPU, others {turn.other_cpu_seconds:.1f} s)"
    )


def table(rows: Iterable[Sequence[str]]) -> list[str]:
    """Returns the lines of a Markdown table; the first row has the titles."""
    titles, *lines = rows
    return [
        f"| {' | '.join(cells)} |"
        for cells in (titles, ["---"] * len(titles), *lines)
    ]


def paragraphs(*parts: Sequence[str]) -> str:
    """Joins lists of lines into Markdown with blank lines between the lists."""
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def section(comparison: Comparison) -> str:
    """Returns everything that was measured, in Markdown."""
    return paragraphs(
        [f"## {comparison.title}"],
        ["```sh", comparison.command, "```"],
        list(_circumstances(comparison)),
        table(_rows(comparison)),
    )


def _circumstances(comparison: Comparison) -> Iterator[str]:
    yield f"- {comparison.machine}"
    yield from (f"- {fact}" for fact in comparison.facts)
    yield ROUNDS
    packages = {
        f"{name} {version}": None
        for versions in comparison.versions.values()
        for name, version in versions.items()
    }
    yield f"- {', '.join(packages)}"
    for side, reason in comparison.left_out.items():
        yield f"- Not measured: {comparison.titles[side]}: {reason}"


def _rows(comparison: Comparison) -> Iterator[list[str]]:
    """Yields the titles, then a row for each side of each case."""
    columns = [
        name
        for name in COLUMNS
        if any(turn.more.get(name) for turn in comparison.turns)
    ]
    yield [
        *("", "side", "rounds (timed)", comparison.unit),
        *(COLUMNS[name][0] for name in columns),
        "bert_tf is times as fast",
    ]
    for case in comparison.cases:
        ours = comparison.rates(case, OURS)
        for side in comparison.sides(case):
            turns = comparison.of(case, side)
            rates = comparison.rates(case, side)
            numbers = rates
            if comparison.unit == "s":
                numbers = [1 / rate for rate in rates]
            cells = []
            for name in columns:
                _, unit, form = COLUMNS[name]
                found = comparison.more(case, side, name)
                cells.append(
                    format(np.median(found) / unit, form) if found else ""
                )
            yield [
                case,
                comparison.titles[side],
                f"{len(turns)} ({sum(turn.is_timed for turn in turns)})",
                spread(numbers),
                *cells,
                ratio_cell(ours, rates) if side != OURS and ours else "",
            ]


def write_section(page: str, name: str, text: str) -> None:
    """Replaces a section of a Markdown page, which is between two comments.

    <!-- corpus: benchmarks/corpus_scale.py writes this section -->
    ...
    <!-- end of corpus -->
    """
    pattern = re.compile(
        rf"(<!-- {re.escape(name)}:[^\n]*-->\n).*?"
        rf"(?=<!-- end of {re.escape(name)} -->)",
        re.DOTALL,
    )
    old = files.read_text(page)
    new, count = pattern.subn(lambda m: f"{m[1]}\n{text.strip()}\n\n", old)
    if count != 1:
        raise in_file(
            page,
            f"expected one section from <!-- {name}: ... --> to <!-- end of "
            f"{name} -->, found {count}.",
        )
    files.write_text(page, new)


def publish(text: str, page: str | None, name: str) -> None:
    """Prints a section, and writes it to a page if there is one."""
    print(text)
    if page:
        write_section(page, name, text)


if __name__ == "__main__":
    results, *where = sys.argv[1:]
    publish(section(Comparison.read(results)), *(where or (None, "")))
