"""The page, opened in a browser, shows the numbers of `as_shown`."""

import numpy as np
import pytest
from headless_chromium import launched
from small_attention import NASTY, TEXT, TEXT_B, attention, passage

from bert_tf.contrib.attention_page import as_shown, write_page


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


@pytest.fixture
def pair():
    return attention(passage(TEXT, TEXT_B))


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
    return [(words[n].text, percent(shares[n])) for n in order]


def index_of(words, text, nth=0):
    return [n for n, word in enumerate(words) if word.text == text][nth]


def test_pointing_at_words(show, pair):
    page = show(write_page(pair, 1, 3))
    weights, words = as_shown(pair)
    mean = weights[1, 3].mean(axis=0)
    assert listed(page)[:10] == expected(mean, words)
    word(page, "sat").hover()
    assert heading(page) == "“sat” attends to"
    row = weights[1, 3, index_of(words, "sat")]
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
    column = weights[1, 3, :, index_of(words, "cat")]
    assert listed(page) == expected(column, words)


def test_layers_and_heads(show, pair):
    """The lists, the overview, and arrow keys in the overview select them."""
    page = show(write_page(pair))
    weights, words = as_shown(pair)

    def check(layer, head):
        word(page, "it").hover()
        row = weights[layer, head, index_of(words, "it")]
        assert listed(page)[:10] == expected(row, words)
        checked = page.locator('#grid [aria-checked="true"]')
        name = f"layer {layer}, head {head}"
        assert checked.get_attribute("aria-label") == name
        assert page.locator("#layer").input_value() == str(layer)
        assert page.locator("#head").input_value() == str(head)

    page.get_by_role("combobox", name="Layer").select_option("2")
    page.get_by_role("combobox", name="Head").select_option("4")
    check(2, 4)
    page.get_by_role("radio", name="layer 1, head 3").click()
    check(1, 3)
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowUp")
    check(0, 2)
    page.keyboard.press("ArrowUp")
    check(0, 2)


@pytest.mark.parametrize(
    ("joined", "special_tokens", "from_start"),
    [(True, False, True), (False, True, True), (False, False, False)],
)
def test_words_tokens_and_special_tokens(
    show, pair, joined, special_tokens, from_start
):
    weights, words = as_shown(pair, joined, special_tokens)
    if from_start:
        page = show(write_page(pair, 1, 1, joined, special_tokens))
    else:
        page = show(write_page(pair, 1, 1))
        page.get_by_role("radio", name="pieces", exact=True).check()
        page.locator("#specials").set_checked(special_tokens)
    names = page.locator(".word").all_inner_texts()
    assert names == [w.text for w in words]
    text = "unbreakable" if joined else "##break"
    word(page, text, 1).hover()
    row = weights[1, 1, index_of(words, text, 1)]
    found = listed(page)
    assert found[:10] == expected(row, words)
    if not special_tokens:
        hidden = percent(1 - row.sum())
        assert found[-1] == ("[CLS] and [SEP], hidden", hidden)


def test_a_clicked_word_stays_selected(show, pair):
    """The weight of another word is then shown beside the pointer."""
    page = show(write_page(pair))
    weights, words = as_shown(pair)
    row = weights[0, 0, index_of(words, "cat")]
    word(page, "cat").click()
    word(page, "soft").hover()
    assert "“cat” is kept" in page.locator("#hint").inner_text()
    share = percent(row[index_of(words, "soft")])
    tip = page.locator("#tip").inner_text().split()
    assert tip == ["cat", "→", "soft", share]
    page.mouse.move(1, 1)
    assert page.locator("#tip").is_hidden()
    assert listed(page)[:10] == expected(row, words)
    page.keyboard.press("Escape")
    assert heading(page) == "Attention received on average"


