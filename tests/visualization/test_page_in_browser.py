"""The page, opened in a browser: what it shows, and that it asks for nothing.

Numbers are compared with those that `as_shown` gives.
"""

import numpy as np
import pytest
from headless_chromium import launched
from small_attention import NASTY, TEXT, TEXT_B, attention, passage

from bert_tf.visualization.attention import as_shown, write_page


@pytest.fixture(scope="module")
def browser():
    with launched() as browser:
        yield browser


@pytest.fixture
def show(browser, tmp_path):
    """Opens a page; at the end there was no fault and no request."""
    said, requests = [], []
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.set_default_timeout(120_000)  # For a machine that is busy.
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


def listed(page) -> list[tuple[str, str]]:
    """The names and numbers of the list."""
    rows = page.locator("#list li").all()
    return [tuple(row.locator("bdi, data").all_inner_texts()) for row in rows]


def expected(shares, words, count=10) -> list[tuple[str, str]]:
    """The largest, as the page writes them."""
    order = np.argsort(-shares, kind="stable")[:count]
    return [(words[n].text, f"{100 * shares[n]:.1f}%") for n in order]


def place_of(words, text, nth=0) -> int:
    return [n for n, word in enumerate(words) if word.text == text][nth]


def test_pointing_at_a_word(show, pair):
    page = show(write_page(pair, 1, 3))
    weights, words = as_shown(pair)
    word(page, "sat").hover()
    assert page.locator("#heading").inner_text() == "“sat” attends to"
    row = weights[1, 3, place_of(words, "sat")]
    top = expected(row, words)
    rest = row.sum() - np.sort(row)[-10:].sum()
    assert listed(page) == [*top, ("9 others", f"{100 * rest:.1f}%")]
    # Below the words stand the same numbers.
    percents = [
        span.get_attribute("data-percent")
        for span in page.locator(".word").all()
    ]
    assert percents == [f"{100 * x:.0f}" if x >= 0.005 else "" for x in row]
    assert word(page, "sat").get_attribute("aria-selected") == "true"


def test_without_the_pointer(show, pair):
    page = show(write_page(pair))
    weights, words = as_shown(pair)
    mean = weights[0, 0].mean(axis=0)
    assert listed(page)[:10] == expected(mean, words)
    word(page, "mat").hover()
    page.mouse.move(1, 1)
    assert listed(page)[:10] == expected(mean, words)


def test_layers_and_heads(show, pair):
    """By the lists, by the overview, and by arrow keys in it."""
    page = show(write_page(pair))
    weights, words = as_shown(pair)
    place = place_of(words, "it")

    def check(layer, head):
        word(page, "it").hover()
        row = weights[layer, head, place]
        assert listed(page)[:10] == expected(row, words)
        checked = page.locator('#grid [aria-checked="true"]')
        name = f"layer {layer}, head {head}"
        assert checked.get_attribute("aria-label") == name
        assert page.locator("#layer").input_value() == str(layer)
        assert page.locator("#head").input_value() == str(head)

    page.get_by_role("combobox", name="Layer").select_option("2")
    check(2, 0)
    page.get_by_role("combobox", name="Head").select_option("4")
    check(2, 4)
    page.get_by_role("radio", name="layer 1, head 3").click()
    check(1, 3)
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowUp")
    check(0, 2)
    page.keyboard.press("ArrowUp")
    check(0, 2)


def test_what_attends_to_a_word(show, pair):
    page = show(write_page(pair, 2, 1))
    weights, words = as_shown(pair)
    page.get_by_role("radio", name="what attends to it").check()
    word(page, "cat").hover()
    assert page.locator("#heading").inner_text() == "What attends to “cat”"
    column = weights[2, 1, :, place_of(words, "cat")]
    assert listed(page) == expected(column, words)


@pytest.mark.parametrize("special_tokens", [False, True])
@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("from_start", [False, True])
def test_words_pieces_and_special_tokens(
    show, pair, joined, special_tokens, from_start
):
    weights, words = as_shown(pair, joined, special_tokens)
    if from_start:
        page = show(write_page(pair, 1, 1, joined, special_tokens))
    else:
        page = show(write_page(pair, 1, 1, not joined, not special_tokens))
        kind = "words" if joined else "pieces"
        page.get_by_role("radio", name=kind, exact=True).check()
        page.locator("#specials").set_checked(special_tokens)
    names = page.locator(".word").all_inner_texts()
    assert names == [w.text for w in words]
    text = "unbreakable" if joined else "##break"
    word(page, text, 1).hover()
    row = weights[1, 1, place_of(words, text, 1)]
    found = listed(page)
    assert found[:10] == expected(row, words)
    if not special_tokens:
        hidden = f"{100 * (1 - row.sum()):.1f}%"
        assert found[-1] == ("[CLS] and [SEP], hidden", hidden)


