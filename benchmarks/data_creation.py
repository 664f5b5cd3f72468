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

import comparison
import sides

from bert_tf import cli
from bert_tf.base import files, processes
from bert_tf.base.options import option
from bert_tf.data import records

ORIGINAL, PACKAGE = "original", "tf-models-official"
PEER_MODULE = "official.nlp.data.create_pretraining_data"
TITLES = {comparison.OURS: "bert_tf", ORIGINAL: PACKAGE}


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataCreationConfig(comparison.BenchmarkOptions):
    """Options of this benchmark."""

    input_file: str = option("Text, as in create_pretraining_data.py.")
    vocab_file: str = option("Vocabulary file.")
    dupe_factor: int = option("Passes over the text.", default=10)


def run(config: DataCreationConfig) -> comparison.Comparison:
    """Runs the benchmark."""
    paths = files.expand(config.input_file, "input_file")
    size = sum(map(os.path.getsize, paths)) / 1e6
    results = comparison.Comparison(
        "Pre-training data: text in, records out",
        "records/s",
        TITLES,
        facts=[
            f"{len(paths)} files, {size:.1f} MB of text, dupe_factor "
            f"{config.dupe_factor}; whole commands with their imports. Memory "
            "is the sum over all processes"
        ],
    )
    workers = processes.available_cpus()
    script = str(sides.ROOT / "create_pretraining_data.py")
    peer = sides.peer_python(config.pythons, PACKAGE)
    commands = {
        comparison.OURS: [sys.executable, script, f"--num_workers={workers}"],
        ORIGINAL: [peer, "-m", PEER_MODULE],
    }
    packages = {comparison.OURS: "tensorflow", ORIGINAL: PACKAGE}
    measured = {
        side: sides.Command(
            words, sides.versions_of(words[0], packages[side]), _count
        )
        for side, words in commands.items()
        if side in config.chosen(TITLES)
    }
    words = [
        f"--input_file={config.input_file}",
        "--output_file={folder}/out.tfrecord",
        f"--vocab_file={config.vocab_file}",
        f"--dupe_factor={config.dupe_factor}",
    ]
    name = f"bert_tf, {workers} workers"
    cases = [comparison.Case(name, 1, dict.fromkeys(measured, words))]
    comparison.take_turns(results, cases, measured, config)
    return comparison.report(results, config, "data_creation")


def _count(folder: str) -> int:
    return records.count_records(os.path.join(folder, "out.tfrecord"))


if __name__ == "__main__":
    cli.main(run)
