"""Shared by the benchmarks: options, sides that take turns, tables, pages.

A benchmark gives the same cases to several sides, round by round; a different
side begins each round. The results are printed as a section in Markdown, which
replaces a section of a page (`--page`); `--output` keeps every round as JSON.
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
from typing import Any, NamedTuple, Self

import numpy as np
from sides import busy_seconds, machine

from bert_tf.base import files
from bert_tf.base.options import Options, option
from bert_tf.errors import in_file, listed, wrong_value

# The side that the others are compared with.
OURS = "ours"
MIB = 2**20
# A round counts as undisturbed if other programs used less than this share of
# one core meanwhile. Other programs delay threads that wait for each other.
MOST_OF_OTHERS = 0.1


@dataclasses.dataclass(frozen=True, kw_only=True)
class PageOptions(Options):
    """The option of all programs that write a section of a page."""

    page: str | None = option(
        "Markdown page whose section is replaced.", default=None
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class BenchmarkOptions(PageOptions):
    """The options of the programs that compare sides."""

    output: str | None = option("JSON file of the results.", default=None)
    rounds: int = option("Number of rounds.", default=5, at_least=1)
    least_seconds: float = option("Least duration of a round.", default=2.0)
    variants: tuple[str, ...] = option(
        "Sides to measure. Default: all.", default=()
    )
    pythons: tuple[str, ...] = option(
        "Interpreters that have a peer's packages, such as "
        "huggingface=/env/bin/python; for the list peers/huggingface.txt. "
        "Other environments are created.",
        default=(),
    )

    def chosen(self, titles: Collection[str]) -> list[str]:
        """Returns the sides to measure: --variants, by default all."""
        require_known("variants", self.variants, titles)
        return [side for side in titles if side in (self.variants or titles)]


def require_known(
    flag: str, values: Iterable[str], known: Collection[str]
) -> None:
    """Raises InputError unless every value of a list is known."""
    for value in values:
        if value not in known:
            choices = listed(known, last="or")
            raise wrong_value(f"--{flag}", f"some of {choices}", value)


# Results.


class Case(NamedTuple):
    """Work that sides are given."""

    name: str  # On the page.
    amount: float  # In the unit of the comparison.
    requests: Mapping[str, Any]  # Side -> what it is asked.


@dataclasses.dataclass
class Comparison:
    """The results of a benchmark on one machine."""

    title: str
    # The unit of the amounts, per second; "s" to show seconds instead.
    unit: str
    # Side -> its name on the page, in the order of the rows.
    titles: dict[str, str]
    # Sentences about what all sides are given.
    facts: list[str] = dataclasses.field(default_factory=list)
    command: str = dataclasses.field(
        default_factory=lambda: shlex.join(["python", *sys.argv])
    )
    machine: str = dataclasses.field(default_factory=machine)
    # Side -> package -> version.
    versions: dict[str, dict[str, str]] = dataclasses.field(
        default_factory=dict
    )
    # A dict for each round of a side: "case", "side", "rate", "seconds",
    # "cpu_seconds", "other_cpu_seconds" (of other programs meanwhile) and other
    # measurements, such as "peak_bytes".
    turns: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    @classmethod
    def read(cls, path: str) -> Self:
        return cls(**files.read_json(path))

    def of(self, case: str, side: str) -> list[dict[str, Any]]:
        return [t for t in self.turns if (t["case"], t["side"]) == (case, side)]

    def values(self, case: str, side: str, name: str) -> list[float]:
        """Returns a measurement of all rounds; times, of undisturbed ones."""
        turns = self.of(case, side)
        if name == "rate" or name.endswith("seconds"):
            turns = [turn for turn in turns if is_timed(turn)] or turns
        return [turn[name] for turn in turns if name in turn]


def write_json(path: str, value: Any) -> None:
    files.makedirs(os.path.dirname(path) or ".")
    files.write_text(path, json.dumps(value, indent=1) + "\n")


def is_timed(turn: Mapping[str, Any]) -> bool:
    return turn["other_cpu_seconds"] <= MOST_OF_OTHERS * turn["seconds"]


def take_turns(
    comparison: Comparison,
    cases: Sequence[Case],
    sides: Mapping[str, Any],
    config: BenchmarkOptions,
) -> None:
    """Lets all sides do all cases in turn; prints and keeps every round.

    A side has `versions` and `ask(request)`, which returns a dict: how many
    "times" the work was done, and its "seconds" and "cpu_seconds". The optional
    "request_cpu_seconds" include work that is not timed. Other keys are more
    measurements.
    """
    comparison.versions |= {name: side.versions for name, side in sides.items()}
    for number in range(config.rounds):
        for case in cases:
            names = [name for name in sides if name in case.requests]
            for name in rotated(names, number):
                busy = busy_seconds()
                reply = dict(sides[name].ask(case.requests[name]))
                busy = busy_seconds() - busy
                own = reply.pop("request_cpu_seconds", reply["cpu_seconds"])
                amount = case.amount * reply.pop("times")
                turn = {
                    "case": case.name,
                    "side": name,
                    "rate": amount / reply["seconds"],
                    "other_cpu_seconds": max(0.0, busy - own),
                    **reply,
                }
                keep(comparison, turn, config.output)


def keep(
    comparison: Comparison, turn: dict[str, Any], output: str | None
) -> None:
    """Adds a round, prints it, and writes the file of results."""
    comparison.turns.append(turn)
    numbers = ", ".join(
        f"{name} {shown(value)}"
        for name, value in turn.items()
        if isinstance(value, float)
    )
    title = comparison.titles[turn["side"]]
    print(f"{turn['case']}: {title}: {numbers}", flush=True)
    if output:
        write_json(output, dataclasses.asdict(comparison))


def rotated(names: Sequence[str], number: int) -> list[str]:
    """Returns the names, rotated by one in every round."""
    first = number % len(names)
    return [*names[first:], *names[:first]]


# Numbers.


def spread(
    numbers: Sequence[float], form: Callable[[float], str] | None = None
) -> str:
    """Returns "MEDIAN (LEAST to MOST)", or the median if all print the same."""
    form = form or shown
    median, low, high = map(
        form, (np.median(numbers), min(numbers), max(numbers))
    )
    return median if low == high else f"{median} ({low} to {high})"


def shown(number: float) -> str:
    """Returns a number with three digits or more."""
    digits = 2 if number < 10 else 1 if number < 100 else 0
    return f"{number:,.{digits}f}"


# Pages.

# Measurement -> the title of its column, its unit and its format.
COLUMNS = {
    "accuracy": ("accuracy", 0.01, ".1f"),
    "exact_match": ("exact match", 0.01, ".1f"),
    "f1": ("F1", 0.01, ".1f"),
    "pearson": ("Pearson", 0.01, ".1f"),
    "spearman": ("Spearman", 0.01, ".1f"),
    "train_seconds": ("training, s", 1, ",.0f"),
    "median_seconds": ("median, ms", 1e-3, ",.2f"),
    "p90_seconds": ("90 % below, ms", 1e-3, ",.2f"),
    "peak_bytes": ("memory, MiB", MIB, ",.0f"),
    "peak_flops": ("matmul peak, GFLOP/s", 1e9, ",.0f"),
    "share": ("% of peak", 1, ".0%"),
}


def table(rows: Iterable[Sequence[str]]) -> list[str]:
    """Returns the lines of a Markdown table; the first row has the titles."""
    titles, *rest = rows
    rows = titles, ["---"] * len(titles), *rest
    return [f"| {' | '.join(cells)} |" for cells in rows]


def paragraphs(*parts: Sequence[str]) -> str:
    """Joins lists of lines into Markdown with blank lines between the lists."""
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def section(comparison: Comparison) -> str:
    """Returns everything that was measured, in Markdown."""
    packages = {
        f"{name} {version}": None
        for versions in comparison.versions.values()
        for name, version in versions.items()
    }
    lines = [
        comparison.machine,
        *comparison.facts,
        f"Medians (least to most) of {_rounds(comparison)}",
        ", ".join(packages),
    ]
    return paragraphs(
        [f"## {comparison.title}"],
        ["```sh", comparison.command, "```"],
        [f"- {line}" for line in lines],
        table(_rows(comparison)),
    )


def _rounds(comparison: Comparison) -> str:
    """Returns "3 rounds, 2 to 3 undisturbed"."""
    sides = {(turn["case"], turn["side"]) for turn in comparison.turns}
    turns = [comparison.of(*side) for side in sides]
    counts = [len(some) for some in turns]
    timed = [sum(map(is_timed, some)) for some in turns]
    return f"{_range(counts)} rounds, {_range(timed)} undisturbed"


def _range(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low} to {high}"


def _rows(comparison: Comparison) -> Iterator[list[str]]:
    """Yields the titles, then a row for each case with a cell for each side."""
    measured = {name for turn in comparison.turns for name in turn}
    columns = [name for name in COLUMNS if name in measured]
    names = [comparison.unit, *(COLUMNS[name][0] for name in columns)]
    sides = {turn["side"] for turn in comparison.turns}
    titles = {s: name for s, name in comparison.titles.items() if s in sides}
    yield ["; ".join([*names, "**speed-up of bert_tf**"]), *titles.values()]
    for case in dict.fromkeys(turn["case"] for turn in comparison.turns):
        yield [case, *(_cell(comparison, case, s, columns) for s in titles)]


def _cell(
    comparison: Comparison, case: str, side: str, columns: Sequence[str]
) -> str:
    """Returns what a side reached in a case; "" if it was not measured."""
    rates = comparison.values(case, side, "rate")
    if not rates:
        return ""
    is_time = comparison.unit == "s"
    numbers = [1 / rate for rate in rates] if is_time else rates
    parts = [spread(numbers)]
    parts += [column(comparison, case, side, name) or "-" for name in columns]
    ours = comparison.values(case, OURS, "rate")
    if side != OURS and ours:
        parts.append(f"**{np.median(ours) / np.median(rates):.2f}**")
    return "; ".join(parts)


def column(comparison: Comparison, case: str, side: str, name: str) -> str:
    _, unit, form = COLUMNS[name]
    values = comparison.values(case, side, name)
    return spread(values, lambda x: format(x / unit, form)) if values else ""


def publish(text: str, page: str | None, name: str) -> None:
    """Prints a section; replaces it in a page, where comments surround it.

    <!-- corpus: benchmarks/corpus_scale.py writes this section -->
    ...
    <!-- end of corpus -->
    """
    print(text)
    if not page:
        return
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


def report(
    comparison: Comparison, config: BenchmarkOptions, name: str
) -> Comparison:
    """Publishes the section of a benchmark; returns the results."""
    publish(section(comparison), config.page, name)
    return comparison
