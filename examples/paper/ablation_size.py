"""Table 6 of the paper: the effect of model size.

    python examples/paper/ablation_size.py \\
        --input_file='books/[a-y]*.txt' --held_out_file='books/z*.txt' \\
        --data_dir=glue_data --output_dir=/tmp/ablation_size

Pre-trains a model of each size on the same text, reports the perplexity of the
masked words of held-out text, and fine-tunes each. The sizes have the paper's
heads, a third of its layers and an eighth of its width (--layers_divisor,
--hidden_divisor); --full prints the commands for the paper's sizes. A larger
model takes longer for a step; --equal_compute gives every size the same compute
instead of the same number of steps. CoNLL-2003 and SQuAD are not in the paper's
table.

Rerun a stopped command to continue; finished runs are skipped. Source: section
5.2 of the paper.
"""

import dataclasses
import itertools
import math

import plan
from tables import Goal, Table, fill

from bert_tf import cli
from bert_tf.base import files
from bert_tf.base.options import option
from bert_tf.errors import InputError, wrong_value


@dataclasses.dataclass(frozen=True, kw_only=True)
class SizeConfig(plan.SpanOptions, plan.GlueOptions):
    """Options of this program."""

    held_out_file: str = option("Text that no model is trained on.")
    tasks: tuple[str, ...] = plan.tasks_option("MNLI", "MRPC", "SST-2")
    equal_compute: bool = option(
        "Whether all sizes are pre-trained with the compute of BERT-Base's "
        "row, L-12_H-768_A-12, for --num_train_steps; smaller sizes take more "
        "steps, larger ones fewer.",
        default=False,
    )
    layers_divisor: int | None = plan.sized(
        "Divisor of the paper's numbers of layers. Many narrow layers learn "
        "little in few steps.",
        3,
        1,
        at_least=1,
        at_most=3,
    )
    hidden_divisor: int | None = plan.sized(
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
BASE = (12, 768, 12)
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


def run(config: SizeConfig) -> None:
    """Fills the table."""
    config = config.resolved()
    if config.full and config.equal_compute:
        raise InputError("--equal_compute does not go with --full.")
    require_widths(config)
    if not config.full:
        require_apart(config)
    tasks = [
        *plan.glue_tasks(config),
        *plan.squad_tasks(config),
        *plan.ner_tasks(config),
    ]
    sizes, table = planned(config)
    goals = []
    for row, (size, steps) in sizes.items():
        sized = dataclasses.replace(config, num_train_steps=steps)
        models = plan.pretrained(sized, size, held_out=config.held_out_file)
        goals += [
            Goal(
                *(row, PERPLEXITY, number, 1, model.run),
                lambda results: math.exp(results["masked_lm_loss"]),
            )
            for number, model in enumerate(models, 1)
        ]
        goals += plan.fine_tunings(row, config, models, tasks)
    fill(table, goals, config.output_dir, config.full)


def planned(config: SizeConfig) -> tuple[dict[str, tuple[str, int]], Table]:
    """Returns the size and the steps of each row, and the table."""
    base = BASE[0] // config.layers_divisor, BASE[1] // config.hidden_divisor
    sizes, rows = {}, {}
    for layers, hidden_size, heads in SIZES:
        row = name_of(layers, hidden_size, heads)
        depth = layers // config.layers_divisor
        width = hidden_size // config.hidden_divisor
        rows[row] = [layers, hidden_size, heads, depth, width]
        steps = config.num_train_steps
        if config.equal_compute:
            share = cost(config, *base) / cost(config, depth, width)
            steps = max(1, round(share * steps))
            rows[row].append(steps)
        sizes[row] = name_of(depth, width, heads), steps
    sizes = {row: sizes[row] for row in config.chosen(sizes)}
    table = Table(
        "ablation_size" + "_equal_compute" * config.equal_compute,
        "Table 6: the size of the model; perplexity of masked words in text "
        "that is held out, and development sets, in percent",
        ["#L", "#H", "#A", "#L here", "#H here"]
        + ["Steps"] * config.equal_compute,
        rows,
        PAPER,
        # The paper finds each size better than the one above it.
        [*itertools.pairwise(sizes), (next(iter(sizes)), [*sizes][-1])],
        config.note,
    )
    return sizes, table


def cost(config: SizeConfig, layers: int, hidden_size: int) -> float:
    """Returns the multiplications of a step, per token, in a forward pass.

    The terms: the four products of attention with weights and the two of the
    feed-forward layer; scores and weighted sums; the masked words.
    """
    weights = 12 * hidden_size**2
    attention = 2 * config.max_seq_length * hidden_size
    predicted = 0.15 * hidden_size * (hidden_size + config.vocab_size)
    return layers * (weights + attention) + predicted


def require_widths(config: SizeConfig) -> None:
    """Raises InputError if a width is not a multiple of its heads."""
    names = [name_of(*size) for size in SIZES]
    for name in config.chosen(names):
        _, hidden_size, heads = SIZES[names.index(name)]
        width = hidden_size // config.hidden_divisor
        if not width or width % heads:
            raise wrong_value(
                "--hidden_divisor",
                "one of 1, 2, 4, 8, 16, 32 or 64, or another with which the "
                f"width {hidden_size} becomes a multiple of its {heads} heads",
                config.hidden_divisor,
            )


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
