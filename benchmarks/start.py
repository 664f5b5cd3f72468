"""How long users wait before anything happens: imports and --help.

    python benchmarks/start.py --output=build/start.json

runs `python -c "import bert_tf"`, the same with a model, which needs
TensorFlow, and `python run_classifier.py --help`, in turn with
`python -c "import tensorflow"`: whole processes. turns_section.py writes the
results into docs/performance.md.
"""

import sys

import benchmark_flags
import turns
import turns_section
from absl import app, flags
from commands import Command
from peer_environment import versions_of
from places import ROOT
from turns import OURS, Case, Comparison

FLAGS = flags.FLAGS
TENSORFLOW = "tensorflow"
# Ours may take this many times as long.
LIMIT = 1.3

benchmark_flags.define_rounds(7)
benchmark_flags.define_output()


def main() -> None:
    comparison = Comparison.begin(
        "Start: from the command to the first answer",
        "s",
        {OURS: "bert_tf", TENSORFLOW: "import tensorflow"},
        shows_seconds=True,
    )
    versions = versions_of(sys.executable, "tensorflow", "keras")
    sides = {
        name: Command([sys.executable], versions) for name in comparison.titles
    }
    peer = ["-c", "import tensorflow"]
    aims = {TENSORFLOW: 1 / LIMIT}
    cases = [
        Case(name, 1, {OURS: words, TENSORFLOW: peer}, aims)
        for name, words in (
            ("import bert_tf", ["-c", "import bert_tf"]),
            (
                "from bert_tf import BertModel",
                ["-c", "from bert_tf import BertModel"],
            ),
            (
                "run_classifier.py --help",
                [str(ROOT / "run_classifier.py"), "--help"],
            ),
        )
    ]

    keep = turns_section.keeper(comparison, FLAGS.output)
    turns.take(comparison, cases, sides, FLAGS.rounds, keep)
    print(turns_section.section(comparison))


if __name__ == "__main__":
    app.run(lambda argv: main())
