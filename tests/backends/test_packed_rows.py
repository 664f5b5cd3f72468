"""Examples that share a row: the same numbers as in separate rows."""

import dataclasses
import functools

import keras
import numpy as np
import pytest

from bert_tf.kinds.pretraining.task import PretrainingTask
from bert_tf.modeling.encoder import BertModel
from bert_tf.modeling.heads import BertClassifier, BertPretrainer
from tests import packed_rows
from tests.backends import small_bert
from tests.backends.gradients import gradients, pretraining_losses
from tests.backends.small_bert import WITHOUT_DROPOUT, S, V

ROWS = [[2, 0], [4, 1, 3]]
LENGTHS = np.array([3, 1, 4, 2, 4])
N, K, P = len(LENGTHS), 4, 5
TASK = PretrainingTask(WITHOUT_DROPOUT, S, P)


def examples() -> dict[str, np.ndarray]:
    """Five short examples, each in its own row."""
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


@pytest.mark.parametrize(
    ("policy", "direction"),
    [
        ("float32", "bidirectional"),
        ("float32", "left_to_right"),
        ("mixed_bfloat16", "bidirectional"),
    ],
)
def test_vectors_are_those_of_the_examples_alone(policy, direction):
    config = dataclasses.replace(
        small_bert.CONFIG, attention_direction=direction
    )
    model = small_bert.make(BertModel, config, dtype=policy)
    alone = small_bert.numbers(small_bert.call(model, examples()))
    rows = small_bert.numbers(small_bert.call(model, packed()))
    assert rows["pooled_output"].shape == (len(ROWS), K, small_bert.H)
    tolerance = {"rtol": 0, "atol": 1e-6 if policy == "float32" else 0.05}
    for row, members in enumerate(ROWS):
        ends = np.cumsum(LENGTHS[members])
        for slot, example in enumerate(members):
            length = LENGTHS[example]
            inside = slice(ends[slot] - length, ends[slot])
            np.testing.assert_allclose(
                rows["sequence_output"][row, inside],
                alone["sequence_output"][example, :length],
                **tolerance,
            )
            np.testing.assert_allclose(
                rows["pooled_output"][row, slot],
                alone["pooled_output"][example],
                **tolerance,
            )
            for attention in rows["attentions"]:
                sums = attention[row, :, inside, inside].sum(-1)
                np.testing.assert_allclose(sums, 1.0, atol=1e-2)
    # Alone, the first position also attends only to its own example.
    inputs = {k: v for k, v in packed().items() if k != "cls_positions"}
    np.testing.assert_allclose(
        small_bert.numbers(model.pooled_output(inputs)),
        rows["pooled_output"][:, 0],
        **tolerance,
    )


losses = functools.partial(pretraining_losses, TASK)


def test_losses_are_those_of_the_examples_alone(fidelity):
    model = small_bert.make(BertPretrainer, WITHOUT_DROPOUT)
    results = []
    for rows in (examples(), packed()):
        features = keras.tree.map_structure(keras.ops.convert_to_tensor, rows)
        outputs = small_bert.call(model, features)
        predictions = TASK.predictions(features, outputs)
        results.append(
            small_bert.numbers((losses(features, outputs), predictions))
        )
    (expected, alone), (found, summed) = results
    assert list(expected) == list(TASK.loss_names)
    gap = max(abs(found[name] - expected[name]) for name in expected)
    fidelity(
        "model: losses of examples in one row, by theirs alone",
        float(gap),
        1e-6,
    )
    assert alone.keys() == summed.keys()
    for name, values in alone.items():
        sums = [values[members].sum() for members in ROWS]
        np.testing.assert_allclose(summed[name], sums, 1e-5, err_msg=name)


def gradients_of(features, **options):
    return gradients(
        small_bert.make(BertPretrainer, WITHOUT_DROPOUT, **options),
        features,
        lambda outputs: sum(losses(features, outputs).values()),
        training=True,
    )


def test_gradients_are_those_of_the_examples_alone(fidelity):
    expected = gradients_of(examples())
    found = gradients_of(packed())
    recomputed = gradients_of(packed(), gradient_checkpointing=True)
    assert min(
        np.abs(v).max() for k, v in expected.items() if "key/bias" not in k
    )
    gap = max(np.abs(found[k] - v).max() for k, v in expected.items())
    fidelity(
        "model: gradients of examples in one row, by theirs alone",
        float(gap),
        1e-6,
    )
    small_bert.assert_close(recomputed, found, 2e-6)


@pytest.mark.parametrize(
    ("model_class", "labels"),
    [(BertPretrainer, 2), (BertClassifier, small_bert.LABELS)],
)
def test_functional_models(model_class, labels):
    model = small_bert.make(model_class)
    inputs = {
        name: value
        for name, value in packed().items()
        if name in packed_rows.TOKENS or name.endswith(("positions", "_ids"))
    }
    symbols = {
        name: keras.Input((None,), dtype="int32", name=name) for name in inputs
    }
    outputs = model(symbols)
    assert list(outputs.values())[-1].shape == (None, None, labels)
    functional = keras.Model(symbols, outputs)
    found, expected = (
        small_bert.outputs(m, inputs) for m in (functional, model)
    )
    small_bert.assert_close(found, expected, 1e-6)


def test_rows_can_be_longer_than_the_table_of_positions():
    """As long as no example in them is."""
    length = small_bert.CONFIG.max_position_embeddings + 2
    model = small_bert.make(BertModel)
    inputs = {
        "input_ids": small_bert.integers("long", (1, length), V),
        "position_ids": np.arange(length)[None] % 5,
        "example_ids": np.arange(length)[None] // 5,
        "cls_positions": np.array([[5]]),
    }
    found = small_bert.call(model, inputs)["pooled_output"][0]
    alone = small_bert.call(model, {"input_ids": inputs["input_ids"][:, 5:10]})
    expected = small_bert.numbers(alone["pooled_output"])
    np.testing.assert_allclose(
        small_bert.numbers(found), expected, rtol=0, atol=1e-6
    )
