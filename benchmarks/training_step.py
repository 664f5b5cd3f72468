"""Tokens per second of the pre-training step, beside transformers and KerasHub.

    python benchmarks/training_step.py --output=build/training_step.json

runs the step that run_pretraining.py runs (forward, masked words and next
sentence, backward, clipping, update) on random records; the same of
transformers' BertForPreTraining, eager and by torch.compile; and of KerasHub's
encoder and head in Keras's own step. Each is a process of its own on the same
cores, anew for each size; they take turns, round by round.

Beside the tokens there is the share of the matmul peak: only FLOPs of the
model's own products are counted, three times the forward pass, over what the
same process does in a large product of matrices just before, in the same
precision. Dropout, softmax, layer norm and the update are time without FLOPs.
Products that a model does without need (transformers computes words for every
position, not for the masked ones alone) are not counted.

The peers are installed into virtual environments of their own, once;
--peer_python and --keras_hub_python name such as are there. torch compiles with
a C++ compiler; without one that side is left out. Nothing else should run
meanwhile; what others took is told.
"""

import contextlib
import dataclasses
import functools
import itertools
import os
import pathlib
import sys

import answerers
import benchmark_flags
import measured
import peer_environment
import turns
import turns_section
from absl import app, flags
from answerers import Answerer, answerer
from turns import OURS, Case, Comparison
from workload import Workload

from bert_tf.config import BertConfig

FLAGS = flags.FLAGS
BENCHMARKS = pathlib.Path(__file__).resolve().parent
PEERS = BENCHMARKS / "peers"
OUR_PATH = os.pathsep.join(map(str, (BENCHMARKS.parent, BENCHMARKS)))
EAGER, COMPILED, KERAS_HUB = "eager", "compiled", "keras_hub"
TITLES = {
    OURS: "bert_tf",
    EAGER: "transformers, torch",
    COMPILED: "transformers, torch.compile",
    KERAS_HUB: "KerasHub",
}
PRECISIONS = ("float32", "bfloat16")
# Precision -> side -> how many times as fast ours should be.
AIMS = {
    "float32": {EAGER: 2.5, COMPILED: 2.0, KERAS_HUB: 1.2},
    "bfloat16": {EAGER: 2.0, COMPILED: 2.0, KERAS_HUB: 1.2},
}
VOCAB_SIZE = 30522
# Of a square matrix that makes a machine show how fast it can multiply.
MATRIX_SIZE = 2048
MODELS = {
    "384x6": BertConfig(
        VOCAB_SIZE,
        hidden_size=384,
        num_hidden_layers=6,
        num_attention_heads=6,
        intermediate_size=1536,
        type_vocab_size=2,
    ),
    "base": BertConfig.from_name("base", VOCAB_SIZE),
}

benchmark_flags.define_some("models", MODELS)
flags.DEFINE_list("lengths", ["128", "512"], "Positions of an example.")
benchmark_flags.define_some("precisions", PRECISIONS, title="Of products. ")
flags.DEFINE_integer("tokens", 2048, "Of a batch.", lower_bound=1)
benchmark_flags.define_rounds(3)
flags.DEFINE_float("least_seconds", 5.0, "Of a round of a side.")
benchmark_flags.define_num_threads()
benchmark_flags.define_some("variants", TITLES)
benchmark_flags.define_output()
benchmark_flags.define_interpreter("peer_python", "huggingface")
benchmark_flags.define_interpreter("keras_hub_python", "keras_hub")


@dataclasses.dataclass(frozen=True)
class Work:
    """A model, a batch and a precision."""

    model: str
    max_seq_length: int
    precision: str

    @property
    def name(self) -> str:
        return (
            f"{self.model}, {self.batch_size} x {self.max_seq_length}, "
            f"{self.precision}"
        )

    @property
    def batch_size(self) -> int:
        return max(1, FLAGS.tokens // self.max_seq_length)

    @property
    def workload(self) -> Workload:
        return Workload(
            MODELS[self.model],
            ((self.max_seq_length,),) * self.batch_size,
            self.max_seq_length,
        )

    def case(self, sides: list[str]) -> Case:
        request = {
            **self.workload.request(),
            "precision": self.precision,
            "device": "cpu",
            "steps": 1,
            "flops": self.workload.flops(),
            "matrix_size": MATRIX_SIZE,
            "products": 1,
            "least_seconds": FLAGS.least_seconds,
        }
        return Case(
            self.name,
            self.batch_size * self.max_seq_length,
            dict.fromkeys(sides, request),
            {s: a for s, a in AIMS[self.precision].items() if s in sides},
        )


def main() -> None:
    variables = measured.hold_to_cpus(FLAGS.num_threads)
    comparison = Comparison.begin(
        "Pre-training: a step of masked words and next sentence",
        "tokens/s",
        TITLES,
        facts=[
            "Examples without padding, 15 % of the tokens masked; a size is "
            "hidden x layers, base is 768 x 12; dropout 0.1; AdamW with "
            "clipping. bfloat16 is mixed: weights stay float32"
        ],
        left_out=left_out(),
    )
    names = [name for name in FLAGS.variants if name not in comparison.left_out]
    keep = turns_section.keeper(comparison, FLAGS.output)
    start_one = functools.partial(start, variables=variables)
    for model, length, precision in itertools.product(
        FLAGS.models, map(int, FLAGS.lengths), FLAGS.precisions
    ):
        case = Work(model, length, precision).case(names)
        with answerers.together(start_one, names) as sides:
            turns.take(comparison, [case], sides, FLAGS.rounds, keep)
    print(turns_section.section(comparison))


def left_out() -> dict[str, str]:
    """Sides that cannot be measured here, and why."""
    return peer_environment.left_out({COMPILED} & {*FLAGS.variants})


def start(
    side: str, folder: pathlib.Path, variables: dict[str, str]
) -> contextlib.AbstractContextManager[Answerer]:
    python, program, *more = command(side)
    return answerer(
        [
            python,
            str(PEERS / program),
            f"--num_threads={FLAGS.num_threads}",
            *more,
        ],
        folder / f"{side}.stderr",
        {
            **variables,
            **peer_environment.quiet(folder),
            "PYTHONPATH": OUR_PATH if side == OURS else "",
        },
    )


def command(side: str) -> list[str]:
    """The interpreter of a side, its program, and what else it is told."""
    if side == OURS:
        return [sys.executable, "bert_tf_training.py"]
    if side == KERAS_HUB:
        python = benchmark_flags.interpreter(
            "keras_hub_python", "keras_hub", on_top=True
        )
        return [python, "keras_hub_training.py"]
    python = benchmark_flags.interpreter("peer_python", "huggingface")
    more = ["--compile"] if side == COMPILED else []
    return [python, "huggingface_training.py", *more]


if __name__ == "__main__":
    app.run(lambda argv: main())
