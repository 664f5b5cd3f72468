"""Table 7 of the paper: BERT fine-tuned, and BERT's vectors as features.

    python examples/paper/feature_based.py \\
        --conll_dir=conll2003 --init_checkpoint=cased_L-12_H-768_A-12 \\
        --max_seq_length=128 --fine_tuning_learning_rate=3e-5 \\
        --max_examples=50000 --output_dir=/tmp/feature_based

Runs run_ner.py for every row and seed and reports the F1 of the entities in the
development set. Without --init_checkpoint a small model is pre-trained on
--input_file; the defaults are for this model. --full prints the commands for
BERT-Base.

Rerun a stopped command to continue; finished runs are skipped. The paper does
not say how its LSTMs were trained. They start from random weights and need a
higher learning rate than BERT: --feature_learning_rate. On two CPU cores they
take most of the time; a step with --lstm_size=256 is several times faster than
with the paper's 768. Source: section 5.3.
"""

import dataclasses

import plan
from tables import Table, fill

from bert_tf import cli
from bert_tf.base.options import option
from bert_tf.errors import InputError


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeaturesConfig(plan.EntityOptions):
    """Options of this program."""

    input_file: str | None = option(
        "Text to pre-train on: globs, separated by commas.", default=None
    )
    model_size: str | None = plan.model_option("L-6_H-128")
    # Names have capitals (section 5.3).
    do_lower_case: bool = option(
        "Whether the vocabulary is uncased.", default=False
    )
    init_checkpoint: str | None = option(
        "BERT with its configuration and vocabulary. Default: a model is "
        "pre-trained on --input_file.",
        default=None,
    )


BEST = "Concat Last Four Hidden"
# The paper's name -> --feature_layers.
FEATURES = {
    "Embeddings": "embeddings",
    "Second-to-Last Hidden": "second_to_last",
    "Last Hidden": "last",
    "Weighted Sum Last Four Hidden": "sum_last_four",
    BEST: "concat_last_four",
    "Weighted Sum All Layers": "sum_all",
}
FINE_TUNING = "Fine-tuning"
ROWS = [FINE_TUNING, *FEATURES]
TABLE = Table(
    "feature_based",
    "Table 7: CoNLL-2003, F1 in the development set, in percent",
    ["Approach"],
    {row: [row] for row in ROWS},
    # BERT-Base's.
    {"NER": (96.4, 91.0, 95.6, 94.9, 95.9, 96.1, 95.5)},
    [(FINE_TUNING, BEST), *((BEST, row) for row in FEATURES if row != BEST)],
)


def run(config: FeaturesConfig) -> None:
    """Fills the table."""
    config = config.resolved()
    if not (config.init_checkpoint or config.input_file):
        raise InputError(
            "Pass --init_checkpoint, or --input_file to pre-train on."
        )
    table, models, size = TABLE, [config.init_checkpoint], None
    if not config.init_checkpoint:
        size = config.model_size
        models = plan.pretrained(config, size)
        table = TABLE._replace(note=config.note)
    goals = []
    for task in plan.ner_tasks(config):
        for row in config.chosen(ROWS):
            kind = task
            if row in FEATURES:
                kind = plan.feature_based(task, config, FEATURES[row], size)
            goals += plan.fine_tunings(row, config, models, [kind])
    fill(table, goals, config.output_dir, config.full)


if __name__ == "__main__":
    cli.main(run)
