"""The page of examples/attention_page.py, also in a browser."""

import base64
import contextlib
import json
import re
import zlib

import numpy as np
import pytest
import small_release
from checkout import ROOT, python
from headless_chromium import launched

from bert_tf.modeling.encoder import BertModel
from bert_tf.tokenization.wordpiece import FullTokenizer

pytestmark = pytest.mark.slow

VOCAB = (
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    *("the", "cat", "sat", "on", "mat", "un", "##break", "##able", "cafe"),
    *("it", "was", "soft", "script", "alert", "b", "weights", "facts"),
    *".,-_&;!?()<>/'\"{}$=1",
    *("שלום", "עולם", "東", "京"),
)
TEXT = "The unbreakable cat sat on the mat."
TEXT_B = "It was soft, it was unbreakable!"
NASTY = (
    '</script><script>alert(1)</script> <b>&amp; "cafe" \'$1$ {{weights}} '
    "{{facts}} <!-- [MASK] Café 東京 \udcff"
)


@pytest.fixture(scope="module")
def program():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "examples")
        import attention_page

        yield attention_page


@pytest.fixture(scope="module")
def page_of(program):
    """Returns a page of weights that no model computed, and the weights."""

    def make(*texts):
        found = program.describe(FullTokenizer(VOCAB), texts)
        size = len(found["pieces"])
        random = np.random.default_rng(0)
        weights = np.exp(random.normal(size=(3, 5, size, size), scale=2.0))
        weights /= weights.sum(-1, keepdims=True)
        return program.page_of(found, weights, "owner/model"), weights

    return make


def script(html, name):
    """Returns the content of a script element, as a browser reads it."""
    pattern = rf'(?s)<script type="[^"]+" id="{name}">(.*?)</script'
    [content] = re.findall(pattern, html)
    return content


def weights_in(html):
    packed = base64.b64decode(script(html, "weights"), validate=True)
    high, low = np.frombuffer(zlib.decompress(packed), "u1").reshape(2, -1)
    facts = json.loads(script(html, "facts"))
    size = len(facts["pieces"])
    whole = high.astype(int) * 256 + low
    shape = (facts["layers"], facts["heads"], size, size)
    return facts, whole.reshape(shape) / facts["levels"]


def test_no_text_breaks_the_page(page_of):
    html, weights = page_of(TEXT, NASTY)
    facts, found = weights_in(html)
    np.testing.assert_allclose(found, weights, atol=0.5 / 4095)
    words = [w["text"] for w in facts["words"] if not w["special"]]
    assert "".join(words) == re.sub(r"\s", "", TEXT + NASTY)
    plain, _ = page_of("cat")
    html.encode()
    assert html.count("<") == plain.count("<")
    # The page loads nothing.
    assert not re.findall(r'(?:src|href)="(?!data:,)|url\(|@import|://', plain)
    assert "default-src 'none'" in plain
    assert "{{" not in plain


def test_the_program(tmp_path):
    model = small_release.write(
        tmp_path,
        lambda config: BertModel(config, output_attentions=True),
        small_release.config_of(num_hidden_layers=3),
    )

    start = (
        ROOT / "examples/attention_page.py",
        f"--init_checkpoint={tmp_path}",
    )
    words = ("--text=A ab </script> c", "--text_b=d [MASK]")
    done = python(*start, *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "attention.html").read_text("utf-8")
    facts, weights = weights_in(page)
    pieces = "[CLS] a a ##b [UNK] [UNK] [UNK] [UNK] c [SEP] d [MASK] [SEP]"
    assert facts["pieces"] == pieces.split()
    ids = np.array([[small_release.WORDS.index(p) for p in facts["pieces"]]])
    segments = np.array([[0] * 10 + [1] * 3])
    outputs = model({"input_ids": ids, "segment_ids": segments})
    expected = np.stack([layer[0] for layer in outputs["attentions"]])
    np.testing.assert_allclose(weights, expected, atol=1.3e-4)
    done = python(*start, f"--text={'a ' * 13}", cwd=tmp_path)
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith("attention_page.py: error: ")


@contextlib.contextmanager
def shown(path):
    """Opens a page, which must not fail or send a request."""
    said, requests = [], []
    with launched() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(120_000)  # For a busy machine.
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: said.append(dialog.message))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(path.as_uri())
        page.wait_for_selector("body[data-ready]")
        yield page
    assert said == []
    assert requests == [path.as_uri()]


def test_pointing_at_words(page_of, tmp_path):
    """The list has the largest mean weights of the tokens of a word."""
    html, _ = page_of(TEXT, TEXT_B)
    path = tmp_path / "page.html"
    path.write_text(html, encoding="utf-8")
    with shown(path) as page:
        assert_lists_follow_the_mouse(page, html)


def assert_lists_follow_the_mouse(page, html):
    facts, weights = weights_in(html)
    words = [word["text"] for word in facts["words"]]
    index = range(len(facts["pieces"]))
    parts = np.array(
        [np.isin(index, range(w["first"], w["end"])) for w in facts["words"]]
    )
    means = parts / parts.sum(axis=1, keepdims=True)
    weights = (means @ weights @ parts.T)[0, 0]

    def assert_listed(heading, shares):
        if heading:
            assert page.locator("#heading").inner_text() == heading
        order = np.argsort(-shares, kind="stable")[:10]
        rows = page.locator("#list li").all()
        found = [tuple(r.locator("bdi, data").all_inner_texts()) for r in rows]
        expected = [(words[n], f"{100 * shares[n]:.1f}%") for n in order]
        assert found[:10] == expected

    def point_at(text):
        page.locator("#words").get_by_text(text, exact=True).first.hover()

    assert_listed(None, weights.mean(axis=0))
    point_at("sat")
    assert_listed("“sat” attends to", weights[words.index("sat")])
    page.mouse.move(1, 1)
    assert_listed(None, weights.mean(axis=0))
    page.get_by_role("radio", name="what attends to it").check()
    point_at("cat")
    assert_listed("What attends to “cat”", weights[:, words.index("cat")])
