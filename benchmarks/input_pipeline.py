"""Records per second that the training pipeline reads, alone.

    python benchmarks/input_pipeline.py

writes random records of 128 tokens and 20 predictions to a temporary folder,
in 4 files, and draws batches of 32 from them for some seconds. It prints one
line such as

    input pipeline: 212,345 records/s (batch 32, length 128, 2 cores)
"""

import os
import tempfile
import time

import numpy as np
import tensorflow as tf

from bert_tf.data import pipeline, records, schema

BATCH_SIZE = 32
MAX_SEQ_LENGTH = 128
MAX_PREDICTIONS_PER_SEQ = 20
VOCAB_SIZE = 30_522
NUM_FILES = 4
RECORDS_PER_FILE = 10_000
SECONDS = 5.0


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


def records_per_second(dataset: tf.data.Dataset) -> float:
    """Draws batches for some seconds, once the buffers are full."""
    batches = iter(dataset)
    for _ in range(100):
        next(batches)
    start = time.perf_counter()
    num_batches = 0
    while time.perf_counter() - start < SECONDS:
        next(batches)
        num_batches += 1
    return num_batches * BATCH_SIZE / (time.perf_counter() - start)


def main() -> None:
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
        rate = records_per_second(dataset)
    print(
        f"input pipeline: {rate:,.0f} records/s (batch {BATCH_SIZE}, length "
        f"{MAX_SEQ_LENGTH}, {os.cpu_count()} cores)"
    )


if __name__ == "__main__":
    main()