def test_by_the_keyboard_alone(show, pair):
    page = show(write_page(pair, 1, 2))
    weights, words = as_shown(pair)
    for _ in range(6):  # Layer, head, direction, units, special tokens.
        page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    row = weights[1, 2, 2]
    assert heading(page) == "“unbreakable” attends to"
    assert listed(page)[:10] == expected(row, words)
    # For screen readers.
    top = ", ".join(" ".join(pair) for pair in expected(row, words, 3))
    said = page.locator("#said").text_content()
    assert said == f"“unbreakable” attends to: {top}"
    page.keyboard.press("Enter")
    assert "is kept" in page.locator("#hint").inner_text()
    page.keyboard.press("End")
    assert heading(page) == "“[SEP]” attends to"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.dataset.head") == "2"


def test_the_map(show, pair):
    page = show(write_page(pair, 2, 4))
    weights, words = as_shown(pair)
    box = page.locator("#map").bounding_box()
    cell, left, top = page.evaluate("[map.cell, map.left, map.top]")
    row, column = index_of(words, "on"), index_of(words, "was")
    page.mouse.move(
        box["x"] + left + (column + 0.5) * cell,
        box["y"] + top + (row + 0.5) * cell,
    )
    share = percent(weights[2, 4, row, column])
    tip = page.locator("#tip").inner_text().split()
    assert tip == ["on", "→", "was", share]
    assert heading(page) == "“on” attends to"
    # No label reaches the first column or row of pixels, where it would be
    # clipped.
    assert page.evaluate("map.labelled")
    inked = """() => {
        const { width, height } = $("map");
        const context = $("map").getContext("2d");
        const dots = context.getImageData(0, 0, width, height).data;
        const isInked = (dot) => dots[4 * dot + 3] > 0;
        const row = Array.from({ length: width }, (_, n) => n);
        const column = Array.from({ length: height }, (_, n) => n * width);
        return [...row, ...column].filter(isInked).length;
    }"""
    assert page.evaluate(inked) == 0


def test_the_overview_has_the_colours_of_the_weights(show):
    """Heads that attend to nothing, to the first and to the last token."""
    found = attention(passage("cat sat", "it was"), 2, 2)
    found.weights[:] = 0
    found.weights[0, 1, :, 0] = 1
    found.weights[1, 0, :, -1] = 1
    page = show(write_page(found))
    ends = """([layer, head]) => {
        const canvas = buttonOf(layer, head).firstChild;
        const row = canvas.getContext("2d")
            .getImageData(0, 5, canvas.width, 1).data;
        return [[...row.slice(0, 3)], [...row.slice(-4, -1)]];
    }"""
    white, blue, vermilion = [255] * 3, [0, 114, 178], [213, 94, 0]
    assert page.evaluate(ends, [0, 0]) == [white, white]
    assert page.evaluate(ends, [0, 1]) == [blue, white]
    assert page.evaluate(ends, [1, 0]) == [white, vermilion]


def test_texts_of_any_script_and_direction(show):
    found = attention(passage(NASTY, "שלום, עולם!"))
    page = show(write_page(found))
    _, words = as_shown(found)
    names = page.locator(".word").all_inner_texts()
    assert names == [w.text for w in words]
    directions = [x.get_attribute("dir") for x in page.locator(".text").all()]
    assert directions == ["ltr", "rtl"]
    shalom, olam = word(page, "שלום"), word(page, "עולם")
    assert shalom.bounding_box()["x"] > olam.bounding_box()["x"]
    shalom.click()
    shalom.focus()
    page.keyboard.press("ArrowLeft")
    assert heading(page).startswith("“,”")


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("count", [1, 150])
def test_nothing_is_wider_than_the_page(show, count, width):
    page = show(write_page(attention(passage("unbreakable " * count), 2, 12)))
    page.set_viewport_size({"width": width, "height": 700})
    page.wait_for_timeout(50)  # Drawing waits for the next frame.
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.emulate_media(color_scheme="dark")
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == "rgb(20, 21, 23)"


def test_the_page_cannot_send_requests(browser, pair, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(write_page(pair), encoding="utf-8")
    page = browser.new_page()
    page.goto(path.as_uri())
    refused = page.evaluate(
        """() => new Promise((resolve) => {
            document.addEventListener("securitypolicyviolation",
                (event) => resolve(event.effectiveDirective));
            fetch("http://127.0.0.1:9/").catch(() => {});
        })"""
    )
    page.close()
    assert refused == "connect-src"
