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

import dataclasses
import itertools
import os
import sys

import benchmark_flags
import step_sides
from absl import app, flags
from places import BENCHMARKS, ROOT
from step_sides import COMPILED, EAGER, Pace
from turns import OURS, Case, Comparison
from workload import Workload

from bert_tf.config import BertConfig

FLAGS = flags.FLAGS
OUR_PATH = os.pathsep.join([str(ROOT), str(BENCHMARKS)])
KERAS_HUB = "keras_hub"
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
PACE = Pace(steps=1, matrix_size=2048, products=1)
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
step_sides.define_flags(TITLES, rounds=3)
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
        request = step_sides.request_of(
            self.workload, self.precision, "cpu", PACE
        )
        return Case(
            self.name,
            self.batch_size * self.max_seq_length,
            dict.fromkeys(sides, request),
            {s: a for s, a in AIMS[self.precision].items() if s in sides},
        )


def main() -> None:
    comparison = Comparison.begin(
        "Pre-training: a step of masked words and next sentence",
        "tokens/s",
        TITLES,
        facts=[
            "Examples without padding, 15 % of the tokens masked; a size is "
            "hidden x layers, base is 768 x 12; dropout 0.1; AdamW with "
            "clipping. bfloat16 is mixed: weights stay float32"
        ],
        left_out=step_sides.left_out(),
    )
    names = step_sides.measured_sides(comparison)
    cases = [
        Work(model, length, precision).case(names)
        for model, length, precision in itertools.product(
            FLAGS.models, map(int, FLAGS.lengths), FLAGS.precisions
        )
    ]
    step_sides.measure(comparison, cases, command, variables)


def command(side: str) -> list[str]:
    """See `step_sides.measure`."""
    if side == OURS:
        return [sys.executable, "bert_tf_training.py"]
    if side == KERAS_HUB:
        python = benchmark_flags.interpreter(
            "keras_hub_python", "keras_hub", on_top=True
        )
        return [python, "keras_hub_training.py"]
    return step_sides.transformers_command(side)


def variables(side: str) -> dict[str, str]:
    return {"PYTHONPATH": OUR_PATH if side == OURS else ""}


if __name__ == "__main__":
    app.run(lambda argv: main())
