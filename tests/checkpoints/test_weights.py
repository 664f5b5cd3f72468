"""Weights fill variables by name: all, or none if one does not fit."""

import keras
import numpy as np
import pytest

from bert_tf.checkpoints import weights
from bert_tf.checkpoints.weights import NEW_HEADS, checksum, restore
from bert_tf.errors import InputError
from tests.checkpoints.small_models import Arrays

KERNEL = np.arange(15, dtype="float32").reshape(3, 5)
ARRAYS = {"bert/encoder/kernel": KERNEL, "head/bias": np.ones(5, "float32")}


def variables(arrays=ARRAYS):
    return {
        name: keras.Variable(np.full(value.shape, 7), dtype="float32")
        for name, value in arrays.items()
    }


def test_variables_are_filled_by_name():
    bookkeeping = [
        *("global_step", "bert/kernel/adam_m", "bert/kernel/adam_v"),
        "training_state/examples_seen",
    ]
    left_over = ["a", "b", "cls/kernel", "d", "my/global_step"]
    extra = dict.fromkeys(bookkeeping + left_over, KERNEL)
    ours = variables()
    report = restore(ours, Arrays({**ARRAYS, **extra}))
    for name, value in ARRAYS.items():
        np.testing.assert_array_equal(ours[name], value)
    assert report.filled == tuple(ARRAYS)
    assert report.left_over == tuple(left_over)
    assert str(report) == (
        "2 variables filled, 5 weights unused (a, b, cls/kernel, d, ... "
        "(5 in all)); missing: nothing"
    )


@pytest.mark.parametrize("may_lack", ["", r"(?!head/)"])
def test_missing_variables_are_refused(may_lack):
    ours, there = variables(), Arrays({"bert/encoder/kernel": KERNEL})
    with pytest.raises(
        InputError, match=r"memory does not fit.* 1 of 2 .* 'head/bias' first"
    ):
        restore(ours, there, may_lack)
    assert all((v.numpy() == 7).all() for v in ours.values())


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
    """Only a whole head may be new."""
    ours = variables({"bert/encoder/kernel": KERNEL, name: KERNEL})
    there = Arrays({"bert/encoder/kernel": KERNEL})
    half = f"{name.rpartition('/')[0]}/half".lstrip("/")
    ours_and_half = {**ours, **variables({half: KERNEL})}
    with pytest.raises(InputError, match=f"lacks .* '{name}' first"):
        restore(ours_and_half, Arrays({**there, half: KERNEL}), NEW_HEADS)
    if may_be_missing:
        assert restore(ours, there, NEW_HEADS).missing == (name,)
        assert (ours[name].numpy() == 7).all()
        return
    with pytest.raises(InputError, match=name):
        restore(ours, there, NEW_HEADS)


def test_one_of_two_heads_may_be_new():
    names = ("cls/predictions/output_bias", "cls/squad/bias")
    ours = variables(dict.fromkeys(names, KERNEL))
    there = Arrays({names[0]: KERNEL})
    assert restore(ours, there, NEW_HEADS).missing == (names[1],)


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
    assert all((v.numpy() == 7).all() for v in ours.values())


def test_a_selection_has_only_the_selected_names():
    chosen = weights.Selection(Arrays(ARRAYS), ["head/bias"])
    assert list(chosen.shapes) == ["head/bias"]
    assert "bert/encoder/kernel" not in chosen
    np.testing.assert_array_equal(chosen["head/bias"], ARRAYS["head/bias"])
    with pytest.raises(KeyError):
        chosen["bert/encoder/kernel"]


def test_the_checksum_depends_on_names_and_values():
    first = checksum(variables())
    assert checksum(dict(reversed(variables().items()))) == first
    others = [
        variables({**ARRAYS, "head/kernel": KERNEL}),
        variables({"bert/encoder/kernel": KERNEL, "head/gain": np.ones(5)}),
        variables({**ARRAYS, "bert/encoder/kernel": KERNEL.T}),
    ]
    changed = variables()
    changed["head/bias"].assign(np.full(5, np.nextafter(np.float32(7), 8)))
    assert len({first, *map(checksum, [*others, changed])}) == 5
