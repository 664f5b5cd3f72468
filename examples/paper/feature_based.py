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

from absl import flags
from runs import Made, Source
from stages import (
    define_entity_flags,
    define_flags,
    define_model_flag,
    feature_flags,
    model_size,
    ner_tasks,
    pretraining,
    settings,
)
from tables import Claim, Goal, Table, column, fill

from bert_tf import flags as bert_flags
from bert_tf.errors import InputError

define_flags()
define_model_flag("L-4_H-128")
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
    "Weighted Sum All 12 Layers": "sum_all",
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
    how = settings()
    if not (FLAGS.init_checkpoint or FLAGS.input_file):
        raise InputError(
            "expected --init_checkpoint, or --input_file to pre-train on. "
            "Received: neither"
        )
    if FLAGS.init_checkpoint:
        start = Source.of(FLAGS.init_checkpoint)
    else:
        start = Made(pretraining(how, model_size()), "release")
    tasks = ner_tasks(FLAGS.conll_dir)
    goals = [
        Goal(
            row, task.title, task.run(how, start, seed, **changes_of(row)), seed
        )
        for task in tasks
        for row in ROWS
        for seed in range(1, how.num_seeds + 1)
    ]
    columns = [column(t.title, t.read, ROWS, PAPER) for t in tasks]
    title = "Table 7: CoNLL-2003, F1 in the development set, in percent"
    rows = {row: [row] for row in ROWS}
    fill(Table("feature_based", title, [""], rows, columns, CLAIMS), goals)


def changes_of(row: str) -> dict[str, object]:
    """What run_ner.py is told of a row."""
    return feature_flags(FEATURES[row]) if row in FEATURES else {}


if __name__ == "__main__":
    bert_flags.run(main, required=["output_dir"])
