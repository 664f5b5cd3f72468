"""Table 6 of the paper: what larger models gain.

    python examples/paper/ablation_size.py \\
        --input_file='books/[a-y]*.txt' --held_out_file='books/z*.txt' \\
        --data_dir=glue_data --output_dir=/tmp/ablation_size

Pre-trains a model of each size on the same text, tells the perplexity of the
masked words of text that is held out, and fine-tunes each. The sizes have the
paper's layers and heads and an eighth of its width (--hidden_divisor); --full
prints the commands for the paper's own.

The same command goes on where it was stopped; runs that are done are not done
again. Source: section 5.2 of the paper.
"""

import itertools
import math
from collections.abc import Mapping

from absl import flags
from runs import Made
from stages import (
    define_flags,
    define_task_flags,
    glue_tasks,
    pretraining,
    settings,
)
from tables import Claim, Goal, Table, column, fill

from bert_tf import files
from bert_tf import flags as bert_flags

define_flags()
define_task_flags("MNLI", "MRPC", "SST-2")
flags.DEFINE_string("held_out_file", None, "Text that none is trained on.")
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
    how = settings()
    if not FLAGS.full:
        files.expand(FLAGS.held_out_file, "held_out_file")
    divisor = 1 if FLAGS.full else FLAGS.hidden_divisor
    tasks = glue_tasks()
    goals, rows = [], {}
    for row, (layers, hidden_size, heads) in zip(ROWS, SIZES, strict=True):
        width = hidden_size // divisor
        rows[row] = [layers, hidden_size, heads, width]
        size = name_of(layers, width, heads)
        run = pretraining(how, size, held_out=FLAGS.held_out_file)
        goals.append(Goal(row, PERPLEXITY, run))
        goals += [
            Goal(row, task.title, task.run(how, Made(run, "release"), n), n)
            for task in tasks
            for n in range(1, how.num_seeds + 1)
        ]
    readers = {PERPLEXITY: perplexity, **{t.title: t.read for t in tasks}}
    columns = [
        column(title, read, ROWS, PAPER) for title, read in readers.items()
    ]
    heads = ["#L", "#H", "#A", "#H here"]
    title = "Table 6: the size of the model; development sets, in percent"
    fill(Table("ablation_size", title, heads, rows, columns, CLAIMS), goals)


if __name__ == "__main__":
    bert_flags.run(main, required=["input_file", "held_out_file", "output_dir"])
