"""Models of other runtimes, their comparison with the export, and README."""

import importlib.util
import math
import types

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.contrib import runtimes
from bert_tf.contrib.options.convert_saved_model import PACKAGES
from bert_tf.contrib.runtimes import (
    RUNTIMES,
    ComparisonRow,
    Difference,
    Measured,
)
from bert_tf.errors import InputError
from bert_tf.serving.masked_words import ServedMaskedLM
from tests.contrib.opened_exports import opened

# Extras, which the environment of TensorFlow 2.20 lacks.
needs_runtimes = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("tf2onnx", "ai_edge_litert"))),
    reason="the converters are not installed",
)
INNER = 3


# Conversion ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtype_policy": "mixed_bfloat16"}, "it again in float32"),
        ({"kind": ServedMaskedLM.kind}, "returns words"),
        ({"ops": {"MatMul", "While"}}, "LSTMs"),
        ({"parameters": 1 << 29}, "536,870,912 weights"),
        ({"parameters": (1 << 29) - 1}, None),
    ],
)
def test_refuses_unsupported_exports(changes, message):
    card = {"kind": "a", "dtype_policy": "float32", **changes}
    card.setdefault("parameters", 9)
    ops = card.pop("ops", {"MatMul"})
    exported = types.SimpleNamespace(path="a/7", ops=ops, card=card)
    if message is None:
        runtimes.require_convertible(exported)
        return
    with pytest.raises(InputError, match=f"^a/7: .*{message}"):
        runtimes.require_convertible(exported)


def test_the_formats_are_those_of_the_option():
    assert PACKAGES.keys() == RUNTIMES.keys()


@pytest.mark.slow
def test_refuses_lstms():
    with pytest.raises(InputError, match="LSTMs"):
        runtimes.require_convertible(opened("lstms"))


@needs_runtimes
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *(("choices", "onnx"), ("tags", "litert"), ("one head", "onnx")),
        *(("mean vectors", "litert"), ("max vectors", "litert")),
        ("token vectors", "litert"),
    ],
)
def test_converted_models_give_the_same_outputs(kind, name):
    exported = opened(kind)
    runtimes.require_convertible(exported)
    run = RUNTIMES[name].load(RUNTIMES[name].convert(exported))
    batches = runtimes.random_features(exported)
    expected = runtimes.measure(exported.answer_tokens, batches)
    found = runtimes.measure(run, batches)
    for one, other in zip(expected.answers, found.answers, strict=True):
        assert one.keys() == other.keys() == exported.numbers.keys()
        types_of = {key: values.dtype for key, values in one.items()}
        assert types_of == {key: values.dtype for key, values in other.items()}
    off = runtimes.difference(expected, found)
    assert off.is_rounding, off


# Comparison ------------------------------------------------------------------


def sums(features):
    """A model whose outputs depend on rows and positions."""
    total = features["input_ids"] * features["input_mask"]
    return {
        "row": total.sum(axis=-1).astype(np.float32),
        "positions": np.cumsum(total, axis=-1).astype(np.float32),
        "is_odd": total.sum(axis=-1) % 2 == 1,
    }


@pytest.mark.parametrize(
    ("length", "num_segments", "inner"), [(23, 2, ()), (5, 1, (INNER,))]
)
def test_random_inputs_fit_the_model(length, num_segments, inner):
    shape = [None, *inner, None]
    exported = types.SimpleNamespace(
        card={"encoding": {"max_seq_length": length}, "vocab_size": 31},
        num_segments=num_segments,
        token_inputs={"input_ids": tf.TensorSpec(shape, tf.int32)},
    )
    batches = runtimes.random_features(exported)
    again = runtimes.random_features(exported)
    for batch, other in zip(batches, again, strict=True):
        mask, ids = batch["input_mask"], batch["input_ids"]
        assert ids.shape[1:-1] == inner
        assert mask[..., 0].all()
        assert (np.diff(mask, axis=-1) <= 0).all()
        assert not ids[mask == 0].any()
        assert ids.max() < 31
        np.testing.assert_array_equal(ids, other["input_ids"], strict=True)
    shapes = [batch["input_ids"].shape for batch in batches]
    assert {1, length} <= {shape[-1] for shape in shapes}
    assert max(shape[-1] for shape in shapes) == length
    assert len({shape[0] for shape in shapes}) > 3
    segments = {n for b in batches for n in b["segment_ids"].ravel().tolist()}
    assert segments == {*range(num_segments)}


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

    measured = runtimes.measure(
        run, [], lambda ask: {"sum": ask(features)["row"].sum()}
    )
    [answer], expected = measured.answers, sums(features)
    assert measured.scores == {"sum": expected["row"].sum()}
    np.testing.assert_array_equal(answer["row"], expected["row"])
    np.testing.assert_array_equal(answer["is_odd"], expected["is_odd"])
    # Padding that was dropped has no answers.
    longest = answer["positions"].shape[-1]
    assert longest == ends.max() == length - 2
    is_text = mask[..., :longest] > 0
    positions = expected["positions"][..., :longest][is_text]
    np.testing.assert_array_equal(answer["positions"][is_text], positions)
    assert len(asked) > 2
    assert [shape[-1] for shape in asked] == sorted(s[-1] for s in asked)
    assert sum(shape[0] for shape in asked) == count


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
    # The difference of "large" is small relative to its values.
    expected_difference = Difference(0.25, 0.0625, "small", 0.25)
    assert runtimes.difference(expected, found) == expected_difference
    same = runtimes.difference(expected, expected)
    assert (same.largest, same.relative, same.changed) == (0.0, 0.0, 0.0)
    for wrong in ([1.0, math.nan], [math.inf, 2.0], [1.0], [[1.0], [2.0]]):
        off = runtimes.difference(
            measured({"a": [1.0, 2.0]}), measured({"a": wrong})
        )
        assert off.largest == math.inf
        assert not off.is_rounding


