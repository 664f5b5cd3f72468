"""What programs write into a page, and only there."""

import pytest

from bert_tf.errors import InputError

PAGE = """# Title

<!-- speed: a program writes this section -->
<!-- end of speed -->

Between.

<!-- size: a program writes this section -->

12 MB \\1

<!-- end of size -->
Below.
"""


@pytest.fixture(scope="module")
def pages(benchmarks):
    return benchmarks("pages")


@pytest.fixture
def page(tmp_path):
    path = tmp_path / "page.md"
    path.write_text(PAGE)
    return path


def test_a_section_is_replaced_and_nothing_else(pages, page):
    pages.write_section(page, "size", "\n| 13 \\1 |\n\n")
    assert page.read_text() == PAGE.replace("12 MB", "| 13").replace(
        "\\1\n", "\\1 |\n"
    )


def test_an_empty_section_is_filled(pages, page):
    pages.write_section(page, "speed", "fast")
    pages.write_section(page, "speed", "fast")
    assert page.read_text() == PAGE.replace(
        "section -->\n<!-- end of speed",
        "section -->\n\nfast\n\n<!-- end of speed",
    )


@pytest.mark.parametrize("content", ["", PAGE + PAGE, "<!-- size: -->"])
def test_a_page_without_the_section_stays(pages, page, content):
    page.write_text(content)
    with pytest.raises(InputError, match=r"one section .*size.*page\.md"):
        pages.write_section(page, "size", "13 MB")
    assert page.read_text() == content


def test_what_is_published_is_printed_if_there_is_no_page(pages, page, capsys):
    pages.publish("13 MB\n", str(page), "size")
    assert "\n13 MB\n" in page.read_text()
    assert capsys.readouterr().out == ""
    pages.publish("14 MB\n", None, "size")
    assert capsys.readouterr().out == "14 MB\n"
    assert "14 MB" not in page.read_text()


def test_no_page(pages, tmp_path):
    with pytest.raises(InputError, match=r"none\.md"):
        pages.write_section(tmp_path / "none.md", "size", "13 MB")
