"""BERT on a GPU: sequences per second, beside transformers.

    python benchmarks/gpu.py --output=build/gpu.json

runs the models on Keras's JAX backend, and those of transformers on torch with
its fused attention (SDPA), eager and by torch.compile. For each size there is a
case of the encoder's forward pass, with weights in bfloat16, and one of
the pre-training step (masked words and next sentence, backward, clipping,
AdamW), with products in bfloat16 and weights in float32. Each side is a process
of its own, anew for each case; they take turns, round by round, on one GPU, and
keep their memory meanwhile: --tokens is for where it does not suffice.

Inputs are rows of 128 or of 512 tokens, one example each, or rows of 512 that
several examples share (see data/sequence_packing.py). transformers gives each
of these a row of its own, padded to 512. A sequence is an example.

Beside the sequences there is the share of the matmul peak: FLOPs that the model
needs (see `workload.py`) over what the same process does just before in large
products of matrices in bfloat16.

The environments are made once, of peers/jax_cuda.txt and peers/huggingface.txt;
--jax_python and --peer_python name such as are there. torch compiles with a C++
compiler; without one that side is left out. --go_on leaves out the cases that
--output has already. --platform=cpu runs all of it at tiny sizes where there is
no GPU, to see that it runs.
"""

import dataclasses
import itertools
import os
import subprocess

import benchmark_flags
import step_sides
from absl import app, flags
from places import BENCHMARKS, ROOT
from step_sides import COMPILED, EAGER, Pace
from turns import OURS, Case, Comparison
from workload import Workload

from bert_tf.config import BertConfig

FLAGS = flags.FLAGS
TITLES = {
    OURS: "bert_tf, JAX",
    EAGER: "transformers, torch",
    COMPILED: "transformers, torch.compile",
}
# How many times as fast ours should be.
AIMS = {EAGER: 1.0, COMPILED: 1.0}
FORWARD, TRAINING = "forward", "training"
VOCAB_SIZE = 30522
PRECISION = "bfloat16"
# The parts of two rows that their examples take: half a row on average, and one
# of them as long as there is room for.
SHARED = ((1.0,), (0.625, 0.25, 0.125))
ALONE = ((1.0,),)
QUERY = (
    *("nvidia-smi", "-i", "0", "--format=csv,noheader"),
    "--query-gpu=name,memory.total,driver_version",
)


@dataclasses.dataclass(frozen=True)
class Platform:
    """What suits a kind of device.

    Attributes:
      models: Name -> shape.
      tokens: Name -> tokens of a batch.
      lengths: Inputs -> positions of a row.
      pace: How much it is asked for at once.
      environment: Our peer environment.
      facts: What readers of the results have to know.
    """

    models: dict[str, BertConfig]
    tokens: dict[str, int]
    lengths: dict[str, int]
    pace: Pace
    environment: str
    facts: tuple[str, ...]


def tiny(num_layers: int) -> BertConfig:
    return BertConfig(
        vocab_size=101,
        hidden_size=32,
        num_hidden_layers=num_layers,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
        type_vocab_size=2,
    )


PLATFORMS = {
    "cuda": Platform(
        {n: BertConfig.from_name(n, VOCAB_SIZE) for n in ("base", "large")},
        {"base": 32768, "large": 16384},
        {"128": 128, "512": 512, "packed": 512},
        Pace(steps=10, matrix_size=8192, products=20),
        environment="jax_cuda",
        facts=(
            "Aims on an H200, of BERT-Large in training: 1,640 sequences/s of "
            "128 tokens, 770 of up to 512 that share rows",
        ),
    ),
    "cpu": Platform(
        {"base": tiny(1), "large": tiny(2)},
        {"base": 128, "large": 128},
        {"128": 16, "512": 64, "packed": 64},
        Pace(steps=2, matrix_size=256, products=2),
        environment="jax_cpu",
        facts=("Tiny models on a CPU: it runs, and no number says anything",),
    ),
}
INPUTS = tuple(PLATFORMS["cuda"].lengths)

