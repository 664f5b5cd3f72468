"""Start time: imports and --help, beside `import tensorflow`.

    python benchmarks/start.py --output=build/start.json

times whole processes: `python -c "import bert_tf"`, the same with a model,
which needs TensorFlow, and `python run_classifier.py --help`.
"""

import sys

import comparison
import sides

from bert_tf import cli

TITLES = {comparison.OURS: "bert_tf", "tensorflow": "import tensorflow"}
COMMANDS = {
    "import bert_tf": ["-c", "import bert_tf"],
    "from bert_tf import BertModel": ["-c", "from bert_tf import BertModel"],
    "run_classifier.py --help": [f"{sides.ROOT}/run_classifier.py", "--help"],
}


def run(config: comparison.BenchmarkOptions) -> comparison.Comparison:
    """Runs the benchmark."""
    results = comparison.Comparison(
        "Start: from the command to the first answer", "s", TITLES
    )
    versions = sides.versions_of(sys.executable, "tensorflow", "keras")
    side = sides.Command([sys.executable], versions)
    peer = ["-c", "import tensorflow"]
    cases = [
        comparison.Case(name, 1, {comparison.OURS: words, "tensorflow": peer})
        for name, words in COMMANDS.items()
    ]
    comparison.take_turns(results, cases, dict.fromkeys(TITLES, side), config)
    return comparison.report(results, config, "start")


if __name__ == "__main__":
    cli.main(run)
