"""The sides of benchmarks/serving.py and their commands."""

import dataclasses
import pathlib

from places import PEERS

# Names in the folder of the models.
WEIGHTS = "huggingface"
ONNX = "model.onnx"


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
    program = PEERS / "saved_model_serving.py"
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
