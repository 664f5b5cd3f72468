"""Tokens and words of texts, the page and the picture.

test_page_in_browser.py opens the page.
"""

import base64
import builtins
import dataclasses
import io
import json
import re
import warnings
import zlib

import numpy as np
import pytest
from small_attention import NASTY, TEXT, TEXT_B, VOCAB, attention, passage

from bert_tf.contrib import attention_page as drawing
from bert_tf.contrib.attention_page import (
    AttentionMaps,
    as_shown,
    direction,
    join_pieces,
    read_passage,
)
from bert_tf.errors import InputError
from bert_tf.tokenization.packing import pack
from bert_tf.tokenization.wordpiece import FullTokenizer

# Words and tokens ------------------------------------------------------------


@pytest.mark.parametrize("text", [TEXT, NASTY, "東京 שלום", " \t cat \n"])
@pytest.mark.parametrize("text_b", [None, TEXT_B])
def test_a_passage_has_the_tokens_of_training(text, text_b):
    tokenizer = FullTokenizer(VOCAB)
    found = passage(text, text_b)
    assert [VOCAB[i] for i in found.input_ids] == list(found.pieces)
    if text != NASTY:
        # In training, [MASK] in a text is not a special token.
        input_ids, segment_ids = pack(
            tokenizer.encode(text),
            None if text_b is None else tokenizer.encode(text_b),
            99,
            tokenizer.vocab["[CLS]"],
            tokenizer.vocab["[SEP]"],
        )
        assert list(found.input_ids) == input_ids
        assert list(found.segment_ids) == segment_ids
    tokens = [n for w in found.words for n in range(w.first, w.end)]
    assert tokens == list(range(len(found.pieces)))
    firsts = [n for n, x in enumerate(found.pieces) if x[:2] != "##"]
    assert [word.first for word in found.words] == firsts


def test_words_are_slices_of_the_text():
    words = passage("Café-unbreakable !", "[UNK] zzz").words
    assert [(w.text, w.end - w.first, w.segment) for w in words] == [
        ("[CLS]", 1, 0),
        ("Café", 1, 0),
        ("-", 1, 0),
        ("unbreakable", 3, 0),
        ("!", 1, 0),
        ("[SEP]", 1, 0),
        # [UNK] in a text is not a special token.
        *(("[", 1, 1), ("UNK", 1, 1), ("]", 1, 1)),
        ("zzz", 1, 1),
        ("[SEP]", 1, 1),
    ]
    assert [w.follows_space for w in words[1:5]] == [True, False, False, True]
    assert [n for n, w in enumerate(words) if w.is_special] == [0, 5, 10]


def test_a_mask_is_one_token():
    found = passage("the [MASK]able[MASK] cat")
    assert found.pieces[1:5] == ("the", "[MASK]", "[UNK]", "[MASK]")
    words = found.words[1:6]
    assert [w.text for w in words] == ["the", "[MASK]", "able", "[MASK]", "cat"]
    assert [w.follows_space for w in words] == [True, True, False, False, True]
    assert not any(w.is_special for w in words)


def test_refuses_texts_that_are_empty_or_too_long():
    for empty in ("", "  ", "\u200b"):
        for texts in ((empty, "cat"), ("cat", empty)):
            with pytest.raises(InputError, match="at least one word; got"):
                passage(*texts)
    texts = FullTokenizer(VOCAB), "cat " * 7, "sat " * 4
    assert len(read_passage(*texts, 14).pieces) == 14
    with pytest.raises(InputError, match=r"has 14 tokens .* is 13"):
        read_passage(*texts, 13)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cat שלום", "ltr"),
        ("שלום cat", "rtl"),
        ("1, (שלום", "rtl"),
        ("مرحبا", "rtl"),
        ("1 !", "ltr"),
        ("東京", "ltr"),
    ],
)
def test_direction(text, expected):
    assert direction(text) == expected
    assert passage("cat", text).directions == ("ltr", expected)


