"""The largest batch of each kind of TPU, according to its compiler.

    python benchmarks/tpu_compile.py --output=build/tpu.json \\
        --page=docs/scale.md

compiles the steps of the scripts with the compiler of TPUs (tpu_program.py), on
a machine without a TPU: BERT-Base and Large, bfloat16, a slice of four chips.
It searches for the largest batch that fits into a chip, then compiles
prediction with that batch. Every answer is kept in --output: rerun the command
to go on. A program takes some minutes of one core and up to 10 GB.
"""

import dataclasses
import importlib.metadata
import itertools
import json
import pathlib
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from comparison import (
    ReportOptions,
    paragraphs,
    publish,
    require_known,
    table,
)
from sides import BENCHMARKS, run_command

from bert_tf import cli, files
from bert_tf.errors import InputError, in_file
from bert_tf.options import option

GIB = 2**30
# Chip -> bytes of its HBM.
MEMORY = {"v4": 32 * GIB, "v5e": 16 * GIB, "v5p": 95 * GIB, "v6e": 32 * GIB}
# The packages whose versions decide the answers.
PACKAGES = ("tensorflow", "keras", "jax", "libtpu")
TITLES = {
    "pretraining": "pre-training, 15 % of the tokens masked",
    "packed_pretraining": "pre-training, packed",
    "classification": "fine-tuning, a class for each text",
    "multiple_choice": "fine-tuning, four choices each",
    "spans": "fine-tuning, answers in a text",
    "tokens": "fine-tuning, a tag for each token",
}
# What the tables show.
TASKS = ("pretraining", "classification")
KINDS = ("training", "prediction")
MODELS = ("base", "large")
LENGTHS = ("128", "512")
# The tokens of the first batch that is tried.
FIRST_TOKENS = 8192
# A line is trusted up to this many times the largest batch that fits.
REACH = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class TpuConfig(ReportOptions):
    """Options of this benchmark."""

    output: str = option("JSON file of the answers.", default="build/tpu.json")
    tasks: tuple[str, ...] = option(
        f"Tasks: {', '.join(TITLES)}.", default=TASKS
    )
    kinds: tuple[str, ...] = option("Kinds of steps.", default=KINDS)
    models: tuple[str, ...] = option("Sizes of the model.", default=MODELS)
    lengths: tuple[str, ...] = option(
        "Lengths of the sequences.", default=LENGTHS
    )
    chips: tuple[str, ...] = option(
        "Kinds of TPU.", default=("v5e", "v6e", "v4", "v5p")
    )
    slice: int = option(
        "Number of chips that share a batch.", default=4, at_least=1, at_most=4
    )


class Case(NamedTuple):
    """A step on a kind of TPU; the fields are options of tpu_program.py."""

    task: str
    kind: str
    model: str
    max_seq_length: int
    chip: str


