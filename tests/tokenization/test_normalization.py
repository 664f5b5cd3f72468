"""Basic tokenization, compared with a step-by-step oracle."""

import functools
import pickle
import random

import numpy as np
import pytest

from bert_tf.tokenization import normalization
from bert_tf.tokenization.normalization import (
    CASED,
    DELETED,
    ITSELF,
    NOTHING,
    PAGE_SIZE,
    SKIPPED,
    WITHIN_RUN,
    Normalizer,
    Pages,
)
from tests.tokenization import tokenization_oracle as oracle

VARIANTS = pytest.mark.parametrize(
    ("do_lower_case", "strip_accents"), oracle.VARIANTS
)


@functools.cache
def sample():
    """All assigned characters except ideographs, and some of the others."""
    assigned = normalization.assigned_characters() - oracle.CJK
    others = [c for c in oracle.ALL if c not in assigned]
    return sorted(assigned) + others[::97]


def differing(characters, form, do_lower_case, strip_accents):
    """The characters c for which `form(c)` has other words than the oracle."""
    normalizer = Normalizer(do_lower_case, strip_accents)

    def differs(text):
        words = oracle.basic_tokenize(text, do_lower_case, strip_accents)
        return normalizer(text).split() != words

    wrong = []
    for start in range(0, len(characters), 499):
        block = characters[start : start + 499]
        if differs(" ".join(map(form, block))):
            # If none differs alone, report the whole block.
            wrong += [c for c in block if differs(form(c))] or block
    return [hex(ord(character)) for character in wrong]


@VARIANTS
def test_some_of_all_characters(do_lower_case, strip_accents):
    """The slow test_every_code_point_in_many_contexts has all."""
    characters = sample()
    some = [c for c in characters if ord(c) < 0x3100] + characters[::7]
    assert not differing(
        some, lambda c: f"{c} a{c}b {c}{c}", do_lower_case, strip_accents
    )


@pytest.mark.slow
@VARIANTS
def test_every_code_point_in_many_contexts(
    fidelity, pytestconfig, do_lower_case, strip_accents
):
    """Unassigned ones are sampled, except if uncased or for `make fidelity`."""
    assigned = normalization.assigned_characters() - oracle.CJK
    characters = oracle.ALL
    is_default = (do_lower_case, strip_accents) == (True, None)
    if not is_default and not pytestconfig.getoption("fidelity_rows"):
        others = [c for c in oracle.ALL if c not in assigned]
        characters = sorted(assigned) + others[::13]
    fidelity(
        "tokenization: U+0000 to U+10FFFF in 4 to 12 words each, lower-cased "
        "or not, with accents and without: code points with other words",
        len(
            differing(
                characters,
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
def test_final_sigma_next_to_all_kinds_of_characters(form):
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
    for text in oracle.hostile_texts(random.Random(5), 4_009):
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
        # U+1D165 has class 216, U+302E 224, U+1D16D 226.
        ("\U0001d16d\u302e\U0001d165", "\U0001d165\u302e\U0001d16d"),
        ("İIı", "iiı"),
        ("", ""),
    ],
)
def test_uncased_examples(text, words):
    words = [w for w in words.split(" ") if w]
    assert Normalizer()(text).split() == words


@pytest.mark.parametrize(
    ("casing", "text", "words"),
    [
        ((False, None), "한 Ée\u0301 ≠", ["한", "Ée\u0301", "≠"]),
        ((True, False), "ÉTÉ E\u0301 한", ["été", "e\u0301", "한"]),
        ((False, True), "ÉTÉ E\u0301 Σ", ["ETE", "E", "Σ"]),
    ],
)
def test_examples_of_other_casings(casing, text, words):
    assert Normalizer(*casing)(text).split() == words


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
    for index, span in enumerate(expected):
        if span is not None:
            span = span if isinstance(span, tuple) else (span, span + 1)
            assert (starts[index], ends[index]) == span


def test_normalizers_can_be_pickled():
    normalizer = pickle.loads(pickle.dumps(Normalizer(True, False)))
    assert normalizer("É!") == "é ! "


# The tables for the graph.


def values_of(pages):
    """All 0x110000 values of a compressed array."""
    return pages.pages.reshape(-1, PAGE_SIZE)[pages.page_of].reshape(-1)


def test_pages_hold_all_values():
    rng = np.random.default_rng(3)
    values = np.zeros(0x110000, int)
    values[rng.integers(0, 0x110000, 97)] = rng.integers(-32768, 32768, 97)
    pages = Pages.of(values)
    np.testing.assert_array_equal(values_of(pages), values)
    assert pages.page_of.dtype == pages.pages.dtype == np.int16
    assert len(pages.pages) <= 98 * 256


@VARIANTS
def test_replacement_tables(do_lower_case, strip_accents):
    normalizer = Normalizer(do_lower_case, strip_accents)
    table = normalization.replacement_table(
        do_lower_case, normalizer.strip_accents
    )
    row_of = values_of(table.row_of)
    for code_point in range(0, 0x110000, 101):
        row = table.rows[row_of[code_point]]
        codes = np.where(row == ITSELF, code_point, row)
        text = "".join(map(chr, codes[codes != NOTHING]))
        assert text == normalizer.replacement(chr(code_point))
    # The last rows have the marks that NFD can reorder.
    marks = list(map(ord, normalization.movable_marks()))
    moves = np.isin(table.rows, marks).any(axis=1)
    assert moves.any()
    np.testing.assert_array_equal(
        moves, np.arange(len(table.rows)) >= table.first_movable
    )
    assert (row_of[marks] >= table.first_movable).all()
    arrays = [*table.row_of, table.rows, *normalization.traits()]
    assert sum(array.nbytes for array in arrays) < 500_000


def test_traits_of_known_characters():
    values = values_of(normalization.traits())
    deleted = SKIPPED | WITHIN_RUN | DELETED
    for character, expected in {
        "A": CASED,
        "ª": CASED,
        "1": 0,
        " ": 0,
        "'": SKIPPED,
        "\u00ad": deleted,
        "\0": deleted,
        "\ufffd": deleted,
        "\t": 0,
        "\u0301": SKIPPED | WITHIN_RUN,
        "\u0cbf": SKIPPED,  # Mn, but of class 0
        "\u302e": WITHIN_RUN | 224,
        "\U0001d15e": 0,  # a note with its stem
        "中": 0,
    }.items():
        assert values[ord(character)] == expected, ascii(character)
