"""Speed of the training input pipeline alone: records in, batches out.

    python benchmarks/input_pipeline.py --output=build/input_pipeline.json

writes random records of 128 tokens and 20 predictions to 4 files and draws
batches of 32 from them, in this process.
"""

# Before anything that imports TensorFlow.
from bert_tf import start_tensorflow

start_tensorflow.quietly()

import sys
import tempfile
import types

import comparison
import sides

from bert_tf import cli
from bert_tf.data import pipeline, records

sys.path.append(str(sides.PEERS))
from side import batch_of, repeat

BATCH_SIZE = 32
# The examples of a file; the setup has the form of training_step.py's.
SETUP = {
    "batch_size": 10_000,
    "max_seq_length": 128,
    "max_predictions_per_seq": 20,
    "config": {"vocab_size": 30_522},
}
NUM_FILES = 4
# The number of batches that fill the buffers.
WARM_UP = 100


def run(config: comparison.BenchmarkOptions) -> comparison.Comparison:
    """Runs the benchmark."""
    ours = comparison.OURS
    results = comparison.Comparison(
        "Input pipeline: records in, batches out",
        "records/s",
        {ours: "bert_tf"},
        facts=[
            f"{NUM_FILES} files of {SETUP['batch_size']:,} records, shuffled "
            "and checked as in training; nothing computes with the batches"
        ],
    )
    length = SETUP["max_seq_length"]
    features = records.pretraining_schema(
        length, SETUP["max_predictions_per_seq"]
    )
    with tempfile.TemporaryDirectory() as folder:
        paths = [f"{folder}/{number}.tfrecord" for number in range(NUM_FILES)]
        for seed, path in enumerate(paths):
            examples = batch_of(SETUP, seed)
            records.write(path, records.encode_batch(features, examples))
        dataset = pipeline.training_dataset(
            paths,
            features,
            batch_size=BATCH_SIZE,
            seed=0,
            vocab_size=SETUP["config"]["vocab_size"],
        )
        batches = iter(dataset)
        for _ in range(WARM_UP):
            next(batches)
        name = f"{BATCH_SIZE} x {length}"
        case = comparison.Case(name, BATCH_SIZE, {ours: config.least_seconds})
        side = types.SimpleNamespace(
            versions=sides.versions_of(sys.executable, "tensorflow"),
            ask=lambda seconds: repeat(lambda: next(batches), seconds)[0],
        )
        comparison.take_turns(results, [case], {ours: side}, config)
    return comparison.report(results, config, "input_pipeline")


if __name__ == "__main__":
    cli.main(run)
