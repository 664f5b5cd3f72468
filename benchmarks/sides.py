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

from comparison import Settings
from places import PEERS, ROOT

from bert_tf.metrics import METRICS, squad_v1
from bert_tf.tasks.questions import read_questions

# Scores of SQuAD are out of 100, as its official script prints them.
PERCENT = 100


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a side says of its training."""

    scores: dict[str, float]
    eval_loss: float | None
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
    """Of our script, for a model that is trained already."""
    script = (
        "run_squad.py" if settings.task_name == "squad" else "run_classifier.py"
    )
    return [
        str(ROOT / script),
        *shared_flags(settings),
        f"--output_dir={folder / 'model'}",
        "--do_eval",
    ]


def peer_arguments(
    settings: Settings, seed: int, folder: pathlib.Path
) -> list[str]:
    script = (
        "huggingface_squad.py"
        if settings.task_name == "squad"
        else "huggingface_trainer.py"
    )
    return [
        str(PEERS / script),
        *shared_flags(settings),
        f"--output_dir={folder / 'model'}",
        f"--random_seed={seed}",
        f"--num_threads={settings.num_threads}",
    ]


def shared_flags(settings: Settings) -> list[str]:
    """What both programs call the same."""
    values = dataclasses.asdict(settings)
    del values["num_threads"], values["train_file"], values["dev_file"]
    if settings.task_name == "squad":
        del values["task_name"], values["data_dir"]
        values["train_file"] = path_of(settings, settings.train_file)
        values["predict_file"] = path_of(settings, settings.dev_file)
        values["predict_batch_size"] = values.pop("eval_batch_size")
    return [f"--{name}={value}" for name, value in values.items()]


def path_of(settings: Settings, file: str) -> pathlib.Path:
    return pathlib.Path(settings.data_dir) / file


def our_answer(settings: Settings, folder: pathlib.Path) -> Answer:
    path = folder / "model" / "eval_results.json"
    results = json.loads(path.read_text(encoding="utf-8"))
    scale = PERCENT if settings.task_name == "squad" else 1
    return Answer(
        scores={
            name: results[f"eval_{name}"] / scale for name in settings.metrics
        },
        eval_loss=results.get("eval_loss"),
        global_step=results["global_step"],
        train_seconds=results["train_seconds"],
        versions=our_versions(),
    )


def peer_answer(settings: Settings, folder: pathlib.Path) -> Answer:
    """Reads its last line; its predictions are scored as ours are."""
    output = (folder / "stdout").read_text(encoding="utf-8")
    said = json.loads(output.splitlines()[-1])
    scores = (
        answers_scored(settings, folder)
        if settings.task_name == "squad"
        else {
            name: METRICS[name](said["labels"], said["predictions"])
            for name in settings.metrics
        }
    )
    return Answer(
        scores,
        said.get("eval_loss"),
        said["global_step"],
        said["train_seconds"],
        said["versions"],
    )


def answers_scored(
    settings: Settings, folder: pathlib.Path
) -> dict[str, float]:
    """The official scores of `predictions.json`, from 0 to 1."""
    path = folder / "model" / "predictions.json"
    predictions = json.loads(path.read_text(encoding="utf-8"))
    questions = read_questions(
        str(path_of(settings, settings.dev_file)),
        with_negative=False,
        needs_answers=False,
    )
    gold = {
        question.id: [answer.text for answer in question.answers]
        for question in questions
    }
    scores = squad_v1(gold, predictions)
    return {name: score / PERCENT for name, score in scores.items()}


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
