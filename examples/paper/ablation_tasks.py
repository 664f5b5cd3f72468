"""Table 5 of the paper: the effect of the pre-training tasks.

    python examples/paper/ablation_tasks.py \\
        --input_file='books/*.txt' --data_dir=glue_data --squad_dir=squad \\
        --conll_dir=conll2003 --output_dir=/tmp/ablation_tasks

Pre-trains three models on the same text (with masked words and the next
sentence, with masked words only, and from left to right like OpenAI GPT) and
fine-tunes each on the tasks that have data; the last one also with a BiLSTM on
top. The defaults take an evening on a laptop; --full prints the commands for
BERT-Base.

CoNLL-2003 is not in the paper's table. It is here because of the paper's reason
why left-to-right models fail: a word's vector does not depend on the words
after it. make_tasks.py makes easier versions of QNLI and SQuAD.

In small runs SQuAD's texts are longer than the sequences of pre-training, so
only fine-tuning learns their last positions. The BiLSTM starts from random
weights and has few steps, at BERT's learning rate.

Rerun a stopped command to continue; finished runs are skipped. Source: section
5.1 of the paper.
"""

import dataclasses

import plan
from tables import Table, fill

from bert_tf import cli


@dataclasses.dataclass(frozen=True, kw_only=True)
class TasksConfig(plan.SpanOptions, plan.GlueOptions):
    """Options of this program."""

    model_size: str | None = plan.model_option("L-2_H-128")
    max_seq_length: int | None = plan.length_option(64)
    tasks: tuple[str, ...] = plan.tasks_option(
        *("MNLI", "QNLI", "MRPC", "SST-2")
    )


LEFT_TO_RIGHT = {
    "nonext_sentence": True,
    "attention_direction": "left_to_right",
    "objective": "causal_lm",
}
# Row -> flags of pre-training, and whether the head is on a BiLSTM.
ROWS = {
    "BERT": ({}, False),
    "No NSP": ({"nonext_sentence": True}, False),
    "LTR & No NSP": (LEFT_TO_RIGHT, False),
    "+ BiLSTM": (LEFT_TO_RIGHT, True),
}
TABLE = Table(
    "ablation_tasks",
    "Table 5: the pre-training tasks; development sets, in percent",
    ["Tasks"],
    {row: [row] for row in ROWS},
    {
        "MNLI-m": (84.4, 83.9, 82.1, 82.1),
        "QNLI": (88.4, 84.9, 84.3, 84.1),
        "MRPC": (86.7, 86.5, 77.5, 75.7),
        "SST-2": (92.7, 92.6, 92.1, 91.6),
        "SQuAD": (88.5, 87.9, 77.8, 84.9),
    },
    [
        ("BERT", "No NSP"),
        ("No NSP", "LTR & No NSP"),
        ("LTR & No NSP", "+ BiLSTM"),
        ("No NSP", "+ BiLSTM", "SQuAD"),
    ],
)


def run(config: TasksConfig) -> None:
    """Fills the table."""
    config = config.resolved()
    tasks = [
        *plan.glue_tasks(config),
        *plan.squad_tasks(config),
        *plan.ner_tasks(config),
    ]
    goals = []
    for row in config.chosen(ROWS):
        flags, on_bilstm = ROWS[row]
        models = plan.pretrained(config, config.model_size, model=flags)
        kinds = [task.on_bilstm() for task in tasks] if on_bilstm else tasks
        goals += plan.fine_tunings(row, config, models, kinds)
    table = TABLE._replace(note=config.note)
    fill(table, goals, config.output_dir, config.full)


if __name__ == "__main__":
    cli.main(run)
