"""Whether two models compute the same, and the table that says so."""

import math
import types

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.serving import runtimes
from bert_tf.serving.runtimes import Difference, Measured, Row

INNER = 3


def described(max_seq_length=23, num_segments=2, shape=(None, None)):
    """As much of an export as random questions are made from."""
    return types.SimpleNamespace(
        card={"encoding": {"max_seq_length": max_seq_length}, "vocab_size": 31},
        num_segments=num_segments,
        token_inputs={"input_ids": tf.TensorSpec(shape, tf.int32)},
    )


def sums(features):
    """A model whose answers tell places and rows apart."""
    total = features["input_ids"] * features["input_mask"]
    return {
        "row": total.sum(axis=-1).astype(np.float32),
        "places": np.cumsum(total, axis=-1).astype(np.float32),
        "is_odd": total.sum(axis=-1) % 2 == 1,
    }


def test_random_inputs_have_all_lengths():
    batches = runtimes.random_features(described())
    lengths = {batch["input_ids"].shape[1] for batch in batches}
    assert {1, 23} <= lengths
    assert max(lengths) == 23
    assert len({batch["input_ids"].shape[0] for batch in batches}) > 3
    for batch in batches:
        mask = batch["input_mask"]
        assert {values.dtype for values in batch.values()} == {np.dtype("i4")}
        assert mask[:, 0].all()
        assert (np.diff(mask, axis=1) <= 0).all()
        assert not batch["input_ids"][mask == 0].any()
        assert (np.diff(batch["segment_ids"] * mask, axis=1) >= -1).all()
        assert batch["input_ids"].max() < 31
    seen = np.concatenate([b["segment_ids"].ravel() for b in batches])
    assert set(seen.tolist()) == {0, 1}
    again = runtimes.random_features(described())
    for one, other in zip(batches, again, strict=True):
        np.testing.assert_array_equal(one["input_ids"], other["input_ids"])


def test_random_inputs_fit_the_model():
    exported = described(5, 1, (None, INNER, None))
    for batch in runtimes.random_features(exported):
        assert batch["input_ids"].shape[1] == INNER
        assert batch["input_ids"].shape[2] <= 5
        assert not batch["segment_ids"].any()


@pytest.mark.parametrize("inner", [(), (INNER,)])
def test_rows_are_sorted_by_length_and_restored(inner):
    draw = np.random.default_rng(1)
    count, length = 71, 13
    ends = draw.integers(0, length - 1, (count, *inner, 1))
    mask = (np.arange(length) < ends).astype(np.int32)
    features = {
        "input_ids": draw.integers(1, 99, mask.shape) * mask,
        "input_mask": mask,
    }
    asked = []

    def run(batch):
        asked.append(batch["input_ids"].shape)
        return sums(batch)

    answer = runtimes.answer_rows(run, features)
    expected = sums(features)
    np.testing.assert_array_equal(answer["row"], expected["row"])
    np.testing.assert_array_equal(answer["is_odd"], expected["is_odd"])
    # What was cut from a row is padding, whose answers mean nothing.
    longest = answer["places"].shape[-1]
    assert longest == ends.max() == length - 2
    is_text = mask[..., :longest] > 0
    np.testing.assert_array_equal(
        answer["places"][is_text], expected["places"][..., :longest][is_text]
    )
    assert len(asked) > 2
    assert [shape[-1] for shape in asked] == sorted(s[-1] for s in asked)
    assert sum(shape[0] for shape in asked) == count


def test_all_outputs_are_kept():
    batches = runtimes.random_features(described())

    def score(ask):
        return {"mean": float(ask(batches[1])["row"].mean())}

    measured = runtimes.measure(sums, batches, score)
    assert len(measured.answers) == len(batches) + 1
    expected = sums(batches[1])["row"]
    np.testing.assert_array_equal(measured.answers[-1]["row"], expected)
    assert measured.scores == {"mean": expected.mean()}
    assert runtimes.measure(sums, batches).scores == {}


def measured(*answers):
    return Measured(
        [{k: np.array(v) for k, v in a.items()} for a in answers], {}
    )


