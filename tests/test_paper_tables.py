"""The paper's tables, from scores that are given."""

import csv
import math

import paper_programs
import pytest


@pytest.fixture(scope="module")
def tables():
    with paper_programs.importable() as load:
        yield load("tables")


@pytest.fixture
def table(tables):
    columns = [
        tables.beside_paper("MRPC", None, "ab", {"MRPC": (84.4, 83.9)}),
        tables.beside_paper("STS-B", None, "ab", {"MRPC": (84.4, 83.9)}),
    ]
    rows = {"a": ["first", 3], "b": ["second", 5]}
    claims = [tables.Claim("a", "b")]
    return tables.Table("t", "A table", ["Row", "#L"], rows, columns, claims)


@pytest.fixture
def cells(tables):
    def cells(*pairs):
        return {
            (row, column): tables.Cell(tuple(values))
            for row, column, *values in pairs
        }

    return cells


def test_markdown_has_ours_beside_the_papers(tables, table, cells):
    known = cells(
        ("a", "MRPC", 70.0, 72.0), ("b", "MRPC", 60.0), ("b", "STS-B", 3.129)
    )
    lines = tables.markdown(table, known).splitlines()
    assert lines[2:6] == [
        "| Row | #L | MRPC | paper | STS-B | paper |",
        "| --- | --- | --- | --- | --- | --- |",
        "| first | 3 | 71.0 ± 1.41 | 84.4 |  |  |",
        "| second | 5 | 60.0 | 83.9 | 3.13 |  |",
    ]
    assert "1 or 2 a cell" in lines[7]


def test_commas_hold_the_same(tables, table, cells):
    known = cells(("a", "MRPC", 70.0, 72.0), ("b", "MRPC", 60.0))
    text = tables.comma_separated(table, known)
    first, second = csv.DictReader(text.splitlines())
    assert float(first["MRPC"]) == 71
    assert float(first["MRPC_deviation"]) == pytest.approx(math.sqrt(2))
    assert (first["MRPC_seeds"], first["MRPC_paper"]) == ("2", "84.4")
    assert (second["MRPC_deviation"], second["#L"]) == ("", "5")
    assert (second["STS-B"], second["STS-B_seeds"]) == ("", "0")


@pytest.mark.parametrize(
    ("ours", "expected"),
    [
        (
            ([70.0, 70.2], [60.0, 60.2]),
            "70.1 > 60.1 (same direction; p = 0.0002)",
        ),
        (
            ([60.0, 60.2], [70.0, 70.2]),
            "60.1 < 70.1 (the other direction; p = 0.0002)",
        ),
        (
            ([60.0, 70.0], [59.0, 69.0]),
            "65.0 > 64.0 (same direction; p = 0.9: may be the seeds' chance)",
        ),
        (
            ([60.0, 60.0], [59.0, 59.0]),
            "60.0 > 59.0 (same direction; each seed gave the same)",
        ),
        (
            ([61.0], [60.0]),
            "61.0 > 60.0 (same direction; one seed, whose chance is not known)",
        ),
        (([60.01, 60.02], [60.03, 60.04]), "60.0 = 60.0 (no difference here)"),
        (([math.nan, 60.0], [60.0, 61.0]), "nan ? 60.5 (no number to compare)"),
    ],
)
def test_a_direction(tables, table, cells, ours, expected):
    first, second = ours
    known = cells(("a", "MRPC", *first), ("b", "MRPC", *second))
    # What the paper does not have, or what is not known yet, says nothing.
    known |= cells(("a", "STS-B", 1.0), ("b", "STS-B", 2.0))
    assert tables.directions(table, known) == [
        f"MRPC: a against b: paper: 84.4 > 83.9; here: {expected}"
    ]
    assert not tables.directions(table, cells(("a", "MRPC", 1.0)))


def test_chance_is_welchs(tables, cells):
    """One row does not vary: t is 3, with one degree of freedom, not two."""
    ours = cells(("a", "x", 0.0, 2.0), ("b", "x", 4.0, 4.0))
    expected = 2 / math.pi * math.atan(1 / 3)
    assert f"p = {expected:.2g}: may" in tables.verdict(
        (1.0, 2.0), [*ours.values()]
    )


def test_what_the_paper_does_not_tell_apart(tables, cells):
    ours = cells(("a", "x", 2.0, 2.1), ("b", "x", 1.0, 1.1))
    known = tables.verdict((82.1, 82.1), [*ours.values()])
    assert "2.05 > 1.05 (the paper has no difference; p = " in known


def test_how_far_rows_lie_apart(tables, table, cells):
    known = cells(("a", "MRPC", 70.0, 72.0), ("b", "MRPC", 60.0))
    assert tables.ranges(table, known) == [
        "MRPC, lowest to highest row: paper: 83.9 to 84.4; here: 60.0 to 71.0"
    ]
    assert not tables.ranges(table, cells(("a", "MRPC", 70.0)))


def test_a_claim_may_be_of_some_columns(tables, table, cells):
    known = cells(("a", "MRPC", 1.0), ("b", "MRPC", 2.0))
    others = table._replace(claims=[tables.Claim("a", "b", ["SST-2"])])
    assert not tables.directions(others, known)
    named = table._replace(claims=[tables.Claim("a", "b", ["MRPC"])])
    assert len(tables.directions(named, known)) == 1


@pytest.mark.slow
def test_the_plot(tables, table, cells, tmp_path):
    path = tmp_path / "t.png"
    known = cells(("a", "MRPC", 70.0, 72.0), ("b", "STS-B", 60.0))
    assert tables.draw(table, known, str(path))
    assert path.read_bytes().startswith(b"\x89PNG")
