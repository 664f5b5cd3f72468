"""The texts that the benchmark of packing makes its records of."""

import pytest

TEXT = """\x20
 = First = \x20

 Alpha beta . Gamma 3.5 @-@ delta ! Epsilon ?\x20
 Zeta = eta .\x20

 = = Part of it = =\x20
 Theta . Iota .\x20
 = = = Alone = = =\x20
 One sentence .\x20

 = Second =\x20
 Kappa . Lambda .\x20
"""
FIRST = ["Alpha beta .", "Gamma 3.5 @-@ delta !", "Epsilon ?", "Zeta = eta ."]


@pytest.fixture(scope="module")
def wikitext(benchmarks):
    return benchmarks("wikitext")


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "wiki.raw"
    path.write_text(TEXT)
    return path


def test_articles_have_all_of_their_sections(wikitext, text):
    part = ["Theta .", "Iota .", "One sentence ."]
    assert wikitext.articles(text) == [FIRST + part, ["Kappa .", "Lambda ."]]


def test_sections_are_documents_if_they_have_two_sentences(wikitext, text):
    assert wikitext.sections(text) == [
        FIRST,
        ["Theta .", "Iota ."],
        ["Kappa .", "Lambda ."],
    ]


def test_documents_are_written_as_data_creation_reads_them(wikitext, tmp_path):
    wikitext.write([["a .", "b ."], ["c .", "d ."]], tmp_path / "text")
    assert (tmp_path / "text").read_text() == "a .\nb .\n\nc .\nd .\n"
