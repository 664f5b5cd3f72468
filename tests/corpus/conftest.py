"""Fixtures of the tests of data creation."""

import pytest

from tests import text_corpora


@pytest.fixture
def vocab_file(tmp_path):
    """A vocabulary with the words of `text_corpora`."""
    path = tmp_path / "vocab.txt"
    words = text_corpora.SPECIALS + text_corpora.WORDS
    path.write_text("\n".join(words))
    return path
