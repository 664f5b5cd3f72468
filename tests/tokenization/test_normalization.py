"""Basic tokenization, compared with a step-by-step oracle."""

import functools
import pickle
import random

import pytest

from bert_tf.tokenization import normalization
from bert_tf.tokenization.normalization import Normalizer
from tests.tokenization import tokenization_oracle as oracle

VARIANTS = pytest.mark.parametrize(
    ("do_lower_case", "strip_accents"), oracle.VARIANTS
)


@functools.cache
def split_characters():
    """Returns the assigned characters except ideographs, and all others."""
    assigned = normalization.assigned_characters() - oracle.CJK
    others = [c for c in oracle.ALL if c not in assigned]
    return sorted(assigned), others


def differing(assigned, others, *casing):
    """Returns the characters that get other words than from the oracle."""
    normalizer = Normalizer(*casing)

    def differs(texts):
        text = " ".join(texts)
        return normalizer(text).split() != oracle.basic_tokenize(text, *casing)

    texts = {c: oracle.contexts(c, many=True) for c in assigned}
    texts |= {c: oracle.contexts(c, many=False) for c in others}
    characters = list(texts)
    wrong = []
    for start in range(0, len(characters), 499):
        block = characters[start : start + 499]
        if differs([texts[c] for c in block]):
            # If none differs alone, report the whole block.
            wrong += [c for c in block if differs([texts[c]])] or block
    return [hex(ord(character)) for character in wrong]


@VARIANTS
def test_some_of_all_characters(do_lower_case, strip_accents):
    """The slow test_every_code_point_in_many_contexts has all."""
    assigned, others = split_characters()
    some = [c for c in assigned if ord(c) < 0x600] + assigned[::23]
    for first, last in oracle.CJK_BLOCKS:
        some += map(chr, (first - 1, first, last, last + 1))
    assert not differing(some, others[::1997], do_lower_case, strip_accents)


@pytest.mark.slow
@VARIANTS
def test_every_code_point_in_many_contexts(
    fidelity, pytestconfig, do_lower_case, strip_accents
):
    """Unassigned ones are sampled, except if uncased or for `make fidelity`."""
    assigned, others = split_characters()
    is_default = (do_lower_case, strip_accents) == (True, None)
    if not is_default and not pytestconfig.getoption("fidelity_rows"):
        others = others[::13]
    fidelity(
        "tokenization: U+0000 to U+10FFFF in 4 to 12 words each, lower-cased "
        "or not, with accents and without: code points with other words",
        len(differing(assigned, others, do_lower_case, strip_accents)),
        0,
    )


@VARIANTS
def test_hostile_texts(do_lower_case, strip_accents):
    normalizer = Normalizer(do_lower_case, strip_accents)
    for text in oracle.hostile_texts(random.Random(5), 2_003):
        words = oracle.basic_tokenize(text, do_lower_case, strip_accents)
        assert normalizer(text).split() == words, ascii(text)
        # Chunks of clean text can be normalized one by one.
        chunks = normalization.clean(text).split()
        parts = [w for chunk in chunks for w in normalizer(chunk).split()]
        assert parts == words, ascii(text)
        normalized, starts, ends = normalizer.align(text)
        assert normalized == normalizer(text), ascii(text)
        if "Σ" in text:
            continue  # It depends on its neighbors.
        for character, start, end in zip(normalized, starts, ends, strict=True):
            assert 0 <= start < end <= len(text)
            assert character in normalizer(text[start:end])


@pytest.mark.parametrize(
    ("text", "words", "casing"),
    [
        ("HeLLo!how  Are yoU?", "hello ! how are you ?", ()),
        ("a\x0bb a\x85b a\u200bb a\u00adb", "ab ab ab ab", ()),
        ("a\u2028b a\u3000b a\xa0b", "a b a b a b", ()),
        ("ah博推zz [MASK]", "ah 博 推 zz [ mask ]", ()),
        ("한국", "\u1112\u1161\u11ab\u1100\u116e\u11a8", ()),
        ("ß ﬁ ½ İIı a\u037eb a\u2260b", "ß ﬁ ½ iiı a ; b a = b", ()),
        ("ΟΔΟΣ ΟΔΟΣ.Α Σ", "οδος οδοσ . α σ", ()),
        # The combining classes are 226, 224 and 216.
        ("\U0001d16d\u302e\U0001d165", "\U0001d165\u302e\U0001d16d", ()),
        ("", "", ()),
        ("한 Ée\u0301 ≠", "한 Ée\u0301 ≠", (False, None)),
        ("ÉTÉ E\u0301 한", "été e\u0301 한", (True, False)),
        ("ÉTÉ E\u0301 Σ", "ETE E Σ", (False, True)),
    ],
)
def test_examples(text, words, casing):
    normalizer = pickle.loads(pickle.dumps(Normalizer(*casing)))
    assert normalizer(text).split() == list(filter(None, words.split(" ")))
