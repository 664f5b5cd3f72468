"""Table 5 of the paper: what BERT owes to its pre-training tasks.

    python examples/paper/ablation_tasks.py \\
        --input_file='books/*.txt' --data_dir=glue_data --squad_dir=squad \\
        --output_dir=/tmp/ablation_tasks

Pre-trains three models on the same text, with masked words and the next
sentence, with masked words alone, and from left to right as OpenAI GPT, and
fine-tunes each on the tasks that are there; the last one also with a BiLSTM on
top, which stands for ELMo's. The flags' defaults are for an evening of a
laptop; --full prints the commands for BERT-Base.

Two things to know of small runs: SQuAD's texts are three times as long as what
was pre-trained on, so that fine-tuning alone learns their last positions; and
the BiLSTM starts from nothing, at BERT's rate, with the few steps that there
are.

The same command goes on where it was stopped; runs that are done are not done
again. Source: section 5.1 of the paper.
"""

import functools

from absl import flags
from settings import (
    current_settings,
    define_flags,
    define_model_flag,
    define_task_flags,
    model_size,
)
from stages import (
    Kind,
    chance,
    fine_tunings,
    glue_tasks,
    release,
    squad_tasks,
)
from tables import Claim, Table, beside_paper, fill

from bert_tf import cli

define_flags(max_seq_length=64, learning_rate=3e-3)
define_model_flag("L-2_H-128")
define_task_flags("MNLI", "QNLI", "MRPC", "SST-2")
flags.DEFINE_string("squad_dir", None, "Folder of SQuAD 1.1.")

FLAGS = flags.FLAGS

LEFT_TO_RIGHT = {
    "nonext_sentence": True,
    "attention_direction": "left_to_right",
    "objective": "causal_lm",
}
# By row: flags of pre-training and of fine-tuning.
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


def main() -> None:
    """Fills the table."""
    how = current_settings()
    tasks = [*glue_tasks(), *squad_tasks(FLAGS.squad_dir)]
    goals = []
    for row, (model, head) in ROWS.items():
        start = functools.partial(release, how, model_size(), model=model)
        kinds = [Kind(task.title, task, head) for task in tasks]
        goals += fine_tunings(row, how, start, kinds)
    table = Table(
        "ablation_tasks",
        "Table 5: the pre-training tasks; development sets, in percent",
        ["Tasks"],
        {row: [row] for row in ROWS},
        [beside_paper(t.title, t.read, ROWS, PAPER) for t in tasks],
        CLAIMS,
        chance(),
    )
    fill(table, goals)


if __name__ == "__main__":
    cli.run_program(main, required=["input_file", "output_dir"])
