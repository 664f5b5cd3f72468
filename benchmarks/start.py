"""Start time: imports and --help, beside `import tensorflow`.

    python benchmarks/start.py --output=build/start.json

times whole processes: `python -c "import bert_tf"`, the same with a model,
which needs TensorFlow, and `python run_classifier.py --help`.
"""

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
from sides import ROOT, Command, versions_of

from bert_tf import cli

TITLES = {OURS: "bert_tf", "tensorflow": "import tensorflow"}
COMMANDS = {
    "import bert_tf": ["-c", "import bert_tf"],
    "from bert_tf import BertModel": ["-c", "from bert_tf import BertModel"],
    "run_classifier.py --help": [str(ROOT / "run_classifier.py"), "--help"],
}


def run(config: BenchmarkOptions) -> Comparison:
    """Runs the benchmark."""
    comparison = Comparison(
        "Start: from the command to the first answer", "s", TITLES
    )
    versions = versions_of(sys.executable, "tensorflow", "keras")
    side = Command([sys.executable], versions)
    peer = ["-c", "import tensorflow"]
    cases = [
        Case(name, 1, {OURS: words, "tensorflow": peer})
        for name, words in COMMANDS.items()
    ]
    take_turns(comparison, cases, dict.fromkeys(TITLES, side), config)
    publish(section(comparison), config.page, "start")
    return comparison


if __name__ == "__main__":
    cli.main(run)
