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
    BenchmarkOptions,
    Case,
    Comparison,
    publish,
    section,
    take_turns,
)
from sides import ROOT, Command, peer_python, versions_of

from bert_tf import cli, files
from bert_tf.data import processes, records
from bert_tf.options import option

PACKAGE = "tf-models-official"
TITLES = {OURS: "bert_tf", "original": PACKAGE}
PEER_MODULE = "official.nlp.data.create_pretraining_data"


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataCreationConfig(BenchmarkOptions):
    """Options of this benchmark."""

    input_file: str = option("Text, as in create_pretraining_data.py.")
    vocab_file: str = option("Vocabulary file.")
    dupe_factor: int = option("Passes over the text.", default=10)


def run(config: DataCreationConfig) -> Comparison:
    """Runs the benchmark."""
    paths = files.expand(config.input_file, "input_file")
    size = sum(map(os.path.getsize, paths)) / 1e6
    comparison = Comparison(
        "Pre-training data: text in, records out",
        "records/s",
        TITLES,
        facts=[
            f"{len(paths)} files, {size:.1f} MB of text, dupe_factor "
            f"{config.dupe_factor}; whole commands with their imports. Memory "
            "is that of all processes together"
        ],
    )
    workers = processes.available_cpus()
    script = str(ROOT / "create_pretraining_data.py")
    peer = peer_python(config.pythons, PACKAGE, on_top=True)
    commands = {
        OURS: ([sys.executable, script, f"--num_workers={workers}"]),
        "original": [peer, "-m", PEER_MODULE],
    }
    packages = {OURS: "tensorflow", "original": PACKAGE}
    sides = {
        side: Command(words, versions_of(words[0], packages[side]), _count)
        for side, words in commands.items()
        if side in config.chosen(TITLES)
    }
    words = [
        f"--input_file={config.input_file}",
        "--output_file={folder}/out.tfrecord",
        f"--vocab_file={config.vocab_file}",
        f"--dupe_factor={config.dupe_factor}",
    ]
    name = f"{workers} workers of bert_tf"
    cases = [Case(name, 1, dict.fromkeys(sides, words))]
    take_turns(comparison, cases, sides, config)
    publish(section(comparison), config.page, "data_creation")
    return comparison


def _count(folder: str) -> int:
    return records.count_records(os.path.join(folder, "out.tfrecord"))


if __name__ == "__main__":
    cli.main(run)
