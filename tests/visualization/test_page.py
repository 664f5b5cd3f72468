"""What is put into the page; what it does is in test_page_in_browser.py."""

import base64
import json
import re
import zlib

import numpy as np
import pytest
from small_attention import NASTY, TEXT_B, attention, passage

from bert_tf.visualization import attention as drawing
from bert_tf.visualization.attention import Attention, Passage, Word


def script(html: str, name: str) -> str:
    """What a browser takes for the content of a script element."""
    [content] = re.findall(
        rf'<script type="[^"]+" id="{name}">(.*?)</script', html, re.DOTALL
    )
    return content


def unpack(content: str, levels: int) -> np.ndarray:
    """As the page does it."""
    packed = zlib.decompress(base64.b64decode(content, validate=True))
    high, low = np.frombuffer(packed, np.uint8).reshape(2, -1).astype(int)
    return (high * 256 + low) / levels


def test_weights_are_packed_in_order():
    found = attention(passage("cat sat", TEXT_B), 3, 5)
    html = drawing.write_page(found)
    weights = unpack(script(html, "weights"), drawing.FINE_LEVELS)
    np.testing.assert_allclose(
        weights.reshape(found.weights.shape), found.weights, atol=0.5 / 65535
    )


@pytest.mark.parametrize("levels", [drawing.FINE_LEVELS, drawing.COARSE_LEVELS])
def test_rounding(levels):
    weights = np.array([0.0, 1.0, 0.5, 1 / 3, 1e-9, 1.0000001, -0.0])
    packed = base64.b64encode(drawing.pack(weights, levels)).decode()
    found = unpack(packed, levels)
    assert np.abs(found - weights).max() <= 0.5 / levels
    assert found[1] == found[5] == 1


def test_the_facts():
    found = attention(passage("Café cat", "שלום"), 3, 5)
    html = drawing.write_page(found, 2, 4, join_pieces=False)
    facts = json.loads(script(html, "facts"))
    assert facts["start"] == {
        "layer": 2,
        "head": 4,
        "joined": False,
        "specials": True,
    }
    assert (facts["layers"], facts["heads"]) == (3, 5)
    assert facts["model"] == "owner/model"
    assert facts["directions"] == ["ltr", "rtl"]
    assert facts["pieces"] == list(found.passage.pieces)
    assert [w["text"] for w in facts["words"]] == [
        *("[CLS]", "Café", "cat", "[SEP]", "שלום", "[SEP]"),
    ]
    assert facts["words"][4] == {
        "text": "שלום",
        "first": 4,
        "end": 5,
        "segment": 1,
        "special": False,
        "spaced": True,
    }


@pytest.mark.parametrize("text", [NASTY, "cat \udcff sat", "<!-- <script>"])
def test_no_text_breaks_the_page(text):
    found = attention(passage(text, NASTY))
    found = Attention(found.passage, found.weights, f"</title>{text}")
    html, plain = (
        drawing.write_page(found),
        drawing.write_page(attention(passage())),
    )
    html.encode()
    assert html.count("<") == plain.count("<")
    words = json.loads(script(html, "facts"))["words"]
    assert [w["text"] for w in words] == [w.text for w in found.passage.words]


def test_the_page_loads_nothing():
    html = drawing.write_page(attention(passage()))
    assert not re.findall(r'(?:src|href)="(?!data:,)|url\(|@import|://', html)
    assert "default-src 'none'" in html
    assert "{{" not in html


def bert_base(size: int, seed: int = 0) -> Attention:
    """12 layers, 12 heads, with weights as even as they ever are."""
    words = tuple(
        Word(f"word{n}", n, n + 1, int(n > size // 2)) for n in range(size)
    )
    pieces = tuple(word.text for word in words)
    zeros = (0,) * size
    text = Passage(pieces, zeros, zeros, words, ("ltr", "ltr"))
    scores = np.random.default_rng(seed).normal(size=(12, 12, size, size))
    weights = np.exp(scores)
    weights /= weights.sum(-1, keepdims=True)
    return Attention(text, weights.astype("float32"), "bert-base")


@pytest.mark.slow
def test_the_size_of_bert_base():
    html = drawing.write_page(bert_base(128))
    assert json.loads(script(html, "facts"))["levels"] == drawing.FINE_LEVELS
    assert 4e6 < len(html) < 5e6
    longer = drawing.write_page(bert_base(160))
    assert (
        json.loads(script(longer, "facts"))["levels"] == drawing.COARSE_LEVELS
    )
    assert len(longer) < 5e6
