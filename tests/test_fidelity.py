"""The fixtures `fidelity` and `fault`, and the tables of what they record."""

import json
import re

import pytest
from checkout import ROOT, nodes_with

from tests import fidelity as plugin

pytest_plugins = ["pytester"]

TESTS = """
import pytest

@pytest.mark.parametrize("gap", [1e-6, 3e-6, 2e-6])
def test_cases(fidelity, gap):
    fidelity("model: of cases", gap, 1e-5)

def test_far(fidelity):
    fidelity("model: too far", 0.25, 0.125)

def test_not_a_number(fidelity):
    fidelity("model: nothing", float("nan"), 1)

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


def test_fixtures_assert_and_record(pytester):
    """Of several cases, the largest number."""
    pytester.makepyfile(TESTS)
    path = pytester.path / "rows.json"
    result = pytester.runpytest_inprocess(
        *("-p", "tests.fidelity", "-p", "tests.fault_rows", "-m"),
        *("fidelity or fault", "--strict-markers", f"--fidelity_rows={path}"),
        f"--fault_rows={pytester.path / 'faults.json'}",
    )
    result.assert_outcomes(passed=5, failed=4, deselected=1)
    result.stdout.fnmatch_lines(
        [
            "*model: too far: 0.25, more than the tolerance 0.125*",
            "*model: nothing: nan, more than the tolerance 1*",
            "*a disk: 1e-09, and not 0*",
            "*: nan, and*",
        ]
    )
    [only] = json.loads(path.read_text())["rows"]
    assert (only["check"], only["number"]) == ("model: of cases", 3e-6)
    assert only["node"].endswith("::test_cases")
    rows = json.loads((pytester.path / "faults.json").read_text())
    assert [row["broken"] for row in rows] == ["seed 1", "seed 2"]
    for row in rows:
        assert (row["happened"], row["difference"]) == ("goes on", 0)
        assert row["node"].endswith("::test_rows")


def test_the_table_of_several_runs():
    def run(check="model: a, b", backend="tensorflow", number=2e-6):
        row = {"check": check, "backend": backend, "number": number}
        row |= {"tolerance": 1e-5, "node": "tests/test_x.py::test_y"}
        return {"versions": {"keras": "3.0"}, "rows": [row]}

    text = plugin.table(
        [
            run("tokenization: words", number=0.0),
            run(backend="torch", number=1.5e-6),
            run(),
            run("model: alone", "torch", 3.0),
        ]
    )
    command = "-m pytest tests/test_x.py::test_y` |"
    torch = f"`KERAS_BACKEND=torch .venv-torch/bin/python {command}"
    model, tokenization = text.split("## Tokenization")
    assert "- keras 3.0" in model
    assert model.splitlines()[-4:-1] == [
        "|---|---|---|---|---|",
        f"| a, b | 2e-06 | 1.5e-06 | 1e-05 | `.venv/bin/python {command}",
        f"| alone |  | 3 | 1e-05 | {torch}",
    ]
    assert "| check | TensorFlow | tolerance | command |" in tokenization
    assert f"| words | 0 | 1e-05 | `.venv/bin/python {command}" in tokenization


@pytest.mark.parametrize(
    ("page", "fixture", "pattern"),
    [
        ("fidelity", "fidelity", r"-m pytest (tests/\S+::\w+)`"),
        ("faults", "fault", r"\| `(tests/\S+::\w+)` \|"),
    ],
)
def test_the_page_has_a_row_of_every_test(page, fixture, pattern):
    """If not: `make fidelity` or `make faults`."""
    text = (ROOT / "docs" / "reports" / f"{page}.md").read_text("utf-8")
    assert {*re.findall(pattern, text)} == {*nodes_with(fixture)}
