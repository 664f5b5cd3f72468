"""`normalization` as arrays over all code points, for the graph to look up."""

import functools
from typing import NamedTuple

import numpy as np

from bert_tf.text import normalization

# Placeholders in `Table.rows`: the code point itself, and nothing.
ITSELF, NOTHING = -1, -2
_WIDTH = 3  # the longest replacement: a character between two spaces

# Bits of `traits`; the lowest eight hold `normalization.movable_class`.
CLASS_BITS, SKIPPED, CASED, WITHIN_RUN = 0xFF, 0x100, 0x200, 0x400
DELETED = 0x800

PAGE_SIZE = 256


class Pages(NamedTuple):
    """An array over all code points whose equal pages are stored once.

    Its value for c is `pages[page_of[c // 256] * 256 + c % 256]`.
    """

    page_of: np.ndarray  # [4352] int16
    pages: np.ndarray  # [256 * different pages] int16

    @classmethod
    def of(cls, values: np.ndarray) -> "Pages":
        """Compresses an integer array of shape [0x110000]."""
        numbers: dict[bytes, int] = {}
        rows = values.astype(np.int16).reshape(-1, PAGE_SIZE)
        page_of = [numbers.setdefault(r.tobytes(), len(numbers)) for r in rows]
        pages = np.frombuffer(b"".join(numbers), np.int16)
        return cls(np.array(page_of, np.int16), pages)


class Table(NamedTuple):
    """The replacements of a `Normalizer`.

    Attributes:
      row_of: For each code point its index into `rows`.
      rows: int32 [R, 3]: code points and placeholders.
      first_movable: From this row on they hold marks that NFD may move.
    """

    row_of: Pages
    rows: np.ndarray
    first_movable: int


@functools.cache
def replacements(do_lower_case: bool, strip_accents: bool) -> Table:
    """Turns a `Normalizer` into arrays, a quarter of a megabyte of them."""
    marks = normalization.movable_marks()
    changes = {ord(mark): mark for mark in marks}
    changes |= normalization.Normalizer(do_lower_case, strip_accents).changes()
    texts = {r for c, r in changes.items() if r != f" {chr(c)} "}
    movable = {text for text in texts if not set(marks).isdisjoint(text)}
    ordered = sorted(texts - movable) + sorted(movable)
    rows = [[ITSELF], [ord(" "), ITSELF, ord(" ")]]
    itself, spaced, *others = range(len(rows) + len(ordered))
    row_of_text = dict(zip(ordered, others, strict=True))
    row_of = np.full(normalization.NUM_CODE_POINTS, itself)
    for code_point, text in changes.items():
        row_of[code_point] = row_of_text.get(text, spaced)
    rows += [list(map(ord, text)) for text in ordered]
    return Table(Pages.of(row_of), _padded(rows), len(rows) - len(movable))


@functools.cache
def traits() -> Pages:
    """What rules for neighbours have to know of each code point."""
    values = np.zeros(normalization.NUM_CODE_POINTS, int)
    for character in normalization.assigned_characters():
        if normalization.is_cjk(character):  # has neither case nor marks
            continue
        skipped, cased = normalization.sigma_context(character)
        values[ord(character)] = (
            normalization.movable_class(character)
            + SKIPPED * skipped
            + CASED * cased
            + WITHIN_RUN * (not normalization.bounds_a_run(character))
            + DELETED * normalization.is_deleted(character)
        )
    return Pages.of(values)


def _padded(rows: list[list[int]]) -> np.ndarray:
    """Fills rows of at most three entries up with NOTHING."""
    return np.array(
        [row + [NOTHING] * (_WIDTH - len(row)) for row in rows], np.int32
    )
