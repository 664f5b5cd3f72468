"""Packed rows of files compared with rows made by hand."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.data import pipeline, records
from bert_tf.data.records import pretraining_schema
from bert_tf.data.sequence_packing import Fill, SequencePacking, first_fit
from tests import packed_rows

S, P, N = 13, 4, 71
SCHEMA = pretraining_schema(S, P)
PACKING = SequencePacking(max_examples=4, window=13)


def examples() -> dict[str, np.ndarray]:
    """Returns examples of every length with up to two masked words.

    All tokens of an example are its number, from 1.
    """
    random = np.random.default_rng(0)
    lengths = random.integers(1, S + 1, (N, 1))
    mask = (np.arange(S) < lengths).astype("int32")
    masked = np.arange(P) < random.integers(0, 3, (N, 1))
    numbers = np.arange(1, N + 1, dtype="int32")[:, np.newaxis]
    return {
        "input_ids": numbers * mask,
        "input_mask": mask,
        "segment_ids": random.integers(0, 2, (N, S), dtype="int32") * mask,
        "masked_lm_positions": (
            random.integers(0, lengths, (N, P)) * masked
        ).astype("int32"),
        "masked_lm_ids": random.integers(1, N, (N, P), dtype="int32") * masked,
        "masked_lm_weights": masked.astype("float32"),
        "next_sentence_labels": numbers % 2,
    }


@pytest.mark.parametrize(
    ("sizes", "room", "rows"),
    [
        # The rows are 7 1, 6 4, 5 5 and 5.
        ([[5], [1], [7], [6], [5], [4], [5]], [10], [2, 0, 0, 1, 2, 1, 3]),
        ([[5, 1], [5, 2], [4, 1], [1, 1]], [10, 2], [1, 0, 1, 2]),
    ],
)
def test_the_largest_examples_are_placed_first(sizes, room, rows):
    assert first_fit(tf.constant(sizes), room).numpy().tolist() == rows


def write(path, batch):
    records.write(str(path), records.encode_batch(SCHEMA, batch))
    return str(path)


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """Writes three files."""
    folder = tmp_path_factory.mktemp("records")
    names = ["a.tfrecord", "b.tfrecord.gz", "c.tfrecord"]
    parts = np.split(np.arange(N), [19, 40])
    return [
        write(folder / name, {k: v[part] for k, v in examples().items()})
        for name, part in zip(names, parts, strict=True)
    ]


def numbers(batch) -> list[tuple[int, ...]]:
    """Returns the numbers of the examples in each row of a batch."""
    return [
        tuple(np.unique(row[row > 0]).tolist()) for row in batch["input_ids"]
    ]


def stream(paths, num_rows, **options):
    """Returns the first rows of a training stream."""
    batches = pipeline.training_dataset(
        paths, SCHEMA, batch_size=5, seed=7, packing=PACKING, **options
    )
    some = batches.take(-(-num_rows // 5)).as_numpy_iterator()
    return list(itertools.chain(*map(numbers, some)))[:num_rows]


def evaluate(paths, **options):
    options = {"batch_size": 4, "packing": PACKING, **options}
    batches = pipeline.evaluation_dataset(paths, SCHEMA, **options)
    found = list(batches.as_numpy_iterator())
    assert len(found) == len(batches)
    return found


def test_every_epoch_has_the_same_rows_in_another_order(paths):
    epoch = pipeline.fill(paths, SCHEMA, PACKING).rows
    assert epoch < 0.8 * N
    rows = stream(paths, 2 * epoch)
    epochs = rows[:epoch], rows[epoch : 2 * epoch]
    assert epochs[0] != epochs[1]
    for some in epochs:
        assert sorted(some) == sorted(epochs[0])
        assert sorted(sum(some, ())) == list(range(1, N + 1))
    # Files of whole epochs are only counted.
    start = epoch + 3
    found = stream(paths, 15, start_example=start, num_shards=2, shard=1)
    assert found == rows[start + 1 :: 2][:15]


@pytest.mark.parametrize("max_examples", [71, 2])
def test_every_example_is_evaluated_once(paths, max_examples):
    """With two examples, the second shard has only padding."""
    options = {"num_shards": 2, "max_examples": max_examples}
    shards = [evaluate(paths, shard=shard, **options) for shard in range(2)]
    assert len(set(map(len, shards))) == 1
    rows = {}
    for batch in itertools.chain(*shards):
        index = batch["example_index"]
        np.testing.assert_array_equal(batch["is_real_example"], index >= 0)
        rows |= dict(zip(index.tolist(), numbers(batch), strict=True))
        for name, values in batch.items():
            padding = -1 if name == "example_index" else 0
            assert (values[index < 0] == padding).all(), name
    rows.pop(-1, None)
    assert sorted(rows) == list(range(len(rows)))
    found = sorted(sum(rows.values(), ()))
    assert found == list(range(1, max_examples + 1))


@pytest.mark.parametrize("most", [1, 3])
def test_rows_equal_rows_made_by_hand(paths, most):
    packing = SequencePacking(most, window=17)
    [batch] = evaluate(paths, batch_size=N, packing=packing)
    [alone] = evaluate(paths, batch_size=N, packing=None)
    # `numbers` sorts the examples of a row, which are sorted in it, too.
    members = [[n - 1 for n in row] for row in numbers(batch) if row]
    assert max(map(len, members)) == most
    for row in members:
        assert len({index // 17 for index in row}) == 1
    expected = packed_rows.pack(alone, members, most)
    assert {*batch} == {*expected, "is_real_example", "example_index"}
    for name, value in expected.items():
        np.testing.assert_array_equal(batch[name][: len(value)], value)
        assert batch[name].dtype == value.dtype, name


def test_how_full_rows_are(paths):
    fill = pipeline.fill(paths, SCHEMA, PACKING)
    [batch] = evaluate(paths, batch_size=N)
    rows, tokens = batch["is_real_example"].sum(), batch["input_mask"].sum()
    assert fill == Fill(N, tokens, rows, rows * S)
    assert fill.unpacked == pytest.approx(tokens / (N * S))
    assert fill.packed == pytest.approx(tokens / (rows * S))
    assert fill.packed > 1.4 * fill.unpacked
    assert pipeline.fill(paths, SCHEMA, PACKING, max_examples=30).examples == 30


def test_unusual_examples_stay_intact(tmp_path):
    """Gaps in the mask and in the weights; a masked word in the padding."""
    batch = {name: values[:2] * 0 for name, values in examples().items()}
    batch["input_mask"][0, [0, 1, 4]] = 1
    batch["masked_lm_positions"][0, :2] = [6, 2]
    batch["masked_lm_weights"][0, [0, 2]] = 1
    batch["masked_lm_ids"][0, :3] = [11, 12, 13]
    [row] = evaluate([write(tmp_path / "f", batch)], batch_size=1)
    assert row["input_mask"][0, :5].tolist() == [1, 1, 0, 0, 1]
    assert row["example_ids"][0].tolist() == [1] * 7 + [2] + [0] * 5
    assert row["cls_positions"].tolist() == [[0, 7, 0, 0]]
    assert row["masked_lm_weights"].tolist() == [[1, 0, 1, 0]]
    assert row["masked_lm_ids"][0, :3].tolist() == [11, 12, 13]
    assert row["masked_lm_positions"][0, 0] == 6


def test_shapes_are_static(paths):
    """A program for a TPU has fixed shapes."""
    options = {"batch_size": 2, "packing": PACKING}
    for batches in (
        pipeline.evaluation_dataset(paths, SCHEMA, **options),
        pipeline.training_dataset(paths, SCHEMA, seed=0, **options),
    ):
        shapes = {k: spec.shape for k, spec in batches.element_spec.items()}
        assert all(shape.is_fully_defined() for shape in shapes.values())
        assert shapes["input_ids"] == (2, S)
        assert shapes["masked_lm_ids"] == (2, P)
        assert shapes["cls_positions"] == (2, 4)
