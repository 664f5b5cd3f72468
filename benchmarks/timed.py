"""What took time on a machine that others may have used meanwhile."""

import dataclasses
import statistics
from collections.abc import Iterable, Sequence
from typing import Self, TypeVar

# Programs that wait for both cores at once take far longer if a third one has
# its share of them: what others may take of one core, while times are measured.
MOST_OF_OTHERS = 0.1


class Timed:
    """A base of dataclasses.

    Attributes:
      seconds: What it took.
      cpu_seconds: The same, of all cores.
      other_cpu_seconds: What other programs took meanwhile.
    """

    seconds: float
    cpu_seconds: float
    other_cpu_seconds: float

    @property
    def is_timed(self) -> bool:
        """Whether nothing else ran meanwhile, or next to nothing."""
        return self.other_cpu_seconds <= MOST_OF_OTHERS * self.seconds


SomeTimed = TypeVar("SomeTimed", bound=Timed)


def timed(runs: Sequence[SomeTimed]) -> list[SomeTimed]:
    """Those whose times tell something; all of them if none does."""
    return [run for run in runs if run.is_timed] or list(runs)


@dataclasses.dataclass(frozen=True)
class Spread:
    """The middle of some numbers, and how far they reach."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, numbers: Iterable[float]) -> Self:
        numbers = list(numbers)
        return cls(statistics.median(numbers), min(numbers), max(numbers))

    def __contains__(self, number: float) -> bool:
        return self.low <= number <= self.high
