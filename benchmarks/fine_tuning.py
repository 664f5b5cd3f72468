"""Fine-tuning beside Hugging Face's Trainer: scores, time and memory.

    python benchmarks/fine_tuning.py --task_name=mrpc \\
        --data_dir=../shared/data/glue/MRPC --rounds=5 \\
        --output=build/fine_tuning/mrpc.json

trains the same weights on the same data with the same recipe by our script and
by peers/huggingface_trainer.py, in turn, with another seed in each round, each
a process on the same cores. The recipe: a linear warm-up over a tenth of the
steps and a linear decay, Adam with bias correction, weight decay 0.01 except on
biases and norms, gradients clipped to 1, float32. Each side pads as it does
best; `--variants=ours,ours_static` compares batches by length with batches
padded to --max_seq_length. The peer's first model is also evaluated by our
script: equal numbers show that both sides read, encode and compute alike.

Rerun a stopped command to resume. The page is written from several files:

    python benchmarks/fine_tuning.py --page=docs/results.md \\
        --results=build/fine_tuning/mrpc.json,build/fine_tuning/sts-b.json
"""

# Before anything that imports TensorFlow.
import bert_tf.quiet_tensorflow  # noqa: F401

# isort: split
import dataclasses
import json
import os
import pathlib
import sys
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

from comparison import (
    COLUMNS,
    OURS,
    BenchmarkOptions,
    Comparison,
    keep,
    paragraphs,
    publish,
    require_known,
    rotated,
    section,
    table,
)
from sides import (
    PEERS,
    ROOT,
    busy_seconds,
    limit_cpus,
    minilm,
    peer_python,
    run_command,
    versions_of,
)

from bert_tf import cli, files
from bert_tf.errors import InputError, in_file
from bert_tf.jobs import classifier, squad
from bert_tf.metrics import METRICS, squad_v1
from bert_tf.options import option

