"""Packing compared with a plain loop and with rows made by hand."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.data.schema import pretraining_schema
from bert_tf.data.sequence_packing import (
    Fill,
    SequencePacking,
    first_fit,
    size_schema,
)
from tests import packed_rows

S, P, K, N = 13, 4, 5, 41
SCHEMA = pretraining_schema(S, P)


def examples(seed=0, count=N) -> dict[str, np.ndarray]:
    """Returns examples of every length with up to two masked words."""
    random = np.random.default_rng(seed)
    lengths = random.integers(1, S + 1, (count, 1))
    mask = (np.arange(S) < lengths).astype("int32")
    masked = np.arange(P) < random.integers(0, 3, (count, 1))
    return {
        "input_ids": random.integers(1, 99, (count, S), dtype="int32") * mask,
        "input_mask": mask,
        "segment_ids": random.integers(0, 2, (count, S), dtype="int32") * mask,
        "masked_lm_positions": (
            random.integers(0, lengths, (count, P)) * masked
        ).astype("int32"),
        "masked_lm_ids": random.integers(1, 99, (count, P), dtype="int32")
        * masked,
        "masked_lm_weights": masked.astype("float32"),
        "next_sentence_labels": random.integers(0, 2, (count, 1), dtype="i"),
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
    """Returns the numbers of the examples in each row."""
    rows = packing.rows(data_set(len(batch["input_ids"])), parser(batch))
    return [
        [int(number) for number in row if number]
        for row in rows.as_numpy_iterator()
    ]


def sizes_of(batch) -> np.ndarray:
    """Returns the tokens, masked words and slots of each example, [n, 3]."""
    lengths = batch["input_mask"].sum(1)
    masked = np.maximum((batch["masked_lm_weights"] > 0).sum(1), 1)
    return np.stack([lengths, masked, np.ones_like(lengths)], 1)


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


def test_first_fit_of_a_few():
    """Rows of ten: 7 1 | 6 4 | 5 5."""
    sizes = tf.constant([[5], [1], [7], [6], [5], [4]])
    assert first_fit(sizes, [10]).numpy().tolist() == [2, 0, 0, 1, 2, 1]


@pytest.mark.parametrize("seed", range(3))
def test_first_fit_equals_a_plain_loop(seed):
    room = [S, P, 3]
    sizes = sizes_of(examples(seed, count=97)).astype("int32")
    found = first_fit(tf.constant(sizes), room).numpy()
    assert found.tolist() == first_fit_by_hand(sizes, room)
    used = np.zeros((found.max() + 1, 3), int)
    np.add.at(used, found, sizes)
    assert (used <= room).all()
    assert (used > 0).all()


def test_every_example_is_in_one_row():
    rows = rows_of(SequencePacking(K, window=17), examples())
    assert sorted(itertools.chain(*rows)) == list(range(N))
    assert max(map(len, rows)) > 2
    windows = [{number // 17 for number in row} for row in rows]
    assert all(len(window) == 1 for window in windows)


def test_joined_rows_equal_rows_made_by_hand():
    """The last row is empty, as at the end of an evaluation."""
    batch, packing = examples(), SequencePacking(K)
    rows = rows_of(packing, batch)
    slots = [[str(i).encode() for i in row] for row in rows] + [[]]
    slots = [row + [b""] * (K - len(row)) for row in slots]
    assert slots[-1] == packing.empty_row
    joined = packing.join(tf.constant(slots), parser(batch))
    expected = packed_rows.pack(batch, [*rows, []], K)
    assert joined.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(joined[name], value, err_msg=name)
        assert joined[name].dtype == value.dtype, name


def test_empty_rows():
    joined = SequencePacking(K).join(
        tf.fill([3, K], b""), parser(examples(count=1))
    )
    assert all(not np.any(value) for value in joined.values())


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


def test_one_example_per_row():
    batch, packing = examples(), SequencePacking(max_examples=1)
    slots = tf.strings.as_string(tf.range(N))[:, tf.newaxis]
    joined = packing.join(slots, parser(batch))
    for name, values in batch.items():
        np.testing.assert_array_equal(joined[name], values, err_msg=name)
    assert len(rows_of(packing, batch)) == N


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


def test_fill():
    batch, packing = examples(), SequencePacking(K, window=17)
    tallies = packing.tallies(data_set(N), parser(batch))
    assert len(list(tallies)) == 3
    fill = Fill.sum(tallies)
    rows = len(rows_of(packing, batch))
    tokens = batch["input_mask"].sum()
    assert fill == Fill(N, tokens, rows, rows * S)
    assert fill.unpacked == pytest.approx(tokens / (N * S))
    assert fill.packed == pytest.approx(tokens / (rows * S))
    assert fill.examples_per_row == pytest.approx(N / rows)
    assert fill.packed > 1.4 * fill.unpacked
    assert {f.name for f in size_schema(SCHEMA)} == {
        "input_mask",
        "masked_lm_positions",
        "masked_lm_weights",
    }
