"""Start time: imports and --help, beside `import tensorflow`.

    python benchmarks/start.py --output=build/start.json

times whole processes: `python -c "import bert_tf"`, the same with a model,
which needs TensorFlow, and `python run_classifier.py --help`.
"""

import dataclasses
import sys

from comparison import (
    OURS,
    Case,
    Comparison,
    ReportOptions,
    publish,
    rounds_option,
    section,
    take_turns,
)
from sides import ROOT, Command, versions_of

from bert_tf import cli

TENSORFLOW = "tensorflow"


@dataclasses.dataclass(frozen=True, kw_only=True)
class StartConfig(ReportOptions):
    """Options of this benchmark."""

    rounds: int = rounds_option(7)


def run(config: StartConfig) -> Comparison:
    """Runs the benchmark."""
    comparison = Comparison(
        "Start: from the command to the first answer",
        "s",
        {OURS: "bert_tf", TENSORFLOW: "import tensorflow"},
    )
    versions = versions_of(sys.executable, "tensorflow", "keras")
    sides = {
        name: Command([sys.executable], versions) for name in comparison.titles
    }
    commands = {
        "import bert_tf": ["-c", "import bert_tf"],
        "from bert_tf import BertModel": [
            "-c",
            "from bert_tf import BertModel",
        ],
        "run_classifier.py --help": [str(ROOT / "run_classifier.py"), "--help"],
    }
    peer = ["-c", "import tensorflow"]
    cases = [
        Case(name, 1, {OURS: words, TENSORFLOW: peer})
        for name, words in commands.items()
    ]
    take_turns(comparison, cases, sides, config.rounds, config.output)
    publish(section(comparison), config.page, "start")
    return comparison


if __name__ == "__main__":
    cli.main(run)
