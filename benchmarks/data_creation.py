"""Pre-training records per second, beside the original's algorithm.

    python benchmarks/data_creation.py --input_file='gutenberg/*.txt' \
        --vocab_file=vocab.txt

runs create_pretraining_data.py and the original, as `tf-models-official` on
PyPI packages it for TensorFlow 2 (official.nlp.data.create_pretraining_data),
in turn: the whole command with its imports, the same text and flags. The peer
is installed into a virtual environment of its own, once; TensorFlow is the one
that runs this. The medians are printed:

    bert_tf, 2 workers: 217,491 records in 3.3 s (66,434/s, 5.0 s of CPU),
        215 MiB at most
    tf-models-official: 222,557 records in 61.2 s (3,634/s, 61.1 s of CPU),
        955 MiB at most
    ratio: 18.3 (12.0 of CPU time)

Memory is the resident set of all processes together, sampled. Where other
programs are at work, the ratio of the CPU times is the one to look at.
"""

import dataclasses
import os
import pathlib
import statistics
import sys
import tempfile

import peer_environment
import sessions
from absl import app, flags

from bert_tf.data import jobs, records

FLAGS = flags.FLAGS

flags.DEFINE_string("input_file", None, "The text, as for the script.")
flags.DEFINE_string("vocab_file", None, "The vocabulary.")
flags.DEFINE_integer("dupe_factor", 10, "Passes over the text.")
flags.DEFINE_integer("rounds", 3, "Runs of each; their median is printed.")
flags.DEFINE_integer("num_workers", jobs.available_cpus(), "Our processes.")
flags.DEFINE_string(
    "peer_python",
    None,
    "Interpreter with what peers/tf-models-official.txt lists.",
)

SCRIPT = pathlib.Path(__file__).parent.parent / "create_pretraining_data.py"
PEER_MODULE = "official.nlp.data.create_pretraining_data"


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of a command: what it wrote, its times, its memory."""

    num_records: float
    seconds: float
    cpu_seconds: float
    peak_bytes: float

    @property
    def rate(self) -> float:
        return self.num_records / self.seconds

    @property
    def cpu_rate(self) -> float:
        return self.num_records / self.cpu_seconds


def main(argv) -> None:
    del argv
    workers = f"--num_workers={FLAGS.num_workers}"
    our_command = [sys.executable, str(SCRIPT), workers]
    peer_python = FLAGS.peer_python or peer_environment.python_of(
        "tf-models-official", on_top=True
    )
    their_command = [peer_python, "-m", PEER_MODULE]
    runs = [
        (measure(their_command), measure(our_command))
        for _ in range(FLAGS.rounds)
    ]
    their_runs, our_runs = zip(*runs, strict=True)
    ours = report(f"bert_tf, {FLAGS.num_workers} workers", our_runs)
    theirs = report("tf-models-official", their_runs)
    print(
        f"ratio: {ours.rate / theirs.rate:.1f} "
        f"({ours.cpu_rate / theirs.cpu_rate:.1f} of CPU time)"
    )


def measure(command: list[str]) -> Run:
    """Runs a command that takes the original's flags."""
    with tempfile.TemporaryDirectory() as folder:
        output = os.path.join(folder, "out.tfrecord")
        arguments = [
            f"--input_file={FLAGS.input_file}",
            f"--output_file={output}",
            f"--vocab_file={FLAGS.vocab_file}",
            f"--dupe_factor={FLAGS.dupe_factor}",
        ]
        usage = sessions.run(command + arguments)
        return Run(records.count_records(output), *dataclasses.astuple(usage))


def report(name: str, runs: tuple[Run, ...]) -> Run:
    """Prints the medians and returns them."""
    median = Run(
        *map(
            statistics.median, zip(*map(dataclasses.astuple, runs), strict=True)
        )
    )
    print(
        f"{name}: {median.num_records:,.0f} records in {median.seconds:.1f} s "
        f"({median.rate:,.0f}/s, {median.cpu_seconds:.1f} s of CPU), "
        f"{median.peak_bytes / 2**20:,.0f} MiB at most"
    )
    return median


if __name__ == "__main__":
    flags.mark_flags_as_required(["input_file", "vocab_file"])
    app.run(main)