@dataclasses.dataclass(frozen=True)
class Trial:
    """An answer of the compiler.

    Attributes:
      case: What was compiled.
      batch_size: The number of examples per chip.
      memory: Use -> bytes; None if the program does not fit.
      available: The bytes that programs can use.
      seconds: The CPU time of the compilation.
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
    """All answers, and what they depend on.

    Batches are powers of two. The memory of a step grows linearly with its
    batch and is nearly the same on every kind of chip, so the first batch to
    try is the one that a similar program predicts to fit. Whether a larger one
    fits only the compiler knows: where memory is short it computes things
    twice, and 20 GiB may become 15.
    """

    versions: dict[str, str]
    chips: int
    trials: list[Trial] = dataclasses.field(default_factory=list)

    def write(self, path: str) -> None:
        files.makedirs(str(pathlib.Path(path).parent))
        text = json.dumps(dataclasses.asdict(self), indent=1)
        files.write_text(path, text + "\n")

    @classmethod
    def read(cls, path: str) -> "Results":
        values = files.read_json(path)
        trials = [
            Trial(**{**trial, "case": Case(*trial["case"])})
            for trial in values.pop("trials")
        ]
        return cls(**values, trials=trials)

    def of(self, case: Case) -> dict[int, int | None]:
        """Returns the batches that were tried, with their bytes or None."""
        return {t.batch_size: t.total for t in self.trials if t.case == case}

    def largest(self, case: Case) -> Trial | None:
        fitting = [t for t in self.trials if t.case == case and t.memory]
        return max(fitting, key=lambda trial: trial.batch_size, default=None)

    def available(self, chip: str) -> int:
        """Returns the bytes for programs, as the compiler says if known."""
        found = (t.available for t in self.trials if t.case.chip == chip)
        return next(found, MEMORY[chip])

    def next_batch_size(self, case: Case) -> int | None:
        """Returns the batch to try next, or None if the largest is known."""
        tried = self.of(case)
        fits = max((n for n, total in tried.items() if total), default=0)
        refused = min((n for n, total in tried.items() if not total), default=0)
        if refused and refused <= max(1, 2 * fits):
            return None
        similar = self._similar(case)
        if not similar:
            return refused // 2 or max(1, FIRST_TOKENS // case.max_seq_length)
        predicted = _line(similar)
        end = refused or REACH * max(similar) + 1
        sizes = [2**n for n in range(17) if fits < 2**n < end]
        available = self.available(case.chip)
        likely = [size for size in sizes if predicted(size) <= available]
        return max(likely, default=sizes[0] if fits else sizes[-1])

    def expected(self, case: Case) -> int | None:
        """Returns the batch that similar programs predict, if there are any."""
        return self.next_batch_size(case) if self._similar(case) else None

    def _similar(self, case: Case) -> dict[int, Trial]:
        """Returns programs of the step by batch, preferring the same chip."""
        fitting = [
            trial
            for trial in self.trials
            if trial.memory and trial.case._replace(chip=case.chip) == case
        ]
        fitting.sort(key=lambda trial: trial.case == case)
        return {trial.batch_size: trial for trial in fitting}


def _line(similar: dict[int, Trial]) -> Callable[[int], float]:
    """Returns a function from a batch to bytes, from the smallest program.

    It is slightly too high: gradients do not grow with the batch. A larger
    program may be one that computes things twice.
    """
    size = min(similar)
    smallest = similar[size]
    slope = smallest.memory["temporaries"] / size
    return lambda batch_size: smallest.total + slope * (batch_size - size)


def run(config: TpuConfig) -> Results:
    """Runs the benchmark."""
    require_known("tasks", config.tasks, TITLES)
    require_known("kinds", config.kinds, KINDS)
    require_known("chips", config.chips, MEMORY)
    results = begin(config)
    for task, kind in itertools.product(config.tasks, config.kinds):
        # The columns of the table's first row come first.
        for length, model, chip in itertools.product(
            map(int, config.lengths), config.models, config.chips
        ):
            case = Case(task, kind, model, length, chip)
            if kind == "training":
                while size := results.next_batch_size(case):
                    ask(config, results, case, size)
            else:
                largest = results.largest(case._replace(kind="training"))
                if largest and not results.of(case):
                    ask(config, results, case, largest.batch_size)
    publish(section(results), config.page, "tpu")
    return results


def begin(config: TpuConfig) -> Results:
    """Returns the answers in --output, or none.

    Raises:
      InputError: They are of other packages or another slice.
    """
    try:
        versions = {name: importlib.metadata.version(name) for name in PACKAGES}
    except importlib.metadata.PackageNotFoundError as error:
        raise InputError(
            f"{error.name} is not installed. `make tpu` installs the packages "
            "of tests/backends/tf220.txt."
        ) from None
    if not files.exists(config.output):
        return Results(versions, config.slice)
    results = Results.read(config.output)
    if (results.versions, results.chips) != (versions, config.slice):
        raise in_file(
            config.output,
            f"its answers are of {results.versions} and {results.chips} chips, "
            f"not {versions} and {config.slice}. Name a new --output.",
        )
    return results


def ask(config: TpuConfig, results: Results, case: Case, size: int) -> None:
    trial = compile_one(case, size, config.slice)
    results.trials.append(trial)
    results.write(config.output)
    print(line(trial), flush=True)


def compile_one(case: Case, batch_size: int, chips: int) -> Trial:
    """Asks the compiler, in a new process: it does not free all its memory."""
    flags = {**case._asdict(), "batch_size": batch_size, "chips": chips}
    words = [f"--{name}={value}" for name, value in flags.items()]
    program = str(BENCHMARKS / "tpu_program.py")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        usage = run_command([sys.executable, program, *words], folder)
        answer = json.loads((folder / "stdout").read_text(encoding="utf-8"))
    return Trial(case, batch_size, **answer, seconds=usage["cpu_seconds"])


# The page.


def gib(size: int) -> str:
    return f"{size / GIB:.2f}"


def line(trial: Trial) -> str:
    case, answer = trial.case, "does not fit"
    if trial.memory:
        parts = (f"{name} {gib(size)}" for name, size in trial.memory.items())
        answer = f"{', '.join(parts)}: {gib(trial.total)} GiB"
    return (
        f"{case.chip}, BERT-{case.model.title()}, {case.task}, {case.kind}, "
        f"{trial.batch_size} x {case.max_seq_length}: {answer} "
        f"({trial.seconds:,.0f} s of CPU)"
    )


def section(results: Results) -> str:
    """Returns everything that was compiled, in Markdown."""
    parts = []
    for task in dict.fromkeys(trial.case.task for trial in results.trials):
        parts.append([f"Largest batch of a chip, {TITLES[task]}:"])
        parts.append(table(_largest(results, task)))
    return paragraphs(
        [
            "`make tpu` writes this. These programs never ran on a TPU: the",
            "compiler of TPUs, in libtpu, says what they take of a chip.",
        ],
        list(_circumstances(results)),
        *parts,
        ["What each program takes of a chip, in GiB:"],
        table(_programs(results)),
    )


def _circumstances(results: Results) -> Iterator[str]:
    versions = (f"{name} {text}" for name, text in results.versions.items())
    yield f"- {', '.join(versions)}; bfloat16 activations, float32 weights"
    yield (
        f"- A slice of {results.chips} chips, each with such a batch; the "
        "programs include the sums of gradients over all chips"
    )
    for chip, memory in MEMORY.items():
        if any(trial.case.chip == chip for trial in results.trials):
            yield (
                f"- {chip}: {memory / GIB:.0f} GiB, of which programs can use "
                f"{gib(results.available(chip))}"
            )
    yield (
        "- Batches are powers of two, and the compiler refused twice as many. "
        "+: it accepted this batch and was not asked for more. In brackets: an "
        "estimate from the smallest program of the step. (?): no such step was "
        "compiled"
    )
    yield (
        "- Where memory is short the compiler computes some things twice, so "
        "more may fit than smaller batches suggest"
    )
    compiled = {(trial.case.task, trial.case.kind) for trial in results.trials}
    if missing := sorted(set(itertools.product(TASKS, KINDS)) - compiled):
        words = ", ".join(f"{task} ({kind})" for task, kind in missing)
        yield f"- Not compiled at these sizes: {words}"


def _largest(results: Results, task: str) -> Iterator[list[str]]:
    yield ["model", "length", *MEMORY]
    for length, model in itertools.product(LENGTHS, MODELS):
        cases = (Case(task, "training", model, int(length), c) for c in MEMORY)
        cells = (_batch_size(results, case) for case in cases)
        yield [f"BERT-{model.title()}", length, *cells]


def _batch_size(results: Results, case: Case) -> str:
    trial = results.largest(case)
    if trial is None:
        if 1 in results.of(case):
            return "0"
        return f"({results.expected(case) or '?'})"
    return f"{trial.batch_size}{'+' if results.next_batch_size(case) else ''}"


def _programs(results: Results) -> Iterator[list[Any]]:
    yield [
        *("chip", "model", "length", "task", "step", "batch"),
        *("weights, moments", "in between", "program", "all", "of the chip"),
    ]
    for trial in results.trials:
        case, memory = trial.case, trial.memory
        sizes = ["", "", "", "refused", ""]
        if memory:
            sizes = [
                gib(memory["arguments"]),
                gib(memory["temporaries"] + memory["outputs"]),
                gib(memory["program"]),
                gib(trial.total),
                f"{trial.total / trial.available:.0%}",
            ]
        yield [
            case.chip,
            f"BERT-{case.model.title()}",
            str(case.max_seq_length),
            *(case.task, case.kind, str(trial.batch_size)),
            *sizes,
        ]


if __name__ == "__main__":
    cli.main(run)
