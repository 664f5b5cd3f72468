"""Fine-tuning beside Hugging Face's Trainer: scores, time and memory.

    python benchmarks/fine_tuning.py --task_name=mrpc \\
        --data_dir=../shared/data/glue/MRPC --rounds=5 \\
        --output=build/fine_tuning/mrpc.json

trains the same weights on the same data by our script and by
peers/huggingface_trainer.py, in turn, with a different seed in each round;
docs/reports/results.md has the recipe. Each side uses its best padding. The
peer's first classifier is also evaluated by our script: equal numbers show that
both sides read, encode and compute in the same way.

`--variants=ours,ours_fit,keras_hub` compares our script with our text model and
with KerasHub's.

Rerun a stopped command to resume. The page is written from several files:

    python benchmarks/fine_tuning.py --page=docs/reports/results.md \\
        --results=build/fine_tuning/mrpc.json,build/fine_tuning/sts-b.json
"""

# Before anything that imports TensorFlow.
from bert_tf import start_tensorflow

start_tensorflow.quietly()

import dataclasses
import json
import os
import pathlib
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import comparison
import sides
from comparison import OURS, Comparison

from bert_tf import cli
from bert_tf.base import files
from bert_tf.base.options import option
from bert_tf.errors import InputError, in_file
from bert_tf.kinds.classification import job as classifier
from bert_tf.tasks.metrics import METRICS, squad_v1

