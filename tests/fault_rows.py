"""What was broken and what came of it: tests assert, docs/scale.md lists.

The fixture `fault` holds the weights after a fault to those of a run that
nothing disturbed, and keeps a row:

    def test_a_full_disk(fault):
        ...
        fault("a full disk", "one line: `...`", difference)

Tests with the fixture have the mark `fault`. A run of them with
`--fault_rows=FILE` writes the rows, and benchmarks/fault_section.py the section
of them; `make faults` does both.
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
        help="write what the fixture `fault` was told, as JSON",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_ROWS] = []
    config.addinivalue_line("markers", "fault: what it breaks is in the table")


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
    """`fault(broken, happened, difference)`: asserts and records.

    Args of what it gives:
      broken: What was done to a run, for the table's readers.
      happened: What came of it, as it was seen.
      difference: The largest one between what the same command ends with and
        what an undisturbed run does. It has to be 0.
    """
    node = request.node.nodeid.partition("[")[0]
    rows = request.config.stash[_ROWS]

    def keep(broken: str, happened: str, difference: float) -> None:
        assert difference == 0, f"{broken}: {difference:g}, and not 0"
        rows.append(
            {
                "broken": broken,
                "happened": happened,
                "difference": float(difference),
                "node": node,
            }
        )

    return keep
