"""The batch sizes that fit into a GPU, computed from the model.

    python benchmarks/gpu_memory.py --page=docs/gpu.md

Nothing is measured, and no GPU is needed. A training step is taken to need, in
bytes:

- for each parameter 16: the weight, its gradient and two moments in float32
- for each token and layer w * (9 * H + 2 * I + 2 * A * S), where w is 2 in half
  precision and 4 in float32, H is hidden_size, I intermediate_size, A the
  number of heads and S the sequence length: what the backward pass reads
- in pre-training, for each masked token 8 * vocab_size: logits and gradient

This is 0.8 to 1.15 times what the compiler for TPUs reports for steps that
leave a fifth of a chip's memory free (`make tpu`).
"""

import itertools
from collections.abc import Iterator

import comparison

from bert_tf import cli
from bert_tf.config import BertConfig

GIB = 2**30
VOCAB_SIZE = 30522
MASKED = 0.15
# Nominal memory in GiB -> cards.
CARDS = {
    16: "T4, V100",
    24: "A10, L4, RTX 4090",
    40: "A100",
    80: "A100, H100",
    141: "H200",
}
# The share of the memory for tensors: CUDA, libraries and fragments take the
# rest.
USABLE = 0.85


def step_bytes(
    config: BertConfig,
    length: int,
    batch_size: int,
    is_half: bool,
    is_pretraining: bool = False,
) -> tuple[int, int]:
    """Returns the bytes for parameters, and those for activations."""
    hidden, inner = config.hidden_size, config.intermediate_size
    layers, heads = config.num_hidden_layers, config.num_attention_heads
    width = 2 if is_half else 4
    values = 9 * hidden + 2 * inner + 2 * heads * length
    row = length * layers * width * values
    if is_pretraining:
        row += int(MASKED * length) * 8 * config.vocab_size
    return 16 * config.num_parameters(), batch_size * row


def largest_batch(config: BertConfig, length: int, memory: int, **how) -> int:
    """Returns the largest batch size; from 8 on, a multiple of 8."""
    fixed, row = step_bytes(config, length, 1, **how)
    count = max(0, int((memory * USABLE * GIB - fixed) / row))
    return count if count < 8 else count - count % 8


def rows() -> Iterator[list[str]]:
    """Yields the rows of the table."""
    cards = [f"{size} GiB ({names})" for size, names in CARDS.items()]
    yield ["step", "model", "tokens", *cards]
    kinds = {
        "fine-tuning, half precision": {"is_half": True},
        "fine-tuning, float32": {"is_half": False},
        "pre-training, half precision": {
            "is_half": True,
            "is_pretraining": True,
        },
    }
    for (title, how), name, length in itertools.product(
        kinds.items(), ("base", "large"), (128, 512)
    ):
        config = BertConfig.from_name(name, vocab_size=VOCAB_SIZE)
        batches = [largest_batch(config, length, gib, **how) for gib in CARDS]
        model = f"BERT-{name.title()}"
        yield [title, model, str(length), *map(str, batches)]


def run(config: comparison.PageOptions) -> None:
    """Writes the section of the page."""
    text = comparison.paragraphs(comparison.table(rows()))
    comparison.publish(text, config.page, "gpu_memory")


if __name__ == "__main__":
    cli.main(run)
