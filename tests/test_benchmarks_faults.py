"""The table of faults: rows of tests that exist, and of all of them."""

import json
import re

import pytest
from checkout import ROOT, nodes_with

pytest_plugins = ["pytester"]

ROW = {
    "broken": "a | disk",
    "happened": "one line",
    "difference": 0.0,
    "node": "tests/test_x.py::test_y",
}
TESTS = """
import pytest

@pytest.mark.parametrize("seed", [1, 2])
def test_rows(fault, seed):
    fault(f"seed {seed}", "goes on", 0)

def test_other_weights(fault):
    fault("a disk", "goes on", 1e-9)

def test_no_numbers(fault):
    fault("a disk", "goes on", float("nan"))

def test_plain():
    pass
"""


@pytest.fixture(scope="module")
def fault_section(benchmarks):
    return benchmarks("fault_section")


def test_rows_are_kept_of_weights_that_are_the_same(pytester):
    pytester.makepyfile(TESTS)
    path = pytester.path / "rows.json"
    plugin = ("-p", "tests.fault_rows", "--strict-markers")
    result = pytester.runpytest_inprocess(
        *plugin, "-m", "fault", f"--fault_rows={path}"
    )
    result.assert_outcomes(passed=2, failed=2, deselected=1)
    result.stdout.fnmatch_lines(["*a disk: 1e-09, and not 0*", "*: nan, and*"])
    rows = json.loads(path.read_text())
    assert [row["broken"] for row in rows] == ["seed 1", "seed 2"]
    for row in rows:
        assert row["happened"] == "goes on"
        assert row["difference"] == 0
        assert row["node"].endswith("::test_rows")


def test_the_section(fault_section, tmp_path, capsys):
    rows, page = tmp_path / "rows.json", tmp_path / "page.md"
    rows.write_text(json.dumps([ROW]))
    fault_section.main(str(rows))
    text = capsys.readouterr().out
    assert text.splitlines()[-3:] == [
        "| what was broken | what happened | difference in the end | test |",
        "| --- | --- | --- | --- |",
        "| a \\| disk | one line | 0 | `tests/test_x.py::test_y` |",
    ]
    page.write_text("<!-- faults: here -->\n<!-- end of faults -->\n")
    fault_section.main(str(rows), str(page))
    assert text in page.read_text()


def test_the_page_has_a_row_of_every_test():
    """Else `make faults`."""
    page = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
    [section] = re.findall(
        r"<!-- faults:.*?<!-- end of faults -->", page, re.DOTALL
    )
    nodes = re.findall(r"`(tests/\S+::\w+)`", section)
    assert set(nodes) == set(nodes_with("fault"))
