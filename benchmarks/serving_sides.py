"""The sides of benchmarks/serving.py: their commands, and how to ask them."""

import contextlib
import dataclasses
import json
import os
import pathlib
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from measured import LAST_CHARACTERS

BENCHMARKS = pathlib.Path(__file__).resolve().parent
PEERS = BENCHMARKS / "peers"
# Names in the folder of the models.
WEIGHTS = "huggingface"
ONNX = "model.onnx"
SECONDS_TO_END = 20


@dataclasses.dataclass(frozen=True)
class Side:
    """One way to answer.

    Attributes:
      title: For the readers of the results.
      precision: "float32" or "bfloat16".
      program: What answers; see peers/answering.py.
      model: What it loads, a name in the folder of the models.
      arguments: What else it is told.
      peer: Whose environment it runs in, a name of benchmarks/peers; None for
        the environment of the benchmark.
      aim: How many times as fast ours should be.
    """

    title: str
    precision: str
    program: pathlib.Path
    model: str
    arguments: tuple[str, ...] = ()
    peer: str | None = None
    aim: float | None = None

    @property
    def is_compiled(self) -> bool:
        return "--compile" in self.arguments

    def command(
        self, folder: pathlib.Path, max_seq_length: int, num_threads: int
    ) -> list[str]:
        """What follows the interpreter."""
        words = [str(self.program), f"--model={folder / self.model}"]
        if self.peer is None:
            return words  # Its length is in the model, its threads are given.
        return [
            *words,
            *(word.format(folder=folder) for word in self.arguments),
            f"--max_seq_length={max_seq_length}",
            f"--num_threads={num_threads}",
        ]


def _ours(precision: str) -> Side:
    program = BENCHMARKS / "saved_model_serving.py"
    return Side("bert_tf", precision, program, precision)


def _torch(title: str, how: str, *more: str) -> Side:
    return Side(
        title,
        "float32" if how == "float32" else "bfloat16",
        PEERS / "huggingface_serving.py",
        WEIGHTS,
        (f"--precision={how}", *more),
        "huggingface",
        1.0 if more else 1.2,
    )


SIDES = {
    "ours": _ours("float32"),
    "eager": _torch("torch", "float32"),
    "compiled": _torch("torch, compiled", "float32", "--compile"),
    "onnxruntime": Side(
        "ONNX Runtime",
        "float32",
        PEERS / "onnxruntime_serving.py",
        WEIGHTS,
        (f"--onnx={{folder}}/{ONNX}",),
        "onnxruntime",
        1.0,
    ),
    "ours_bfloat16": _ours("bfloat16"),
    "eager_autocast": _torch("torch, autocast", "autocast"),
    "eager_bfloat16": _torch("torch, weights in bfloat16", "bfloat16"),
    "compiled_autocast": _torch(
        "torch, autocast, compiled", "autocast", "--compile"
    ),
    "compiled_bfloat16": _torch(
        "torch, weights in bfloat16, compiled", "bfloat16", "--compile"
    ),
}


class Answerer:
    """A side at work, in a process of its own.

    Attributes:
      versions: Of its packages.
    """

    def __init__(self, process: subprocess.Popen, said: pathlib.Path):
        self._process = process
        self._said = said
        self.versions: dict[str, str] = self._reply()["versions"]

    def ask(self, batches: Sequence[Sequence[str]]) -> dict[str, Any]:
        """What peers/answering.py says of these texts.

        Raises:
          SystemExit: The side failed; with the end of what it said.
        """
        # One that has failed takes nothing; it says so when it should reply.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(batches) + "\n")
            self._process.stdin.flush()
        return self._reply()

    def _reply(self) -> dict[str, Any]:
        line = self._process.stdout.readline()
        if line:
            return json.loads(line)
        status = self._process.wait()
        end = self._said.read_text(encoding="utf-8", errors="replace")
        raise SystemExit(
            f"{end[-LAST_CHARACTERS:]}\nerror: exit status {status} of "
            f"{' '.join(map(str, self._process.args))}"
        )


@contextlib.contextmanager
def answerer(
    command: Sequence[str],
    said: pathlib.Path,
    environment: Mapping[str, str],
) -> Iterator[Answerer]:
    """Starts a side, and ends it when the block ends.

    Args:
      command: Its words.
      said: The file for what it says beside its answers.
      environment: Variables beside those of this process.

    Raises:
      SystemExit: It failed; with the end of what it said.
    """
    with (
        said.open("wb") as error,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=error,
            text=True,
            encoding="utf-8",
            env={**os.environ, **environment},
        ) as process,
    ):
        try:
            yield Answerer(process, said)
        finally:
            # Its input ends, and so does it, with what it has started.
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(SECONDS_TO_END)
            process.kill()
