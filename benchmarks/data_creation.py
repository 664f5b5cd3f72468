"""Speed of creating pre-training data, beside the original's program.

    python benchmarks/data_creation.py --input_file='gutenberg/*.txt' \\
        --vocab_file=vocab.txt --output=build/data_creation.json

runs create_pretraining_data.py and the original, as `tf-models-official`
packages it for TensorFlow 2, on the same text with the same flags: whole
commands with their imports. Memory is the resident memory of all processes
together, sampled.
"""

import dataclasses
import os
import sys

from comparison import (
    OURS,
    Case,
    Comparison,
    ReportOptions,
    publish,
    python_option,
    rounds_option,
    section,
    take_turns,
)
from sides import ROOT, Command, peer_python, versions_of

from bert_tf import cli, files
from bert_tf.data import processes, records
from bert_tf.options import option

PEER, PACKAGE = "original", "tf-models-official"
PEER_MODULE = "official.nlp.data.create_pretraining_data"
RECORDS = "out.tfrecord"


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataCreationConfig(ReportOptions):
    """Options of this benchmark."""

    input_file: str = option("Text, as in create_pretraining_data.py.")
    vocab_file: str = option("Vocabulary file.")
    dupe_factor: int = option("Passes over the text.", default=10)
    rounds: int = rounds_option(3)
    num_workers: int = option(
        "Number of our processes.", default=processes.available_cpus()
    )
    peer_python: str | None = python_option(PACKAGE)


def run(config: DataCreationConfig) -> Comparison:
    """Runs the benchmark."""
    python = peer_python(config.peer_python, PACKAGE, on_top=True)
    paths = files.expand(config.input_file, "input_file")
    size = sum(map(os.path.getsize, paths)) / 1e6
    comparison = Comparison(
        "Pre-training data: text in, records out",
        "records/s",
        {OURS: "bert_tf", PEER: PACKAGE},
        facts=[
            f"{len(paths)} files, {size:.1f} MB of text, dupe_factor "
            f"{config.dupe_factor}; whole commands with their imports. Memory "
            "is that of all processes together"
        ],
    )
    script = str(ROOT / "create_pretraining_data.py")
    ours = [sys.executable, script, f"--num_workers={config.num_workers}"]
    sides = {
        OURS: Command(ours, versions_of(sys.executable, "tensorflow"), _count),
        PEER: Command(
            [python, "-m", PEER_MODULE], versions_of(python, PACKAGE), _count
        ),
    }
    words = [
        f"--input_file={config.input_file}",
        f"--output_file={{folder}}/{RECORDS}",
        f"--vocab_file={config.vocab_file}",
        f"--dupe_factor={config.dupe_factor}",
    ]
    name = f"{config.num_workers} workers of bert_tf"
    cases = [Case(name, 1, dict.fromkeys(sides, words))]
    take_turns(comparison, cases, sides, config.rounds, config.output)
    publish(section(comparison), config.page, "data_creation")
    return comparison


def _count(folder: str) -> int:
    return records.count_records(os.path.join(folder, RECORDS))


if __name__ == "__main__":
    cli.main(run)
