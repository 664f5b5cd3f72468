"""Basic tokenization: the one definition that both tokenizers follow.

The original's `BasicTokenizer` works in these steps:

1. Tab, line feed, carriage return and the category Zs become spaces. U+0000,
   U+FFFD and all others of the categories Cc and Cf are deleted.
2. Spaces are put around CJK ideographs; the text is split at white space.
3. If lower-casing: each word is lower-cased, converted to NFD, and loses its
   combining marks (category Mn).
4. Each punctuation character becomes a separate word.

Nearly all steps affect one character at a time, so a table maps code points to
replacements (`Normalizer.replacement`). The words are the parts between the
spaces of the result. For example, "Él,中" becomes "el ,  中 ".

Two steps depend on the neighbors of a character:

* The capital sigma becomes U+03C2 at the end of a word and U+03C3 elsewhere.
  A final sigma is replaced by U+03C2 before the table is used.
* NFD sorts the marks after a letter by their combining class. This matters
  only for the few marks that are not of category Mn and thus not stripped.
"""

import bisect
import functools
import itertools
import re
import sys
import unicodedata
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

SIGMA, FINAL_SIGMA = "Σ", "ς"
NUM_CODE_POINTS = sys.maxunicode + 1

# The blocks of the original: ideographs, without kana and Hangul.
_CJK_BLOCKS = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)
_CJK_EDGES = sorted(
    edge for first, last in _CJK_BLOCKS for edge in (first, last + 1)
)
_ASCII_PUNCTUATION = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")

_category, _combining = unicodedata.category, unicodedata.combining


class _LazyTable(dict):
    """A table for `str.translate` that computes entries when first used."""

    def __init__(self, function: Callable[[str], str]):
        self._function = function

    def __missing__(self, code_point: int) -> str:
        value = self[code_point] = self._function(chr(code_point))
        return value


class Normalizer:
    """Basic tokenization; the words are `normalizer(text).split()`.

    Args:
      do_lower_case: Whether to lower-case, for uncased vocabularies.
      strip_accents: Whether to decompose (NFD) and to strip combining marks.
        By default the same as `do_lower_case`, like the original. False keeps
        the accents and the composed form of lower-cased text.
    """

    def __init__(
        self, do_lower_case: bool = True, strip_accents: bool | None = None
    ):
        self.do_lower_case = bool(do_lower_case)
        self.strip_accents = bool(
            do_lower_case if strip_accents is None else strip_accents
        )
        self._replacements = _LazyTable(self.replacement)

    def __reduce__(self):
        return type(self), (self.do_lower_case, self.strip_accents)

    def __call__(self, text: str) -> str:
        """Returns the normalized text, with U+0020 as its only white space."""
        text = self._final_sigma(text)
        normalized = text.translate(self._replacements)
        if self.strip_accents and _may_be_out_of_order(normalized):
            return self.align(text)[0]
        return normalized

    def align(self, text: str) -> tuple[str, list[int], list[int]]:
        """Normalizes `text` and finds where each character came from.

        Returns:
          The normalized text and two lists of its length: its character i was
          made from the characters [starts[i], ends[i]) of `text`, including
          the accents stripped directly after it.
        """
        characters: list[str] = []
        starts: list[int] = []
        ends: list[int] = []
        visible = -1  # The last character that is not a space.
        for index, source in enumerate(self._final_sigma(text)):
            replacement = self._replacements[ord(source)]
            is_accent = not replacement and not is_deleted(source)
            if is_accent and visible >= 0 and ends[visible] == index:
                ends[visible] = index + 1
            for character in replacement:
                if character != " ":
                    visible = len(characters)
                characters.append(character)
                starts.append(index)
                ends.append(index + 1)
        if self.strip_accents and _may_be_out_of_order("".join(characters)):
            # Sort marks as NFD does, within the runs between other characters.
            runs = list(itertools.accumulate(map(bounds_a_run, text)))
            order = sorted(
                range(len(characters)),
                key=lambda i: (runs[starts[i]], _combining(characters[i])),
            )
            characters = [characters[i] for i in order]
            starts = [starts[i] for i in order]
            ends = [ends[i] for i in order]
        return "".join(characters), starts, ends

    def replacement(self, character: str) -> str:
        """Returns the replacement of a character, regardless of neighbors."""
        if is_deleted(character):
            return ""
        if _is_space(character):
            return " "
        if is_cjk(character):  # These have neither case nor marks.
            letter = _decompose(character) if self.strip_accents else character
            return f" {letter} "
        letters = character.lower() if self.do_lower_case else character
        if self.strip_accents:
            letters = "".join(
                c for c in _decompose(letters) if _category(c) != "Mn"
            )
        return "".join(f" {c} " if _is_punctuation(c) else c for c in letters)

    def _final_sigma(self, text: str) -> str:
        """Replaces each capital sigma that ends a word by the final sigma.

        `str.lower` has the rule: a sigma is final if there is a cased character
        before it and none after it, ignoring case-ignorable characters. Spaces
        are neither, so the rule stops at the ends of a word. Characters that
        are deleted have to count as ignorable; see `_sigma_view`.
        """
        if not self.do_lower_case or SIGMA not in text:
            return text
        lowered = text.translate(_SIGMA_VIEW).lower()
        return "".join(
            FINAL_SIGMA if (old, new) == (SIGMA, FINAL_SIGMA) else old
            for old, new in zip(text, lowered, strict=True)
        )


