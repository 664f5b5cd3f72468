"""Basic tokenization: the one definition that both tokenizers follow.

The original's `BasicTokenizer` works on a text in these steps:

1. U+0000, U+FFFD and the categories Cc and Cf are deleted, except tab, line
   feed and carriage return, which become spaces as the category Zs does.
2. Spaces are put around CJK ideographs; the text is split at white space.
3. If lower-casing: each word is lower-cased, brought to NFD, and loses its
   combining marks (category Mn).
4. Every punctuation character becomes a word of its own.

Nearly all of it happens to one character at a time, so the whole is a table
from code points to replacements (`Normalizer.replacement`); the words are what
lies between the spaces of the replaced text. Two steps look at neighbours:

* The capital sigma is lower-cased to U+03C2 at the end of a word and to U+03C3
  elsewhere. Such a sigma is replaced by U+03C2 before the table is used.
* NFD sorts the marks behind a letter by their combining class. That shows only
  in the few marks that are not of category Mn, and so are not dropped.
"""

import bisect
import functools
import itertools
import re
import sys
import unicodedata
from collections.abc import Callable

SIGMA, FINAL_SIGMA = "Σ", "ς"
NUM_CODE_POINTS = sys.maxunicode + 1

# The blocks of the original: ideographs only, no kana and no Hangul.
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
    """A table for `str.translate` whose entries are computed when first met."""

    def __init__(self, function: Callable[[str], str]):
        self._function = function

    def __missing__(self, code_point: int) -> str:
        value = self[code_point] = self._function(chr(code_point))
        return value


