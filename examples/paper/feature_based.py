"""Table 7 of the paper: BERT fine-tuned, and BERT's vectors as features.

    python examples/paper/feature_based.py \\
        --conll_dir=conll2003 --init_checkpoint=cased_L-12_H-768_A-12 \\
        --output_dir=/tmp/feature_based

Runs run_ner.py for every row of the table and every seed, and tells the F1 of
the entities in the development set. Without --init_checkpoint a small model is
pre-trained on --input_file; --full prints the commands for BERT-Base.

The same command goes on where it was stopped; runs that are done are not done
again. The paper does not say how its LSTMs were trained. They start from random
weights, and so need a higher rate than BERT's: --feature_learning_rate. On two
CPU cores they take most of the time; a step with --lstm_size=256 is several
times faster than with the paper's 768. Source: section 5.3.
"""

import functools

from absl import flags
from runs import Made, Source
from settings import (
    Settings,
    current_settings,
    define_entity_flags,
    define_flags,
    define_model_flag,
    model_size,
)
from stages import (
    Kind,
    chance,
    feature_flags,
    fine_tunings,
    ner_tasks,
    release,
)
from tables import Claim, Table, beside_paper, fill

from bert_tf import cli
from bert_tf.errors import InputError

# Names are told by their capitals (section 5.3).
define_flags(do_lower_case=False)
define_model_flag("L-6_H-128")
define_entity_flags()
flags.DEFINE_string(
    "init_checkpoint",
    None,
    "BERT, with its configuration and vocabulary, in the place of a model that "
    "is pre-trained here.",
)

FLAGS = flags.FLAGS

# By the paper's name, --feature_layers.
FEATURES = {
    "Embeddings": "embeddings",
    "Second-to-Last Hidden": "second_to_last",
    "Last Hidden": "last",
    "Weighted Sum Last Four Hidden": "sum_last_four",
    "Concat Last Four Hidden": "concat_last_four",
    "Weighted Sum All Layers": "sum_all",
}
FINE_TUNING = "Fine-tuning"
ROWS = [FINE_TUNING, *FEATURES]
# BERT-Base's.
PAPER = {"NER": (96.4, 91.0, 95.6, 94.9, 95.9, 96.1, 95.5)}
BEST = "Concat Last Four Hidden"
CLAIMS = (
    Claim(FINE_TUNING, BEST),
    *(Claim(BEST, row) for row in FEATURES if row != BEST),
)


def main() -> None:
    """Fills the table.

    Raises:
      InputError: There is nothing to start from.
    """
    how = current_settings()
    if not (FLAGS.init_checkpoint or FLAGS.input_file):
        raise InputError(
            "expected --init_checkpoint, or --input_file to pre-train on. "
            "Received: neither"
        )
    tasks = ner_tasks(FLAGS.conll_dir)
    start = functools.partial(model, how)
    goals = []
    for row in ROWS:
        kinds = [Kind(task.title, task, given(row)) for task in tasks]
        goals += fine_tunings(row, how, start, kinds)
    table = Table(
        "feature_based",
        "Table 7: CoNLL-2003, F1 in the development set, in percent",
        ["Approach"],
        {row: [row] for row in ROWS},
        [beside_paper(t.title, t.read, ROWS, PAPER) for t in tasks],
        CLAIMS,
        "" if FLAGS.init_checkpoint else chance(),
    )
    fill(table, goals)


def model(how: Settings, seed: int) -> Source | Made:
    """What is fine-tuned, or has the features."""
    if FLAGS.init_checkpoint:
        return Source.of(FLAGS.init_checkpoint)
    return release(how, model_size(), seed)


def given(row: str) -> dict[str, object]:
    """What run_ner.py is told of a row."""
    size = None if FLAGS.init_checkpoint else model_size()
    return feature_flags(FEATURES[row], size) if row in FEATURES else {}


if __name__ == "__main__":
    cli.run_program(main, required=["output_dir"])
