"""Packing compared with a plain loop and with rows made by hand."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.data import pipeline, records
from bert_tf.data.records import pretraining_schema
from bert_tf.data.sequence_packing import Fill, SequencePacking, first_fit
from tests import packed_rows

S, P, K, N = 13, 4, 5, 71
SCHEMA = pretraining_schema(S, P)
PACKING = SequencePacking(max_examples=4, window=13)


def examples(seed=0, count=N) -> dict[str, np.ndarray]:
    """Returns examples of every length with up to two masked words.

    All tokens of an example are its number, from 1.
    """
    random = np.random.default_rng(seed)
    lengths = random.integers(1, S + 1, (count, 1))
    mask = (np.arange(S) < lengths).astype("int32")
    masked = np.arange(P) < random.integers(0, 3, (count, 1))
    numbers = np.arange(1, count + 1, dtype="int32")[:, np.newaxis]
    return {
        "input_ids": numbers * mask,
        "input_mask": mask,
        "segment_ids": random.integers(0, 2, (count, S), dtype="int32") * mask,
        "masked_lm_positions": (
            random.integers(0, lengths, (count, P)) * masked
        ).astype("int32"),
        "masked_lm_ids": random.integers(1, N, (count, P), dtype="int32")
        * masked,
        "masked_lm_weights": masked.astype("float32"),
        "next_sentence_labels": numbers % 2,
    }


def data_set(count: int) -> tf.data.Dataset:
    """Returns the numbers of examples, as strings, instead of records."""
    return tf.data.Dataset.range(count).map(tf.strings.as_string)


def parser(batch):
    """Returns a function from the strings of `data_set` to features."""

    def parse(serialized):
        numbers = tf.strings.to_number(serialized, tf.int32)
        return {k: tf.gather(tf.constant(v), numbers) for k, v in batch.items()}

    return parse


def rows_of(packing, batch) -> list[list[int]]:
    """Returns the indices of the examples in each row."""
    rows = packing.rows(data_set(len(batch["input_ids"])), parser(batch))
    return [
        [int(number) for number in row if number]
        for row in rows.as_numpy_iterator()
    ]


def first_fit_by_hand(sizes, room) -> list[int]:
    """Puts one item after the other into the first row with room for it."""
    rows, left = [0] * len(sizes), []
    for thing in sorted(range(len(sizes)), key=lambda i: (*-sizes[i], i)):
        fits = [
            row for row, space in enumerate(left) if all(sizes[thing] <= space)
        ]
        if not fits:
            left.append(np.array(room))
        row = fits[0] if fits else len(left) - 1
        left[row] = left[row] - sizes[thing]
        rows[thing] = row
    return rows


@pytest.mark.parametrize("seed", range(2))
def test_first_fit_equals_a_plain_loop(seed):
    batch = examples(seed)
    lengths = batch["input_mask"].sum(1)
    masked = np.maximum((batch["masked_lm_weights"] > 0).sum(1), 1)
    sizes = np.stack([lengths, masked, np.ones_like(lengths)], 1)
    found = first_fit(tf.constant(sizes, tf.int32), [S, 2, 2]).numpy()
    assert found.tolist() == first_fit_by_hand(sizes, [S, 2, 2])


@pytest.mark.parametrize("most", [1, K])
def test_joined_rows_equal_rows_made_by_hand(most):
    """The last row is empty, as at the end of an evaluation."""
    batch, packing = examples(), SequencePacking(most)
    rows = rows_of(packing, batch)
    slots = [[str(i).encode() for i in row] for row in rows] + [[]]
    slots = [row + [b""] * (most - len(row)) for row in slots]
    assert slots[-1] == [b""] * packing.max_examples
    joined = packing.join(tf.constant(slots), parser(batch))
    expected = packed_rows.pack(batch, [*rows, []], most)
    assert joined.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(joined[name], value, err_msg=name)
        assert joined[name].dtype == value.dtype, name
    empty = packing.join(tf.fill([3, most], b""), parser(examples(count=1)))
    assert not any(np.any(value) for value in empty.values())


def test_shapes_are_static():
    """A program for a TPU has fixed shapes."""

    @tf.function(input_signature=[tf.TensorSpec([2, K], tf.string)])
    def shapes(slots):
        joined = SequencePacking(K).join(slots, parser(examples()))
        for name, value in joined.items():
            last = {"m": P, "c": K, "n": K}.get(name[0], S)
            assert value.shape.as_list() == [2, last], name
        return joined["input_ids"]

    shapes(tf.fill([2, K], b"0"))


def test_unusual_examples_stay_intact():
    """Gaps in the mask and in the weights; a masked word in the padding."""
    batch = {name: values[:2] * 0 for name, values in examples().items()}
    batch["input_mask"][0, [0, 1, 4]] = 1
    batch["masked_lm_positions"][0, :2] = [6, 2]
    batch["masked_lm_weights"][0, [0, 2]] = 1
    batch["masked_lm_ids"][0, :3] = [11, 12, 13]
    assert rows_of(SequencePacking(K), batch) == [[0, 1]]
    joined = SequencePacking(K).join(tf.constant([[b"0", b"1"]]), parser(batch))
    assert joined["input_mask"][0, :5].numpy().tolist() == [1, 1, 0, 0, 1]
    assert joined["example_ids"][0].numpy().tolist() == [1] * 7 + [2] + [0] * 5
    assert joined["cls_positions"].numpy().tolist() == [[0, 7]]
    assert joined["masked_lm_weights"].numpy().tolist() == [[1, 0, 1, 0]]
    assert joined["masked_lm_ids"][0, :3].numpy().tolist() == [11, 12, 13]
    assert joined["masked_lm_positions"][0, 0] == 6


def test_examples_share_rows_within_windows():
    batch, packing = examples(), SequencePacking(K, window=17)
    row_members = rows_of(packing, batch)
    assert sorted(itertools.chain(*row_members)) == list(range(N))
    assert max(map(len, row_members)) > 2
    for row in row_members:
        assert len({index // 17 for index in row}) == 1
    fill = Fill.sum(packing.tallies(data_set(N), parser(batch)))
    rows = len(row_members)
    tokens = batch["input_mask"].sum()
    assert fill == Fill(N, tokens, rows, rows * S)
    assert fill.unpacked == pytest.approx(tokens / (N * S))
    assert fill.packed == pytest.approx(tokens / (rows * S))
    assert fill.examples_per_row == pytest.approx(N / rows)
    assert fill.packed > 1.4 * fill.unpacked


# Packed rows from files.


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """Writes three files."""
    folder = tmp_path_factory.mktemp("records")
    names = ["a.tfrecord", "b.tfrecord.gz", "c.tfrecord"]
    for name, part in zip(names, np.split(np.arange(N), [19, 40]), strict=True):
        some = {key: values[part] for key, values in examples().items()}
        records.write(str(folder / name), records.encode_batch(SCHEMA, some))
    return [str(folder / name) for name in names]


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


def test_rows_of_files_equal_rows_made_by_hand(paths):
    [batch] = evaluate(paths, batch_size=64)
    [alone] = evaluate(paths, batch_size=N, packing=None)
    # `numbers` sorts the examples of a row, which are sorted in it, too.
    members = [[n - 1 for n in row] for row in numbers(batch) if row]
    expected = packed_rows.pack(alone, members, PACKING.max_examples)
    for name, value in expected.items():
        np.testing.assert_array_equal(batch[name][: len(value)], value)
    fill = pipeline.fill(paths, SCHEMA, PACKING, max_examples=30)
    assert fill.examples == 30
