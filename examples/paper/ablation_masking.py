"""Table 8 of the paper: what masked words become.

    python examples/paper/ablation_masking.py \\
        --input_file='books/*.txt' --data_dir=glue_data --conll_dir=conll2003 \\
        --output_dir=/tmp/ablation_masking

Of the words that are to be predicted some become [MASK], some stay the same,
some become random ones. Pre-trains a model for each choice of the three shares,
and fine-tunes it on sentences and on named entities; for the latter its vectors
are used as features, too, those of the last four layers side by side.

The same command goes on where it was stopped; runs that are done are not done
again. --full prints the commands for BERT-Base. Source: appendix C.2.
"""

import functools

from absl import flags
from settings import (
    current_settings,
    define_entity_flags,
    define_flags,
    define_model_flag,
    define_task_flags,
    model_size,
)
from stages import (
    Kind,
    chance,
    feature_flags,
    fine_tunings,
    glue_tasks,
    ner_tasks,
    release,
)
from tables import Claim, Table, beside_paper, fill

from bert_tf import cli

define_flags()
define_model_flag("L-4_H-128")
define_task_flags("MNLI")
define_entity_flags()

FLAGS = flags.FLAGS

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
# [MASK] alone hurts features; random words alone hurt all. And fine-tuning is
# robust: that is how far its rows lie apart, which every table tells.
CLAIMS = [
    Claim(ROWS[0], "100/0/0", (FEATURES,)),
    Claim(ROWS[0], "0/0/100"),
]


def main() -> None:
    """Fills the table."""
    how = current_settings()
    as_features = feature_flags("concat_last_four", model_size())
    kinds = [Kind(task.title, task) for task in glue_tasks()]
    for task in ner_tasks(FLAGS.conll_dir):
        kinds += [Kind(FINE_TUNED, task), Kind(FEATURES, task, as_features)]
    goals = []
    for row, shares in zip(ROWS, SHARES, strict=True):
        names = ("mask_share", "keep_share", "random_share")
        data = {n: s / 100 for n, s in zip(names, shares, strict=True)}
        start = functools.partial(release, how, model_size(), data=data)
        goals += fine_tunings(row, how, start, kinds)
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
        chance(),
    )
    fill(table, goals)


if __name__ == "__main__":
    cli.run_program(main, required=["input_file", "output_dir"])