def clean(text: str) -> str:
    """Deletes control characters and replaces white space by U+0020.

    Unlike the original's `_clean_text`, it also replaces the separators Zl and
    Zp, at which the original's `str.split` splits later. The parts that
    `str.split` makes of the result can be normalized one by one.
    """
    return text.translate(_CLEAN)


def is_deleted(character: str) -> bool:
    """Returns whether step 1 deletes the character."""
    if character in "\t\n\r":
        return False
    return character in "\0\ufffd" or _category(character) in ("Cc", "Cf")


def is_cjk(character: str) -> bool:
    """Returns whether the original puts spaces around the character."""
    return bisect.bisect(_CJK_EDGES, ord(character)) % 2 == 1


def _is_space(character: str) -> bool:
    # Step 1 keeps Zl and Zp, but `str.split` in the original splits at them.
    # It would also split at some control characters, which step 1 deletes.
    return character in "\t\n\r" or _category(character) in ("Zs", "Zl", "Zp")


def _is_punctuation(character: str) -> bool:
    # ASCII characters other than letters and digits, such as "$" and "^", are
    # punctuation too.
    return character in _ASCII_PUNCTUATION or _category(character)[0] == "P"


def _cleaned(character: str) -> str:
    if is_deleted(character):
        return ""
    return " " if _is_space(character) else character


def _sigma_view(character: str) -> str:
    """Returns one character with the properties that affect a final sigma."""
    if is_deleted(character):
        return "\u00ad"  # case-ignorable
    # The only character that str.lower turns into two; "i" is also cased.
    return "i" if character == "\u0130" else character


_CLEAN = _LazyTable(_cleaned)
_SIGMA_VIEW = _LazyTable(_sigma_view)


def _decompose(text: str) -> str:
    return unicodedata.normalize("NFD", text)


def _may_be_out_of_order(normalized: str) -> bool:
    """Returns whether NFD may reorder the remaining marks."""
    if normalized.isascii():
        return False
    marks = _movable_pattern().findall(normalized)
    return len(set(map(_combining, marks))) > 1


@functools.cache
def _movable_pattern() -> re.Pattern[str]:
    return re.compile(f"[{movable_marks()}]")


@functools.cache
def movable_marks() -> str:
    """Returns the few characters whose `movable_class` is not 0."""
    marks = filter(_combining, map(chr, range(NUM_CODE_POINTS)))
    return "".join(filter(movable_class, marks))


def movable_class(character: str) -> int:
    """Returns the combining class of a mark that is not stripped, or 0."""
    return 0 if _category(character) == "Mn" else _combining(character)


def bounds_a_run(character: str) -> bool:
    """Returns whether NFD moves no mark across this character.

    That holds if its decomposition has a character of combining class 0.
    Deleted characters are gone before NFD.
    """
    marks_only = all(map(_combining, _decompose(character)))
    return not marks_only and not is_deleted(character)


# The same definition as arrays over all code points, for a TensorFlow graph.

