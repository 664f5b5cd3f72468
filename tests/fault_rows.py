"""Rows of the table of faults in docs/reports/faults.md, which tests produce.

The fixture `fault` compares the weights after a fault with an undisturbed
run's, and records a row:

    def test_a_full_disk(fault):
        ...
        fault("a full disk", "one line: `...`", difference)

Tests with the fixture have the mark `fault`. A run of them with
`--fault_rows=FILE` writes the rows, and benchmarks/fault_section.py writes the
section; `make faults` does both.
"""

import json
import pathlib
from collections.abc import Callable

import pytest

Fault = Callable[[str, str, float | None], None]

_ROWS = pytest.StashKey[list[dict]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fault_rows",
        metavar="FILE",
        type=pathlib.Path,
        help="write the rows of the fixture `fault` as JSON",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_ROWS] = []
    config.addinivalue_line(
        "markers", "fault: has a row in the table of faults"
    )


@pytest.hookimpl(tryfirst=True)  # Before `-m` chooses.
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "fault" in getattr(item, "fixturenames", ()):
            item.add_marker("fault")


def pytest_sessionfinish(session: pytest.Session) -> None:
    path = session.config.getoption("fault_rows")
    if path:
        text = json.dumps(session.config.stash[_ROWS], indent=1)
        path.write_text(text + "\n", encoding="utf-8")


@pytest.fixture
def fault(request: pytest.FixtureRequest) -> Fault:
    """Returns `fault(broken, happened, difference)`: asserts and records.

    The difference is the largest one between the final weights of the rerun
    command and of an undisturbed run, which must be 0.
    """
    node = request.node.nodeid.partition("[")[0]

    def keep(broken: str, happened: str, difference: float) -> None:
        assert difference == 0, f"{broken}: {difference:g}, and not 0"
        row = {"broken": broken, "happened": happened, "node": node}
        row["difference"] = float(difference)
        request.config.stash[_ROWS].append(row)

    return keep
