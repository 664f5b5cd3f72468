"""Examples that share a row: the same numbers as in rows of their own."""

import keras
import numpy as np
import pytest
from keras import ops

from bert_tf.heads import BertClassifier, BertPretrainer, BertTokenClassifier
from bert_tf.modeling import BertModel
from bert_tf.tasks.pretraining import PretrainingTask
from tests import packed_rows
from tests.backends import small_bert
from tests.backends.gradients import gradients
from tests.backends.small_bert import WITHOUT_DROPOUT, S, V

ROWS = [[2, 0], [4, 1, 3]]
LENGTHS = np.array([3, 1, 4, 2, 4])
N, K, P = len(LENGTHS), 4, 5
TASK = PretrainingTask(WITHOUT_DROPOUT, S, P)


def examples() -> dict[str, np.ndarray]:
    """Five short examples, each in a row of its own."""
    mask = (np.arange(S) < LENGTHS[:, None]).astype("int32")
    masked = np.arange(P) < np.array([[1], [0], [2], [1], [2]])
    positions = small_bert.uniform("places", (N, P)) * LENGTHS[:, None]
    return {
        "input_ids": small_bert.integers("ids", (N, S), V) * mask,
        "input_mask": mask,
        "segment_ids": small_bert.integers("segments", (N, S), 2) * mask,
        "masked_lm_positions": (positions * masked).astype("int32"),
        "masked_lm_ids": small_bert.integers("words", (N, P), V) * masked,
        "masked_lm_weights": masked.astype("float32"),
        "next_sentence_labels": small_bert.integers("labels", (N, 1), 2),
    }


def packed() -> dict[str, np.ndarray]:
    return packed_rows.pack(examples(), ROWS, K)


def places():
    """Row, slot, example and where it stands in the row."""
    for row, members in enumerate(ROWS):
        start = 0
        for slot, example in enumerate(members):
            end = start + LENGTHS[example]
            yield row, slot, example, slice(start, end)
            start = end


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_vectors_are_those_of_the_examples_alone(policy):
    model = small_bert.make(BertModel, dtype=policy)
    alone = small_bert.numbers(small_bert.call(model, examples()))
    rows = small_bert.numbers(small_bert.call(model, packed()))
    assert rows["pooled_output"].shape == (len(ROWS), K, small_bert.H)
    atol = 1e-6 if policy == "float32" else 0.05
    for row, slot, example, place in places():
        for name in ("sequence_output", "pooled_output"):
            found, expected = rows[name][row], alone[name][example]
            is_pooled = name == "pooled_output"
            np.testing.assert_allclose(
                found[slot] if is_pooled else found[place],
                expected if is_pooled else expected[: LENGTHS[example]],
                rtol=0,
                atol=atol,
            )
        for attention in rows["attentions"]:
            inside = attention[row, :, place, place].sum(-1)
            np.testing.assert_allclose(inside, 1.0, atol=1e-2)


@pytest.mark.parametrize("name", ["position_ids", "example_ids"])
def test_each_of_both_features_matters(name):
    model = small_bert.make(BertModel)
    whole = small_bert.numbers(small_bert.call(model, packed()))[
        "pooled_output"
    ]
    without = {k: v for k, v in packed().items() if k != name}
    other = small_bert.numbers(small_bert.call(model, without))["pooled_output"]
    assert np.abs(whole[0, 1] - other[0, 1]).max() > 1e-3


def losses(features, outputs) -> dict:
    """Returns the mean losses of a batch."""
    features = {k: ops.convert_to_tensor(v) for k, v in features.items()}
    values = TASK.losses(features, outputs)
    weights = TASK.loss_weights(features)
    return {
        name: ops.sum(value) / ops.sum(weights[name])
        for name, value in values.items()
    }


def test_losses_are_those_of_the_examples_alone(fidelity):
    model = small_bert.make(BertPretrainer, WITHOUT_DROPOUT)
    expected, found = (
        small_bert.numbers(losses(features, small_bert.call(model, features)))
        for features in (examples(), packed())
    )
    assert list(expected) == list(TASK.loss_names)
    gap = max(abs(found[name] - expected[name]) for name in expected)
    fidelity(
        "model: losses of examples in one row, by theirs alone",
        float(gap),
        1e-6,
    )


def test_gradients_are_those_of_the_examples_alone(fidelity):
    expected, found = (
        gradients(
            small_bert.make(BertPretrainer, WITHOUT_DROPOUT),
            features,
            lambda outputs, features=features: sum(
                losses(features, outputs).values()
            ),
            training=True,
        )
        for features in (examples(), packed())
    )
    assert min(
        np.abs(v).max() for k, v in expected.items() if "key/bias" not in k
    )
    gap = max(np.abs(found[k] - v).max() for k, v in expected.items())
    fidelity(
        "model: gradients of examples in one row, by theirs alone",
        float(gap),
        1e-6,
    )


def test_gradients_of_blocks_that_are_computed_twice():
    plain, twice = (
        gradients(
            small_bert.make(
                BertPretrainer, WITHOUT_DROPOUT, gradient_checkpointing=again
            ),
            packed(),
            lambda outputs: sum(losses(packed(), outputs).values()),
            training=True,
        )
        for again in (False, True)
    )
    for name, value in plain.items():
        np.testing.assert_allclose(
            twice[name], value, rtol=0, atol=2e-6, err_msg=name
        )


@pytest.mark.parametrize(
    ("model_class", "shape"),
    [
        (BertPretrainer, (None, None, 2)),
        (BertClassifier, (None, None, small_bert.LABELS)),
        (BertTokenClassifier, (None, None, small_bert.LABELS)),
    ],
)
def test_in_a_functional_model(model_class, shape):
    model = small_bert.make(model_class)
    features = packed()
    inputs = {
        name: features[name]
        for name in (
            *packed_rows.TOKENS,
            *("position_ids", "example_ids", "cls_positions"),
            "masked_lm_positions",
        )
    }
    symbols = {
        name: keras.Input((None,), dtype="int32", name=name) for name in inputs
    }
    outputs = model(symbols)
    assert list(outputs.values())[-1].shape == shape
    functional = keras.Model(symbols, outputs)
    computed = small_bert.named(functional(inputs))
    for name, value in small_bert.named(model(inputs)).items():
        np.testing.assert_allclose(computed[name], value, atol=1e-6)


def test_rows_may_be_longer_than_the_table_of_positions():
    """As long as no example in them is."""
    length = small_bert.CONFIG.max_position_embeddings + 2
    model = small_bert.make(BertModel)
    inputs = {
        "input_ids": small_bert.integers("long", (1, length), V),
        "position_ids": np.arange(length)[None] % 5,
        "example_ids": np.arange(length)[None] // 5,
        "cls_positions": np.array([[5]]),
    }
    pooled = small_bert.numbers(small_bert.call(model, inputs))[
        "pooled_output"
    ][0, 0]
    alone = small_bert.call(model, {"input_ids": inputs["input_ids"][:, 5:10]})
    expected = small_bert.numbers(alone)["pooled_output"][0]
    np.testing.assert_allclose(pooled, expected, rtol=0, atol=1e-6)