# Placeholders in `ReplacementTable.rows`: the code point itself, and nothing.
ITSELF, NOTHING = -1, -2
_WIDTH = 3  # The longest replacement is a character between two spaces.

# The bits of `traits`; the lowest eight hold `movable_class`.
CLASS_BITS, SKIPPED, CASED, WITHIN_RUN = 0xFF, 0x100, 0x200, 0x400
DELETED = 0x800

PAGE_SIZE = 256


def assigned_characters() -> set[str]:
    """Returns all characters that Unicode defines or that are in a CJK block.

    No other character is changed or affects its neighbors.
    """
    assigned = {
        character
        for character in map(chr, range(NUM_CODE_POINTS))
        if _category(character) not in ("Cn", "Co", "Cs")
    }
    return assigned.union(*(map(chr, range(a, b + 1)) for a, b in _CJK_BLOCKS))


def sigma_context(character: str) -> tuple[bool, bool]:
    """Returns how a character affects a sigma before or after it.

    Returns:
      (skipped, cased): whether the rule ignores the character, because it is
      case-ignorable or deleted; and otherwise, whether it is a cased letter.
    """
    view = character.translate(_SIGMA_VIEW)
    after = f"A{SIGMA}{view}".lower()[1] != FINAL_SIGMA
    between = f"A{SIGMA}{view}A".lower()[1] != FINAL_SIGMA
    return between and not after, after


class Pages(NamedTuple):
    """An array over all code points that stores equal pages once.

    The value for c is `pages[page_of[c // 256] * 256 + c % 256]`.
    """

    page_of: np.ndarray  # int16 [4352]
    pages: np.ndarray  # int16 [256 * number of different pages]

    @classmethod
    def of(cls, values: np.ndarray) -> "Pages":
        """Compresses an integer array of shape [0x110000]."""
        numbers: dict[bytes, int] = {}
        rows = values.astype(np.int16).reshape(-1, PAGE_SIZE)
        page_of = [numbers.setdefault(r.tobytes(), len(numbers)) for r in rows]
        pages = np.frombuffer(b"".join(numbers), np.int16)
        return cls(np.array(page_of, np.int16), pages)


class ReplacementTable(NamedTuple):
    """The replacements of a `Normalizer`."""

    row_of: Pages  # The row of each code point in `rows`.
    rows: np.ndarray  # int32 [R, 3], code points and placeholders.
    first_movable: int  # The first row with marks that NFD can reorder.


@functools.cache
def replacement_table(
    do_lower_case: bool, strip_accents: bool
) -> ReplacementTable:
    """Turns a `Normalizer` into arrays of 0.25 MB in all."""
    marks = movable_marks()
    normalizer = Normalizer(do_lower_case, strip_accents)
    changes = {ord(mark): mark for mark in marks}
    for character in assigned_characters():
        replacement = normalizer.replacement(character)
        if replacement != character:
            changes[ord(character)] = replacement
    texts = {r for c, r in changes.items() if r != f" {chr(c)} "}
    movable = {text for text in texts if not set(marks).isdisjoint(text)}
    ordered = sorted(texts - movable) + sorted(movable)
    rows = [[ITSELF], [ord(" "), ITSELF, ord(" ")]]
    itself, spaced, *others = range(len(rows) + len(ordered))
    row_of_text = dict(zip(ordered, others, strict=True))
    row_of = np.full(NUM_CODE_POINTS, itself)
    for code_point, text in changes.items():
        row_of[code_point] = row_of_text.get(text, spaced)
    rows += [list(map(ord, text)) for text in ordered]
    padded = [row + [NOTHING] * (_WIDTH - len(row)) for row in rows]
    return ReplacementTable(
        Pages.of(row_of),
        np.array(padded, np.int32),
        len(rows) - len(movable),
    )


@functools.cache
def traits() -> Pages:
    """Returns the properties of code points that affect neighbors."""
    values = np.zeros(NUM_CODE_POINTS, int)
    for character in assigned_characters():
        if is_cjk(character):
            continue  # These have neither case nor marks.
        skipped, cased = sigma_context(character)
        values[ord(character)] = (
            movable_class(character)
            + SKIPPED * skipped
            + CASED * cased
            + WITHIN_RUN * (not bounds_a_run(character))
            + DELETED * is_deleted(character)
        )
    return Pages.of(values)
