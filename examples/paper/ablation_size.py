"""Table 6 of the paper: what larger models gain.

    python examples/paper/ablation_size.py \\
        --input_file='books/[a-y]*.txt' --held_out_file='books/z*.txt' \\
        --data_dir=glue_data --output_dir=/tmp/ablation_size

Pre-trains a model of each size on the same text, tells the perplexity of the
masked words of text that is held out, and fine-tunes each. The sizes have the
paper's heads, a third of its layers and an eighth of its width
(--layers_divisor, --hidden_divisor); --full prints the commands for its own.

The same command goes on where it was stopped; runs that are done are not done
again. Source: section 5.2 of the paper.
"""

import functools
import itertools
import math
from collections.abc import Mapping

from absl import flags
from settings import (
    current_settings,
    define_flags,
    define_task_flags,
    value_or,
)
from stages import Kind, chance, fine_tunings, glue_tasks, release
from tables import Claim, Goal, Table, beside_paper, fill

from bert_tf import cli, files
from bert_tf.errors import InputError

define_flags()
define_task_flags("MNLI", "MRPC", "SST-2")
flags.DEFINE_string("held_out_file", None, "Text that none is trained on.")
flags.DEFINE_integer(
    "layers_divisor",
    3,
    "What the paper's numbers of layers are divided by. Many narrow layers "
    "learn little in few steps: 24 of 128, after 1,000 of them, no more than "
    "how frequent words are.",
    lower_bound=1,
    upper_bound=3,
)
flags.DEFINE_integer(
    "hidden_divisor",
    8,
    "What the paper's width is divided by; a width has to be a multiple of its "
    "heads, which 1, 2, 4, 8, 16, 32 and 64 leave it.",
    lower_bound=1,
)

FLAGS = flags.FLAGS

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
    """A size, as --model_size takes it."""
    return f"L-{layers}_H-{hidden_size}_A-{heads}"


ROWS = [name_of(*size) for size in SIZES]
# The paper finds each larger than the one above it to be better.
CLAIMS = [Claim(above, below) for above, below in itertools.pairwise(ROWS)]


def perplexity(results: Mapping[str, float]) -> float:
    """Of the masked words."""
    return math.exp(results["masked_lm_loss"])


def main() -> None:
    """Fills the table."""
    how = current_settings()
    if not FLAGS.full:
        require_apart()
    layers_divisor = value_or("layers_divisor", 1)
    hidden_divisor = value_or("hidden_divisor", 1)
    tasks = glue_tasks()
    num_models = min(how.num_seeds, FLAGS.num_pretraining_seeds)
    goals, rows = [], {}
    for row, (layers, hidden_size, heads) in zip(ROWS, SIZES, strict=True):
        depth, width = layers // layers_divisor, hidden_size // hidden_divisor
        rows[row] = [layers, hidden_size, heads, depth, width]
        size = name_of(depth, width, heads)
        start = functools.partial(
            release, how, size, held_out=FLAGS.held_out_file
        )
        goals += [
            Goal(row, PERPLEXITY, start(seed).run, seed)
            for seed in range(1, num_models + 1)
        ]
        kinds = [Kind(task.title, task) for task in tasks]
        goals += fine_tunings(row, how, start, kinds)
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
        chance(),
    )
    fill(table, goals)


def require_apart() -> None:
    """Makes sure that what is held out is not trained on.

    Raises:
      InputError: A file is in both, or there is none.
    """
    held_out = files.expand(FLAGS.held_out_file, "held_out_file")
    both = {*held_out} & {*files.expand(FLAGS.input_file, "input_file")}
    if both:
        raise InputError(
            "expected --held_out_file without what is in --input_file. "
            f"Received: {min(both)} in both"
        )


if __name__ == "__main__":
    cli.run_program(
        main, required=["input_file", "held_out_file", "output_dir"]
    )
