"""The largest batch of each kind of TPU, according to its compiler.

    python benchmarks/tpu_compile.py --output=build/tpu.json \\
        --page=docs/reports/tpu_memory.md

compiles the steps of the scripts with the compiler of TPUs (tpu_steps.py), on a
machine without a TPU: BERT-Base and Large, bfloat16, a slice of four chips. It
searches for the largest batch, a power of two, that fits into a chip, then
compiles prediction with that batch. Every answer is kept in --output: rerun the
command to resume. A program takes several minutes on one core and up to 10 GB.
"""

import dataclasses
import importlib.metadata
import itertools
import json
import pathlib
import sys
import tempfile
from collections.abc import Iterator
from typing import NamedTuple

import comparison
import sides

from bert_tf import cli
from bert_tf.base import files
from bert_tf.base.options import option
from bert_tf.errors import InputError, in_file

GIB = 2**30
# Chip -> bytes of its HBM.
MEMORY = {"v4": 32 * GIB, "v5e": 16 * GIB, "v5p": 95 * GIB, "v6e": 32 * GIB}
# The packages whose versions decide the answers.
PACKAGES = ("tensorflow", "keras", "jax", "libtpu")
TITLES = {
    "pretraining": "pre-training, 15 % of the tokens masked",
    "packed_pretraining": "pre-training, packed",
    "classification": "fine-tuning a text classifier",
    "multiple_choice": "fine-tuning, four choices each",
    "spans": "fine-tuning, answers in a text",
    "tokens": "fine-tuning, a tag for each token",
}
# Prints the answer for the arguments of `tpu_steps.memory_of`.
PROGRAM = """
import json, sys
sys.path.append(sys.argv[1])
import tpu_steps
print(json.dumps(tpu_steps.memory_of(*json.loads(sys.argv[2]))))
"""
# The tokens of the first batch that is tried.
FIRST_TOKENS = 8192


@dataclasses.dataclass(frozen=True, kw_only=True)
class TpuConfig(comparison.PageOptions):
    """Options of this benchmark."""

    output: str = option("JSON file of the answers.", default="build/tpu.json")
    tasks: tuple[str, ...] = option(
        f"Tasks, of {', '.join(TITLES)}.",
        default=("pretraining", "classification"),
    )
    models: tuple[str, ...] = option(
        "Sizes of the model.", default=("base", "large")
    )
    lengths: tuple[str, ...] = option(
        "Lengths of the sequences.", default=("128", "512")
    )
    chips: tuple[str, ...] = option(
        "Kinds of TPU.", default=("v5e", "v6e", "v4", "v5p")
    )


class Case(NamedTuple):
    """A step, "training" or "prediction", on a kind of TPU."""

    task: str
    kind: str
    model: str
    length: int
    chip: str


class Trial(NamedTuple):
    """An answer of the compiler."""

    case: Case
    batch_size: int  # Per chip.
    memory: dict[str, int] | None  # Use -> bytes; None if it does not fit.
    available: int  # The bytes that programs can use.