def test_a_clicked_word_stays_selected(show, pair):
    """By a click; the weight to another is then told beside the pointer."""
    page = show(write_page(pair))
    weights, words = as_shown(pair)
    row = weights[0, 0, place_of(words, "cat")]
    word(page, "cat").click()
    word(page, "soft").hover()
    assert "“cat” is kept" in page.locator("#hint").inner_text()
    share = f"{100 * row[place_of(words, 'soft')]:.1f}%"
    assert page.locator("#tip").inner_text().split() == [
        *("cat", "→", "soft", share),
    ]
    page.mouse.move(1, 1)
    assert page.locator("#tip").is_hidden()
    assert listed(page)[:10] == expected(row, words)
    page.keyboard.press("Escape")
    heading = page.locator("#heading").inner_text()
    assert heading == "Attention received on average"


def test_by_the_keyboard_alone(show, pair):
    page = show(write_page(pair, 1, 2))
    weights, words = as_shown(pair)
    for _ in range(6):  # Layer, head, direction, units, special tokens.
        page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    row = weights[1, 2, 2]
    assert page.locator("#heading").inner_text() == "“unbreakable” attends to"
    assert listed(page)[:10] == expected(row, words)
    # What a screen reader is told.
    told = ", ".join(" ".join(pair) for pair in expected(row, words, 3))
    said = page.locator("#said").text_content()
    assert said == f"“unbreakable” attends to: {told}"
    page.keyboard.press("Enter")
    assert "is kept" in page.locator("#hint").inner_text()
    page.keyboard.press("End")
    assert page.locator("#heading").inner_text() == "“[SEP]” attends to"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.dataset.head") == "2"


def test_the_map(show, pair):
    page = show(write_page(pair, 2, 4))
    weights, words = as_shown(pair)
    box = page.locator("#map").bounding_box()
    cell, left, top = page.evaluate("[map.cell, map.left, map.top]")
    row, column = place_of(words, "on"), place_of(words, "was")
    page.mouse.move(
        box["x"] + left + (column + 0.5) * cell,
        box["y"] + top + (row + 0.5) * cell,
    )
    share = f"{100 * weights[2, 4, row, column]:.1f}%"
    tip = page.locator("#tip").inner_text().split()
    assert tip == ["on", "→", "was", share]
    assert page.locator("#heading").inner_text() == "“on” attends to"


def test_the_labels_of_the_map_are_whole(show, pair):
    """None of them reaches the first column or row of dots: it would be cut."""
    page = show(write_page(pair))
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
    """A head that looks at one place of each text, and one that looks away."""
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
    for head, colours in [
        ([0, 0], [white, white]),
        ([0, 1], [blue, white]),
        ([1, 0], [white, vermilion]),
    ]:
        assert page.evaluate(ends, head) == colours


def test_no_text_breaks_the_page(show):
    """Nor does one of another direction stand the wrong way round."""
    found = attention(passage(NASTY, "שלום, עולם!"))
    page = show(write_page(found))
    _, words = as_shown(found)
    names = page.locator(".word").all_inner_texts()
    assert names == [w.text for w in words]
    first, second = page.locator(".text").all()
    assert first.get_attribute("dir") == "ltr"
    assert second.get_attribute("dir") == "rtl"
    shalom, olam = word(page, "שלום"), word(page, "עולם")
    assert shalom.bounding_box()["x"] > olam.bounding_box()["x"]
    shalom.click()
    shalom.focus()
    page.keyboard.press("ArrowLeft")
    assert page.locator("#heading").inner_text().startswith("“,”")


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("count", [1, 150])
def test_nothing_is_wider_than_the_page(show, count, width):
    page = show(write_page(attention(passage("unbreakable " * count), 2, 12)))
    page.set_viewport_size({"width": width, "height": 700})
    page.wait_for_timeout(50)  # What is drawn anew waits for the next frame.
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.emulate_media(color_scheme="dark")
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == "rgb(20, 21, 23)"


def test_the_page_sends_no_requests(browser, pair, tmp_path):
    """Its own rule keeps it from it, whatever stands in it."""
    path = tmp_path / "page.html"
    path.write_text(write_page(pair), encoding="utf-8")
    context = browser.new_context()
    page = context.new_page()
    page.goto(path.as_uri())
    refused = page.evaluate(
        """() => new Promise((resolve) => {
            document.addEventListener("securitypolicyviolation",
                (event) => resolve(event.effectiveDirective));
            fetch("http://127.0.0.1:9/").catch(() => {});
        })"""
    )
    context.close()
    assert refused == "connect-src"