# Task -> its name on the page and its metrics.
TASKS = {
    "mrpc": ("MRPC", ("accuracy", "f1")),
    "sst-2": ("SST-2", ("accuracy",)),
    "sts-b": ("STS-B", ("pearson", "spearman")),
    "squad": ("SQuAD 1.1", ("exact_match", "f1")),
}
PEER = "huggingface"
# What both sides report beside the scores.
USAGE = {"eval_loss", "global_step", "train_seconds"}
TITLES = {
    OURS: "bert_tf",
    PEER: "Hugging Face Trainer",
    "ours_static": "bert_tf, static padding",
}
# More columns of the table of every run, as in COLUMNS.
MORE_COLUMNS = {
    "seconds": ("whole command, s", 1, ",.0f"),
    "cpu_seconds": ("CPU time, s", 1, ",.0f"),
    "other_cpu_seconds": ("CPU time of other programs, s", 1, ",.0f"),
    "global_step": ("steps", 1, "d"),
    "eval_loss": ("loss on dev", 1, ".3f"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class FineTuningConfig(BenchmarkOptions):
    """Options of this benchmark; a round is a seed."""

    results: tuple[str, ...] = option(
        "Files of results to write to --page, instead of measuring.",
        default=(),
    )
    task_name: str | None = option("Task.", default=None, choices=tuple(TASKS))
    data_dir: str | None = option("Folder of the two files.", default=None)
    train_file: str = option("Training set of SQuAD.", default="train.json")
    dev_file: str = option("Development set of SQuAD.", default="dev.json")
    init_checkpoint: str | None = option(
        "Hugging Face folder of the weights. Default: MiniLM.", default=None
    )
    max_seq_length: int = option("Largest number of tokens.", default=128)
    train_batch_size: int = option("Examples per step.", default=32)
    learning_rate: float = option("Peak learning rate.", default=5e-5)
    num_train_epochs: float = option("Number of epochs.", default=3.0)

    @property
    def metrics(self) -> tuple[str, ...]:
        return TASKS[self.task_name][1]

    def recipe(self) -> dict[str, Any]:
        """Returns the options that all programs spell the same way."""
        same = ("train_batch_size", "learning_rate", "num_train_epochs")
        values = {
            **{name: getattr(self, name) for name in same},
            "max_seq_length": self.max_seq_length,
            "init_checkpoint": self.init_checkpoint or minilm(),
        }
        folder = os.path.abspath(self.data_dir)
        if self.task_name != "squad":
            return {**values, "task_name": self.task_name, "data_dir": folder}
        return {
            **values,
            "train_file": os.path.join(folder, self.train_file),
            "predict_file": os.path.join(folder, self.dev_file),
        }


def run(config: FineTuningConfig) -> None:
    """Runs the benchmark, or writes the page."""
    if config.results:
        texts = [page_section(Comparison.read(p)) for p in config.results]
        publish("\n".join(texts), config.page, "fine_tuning")
        return
    if not (config.task_name and config.data_dir):
        raise InputError("Pass --task_name and --data_dir, or --results.")
    require_known("variants", config.variants, TITLES)
    variants = config.variants or (OURS, PEER)
    threads = limit_cpus(config.num_threads)
    comparison = begin(config, threads)
    for seed in range(1, config.rounds + 1):
        for side in rotated(variants, seed - 1):
            done = [(turn["side"], turn["seed"]) for turn in comparison.turns]
            if (side, seed) not in done:
                with tempfile.TemporaryDirectory() as folder:
                    place = pathlib.Path(folder)
                    train(config, comparison, side, seed, place, threads)
    print(page_section(comparison))


def begin(config: FineTuningConfig, threads: int) -> Comparison:
    """Returns the comparison in --output, or a new one.

    Raises:
      InputError: The file has results of other settings or another machine.
    """
    title, _ = TASKS[config.task_name]
    if "ours_static" in config.variants:
        title += ": batches by length, static padding"
    recipe = config.recipe()
    weights, data = (
        "/".join(pathlib.Path(path).parts[-2:])
        for path in (recipe["init_checkpoint"], config.data_dir)
    )
    fact = (
        f"{weights} on {data}; {config.num_train_epochs:g} epochs, batches of "
        f"{config.train_batch_size}, learning rate {config.learning_rate:g}, "
        f"at most {config.max_seq_length} tokens; cores for each side: "
        f"{threads}. The seconds are of whole commands"
    )
    new = Comparison(title, "s", TITLES, [fact])
    if not config.output or not files.exists(config.output):
        return new
    old = Comparison.read(config.output)
    if (old.title, old.machine, old.facts[0]) != (title, new.machine, fact):
        raise in_file(
            config.output,
            "it has results of other settings or of another machine. Name a "
            "new --output.",
        )
    old.command = new.command
    return old


def train(
    config: FineTuningConfig,
    comparison: Comparison,
    side: str,
    seed: int,
    folder: pathlib.Path,
    threads: int,
) -> None:
    """Trains once; keeps and prints the result."""
    command = command_of(config, side, seed, folder, threads)
    busy = busy_seconds()
    usage = run_command(command, folder)
    busy = max(0.0, busy_seconds() - busy - usage["cpu_seconds"])
    answer = peer_answer if side == PEER else our_answer
    comparison.versions[side], found = answer(config, folder)
    turn = {
        **{"case": comparison.title, "side": side, "seed": seed},
        **usage,
        **found,
        "rate": 1 / usage["seconds"],
        "other_cpu_seconds": busy,
    }
    if side == PEER and len(comparison.facts) == 1:
        comparison.facts.append(cross_check(config, turn, folder))
    keep(comparison, turn, config.output)


def command_of(
    config: FineTuningConfig,
    side: str,
    seed: int,
    folder: pathlib.Path,
    threads: int,
) -> list[str]:
    """Returns the command line of a training."""
    values = {
        **config.recipe(),
        "output_dir": str(folder / "model"),
        "random_seed": seed,
    }
    if side == PEER:
        program = str(PEERS / "huggingface_trainer.py")
        setup = json.dumps({**values, "num_threads": threads})
        return [peer_python(config.pythons, PEER), program, setup]
    values |= {
        "do_train": True,
        "do_eval": True,
        # As AdamW of PyTorch.
        "adam_bias_correction": True,
        "padding": "max_length" if side == "ours_static" else "auto",
    }
    is_squad = config.task_name == "squad"
    script = ROOT / ("run_squad.py" if is_squad else "run_classifier.py")
    words = [f"--{name}={value}" for name, value in values.items()]
    return [sys.executable, str(script), *words]


Answer = tuple[dict[str, str], dict[str, float]]


def our_answer(config: FineTuningConfig, folder: pathlib.Path) -> Answer:
    """Returns the versions, and the scores, losses and times of our script."""
    results = files.read_json(str(folder / "model" / "eval_results.json"))
    versions = versions_of(sys.executable, "tensorflow", "keras", "numpy")
    return versions, our_scores(config, results)


def our_scores(
    config: FineTuningConfig, results: Mapping[str, float]
) -> dict[str, float]:
    scale = 100 if config.task_name == "squad" else 1
    scores = {n: results[f"eval_{n}"] / scale for n in config.metrics}
    return scores | {name: results[name] for name in USAGE & results.keys()}


def peer_answer(config: FineTuningConfig, folder: pathlib.Path) -> Answer:
    """Returns the same of the peer, whose predictions are scored as ours."""
    output = (folder / "stdout").read_text(encoding="utf-8")
    answer = json.loads(output.splitlines()[-1])
    if config.task_name == "squad":
        articles = files.read_json(config.recipe()["predict_file"])["data"]
        gold = {
            question["id"]: [found["text"] for found in question["answers"]]
            for article in articles
            for paragraph in article["paragraphs"]
            for question in paragraph["qas"]
        }
        scores = squad_v1(gold, answer["answers"])
        scores = {name: score / 100 for name, score in scores.items()}
    else:
        given = answer["labels"], answer["predictions"]
        scores = {name: METRICS[name](*given) for name in config.metrics}
    usage = {name: answer[name] for name in USAGE & answer.keys()}
    return answer["versions"], scores | usage


def cross_check(
    config: FineTuningConfig, turn: Mapping[str, Any], folder: pathlib.Path
) -> str:
    """Evaluates the model that the peer trained by our script.

    Equal numbers show that both sides read the files, encode the texts and
    compute the model and its loss alike.
    """
    job, kind = classifier.run, classifier.ClassifierConfig
    if config.task_name == "squad":
        job, kind = squad.run, squad.SquadConfig
    values = {
        **config.recipe(),
        "init_checkpoint": folder / "model",
        "output_dir": folder / "check",
        "do_eval": True,
    }
    found = our_scores(config, job(kind(**values)).metrics)
    numbers = ", ".join(
        f"{name} {number:.6f} ({turn[name]:.6f})"
        for name, number in found.items()
        if name in turn
    )
    return (
        f"The model that {TITLES[PEER]} trained with seed {turn['seed']}, "
        f"evaluated by our script and (in brackets) by itself: {numbers}"
    )


def page_section(comparison: Comparison) -> str:
    """Returns everything about one task, in Markdown."""
    rows = table(_every_run(comparison))
    return paragraphs([section(comparison).strip()], ["Every run:"], rows)


def _every_run(comparison: Comparison) -> Iterator[list[str]]:
    measured = {name for turn in comparison.turns for name in turn}
    columns = {
        name: column
        for name, column in (COLUMNS | MORE_COLUMNS).items()
        if name in measured
    }
    yield ["", "seed", *(title for title, *_ in columns.values())]
    for turn in comparison.turns:
        yield [
            *(TITLES[turn["side"]], str(turn["seed"])),
            *(
                format(turn[name] / unit if unit != 1 else turn[name], form)
                if name in turn
                else ""
                for name, (_, unit, form) in columns.items()
            ),
        ]


if __name__ == "__main__":
    cli.main(run)
