"""Weights go into variables by name; all that fit, or none."""

import re

import keras
import numpy as np
import pytest

from bert_tf.errors import InputError
from bert_tf.training import weights
from bert_tf.training.weights import NEW_HEADS, Report, checksum, restore

KERNEL = np.arange(15, dtype="float32").reshape(3, 5)
ARRAYS = {"bert/encoder/kernel": KERNEL, "head/bias": np.ones(5, "float32")}


class Arrays(dict):
    """A `Weights` that is held in memory."""

    path = "there"

    @property
    def shapes(self):
        return {name: value.shape for name, value in self.items()}


def variables(arrays=ARRAYS):
    return {
        name: keras.Variable(np.full(value.shape, 7), dtype="float32")
        for name, value in arrays.items()
    }


def assert_untouched(ours):
    assert all((v.numpy() == 7).all() for v in ours.values())


def test_variables_take_their_values():
    extra = {
        "cls/kernel": KERNEL,
        "global_step": np.int64(3),
        "bert/kernel/adam_m": KERNEL,
        "training_state/examples_seen": np.int64(9),
    }
    ours = variables()
    report = restore(ours, Arrays({**ARRAYS, **extra}))
    for name, value in ARRAYS.items():
        np.testing.assert_array_equal(ours[name], value)
    assert report.filled == tuple(ARRAYS)
    assert report.missing == ()
    assert report.left_over == ("cls/kernel",)
    assert str(report) == (
        "2 variables filled, 0 missing, 1 left over (cls/kernel)"
    )


def test_a_head_may_be_missing_if_so_it_is_said():
    ours = variables()
    there = Arrays({"bert/encoder/kernel": KERNEL})
    report = restore(ours, there, NEW_HEADS)
    assert report.missing == ("head/bias",)
    np.testing.assert_array_equal(ours["bert/encoder/kernel"], KERNEL)
    assert (ours["head/bias"].numpy() == 7).all()


@pytest.mark.parametrize("may_lack", ["", r"(?!head/)"])
def test_nothing_else_may_be_missing(may_lack):
    ours = variables()
    there = Arrays({"bert/encoder/kernel": KERNEL})
    with pytest.raises(
        InputError, match=r"there does not fit.* 1 of 2 .* 'head/bias'; give"
    ):
        restore(ours, there, may_lack)
    assert_untouched(ours)


@pytest.mark.parametrize(
    ("name", "may_be_missing"),
    [
        ("bert/embeddings/word_embeddings", False),
        ("bert/encoder/layer_0/output/dense/kernel", False),
        ("bert/pooler/dense/kernel", True),
        ("cls/predictions/output_bias", True),
        ("output_weights", True),
        ("my_dense/kernel", True),
    ],
)
def test_heads_and_pooler_may_be_new_but_no_part_of_the_encoder(
    name, may_be_missing
):
    ours = variables({"bert/encoder/kernel": KERNEL, name: KERNEL})
    there = Arrays({"bert/encoder/kernel": KERNEL})
    if may_be_missing:
        assert restore(ours, there, NEW_HEADS).missing == (name,)
        return
    with pytest.raises(InputError, match=name):
        restore(ours, there, NEW_HEADS)


@pytest.mark.parametrize(
    ("there", "lacking"),
    [
        ("cls/predictions/output_bias", "cls/predictions/transform/kernel"),
        ("bert/pooler/dense/kernel", "bert/pooler/dense/bias"),
        ("output_weights", "output_bias"),
    ],
)
def test_half_a_head_is_a_mistake(there, lacking):
    ours = variables({there: KERNEL, lacking: KERNEL})
    with pytest.raises(InputError, match=lacking):
        restore(ours, Arrays({there: KERNEL}), NEW_HEADS)
    assert_untouched(ours)


def test_two_heads_are_missing_one_by_one():
    ours = variables(
        {"cls/predictions/output_bias": KERNEL, "cls/squad/bias": KERNEL}
    )
    there = Arrays({"cls/predictions/output_bias": KERNEL})
    assert restore(ours, there, NEW_HEADS).missing == ("cls/squad/bias",)


def test_another_shape_changes_nothing():
    ours = variables()
    there = Arrays({**ARRAYS, "head/bias": np.ones(6, "float32")})
    with pytest.raises(
        InputError, match=r"head/bias of shape \[5\]. Received: \[6\]; give"
    ):
        restore(ours, there)
    assert_untouched(ours)


def test_a_head_of_another_size_has_a_remedy():
    ours = variables({"output_bias": np.ones(2, "f4")})
    there = Arrays({"output_bias": np.ones(3, "f4")})
    with pytest.raises(InputError, match="--head=encoder leaves the head out"):
        restore(ours, there, NEW_HEADS)


def test_a_selection_holds_no_more():
    chosen = weights.Selection(Arrays(ARRAYS), ["head/bias"])
    assert list(chosen.shapes) == ["head/bias"]
    assert "bert/encoder/kernel" not in chosen
    np.testing.assert_array_equal(chosen["head/bias"], ARRAYS["head/bias"])
    with pytest.raises(KeyError):
        chosen["bert/encoder/kernel"]


def test_a_long_report_names_four():
    report = Report((), tuple("abcde"), ())
    assert "5 missing (a, b, c, d, ...)" in str(report)


@pytest.mark.parametrize(
    ("name", "is_bookkeeping"),
    [
        ("global_step", True),
        ("bert/pooler/dense/kernel/adam_v", True),
        ("training_state/examples_seen", True),
        ("bert/pooler/dense/kernel", False),
        ("my/global_step", False),
    ],
)
def test_what_is_no_weight(name, is_bookkeeping):
    assert bool(weights.BOOKKEEPING.match(name)) is is_bookkeeping


def test_a_checksum_is_of_names_and_values():
    first = checksum(variables())
    assert re.fullmatch("[0-9a-f]{64}", first)
    assert checksum(dict(reversed(variables().items()))) == first
    others = [
        variables({**ARRAYS, "head/kernel": KERNEL}),
        variables({"bert/encoder/kernel": KERNEL, "head/gain": np.ones(5)}),
        variables({**ARRAYS, "bert/encoder/kernel": KERNEL.T}),
    ]
    changed = variables()
    changed["head/bias"].assign(np.full(5, np.nextafter(np.float32(7), 8)))
    assert len({first, *map(checksum, [*others, changed])}) == 5
