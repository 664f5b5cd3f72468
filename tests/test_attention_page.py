"""The page of examples/attention_page.py, also in a browser."""

import base64
import json
import re
import subprocess
import sys
import zlib

import numpy as np
import pytest
import small_release
from checkout import ROOT
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
def described(program):
    return lambda *texts: program.describe(FullTokenizer(VOCAB), texts)


@pytest.fixture(scope="module")
def page_of(program, described):
    """Returns a page of weights that no model computed, and the weights."""

    def make(*texts, num_layers=3, num_heads=5):
        found = described(*texts)
        size = len(found["pieces"])
        shape = (num_layers, num_heads, size, size)
        weights = np.exp(np.random.default_rng(0).normal(size=shape, scale=2.0))
        weights /= weights.sum(-1, keepdims=True)
        return program.page_of(found, weights, "owner/model"), weights

    return make


def script(html, name):
    """Returns the content of a script element, as a browser reads it."""
    [content] = re.findall(
        rf'<script type="[^"]+" id="{name}">(.*?)</script', html, re.DOTALL
    )
    return content


def weights_in(html):
    packed = base64.b64decode(script(html, "weights"), validate=True)
    high, low = np.frombuffer(zlib.decompress(packed), "u1").reshape(2, -1)
    facts = json.loads(script(html, "facts"))
    size = len(facts["pieces"])
    whole = high.astype(int) * 256 + low
    shape = (facts["layers"], facts["heads"], size, size)
    return facts, whole.reshape(shape) / facts["levels"]


def test_words_are_slices_of_the_text(described):
    found = described("Café-unbreakable [MASK]able !", "[UNK] zzz שלום")
    assert found["pieces"][1:6] == ["cafe", "-", "un", "##break", "##able"]
    assert [
        (w["text"], w["end"] - w["first"], w["segment"], w["spaced"])
        for w in found["words"]
        if not w["special"]
    ] == [
        ("Café", 1, 0, True),
        ("-", 1, 0, False),
        ("unbreakable", 3, 0, False),
        ("[MASK]", 1, 0, True),
        ("able", 1, 0, False),
        ("!", 1, 0, True),
        # [UNK] in a text is not a special token.
        *(("[", 1, 1, True), ("UNK", 1, 1, False), ("]", 1, 1, False)),
        *(("zzz", 1, 1, True), ("שלום", 1, 1, True)),
    ]
    special = [w["text"] for w in found["words"] if w["special"]]
    assert special == ["[CLS]", "[SEP]", "[SEP]"]
    assert found["directions"] == ["ltr", "ltr"]


@pytest.mark.parametrize("text", [TEXT, NASTY])
def test_no_text_breaks_the_page(page_of, text):
    html, weights = page_of(text, NASTY)
    facts, found = weights_in(html)
    np.testing.assert_allclose(found, weights, atol=0.5 / 4095)
    words = [w["text"] for w in facts["words"] if not w["special"]]
    assert "".join(words) == re.sub(r"\s", "", text + NASTY)
    plain, _ = page_of("cat")
    html.encode()
    assert html.count("<") == plain.count("<")
    # The page loads nothing.
    assert not re.findall(r'(?:src|href)="(?!data:,)|url\(|@import|://', plain)
    assert "default-src 'none'" in plain
    assert "{{" not in plain


def test_the_program(tmp_path):
    """Run in a process; an error is one line."""
    model = small_release.write(
        tmp_path,
        lambda config: BertModel(config, output_attentions=True),
        small_release.config_of(num_hidden_layers=3),
    )

    def run(*words):
        path = str(ROOT / "examples/attention_page.py")
        start = f"--init_checkpoint={tmp_path}"
        return subprocess.run(
            [sys.executable, path, start, *words],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )

    done = run("--text=A ab </script> c", "--text_b=d [MASK]")
    assert done.returncode == 0, done.stderr
    facts, weights = weights_in(
        (tmp_path / "attention.html").read_text("utf-8")
    )
    pieces = "[CLS] a a ##b [UNK] [UNK] [UNK] [UNK] c [SEP] d [MASK] [SEP]"
    assert facts["pieces"] == pieces.split()
    ids = np.array([[small_release.WORDS.index(p) for p in facts["pieces"]]])
    segments = np.array([[0] * 10 + [1] * 3])
    outputs = model({"input_ids": ids, "segment_ids": segments})
    expected = np.stack([layer[0] for layer in outputs["attentions"]])
    np.testing.assert_allclose(weights, expected, atol=1.3e-4)
    done = run(f"--text={'a ' * 13}")
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith("attention_page.py: error: ")


# In a browser ----------------------------------------------------------------


@pytest.fixture(scope="module")
def browser():
    with launched() as browser:
        yield browser


@pytest.fixture
def show(browser, tmp_path):
    """Opens a page, which must not fail or send a request."""
    said, requests = [], []
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.set_default_timeout(120_000)  # For a busy machine.
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("dialog", lambda dialog: said.append(dialog.message))
    page.on("request", lambda request: requests.append(request.url))
    path = tmp_path / "page.html"

    def show(html):
        path.write_text(html, encoding="utf-8")
        page.goto(path.as_uri())
        page.wait_for_selector("body[data-ready]")
        return page

    yield show
    context.close()
    assert said == []
    assert requests == [path.as_uri()]


def shown(html, joined=True, special_tokens=True):
    """Returns the weights between the units of a page, and their texts."""
    facts, weights = weights_in(html)
    units = [w for w in facts["words"] if special_tokens or not w["special"]]
    spans = [(w["text"], range(w["first"], w["end"])) for w in units]
    if not joined:
        pieces = facts["pieces"]
        spans = [(pieces[n], [n]) for _, span in spans for n in span]
    texts = [text for text, _ in spans]
    count = len(facts["pieces"])
    parts = np.array([np.isin(range(count), span) for _, span in spans])
    means = parts / parts.sum(axis=1, keepdims=True)
    return means @ weights @ parts.T, texts


def word(page, text, nth=0):
    return page.locator("#words").get_by_text(text, exact=True).nth(nth)


def heading(page):
    return page.locator("#heading").inner_text()


def percent(share):
    return f"{100 * share:.1f}%"


def listed(page):
    """Returns the names and numbers of the list."""
    rows = page.locator("#list li").all()
    return [tuple(row.locator("bdi, data").all_inner_texts()) for row in rows]


def expected(shares, words, count=10):
    """Returns the largest shares as the page lists them."""
    order = np.argsort(-shares, kind="stable")[:count]
    return [(words[n], percent(shares[n])) for n in order]


def test_pointing_at_words(show, page_of):
    html, _ = page_of(TEXT, TEXT_B)
    page = show(html)
    weights, words = shown(html)
    mean = weights[0, 0].mean(axis=0)
    assert listed(page)[:10] == expected(mean, words)
    word(page, "sat").hover()
    assert heading(page) == "“sat” attends to"
    row = weights[0, 0, words.index("sat")]
    rest = row.sum() - np.sort(row)[-10:].sum()
    assert listed(page) == [*expected(row, words), ("9 others", percent(rest))]
    # The same numbers are below the words.
    percents = [
        span.get_attribute("data-percent")
        for span in page.locator(".word").all()
    ]
    assert percents == [f"{100 * x:.0f}" if x >= 0.005 else "" for x in row]
    page.mouse.move(1, 1)
    assert listed(page)[:10] == expected(mean, words)
    page.get_by_role("radio", name="what attends to it").check()
    word(page, "cat").hover()
    assert heading(page) == "What attends to “cat”"
    column = weights[0, 0, :, words.index("cat")]
    assert listed(page) == expected(column, words)
