"""Speed of the training input pipeline alone: records in, batches out.

    python benchmarks/input_pipeline.py --output=build/input_pipeline.json

writes random records of 128 tokens and 20 predictions to 4 files and draws
batches of 32 from them, in this process.
"""

# Before anything that imports TensorFlow.
import bert_tf.quiet_tensorflow  # noqa: F401

# isort: split

import dataclasses
import sys
import tempfile
import time
from collections.abc import Iterator

import numpy as np
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
from sides import versions_of

from bert_tf import cli
from bert_tf.data import pipeline, records, schema
from bert_tf.options import option

BATCH_SIZE = 32
MAX_SEQ_LENGTH = 128
MAX_PREDICTIONS_PER_SEQ = 20
VOCAB_SIZE = 30_522
NUM_FILES = 4
# The batches that fill the buffers.
WARM_UP = 100


@dataclasses.dataclass(frozen=True, kw_only=True)
class InputPipelineConfig(ReportOptions):
    """Options of this benchmark."""

    rounds: int = rounds_option(3)
    seconds: float = option("Duration of a round.", default=5.0)
    records_per_file: int = option("Number of records.", default=10_000)


class Pipeline:
    """A side that draws batches for some seconds."""

    def __init__(self, batches: Iterator):
        self.versions = versions_of(sys.executable, "tensorflow")
        self._batches = batches

    def ask(self, seconds: float) -> dict[str, float]:
        cpu_start, start = time.process_time(), time.perf_counter()
        elapsed, times = 0.0, 0
        while elapsed < seconds:
            next(self._batches)
            elapsed, times = time.perf_counter() - start, times + 1
        cpu_seconds = time.process_time() - cpu_start
        return {"times": times, "seconds": elapsed, "cpu_seconds": cpu_seconds}


def run(config: InputPipelineConfig) -> Comparison:
    """Runs the benchmark."""
    comparison = Comparison(
        "Input pipeline: records in, batches out",
        "records/s",
        {OURS: "bert_tf"},
        facts=[
            f"{NUM_FILES} files of {config.records_per_file:,} records, "
            "shuffled and checked as in training; nothing computes with the "
            "batches"
        ],
    )
    features = schema.pretraining_schema(
        MAX_SEQ_LENGTH, MAX_PREDICTIONS_PER_SEQ
    )
    with tempfile.TemporaryDirectory() as folder:
        dataset = pipeline.training_dataset(
            _write_files(folder, features, config.records_per_file),
            features,
            batch_size=BATCH_SIZE,
            seed=0,
            vocab_size=VOCAB_SIZE,
        )
        batches = iter(dataset)
        for _ in range(WARM_UP):
            next(batches)
        name = f"{BATCH_SIZE} x {MAX_SEQ_LENGTH}"
        take_turns(
            comparison,
            [Case(name, BATCH_SIZE, {OURS: config.seconds})],
            {OURS: Pipeline(batches)},
            config.rounds,
            config.output,
        )
    publish(section(comparison), config.page, "input_pipeline")
    return comparison


def _write_files(folder: str, features: schema.Schema, count: int) -> list[str]:
    """Writes files of full-length examples of random tokens."""
    paths = [f"{folder}/{number}.tfrecord" for number in range(NUM_FILES)]
    sequence = count, MAX_SEQ_LENGTH
    predictions = count, MAX_PREDICTIONS_PER_SEQ
    for seed, path in enumerate(paths):
        rng = np.random.default_rng(seed)
        batch = {
            "input_ids": rng.integers(0, VOCAB_SIZE, sequence),
            "input_mask": np.ones(sequence, int),
            "segment_ids": rng.integers(0, 2, sequence),
            "masked_lm_positions": rng.integers(0, MAX_SEQ_LENGTH, predictions),
            "masked_lm_ids": rng.integers(0, VOCAB_SIZE, predictions),
            "masked_lm_weights": np.ones(predictions, np.float32),
            "next_sentence_labels": rng.integers(0, 2, (count, 1)),
        }
        with records.RecordWriter(path) as writer:
            writer.write_all(records.encode_batch(features, batch))
    return paths


if __name__ == "__main__":
    cli.main(run)
