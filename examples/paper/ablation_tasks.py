"""Table 5 of the paper: what BERT owes to its pre-training tasks.

    python examples/paper/ablation_tasks.py \\
        --input_file='books/*.txt' --data_dir=glue_data --squad_dir=squad \\
        --output_dir=/tmp/ablation_tasks

Pre-trains three models on the same text (with masked words and the next
sentence, with masked words only, and from left to right as OpenAI GPT) and
fine-tunes each on the tasks that have data; the last one also with a BiLSTM on
top, in place of ELMo's. The defaults take an evening on a laptop; --full prints
the commands for BERT-Base.

In small runs SQuAD's texts are three times as long as the sequences of
pre-training, so only fine-tuning learns their last positions; and the BiLSTM
has few steps, at BERT's learning rate, from random weights.

Rerun a stopped command to continue; finished runs are skipped. Source: section
5.1 of the paper.
"""

import dataclasses
import functools

from plan import (
    Kind,
    PaperOptions,
    data_option,
    fine_tunings,
    glue_tasks,
    model_option,
    release,
    sized,
    squad_tasks,
    tasks_option,
)
from tables import Claim, Table, beside_paper, fill

from bert_tf import cli
from bert_tf.options import option


@dataclasses.dataclass(frozen=True, kw_only=True)
class TasksConfig(PaperOptions):
    """Options of this program."""

    input_file: str = option("Text to pre-train on; globs, with commas.")
    model_size: str | None = model_option("L-2_H-128")
    max_seq_length: int | None = sized("Length of the sequences.", 64)
    learning_rate: float | None = sized(
        "Learning rate of pre-training.", 3e-3, 1e-4
    )
    data_dir: str | None = data_option()
    tasks: tuple[str, ...] = tasks_option("MNLI", "QNLI", "MRPC", "SST-2")
    squad_dir: str | None = option("Folder of SQuAD 1.1.", default=None)


LEFT_TO_RIGHT = {
    "nonext_sentence": True,
    "attention_direction": "left_to_right",
    "objective": "causal_lm",
}
# Row -> flags of pre-training, and of fine-tuning.
ROWS = {
    "BERT": ({}, {}),
    "No NSP": ({"nonext_sentence": True}, {}),
    "LTR & No NSP": (LEFT_TO_RIGHT, {}),
    "+ BiLSTM": (LEFT_TO_RIGHT, {"bilstm_head": True}),
}
PAPER = {
    "MNLI-m": (84.4, 83.9, 82.1, 82.1),
    "QNLI": (88.4, 84.9, 84.3, 84.1),
    "MRPC": (86.7, 86.5, 77.5, 75.7),
    "SST-2": (92.7, 92.6, 92.1, 91.6),
    "SQuAD": (88.5, 87.9, 77.8, 84.9),
}
CLAIMS = (
    Claim("BERT", "No NSP"),
    Claim("No NSP", "LTR & No NSP"),
    Claim("LTR & No NSP", "+ BiLSTM"),
    Claim("No NSP", "+ BiLSTM", ("SQuAD",)),
)


def run(config: TasksConfig) -> None:
    """Fills the table."""
    config = config.resolved()
    tasks = [*glue_tasks(config), *squad_tasks(config)]
    goals = []
    for row, (model, head) in ROWS.items():
        start = functools.partial(
            release, config, config.model_size, model=model
        )
        kinds = [Kind(task.title, task, head) for task in tasks]
        goals += fine_tunings(row, config, start, kinds)
    table = Table(
        "ablation_tasks",
        "Table 5: the pre-training tasks; development sets, in percent",
        ["Tasks"],
        {row: [row] for row in ROWS},
        [beside_paper(t.title, t.read, ROWS, PAPER) for t in tasks],
        CLAIMS,
        config.note,
    )
    fill(table, goals, config.output_dir, config.full)


if __name__ == "__main__":
    cli.main(run)
