"""Weights fill variables by name: all, or none if one does not fit."""

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
    """A `Weights` in memory."""

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


def test_variables_are_filled_by_name():
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


@pytest.mark.parametrize("may_lack", ["", r"(?!head/)"])
def test_missing_variables_are_refused(may_lack):
    ours = variables()
    there = Arrays({"bert/encoder/kernel": KERNEL})
    with pytest.raises(
        InputError, match=r"there does not fit.* 1 of 2 .* 'head/bias' first"
    ):
        restore(ours, there, may_lack)
    assert_untouched(ours)
    report = restore(ours, there, NEW_HEADS)
    assert report.missing == ("head/bias",)
    np.testing.assert_array_equal(ours["bert/encoder/kernel"], KERNEL)
    assert (ours["head/bias"].numpy() == 7).all()


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
def test_heads_and_pooler_may_be_new_but_not_the_encoder(name, may_be_missing):
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
def test_half_a_head_is_refused(there, lacking):
    ours = variables({there: KERNEL, lacking: KERNEL})
    with pytest.raises(InputError, match=lacking):
        restore(ours, Arrays({there: KERNEL}), NEW_HEADS)
    assert_untouched(ours)


def test_one_of_two_heads_may_be_new():
    ours = variables(
        {"cls/predictions/output_bias": KERNEL, "cls/squad/bias": KERNEL}
    )
    there = Arrays({"cls/predictions/output_bias": KERNEL})
    assert restore(ours, there, NEW_HEADS).missing == ("cls/squad/bias",)


@pytest.mark.parametrize(
    ("may_lack", "remedy"),
    [("", "Pass its config"), (NEW_HEADS, "--head=encoder removes the head")],
)
def test_another_shape_changes_nothing(may_lack, remedy):
    ours = variables()
    there = Arrays({**ARRAYS, "head/bias": np.ones(6, "float32")})
    with pytest.raises(
        InputError, match=rf"head/bias of shape \[5\], found \[6\].*{remedy}"
    ):
        restore(ours, there, may_lack)
    assert_untouched(ours)


def test_a_selection_has_only_the_selected_names():
    chosen = weights.Selection(Arrays(ARRAYS), ["head/bias"])
    assert list(chosen.shapes) == ["head/bias"]
    assert "bert/encoder/kernel" not in chosen
    np.testing.assert_array_equal(chosen["head/bias"], ARRAYS["head/bias"])
    with pytest.raises(KeyError):
        chosen["bert/encoder/kernel"]


def test_a_long_report_is_cut():
    report = Report((), tuple("abcde"), ())
    assert "5 missing (a, b, c, d, ... (5 in all))" in str(report)


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
def test_names_that_are_not_weights(name, is_bookkeeping):
    assert bool(weights.BOOKKEEPING.match(name)) is is_bookkeeping


def test_the_checksum_depends_on_names_and_values():
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
