"""Vocabulary files."""

import pytest

from bert_tf.errors import InputError
from bert_tf.tokenization.vocabulary_file import (
    SPECIAL_TOKENS,
    load_vocab,
    require_fit,
)


@pytest.mark.parametrize(
    ("content", "tokens"),
    [
        (
            "[UNK]\r\n a\t\n\u2028\nb\x0bc\n##\u2028\nz".encode(),
            ["[UNK]", "a", "", "b\x0bc", "##", "z"],
        ),
        (b"\xef\xbb\xbf[UNK]\n\nb\n", ["[UNK]", "", "b"]),
        (b"[UNK]\n\nb\n\xe2\x80\xa8", ["[UNK]", "", "b"]),
    ],
)
def test_lines_of_vocabularies(write, content, tokens):
    path = write(content)
    for vocabulary in (path, f"file://{path}", tokens):
        vocab = load_vocab(vocabulary)
        assert list(vocab.items()) == [(t, n) for n, t in enumerate(tokens)]


def test_names_an_empty_token(write, caplog):
    for vocabulary in (write(b"[UNK]\n\nb\n"), ["[UNK]", "", "b"]):
        caplog.clear()
        load_vocab(vocabulary)
        [record] = caplog.records
        assert ":2: the token is empty and never occurs" in record.getMessage()
    caplog.clear()
    # The Chinese vocabulary of Google has one, U+2028, at this place.
    load_vocab([*map(str, range(343)), "", "a"])
    load_vocab(write(b"[UNK]\nb\n\n\n"))
    assert not caplog.records


def test_a_vocabulary_has_to_fit_the_model(caplog):
    tokens = [*SPECIAL_TOKENS, "a"]
    require_fit(load_vocab(tokens), 6, "vocab.txt")
    assert not caplog.records
    require_fit(load_vocab(tokens), 99, "vocab.txt")
    assert "6 tokens, fewer than the model's vocab_size of 99" in caplog.text
    with pytest.raises(InputError, match=r"^vocab\.txt: has 6 .* of 5\.$"):
        require_fit(load_vocab(tokens), 5, "vocab.txt")
    tokens.remove("[MASK]")
    with pytest.raises(InputError, match=r"vocab.txt .* not \[MASK\]\."):
        require_fit(load_vocab(tokens), 99, "vocab.txt")
