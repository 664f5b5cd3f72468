"""The tokenizer in Python, and packing."""

import pickle
import random
import re

import numpy as np
import pytest

from bert_tf.errors import InputError
from bert_tf.tokenization import wordpiece
from bert_tf.tokenization.packing import pack, truncated_lengths
from bert_tf.tokenization.wordpiece import FullTokenizer, Token
from tests.tokenization import tokenization_oracle as oracle

# The vocabulary of the original's own test, and tokens for hostile texts.
GOOGLE = ["[UNK]", "[CLS]", "[SEP]", "want", "##want", "##ed"]
GOOGLE += ["wa", "un", "runn", "##ing", ","]
MORE = "a ##a b ##b é ##é e ##e σ ##σ ς ##ς 中 ab ##ab Σ ##Σ [ ] mask ## # ."


def test_example_of_the_original():
    tokenizer = pickle.loads(pickle.dumps(FullTokenizer(GOOGLE)))
    tokens = tokenizer.tokenize("UNwant\u00e9d,running")
    assert tokens == ["un", "##want", "##ed", ",", "runn", "##ing"]
    assert tokenizer.convert_tokens_to_ids(tokens) == [7, 4, 5, 10, 8, 9]
    assert tokenizer.convert_ids_to_tokens([7, 4, 5, 10, 8, 9]) == tokens
    assert tokenizer.encode("UNwant\u00e9d,running") == [7, 4, 5, 10, 8, 9]
    assert tokenizer.tokenize("unwantedX un") == ["[UNK]", "un"]
    for text in ("", " \t\n", "\0\u200b"):
        assert tokenizer.tokenize(text) == tokenizer.encode(text) == []
        assert tokenizer.tokenize_with_offsets(text) == []


@pytest.mark.parametrize(("do_lower_case", "strip_accents"), oracle.VARIANTS)
def test_hostile_texts(do_lower_case, strip_accents):
    casing = do_lower_case, strip_accents
    tokenizer = FullTokenizer([*GOOGLE, *MORE.split()], *casing)
    for text in oracle.hostile_texts(random.Random(17), 2_003):
        expected = oracle.tokenize(text, tokenizer.vocab, *casing)
        ids = tokenizer.convert_tokens_to_ids(expected)
        assert tokenizer.tokenize(text) == expected, ascii(text)
        assert tokenizer.encode(text) == ids, ascii(text)
        tokens = tokenizer.tokenize_with_offsets(text)
        assert [token.text for token in tokens] == expected, ascii(text)
        assert [token.id for token in tokens] == ids


def test_an_example_of_offsets():
    text = "  Cafe\u0301 RÉSU\u00adME\u0301! 한 \u2603\u2603"
    # Combining classes 216 and 224.
    low, high = "\U0001d165", "\u302e"
    vocab = ["[UNK]", "cafe", "re", "##sume", "ᄒ", "##ᅡ", "##ᆫ", "!"]
    tokenizer = FullTokenizer([*vocab, "a", f"##{low}{high}"])
    tokens = tokenizer.tokenize_with_offsets(text)
    assert [(t.text, text[t.start : t.end]) for t in tokens] == [
        ("cafe", "Cafe\u0301"),
        ("re", "RÉ"),
        ("##sume", "SU\u00adME\u0301"),
        ("!", "!"),
        ("\u1112", "한"),
        ("##\u1161", "한"),
        ("##\u11ab", "한"),
        ("[UNK]", "\u2603\u2603"),
    ]
    tokens = tokenizer.tokenize_with_offsets(f"a{high}{low}")
    assert tokens == [Token("a", 8, 0, 1), Token(f"##{low}{high}", 9, 1, 3)]


def test_caches_are_bounded(monkeypatch):
    monkeypatch.setattr(wordpiece, "_CACHE_ENTRIES", 3)
    tokenizer = FullTokenizer(GOOGLE)
    text = " ".join(["want", "wa,", "un", "running", "x" * 99] * 7)
    ids = tokenizer.convert_tokens_to_ids(tokenizer.tokenize(text))
    assert tokenizer.encode(text) == tokenizer.encode(text) == ids
    assert 0 < len(tokenizer._ids_of_chunk) <= 3
    assert max(map(len, tokenizer._ids_of_chunk)) < 99


@pytest.mark.parametrize(
    ("vocabulary", "message"),
    [
        (b"[UNK]\nab\nc\nab \n", r"a.txt:4: the token 'ab' is also on line 2"),
        (b"\n\n", "a.txt: the vocabulary is empty"),
        (b"[UNK]\nok\n\xc3(\n", r"a\.txt:3: byte 0xc3 is not UTF-8"),
        (b"a\nb\n", r"a.txt has 2 tokens, but not \[UNK\]"),
        (["[UNK]", "a", "a"], "list of tokens:3: the token 'a' is also on"),
        ("file:///nowhere/vocab.txt", "Cannot read file:///nowhere/vocab.txt"),
    ],
)
def test_unusable_vocabularies(write, vocabulary, message):
    if isinstance(vocabulary, bytes):
        vocabulary = write(vocabulary)
    with pytest.raises(InputError, match=message):
        FullTokenizer(vocabulary)


