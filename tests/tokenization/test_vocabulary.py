"""Learned vocabularies have the requested size and are reproducible."""

import collections
import random

import pytest

from bert_tf.errors import InputError
from bert_tf.tokenization import vocabulary_file
from bert_tf.tokenization.normalization import Normalizer
from bert_tf.tokenization.vocabulary_file import (
    SPECIAL_TOKENS,
    count_words,
    learn_vocabulary,
)
from bert_tf.tokenization.wordpiece import FullTokenizer
from tests.tokenization import tokenization_oracle as oracle

SYLLABLES = ["ka", "lo", "mi", "ten", "ra", "šu", "한국", "어", "É", "x"]


def corpus(num_words=5_003, seed=41):
    """Words of a few syllables, with many ties in their counts."""
    rng = random.Random(seed)
    ends = [" ", " ", ", ", ".\n", " 中文 "]
    return "".join(
        "".join(rng.choices(SYLLABLES, k=rng.randint(1, 4))) + rng.choice(ends)
        for _ in range(num_words)
    )


@pytest.fixture(scope="module")
def words():
    return count_words([corpus()], Normalizer())


@pytest.mark.parametrize(
    ("pending_chunks", "do_lower_case", "strip_accents"),
    [(5, True, None), (10**6, False, None)],
)
def test_words_are_those_of_basic_tokenization(
    monkeypatch, do_lower_case, strip_accents, pending_chunks
):
    monkeypatch.setattr(vocabulary_file, "_MAX_PENDING_CHUNKS", pending_chunks)
    texts = [*oracle.hostile_texts(random.Random(43), 701), corpus(), ""]
    expected = collections.Counter(
        word
        for text in texts
        for word in oracle.basic_tokenize(text, do_lower_case, strip_accents)
    )
    texts.append("b" * 64)  # Words of over 63 characters are ignored.
    normalizer = Normalizer(do_lower_case, strip_accents)
    assert count_words(iter(texts), normalizer) == expected


@pytest.mark.parametrize(
    ("vocab_size", "num_unused_tokens"), [(61, 7), (401, 0)]
)
def test_the_vocabulary_has_the_requested_size(
    words, vocab_size, num_unused_tokens
):
    vocab = learn_vocabulary(
        words, vocab_size, num_unused_tokens=num_unused_tokens
    )
    assert len(vocab) == len(set(vocab)) == vocab_size
    unused = [f"[unused{i}]" for i in range(num_unused_tokens)]
    assert vocab[: 5 + num_unused_tokens] == [*SPECIAL_TOKENS, *unused]


def test_a_vocabulary_larger_than_the_text_allows(words):
    with pytest.raises(InputError, match="vocab_size is 100003") as raised:
        learn_vocabulary(words, 100_003)
    most = int(str(raised.value).split("only ")[1].split(" ")[0])
    assert len(learn_vocabulary(words, most)) == most
    with pytest.raises(InputError, match=f"give only {most} tokens"):
        learn_vocabulary(words, most + 1)
    with pytest.raises(InputError, match="unused tokens, 12; got 12"):
        learn_vocabulary(words, 12, num_unused_tokens=7)


def test_the_vocabulary_spells_the_text(words):
    vocab = learn_vocabulary(words, 211)
    assert vocab == learn_vocabulary(dict(reversed(words.items())), 211)
    tokens = FullTokenizer(vocab).tokenize(corpus())
    assert "[UNK]" not in tokens
    assert any(len(token) > 6 for token in tokens)
    letters = "".join(token.removeprefix("##") for token in tokens)
    assert letters == "".join(Normalizer()(corpus()).split())
    # A final consonant starts no word; ideographs and periods are words.
    assert {"##\u11ab", "中", "文", ".", "\u1112"} <= set(vocab)
    assert not {"\u11ab", "##中", "##.", "##,"} & set(vocab)


def test_the_alphabet_has_the_most_frequent_characters_that_fit():
    counts = {"zb": 9, "b": 2, "za": 5, "dd": 3, "e": 3, "f": 1}
    vocab = learn_vocabulary(counts, 9, limit_alphabet=2)
    assert vocab[5:] == ["b", "z", "##b", "zb"]
    with pytest.raises(InputError, match="only 9 tokens"):
        learn_vocabulary(counts, 10, limit_alphabet=2)
    assert learn_vocabulary(counts, 8)[5:] == ["b", "z", "##b"]


def test_min_frequency_applies_to_characters_and_pairs():
    counts = {"ab": 3, "cd": 2, "e": 1}
    for min_frequency, size in (3, 8), (2, 11), (1, 12):
        with pytest.raises(InputError, match=f"only {size} tokens"):
            learn_vocabulary(counts, 99, min_frequency=min_frequency)


def test_the_most_frequent_pair_is_learned_first():
    counts = {"abc": 7, "bc": 5, "abd": 4}
    # 11 times a-b, 7 times b-c inside, 5 times b-c at the start of a word.
    assert learn_vocabulary(counts, 13)[5:] == [
        *["a", "b", "##b", "##c", "##d"],
        *["ab", "abc", "bc"],
    ]