class Normalizer:
    """Basic tokenization; the words are `normalizer(text).split()`.

    Args:
      do_lower_case: Lower-cases, as uncased vocabularies need.
      strip_accents: Whether to decompose (NFD) and to drop combining marks;
        None does as `do_lower_case` says, which is what the original does.
        False keeps the accents of a lower-cased text, and its composed form.
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
        """Returns the normalised text: words separated by U+0020 alone."""
        text = self._settle_sigma(text)
        normalized = text.translate(self._replacements)
        if self.strip_accents and _may_be_out_of_order(normalized):
            return self.align(text)[0]
        return normalized

    def align(self, text: str) -> tuple[str, list[int], list[int]]:
        """Normalises `text` and says where each character came from.

        Returns:
          The normalised text, as `__call__` gives it, and two lists of its
          length: character i was made of the characters [starts[i], ends[i])
          of `text`, which includes the accents dropped right behind it.
        """
        characters: list[str] = []
        starts: list[int] = []
        ends: list[int] = []
        visible = -1  # the last character that is not a space
        for index, source in enumerate(self._settle_sigma(text)):
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
            order = _canonical_order(text, characters, starts)
            characters = [characters[i] for i in order]
            starts = [starts[i] for i in order]
            ends = [ends[i] for i in order]
        return "".join(characters), starts, ends

    def replacement(self, character: str) -> str:
        """What the table holds for one character, neighbours disregarded."""
        if is_deleted(character):
            return ""
        if _is_space(character):
            return " "
        if is_cjk(character):  # has neither case nor marks
            letter = _decompose(character) if self.strip_accents else character
            return f" {letter} "
        letters = character.lower() if self.do_lower_case else character
        if self.strip_accents:
            letters = "".join(
                c for c in _decompose(letters) if _category(c) != "Mn"
            )
        return "".join(f" {c} " if _is_punctuation(c) else c for c in letters)

    def changes(self) -> dict[int, str]:
        """Returns the whole table less the characters that stay as they are.

        That is some 100,000 entries and takes a third of a second.
        """
        return {
            ord(character): replacement
            for character in assigned_characters()
            if (replacement := self.replacement(character)) != character
        }

    def _settle_sigma(self, text: str) -> str:
        """Replaces each capital sigma that ends a word by the final sigma.

        `str.lower` knows the rule: a sigma is final if, case-ignorable
        characters skipped, a cased character is before it and none behind. It
        may see the whole text at once, since a space is neither. Characters
        that are deleted have to count as ignorable, hence `_sigma_view`.
        """
        if not self.do_lower_case or SIGMA not in text:
            return text
        lowered = text.translate(_SIGMA_VIEW).lower()
        return "".join(
            FINAL_SIGMA if (old, new) == (SIGMA, FINAL_SIGMA) else old
            for old, new in zip(text, lowered, strict=True)
        )


def clean(text: str) -> str:
    """The original's `_clean_text`: deletes control characters, makes spaces.

    What `str.split` makes of the result are the words that the later steps
    work on one by one (CJK ideographs aside).
    """
    return text.translate(_CLEAN)


def is_deleted(character: str) -> bool:
    """Whether step 1 deletes the character."""
    if character in "\t\n\r":
        return False
    return character in "\0\ufffd" or _category(character) in ("Cc", "Cf")


def is_cjk(character: str) -> bool:
    """Whether the original puts spaces around the character."""
    return bisect.bisect(_CJK_EDGES, ord(character)) % 2 == 1


def assigned_characters() -> set[str]:
    """Every character that Unicode defines or that lies in a CJK block.

    No other is changed by the table or takes part in the rules for contexts.
    """
    characters = list(map(chr, range(NUM_CODE_POINTS)))
    ideographs = (characters[a : b + 1] for a, b in _CJK_BLOCKS)
    categories = map(_category, characters)
    assigned = {
        character
        for character, category in zip(characters, categories, strict=True)
        if category not in ("Cn", "Co", "Cs")
    }
    return assigned.union(*ideographs)


def sigma_context(character: str) -> tuple[bool, bool]:
    """What the rule of the final sigma sees in a character.

    Returns:
      (skipped, cased): whether the rule looks past the character, because it
      is case-ignorable or deleted, and, if not, whether it is a cased letter.
    """
    seen = character.translate(_SIGMA_VIEW)
    behind = f"A{SIGMA}{seen}".lower()[1] != FINAL_SIGMA
    between = f"A{SIGMA}{seen}A".lower()[1] != FINAL_SIGMA
    return between and not behind, behind


def movable_class(character: str) -> int:
    """The combining class of a mark that survives stripping; 0 for others."""
    return 0 if _category(character) == "Mn" else _combining(character)


@functools.cache
def movable_marks() -> str:
    """Every character that `movable_class` tells from 0; there are few."""
    marks = filter(_combining, map(chr, range(NUM_CODE_POINTS)))
    return "".join(filter(movable_class, marks))


def bounds_a_run(character: str) -> bool:
    """Whether NFD moves no mark across this character.

    True if its decomposition holds a character of combining class 0. What is
    deleted is gone before NFD and bounds nothing.
    """
    marks_only = all(map(_combining, _decompose(character)))
    return not marks_only and not is_deleted(character)


def _canonical_order(
    text: str, characters: list[str], sources: list[int]
) -> list[int]:
    """Returns the permutation that sorts marks as NFD does.

    Args:
      text: The original text.
      characters: What the table made of it.
      sources: For each of these the index into `text`.
    """
    runs = list(itertools.accumulate(map(bounds_a_run, text)))
    return sorted(
        range(len(characters)),
        key=lambda i: (runs[sources[i]], _combining(characters[i])),
    )


def _may_be_out_of_order(normalized: str) -> bool:
    """Whether two marks are left that the canonical order might exchange."""
    if normalized.isascii():
        return False
    marks = _movable_pattern().findall(normalized)
    return len(set(map(_combining, marks))) > 1


@functools.cache
def _movable_pattern() -> re.Pattern[str]:
    return re.compile(f"[{movable_marks()}]")


def _is_space(character: str) -> bool:
    # Zl and Zp are no spaces to the original, but its str.split() divides
    # there; the control characters that it would divide at are deleted before.
    return character in "\t\n\r" or _category(character) in ("Zs", "Zl", "Zp")


def _is_punctuation(character: str) -> bool:
    # All of ASCII that is neither letter nor digit, "$" and "^" too.
    return character in _ASCII_PUNCTUATION or _category(character)[0] == "P"


def _sigma_view(character: str) -> str:
    """One character that `str.lower` treats as the original would."""
    if is_deleted(character):
        return "\u00ad"  # case-ignorable
    # The only character that str.lower makes two of; as cased as "i" is.
    return "i" if character == "\u0130" else character


def _cleaned(character: str) -> str:
    if is_deleted(character):
        return ""
    return " " if _is_space(character) else character


def _decompose(text: str) -> str:
    return unicodedata.normalize("NFD", text)


_CLEAN = _LazyTable(_cleaned)
_SIGMA_VIEW = _LazyTable(_sigma_view)
