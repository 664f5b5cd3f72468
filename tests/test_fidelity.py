"""The fixture that asserts and records, and the table of what it recorded."""

import json
import re

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

def test_unknown_section(fidelity):
    fidelity("models: no such section", 0, 0)

def test_plain():
    pass
"""


def row(check="model: a, b", **changes):
    fields = {
        "number": 1.5e-6,
        "tolerance": 1e-5,
        "node": "tests/test_x.py::test_y",
        "backend": "tensorflow",
    }
    return {"check": check} | fields | changes


def run(*rows):
    return {"versions": {"keras": "3.0"}, "rows": list(rows)}


def test_asserts_and_keeps_the_largest_number_of_the_cases(pytester):
    pytester.makepyfile(TESTS)
    path = pytester.path / "rows.json"
    result = pytester.runpytest_inprocess(
        *("-p", "tests.fidelity", "--strict-markers", "-m", "fidelity"),
        f"--fidelity_rows={path}",
    )
    result.assert_outcomes(passed=3, failed=3, deselected=1)
    result.stdout.fnmatch_lines(
        [
            "*model: too far: 0.25, more than the tolerance 0.125*",
            "*model: nothing: nan, more than the tolerance 1*",
            "*one of model, *'models: no such section'*",
        ]
    )
    (only,) = json.loads(path.read_text())["rows"]
    assert only["check"] == "model: of cases"
    assert only["number"] == 3e-6
    assert only["node"].endswith("::test_cases")


def test_the_table_of_several_runs():
    text = plugin.table(
        [
            run(row("tokenization: words", number=0.0, tolerance=0)),
            run(row(backend="torch"), row(number=2e-6)),
            run(row("model: alone", backend="torch", number=3.0)),
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
    assert f"| words | 0 | 0 | `.venv/bin/python {command}" in tokenization


def test_the_table_has_a_row_of_every_test():
    """If not: `make fidelity`. Its commands name tests that exist."""
    page = ROOT / "docs" / "reports" / "fidelity.md"
    text = page.read_text(encoding="utf-8")
    commands = set(re.findall(r"-m pytest (tests/\S+::\w+)`", text))
    assert commands == set(nodes_with("fidelity"))
