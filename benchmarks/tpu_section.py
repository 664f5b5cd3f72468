"""Writes the section about TPUs in docs/scale.md from what was compiled.

    python benchmarks/tpu_section.py docs/scale.md build/tpu.json

replaces the section "tpu" of the page.
"""

import itertools
import pathlib
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from pages import table, write_section
from tpu_chips import CHIPS, GIB
from tpu_results import Case, Results, Trial

TITLES = {
    "pretraining": "pre-training, 15 % of the tokens masked",
    "packed_pretraining": "pre-training, packed",
    "classification": "fine-tuning, a class for each text",
    "multiple_choice": "fine-tuning, four choices each",
    "spans": "fine-tuning, answers in a text",
    "tokens": "fine-tuning, a tag for each token",
}

# What the tables are to have.
TASKS = ["pretraining", "classification"]
KINDS = ["training", "prediction"]
MODELS = ["base", "large"]
LENGTHS = ["128", "512"]
INTRODUCTION = [
    "`make tpu` writes this. No TPU ever ran these programs: the compiler of",
    "TPUs, which libtpu brings, says what they would take of a chip.",
]


def line(trial: Trial) -> str:
    """An answer of the compiler, as it is told when it came."""
    case = trial.case
    answer = "does not fit"
    if trial.memory:
        answer = ", ".join(
            f"{name} {gib(size)}" for name, size in trial.memory.items()
        )
        answer += f": {gib(trial.total)} GiB"
    return (
        f"{case.chip}, BERT-{case.model.title()}, {case.task}, {case.kind}, "
        f"{trial.batch_size} x {case.max_seq_length}: {answer} "
        f"({trial.seconds:,.0f} s of CPU)"
    )


def gib(size: int) -> str:
    return f"{size / GIB:.2f}"


def section(results: Results) -> str:
    """Everything that was compiled, in Markdown."""
    parts = [INTRODUCTION, list(circumstances(results))]
    for task in unique(trial.case.task for trial in results.trials):
        parts.append([f"Largest batch of a chip, {TITLES[task]}:"])
        parts.append(table(largest(results, task)))
    parts.append(["What each program takes of a chip, in GiB:"])
    parts.append(table(memory(results)))
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def circumstances(results: Results) -> Iterator[str]:
    """A list of what the numbers depend on."""
    versions = (f"{name} {text}" for name, text in results.versions.items())
    yield f"- {', '.join(versions)}; bfloat16 activations, float32 weights"
    yield (
        f"- A slice of {results.chips} chips, of which each has such a batch; "
        "sums of gradients over all of them are part of the programs"
    )
    for name, chip in CHIPS.items():
        available = results.available(name)
        if available:
            yield (
                f"- {name}: {chip.memory / GIB:.0f} GiB by its makers, "
                f"{gib(available)} for programs by its compiler"
            )
    yield (
        "- Batches are powers of two, and the compiler refused twice as many. "
        "+: it accepted this one, and was not asked for more. In brackets: it "
        "was not asked at all, and as many fit if what a program has in "
        "between grows with its batch as in the smallest of this step. (?): "
        "no such step was compiled"
    )
    yield (
        "- Where memory is short the compiler computes some things twice, so "
        "that more may fit than programs of smaller batches let one expect"
    )
    compiled = {(trial.case.task, trial.case.kind) for trial in results.trials}
    missing = sorted(set(itertools.product(TASKS, KINDS)) - compiled)
    if missing:
        words = ", ".join(f"{task} ({kind})" for task, kind in missing)
        yield f"- Of these nothing was compiled at such sizes yet: {words}"


def largest(results: Results, task: str) -> Iterator[list[str]]:
    """A row for each model and length, a column for each chip."""
    yield ["model", "length", *CHIPS]
    for length, model in itertools.product(LENGTHS, MODELS):
        cases = (Case(task, "training", model, int(length), c) for c in CHIPS)
        yield [
            f"BERT-{model.title()}",
            length,
            *(batch_size(results, case) for case in cases),
        ]


def batch_size(results: Results, case: Case) -> str:
    """The largest that fits, with what is known of twice as many."""
    trial = results.largest(case)
    if trial is None:
        available = results.available(case.chip) or CHIPS[case.chip].memory
        expected = results.expected_batch_size(case, available)
        return "0" if 1 in results.of(case) else f"({expected or '?'})"
    next_ = results.next_batch_size(case, trial.available)
    return f"{trial.batch_size}{'+' if next_ else ''}"


def memory(results: Results) -> Iterator[list[str]]:
    """A row for each program."""
    yield [
        *("chip", "model", "length", "task", "step", "batch"),
        *("weights, moments", "in between", "program", "all", "of the chip"),
    ]
    for trial in results.trials:
        case = trial.case
        yield [
            case.chip,
            f"BERT-{case.model.title()}",
            str(case.max_seq_length),
            case.task,
            case.kind,
            str(trial.batch_size),
            *sizes(trial),
        ]


def sizes(trial: Trial) -> list[str]:
    if trial.memory is None:
        return ["", "", "", "refused", ""]
    return [
        gib(trial.memory["arguments"]),
        gib(trial.memory["temporaries"] + trial.memory["outputs"]),
        gib(trial.memory["program"]),
        gib(trial.total),
        f"{trial.total / trial.available:.0%}",
    ]


def unique(items: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(items))


def main(document: str, results: str) -> None:
    text = section(Results.read(pathlib.Path(results)))
    write_section(pathlib.Path(document), "tpu", text)


if __name__ == "__main__":
    main(*sys.argv[1:])
