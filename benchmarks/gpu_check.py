"""Whether the scripts, the text models and exports work on an NVIDIA GPU.

    make gpu-check

runs each once with TensorFlow, on a BERT of two layers, and prints a line for
each check. It takes some minutes, and ends with status 1 if a check failed.
Without a GPU it says so in one line. `--cpu` runs the same checks on the CPU.
"""

import dataclasses
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import layouts
import sides
import small_tasks

from bert_tf import cli
from bert_tf.base.options import Options, option
from bert_tf.errors import InputError

STEPS = 6
# The largest difference of weights from those of the first check, which trains
# in float32: for other runs in float32, and for runs in half precision.
APART, HALF_APART = 1e-5, 1e-3
ONE_DEVICE = layouts.LAYOUTS["one_device"]
TWO_PROCESSES = layouts.LAYOUTS["two_workers"]
TWO_GPUS = layouts.Layout("two GPUs", "mirrored")
COUNT = """
import tensorflow as tf
print(len(tf.config.list_physical_devices("GPU")))
"""
SERVE = """
import sys, tensorflow as tf, tensorflow_text
model = tf.saved_model.load(sys.argv[1])
answers = model.signatures["serving_default"](tf.constant(["ba de", "ku"]))
print(*answers["label"].numpy().astype(str), sep=", ")
"""
TEXT_MODEL = """
import sys, bert_tf
texts, labels = ["ba ba de", "ku so ku"] * 8, ["a", "b"] * 8
model = bert_tf.TextClassifier.from_pretrained(sys.argv[1], labels=["a", "b"])
model.compile(bert_tf.AdamWeightDecay(0.003))
losses = model.fit(texts, labels, epochs=9, verbose=0).history["loss"]
answers = [answer["label"] for answer in model.predict(texts[:2])]
assert answers == labels[:2], answers
print(f"loss {losses[0]:.3f} to {losses[-1]:.3f}")
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class GpuCheckConfig(Options):
    """Options of this program."""

    cpu: bool = option("Whether to run on the CPU instead.", default=False)


def python(program: str, gpus: str | None, *words: object) -> str:
    """Returns the last line of a program that sees some GPUs, or all."""
    seen = {} if gpus is None else {"CUDA_VISIBLE_DEVICES": gpus}
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, words)],
        env={**os.environ, **sides.VARIABLES, **seen},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise InputError(f"status {done.returncode}: {lines[-1]}")
    return done.stdout.strip().splitlines()[-1]


def checks(
    folder: pathlib.Path, gpus: list[str]
) -> Iterator[tuple[str, Callable[[], str] | str]]:
    """Yields title and check; a text instead says why a check is skipped.

    Args:
      folder: An empty folder. The checks after the first use the first's model.
      gpus: Names for CUDA_VISIBLE_DEVICES; "-1" stands for the CPU.
    """
    release = folder / "float32" / "output" / "release"
    (folder / "data").mkdir()
    flags = small_tasks.write_pretraining(folder / "data") | {
        **{"do_train": True, "do_eval": True, "train_batch_size": 8},
        **{"num_train_steps": STEPS, "num_warmup_steps": 1},
    }

    def launch(name: str, layout: Any, script: str, given: Any) -> None:
        seen = gpus[:1] if layout is ONE_DEVICE else [",".join(gpus[:2])]
        seen = gpus[:2] if layout is TWO_PROCESSES else seen
        layouts.run(layout, script, given, folder / name, gpus=seen)
        log = (folder / name / "worker0.log").read_text(encoding="utf-8")
        if f"Devices: {'CPU' if gpus == ['-1'] else 'GPU'}" not in log:
            raise InputError(f"{script} did not run on the device.")

    def train(name: str, layout: Any = ONE_DEVICE, **more: object) -> str:
        """Pre-trains and compares the weights with those of `float32`."""
        launch(name, layout, "run_pretraining.py", flags | more)
        bound = HALF_APART if "mixed_precision" in more else APART
        return compare(folder / name, folder / "float32", bound)

    def resume() -> str:
        half_way = flags | {"stop_at_step": STEPS // 2}
        launch("resumed", ONE_DEVICE, "run_pretraining.py", half_way)
        return train("resumed")

    def fine_tune() -> str:
        given = small_tasks.write_classification(folder / "data") | {
            **{"init_checkpoint": release, "num_train_epochs": 2},
            **{"do_train": True, "do_predict": True, "do_export": True},
        }
        del given["bert_config_file"], given["vocab_file"]
        launch("classes", ONE_DEVICE, "run_classifier.py", given)
        [export] = (folder / "classes" / "output" / "export").iterdir()
        return f"the export answers {python(SERVE, gpus[0], export)}"

    yield "pre-training", lambda: train("float32")
    yield "resume", resume
    for half in ("bfloat16", "float16"):
        yield half, lambda half=half: train(half, mixed_precision=half)
    yield "fine-tuning and export", fine_tune
    yield "text model", lambda: python(TEXT_MODEL, gpus[0], release)
    if len(gpus) == 1 and gpus != ["-1"]:  # NCCL: one process for each GPU.
        yield "two processes", "skipped, since two GPUs are needed"
        return
    yield "two processes", lambda: train("processes", TWO_PROCESSES)
    if len(gpus) > 1:
        yield "two GPUs", lambda: train("replicas", TWO_GPUS)


def compare(run: pathlib.Path, other: pathlib.Path, bound: float) -> str:
    """Returns how far the weights of two runs are apart."""
    from bert_tf import start_tensorflow

    start_tensorflow.quietly()
    from bert_tf.checkpoints.tf1 import Reader

    one, two = (
        Reader(str(path / "output" / f"model.ckpt-{STEPS}"))
        for path in (run, other)
    )
    names = [name for name in two.shapes if "bert/" in name]
    gap = max(float(abs(one[name] - two[name]).max()) for name in names)
    if not gap <= bound:
        raise InputError(f"The weights differ by {gap:.1e}.")
    return f"weights differ by {gap:.1e}" if run != other else "trained"


def run(config: GpuCheckConfig) -> None:
    """Runs all checks, even if some fail."""
    count = 0 if config.cpu else int(python(COUNT, None))
    gpus = ["-1"] if config.cpu else [*map(str, range(count))]
    if not gpus:
        print(
            "gpu-check: TensorFlow finds no GPU here, so nothing was checked. "
            "`bert-tf env` prints what it finds."
        )
        return
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # Of this process.
    failed = []
    with tempfile.TemporaryDirectory() as name:
        for title, check in checks(pathlib.Path(name), gpus):
            try:
                line = check if isinstance(check, str) else f"ok: {check()}"
            except (InputError, LookupError, OSError, ValueError) as error:
                failed.append(title)
                line = f"FAILED: {error}"
            print(f"{title}: {line}", flush=True)
    if failed:
        raise InputError(f"These checks failed: {', '.join(failed)}.")


if __name__ == "__main__":
    cli.main(run)
