"""Packed rows from files: each example once, wherever a stream starts."""

import pathlib

import numpy as np
import pytest

from bert_tf.data import pipeline, records
from bert_tf.data.schema import pretraining_schema
from bert_tf.data.sequence_packing import SequencePacking
from bert_tf.errors import InputError
from tests import packed_rows

S, P, N = 11, 3, 71
SCHEMA = pretraining_schema(S, P)
PACKING = SequencePacking(max_examples=4, window=13)


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """Writes three files of examples whose first ids are 1 to 71."""
    random = np.random.default_rng(3)
    mask = np.arange(S) < random.integers(1, S + 1, (N, 1))
    batch = {
        "input_ids": np.arange(1, N + 1)[:, None] * mask,
        "input_mask": mask,
        "segment_ids": mask * 0,
        "masked_lm_positions": np.zeros((N, P), int),
        "masked_lm_ids": np.arange(1, N + 1)[:, None] * np.eye(1, P, dtype=int),
        "masked_lm_weights": np.eye(1, P) * np.ones((N, 1)),
        "next_sentence_labels": np.arange(1, N + 1)[:, None] % 2,
    }
    folder = tmp_path_factory.mktemp("records")
    names = ["a.tfrecord", "b.tfrecord.gz", "c.tfrecord"]
    for name, part in zip(names, np.split(np.arange(N), [19, 40]), strict=True):
        with records.RecordWriter(str(folder / name)) as writer:
            examples = {
                feature.name: batch[feature.name][part].astype(feature.dtype)
                for feature in SCHEMA
            }
            writer.write_all(records.encode_batch(SCHEMA, examples))
    return [str(folder / name) for name in names]


def numbers(batch) -> list[tuple[int, ...]]:
    """Returns the examples in each row of a batch."""
    return [
        tuple(np.unique(row[row > 0]).tolist()) for row in batch["input_ids"]
    ]


def stream(paths, num_rows, **options):
    """Returns the first rows of a training stream."""
    options = {"batch_size": 5, "seed": 7, "packing": PACKING, **options}
    batches = pipeline.training_dataset(paths, SCHEMA, **options)
    rows = []
    for batch in batches.as_numpy_iterator():
        rows += numbers(batch)
        if len(rows) >= num_rows:
            return rows[:num_rows]


@pytest.fixture(scope="module")
def whole(paths):
    """Returns the rows of three epochs, and the number of rows in one."""
    total = pipeline.fill(paths, SCHEMA, SequencePacking(4, window=13)).rows
    rows = stream(paths, 3 * total + 20)
    epoch, seen = 0, set()
    while len(seen) < N:
        seen |= set(rows[epoch])
        epoch += 1
    return rows, epoch


def test_every_epoch_has_the_same_rows_in_another_order(whole):
    rows, epoch = whole
    epochs = [rows[i * epoch : (i + 1) * epoch] for i in range(3)]
    assert len({tuple(rows) for rows in epochs}) == 3
    for rows in epochs:
        assert sorted(rows) == sorted(epochs[0])
        assert sorted(sum(rows, ())) == list(range(1, N + 1))
    assert epoch < 0.8 * N


def test_resumed_stream(paths, whole):
    """Starts after an epoch, in which files are only counted."""
    start, num_shards, shard = 17, 2, 1
    rows, epoch = whole
    found = stream(
        paths,
        20,
        start_example=start + epoch,
        num_shards=num_shards,
        shard=shard,
    )
    assert found == rows[start + epoch + shard :: num_shards][:20]


def evaluate(paths, **options):
    options = {"batch_size": 4, "packing": PACKING, **options}
    batches = pipeline.evaluation_dataset(paths, SCHEMA, **options)
    found = list(batches.as_numpy_iterator())
    assert len(found) == len(batches)
    return found


@pytest.mark.parametrize(
    ("num_shards", "max_examples"), [(1, None), (2, 23), (3, 2)]
)
def test_every_example_is_evaluated_once(paths, num_shards, max_examples):
    """With three shards, some have only padding."""
    shards = [
        evaluate(
            paths,
            num_shards=num_shards,
            shard=shard,
            max_examples=max_examples,
        )
        for shard in range(num_shards)
    ]
    assert len({len(batches) for batches in shards}) == 1
    batches = [batch for batches in shards for batch in batches]
    rows = {
        index: row
        for batch in batches
        for index, row in zip(
            batch["example_index"].tolist(), numbers(batch), strict=True
        )
        if index >= 0
    }
    assert sorted(rows) == list(range(len(rows)))
    assert sorted(sum(rows.values(), ())) == list(
        range(1, (max_examples or N) + 1)
    )
    is_real = np.concatenate([batch["is_real_example"] for batch in batches])
    assert is_real.sum() == len(rows)
    for batch in batches:
        for name, values in batch.items():
            is_padding = batch["is_real_example"] == 0
            expected = -1 if name == "example_index" else 0
            assert (values[is_padding] == expected).all(), name


def test_rows_equal_rows_packed_by_hand(paths):
    [batch] = evaluate(paths, batch_size=64)
    [alone] = evaluate(paths, batch_size=N, packing=None)
    members = [[n - 1 for n in row] for row in numbers(batch) if row]
    # `numbers` sorts the examples of a row, which are sorted in it, too.
    expected = packed_rows.pack(alone, members, PACKING.max_examples)
    for name, value in expected.items():
        np.testing.assert_array_equal(batch[name][: len(value)], value)


def test_fill_of_the_first_examples(paths):
    fill = pipeline.fill(paths, SCHEMA, PACKING, max_examples=30)
    assert fill.examples == 30
    assert fill.unpacked < fill.packed <= 1
    assert pipeline.fill(paths, SCHEMA, PACKING).examples == N


def test_faults(paths, tmp_path):
    with (
        pytest.raises(InputError, match="input_ids must be from 0 to 70"),
        pipeline.input_errors(paths),
    ):
        evaluate(paths, vocab_size=N)
    damaged = tmp_path / "damaged"
    data = bytearray(pathlib.Path(paths[0]).read_bytes())
    data[-20] ^= 4
    damaged.write_bytes(data)
    with pytest.raises(InputError, match="damaged"):
        pipeline.fill([str(damaged)], SCHEMA, PACKING)
