"""Fine-tuning beside Hugging Face's Trainer: scores, time and memory.

    python benchmarks/fine_tuning.py --task_name=mrpc \\
        --data_dir=../shared/data/glue/MRPC --num_seeds=5 \\
        --output=build/fine_tuning/mrpc.json

trains the same weights on the same data with the same recipe by
run_classifier.py and by peers/huggingface_trainer.py (--task_name=squad: by
run_squad.py and peers/huggingface_squad.py), in turn, seed by seed, each a
process on the same cores. The recipe: a linear warm-up over a tenth of the
steps and a linear decay, Adam with bias correction, weight decay 0.01 except on
biases and norms, gradients clipped to 1, float32. Each side pads as it does
best; `--variants=ours,ours_static` compares batches by length with batches
padded to --max_seq_length. The peer's first model is also evaluated by our
script: equal numbers show that both sides read, encode and compute alike.

Rerun a stopped command to go on. The page is written from several files:

    python benchmarks/fine_tuning.py --page=docs/results.md \\
        --results=build/fine_tuning/mrpc.json,build/fine_tuning/sts-b.json
"""

import dataclasses
import functools
import json
import os
import pathlib
import sys
import tempfile
from collections.abc import Iterator, Sequence

import numpy as np
from comparison import (
    MIB,
    MOST_OF_OTHERS,
    OURS,
    Comparison,
    ReportOptions,
    Turn,
    paragraphs,
    python_option,
    ratio_cell,
    require_known,
    rotated,
    spread,
    table,
    threads_option,
    timed,
)
from sides import (
    PEERS,
    ROOT,
    busy_seconds,
    limit_cpus,
    our_versions,
    peer_python,
    peer_variables,
    run_command,
)

from bert_tf import cli, files
from bert_tf.errors import InputError, in_file
from bert_tf.metrics import METRICS, squad_v1
from bert_tf.options import option