def test_a_word_is_not_a_boolean():
    with pytest.raises(InputError, match=r"do_lower_case must be .*'false'"):
        FullTokenizer(["[UNK]"], do_lower_case="false")


def test_unknown_tokens_and_ids():
    """Their errors are also those of the original, KeyError and IndexError."""
    tokenizer = FullTokenizer(["[UNK]", "a"])
    assert tokenizer.convert_tokens_to_ids(["a", "[UNK]"]) == [1, 0]
    assert tokenizer.convert_ids_to_tokens([1, 0]) == ["a", "[UNK]"]
    assert tokenizer.convert_ids_to_tokens([]) == []
    message = r"^'zz' is not a token of the vocabulary\. encode .*\[UNK\]"
    for expected in (KeyError, InputError):
        with pytest.raises(expected) as caught:
            tokenizer.convert_tokens_to_ids(["a", "zz"])
        assert re.match(message, str(caught.value))
    for wrong in (-1, 2):
        for expected in (IndexError, InputError):
            with pytest.raises(expected, match=f"from 0 to 1, .* got {wrong}"):
                tokenizer.convert_ids_to_tokens([0, wrong, 1])


def test_arguments_of_the_wrong_type():
    tokenizer = FullTokenizer(["[UNK]", "a"])
    for method in (
        tokenizer.tokenize,
        tokenizer.encode,
        tokenizer.tokenize_with_offsets,
    ):
        with pytest.raises(InputError, match=r"^A text must be a string.*$"):
            method(b"a")
    with pytest.raises(InputError, match=r"^Tokens must be a list of.*$"):
        tokenizer.convert_tokens_to_ids([["a"]])
    for value in ("a", [0.5]):
        with pytest.raises(InputError, match=r"^Ids must be a list of.*$"):
            tokenizer.convert_ids_to_tokens(value)


def test_masks_of_ids():
    tokens = ["[PAD]", "[unused9]", "[", "]", "a", "##b", "", "##", "[a", "[]"]
    continuation = wordpiece.continuation_mask(tokens)
    replaceable = wordpiece.replaceable_ids(tokens)
    assert continuation.dtype == replaceable.dtype == np.bool_
    assert list(np.flatnonzero(continuation)) == [5, 7]
    assert list(np.flatnonzero(~replaceable)) == [0, 1, 6]


def truncated_by_loop(length_a, length_b, room):
    """The original's loop."""
    while length_a + length_b > room:
        if length_a > length_b:
            length_a -= 1
        else:
            length_b -= 1
    return length_a, length_b


def test_truncated_lengths_are_those_of_the_loop():
    a, b, room = np.indices((17, 17, 23)).reshape(3, -1)
    expected = list(map(truncated_by_loop, a, b, room))
    kept = np.transpose(truncated_lengths(a, b, room))
    np.testing.assert_array_equal(kept, expected)


@pytest.mark.parametrize(
    ("ids_a", "ids_b", "length", "input_ids", "segment_ids"),
    [
        ([5, 6], [7], 9, [2, 5, 6, 3, 7, 3], [0, 0, 0, 0, 1, 1]),
        ([5, 6], None, 9, [2, 5, 6, 3], [0, 0, 0, 0]),
        ([5], [], 9, [2, 5, 3, 3], [0, 0, 0, 1]),
        ([5, 6, 7], None, 2, [2, 3], [0, 0]),
        ([5, 6, 7], [8, 9], 6, [2, 5, 6, 3, 8, 3], [0, 0, 0, 0, 1, 1]),
        ([5], [8], 3, [2, 3, 3], [0, 0, 1]),
    ],
)
def test_packing(ids_a, ids_b, length, input_ids, segment_ids):
    packed = pack(ids_a, ids_b, length, cls_id=2, sep_id=3)
    assert packed == (input_ids, segment_ids)
    too_small = 1 if ids_b is None else 2
    with pytest.raises(InputError, match=f"got {too_small}"):
        pack(ids_a, ids_b, too_small, cls_id=2, sep_id=3)


def test_words_are_appended():
    tokenizer = FullTokenizer(GOOGLE)
    larger = tokenizer.with_words(["Éclair", "want", " wanted", "eclair"])
    assert larger.vocabulary == (*GOOGLE, "eclair", "wanted")
    tokens = larger.tokenize("ÉCLAIR unwanted")
    assert tokens == ["eclair", "un", "##want", "##ed"]
    for word in ("ab-cd", "中文", "\u200b", "##ad", "e" * 201):
        with pytest.raises(InputError, match="A word must be one word for"):
            tokenizer.with_words([word])
