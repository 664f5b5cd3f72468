"""The fixture `fault` and the table of faults in docs/reports/faults.md."""

import json
import re

from checkout import ROOT, nodes_with

pytest_plugins = ["pytester"]

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


def test_records_rows_of_equal_weights(pytester):
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


def test_the_page_has_a_row_of_every_test():
    """If not: `make faults`."""
    page = (ROOT / "docs" / "reports" / "faults.md").read_text(encoding="utf-8")
    [section] = re.findall(
        r"<!-- faults:.*?<!-- end of faults -->", page, re.DOTALL
    )
    nodes = re.findall(r"`(tests/\S+::\w+)`", section)
    assert set(nodes) == set(nodes_with("fault"))
