"""Writes docs/results.md from what benchmarks/fine_tuning.py measured.

    python benchmarks/write_results.py docs/results.md build/fine_tuning/*.json

replaces everything below the page's mark by a section for each file: how the
numbers came to be, medians and spread of each side, the ratios of the medians,
and every run.
"""

import pathlib
import sys
from collections.abc import Iterable, Iterator

from circumstances import machine_line
from comparison import Comparison, CrossCheck, Run, ratio, spread_of
from measured import BYTES_PER_MIB
from pages import table
from sides import SIDES
from timed import MOST_OF_OTHERS, Spread

# In docs/results.md: what is above stays, what is below is written here.
MARK = "<!-- `make bench-fine-tuning` writes everything below this line. -->\n"

TASK_TITLES = {
    "mrpc": "MRPC",
    "sst-2": "SST-2",
    "sts-b": "STS-B",
    "squad": "SQuAD 1.1",
}
METRIC_TITLES = {
    "accuracy": "accuracy",
    "f1": "F1",
    "pearson": "Pearson",
    "spearman": "Spearman",
    "exact_match": "exact match",
}
# Attribute of a run -> title of its column, unit.
COST_TITLES = {
    "train_seconds": ("training", "s"),
    "seconds": ("whole command", "s"),
    "cpu_seconds": ("CPU time", "s"),
    "peak_bytes": ("memory", "MiB"),
}


def line(run: Run) -> str:
    """A run, as it is told when it has ended."""
    scores = ", ".join(
        f"{name} {100 * score:.2f}" for name, score in run.scores.items()
    )
    return (
        f"{SIDES[run.side].title}, seed {run.seed}: {scores}; "
        f"{run.global_step} steps in {run.train_seconds:,.1f} s, "
        f"{run.seconds:,.1f} s in all ({run.cpu_seconds:,.1f} s of CPU), "
        f"{run.peak_bytes / BYTES_PER_MIB:,.0f} MiB at most"
    )


