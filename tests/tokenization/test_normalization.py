"""Basic tokenization against an oracle that goes step by step."""

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
def sample():
    """All assigned characters but ideographs, and some of all the others."""
    assigned = normalization.assigned_characters() - oracle.CJK
    others = [c for c in oracle.ALL if c not in assigned]
    return sorted(assigned) + others[::97]


def differing(characters, form, do_lower_case, strip_accents):
    """The characters c for which `form(c)` is not what the oracle makes it."""
    normalizer = Normalizer(do_lower_case, strip_accents)

    def differs(text):
        words = oracle.basic_tokenize(text, do_lower_case, strip_accents)
        return normalizer(text).split() != words

    wrong = []
    for start in range(0, len(characters), 499):
        block = characters[start : start + 499]
        if differs(" ".join(map(form, block))):
            # Should none differ by itself, all do.
            wrong += [c for c in block if differs(form(c))] or block
    return [hex(ord(character)) for character in wrong]


@VARIANTS
def test_every_assigned_character(do_lower_case, strip_accents):
    assert not differing(
        sample(),
        lambda c: f"{c} a{c}b {c}{c}",
        do_lower_case,
        strip_accents,
    )


@pytest.mark.slow
@VARIANTS
def test_every_code_point_in_many_contexts(
    fidelity, do_lower_case, strip_accents
):
    assigned = normalization.assigned_characters() - oracle.CJK
    fidelity(
        "tokenization: U+0000 to U+10FFFF in 4 to 12 words each, lower-cased "
        "or not, with accents and without: code points with other words",
        len(
            differing(
                oracle.ALL,
                lambda c: oracle.contexts(c, many=c in assigned),
                do_lower_case,
                strip_accents,
            )
        ),
        0,
    )


@pytest.mark.parametrize(
    "form", ["AΣ{}A", "aΣ{}", "{}Σ", "A{}Σ", "{}AΣ{}.{}a", "1{}Σ{}1"]
)
def test_final_sigma_beside_every_kind_of_character(form):
    characters = sample()
    some = [c for c in characters if ord(c) < 0x2100] + characters[::23]
    assert not differing(
        some,
        lambda c: form.replace("{}", c),
        do_lower_case=True,
        strip_accents=None,
    )


@VARIANTS
def test_hostile_texts(do_lower_case, strip_accents):
    normalizer = Normalizer(do_lower_case, strip_accents)
    for text in oracle.hostile_texts(random.Random(5), 8_009):
        words = oracle.basic_tokenize(text, do_lower_case, strip_accents)
        assert normalizer(text).split() == words, ascii(text)


@VARIANTS
def test_chunks_of_clean_text_are_independent(do_lower_case, strip_accents):
    normalizer = Normalizer(do_lower_case, strip_accents)
    for text in oracle.hostile_texts(random.Random(7), 2_003):
        words = normalizer(text).split()
        chunks = normalization.clean(text).split()
        parts = [w for chunk in chunks for w in normalizer(chunk).split()]
        assert parts == words, ascii(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("HeLLo!how  Are yoU?", "hello ! how are you ?"),
        ("a\x0bb a\x85b a\u200bb a\u00adb", "ab ab ab ab"),
        ("a\u2028b a\u2029b a\u3000b a\xa0b", "a b a b a b a b"),
        ("ah博推zz", "ah 博 推 zz"),
        ("한국", "\u1112\u1161\u11ab\u1100\u116e\u11a8"),
        ("[MASK]", "[ mask ]"),
        ("ß ﬁ … ½ ♡♡", "ß ﬁ … ½ ♡♡"),
        ("a\u037eb a\u2260b a\u1fefb", "a ; b a = b a ` b"),
        ("ΟΔΟΣ ΟΔΟΣ.Α Σ", "οδος οδοσ . α σ"),
        ("\U0001d16d\u302e\U0001d165", "\U0001d165\u302e\U0001d16d"),
        ("İIı", "iiı"),
        ("", ""),
    ],
)
def test_uncased_examples(text, words):
    # U+1D165 has class 216, U+302E 224, U+1D16D 226.
    words = [w for w in words.split(" ") if w]
    assert Normalizer()(text).split() == words


def test_cased_text_is_neither_composed_nor_decomposed():
    assert Normalizer(False)("한 Ée\u0301 ≠").split() == [
        "한",
        "Ée\u0301",
        "≠",
    ]


def test_accents_can_be_kept_in_lower_case():
    kept = Normalizer(True, strip_accents=False)
    assert kept("ÉTÉ E\u0301 한").split() == ["été", "e\u0301", "한"]


def test_accents_can_go_from_cased_text():
    stripped = Normalizer(False, strip_accents=True)
    assert stripped("ÉTÉ E\u0301 Σ").split() == ["ETE", "E", "Σ"]


@VARIANTS
def test_align_normalizes_alike_and_stays_inside(do_lower_case, strip_accents):
    normalizer = Normalizer(do_lower_case, strip_accents)
    for text in oracle.hostile_texts(random.Random(11), 4_001):
        normalized, starts, ends = normalizer.align(text)
        assert normalized == normalizer(text), ascii(text)
        assert len(normalized) == len(starts) == len(ends)
        for start, end in zip(starts, ends, strict=True):
            assert 0 <= start < end <= len(text)


@VARIANTS
def test_align_points_at_the_source(do_lower_case, strip_accents):
    normalizer = Normalizer(do_lower_case, strip_accents)
    for text in oracle.hostile_texts(random.Random(13), 4_001):
        text = text.replace("Σ", "S")  # the only one that needs its context
        normalized, starts, ends = normalizer.align(text)
        for character, start, end in zip(normalized, starts, ends, strict=True):
            assert character in normalizer(text[start:end])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Café au", [0, 1, 2, 3]),
        ("Cafe\u0301\u0327 au", [0, 1, 2, (3, 6)]),
        ("x!\u0301", [0, None, (1, 3), None]),
        ("a\u00ad\u0301b", [0, 3]),
        ("\u0301a", [1]),
        ("한", [0, 0, 0]),
    ],
)
def test_align_examples(text, expected):
    _, starts, ends = Normalizer().align(text)
    for index, where in enumerate(expected):
        if where is not None:
            span = where if isinstance(where, tuple) else (where, where + 1)
            assert (starts[index], ends[index]) == span


@pytest.mark.parametrize("do_lower_case", [True, False])
def test_changes_hold_the_whole_table(do_lower_case):
    normalizer = Normalizer(do_lower_case)
    changes = normalizer.changes()
    for character in oracle.ALL[::11]:
        replacement = changes.get(ord(character), character)
        assert replacement == normalizer.replacement(character)


def test_normalizer_travels_to_other_processes():
    normalizer = pickle.loads(pickle.dumps(Normalizer(True, False)))
    assert normalizer("É!") == "é ! "
