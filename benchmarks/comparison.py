"""Trainings side by side: what is kept of them, and the sums over the seeds."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from results_file import ResultsFile
from timed import Spread, Timed, timed

TIMES = ("train_seconds", "seconds", "cpu_seconds")

# Which scores a task is known by.
METRICS_OF_TASK = {
    "mrpc": ("accuracy", "f1"),
    "sst-2": ("accuracy",),
    "sts-b": ("pearson", "spearman"),
    "squad": ("exact_match", "f1"),
}


@dataclasses.dataclass(frozen=True)
class Settings:
    """What all sides are given.

    Attributes:
      task_name: One of METRICS_OF_TASK.
      data_dir: Folder of train_file and dev_file.
      init_checkpoint: Folder of the weights, in Hugging Face's layout.
      num_threads: Cores that a side may use.
    """

    task_name: str
    data_dir: str
    init_checkpoint: str
    max_seq_length: int = 128
    train_batch_size: int = 32
    eval_batch_size: int = 8
    learning_rate: float = 5e-5
    num_train_epochs: float = 3.0
    num_threads: int = 2
    train_file: str = "train.tsv"
    dev_file: str = "dev.tsv"

    @property
    def metrics(self) -> tuple[str, ...]:
        return METRICS_OF_TASK[self.task_name]


@dataclasses.dataclass(frozen=True)
class Run(Timed):
    """One training by one side.

    Attributes:
      side: Which; a key of sides.SIDES.
      seed: Of the head's weights, the order of the examples and dropout.
      scores: Metric -> score on dev_file, from 0 to 1.
      eval_loss: On dev_file; None where a task is not told it.
      global_step: Updates that were made.
      train_seconds: The training alone.
      seconds: The whole command, from its start to its end.
      cpu_seconds: The same, of all cores.
      other_cpu_seconds: What other programs took meanwhile.
      peak_bytes: Memory.
    """

    side: str
    seed: int
    scores: dict[str, float]
    eval_loss: float | None
    global_step: int
    train_seconds: float
    seconds: float
    cpu_seconds: float
    other_cpu_seconds: float
    peak_bytes: int


@dataclasses.dataclass(frozen=True)
class CrossCheck:
    """The peer's trained model on dev_file, evaluated by both sides.

    Attributes:
      seed: Of its training.
      ours: Metric, or eval_loss, -> what our script says.
      theirs: The same as the peer says.
    """

    seed: int
    ours: dict[str, float]
    theirs: dict[str, float]


@dataclasses.dataclass
class Comparison(ResultsFile):
    """A file of results: runs with the same settings on one machine.

    Attributes:
      command: The command line that made it.
      versions: Side -> package -> version.
    """

    command: str
    settings: Settings
    machine: dict[str, str]
    versions: dict[str, dict[str, str]] = dataclasses.field(
        default_factory=dict
    )
    runs: list[Run] = dataclasses.field(default_factory=list)
    cross_check: CrossCheck | None = None

    @property
    def sides(self) -> list[str]:
        """Those with runs: "ours", if it has, then in the order of the first.

        The others are what the first is compared with.
        """
        names = dict.fromkeys(run.side for run in self.runs)
        return sorted(names, key=lambda name: name != "ours")

    def of(self, side: str) -> list[Run]:
        return [run for run in self.runs if run.side == side]

    def has(self, side: str, seed: int) -> bool:
        return any(run.seed == seed for run in self.of(side))

    @classmethod
    def parts_of(cls, fields: dict[str, Any]) -> dict[str, Any]:
        check = fields["cross_check"]
        return {
            "settings": Settings(**fields["settings"]),
            "runs": [Run(**run) for run in fields["runs"]],
            "cross_check": check and CrossCheck(**check),
        }


def spread_of(runs: Sequence[Run], what: str) -> Spread:
    """Of an attribute of the runs, or of a score by its metric's name.

    Times are those of the runs that were alone on the machine.
    """
    if what in TIMES:
        runs = timed(runs)
    return Spread.of(
        run.scores[what] if what in run.scores else getattr(run, what)
        for run in runs
    )


def ratio(ours: Sequence[Run], theirs: Sequence[Run], what: str) -> float:
    """Our median over theirs: below 1 where ours is less."""
    return spread_of(ours, what).median / spread_of(theirs, what).median
