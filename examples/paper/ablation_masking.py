"""Table 8 of the paper: how masked words are replaced.

    python examples/paper/ablation_masking.py \\
        --input_file='books/*.txt' --data_dir=glue_data --conll_dir=conll2003 \\
        --output_dir=/tmp/ablation_masking

Some words to predict become [MASK], some stay the same, some become random.
Pre-trains a model for each choice of the three shares and fine-tunes it on
sentences and on named entities. For named entities, the model's last four
layers are also used as features.

Rerun a stopped command to continue; finished runs are skipped. --full prints
the commands for BERT-Base. Source: appendix C.2.
"""

import dataclasses

import plan
from tables import Table, fill

from bert_tf import cli


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskingConfig(plan.EntityOptions, plan.GlueOptions):
    """Options of this program."""

    model_size: str | None = plan.model_option("L-4_H-128")


# [MASK], the same word, a random one; in percent.
SHARES = (
    (80, 10, 10),
    (100, 0, 0),
    (80, 0, 20),
    (80, 20, 0),
    (0, 20, 80),
    (0, 0, 100),
)
ROWS = {"/".join(map(str, shares)): shares for shares in SHARES}
FINE_TUNED, FEATURES = "NER, fine-tuned", "NER, feature-based"
TABLE = Table(
    "ablation_masking",
    "Table 8: how masked words are replaced; development sets, in percent",
    ["MASK", "SAME", "RND"],
    {row: [f"{share}%" for share in shares] for row, shares in ROWS.items()},
    {
        "MNLI-m": (84.2, 84.3, 84.1, 84.4, 83.7, 83.6),
        FINE_TUNED: (95.4, 94.9, 95.2, 95.2, 94.8, 94.9),
        FEATURES: (94.9, 94.0, 94.6, 94.7, 94.6, 94.6),
    },
    # [MASK] alone hurts features; random words alone hurt all. Fine-tuning is
    # robust, as the range of its rows shows.
    [("80/10/10", "100/0/0", FEATURES), ("80/10/10", "0/0/100")],
)


def run(config: MaskingConfig) -> None:
    """Fills the table."""
    config = config.resolved()
    size = config.model_size
    tasks = plan.glue_tasks(config)
    for task in plan.ner_tasks(config):
        features = plan.feature_based(task, config, "concat_last_four", size)
        tasks += [
            task._replace(title=FINE_TUNED),
            features._replace(title=FEATURES),
        ]
    goals = []
    for row in config.chosen(ROWS):
        names = ("mask_share", "keep_share", "random_share")
        data = {n: s / 100 for n, s in zip(names, ROWS[row], strict=True)}
        if ROWS[row] == SHARES[0]:
            data = {}  # The default; table 7 also has this model.
        models = plan.pretrained(config, size, shares=data)
        goals += plan.fine_tunings(row, config, models, tasks)
    table = TABLE._replace(note=config.note)
    fill(table, goals, config.output_dir, config.full)


if __name__ == "__main__":
    cli.main(run)
