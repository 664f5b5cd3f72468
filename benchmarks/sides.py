"""The sides of benchmarks/fine_tuning.py: their commands, what they answer.

Each side gets a folder of its own, in which it makes `model`; what it prints
is in `stdout` there.
"""

import dataclasses
import functools
import importlib.metadata
import json
import pathlib
import subprocess
from collections.abc import Callable
from typing import Any

from comparison import Settings

from bert_tf.metrics import METRICS

ROOT = pathlib.Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "run_classifier.py"
PEER_SCRIPT = ROOT / "benchmarks" / "peers" / "huggingface_trainer.py"


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a side says of its training."""

    scores: dict[str, float]
    eval_loss: float
    global_step: int
    train_seconds: float
    versions: dict[str, str]


@dataclasses.dataclass(frozen=True)
class Side:
    """One way to train.

    Attributes:
      title: For the readers of the results.
      arguments: Settings, seed and folder -> what follows the interpreter.
      answer: Settings and folder -> what it said in the end.
      peer: Whose environment it runs in, a name of benchmarks/peers; None for
        the environment of the benchmark.
    """

    title: str
    arguments: Callable[[Settings, int, pathlib.Path], list[str]]
    answer: Callable[[Settings, pathlib.Path], Answer]
    peer: str | None = None


def our_arguments(
    settings: Settings, seed: int, folder: pathlib.Path, padding: str = "auto"
) -> list[str]:
    return [
        *evaluation_arguments(settings, folder),
        f"--random_seed={seed}",
        f"--padding={padding}",
        "--adam_bias_correction",  # As every AdamW of PyTorch.
        "--do_train",
    ]


def evaluation_arguments(settings: Settings, folder: pathlib.Path) -> list[str]:
    """Of run_classifier.py, for a model that is trained already."""
    return [
        str(SCRIPT),
        *shared_flags(settings),
        f"--output_dir={folder / 'model'}",
        "--do_eval",
    ]


def peer_arguments(
    settings: Settings, seed: int, folder: pathlib.Path
) -> list[str]:
    return [
        str(PEER_SCRIPT),
        *shared_flags(settings),
        f"--output_dir={folder / 'model'}",
        f"--random_seed={seed}",
        f"--num_threads={settings.num_threads}",
    ]


def shared_flags(settings: Settings) -> list[str]:
    """What both programs call the same."""
    values = dataclasses.asdict(settings)
    del values["num_threads"]
    return [f"--{name}={value}" for name, value in values.items()]


def our_answer(settings: Settings, folder: pathlib.Path) -> Answer:
    results = our_results(folder)
    return Answer(
        scores={name: results[f"eval_{name}"] for name in settings.metrics},
        eval_loss=results["eval_loss"],
        global_step=results["global_step"],
        train_seconds=results["train_seconds"],
        versions=our_versions(),
    )


def our_results(folder: pathlib.Path) -> dict[str, Any]:
    path = folder / "model" / "eval_results.json"
    return json.loads(path.read_text(encoding="utf-8"))


def peer_answer(settings: Settings, folder: pathlib.Path) -> Answer:
    """Reads its last line; its predictions are scored as ours are."""
    output = (folder / "stdout").read_text(encoding="utf-8")
    said = json.loads(output.splitlines()[-1])
    labels, predictions = said.pop("labels"), said.pop("predictions")
    scores = {
        name: METRICS[name](labels, predictions) for name in settings.metrics
    }
    return Answer(scores, **said)


@functools.cache
def our_versions() -> dict[str, str]:
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,  # What was unpacked from an archive has no history.
    )
    return {"bert_tf": described.stdout.strip() or "unknown"} | {
        package: importlib.metadata.version(package)
        for package in ("tensorflow", "keras", "numpy")
    }


SIDES = {
    "ours": Side("bert_tf", our_arguments, our_answer),
    "huggingface": Side(
        "Hugging Face Trainer", peer_arguments, peer_answer, "huggingface"
    ),
    "ours_static": Side(
        "bert_tf, static padding",
        functools.partial(our_arguments, padding="max_length"),
        our_answer,
    ),
}
