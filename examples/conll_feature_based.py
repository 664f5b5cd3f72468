"""Table 7 of the paper: BERT fine-tuned, and BERT's vectors as features.

    python examples/conll_feature_based.py \\
        --data_dir=conll2003 --init_checkpoint=cased_L-12_H-768_A-12 \\
        --output_dir=/tmp/table_7

Runs run_ner.py once for every row of the table, each in a folder of its own,
and writes `table.md`: the F1 of the entities in the development set, and the
paper's beside it. Every command is printed before it runs. Given again, the
same command goes on where it was stopped; a row that is done is not done again.

The paper does not say how its LSTMs were trained. They start from random
weights, and so need a higher rate than BERT's: --feature_learning_rate. On two
CPU cores they take most of the time; a step with --lstm_size=256 is several
times faster than with the paper's 768.
"""

import json
import os
import pathlib
import shlex
import subprocess
import sys
from collections.abc import Mapping
from typing import NamedTuple

from absl import flags

from bert_tf import files
from bert_tf import flags as bert_flags
from bert_tf.errors import InputError


class Row(NamedTuple):
    """A row of the table.

    Attributes:
      title: What the paper calls it, more or less.
      paper: F1 of BERT-Base in the paper, in percent.
    """

    title: str
    paper: float


ROWS = {
    "fine_tuning": Row("Fine-tuning", 96.4),
    "embeddings": Row("Embeddings", 91.0),
    "second_to_last": Row("Second-to-last layer", 95.6),
    "last": Row("Last layer", 94.9),
    "sum_last_four": Row("Weighted sum of the last four layers", 95.9),
    "concat_last_four": Row("Concatenation of the last four layers", 96.1),
    "sum_all": Row("Weighted sum of all layers", 95.5),
}

flags.DEFINE_string("data_dir", None, "Folder of the CoNLL files.")
flags.DEFINE_string(
    "init_checkpoint", None, "BERT, with its configuration and vocabulary."
)
flags.DEFINE_string("output_dir", None, "Where everything is written.")
flags.DEFINE_multi_enum("row", [*ROWS], [*ROWS], "A row to fill; all of them.")
flags.DEFINE_float("num_train_epochs", 3.0, "Epochs of fine-tuning.")
flags.DEFINE_float("learning_rate", 5e-5, "Rate of fine-tuning.")
flags.DEFINE_float("feature_num_train_epochs", 3.0, "Epochs of the LSTMs.")
flags.DEFINE_float("feature_learning_rate", 1e-3, "Rate of the LSTMs.")
flags.DEFINE_integer("lstm_size", 768, "Size of the LSTMs.", lower_bound=1)
flags.DEFINE_multi_string(
    "also",
    [],
    "What else run_ner.py is given, as it stands there: "
    "--also=--max_seq_length=256; more than once for more flags.",
)

FLAGS = flags.FLAGS
ROOT = pathlib.Path(__file__).resolve().parent.parent
# As one would type it: .venv/bin/python.
PYTHON = min(sys.executable, os.path.relpath(sys.executable), key=len)


def arguments(name: str) -> list[str]:
    """What run_ner.py is given for a row."""
    settings = {
        "data_dir": FLAGS.data_dir,
        "init_checkpoint": FLAGS.init_checkpoint,
        "output_dir": os.path.join(FLAGS.output_dir, name),
    }
    if name == "fine_tuning":
        settings |= {
            "num_train_epochs": FLAGS.num_train_epochs,
            "learning_rate": FLAGS.learning_rate,
        }
    else:
        settings |= {
            "mode": "feature_based",
            "feature_layers": name,
            "lstm_size": FLAGS.lstm_size,
            "num_train_epochs": FLAGS.feature_num_train_epochs,
            "learning_rate": FLAGS.feature_learning_rate,
        }
    given = [f"--{flag}={value}" for flag, value in settings.items()]
    return [*given, "--do_train", "--do_eval", *FLAGS.also]


def f1_of(name: str) -> float:
    """The score of a row, which is trained unless that was done before.

    Raises:
      InputError: It was begun with other flags.
    """
    path, record = record_of(name)
    words = arguments(name)
    if record.get("arguments", words) != words:
        raise InputError(
            f"expected the flags that {path} was begun with, "
            f"{shlex.join(record['arguments'])}. Received: "
            f"{shlex.join(words)}; name another --output_dir"
        )
    if "eval_f1" not in record:
        write_json(path, {"arguments": words})
        run(words)
        results = os.path.join(FLAGS.output_dir, name, "eval_results.json")
        record = {"arguments": words, **files.read_json(results)}
        write_json(path, record)
    return record["eval_f1"]


def record_of(name: str) -> tuple[str, dict]:
    """The file of a row, and what is in it."""
    path = os.path.join(FLAGS.output_dir, f"{name}.json")
    return path, files.read_json(path) if files.exists(path) else {}


def run(words: list[str]) -> None:
    """Runs run_ner.py and shows the command first."""
    print(f"\n$ {PYTHON} {shlex.join(['run_ner.py', *words])}", flush=True)
    command = [sys.executable, str(ROOT / "run_ner.py"), *words]
    done = subprocess.run(command, check=False)
    if done.returncode:
        sys.exit(done.returncode)


def write_json(path: str, record: Mapping) -> None:
    """Writes the record of a row."""
    files.write_text(path, json.dumps(record, indent=2) + "\n")


def table(scores: Mapping[str, float]) -> str:
    """The table in Markdown.

    Args:
      scores: F1, from 0 to 1, of the rows that are done.
    """
    lines = [
        "| CoNLL-2003, development set | F1 | in the paper (BERT-Base) |",
        "|---|---|---|",
    ]
    for name, row in ROWS.items():
        ours = f"{scores[name]:.1%}"[:-1] if name in scores else ""
        lines.append(f"| {row.title} | {ours} | {row.paper} |")
    return "".join(f"{line}\n" for line in lines)


def main() -> None:
    """Fills the table, row by row, and shows it."""
    path = os.path.join(FLAGS.output_dir, "table.md")
    # Those of rows that an earlier command has filled, too.
    records = {name: record_of(name)[1] for name in ROWS}
    scores = {n: r["eval_f1"] for n, r in records.items() if "eval_f1" in r}
    for name in FLAGS.row:
        scores[name] = f1_of(name)
        files.write_text(path, table(scores))
    print(f"\n{table(scores)}\nIt is in {path}.")


if __name__ == "__main__":
    bert_flags.run(main, ["data_dir", "init_checkpoint", "output_dir"])
