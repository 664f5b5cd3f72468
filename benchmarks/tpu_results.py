"""What was compiled for TPUs, and what is to be tried next.

Batches are powers of two. A step's memory grows evenly with its batch, and is
nearly the same on every kind of chip. So the first batch to try is the one that
a like program lets one expect to fit. What does not fit the compiler alone can
say: where memory is short it computes things twice, and what was to be 20 GiB
becomes 15.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from results_file import ResultsFile

# Of a first program, where nothing is known of such a step.
FIRST_TOKENS = 8192
# How far a line is trusted: up to so many times the largest batch that fitted.
REACH = 8


@dataclasses.dataclass(frozen=True)
class Case:
    """A step on a chip.

    Attributes:
      task: One of `tpu_steps.TASKS`.
      kind: One of `tpu_steps.STEPS`.
      model: Its size, a name that `BertConfig.from_name` knows.
      max_seq_length: Places of a sequence.
      chip: One of `tpu_chips.CHIPS`.
    """

    task: str
    kind: str
    model: str
    max_seq_length: int
    chip: str


@dataclasses.dataclass(frozen=True)
class Trial:
    """One answer of the compiler.

    Attributes:
      case: What was compiled.
      batch_size: Examples of a chip.
      memory: Bytes by what they are for, as `tpu_compiler.Memory` has them;
        None if they are too many.
      available: Bytes that the compiler had.
      seconds: CPU time of everything.
    """

    case: Case
    batch_size: int
    memory: dict[str, int] | None
    available: int
    seconds: float

    @property
    def total(self) -> int | None:
        return None if self.memory is None else sum(self.memory.values())


@dataclasses.dataclass
class Results(ResultsFile):
    """A file of results.

    Attributes:
      versions: Of the packages that decide them.
      chips: How many share a batch: their sums are in the programs.
    """

    versions: dict[str, str]
    chips: int
    trials: list[Trial] = dataclasses.field(default_factory=list)

    def of(self, case: Case) -> dict[int, int | None]:
        """From the batches that were tried to bytes; None for too many."""
        return {
            trial.batch_size: trial.total
            for trial in self.trials
            if trial.case == case
        }

    def largest(self, case: Case) -> Trial | None:
        """The largest batch that fits, of those that were tried."""
        fitting = [t for t in self.trials if t.case == case and t.memory]
        return max(fitting, key=lambda trial: trial.batch_size, default=None)

    def next_batch_size(self, case: Case, available: int) -> int | None:
        """The batch to try next.

        Args:
          case: The step.
          available: Bytes of its chip.

        Returns:
          None if all is known: the compiler refused twice the largest batch.
        """
        tried = self.of(case)
        fits = max((n for n, total in tried.items() if total), default=0)
        refused = min((n for n, total in tried.items() if not total), default=0)
        if refused and refused <= max(1, 2 * fits):
            return None
        like = self._like(case)
        if not like:
            return refused // 2 or max(1, FIRST_TOKENS // case.max_seq_length)
        line = _line(like)
        end = refused or REACH * max(like) + 1
        sizes = [2**n for n in range(17) if fits < 2**n < end]
        likely = [size for size in sizes if line(size) <= available]
        return max(likely, default=sizes[0] if fits else sizes[-1])

    def expected_batch_size(self, case: Case, available: int) -> int | None:
        """What like programs say of a step that was not compiled."""
        if not self._like(case):
            return None
        return self.next_batch_size(case, available)

    def _like(self, case: Case) -> dict[int, Trial]:
        """Programs of such a step, by batch: this chip's before others'."""
        fitting = [
            trial
            for trial in self.trials
            if trial.memory
            and dataclasses.replace(trial.case, chip=case.chip) == case
        ]
        fitting.sort(key=lambda trial: trial.case == case)
        return {trial.batch_size: trial for trial in fitting}

    def available(self, chip: str) -> int | None:
        """What the compiler has of a chip's memory, if it was asked."""
        told = (t.available for t in self.trials if t.case.chip == chip)
        return next(told, None)

    @classmethod
    def parts_of(cls, fields: dict[str, Any]) -> dict[str, Any]:
        trials = [
            Trial(**{**trial, "case": Case(**trial["case"])})
            for trial in fields["trials"]
        ]
        return {"trials": trials}


def _line(like: Mapping[int, Trial]) -> Callable[[int], float]:
    """From a batch to bytes, by the smallest program that is known.

    It is a little too much: gradients do not grow with the batch. A second
    program may be one that computes things twice.
    """
    size = min(like)
    smallest = like[size]
    slope = smallest.memory["temporaries"] / size
    return lambda batch_size: smallest.total + slope * (batch_size - size)