class Answers:
    """All answers of the compiler, which are kept in a file.

    Raises:
      InputError: A package is missing, or the file is of other versions.
    """

    def __init__(self, path: str):
        self._path = path
        try:
            self.versions = {p: importlib.metadata.version(p) for p in PACKAGES}
        except importlib.metadata.PackageNotFoundError as error:
            raise InputError(
                f"{error.name} is not installed. `make tpu` installs the "
                "packages of tests/backends/tf220.txt."
            ) from None
        self.trials: list[Trial] = []
        if files.exists(path):
            kept = files.read_json(path)
            if kept["versions"] != self.versions:
                raise in_file(
                    path,
                    f"its answers are of {kept['versions']}, not "
                    f"{self.versions}. Pass a new --output.",
                )
            self.trials = [
                Trial(Case(*c), *rest) for c, *rest in kept["trials"]
            ]

    def fits(self, case: Case, batch_size: int) -> bool:
        """Asks the compiler, unless the file has the answer."""
        known = {trial[:2]: trial for trial in self.trials}
        trial = known.get((case, batch_size))
        if trial is None:
            trial = compile_one(case, batch_size)
            print(*trial, flush=True)
            self.trials.append(trial)
            kept = {"versions": self.versions, "trials": self.trials}
            comparison.write_json(self._path, kept)
        return trial.memory is not None

    def search(self, case: Case) -> int:
        """Returns the largest batch that fits; 0 if none does.

        Only the compiler knows whether a larger one fits: where memory is
        short it computes things twice, and 20 GiB may become 15.
        """
        size = self._first(case)
        if self.fits(case, size):
            while self.fits(case, 2 * size):
                size *= 2
            return size
        while size and not self.fits(case, size):
            size //= 2
        return size

    def _first(self, case: Case) -> int:
        """Returns the batch to try first, by the answers for other chips."""
        for chip, memory in MEMORY.items():
            if found := self.largest(case._replace(chip=chip)):
                share = found.batch_size * MEMORY[case.chip] // memory
                return 2 ** max(0, share.bit_length() - 1)
        return max(1, FIRST_TOKENS // case.length)

    def largest(self, case: Case) -> Trial | None:
        fitting = [t for t in self.trials if t.case == case and t.memory]
        return max(fitting, key=lambda trial: trial.batch_size, default=None)


def run(config: TpuConfig) -> Answers:
    """Runs the benchmark."""
    comparison.require_known("tasks", config.tasks, TITLES)
    comparison.require_known("chips", config.chips, MEMORY)
    answers = Answers(config.output)
    for task, length, model, chip in itertools.product(
        config.tasks, map(int, config.lengths), config.models, config.chips
    ):
        case = Case(task, "training", model, length, chip)
        if size := answers.search(case):
            answers.fits(case._replace(kind="prediction"), size)
    comparison.publish(section(answers), config.page, "tpu")
    return answers


def compile_one(case: Case, batch_size: int) -> Trial:
    """Asks the compiler, in a new process: it does not free all its memory."""
    request = str(sides.BENCHMARKS), json.dumps([*case, batch_size])
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        sides.run_command([sys.executable, "-c", PROGRAM, *request], folder)
        answer = json.loads((folder / "stdout").read_text(encoding="utf-8"))
    return Trial(case, batch_size, **answer)


# The page.


def gib(size: int) -> str:
    return f"{size / GIB:.2f}"


def section(answers: Answers) -> str:
    """Returns the largest batches that were compiled, in Markdown."""
    versions = (f"{name} {text}" for name, text in answers.versions.items())
    lines = [
        f"{', '.join(versions)}; bfloat16 activations, float32 weights",
        "Compiled for 4 chips; batch sizes are per chip, and each program "
        "includes the sum of the gradients over the chips",
    ]
    available = {trial.case.chip: trial.available for trial in answers.trials}
    for chip, size in sorted(available.items()):
        lines.append(
            f"{chip}: {MEMORY[chip] / GIB:.0f} GiB nominal, {gib(size)} usable "
            "by programs"
        )
    lines += [
        "Batch sizes are powers of two; the next larger one did not compile",
        "If memory is short, the compiler recomputes values instead of storing "
        "them, so memory is not proportional to the batch size",
    ]
    parts = []
    for task in dict.fromkeys(trial.case.task for trial in answers.trials):
        parts.append(
            [
                f"Largest batch per chip, {TITLES[task]}; in brackets, the "
                "share of the usable memory that it needs:"
            ]
        )
        parts.append(comparison.table(_largest(answers, task)))
    return comparison.paragraphs(
        [f"- {line}" for line in lines],
        *parts,
    )


def _cell(trial: Trial) -> str:
    share = sum((trial.memory or {}).values()) / trial.available
    return f"{trial.batch_size} ({share:.0%})"


def _largest(answers: Answers, task: str) -> Iterator[list[str]]:
    yield ["model", "length", *MEMORY]
    cases = [t.case for t in answers.trials if t.case.task == task]
    for model, length in dict.fromkeys((c.model, c.length) for c in cases):
        row = [f"BERT-{model.title()}", str(length)]
        for chip in MEMORY:
            case = Case(task, "training", model, length, chip)
            found = answers.largest(case)
            row.append(_cell(found) if found else "0" * (case in cases))
        yield row


if __name__ == "__main__":
    cli.main(run)