flags.DEFINE_enum("platform", "cuda", list(PLATFORMS), "What it runs on.")
benchmark_flags.define_some("models", PLATFORMS["cuda"].models)
benchmark_flags.define_some("inputs", INPUTS)
benchmark_flags.define_some("kinds", (TRAINING, FORWARD))
flags.DEFINE_integer(
    "tokens",
    None,
    "Of a batch; unless given 32,768 for base and 16,384 for large.",
    lower_bound=1,
)
step_sides.define_flags(TITLES, rounds=5)
benchmark_flags.define_interpreter("jax_python", "jax_cuda")


@dataclasses.dataclass(frozen=True)
class Work:
    """A model, what it is given, and what it does with it."""

    model: str
    inputs: str
    kind: str

    @property
    def platform(self) -> Platform:
        return PLATFORMS[FLAGS.platform]

    @property
    def max_seq_length(self) -> int:
        return self.platform.lengths[self.inputs]

    @property
    def workload(self) -> Workload:
        """The batch, in whole rows or pairs of them."""
        pattern = SHARED if self.inputs == "packed" else ALONE
        length = self.max_seq_length
        rows = tuple(
            tuple(round(part * length) for part in parts) for parts in pattern
        )
        tokens = FLAGS.tokens or self.platform.tokens[self.model]
        times = max(1, tokens // (length * len(rows)))
        return Workload(
            self.platform.models[self.model],
            rows * times,
            length,
            is_training=self.kind == TRAINING,
        )

    def case(self, sides: list[str]) -> Case:
        workload, pace = self.workload, self.platform.pace
        request = step_sides.request_of(
            workload, PRECISION, FLAGS.platform, pace
        )
        rows = f"{len(workload.rows)} x {self.max_seq_length}"
        if self.inputs == "packed":
            rows += f" shared by {workload.num_examples}"
        return Case(
            f"{self.model}, {rows}, {self.kind}",
            pace.steps * workload.num_examples,
            dict.fromkeys(sides, request),
            {side: aim for side, aim in AIMS.items() if side in sides},
        )


def main() -> None:
    facts = [gpu()] if FLAGS.platform == "cuda" else []
    comparison = Comparison.begin(
        "BERT on a GPU",
        "sequences/s",
        TITLES,
        facts=[
            *facts,
            "Dropout 0.1, 15 % of the tokens masked, AdamW with clipping, "
            "products in bfloat16 and weights in float32 for training; weights "
            "in bfloat16 for the forward pass. Where examples share rows, "
            "transformers has a padded row for each",
            *PLATFORMS[FLAGS.platform].facts,
        ],
        left_out=step_sides.left_out(),
    )
    names = step_sides.measured_sides(comparison)
    cases = [
        Work(model, inputs, kind).case(names)
        for model, inputs, kind in itertools.product(
            FLAGS.models, FLAGS.inputs, FLAGS.kinds
        )
    ]
    step_sides.measure(comparison, cases, command, variables)


def gpu() -> str:
    """What the first GPU is: its name, memory and driver.

    Raises:
      SystemExit: There is none.
    """
    try:
        return subprocess.run(
            QUERY, capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        raise SystemExit(
            "error: expected a GPU that nvidia-smi knows. Received: none; "
            "--platform=cpu runs all of it at tiny sizes"
        ) from None


def command(side: str) -> list[str]:
    """See `step_sides.measure`."""
    if side != OURS:
        return step_sides.transformers_command(side)
    environment = PLATFORMS[FLAGS.platform].environment
    python = benchmark_flags.interpreter("jax_python", environment)
    return [python, "bert_tf_jax.py"]


def variables(side: str) -> dict[str, str]:
    """One GPU for all, of which JAX takes no more memory than it needs."""
    shared = {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "0" if FLAGS.platform == "cuda" else "-1",
    }
    if side != OURS:
        return shared
    given = os.environ.get("PYTHONPATH")
    path = [str(ROOT), str(BENCHMARKS), *([given] if given else [])]
    return {
        **shared,
        "JAX_PLATFORMS": FLAGS.platform,
        "PYTHONPATH": os.pathsep.join(path),
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }


if __name__ == "__main__":
    app.run(lambda argv: main())
