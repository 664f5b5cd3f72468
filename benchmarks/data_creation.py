"""Pre-training records per second, beside the original's algorithm.

    python benchmarks/data_creation.py --input_file='gutenberg/*.txt' \\
        --vocab_file=vocab.txt --output=build/data_creation.json

runs create_pretraining_data.py and the original, as `tf-models-official` on
PyPI packages it for TensorFlow 2 (official.nlp.data.create_pretraining_data),
in turn: the whole command with its imports, the same text and flags. The peer
is installed into a virtual environment of its own, once; TensorFlow is the one
that runs this. turns_section.py writes the results into docs/performance.md.

Memory is the resident set of all processes together, sampled. Where other
programs are at work, CPU times are what to look at.
"""

import glob
import os
import sys

import benchmark_flags
import turns
import turns_section
from absl import app, flags
from commands import Command
from peer_environment import versions_of
from places import ROOT
from turns import OURS, Case, Comparison

from bert_tf.data import processes, records

FLAGS = flags.FLAGS
SCRIPT = ROOT / "create_pretraining_data.py"
PEER, PEER_NAME = "original", "tf-models-official"
PEER_MODULE = "official.nlp.data.create_pretraining_data"
# How many times as fast ours should be.
AIM = 12.0
RECORDS = "out.tfrecord"

flags.DEFINE_string("input_file", None, "The text, as for the script.")
flags.DEFINE_string("vocab_file", None, "The vocabulary.")
flags.DEFINE_integer("dupe_factor", 10, "Passes over the text.")
benchmark_flags.define_rounds(3)
flags.DEFINE_integer(
    "num_workers", processes.available_cpus(), "Our processes."
)
benchmark_flags.define_output()
benchmark_flags.define_interpreter("peer_python", PEER_NAME)


def main() -> None:
    peer_python = benchmark_flags.interpreter(
        "peer_python", PEER_NAME, on_top=True
    )
    comparison = Comparison.begin(
        "Pre-training data: text in, records out",
        "records/s",
        {OURS: "bert_tf", PEER: PEER_NAME},
        facts=[fact()],
    )
    sides = {
        OURS: Command(
            [sys.executable, str(SCRIPT), f"--num_workers={FLAGS.num_workers}"],
            versions_of(sys.executable, "tensorflow"),
            count,
        ),
        PEER: Command(
            [peer_python, "-m", PEER_MODULE],
            versions_of(peer_python, PEER_NAME),
            count,
        ),
    }
    words = [
        f"--input_file={FLAGS.input_file}",
        f"--output_file={{folder}}/{RECORDS}",
        f"--vocab_file={FLAGS.vocab_file}",
        f"--dupe_factor={FLAGS.dupe_factor}",
    ]
    case = Case(
        f"{FLAGS.num_workers} workers of ours",
        1,
        dict.fromkeys(sides, words),
        {PEER: AIM},
    )

    keep = turns_section.keeper(comparison, FLAGS.output)
    turns.take(comparison, [case], sides, FLAGS.rounds, keep)
    print(turns_section.section(comparison))


def fact() -> str:
    """What both are given."""
    paths = [
        path
        for pattern in FLAGS.input_file.split(",")
        for path in glob.glob(pattern)
    ]
    size = sum(map(os.path.getsize, paths)) / 1e6
    return (
        f"{len(paths)} files, {size:.1f} MB of text, dupe_factor "
        f"{FLAGS.dupe_factor}; whole commands with their imports. Memory is "
        "that of all processes together"
    )


def count(folder: str) -> float:
    return records.count_records(os.path.join(folder, RECORDS))


if __name__ == "__main__":
    flags.mark_flags_as_required(["input_file", "vocab_file"])
    app.run(lambda argv: main())
