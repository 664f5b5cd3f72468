"""Speed of pre-training, beside transformers and KerasHub.

    python benchmarks/training_step.py --output=build/training_step.json

runs the step of run_pretraining.py (forward, masked words and next sentence,
backward, clipping, update) on random examples; the same of transformers, eager
and with torch.compile, and of KerasHub. Each side is a process on the same
cores, started for each case.

    python benchmarks/training_step.py --device=cuda --output=build/gpu.json

runs our model on Keras's JAX backend and transformers on a GPU. All sides share
its memory; reduce --tokens if it does not suffice.

The share of the matmul peak counts only the products that the model needs,
three times the forward pass, relative to a large product of matrices that the
same process computes just before, in the same precision.
"""

import dataclasses
import itertools
import subprocess
import sys
from typing import Any, NamedTuple

import comparison
import sides

from bert_tf import BertConfig, cli
from bert_tf.base.options import option
from bert_tf.errors import InputError

VOCAB_SIZE = 30522
MODELS = {
    "384x6": BertConfig.from_name("L-6_H-384_A-6", VOCAB_SIZE),
    "base": BertConfig.from_name("base", VOCAB_SIZE),
    "large": BertConfig.from_name("large", VOCAB_SIZE),
    "tiny": BertConfig.from_name("L-1_H-32_A-2", 101),
}
# The fields of a configuration that all libraries have.
SHAPE = (
    *("vocab_size", "hidden_size", "num_hidden_layers"),
    *("num_attention_heads", "intermediate_size"),
    *("max_position_embeddings", "type_vocab_size"),
)
# The share of the tokens that is masked, as in `create_pretraining_data.py`.
MASKED = 0.15
QUERY = (
    *("nvidia-smi", "-i", "0", "--format=csv,noheader"),
    "--query-gpu=name,memory.total,driver_version",
)
FACT = (
    "Examples without padding, 15 % of the tokens masked; 384x6 means 6 layers "
    "of hidden size 384; dropout 0.1; AdamW with clipping. bfloat16 is mixed: "
    "weights stay float32"
)


class Device(NamedTuple):
    """What is measured on a kind of device."""

    section: str
    title: str
    # Side -> its title, its environment and its program.
    sides: dict[str, tuple[str, str | None, str]]
    models: tuple[str, ...]
    precisions: tuple[str, ...]
    tokens: int  # Of a batch.
    # How many steps, and how many products of which matrices, run before each
    # wait for the device; environment variables.
    setup: dict[str, Any]


HUGGINGFACE = ("huggingface", "huggingface_training.py")
TORCH = {
    "eager": ("transformers, torch", *HUGGINGFACE),
    "compiled": ("transformers, torch.compile", *HUGGINGFACE),
}
DEVICES = {
    "cpu": Device(
        "training_step",
        "Pre-training: a step of masked words and next sentence",
        {
            comparison.OURS: ("bert_tf", None, "keras_training.py"),
            **TORCH,
            "keras_hub": ("KerasHub", "keras_hub", "keras_training.py"),
        },
        ("384x6", "base"),
        ("float32", "bfloat16"),
        2048,
        {
            **{"steps": 1, "matrix_size": 2048, "products": 1},
            "variables": {"KERAS_BACKEND": "tensorflow"},
        },
    ),
    "cuda": Device(
        "gpu",
        "BERT on a GPU",
        {
            comparison.OURS: ("bert_tf, JAX", "jax_cuda", "keras_training.py"),
            **TORCH,
        },
        ("base", "large"),
        ("bfloat16",),
        16384,
        {
            **{"steps": 10, "matrix_size": 8192, "products": 20},
            "variables": {
                **{"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cuda"},
                # JAX takes no more memory than it needs.
                "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
            },
        },
    ),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingStepConfig(comparison.BenchmarkOptions):
    """Options of this benchmark."""

    device: str = option(
        "What it runs on.", default="cpu", choices=tuple(DEVICES)
    )
    models: tuple[str, ...] = option(
        f"Sizes of the model, of {', '.join(MODELS)}.", default=()
    )
    lengths: tuple[str, ...] = option(
        "Lengths of the sequences.", default=("128", "512")
    )
    tokens: int | None = option("Tokens of a batch.", default=None, at_least=1)


def run(config: TrainingStepConfig) -> comparison.Comparison:
    """Runs the benchmark."""
    comparison.require_known("models", config.models, MODELS)
    device = DEVICES[config.device]
    variants = config.chosen(device.sides)
    titles = {side: title for side, (title, *_) in device.sides.items()}
    facts = [FACT] if config.device == "cpu" else [describe_gpu(), FACT]
    results = comparison.Comparison(device.title, "tokens/s", titles, facts)
    for model, length, precision in itertools.product(
        config.models or device.models,
        map(int, config.lengths),
        device.precisions,
    ):
        size = max(1, (config.tokens or device.tokens) // length)
        setup = {
            **workload(model, size, length),
            **device.setup,
            "precision": precision,
            "device": config.device,
            "num_threads": sides.CORES,
        }
        setup["flops"] *= setup["steps"]
        programs = {}
        for side in variants:
            _, environment, program = device.sides[side]
            python = sys.executable
            if environment:
                python = sides.peer_python(config.pythons, environment)
            programs[side] = python, program, setup | {"side": side}
        case = comparison.Case(
            f"{model}, {size} x {length}, {precision}",
            setup["steps"] * size * length,
            dict.fromkeys(variants, config.least_seconds),
        )
        with sides.started(programs) as processes:
            comparison.take_turns(results, [case], processes, config)
    return comparison.report(results, config, device.section)


def workload(model: str, batch_size: int, length: int) -> dict[str, Any]:
    """Returns what a step computes.

    "flops" are those of the matrix products that a step needs: the backward
    pass has two products for each one of the forward pass.
    """
    config = MODELS[model]
    masked = round(MASKED * length)
    hidden = config.hidden_size
    per_token = (
        8 * hidden**2  # query, key, value, output
        + 4 * hidden * config.intermediate_size
        + 4 * length * hidden  # scores and context
    )
    forward = (
        length * config.num_hidden_layers * per_token
        + 2 * hidden**2  # pooler
        + masked * 2 * (hidden**2 + hidden * config.vocab_size)
    )
    return {
        "config": {name: getattr(config, name) for name in SHAPE},
        "batch_size": batch_size,
        "max_seq_length": length,
        "max_predictions_per_seq": masked,
        "flops": float(batch_size * 3 * forward),
    }


def describe_gpu() -> str:
    """Returns the name, the memory and the driver of the first GPU."""
    try:
        return subprocess.run(
            QUERY, capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        raise InputError("nvidia-smi finds no GPU.") from None


if __name__ == "__main__":
    cli.main(run)
