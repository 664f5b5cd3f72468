"""The picture: its colours, and that it is one."""

import builtins
import dataclasses
import io
import warnings

import numpy as np
import pytest
from small_attention import NASTY, TEXT_B, attention, passage

from bert_tf.errors import InputError
from bert_tf.visualization import attention as drawing


def test_colours():
    found = drawing.colours(np.array([[0.0, 0.25, 1.0]]), [0, 1, 0])
    np.testing.assert_allclose(found[0, 0], [1, 1, 1])
    np.testing.assert_allclose(found[0, 1], (1 + drawing.ACCENTS[1]) / 2)
    np.testing.assert_allclose(found[0, 2], drawing.ACCENTS[0])


def pixels(png: bytes) -> np.ndarray:
    from matplotlib import image

    return image.imread(io.BytesIO(png))


@pytest.mark.parametrize(
    ("layer", "head", "joined", "special_tokens"),
    [
        (None, None, True, False),
        (2, None, False, True),
        (None, 4, False, False),
        (2, 4, True, True),
        (2, 4, False, False),
    ],
)
def test_pictures(layer, head, joined, special_tokens):
    pytest.importorskip("matplotlib")
    found = attention(passage(NASTY, TEXT_B))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        png = drawing.draw_picture(found, layer, head, joined, special_tokens)
    height, width, _ = pixels(png).shape
    assert 200 < height < 3000
    assert 300 < width < 3000


def test_a_word_and_sixty():
    pytest.importorskip("matplotlib")
    for text in ("cat", "cat " * 60):
        png = drawing.draw_picture(attention(passage(text), 1, 1))
        assert max(pixels(png).shape) < 3000


def test_invalid_unicode_becomes_a_question_mark():
    """Halves of surrogate pairs, as which a shell passes such bytes."""
    pytest.importorskip("matplotlib")
    half, whole = (
        dataclasses.replace(attention(passage(text), 1, 1), model=text)
        for text in ("cat \udce9\n", "cat ?\n")
    )
    assert drawing.draw_picture(half) == drawing.draw_picture(whole)


def test_draws_the_requested_head():
    pytest.importorskip("matplotlib")
    found = attention(passage("cat sat"))
    first, second = (
        drawing.draw_picture(found, 1, head, special_tokens=False)
        for head in (2, 3)
    )
    assert first != second
    found.weights[1, 2] = found.weights[1, 3]
    third = drawing.draw_picture(found, 1, 2, special_tokens=False)
    # The title has another number, the cells are the same.
    ours, theirs = pixels(third), pixels(second)
    title = int(0.15 * len(ours))
    np.testing.assert_array_equal(ours[title:], theirs[title:])


def test_without_matplotlib(monkeypatch):
    whole = builtins.__import__

    def lacking(name, *arguments, **more):
        if name.startswith("matplotlib"):
            raise ModuleNotFoundError(f"No module named {name!r}")
        return whole(name, *arguments, **more)

    monkeypatch.setattr(builtins, "__import__", lacking)
    with pytest.raises(InputError, match=r"bert-tf\[visualize\]"):
        drawing.require_matplotlib()
