"""Pieces, words, and what is between them."""

import numpy as np
import pytest
from small_attention import NASTY, TEXT, TEXT_B, VOCAB, attention, passage

from bert_tf.errors import InputError
from bert_tf.tokenization.packing import pack
from bert_tf.tokenization.wordpiece import FullTokenizer
from bert_tf.visualization.attention import (
    as_shown,
    direction,
    join_pieces,
    read_passage,
)


@pytest.mark.parametrize("text_b", [None, TEXT_B])
def test_a_passage_has_the_form_of_training(text_b):
    tokenizer = FullTokenizer(VOCAB)
    found = read_passage(tokenizer, TEXT, text_b)
    input_ids, segment_ids = pack(
        tokenizer.encode(TEXT),
        None if text_b is None else tokenizer.encode(text_b),
        99,
        tokenizer.vocab["[CLS]"],
        tokenizer.vocab["[SEP]"],
    )
    assert list(found.input_ids) == input_ids
    assert list(found.segment_ids) == segment_ids
    assert [VOCAB[i] for i in found.input_ids] == list(found.pieces)


def test_words_are_slices_of_the_text():
    words = passage("Café-unbreakable !", "[UNK] zzz").words
    assert [(w.text, w.end - w.first) for w in words] == [
        ("[CLS]", 1),
        ("Café", 1),
        ("-", 1),
        ("unbreakable", 3),
        ("!", 1),
        ("[SEP]", 1),
        *(("[", 1), ("UNK", 1), ("]", 1)),  # No special token in a text.
        ("zzz", 1),
        ("[SEP]", 1),
    ]
    assert [w.follows_space for w in words[1:5]] == [True, False, False, True]
    assert [w.is_special for w in words].count(True) == 3
    assert [w.segment for w in words] == [0] * 6 + [1] * 5


@pytest.mark.parametrize("text", [TEXT, NASTY, "東京 שלום", " \t cat \n"])
def test_every_token_is_in_one_word(text):
    found = passage(text, TEXT_B)
    places = [p for w in found.words for p in range(w.first, w.end)]
    assert places == list(range(len(found.pieces)))
    starts = {word.first for word in found.words}
    assert starts == {
        n for n, x in enumerate(found.pieces) if not x.startswith("##")
    }


def test_a_mask_is_one_token():
    found = passage("the [MASK]able[MASK] cat")
    assert found.pieces[1:5] == ("the", "[MASK]", "[UNK]", "[MASK]")
    assert [w.text for w in found.words[1:5]] == [
        *("the", "[MASK]", "able", "[MASK]"),
    ]
    assert [w.follows_space for w in found.words[1:6]] == [
        *(True, True, False, False, True),
    ]
    assert not any(w.is_special for w in found.words[1:6])


@pytest.mark.parametrize("text", ["", "  ", "\u200b"])
@pytest.mark.parametrize("is_second", [False, True])
def test_refuses_an_empty_text(text, is_second):
    texts = ("cat", text) if is_second else (text, "cat")
    with pytest.raises(InputError, match="at least one word; got"):
        passage(*texts)


def test_refuses_a_text_that_is_too_long():
    tokenizer = FullTokenizer(VOCAB)
    text, text_b = "cat " * 7, "sat " * 4
    assert len(read_passage(tokenizer, text, text_b, 14).pieces) == 14
    with pytest.raises(InputError, match=r"has 14 tokens .* is 13"):
        read_passage(tokenizer, text, text_b, 13)


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


def test_joined_rows_sum_to_one():
    found = attention(passage(TEXT, TEXT_B))
    joined = join_pieces(found.weights, found.passage.words)
    assert joined.shape == (3, 5, 19, 19)
    np.testing.assert_allclose(found.weights.sum(-1), 1, atol=1e-5)
    np.testing.assert_allclose(joined.sum(-1), 1, atol=1e-5)


def test_joining_sums_columns_and_averages_rows():
    found = attention(passage("unbreakable cat"), 2, 3)
    # [CLS] un ##break ##able cat [SEP]
    joined = join_pieces(found.weights, found.passage.words)
    w = found.weights[1, 2]
    ours = joined[1, 2]
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
    # The first cat to the second "it", wherever they are now.
    first = names.index("cat")
    second = len(names) - 1 - names[::-1].index("it")
    pieces = found.passage.pieces
    there = len(pieces) - 1 - pieces[::-1].index("it")
    np.testing.assert_array_equal(
        weights[:, :, first, second],
        found.weights[:, :, pieces.index("cat"), there],
    )
    assert [w.segment for w in words] == sorted(w.segment for w in words)
