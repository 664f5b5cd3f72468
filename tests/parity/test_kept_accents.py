"""Lower-casing with accents kept (`--nostrip_accents`), as in Hugging Face.

The original strips accents whenever it lower-cases, so it cannot be compared.
`BertNormalizer(lowercase=True, strip_accents=False)` of `tokenizers` does the
same except for characters for which its rules differ from Google's: it has an
older Unicode and another block of ideographs. These characters are found with
text that is not lower-cased. Lower-casing adds one difference, the final sigma.
"""

import functools
import random
import unicodedata

import pytest

from bert_tf.tokenization.normalization import Normalizer
from bert_tf.tokenization.wordpiece import FullTokenizer
from tests.tokenization import tokenization_oracle as oracle

pytest.importorskip("tokenizers")

from tokenizers import normalizers, pre_tokenizers

SIGMA = "Σ"
# Jamo and syllables, compatibility and half-width forms.
HANGUL_BLOCKS = (
    (0x1100, 0x11FF),
    (0x3130, 0x318F),
    (0xA960, 0xA97F),
    (0xAC00, 0xD7A3),
    (0xD7B0, 0xD7FF),
    (0xFFA0, 0xFFDC),
)
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


@functools.cache
def huggingface(do_lower_case):
    """Returns a function that splits a text as Hugging Face does."""
    normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=True,
        strip_accents=False,
        lowercase=do_lower_case,
    )
    splitter = pre_tokenizers.BertPreTokenizer()

    def words(text):
        normalized = normalizer.normalize_str(text)
        return [word for word, _ in splitter.pre_tokenize_str(normalized)]

    return words


def ours(do_lower_case):
    normalizer = Normalizer(do_lower_case, strip_accents=False)
    return lambda text: normalizer(text).split()


def differing(characters, do_lower_case):
    """Yields the characters that the two tokenizers split differently.

    Each is alone, between letters and doubled; blocks of them are compared.
    """
    words, theirs = ours(do_lower_case), huggingface(do_lower_case)
    for start in range(0, len(characters), 499):
        block = [
            (c, f"{c} a{c}b {c}{c}") for c in characters[start : start + 499]
        ]
        text = " ".join(form for _, form in block)
        if words(text) != theirs(text):
            for character, form in block:
                if words(form) != theirs(form):
                    yield character


def assigned():
    unassigned = ("Cn", "Co", "Cs")
    return [c for c in oracle.ALL if unicodedata.category(c) not in unassigned]


@functools.cache
def hangul():
    characters = [
        chr(code_point)
        for first, last in HANGUL_BLOCKS
        for code_point in range(first, last + 1)
    ]
    return [c for c in characters if unicodedata.category(c) != "Cn"]


def korean_texts(count):
    """Yields words of syllables and jamo, with Latin letters."""
    draw = random.Random(47)
    others = "ABcÉé\u0301.,!ㅋㅠ 123漢字"
    for _ in range(count):
        text = "".join(
            draw.choice(hangul() if draw.random() < 0.7 else others)
            for _ in range(draw.randrange(1, 23))
        )
        yield draw.choice([text, unicodedata.normalize("NFD", text)])


def test_hangul_is_hugging_faces():
    assert not [*differing(hangul(), do_lower_case=True)]
    words, theirs = ours(True), huggingface(True)
    for text in korean_texts(1_009):
        assert words(text) == theirs(text), ascii(text)


def test_syllables_stay_as_they_are():
    """Hangul is decomposed only where accents are stripped."""
    normalizer = Normalizer(True, strip_accents=False)
    for text in korean_texts(503):
        kept = [c for c in text if unicodedata.name(c, "").startswith("HANGUL")]
        assert [c for c in normalizer(text) if c in kept] == kept
    for syllable in hangul():
        if "SYLLABLE" in unicodedata.name(syllable):
            stripped = Normalizer(True)(syllable)
            assert stripped == unicodedata.normalize("NFD", syllable)


def test_the_graph_splits_hangul_alike():
    pytest.importorskip("tensorflow_text")
    import tensorflow as tf

    from bert_tf.tokenization.graph import BertTokenizer

    texts = [*korean_texts(307)]
    words = sorted({c for t in texts for w in huggingface(True)(t) for c in w})
    vocab = [*SPECIAL, *words, *(f"##{character}" for character in words)]
    python = FullTokenizer(vocab, True, strip_accents=False)
    expected = [
        [
            vocab.index(piece if n == 0 else f"##{piece}")
            for word in huggingface(True)(text)
            for n, piece in enumerate(word)
        ]
        for text in texts
    ]
    assert [python.encode(text) for text in texts] == expected
    layer = BertTokenizer(vocab, True, strip_accents=False)
    assert layer.tokenize(tf.constant(texts)).to_list() == expected
    again = BertTokenizer.from_config(layer.get_config())
    assert again.tokenize(texts[0]).numpy().tolist() == expected[0]


@pytest.mark.slow
def test_every_character_that_is_cleaned_and_split_alike():
    characters = assigned()
    other_rules = {*differing(characters, do_lower_case=False)}
    assert len(other_rules) < 1_000  # of 290,000
    alike = [c for c in characters if c not in other_rules]
    assert [*differing(alike, do_lower_case=True)] == [SIGMA]