def test_joining_sums_columns_and_averages_rows():
    found = attention(passage("unbreakable cat"), 2, 3)
    # [CLS] un ##break ##able cat [SEP]
    joined = join_pieces(found.weights, found.passage.words)
    np.testing.assert_allclose(joined.sum(-1), 1, atol=1e-5)
    w, ours = found.weights[1, 2], joined[1, 2]
    assert ours[0, 0] == w[0, 0]
    assert ours[2, 1] == pytest.approx(w[4, 1] + w[4, 2] + w[4, 3])
    assert ours[1, 2] == pytest.approx((w[1, 4] + w[2, 4] + w[3, 4]) / 3)
    assert ours[1, 1] == pytest.approx(w[1:4, 1:4].sum() / 3)


@pytest.mark.parametrize("special_tokens", [False, True])
@pytest.mark.parametrize("joined", [False, True])
def test_as_shown(joined, special_tokens):
    found = attention(passage(TEXT, TEXT_B))
    weights, words = as_shown(found, joined, special_tokens)
    names = [word.text for word in words]
    assert weights.shape == (3, 5, len(names), len(names))
    assert names.count("[SEP]") == (2 if special_tokens else 0)
    assert ("unbreakable" in names) is joined
    assert ("##break" in names) is not joined
    pieces = found.passage.pieces
    np.testing.assert_array_equal(
        weights[:, :, names.index("cat"), names.index("soft")],
        found.weights[:, :, pieces.index("cat"), pieces.index("soft")],
    )


# The page --------------------------------------------------------------------


def script(html: str, name: str) -> str:
    """Returns the content of a script element, as a browser reads it."""
    [content] = re.findall(
        rf'<script type="[^"]+" id="{name}">(.*?)</script', html, re.DOTALL
    )
    return content


def unpack(content: str, levels: int) -> np.ndarray:
    packed = zlib.decompress(base64.b64decode(content, validate=True))
    high, low = np.frombuffer(packed, np.uint8).reshape(2, -1).astype(int)
    return (high * 256 + low) / levels


def test_the_weights_and_facts_of_a_page():
    found = attention(passage("Café cat", "שלום"), 3, 5)
    html = drawing.write_page(found, 2, 4, join_pieces=False)
    weights = unpack(script(html, "weights"), drawing.FINE_LEVELS)
    weights = weights.reshape(found.weights.shape)
    np.testing.assert_allclose(weights, found.weights, atol=0.5 / 65535)
    facts = json.loads(script(html, "facts"))
    start = {"layer": 2, "head": 4, "joined": False, "specials": True}
    assert facts["start"] == start
    assert (facts["layers"], facts["heads"]) == (3, 5)
    assert facts["model"] == "owner/model"
    assert facts["directions"] == ["ltr", "rtl"]
    assert facts["pieces"] == list(found.passage.pieces)
    texts = ["[CLS]", "Café", "cat", "[SEP]", "שלום", "[SEP]"]
    assert [w["text"] for w in facts["words"]] == texts
    assert facts["words"][4] == {
        "text": "שלום",
        "first": 4,
        "end": 5,
        "segment": 1,
        "special": False,
        "spaced": True,
    }


@pytest.mark.parametrize("levels", [drawing.FINE_LEVELS, drawing.COARSE_LEVELS])
def test_rounding(levels):
    weights = np.array([0.0, 1.0, 0.5, 1 / 3, 1e-9, 1.0000001, -0.0])
    packed = base64.b64encode(drawing.pack(weights, levels)).decode()
    found = unpack(packed, levels)
    assert np.abs(found - weights).max() <= 0.5 / levels
    assert found[1] == found[5] == 1


