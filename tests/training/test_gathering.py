"""Predictions come back in the order of the examples, however they came."""

import numpy as np
import pytest

from bert_tf.errors import InputError
from bert_tf.training.distribution import in_order


def batch(index, **values):
    arrays = {name: np.asarray(rows) for name, rows in values.items()}
    return {"example_index": np.array(index, "int32"), **arrays}


def test_any_order_and_any_cut_give_one_result():
    random = np.random.default_rng(3)
    logits = random.normal(size=[31, 5]).astype("float32")
    for cuts in ([], [7], [3, 3, 19, 30]):
        index = random.permutation(31)
        batches = [
            batch(part, logits=logits[part], number=part)
            for part in np.split(index, cuts)
        ]
        found = in_order(batches)
        assert found.keys() == {"logits", "number"}
        np.testing.assert_array_equal(found["logits"], logits)
        assert found["number"].tolist() == list(range(31))
        assert found["logits"].dtype == np.float32


def test_padding_is_left_out():
    batches = [
        batch([-1, 1, -1], x=[9, 1, 9]),
        batch([-1], x=[9]),
        batch([2, 0], x=[2, 0]),
    ]
    assert in_order(batches)["x"].tolist() == [0, 1, 2]


def test_shorter_batches_are_filled_up_with_zeros():
    batches = [
        batch([2, 0], tags=[[5, 6], [1, 2]], score=[[[0.5]], [[0.25]]]),
        batch([1], tags=[[3, 4, 5]], score=[[[1.0, 2.0]]]),
    ]
    found = in_order(batches)
    assert found["tags"].tolist() == [[1, 2, 0], [3, 4, 5], [5, 6, 0]]
    assert found["score"].shape == (3, 1, 2)
    assert found["score"][:, 0].tolist() == [[0.25, 0], [1, 2], [0.5, 0]]


@pytest.mark.parametrize("batches", [[], [batch([-1, -1], x=[1, 2])]])
def test_there_must_be_examples(batches):
    with pytest.raises(InputError, match="at least one example"):
        in_order(batches)


@pytest.mark.parametrize("index", [[0, 2, 2, 1], [0, 3, 1, 4], [3, 1, 2, 4]])
def test_every_example_comes_once(index):
    batches = [batch(index[:2], x=[0, 0]), batch(index[2:], x=[0, 0])]
    with pytest.raises(ValueError, match="every example once"):
        in_order(batches)
