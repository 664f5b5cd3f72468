"""Table 6 of the paper: what larger models gain.

    python examples/paper/ablation_size.py \\
        --input_file='books/[a-y]*.txt' --held_out_file='books/z*.txt' \\
        --data_dir=glue_data --output_dir=/tmp/ablation_size

Pre-trains a model of each size on the same text, reports the perplexity of the
masked words of held-out text, and fine-tunes each. The sizes have the paper's
heads, a third of its layers and an eighth of its width (--layers_divisor,
--hidden_divisor); --full prints the commands for its own sizes.

Rerun a stopped command to continue; finished runs are skipped. Source: section
5.2 of the paper.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Mapping

from plan import (
    Kind,
    PaperOptions,
    data_option,
    fine_tunings,
    glue_tasks,
    release,
    sized,
    tasks_option,
)
from tables import Claim, Goal, Table, beside_paper, fill

from bert_tf import cli, files
from bert_tf.errors import InputError
from bert_tf.options import option


@dataclasses.dataclass(frozen=True, kw_only=True)
class SizeConfig(PaperOptions):
    """Options of this program."""

    input_file: str = option("Text to pre-train on; globs, with commas.")
    held_out_file: str = option("Text that no model is trained on.")
    data_dir: str | None = data_option()
    tasks: tuple[str, ...] = tasks_option("MNLI", "MRPC", "SST-2")
    layers_divisor: int | None = sized(
        "Divisor of the paper's numbers of layers. Many narrow layers learn "
        "little in few steps.",
        3,
        1,
        at_least=1,
        at_most=3,
    )
    hidden_divisor: int | None = sized(
        "Divisor of the paper's widths. A width must be a multiple of its "
        "heads, as with 1, 2, 4, 8, 16, 32 and 64.",
        8,
        1,
        at_least=1,
    )


# Layers, width and heads.
SIZES = (
    (3, 768, 12),
    (6, 768, 3),
    (6, 768, 12),
    (12, 768, 12),
    (12, 1024, 16),
    (24, 1024, 16),
)
PERPLEXITY = "LM (ppl)"
PAPER = {
    PERPLEXITY: (5.84, 5.24, 4.68, 3.99, 3.54, 3.23),
    "MNLI-m": (77.9, 80.6, 81.9, 84.4, 85.7, 86.6),
    "MRPC": (79.8, 82.2, 84.8, 86.7, 86.9, 87.8),
    "SST-2": (88.4, 90.7, 91.3, 92.9, 93.3, 93.7),
}


def name_of(layers: int, hidden_size: int, heads: int) -> str:
    """Returns a size as --model_size takes it."""
    return f"L-{layers}_H-{hidden_size}_A-{heads}"


ROWS = [name_of(*size) for size in SIZES]
# The paper finds each size better than the one above it.
CLAIMS = [Claim(above, below) for above, below in itertools.pairwise(ROWS)]


def perplexity(results: Mapping[str, float]) -> float:
    """Returns the perplexity of the masked words."""
    return math.exp(results["masked_lm_loss"])


def run(config: SizeConfig) -> None:
    """Fills the table."""
    config = config.resolved()
    if not config.full:
        require_apart(config)
    tasks = glue_tasks(config)
    num_models = min(config.num_seeds, config.num_pretraining_seeds)
    goals, rows = [], {}
    for row, (layers, hidden_size, heads) in zip(ROWS, SIZES, strict=True):
        depth = layers // config.layers_divisor
        width = hidden_size // config.hidden_divisor
        rows[row] = [layers, hidden_size, heads, depth, width]
        size = name_of(depth, width, heads)
        start = functools.partial(
            release, config, size, held_out=config.held_out_file
        )
        goals += [
            Goal(row, PERPLEXITY, start(seed).run, seed)
            for seed in range(1, num_models + 1)
        ]
        kinds = [Kind(task.title, task) for task in tasks]
        goals += fine_tunings(row, config, start, kinds)
    readers = {PERPLEXITY: perplexity, **{t.title: t.read for t in tasks}}
    columns = [
        beside_paper(title, read, ROWS, PAPER)
        for title, read in readers.items()
    ]
    table = Table(
        "ablation_size",
        "Table 6: the size of the model; perplexity of masked words in text "
        "that is held out, and development sets, in percent",
        ["#L", "#H", "#A", "#L here", "#H here"],
        rows,
        columns,
        CLAIMS,
        config.note,
    )
    fill(table, goals, config.output_dir, config.full)


def require_apart(config: SizeConfig) -> None:
    """Raises InputError if a file is both trained on and held out."""
    held_out = files.expand(config.held_out_file, "held_out_file")
    both = {*held_out} & {*files.expand(config.input_file, "input_file")}
    if both:
        raise InputError(
            "--held_out_file and --input_file must not share files; both have "
            f"{min(both)}."
        )


if __name__ == "__main__":
    cli.main(run)