def section(comparison: Comparison) -> str:
    """Everything about one task."""
    parts = [
        [f"## {title(comparison)}"],
        ["```", comparison.command, "```"],
        list(circumstances(comparison)),
        table(spreads(comparison)),
        table(ratios(comparison)) if len(comparison.sides) > 1 else [],
        list(remarks(comparison)),
        ["Every run:"],
        table(every_run(comparison)),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def title(comparison: Comparison) -> str:
    """The task, and what else is compared than programs."""
    task = TASK_TITLES[comparison.settings.task_name]
    if "ours_static" in comparison.sides:
        return f"{task}: batches by length, static padding"
    return task


def circumstances(comparison: Comparison) -> Iterator[str]:
    """A list of what the numbers depend on."""
    settings = comparison.settings
    yield machine_line(comparison.machine, settings.num_threads)
    weights = "/".join(pathlib.Path(settings.init_checkpoint).parts[-2:])
    yield (
        f"- {weights}; {settings.num_train_epochs:g} epochs, batches of "
        f"{settings.train_batch_size}, rate {settings.learning_rate:g}, at "
        f"most {settings.max_seq_length} pieces"
    )
    yield (
        "- Times are of the runs during which other programs took no more than "
        f"{MOST_OF_OTHERS:.0%} of a core"
    )
    for side in comparison.sides:
        versions = comparison.versions[side].items()
        packages = ", ".join(f"{name} {version}" for name, version in versions)
        yield f"- {SIDES[side].title}: {packages}"


def spreads(comparison: Comparison) -> Iterator[list[str]]:
    """A row for each side: median, smallest and largest."""
    metrics = comparison.settings.metrics
    yield ["median (least to most)", "seeds", *column_titles(metrics)]
    for side in comparison.sides:
        runs = comparison.of(side)
        cells = [
            show_spread(what, spread_of(runs, what))
            for what in (*metrics, *COST_TITLES)
        ]
        seeds = f"{len(runs)} ({sum(run.is_timed for run in runs)} timed)"
        yield [SIDES[side].title, seeds, *cells]


def column_titles(metrics: Iterable[str]) -> list[str]:
    return [METRIC_TITLES[name] for name in metrics] + [
        f"{title}, {unit}" for title, unit in COST_TITLES.values()
    ]


def show(what: str, number: float) -> str:
    """A number in the unit of its column."""
    if what in METRIC_TITLES:
        return f"{100 * number:.1f}"
    if what == "peak_bytes":
        number /= BYTES_PER_MIB
    return f"{number:,.0f}"


def show_spread(what: str, spread: Spread) -> str:
    median = show(what, spread.median)
    if spread.low == spread.high:
        return median
    return f"{median} ({show(what, spread.low)} to {show(what, spread.high)})"


def ratios(comparison: Comparison) -> Iterator[list[str]]:
    """A row for each side but the first: medians of that one over its."""
    first, *others = comparison.sides
    mine = comparison.of(first)
    titles = [title for title, _ in COST_TITLES.values()]
    yield [f"{SIDES[first].title} over", *titles]
    for other in others:
        cells = (
            f"{ratio(mine, comparison.of(other), what):.2f}"
            for what in COST_TITLES
        )
        yield [SIDES[other].title, *cells]


def remarks(comparison: Comparison) -> Iterator[str]:
    """How the scores of the sides lie to each other, in words."""
    first, *others = comparison.sides
    for side in comparison.sides:
        if not any(run.is_timed for run in comparison.of(side)):
            yield (
                f"- No run of {SIDES[side].title} was alone on the machine: "
                "its times are those of disturbed runs"
            )
    for other in others:
        for name in comparison.settings.metrics:
            median = spread_of(comparison.of(first), name).median
            theirs = spread_of(comparison.of(other), name)
            yield (
                f"- {METRIC_TITLES[name]}: the median of {SIDES[first].title}, "
                f"{show(name, median)}, is {place_of(median, theirs)} the "
                f"spread of {SIDES[other].title}, "
                f"{show(name, theirs.low)} to {show(name, theirs.high)}"
            )
    if comparison.cross_check:
        yield cross_check(comparison.cross_check)


def place_of(number: float, spread: Spread) -> str:
    if number in spread:
        return "within"
    return "above" if number > spread.high else "below"


def cross_check(check: CrossCheck) -> str:
    numbers = ", ".join(
        f"{name} {number:.6f} ({check.theirs[name]:.6f})"
        for name, number in check.ours.items()
    )
    return (
        f"- What {SIDES['huggingface'].title} trained with seed {check.seed}, "
        "evaluated by our script and (in brackets) by itself: "
        f"{numbers}"
    )


def every_run(comparison: Comparison) -> Iterator[list[str]]:
    """In the order in which they ran."""
    metrics = comparison.settings.metrics
    more = ["steps", "loss on dev", "CPU time of other programs, s"]
    yield ["", "seed", *column_titles(metrics), *more]
    for run in comparison.runs:
        cells = [show(name, run.scores[name]) for name in metrics]
        cells += [show(what, getattr(run, what)) for what in COST_TITLES]
        yield [
            SIDES[run.side].title,
            str(run.seed),
            *cells,
            str(run.global_step),
            "" if run.eval_loss is None else f"{run.eval_loss:.3f}",
            f"{run.other_cpu_seconds:,.0f}",
        ]


def main(document: str, *results: str) -> None:
    """Writes the sections of the files `results` into `document`."""
    path = pathlib.Path(document)
    opening, mark, _ = path.read_text(encoding="utf-8").partition(MARK)
    if not mark:
        raise SystemExit(f"error: expected the line {MARK.strip()} in {path}")
    sections = [
        section(Comparison.read(pathlib.Path(result))) for result in results
    ]
    text = opening + mark + "".join(f"\n{part}" for part in sections)
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
