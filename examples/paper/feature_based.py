"""Table 7 of the paper: BERT fine-tuned, and BERT's vectors as features.

    python examples/paper/feature_based.py \\
        --conll_dir=conll2003 --init_checkpoint=cased_L-12_H-768_A-12 \\
        --output_dir=/tmp/feature_based

Runs run_ner.py for every row and seed and reports the F1 of the entities in the
development set. Without --init_checkpoint a small model is pre-trained on
--input_file; --full prints the commands for BERT-Base.

Rerun a stopped command to continue; finished runs are skipped. The paper does
not say how its LSTMs were trained. They start from random weights and need a
higher learning rate than BERT: --feature_learning_rate. On two CPU cores they
take most of the time; a step with --lstm_size=256 is several times faster than
with the paper's 768. Source: section 5.3.
"""

import dataclasses

from plan import (
    EntityOptions,
    Kind,
    feature_flags,
    fine_tunings,
    model_option,
    ner_tasks,
    release,
)
from runs import Made, Source
from tables import Claim, Table, beside_paper, fill

from bert_tf import cli
from bert_tf.errors import InputError
from bert_tf.options import option


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeaturesConfig(EntityOptions):
    """Options of this program."""

    model_size: str | None = model_option("L-6_H-128")
    # Names have capitals (section 5.3).
    do_lower_case: bool = option(
        "Whether the vocabulary is uncased.", default=False
    )
    init_checkpoint: str | None = option(
        "BERT with its configuration and vocabulary. Default: a model is "
        "pre-trained on --input_file.",
        default=None,
    )


# The paper's name -> --feature_layers.
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


def run(config: FeaturesConfig) -> None:
    """Fills the table."""
    config = config.resolved()
    if not (config.init_checkpoint or config.input_file):
        raise InputError(
            "Pass --init_checkpoint, or --input_file to pre-train on."
        )
    size = None if config.init_checkpoint else config.model_size

    def start(seed: int) -> Source | Made:
        if config.init_checkpoint:
            return Source.of(config.init_checkpoint)
        return release(config, size, seed)

    tasks = ner_tasks(config)
    goals = []
    for row in ROWS:
        layers = FEATURES.get(row)
        changes = feature_flags(config, layers, size) if layers else {}
        kinds = [Kind(task.title, task, changes) for task in tasks]
        goals += fine_tunings(row, config, start, kinds)
    table = Table(
        "feature_based",
        "Table 7: CoNLL-2003, F1 in the development set, in percent",
        ["Approach"],
        {row: [row] for row in ROWS},
        [beside_paper(t.title, t.read, ROWS, PAPER) for t in tasks],
        CLAIMS,
        "" if config.init_checkpoint else config.note,
    )
    fill(table, goals, config.output_dir, config.full)


if __name__ == "__main__":
    cli.main(run)
