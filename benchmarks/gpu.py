"""Speed on a GPU, beside transformers.

    python benchmarks/gpu.py --output=build/gpu.json

runs our models on Keras's JAX backend and those of transformers on torch with
its fused attention (SDPA), eager and with torch.compile: the encoder's forward
pass with weights in bfloat16, and the pre-training step with products in
bfloat16 and weights in float32. Each side is a process, started for each case;
all share one GPU and keep their memory while they take turns (reduce --tokens
if it does not suffice).

Rows have 128 or 512 tokens of one example each, or 512 tokens of several
examples (`bert_tf/data/sequence_packing.py`), for which transformers uses a
padded row each. The share of the matmul peak is that of training_step.py.

The environments are created from peers/jax_cuda.txt and peers/huggingface.txt.
--platform=cpu runs everything at tiny sizes without a GPU, as a check.
"""

import dataclasses
import itertools
import os
import subprocess
from typing import NamedTuple

from comparison import (
    OURS,
    Case,
    Comparison,
    publish,
    python_option,
    require_known,
    rounds_option,
    section,
)
from sides import peer_python
from training_step import (
    COMPILED,
    EAGER,
    OUR_PATH,
    StepOptions,
    measure,
    transformers_command,
)
from workload import Workload

from bert_tf import BertConfig, cli
from bert_tf.errors import InputError
from bert_tf.options import option

TITLES = {
    OURS: "bert_tf, JAX",
    EAGER: "transformers, torch",
    COMPILED: "transformers, torch.compile",
}
FORWARD, TRAINING = "forward", "training"
# The parts of two rows that their examples take: half a row on average.
SHARED = ((1.0,), (0.625, 0.25, 0.125))
QUERY = (
    *("nvidia-smi", "-i", "0", "--format=csv,noheader"),
    "--query-gpu=name,memory.total,driver_version",
)


class Platform(NamedTuple):
    """The sizes for a kind of device.

    Attributes:
      models: Name -> configuration.
      tokens: Name -> tokens of a batch.
      lengths: Kind of input -> length of a row.
      amount: The steps, and the matrices and their products, before the device
        is waited for.
      environment: The packages of our side.
    """

    models: dict[str, BertConfig]
    tokens: dict[str, int]
    lengths: dict[str, int]
    amount: dict[str, int]
    environment: str


PLATFORMS = {
    "cuda": Platform(
        {n: BertConfig.from_name(n, 30522) for n in ("base", "large")},
        {"base": 32768, "large": 16384},
        {"128": 128, "512": 512, "packed": 512},
        {"steps": 10, "matrix_size": 8192, "products": 20},
        "jax_cuda",
    ),
    "cpu": Platform(
        {
            "base": BertConfig.from_name("L-1_H-32_A-2", 101),
            "large": BertConfig.from_name("L-2_H-32_A-2", 101),
        },
        {"base": 128, "large": 128},
        {"128": 16, "512": 64, "packed": 64},
        {"steps": 2, "matrix_size": 256, "products": 2},
        "jax_cpu",
    ),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class GpuConfig(StepOptions):
    """Options of this benchmark."""

    platform: str = option(
        "What it runs on.", default="cuda", choices=tuple(PLATFORMS)
    )
    models: tuple[str, ...] = option(
        "Sizes: base, large.", default=("base", "large")
    )
    inputs: tuple[str, ...] = option(
        "Inputs: 128, 512, packed.", default=("128", "512", "packed")
    )
    kinds: tuple[str, ...] = option(
        "Kinds of steps: training, forward.", default=(TRAINING, FORWARD)
    )
    tokens: int | None = option(
        "Tokens of a batch. Default: 32,768 for base and 16,384 for large.",
        default=None,
        at_least=1,
    )
    rounds: int = rounds_option(5)
    variants: tuple[str, ...] = option(
        f"Sides: {', '.join(TITLES)}.", default=tuple(TITLES)
    )
    jax_python: str | None = python_option("jax_cuda")


def run(config: GpuConfig) -> Comparison:
    """Runs the benchmark."""
    platform = PLATFORMS[config.platform]
    require_known("models", config.models, platform.models)
    require_known("inputs", config.inputs, platform.lengths)
    require_known("kinds", config.kinds, (TRAINING, FORWARD))
    require_known("variants", config.variants, TITLES)
    is_gpu = config.platform == "cuda"
    comparison = Comparison(
        "BERT on a GPU",
        "sequences/s",
        TITLES,
        facts=[
            describe_gpu() if is_gpu else "Tiny models on a CPU, as a check",
            "Dropout 0.1, 15 % of the tokens masked, AdamW with clipping, "
            "products in bfloat16 and weights in float32 for training; weights "
            "in bfloat16 for the forward pass. Where examples share rows, "
            "transformers has a padded row for each",
        ],
    )
    cases = [
        case(config, model, inputs, kind)
        for model, inputs, kind in itertools.product(
            config.models, config.inputs, config.kinds
        )
    ]

    def command(side: str) -> list[str]:
        if side != OURS:
            return transformers_command(config, side)
        python = peer_python(config.jax_python, platform.environment)
        return [python, "bert_tf_jax.py"]

    device = {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "0" if is_gpu else "-1",
    }
    variables = dict.fromkeys(TITLES, device)
    given = os.environ.get("PYTHONPATH")
    variables[OURS] = {
        **device,
        "JAX_PLATFORMS": config.platform,
        "PYTHONPATH": os.pathsep.join([OUR_PATH, *([given] if given else [])]),
        # JAX takes no more memory than it needs.
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }
    measure(comparison, cases, config, config.rounds, command, variables)
    publish(section(comparison), config.page, "gpu")
    return comparison


def case(config: GpuConfig, model: str, inputs: str, kind: str) -> Case:
    """Returns a case with a batch of whole rows, or of pairs of them."""
    platform = PLATFORMS[config.platform]
    length = platform.lengths[inputs]
    pattern = SHARED if inputs == "packed" else ((1.0,),)
    rows = tuple(
        tuple(round(part * length) for part in parts) for parts in pattern
    )
    tokens = config.tokens or platform.tokens[model]
    times = max(1, tokens // (length * len(rows)))
    work = Workload(
        platform.models[model], rows * times, length, kind == TRAINING
    )
    request = work.request(
        "bfloat16",
        config.platform,
        **platform.amount,
        least_seconds=config.least_seconds,
    )
    name = f"{model}, {len(work.rows)} x {length}"
    if inputs == "packed":
        name += f" shared by {work.num_examples}"
    return Case(
        f"{name}, {kind}",
        platform.amount["steps"] * work.num_examples,
        dict.fromkeys(config.variants, request),
    )


def describe_gpu() -> str:
    """Returns the name, the memory and the driver of the first GPU."""
    try:
        return subprocess.run(
            QUERY, capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        raise InputError(
            "nvidia-smi finds no GPU. --platform=cpu runs everything at tiny "
            "sizes without one."
        ) from None


if __name__ == "__main__":
    cli.main(run)
