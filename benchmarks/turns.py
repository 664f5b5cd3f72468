"""Sides in turn: the rounds of a benchmark, what is kept of them, the sums.

The side called "ours" is compared with all the others.
"""

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, Self

import measured
from results_file import ResultsFile, command_line
from timed import Spread, Timed, timed

OURS = "ours"


class Side(Protocol):
    """Who does the work, as `Answerer` and `Command` do."""

    versions: dict[str, str]

    def ask(self, request: Any) -> dict[str, Any]:
        """See `Case.requests`."""


@dataclasses.dataclass(frozen=True)
class Case:
    """Some work that sides are given.

    Attributes:
      name: For the readers of the results.
      amount: How much work it is, in the unit of the comparison.
      requests: Side -> what it is asked; its reply says how many "times" it
        did the work, and the "seconds" and "cpu_seconds" of all of them.
      aims: Side -> how many times as fast ours should be.
    """

    name: str
    amount: float
    requests: Mapping[str, Any]
    aims: Mapping[str, float]


@dataclasses.dataclass(frozen=True)
class Turn(Timed):
    """A case by one side.

    Attributes:
      case: Its name.
      side: Which.
      amount: How much work was done.
      seconds: What it took.
      cpu_seconds: The same, of all cores.
      other_cpu_seconds: What other programs took meanwhile.
      peak_bytes: Memory; None where it is not measured.
      share: Of what the machine can do; None where nobody knows.
      peak_flops: What it can do: FLOP/s of large products, just before.
    """

    case: str
    side: str
    amount: float
    seconds: float
    cpu_seconds: float
    other_cpu_seconds: float
    peak_bytes: int | None = None
    share: float | None = None
    peak_flops: float | None = None

    @property
    def rate(self) -> float:
        """Work in a second."""
        return self.amount / self.seconds


@dataclasses.dataclass
class Comparison(ResultsFile):
    """A file of results: rounds on one machine.

    Attributes:
      title: Of the section that shows them.
      command: The command line that made it.
      unit: Of a rate: what is done in a second. With `shows_seconds`, of the
        time that it takes.
      titles: Side -> what readers call it, in their order.
      machine: See `measured.machine`.
      facts: Sentences about what all sides were given.
      aims: Case -> side -> how many times as fast ours should be.
      versions: Side -> package -> version.
      left_out: Side -> why it was not measured.
      shows_seconds: Whether readers see times in the place of rates.
    """

    title: str
    command: str
    unit: str
    titles: dict[str, str]
    machine: dict[str, str]
    facts: list[str] = dataclasses.field(default_factory=list)
    aims: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    versions: dict[str, dict[str, str]] = dataclasses.field(
        default_factory=dict
    )
    left_out: dict[str, str] = dataclasses.field(default_factory=dict)
    turns: list[Turn] = dataclasses.field(default_factory=list)
    shows_seconds: bool = False

    @classmethod
    def begin(
        cls, title: str, unit: str, titles: Mapping[str, str], **more: Any
    ) -> Self:
        """A new one, of this command on this machine."""
        return cls(
            title,
            command_line(),
            unit,
            dict(titles),
            measured.machine(),
            **more,
        )

    @property
    def cases(self) -> list[str]:
        return list(dict.fromkeys(turn.case for turn in self.turns))

    def sides(self, case: str) -> list[str]:
        """Those that took their turns, in the order of their titles."""
        found = {turn.side for turn in self.turns if turn.case == case}
        return [side for side in self.titles if side in found]

    def of(self, case: str, side: str) -> list[Turn]:
        return [t for t in self.turns if (t.case, t.side) == (case, side)]

    def spread(self, case: str, side: str) -> Spread:
        """Of the rates of the rounds in which nothing else ran, or of all.

        The latter if there is none.
        """
        return Spread.of(turn.rate for turn in timed(self.of(case, side)))

    def median(self, case: str, side: str, what: str) -> float | None:
        """Of `peak_bytes`, `share` or `peak_flops`, where it is known."""
        turns = timed(self.of(case, side))
        known = [n for n in (getattr(t, what) for t in turns) if n is not None]
        return statistics.median(known) if known else None

    def times_as_fast(self, case: str, side: str) -> float:
        """Our median rate over that of a side."""
        ours, theirs = (self.spread(case, name) for name in (OURS, side))
        return ours.median / theirs.median

    @classmethod
    def parts_of(cls, fields: dict[str, Any]) -> dict[str, Any]:
        return {"turns": [Turn(**turn) for turn in fields["turns"]]}


def take(
    comparison: Comparison,
    cases: Sequence[Case],
    sides: Mapping[str, Side],
    rounds: int,
    keep: Callable[[Turn], None],
) -> None:
    """Lets all sides do all cases, in turn, round by round.

    Args:
      comparison: Where the turns go.
      cases: The work.
      sides: Those at work; others are passed over.
      rounds: How often.
      keep: Told of each turn.
    """
    comparison.versions |= {name: side.versions for name, side in sides.items()}
    comparison.aims |= {case.name: dict(case.aims) for case in cases}
    for number in range(rounds):
        for case in cases:
            names = [name for name in sides if name in case.requests]
            for name in in_turn(names, number):
                busy = measured.busy_seconds()
                reply = sides[name].ask(case.requests[name])
                busy = measured.busy_seconds() - busy
                turn = Turn(
                    case.name,
                    name,
                    case.amount * reply["times"],
                    reply["seconds"],
                    reply["cpu_seconds"],
                    max(0.0, busy - reply["request_cpu_seconds"]),
                    reply.get("peak_bytes"),
                    reply.get("share"),
                    reply.get("peak_flops"),
                )
                comparison.turns.append(turn)
                keep(turn)


def in_turn(names: Sequence[str], number: int) -> list[str]:
    """Another one begins each time: the machine may get slower, or faster."""
    first = number % len(names)
    return [*names[first:], *names[:first]]