# Task -> its name on the page and its metrics.
TASKS = {
    "mrpc": ("MRPC", ("accuracy", "f1")),
    "sst-2": ("SST-2", ("accuracy",)),
    "sts-b": ("STS-B", ("pearson", "spearman")),
    "squad": ("SQuAD 1.1", ("exact_match", "f1")),
}
PEER = "huggingface"
# Our text model, for tasks of classes and numbers, and KerasHub's, for classes.
FIT = "ours_fit"
KERAS_HUB = "keras_hub"
HUB_TASKS = ("mrpc", "sst-2")
# What both sides report beside the scores.
USAGE = {"eval_loss", "global_step", "train_seconds"}
TITLES = {
    OURS: "bert_tf",
    PEER: "Hugging Face Trainer",
    FIT: "bert_tf, TextClassifier.fit",
    KERAS_HUB: "KerasHub, BertTextClassifier.fit",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class FineTuningConfig(comparison.BenchmarkOptions):
    """Options of this benchmark; a round is a seed."""

    results: tuple[str, ...] = option(
        "Files of results to write to --page, instead of measuring.",
        default=(),
    )
    task_name: str | None = option("Task.", default=None, choices=tuple(TASKS))
    data_dir: str | None = option("Folder of the data.", default=None)
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
            "init_checkpoint": self.init_checkpoint or sides.minilm(),
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
        tasks = [Comparison.read(path) for path in config.results]
        text = comparison.section(merged(tasks))
        comparison.publish(text, config.page, "fine_tuning")
        return
    if not (config.task_name and config.data_dir):
        raise InputError("Pass --task_name and --data_dir, or --results.")
    comparison.require_known("variants", config.variants, TITLES)
    is_whole = config.num_train_epochs == int(config.num_train_epochs)
    if FIT in config.variants and (config.task_name == "squad" or not is_whole):
        raise InputError(
            f"--variants={FIT} needs whole epochs of a task of texts."
        )
    if KERAS_HUB in config.variants and config.task_name not in HUB_TASKS:
        raise InputError(f"--variants={KERAS_HUB} needs a task of classes.")
    variants = config.variants or (OURS, PEER)
    results = begin(config)
    for seed in range(1, config.rounds + 1):
        for side in comparison.rotated(variants, seed - 1):
            done = [(turn["side"], turn["seed"]) for turn in results.turns]
            if (side, seed) not in done:
                with tempfile.TemporaryDirectory() as folder:
                    train(config, results, side, seed, pathlib.Path(folder))
    print(comparison.section(results))


def begin(config: FineTuningConfig) -> Comparison:
    """Returns the comparison in --output, or a new one.

    Raises:
      InputError: The file has results of different settings or machines.
    """
    title, _ = TASKS[config.task_name]
    weights, data = (
        "/".join(pathlib.Path(path).parts[-2:])
        for path in (config.recipe()["init_checkpoint"], config.data_dir)
    )
    fact = (
        f"{weights} on {data}; {config.num_train_epochs:g} epochs, batches of "
        f"{config.train_batch_size}, learning rate {config.learning_rate:g}, "
        f"at most {config.max_seq_length} tokens; cores for each side: "
        f"{sides.CORES}. The seconds are of whole commands"
    )
    new = Comparison(title, "s", TITLES, [fact])
    if not config.output or not files.exists(config.output):
        return new
    old = Comparison.read(config.output)
    if (old.title, old.machine, old.facts[0]) != (title, new.machine, fact):
        raise in_file(
            config.output,
            "it has results of other settings or of another machine. Pass a "
            "new --output.",
        )
    old.command = new.command
    return old


def train(
    config: FineTuningConfig,
    results: Comparison,
    side: str,
    seed: int,
    folder: pathlib.Path,
) -> None:
    """Trains once; keeps and prints the result."""
    command = command_of(config, side, seed, folder)
    busy = sides.busy_seconds()
    usage = sides.run_command(command, folder)
    busy = max(0.0, sides.busy_seconds() - busy - usage["cpu_seconds"])
    answer = ANSWERS.get(side, our_answer)
    results.versions[side], found = answer(config, folder)
    turn = {
        **{"case": results.title, "side": side, "seed": seed},
        **usage,
        **found,
        "rate": 1 / usage["seconds"],
        "other_cpu_seconds": busy,
    }
    is_first = side == PEER and len(results.facts) == 1
    if is_first and config.task_name != "squad":
        results.facts.append(cross_check(config, turn, folder))
    comparison.keep(results, turn, config.output)


def command_of(
    config: FineTuningConfig, side: str, seed: int, folder: pathlib.Path
) -> list[str]:
    """Returns the command line of a training."""
    values = {
        **config.recipe(),
        "output_dir": str(folder / "model"),
        "random_seed": seed,
    }
    if side == PEER:
        python = sides.peer_python(config.pythons, PEER)
        program = str(sides.PEERS / "huggingface_trainer.py")
        setup = {**values, "num_threads": sides.CORES}
        return [python, program, json.dumps(setup)]
    if side == FIT:
        program = str(sides.PEERS / "text_model_fit.py")
        return [sys.executable, program, json.dumps(values)]
    if side == KERAS_HUB:
        python = sides.peer_python(config.pythons, KERAS_HUB)
        program = str(sides.PEERS / "keras_hub_classifier.py")
        return [python, program, json.dumps(values)]
    values |= {
        "do_train": True,
        "do_eval": True,
        # Like PyTorch's AdamW.
        "adam_bias_correction": True,
    }
    is_squad = config.task_name == "squad"
    script = "run_squad.py" if is_squad else "run_classifier.py"
    words = [f"--{name}={value}" for name, value in values.items()]
    return [sys.executable, str(sides.ROOT / script), *words]


Answer = tuple[dict[str, str], dict[str, float]]


def our_answer(config: FineTuningConfig, folder: pathlib.Path) -> Answer:
    """Returns the versions, and the scores, losses and times of our script."""
    results = files.read_json(str(folder / "model" / "eval_results.json"))
    return our_versions(), our_scores(config, results)


def fit_answer(config: FineTuningConfig, folder: pathlib.Path) -> Answer:
    """Returns the same for our text model."""
    return our_versions(), our_scores(config, printed(folder))


def keras_hub_answer(config: FineTuningConfig, folder: pathlib.Path) -> Answer:
    """Returns the same of KerasHub's text classifier, which has accuracy."""
    answer = printed(folder)
    known = USAGE | {"eval_accuracy"}
    found = {n.removeprefix("eval_"): answer[n] for n in known & answer.keys()}
    return answer["versions"], found | {"eval_loss": found.pop("loss")}


def our_versions() -> dict[str, str]:
    return sides.versions_of(sys.executable, "tensorflow", "keras", "numpy")


def printed(folder: pathlib.Path) -> dict[str, Any]:
    """Returns the JSON in the last line that a side has printed."""
    output = (folder / "stdout").read_text(encoding="utf-8")
    return json.loads(output.splitlines()[-1])


def our_scores(
    config: FineTuningConfig, results: Mapping[str, float]
) -> dict[str, float]:
    scale = 100 if config.task_name == "squad" else 1
    scores = {n: results[f"eval_{n}"] / scale for n in config.metrics}
    return scores | {name: results[name] for name in USAGE & results.keys()}


def peer_answer(config: FineTuningConfig, folder: pathlib.Path) -> Answer:
    """Returns the same for the peer, whose predictions are scored like ours."""
    answer = printed(folder)
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


ANSWERS = {PEER: peer_answer, FIT: fit_answer, KERAS_HUB: keras_hub_answer}


def cross_check(
    config: FineTuningConfig, turn: Mapping[str, Any], folder: pathlib.Path
) -> str:
    """Evaluates with our script the classifier that the peer trained."""
    values = {
        **config.recipe(),
        "init_checkpoint": folder / "model",
        "output_dir": folder / "check",
        "do_eval": True,
    }
    results = classifier.run(classifier.ClassifierConfig(**values))
    found = our_scores(config, results.metrics)
    numbers = ", ".join(
        f"{name} {found[name]:.6f} ({turn[name]:.6f})"
        for name in (*config.metrics, "eval_loss")
    )
    return (
        f"The model that {TITLES[PEER]} trained with seed {turn['seed']}, "
        f"evaluated by our script and (in brackets) by itself: {numbers}"
    )


def merged(tasks: Sequence[Comparison]) -> Comparison:
    """Joins the results of several tasks in one comparison."""
    versions: dict[str, dict[str, str]] = {}
    for results in tasks:
        versions |= results.versions
    return Comparison(
        "GLUE and SQuAD",
        "s",
        TITLES,
        [f"{r.title}: {fact}" for r in tasks for fact in r.facts],
        command="\n".join(results.command for results in tasks),
        machine="; ".join(dict.fromkeys(r.machine for r in tasks)),
        versions=versions,
        turns=[turn for results in tasks for turn in results.turns],
    )


if __name__ == "__main__":
    cli.main(run)