@pytest.mark.parametrize("text", [NASTY, "cat \udcff sat", "<!-- <script>"])
def test_no_text_breaks_the_page(text):
    found = attention(passage(text, NASTY))
    found = AttentionMaps(found.passage, found.weights, f"</title>{text}")
    html = drawing.write_page(found)
    plain = drawing.write_page(attention(passage()))
    html.encode()
    assert html.count("<") == plain.count("<")
    words = json.loads(script(html, "facts"))["words"]
    assert [w["text"] for w in words] == [w.text for w in found.passage.words]
    # The page loads nothing.
    assert not re.findall(r'(?:src|href)="(?!data:,)|url\(|@import|://', plain)
    assert "default-src 'none'" in plain
    assert "{{" not in plain


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "levels"),
    [(128, drawing.FINE_LEVELS), (160, drawing.COARSE_LEVELS)],
)
def test_the_size_of_bert_base(size, levels):
    html = drawing.write_page(attention(passage("cat " * (size - 2)), 12, 12))
    assert json.loads(script(html, "facts"))["levels"] == levels
    assert 3e6 < len(html) < 5e6


# The picture -----------------------------------------------------------------


def test_colours():
    found = drawing.colours(np.array([[0.0, 0.25, 1.0]]), [0, 1, 0])
    np.testing.assert_allclose(found[0, 0], [1, 1, 1])
    np.testing.assert_allclose(found[0, 1], (1 + drawing.ACCENTS[1]) / 2)
    np.testing.assert_allclose(found[0, 2], drawing.ACCENTS[0])


def pixels(png: bytes) -> np.ndarray:
    from matplotlib import image

    return image.imread(io.BytesIO(png))


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (NASTY, {}),
        (NASTY, {"layer": 2, "joined": False}),
        (NASTY, {"layer": 2, "head": 4, "special_tokens": False}),
        ("cat " * 60, {"layer": 0, "head": 0}),
    ],
)
def test_pictures(text, options):
    pytest.importorskip("matplotlib")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        png = drawing.draw_picture(attention(passage(text)), **options)
    assert min(pixels(png).shape[:2]) > 100
    assert max(pixels(png).shape) < 3000


def test_invalid_unicode_becomes_a_question_mark():
    """A shell passes invalid bytes as halves of surrogate pairs."""
    pytest.importorskip("matplotlib")
    half, whole = (
        dataclasses.replace(attention(passage(text), 1, 1), model=text)
        for text in ("cat \udce9\n", "cat ?\n")
    )
    assert drawing.draw_picture(half) == drawing.draw_picture(whole)


def test_draws_the_requested_head():
    pytest.importorskip("matplotlib")
    found = attention(passage("cat sat"))
    first = pixels(drawing.draw_picture(found, 1, 2))
    second = pixels(drawing.draw_picture(found, 1, 3))
    found.weights[1, 2] = found.weights[1, 3]
    third = pixels(drawing.draw_picture(found, 1, 2))
    # Below the titles, which have other numbers, the cells are equal.
    first, second, third = (x[len(x) // 6 :] for x in (first, second, third))
    assert (first != second).any()
    np.testing.assert_array_equal(third, second)


@pytest.mark.parametrize(
    ("layer", "head", "expected"),
    [
        (None, None, "all heads"),
        (1, None, "layer 1, all heads"),
        (None, 2, "all layers, head 2"),
        (1, 2, "layer 1, head 2"),
    ],
)
def test_titles_of_pictures(monkeypatch, layer, head, expected):
    figure = pytest.importorskip("matplotlib.figure")
    titles = []
    monkeypatch.setattr(
        figure.Figure, "suptitle", lambda self, text, **_: titles.append(text)
    )
    found = dataclasses.replace(attention(passage("cat sat")), model="bert")
    drawing.draw_picture(found, layer, head)
    assert titles == [f"Attention of bert: {expected}"]


def test_without_matplotlib(monkeypatch):
    whole = builtins.__import__

    def lacking(name, *arguments, **more):
        if name.startswith("matplotlib"):
            raise ModuleNotFoundError(f"No module named {name!r}")
        return whole(name, *arguments, **more)

    monkeypatch.setattr(builtins, "__import__", lacking)
    with pytest.raises(InputError, match=r"'\.\[visualize\]'"):
        drawing.require_matplotlib()
