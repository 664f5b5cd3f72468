"""What was compiled for TPUs, and what is to be tried next.

Batches are powers of two. A step's memory grows nearly evenly with its batch,
and is nearly the same on every kind of chip. So the first batch to try is the
one that the line through like programs says will fit, and where that line says
that twice a batch would need clearly more than there is, the compiler is not
asked: a program costs it minutes.
"""

import dataclasses
import json
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, Self

# Of a first program, where nothing is known of such a step.
FIRST_TOKENS = 8192
# The compiler saves memory where there is too little, by computing things
# twice. Beyond so many times what there is it is not asked.
CLEARLY = 1.25
# How far a line is trusted: up to so many times the largest batch on it.
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
class Results:
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
          None if all is known: the compiler refused twice the largest batch,
          or a line says that it would.
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
        if fits and len(like) > 1 and line(2 * fits) > CLEARLY * available:
            return None
        end = refused or REACH * max(like) + 1
        sizes = [2**n for n in range(17) if fits < 2**n < end]
        likely = [size for size in sizes if line(size) <= available]
        return max(likely, default=sizes[0] if fits else sizes[-1])

    def expected_batch_size(self, case: Case, available: int) -> int | None:
        """What a line says of a step that was not compiled for its chip."""
        if len(self._like(case)) < 2:
            return None
        return self.next_batch_size(case, available)

    def is_refused(self, case: Case) -> bool:
        """Whether the compiler itself refused twice the largest batch."""
        trial, tried = self.largest(case), self.of(case)
        larger = 2 * trial.batch_size if trial else 1
        return larger in tried

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

    def write(self, path: pathlib.Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(dataclasses.asdict(self), indent=1)
        path.write_text(text + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: pathlib.Path) -> Self:
        fields: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        trials = [
            Trial(**{**trial, "case": Case(**trial["case"])})
            for trial in fields.pop("trials")
        ]
        return cls(trials=trials, **fields)


def _line(like: Mapping[int, Trial]) -> Callable[[int], float]:
    """From a batch to bytes, by the two largest programs that are known."""
    *others, size = sorted(like)
    largest = like[size]
    if others:
        total = like[others[-1]].total
        slope = (largest.total - total) / (size - others[-1])
    else:
        # A little too much: gradients do not grow with the batch.
        slope = largest.memory["temporaries"] / size
    return lambda batch_size: largest.total + slope * (batch_size - size)