def test_the_largest_difference():
    expected = measured(
        {"small": [0.5, 0.25], "large": [200.0, -400.0], "ids": [1, 2, 3]},
        {"small": [0.125, 1.0], "large": [8.0, 8.0], "ids": [4]},
    )
    found = measured(
        {"small": [0.5, 0.25], "large": [200.0, -400.25], "ids": [1, 2, 0]},
        {"small": [0.125, 0.9375], "large": [8.0, 8.0], "ids": [4]},
    )
    off = runtimes.difference(expected, found)
    # That of "large" is small beside its numbers.
    assert off == Difference(0.25, 0.0625, "small", 0.25)
    assert not off.is_rounding
    same = runtimes.difference(expected, expected)
    assert (same.largest, same.relative, same.changed) == (0.0, 0.0, 0.0)
    assert same.is_rounding


@pytest.mark.parametrize(
    ("off", "is_rounding"),
    [
        (Difference(1e-5, 1e-5, "a", 0.0), True),
        (Difference(1e-2, 1e-5, "a", 5e-4), True),
        (Difference(1e-3, 1e-3, "a", 0.0), False),
        (Difference(1e-6, 1e-6, "a", 0.01), False),
        (Difference(math.inf, math.inf, "a", 0.0), False),
        (Difference(math.nan, math.nan, "a", 0.0), False),
    ],
)
def test_the_limit_of_rounding(off, is_rounding):
    assert off.is_rounding is is_rounding


@pytest.mark.parametrize(
    "wrong", [[1.0, math.nan], [math.inf, 2.0], [1.0], [[1.0], [2.0]]]
)
def test_nan_and_other_shapes_are_never_rounding(wrong):
    expected = measured({"a": [1.0, 2.0]})
    off = runtimes.difference(expected, measured({"a": wrong}))
    assert off.largest == math.inf
    assert off.output == "a"
    assert not off.is_rounding


def test_the_table():
    rows = [
        Row("SavedModel", 94_849_000, None, {"accuracy": 0.8284, "f1": 0.878}),
        Row(
            "model.onnx",
            91_200_000,
            Difference(1.2e-7, 1.2e-7, "a", 0.0),
            {"accuracy": 0.8284, "f1": 0.878},
        ),
        Row(
            "model.int8.onnx",
            23_949_999,
            Difference(0.032, 0.032, "a", 0.0),
            {"accuracy": 0.8235, "f1": 0.88},
        ),
    ]
    lines = runtimes.table(rows).splitlines()
    assert len({len(line) for line in lines}) == 1
    cells = [[cell.strip() for cell in line.split("|")] for line in lines]
    assert cells[0][1:-1] == [
        *("file", "MB", "largest difference", "accuracy", "f1")
    ]
    assert set(lines[1]) == set("|- ")
    assert cells[2][1:-1] == ["SavedModel", "94.8", "-", "0.8284", "0.8780"]
    assert cells[3][2:5] == ["91.2", "1.2e-07", "0.8284 (+0.0000)"]
    assert cells[4][2:] == [
        *("23.9", "3.2e-02", "0.8235 (-0.0049)", "0.8800 (+0.0020)", "")
    ]


def test_a_table_without_scores():
    rows = [Row("SavedModel", 10, None, {})]
    assert runtimes.table(rows).splitlines()[-1].count("|") == 4


def test_cosine_similarities():
    """Of all outputs and rows; neither length nor padding counts."""
    vectors = np.array([[3.0, 4.0], [1.0, 0.0], [0.0, 0.0]], np.float32)
    turned = np.array([[6.0, 8.0], [1.0, 1.0], [5.0, 0.0]], np.float32)
    numbers = np.arange(3)
    expected = [{"a": vectors, "n": numbers}, {"a": vectors[:1], "n": numbers}]
    found = [{"a": turned, "n": -numbers}, {"a": turned[:1], "n": numbers}]
    same = {"mean cosine": 1.0, "lowest cosine": 1.0}
    expected, found = (Measured(answers, {}) for answers in (expected, found))
    assert runtimes.cosines(expected, expected) == pytest.approx(same)
    assert runtimes.cosines(expected, found) == pytest.approx(
        {"mean cosine": (2 + math.sqrt(0.5)) / 3, "lowest cosine": 0.5**0.5}
    )
