"""Vocabularies are of the size asked for, the same each time, and usable."""

import collections
import os
import random
import subprocess
import sys

import pytest

from bert_tf.errors import InputError
from bert_tf.tokenization import vocabulary
from bert_tf.tokenization.normalization import Normalizer
from bert_tf.tokenization.vocabulary import count_words, learn_vocabulary
from bert_tf.tokenization.wordpiece import SPECIAL_TOKENS, FullTokenizer
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


@pytest.mark.parametrize(("do_lower_case", "strip_accents"), oracle.VARIANTS)
def test_counts_are_those_of_basic_tokenization(do_lower_case, strip_accents):
    texts = [*oracle.hostile_texts(random.Random(43), 701), corpus(), ""]
    expected = collections.Counter(
        word
        for text in texts
        for word in oracle.basic_tokenize(text, do_lower_case, strip_accents)
    )
    normalizer = Normalizer(do_lower_case, strip_accents)
    assert count_words(iter(texts), normalizer) == expected


def test_counting_forgets_chunks_in_time(monkeypatch):
    expected = count_words([corpus()], Normalizer())
    monkeypatch.setattr(vocabulary, "_MAX_PENDING_CHUNKS", 5)
    lines = corpus().split("\n")
    assert count_words(lines, Normalizer()) == expected


def test_very_long_words_teach_nothing():
    counts = count_words(["a" * 63, "b" * 64], Normalizer())
    assert counts == {"a" * 63: 1}


@pytest.mark.parametrize("vocab_size", [61, 97, 211, 401])
@pytest.mark.parametrize("num_unused_tokens", [0, 7])
def test_exactly_the_size_asked_for(words, vocab_size, num_unused_tokens):
    vocab = learn_vocabulary(
        words, vocab_size, num_unused_tokens=num_unused_tokens
    )
    assert len(vocab) == len(set(vocab)) == vocab_size
    head = [
        *SPECIAL_TOKENS,
        *(f"[unused{i}]" for i in range(num_unused_tokens)),
    ]
    assert vocab[: len(head)] == head
    assert vocab[0] == "[PAD]"


def test_more_than_the_words_give(words):
    with pytest.raises(InputError, match="ask for at most") as raised:
        learn_vocabulary(words, 100_003)
    most = int(str(raised.value).split("at most ")[1].split(",")[0])
    assert len(learn_vocabulary(words, most)) == most
    with pytest.raises(InputError, match=f"at most {most}"):
        learn_vocabulary(words, most + 1)


def test_no_words():
    with pytest.raises(InputError, match=r"to learn from. Received: none"):
        learn_vocabulary({}, 17)


def test_no_frequent_words():
    with pytest.raises(InputError, match="which give 5 that"):
        learn_vocabulary({"a": 1}, 17)


@pytest.mark.parametrize(("size", "num_unused"), [(5, 0), (12, 7), (-1, 0)])
def test_no_room(words, size, num_unused):
    with pytest.raises(InputError, match=f"Received: {size}"):
        learn_vocabulary(words, size, num_unused_tokens=num_unused)


def test_what_is_learnt_spells_the_text(tmp_path, words):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(learn_vocabulary(words, 211)), encoding="utf-8")
    tokenizer = FullTokenizer(path)
    tokens = tokenizer.tokenize(corpus())
    assert "[UNK]" not in tokens
    assert any(len(token) > 6 for token in tokens)
    letters = "".join(token.removeprefix("##") for token in tokens)
    assert letters == "".join(Normalizer()(corpus()).split())


def test_pieces_that_no_word_can_use_are_not_learnt(words):
    # A final consonant starts no word; ideographs and stops are words.
    vocab = learn_vocabulary(words, 211)
    assert "##\u11ab" in vocab
    assert "\u11ab" not in vocab
    assert {"中", "文", ".", "\u1112"} <= set(vocab)
    assert not {"##中", "##.", "##,"} & set(vocab)


@pytest.mark.parametrize(
    ("arguments", "has", "has_not"),
    [
        ((True, None), ["\u1112", "##e"], ["한", "é", "##É"]),
        ((True, False), ["한", "##é"], ["\u1112", "##e\u0301", "##É"]),
        ((False, None), ["한", "##É"], ["\u1112", "##é"]),
    ],
)
def test_vocabularies_follow_the_normalization(arguments, has, has_not):
    counts = count_words([corpus()], Normalizer(*arguments))
    vocab = set(learn_vocabulary(counts, 211))
    assert vocab.issuperset(has)
    assert vocab.isdisjoint(has_not)


def test_the_alphabet_is_the_most_frequent_characters():
    counts = {"ab": 9, "b": 2, "ac": 5, "dd": 3, "e": 3, "f": 1}
    vocab = learn_vocabulary(counts, 9, limit_alphabet=2)
    assert vocab[5:] == ["a", "b", "##b", "ab"]
    with pytest.raises(InputError, match="at most 9"):
        learn_vocabulary(counts, 10, limit_alphabet=2)


def test_the_alphabet_is_cut_to_what_fits():
    counts = {"ab": 9, "b": 2, "ac": 5, "dd": 3, "e": 3, "f": 1}
    assert learn_vocabulary(counts, 8)[5:] == ["a", "b", "##b"]


def test_min_frequency_holds_for_characters_and_pairs():
    counts = {"ab": 3, "cd": 2, "e": 1}
    with pytest.raises(InputError, match="at most 8,"):
        learn_vocabulary(counts, 99, min_frequency=3)
    with pytest.raises(InputError, match="at most 11,"):
        learn_vocabulary(counts, 99, min_frequency=2)
    with pytest.raises(InputError, match="at most 12,"):
        learn_vocabulary(counts, 99, min_frequency=1)


def test_the_most_frequent_pair_is_learnt_first():
    counts = {"abc": 7, "bc": 5, "abd": 4}
    # 11 times a-b, 7 times b-c inside, 5 times b-c at the start of a word.
    assert learn_vocabulary(counts, 13)[5:] == [
        *["a", "b", "##b", "##c", "##d"],
        *["ab", "abc", "bc"],
    ]


def test_same_words_in_another_order(words):
    backwards = dict(reversed(words.items()))
    assert learn_vocabulary(backwards, 397) == learn_vocabulary(words, 397)


PROGRAM = """
from bert_tf.tokenization.vocabulary import count_words, learn_vocabulary
from bert_tf.tokenization.normalization import Normalizer
from tests.tokenization.test_learning import corpus
print(ascii(learn_vocabulary(count_words([corpus()], Normalizer()), 397)))
"""


@pytest.mark.parametrize("threads", ["1", "2", "3"])
def test_other_processes_and_threads_learn_the_same(words, threads):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "RAYON_NUM_THREADS": threads, "PYTHONPATH": "."},
        cwd=os.path.dirname(vocabulary.__file__) + "/../..",
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == ascii(learn_vocabulary(words, 397))
