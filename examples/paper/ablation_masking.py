"""Table 8 of the paper: what masked words become.

    python examples/paper/ablation_masking.py \\
        --input_file='books/*.txt' --data_dir=glue_data --conll_dir=conll2003 \\
        --output_dir=/tmp/ablation_masking

Some words to predict become [MASK], some stay the same, some become random.
Pre-trains a model for each choice of the three shares and fine-tunes it on
sentences and on named entities; for the latter the concatenation of its last
four layers is also used as features.

Rerun a stopped command to continue; finished runs are skipped. --full prints
the commands for BERT-Base. Source: appendix C.2.
"""

import dataclasses
import functools

from plan import (
    EntityOptions,
    Kind,
    data_option,
    feature_flags,
    fine_tunings,
    glue_tasks,
    model_option,
    ner_tasks,
    release,
    tasks_option,
)
from tables import Claim, Table, beside_paper, fill

from bert_tf import cli
from bert_tf.options import option


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskingConfig(EntityOptions):
    """Options of this program."""

    input_file: str = option("Text to pre-train on; globs, with commas.")
    model_size: str | None = model_option("L-4_H-128")
    data_dir: str | None = data_option()
    tasks: tuple[str, ...] = tasks_option("MNLI")


# [MASK], the same word, a random one; in percent.
SHARES = (
    (80, 10, 10),
    (100, 0, 0),
    (80, 0, 20),
    (80, 20, 0),
    (0, 20, 80),
    (0, 0, 100),
)
ROWS = ["/".join(map(str, shares)) for shares in SHARES]
FINE_TUNED, FEATURES = "NER, fine-tuned", "NER, feature-based"
PAPER = {
    "MNLI-m": (84.2, 84.3, 84.1, 84.4, 83.7, 83.6),
    FINE_TUNED: (95.4, 94.9, 95.2, 95.2, 94.8, 94.9),
    FEATURES: (94.9, 94.0, 94.6, 94.7, 94.6, 94.6),
}
# [MASK] alone hurts features; random words alone hurt all. Fine-tuning is
# robust, as the range of its rows shows.
CLAIMS = [
    Claim(ROWS[0], "100/0/0", (FEATURES,)),
    Claim(ROWS[0], "0/0/100"),
]


def run(config: MaskingConfig) -> None:
    """Fills the table."""
    config = config.resolved()
    as_features = feature_flags(config, "concat_last_four", config.model_size)
    kinds = [Kind(task.title, task) for task in glue_tasks(config)]
    for task in ner_tasks(config):
        kinds += [Kind(FINE_TUNED, task), Kind(FEATURES, task, as_features)]
    goals = []
    for row, shares in zip(ROWS, SHARES, strict=True):
        names = ("mask_share", "keep_share", "random_share")
        data = {n: s / 100 for n, s in zip(names, shares, strict=True)}
        start = functools.partial(release, config, config.model_size, data=data)
        goals += fine_tunings(row, config, start, kinds)
    columns = [
        beside_paper(kind.title, kind.task.read, ROWS, PAPER) for kind in kinds
    ]
    rows = {
        row: [f"{share}%" for share in shares]
        for row, shares in zip(ROWS, SHARES, strict=True)
    }
    table = Table(
        "ablation_masking",
        "Table 8: what masked words become; development sets, in percent",
        ["MASK", "SAME", "RND"],
        rows,
        columns,
        CLAIMS,
        config.note,
    )
    fill(table, goals, config.output_dir, config.full)


if __name__ == "__main__":
    cli.main(run)
