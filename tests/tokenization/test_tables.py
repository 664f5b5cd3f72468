"""The arrays say of every code point what `normalization` says."""

import numpy as np
import pytest

from bert_tf.tokenization import graph_normalization, normalization
from tests.tokenization import tokenization_oracle as oracle


def values_of(pages):
    """All 0x110000 values of a compressed array."""
    return pages.pages.reshape(-1, graph_normalization.PAGE_SIZE)[
        pages.page_of
    ].reshape(-1)


def test_pages_give_the_values_back():
    rng = np.random.default_rng(3)
    values = np.zeros(0x110000, int)
    values[rng.integers(0, 0x110000, 97)] = rng.integers(-32768, 32768, 97)
    pages = graph_normalization.Pages.of(values)
    np.testing.assert_array_equal(values_of(pages), values)
    assert pages.page_of.dtype == pages.pages.dtype == np.int16
    assert len(pages.pages) <= 98 * 256


@pytest.mark.parametrize(("do_lower_case", "strip_accents"), oracle.VARIANTS)
def test_rows_are_the_replacements(do_lower_case, strip_accents):
    normalizer = normalization.Normalizer(do_lower_case, strip_accents)
    table = graph_normalization.replacements(
        do_lower_case, normalizer.strip_accents
    )
    row_of = values_of(table.row_of)
    for code_point in range(0, 0x110000, 101):
        row = table.rows[row_of[code_point]]
        codes = np.where(row == graph_normalization.ITSELF, code_point, row)
        text = "".join(map(chr, codes[codes != graph_normalization.NOTHING]))
        assert text == normalizer.replacement(chr(code_point))


@pytest.mark.parametrize(("do_lower_case", "strip_accents"), oracle.VARIANTS)
def test_the_last_rows_hold_what_nfd_moves(do_lower_case, strip_accents):
    strip_accents = do_lower_case if strip_accents is None else strip_accents
    table = graph_normalization.replacements(do_lower_case, strip_accents)
    marks = list(map(ord, normalization.movable_marks()))
    moves = np.isin(table.rows, marks).any(axis=1)
    assert moves.any()
    np.testing.assert_array_equal(
        moves, np.arange(len(table.rows)) >= table.first_movable
    )
    assert (values_of(table.row_of)[marks] >= table.first_movable).all()


def test_traits_of_known_characters():
    values = values_of(graph_normalization.traits())
    for character, expected in {
        "A": graph_normalization.CASED,
        "ª": graph_normalization.CASED,
        "1": 0,
        " ": 0,
        "'": graph_normalization.SKIPPED,
        "\u00ad": graph_normalization.SKIPPED
        | graph_normalization.WITHIN_RUN
        | graph_normalization.DELETED,
        "\0": graph_normalization.SKIPPED
        | graph_normalization.WITHIN_RUN
        | graph_normalization.DELETED,
        "\ufffd": graph_normalization.SKIPPED
        | graph_normalization.WITHIN_RUN
        | graph_normalization.DELETED,
        "\t": 0,
        "\u0301": graph_normalization.SKIPPED | graph_normalization.WITHIN_RUN,
        "\u0cbf": graph_normalization.SKIPPED,  # Mn, but of class 0
        "\u302e": graph_normalization.WITHIN_RUN | 224,
        "\U0001d15e": 0,  # a note with its stem
        "中": 0,
    }.items():
        assert values[ord(character)] == expected, ascii(character)


def test_tables_are_small():
    table = graph_normalization.replacements(True, True)
    arrays = [*table.row_of, table.rows, *graph_normalization.traits()]
    assert sum(array.nbytes for array in arrays) < 500_000
