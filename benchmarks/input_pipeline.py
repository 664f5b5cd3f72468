"""Records per second that the training pipeline reads, alone.

    python benchmarks/input_pipeline.py --output=build/input_pipeline.json

writes random records of 128 tokens and 20 predictions to a temporary folder,
in 4 files, and draws batches of 32 from them, for some seconds each round.
turns_section.py writes the results into docs/performance.md.
"""

import sys
import tempfile
import time
from collections.abc import Iterator

import benchmark_flags
import numpy as np
import turns
import turns_section
from absl import app, flags
from peer_environment import versions_of
from turns import OURS, Case, Comparison

from bert_tf.data import pipeline, records, schema

BATCH_SIZE = 32
MAX_SEQ_LENGTH = 128
MAX_PREDICTIONS_PER_SEQ = 20
VOCAB_SIZE = 30_522
NUM_FILES = 4
RECORDS_PER_FILE = 10_000
SECONDS = 5.0
# Until its buffers are full.
BATCHES_BEFORE = 100

FLAGS = flags.FLAGS
benchmark_flags.define_rounds(3)
benchmark_flags.define_output()


def random_batch(num_records: int, seed: int) -> dict[str, np.ndarray]:
    """Full-length examples of random tokens."""
    rng = np.random.default_rng(seed)
    sequence = num_records, MAX_SEQ_LENGTH
    predictions = num_records, MAX_PREDICTIONS_PER_SEQ
    return {
        "input_ids": rng.integers(0, VOCAB_SIZE, sequence),
        "input_mask": np.ones(sequence, int),
        "segment_ids": rng.integers(0, 2, sequence),
        "masked_lm_positions": rng.integers(0, MAX_SEQ_LENGTH, predictions),
        "masked_lm_ids": rng.integers(0, VOCAB_SIZE, predictions),
        "masked_lm_weights": np.ones(predictions, np.float32),
        "next_sentence_labels": rng.integers(0, 2, (num_records, 1)),
    }


def write_files(folder: str, features: schema.Schema) -> list[str]:
    """Writes the records to read."""
    paths = [f"{folder}/{number}.tfrecord" for number in range(NUM_FILES)]
    for seed, path in enumerate(paths):
        batch = random_batch(RECORDS_PER_FILE, seed)
        with records.RecordWriter(path) as writer:
            writer.write_all(records.encode_batch(features, batch))
    return paths


class Pipeline:
    """A side that draws batches; see `turns.take`."""

    def __init__(self, batches: Iterator):
        self.versions = versions_of(sys.executable, "tensorflow")
        self._batches = batches

    def ask(self, seconds: float) -> dict[str, float]:
        """Draws as many as it can in so long."""
        cpu_start, start = time.process_time(), time.perf_counter()
        taken, times = 0.0, 0
        while taken < seconds:
            next(self._batches)
            taken, times = time.perf_counter() - start, times + 1
        cpu_seconds = time.process_time() - cpu_start
        return {
            "times": times,
            "seconds": taken,
            "cpu_seconds": cpu_seconds,
            "request_cpu_seconds": cpu_seconds,
        }


def main() -> None:
    comparison = Comparison.begin(
        "Input pipeline: records in, batches out",
        "records/s",
        {OURS: "bert_tf"},
        facts=[
            f"{NUM_FILES} files of {RECORDS_PER_FILE:,} records, shuffled and "
            "checked as in training; nothing computes with the batches"
        ],
    )
    features = schema.pretraining_schema(
        MAX_SEQ_LENGTH, MAX_PREDICTIONS_PER_SEQ
    )
    with tempfile.TemporaryDirectory() as folder:
        dataset = pipeline.training_dataset(
            write_files(folder, features),
            features,
            batch_size=BATCH_SIZE,
            seed=0,
            vocab_size=VOCAB_SIZE,
        )
        batches = iter(dataset)
        for _ in range(BATCHES_BEFORE):
            next(batches)
        name = f"{BATCH_SIZE} x {MAX_SEQ_LENGTH}"
        turns.take(
            comparison,
            [Case(name, BATCH_SIZE, {OURS: SECONDS}, {})],
            {OURS: Pipeline(batches)},
            FLAGS.rounds,
            turns_section.keeper(comparison, FLAGS.output),
        )
    print(turns_section.section(comparison))


if __name__ == "__main__":
    app.run(lambda argv: main())
