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

from absl import flags
from runs import Made
from stages import (
    define_entity_flags,
    define_flags,
    define_model_flag,
    define_task_flags,
    feature_flags,
    glue_tasks,
    model_size,
    ner_tasks,
    pretraining,
    settings,
)
from tables import Claim, Goal, Table, column, fill

from bert_tf import flags as bert_flags

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
# The first row against all; the paper makes much of two of these: [MASK] alone
# hurts features, random words alone hurt fine-tuning as well.
CLAIMS = [Claim(ROWS[0], row) for row in ROWS[1:]]


def main() -> None:
    """Fills the table."""
    how = settings()
    as_features = feature_flags("concat_last_four")
    kinds = [(task.title, task, {}) for task in glue_tasks()]
    for task in ner_tasks(FLAGS.conll_dir):
        kinds += [(FINE_TUNED, task, {}), (FEATURES, task, as_features)]
    goals = []
    for row, shares in zip(ROWS, SHARES, strict=True):
        names = ("mask_share", "keep_share", "random_share")
        data = {n: s / 100 for n, s in zip(names, shares, strict=True)}
        made = Made(pretraining(how, model_size(), data=data), "release")
        goals += [
            Goal(row, title, task.run(how, made, seed, **changes), seed)
            for title, task, changes in kinds
            for seed in range(1, how.num_seeds + 1)
        ]
    columns = [
        column(title, task.read, ROWS, PAPER) for title, task, _ in kinds
    ]
    rows = {
        row: [f"{share}%" for share in shares]
        for row, shares in zip(ROWS, SHARES, strict=True)
    }
    heads = ["MASK", "SAME", "RND"]
    title = "Table 8: what masked words become; development sets, in percent"
    fill(Table("ablation_masking", title, heads, rows, columns, CLAIMS), goals)


if __name__ == "__main__":
    bert_flags.run(main, required=["input_file", "output_dir"])
