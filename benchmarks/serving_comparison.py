"""Answers side by side: what benchmarks/serving.py keeps, and its sums."""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from results_file import ResultsFile
from timed import Spread, Timed, timed

# Texts of a request: of one user who waits, and of many at once.
ONE, MANY = 1, 32


@dataclasses.dataclass(frozen=True)
class Settings:
    """What all sides are given.

    Attributes:
      data_file: Where the texts are from.
      column: Which column of it, by its title.
      num_texts: How many of its first.
      init_checkpoint: Folder of the weights, in Hugging Face's layout.
      max_seq_length: Longest sequence, in pieces.
      num_threads: Cores that a side may use.
    """

    data_file: str
    column: str
    num_texts: int
    init_checkpoint: str
    max_seq_length: int = 128
    num_threads: int = 2


@dataclasses.dataclass(frozen=True)
class Round(Timed):
    """All texts once, by one side, in batches of one size.

    Attributes:
      side: Which; a key of serving_sides.SIDES.
      batch_size: Texts of a batch.
      num_texts: Of all batches.
      seconds: Of all batches, from strings to labels.
      median_seconds: Of a batch.
      p90_seconds: Nine of ten batches took no more.
      cpu_seconds: Of all batches, of all cores.
      other_cpu_seconds: What other programs took meanwhile.
    """

    side: str
    batch_size: int
    num_texts: int
    seconds: float
    median_seconds: float
    p90_seconds: float
    cpu_seconds: float
    other_cpu_seconds: float

    @classmethod
    def of(
        cls,
        side: str,
        batches: Sequence[Sequence[str]],
        reply: Mapping[str, Any],
        busy_seconds: float,
    ) -> Self:
        """From what peers/answering.py says, and the CPU time of everybody."""
        seconds, cpu_seconds = reply["seconds"], reply["cpu_seconds"]
        return cls(
            side=side,
            batch_size=len(batches[0]),
            num_texts=sum(map(len, batches)),
            seconds=sum(seconds),
            median_seconds=statistics.median(seconds),
            p90_seconds=p90(seconds),
            cpu_seconds=cpu_seconds,
            other_cpu_seconds=max(0.0, busy_seconds - cpu_seconds),
        )

    @property
    def texts_per_second(self) -> float:
        return self.num_texts / self.seconds


@dataclasses.dataclass(frozen=True)
class Agreement:
    """The answers of a side beside those of the first.

    Attributes:
      other_labels: How many texts have another label.
      largest_difference: Of a probability.
    """

    other_labels: int
    largest_difference: float

    @classmethod
    def of(cls, one: Mapping[str, Any], other: Mapping[str, Any]) -> Self:
        """Of two replies of peers/answering.py to the same texts."""
        differences = np.subtract(one["probabilities"], other["probabilities"])
        return cls(
            sum(map(str.__ne__, one["labels"], other["labels"])),
            float(np.abs(differences).max()),
        )


@dataclasses.dataclass
class Comparison(ResultsFile):
    """A file of results.

    Attributes:
      command: The command line that made it.
      versions: Side -> package -> version, in the order of the sides.
      agreement: Side -> its answers beside those of the first side.
      left_out: Side -> why it was not measured.
    """

    command: str
    settings: Settings
    machine: dict[str, str]
    versions: dict[str, dict[str, str]] = dataclasses.field(
        default_factory=dict
    )
    agreement: dict[str, Agreement] = dataclasses.field(default_factory=dict)
    left_out: dict[str, str] = dataclasses.field(default_factory=dict)
    rounds: list[Round] = dataclasses.field(default_factory=list)

    @property
    def sides(self) -> list[str]:
        return list(self.versions)

    def of(self, side: str, batch_size: int) -> list[Round]:
        return [
            turn
            for turn in self.rounds
            if (turn.side, turn.batch_size) == (side, batch_size)
        ]

    def spread(self, side: str, batch_size: int, what: str) -> Spread:
        """Of an attribute of the rounds in which nothing else ran, or of all.

        The latter if there is none.
        """
        rounds = timed(self.of(side, batch_size))
        return Spread.of(getattr(turn, what) for turn in rounds)

    def times_as_fast(self, one: str, other: str, batch_size: int) -> float:
        """How often `one` has answered when `other` has once.

        By the medians: of texts a second, or of what a batch of one takes.
        """
        if batch_size == ONE:
            one, other, what = other, one, "median_seconds"
        else:
            what = "texts_per_second"
        return (
            self.spread(one, batch_size, what).median
            / self.spread(other, batch_size, what).median
        )

    @classmethod
    def parts_of(cls, fields: dict[str, Any]) -> dict[str, Any]:
        agreement = fields["agreement"].items()
        return {
            "settings": Settings(**fields["settings"]),
            "agreement": {side: Agreement(**row) for side, row in agreement},
            "rounds": [Round(**row) for row in fields["rounds"]],
        }


def p90(numbers: Sequence[float]) -> float:
    """The least number that nine of ten do not exceed."""
    return sorted(numbers)[-(len(numbers) // 10) - 1]