# In docs/results.md: everything below it is replaced.
MARK = "<!-- `make bench-fine-tuning` writes everything below this line. -->\n"
# Task -> its name on the page and its metrics.
TASKS = {
    "mrpc": ("MRPC", ("accuracy", "f1")),
    "sst-2": ("SST-2", ("accuracy",)),
    "sts-b": ("STS-B", ("pearson", "spearman")),
    "squad": ("SQuAD 1.1", ("exact_match", "f1")),
}
TITLES = {
    OURS: "bert_tf",
    "huggingface": "Hugging Face Trainer",
    "ours_static": "bert_tf, static padding",
}
# The scores on the page are percentages.
SCORES = {
    "accuracy": "accuracy",
    "f1": "F1",
    "pearson": "Pearson",
    "spearman": "Spearman",
    "exact_match": "exact match",
}
# Measurement -> the title of its column.
COSTS = {
    "train_seconds": "training, s",
    "seconds": "whole command, s",
    "cpu_seconds": "CPU time, s",
    "peak_bytes": "memory, MiB",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class FineTuningConfig(ReportOptions):
    """Options of this benchmark."""

    results: tuple[str, ...] | None = option(
        "Files of results to write to --page, instead of measuring.",
        default=None,
    )
    task_name: str | None = option("Task.", default=None, choices=tuple(TASKS))
    data_dir: str | None = option("Folder of the two files.", default=None)
    train_file: str = option("Training set of SQuAD.", default="train.tsv")
    dev_file: str = option("Development set of SQuAD.", default="dev.tsv")
    init_checkpoint: str | None = option(
        "Hugging Face folder of the weights. Default: MiniLM.", default=None
    )
    max_seq_length: int = option("Largest number of tokens.", default=128)
    train_batch_size: int = option("Examples per step.", default=32)
    eval_batch_size: int = option("Examples per evaluation step.", default=8)
    learning_rate: float = option("Peak learning rate.", default=5e-5)
    num_train_epochs: float = option("Number of epochs.", default=3.0)
    num_seeds: int = option(
        "Number of trainings of each side.", default=3, at_least=1
    )
    num_threads: int | None = threads_option()
    variants: tuple[str, ...] = option(
        f"Sides: {', '.join(TITLES)}.", default=(OURS, "huggingface")
    )
    peer_python: str | None = python_option("huggingface")

    @property
    def is_squad(self) -> bool:
        return self.task_name == "squad"

    def path(self, file: str) -> str:
        return os.path.abspath(os.path.join(self.data_dir, file))

    def recipe(self) -> dict[str, object]:
        """Returns the options that all programs spell the same way."""
        names = ("train_batch_size", "learning_rate", "num_train_epochs")
        values = {name: getattr(self, name) for name in names}
        values |= {
            "max_seq_length": self.max_seq_length,
            "init_checkpoint": os.path.abspath(self.init_checkpoint),
        }
        if self.is_squad:
            return values | {
                "train_file": self.path(self.train_file),
                "predict_file": self.path(self.dev_file),
                "predict_batch_size": self.eval_batch_size,
            }
        return values | {
            "task_name": self.task_name,
            "data_dir": os.path.abspath(self.data_dir),
            "eval_batch_size": self.eval_batch_size,
        }


def run(config: FineTuningConfig) -> Comparison | None:
    """Runs the benchmark, or writes the page."""
    if config.results:
        write_page(config.page, config.results)
        return None
    if not (config.task_name and config.data_dir):
        raise InputError("Pass --task_name and --data_dir, or --results.")
    require_known("variants", config.variants, TITLES)
    if not config.init_checkpoint:
        from minilm import minilm  # It imports TensorFlow.

        config = dataclasses.replace(config, init_checkpoint=minilm())
    variables = limit_cpus(config.num_threads)
    comparison = begin(config)
    for seed in range(1, config.num_seeds + 1):
        for side in rotated(config.variants, seed - 1):
            case = f"seed {seed}"
            if not comparison.of(case, side):
                with tempfile.TemporaryDirectory() as folder:
                    train(config, comparison, side, seed, folder, variables)
    print(section(comparison))
    return comparison


def begin(config: FineTuningConfig) -> Comparison:
    """Returns the comparison in --output, or a new one.

    Raises:
      InputError: The file is of other settings or of another machine.
    """
    weights, data = (
        "/".join(pathlib.Path(path).parts[-2:])
        for path in (config.init_checkpoint, config.data_dir)
    )
    title, _ = TASKS[config.task_name]
    if "ours_static" in config.variants:
        title += ": batches by length, static padding"
    new = Comparison(
        title,
        config.task_name,
        TITLES,
        facts=[
            f"{weights} on {data}; {config.num_train_epochs:g} epochs, batches "
            f"of {config.train_batch_size}, learning rate "
            f"{config.learning_rate:g}, at most {config.max_seq_length} "
            f"tokens; cores for each side: {len(os.sched_getaffinity(0))}"
        ],
    )
    if not config.output or not files.exists(config.output):
        return new
    old = Comparison.read(config.output)
    for name in ("title", "machine"):
        if getattr(old, name) != getattr(new, name):
            raise _other(config.output, name)
    if old.facts[:1] != new.facts:
        raise _other(config.output, "settings")
    old.command = new.command
    return old


def _other(path: str, what: str) -> InputError:
    return in_file(
        path, f"it has results of another {what}. Name a new --output."
    )


def train(
    config: FineTuningConfig,
    comparison: Comparison,
    side: str,
    seed: int,
    folder: str,
    variables: dict[str, str],
) -> None:
    """Trains once; keeps and prints the result."""
    place = pathlib.Path(folder)
    values = {
        **config.recipe(),
        "output_dir": place / "model",
        "random_seed": seed,
    }
    is_ours = side != "huggingface"
    if is_ours:
        python = sys.executable
        name = "run_squad.py" if config.is_squad else "run_classifier.py"
        program = ROOT / name
        values |= {
            "do_train": True,
            "do_eval": True,
            # As AdamW of PyTorch.
            "adam_bias_correction": True,
            "padding": "max_length" if side == "ours_static" else "auto",
        }
    else:
        python = peer_python(config.peer_python, "huggingface")
        kind = "squad" if config.is_squad else "trainer"
        program = PEERS / f"huggingface_{kind}.py"
        values["num_threads"] = variables["OMP_NUM_THREADS"]
    words = [f"--{name}={value}" for name, value in values.items()]
    busy = busy_seconds()
    usage = run_command(
        [python, str(program), *words],
        place,
        {**variables, **peer_variables(place)},
    )
    busy = max(0.0, busy_seconds() - busy - usage["cpu_seconds"])
    answer = our_answer if is_ours else peer_answer
    versions, found = answer(config, place)
    comparison.versions[side] = versions
    more = {"peak_bytes": usage["peak_bytes"], **found}
    turn = Turn(
        *(f"seed {seed}", side, 1.0),
        *(usage["seconds"], usage["cpu_seconds"], busy, more),
    )
    comparison.turns.append(turn)
    print(line(config, turn), flush=True)
    if not is_ours and len(comparison.facts) == 1:
        comparison.facts.append(cross_check(config, turn, place))
    if config.output:
        comparison.write(config.output)


def our_answer(
    config: FineTuningConfig, folder: pathlib.Path
) -> tuple[dict[str, str], dict[str, float]]:
    """Returns the versions, and the scores, losses and times of our script."""
    results = files.read_json(str(folder / "model" / "eval_results.json"))
    return _versions(), {
        **_our_scores(config, results),
        "global_step": results["global_step"],
        "train_seconds": results["train_seconds"],
    }


def _our_scores(
    config: FineTuningConfig, results: dict[str, float]
) -> dict[str, float]:
    scale = 100 if config.is_squad else 1
    _, names = TASKS[config.task_name]
    scores = {name: results[f"eval_{name}"] / scale for name in names}
    loss = {"eval_loss": results.get("eval_loss")}
    return scores | (loss if loss["eval_loss"] is not None else {})


def peer_answer(
    config: FineTuningConfig, folder: pathlib.Path
) -> tuple[dict[str, str], dict[str, float]]:
    """Returns the same of the peer, whose predictions are scored as ours."""
    output = (folder / "stdout").read_text(encoding="utf-8")
    answer = json.loads(output.splitlines()[-1])
    _, names = TASKS[config.task_name]
    if config.is_squad:
        path = str(folder / "model" / "predictions.json")
        articles = files.read_json(config.path(config.dev_file))["data"]
        gold = {
            question["id"]: [found["text"] for found in question["answers"]]
            for article in articles
            for paragraph in article["paragraphs"]
            for question in paragraph["qas"]
        }
        scores = squad_v1(gold, files.read_json(path))
        scores = {name: score / 100 for name, score in scores.items()}
    else:
        given = answer["labels"], answer["predictions"]
        scores = {name: METRICS[name](*given) for name in names}
    same = ("eval_loss", "global_step", "train_seconds")
    return answer["versions"], scores | {
        name: answer[name] for name in same if name in answer
    }


@functools.cache
def _versions() -> dict[str, str]:
    return our_versions("tensorflow", "keras", "numpy")


def cross_check(
    config: FineTuningConfig, turn: Turn, folder: pathlib.Path
) -> str:
    """Evaluates the model that the peer trained by our script.

    Equal numbers show that both sides read the files, encode the texts and
    compute the model and its loss alike.
    """
    import bert_tf.quiet_tensorflow  # noqa: F401
    from bert_tf.jobs import classifier, squad

    job, kind = classifier.run, classifier.ClassifierConfig
    if config.is_squad:
        job, kind = squad.run, squad.SquadConfig
    values = {
        **config.recipe(),
        "init_checkpoint": folder / "model",
        "output_dir": folder / "check",
        "do_eval": True,
    }
    found = _our_scores(config, job(kind(**values)).metrics)
    numbers = ", ".join(
        f"{name} {number:.6f} ({turn.more[name]:.6f})"
        for name, number in found.items()
        if name in turn.more
    )
    return (
        f"The model that {TITLES['huggingface']} trained with {turn.case}, "
        f"evaluated by our script and (in brackets) by itself: {numbers}"
    )


# The page.


def value_of(turn: Turn, name: str) -> float:
    return turn.more[name] if name in turn.more else getattr(turn, name)


def values_of(turns: Sequence[Turn], name: str) -> list[float]:
    """Returns a measurement of all runs, and times of the undisturbed."""
    if name.endswith("seconds"):
        turns = timed(turns)
    return [value_of(turn, name) for turn in turns]


def cell(name: str, number: float) -> str:
    if name in SCORES:
        return f"{100 * number:.1f}"
    return f"{number / MIB if name == 'peak_bytes' else number:,.0f}"


def line(config: FineTuningConfig, turn: Turn) -> str:
    _, names = TASKS[config.task_name]
    scores = ", ".join(f"{name} {100 * turn.more[name]:.2f}" for name in names)
    return (
        f"{TITLES[turn.side]}, {turn.case}: {scores}; "
        f"{turn.more['global_step']} steps in {turn.more['train_seconds']:,.1f}"
        f" s, {turn.seconds:,.1f} s in all ({turn.cpu_seconds:,.1f} s of CPU), "
        f"{turn.more['peak_bytes'] / MIB:,.0f} MiB at most"
    )


def section(comparison: Comparison) -> str:
    """Returns everything about one task, in Markdown."""
    _, names = TASKS[comparison.unit]
    runs = {
        side: [turn for turn in comparison.turns if turn.side == side]
        for side in TITLES
    }
    runs = {side: turns for side, turns in runs.items() if turns}
    return paragraphs(
        [f"## {comparison.title}"],
        ["```sh", comparison.command, "```"],
        list(_circumstances(comparison, runs)),
        table(_spreads(names, runs)),
        table(_ratios(runs)) if len(runs) > 1 else [],
        list(_remarks(names, runs)) if len(runs) > 1 else [],
        ["Every run:"],
        table(_every_run(names, comparison.turns)),
    )


Runs = dict[str, list[Turn]]


def _circumstances(comparison: Comparison, runs: Runs) -> Iterator[str]:
    yield f"- {comparison.machine}"
    yield from (f"- {fact}" for fact in comparison.facts)
    yield (
        "- Times are of the runs during which other programs used no more than "
        f"{MOST_OF_OTHERS:.0%} of a core, or of all if there are none"
    )
    for side in runs:
        versions = comparison.versions[side].items()
        packages = ", ".join(f"{name} {version}" for name, version in versions)
        yield f"- {TITLES[side]}: {packages}"


def _spreads(names: Sequence[str], runs: Runs) -> Iterator[list[str]]:
    titles = [*(SCORES[name] for name in names), *COSTS.values()]
    yield ["median (least to most)", "seeds (timed)", *titles]
    for side, turns in runs.items():
        yield [
            TITLES[side],
            f"{len(turns)} ({sum(turn.is_timed for turn in turns)})",
            *(
                spread(values_of(turns, name), functools.partial(cell, name))
                for name in (*names, *COSTS)
            ),
        ]


def _ratios(runs: Runs) -> Iterator[list[str]]:
    """Yields a row for each side but the first: the first's costs over its."""
    first, *others = runs
    titles = [title.partition(",")[0] for title in COSTS.values()]
    yield [f"{TITLES[first]} over", *titles]
    for other in others:
        yield [
            TITLES[other],
            *(
                ratio_cell(
                    values_of(runs[first], name), values_of(runs[other], name)
                )
                for name in COSTS
            ),
        ]


def _remarks(names: Sequence[str], runs: Runs) -> Iterator[str]:
    """Yields where the median score of the first side is among the others'."""
    first, *others = runs
    for other in others:
        for name in names:
            median = float(np.median(values_of(runs[first], name)))
            theirs = values_of(runs[other], name)
            low, high = min(theirs), max(theirs)
            place = "above" if median > high else "below"
            if low <= median <= high:
                place = "within"
            yield (
                f"- {SCORES[name]}: the median of {TITLES[first]}, "
                f"{cell(name, median)}, is {place} the range of "
                f"{TITLES[other]}, {cell(name, low)} to {cell(name, high)}"
            )


def _every_run(
    names: Sequence[str], turns: Sequence[Turn]
) -> Iterator[list[str]]:
    yield [
        *("", "seed", *(SCORES[name] for name in names), *COSTS.values()),
        *("steps", "loss on dev", "CPU time of other programs, s"),
    ]
    for turn in turns:
        loss = turn.more.get("eval_loss")
        yield [
            TITLES[turn.side],
            turn.case.removeprefix("seed "),
            *(cell(name, value_of(turn, name)) for name in (*names, *COSTS)),
            str(turn.more["global_step"]),
            "" if loss is None else f"{loss:.3f}",
            f"{turn.other_cpu_seconds:,.0f}",
        ]


def write_page(page: str, results: Sequence[str]) -> None:
    """Replaces what is below the mark of a page by the sections of files."""
    opening, mark, _ = files.read_text(page).partition(MARK)
    if not mark:
        raise in_file(page, f"expected the line {MARK.strip()}.")
    sections = "".join(
        f"\n{section(Comparison.read(path))}" for path in results
    )
    files.write_text(page, opening + mark + sections)


if __name__ == "__main__":
    cli.main(run)