@pytest.mark.parametrize(
    ("off", "is_rounding"),
    [
        (Difference(1e-2, 1e-5, "a", 5e-4), True),
        (Difference(1e-3, 1e-3, "a", 0.0), False),
        (Difference(1e-6, 1e-6, "a", 0.01), False),
        (Difference(math.nan, math.nan, "a", 0.0), False),
    ],
)
def test_the_limit_of_rounding(off, is_rounding):
    assert off.is_rounding is is_rounding


def test_cosine_similarities():
    """Lengths of vectors, padding and integers do not count."""
    vectors = np.array([[3.0, 4.0], [1.0, 0.0], [0.0, 0.0]], np.float32)
    turned = np.array([[6.0, 8.0], [1.0, 1.0], [5.0, 0.0]], np.float32)
    numbers = np.arange(3)
    expected = measured(
        {"a": vectors, "n": numbers}, {"a": vectors[:1], "n": numbers}
    )
    found = measured(
        {"a": turned, "n": -numbers}, {"a": turned[:1], "n": numbers}
    )
    assert runtimes.cosines(expected, found) == pytest.approx(
        {"mean cosine": (2 + math.sqrt(0.5)) / 3, "lowest cosine": 0.5**0.5}
    )


def test_the_table():
    off = Difference(0.032, 0.032, "a", 0.0)
    rows = [
        ComparisonRow(
            "SavedModel", 94_849_000, None, {"accuracy": 0.8284, "f1": 0.878}
        ),
        ComparisonRow(
            "model.onnx", 23_949_999, off, {"accuracy": 0.8235, "f1": 0.88}
        ),
    ]
    lines = runtimes.table(rows).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert set(lines.pop(1)) == set("|- ")
    cells = [[c.strip() for c in line.split("|")[1:-1]] for line in lines]
    assert cells == [
        ["file", "MB", "largest difference", "accuracy", "f1"],
        ["SavedModel", "94.8", "-", "0.8284", "0.8780"],
        [
            *("model.onnx", "23.9", "3.2e-02"),
            *("0.8235 (-0.0049)", "0.8800 (+0.0020)"),
        ],
    ]


# The README ------------------------------------------------------------------


def test_the_readme():
    """test_convert_saved_model.py runs its program."""
    specs = {"input_ids": tf.TensorSpec([None, None], tf.int32)}
    casing = {"do_lower_case": False, "strip_accents": None}
    exported = types.SimpleNamespace(
        card={
            "name": "mine",
            "kind": "classifier",
            "source": "a/b",
            "weights": {"sha256": "0a1b"},
            "encoding": {**casing, "max_seq_length": 23},
        },
        token_inputs=specs,
        numbers={"probabilities": tf.TensorSpec([None, 2], tf.float32)},
        example=lambda: {"text_a": np.array([b"\xc3\xa9 sat"], object)},
        features=lambda texts: {"input_ids": np.int32([[2, 7, 3]])},
    )
    table = "| file | MB |\n|---|---|"
    text = runtimes.runtime_readme(exported, "litert", ["x", "y"], table)
    for part in (
        "# mine: classifier, for LiteRT\n",
        'Interpreter("x")',
        '"input_ids": np.array([[2, 7, 3]], np.int32)',
        "`input_ids` int32 (None, None) | `probabilities` float32 (None, 2)",
        "do_lower_case=False, strip_accents=None",
        "Checkpoint:\na/b. Weights of the export, sha256: `0a1b`",
        table,
    ):
        assert part in text
