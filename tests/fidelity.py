"""Fidelity figures, which tests assert and docs/reports/fidelity.md lists.

The fixture `fidelity` compares a number with its tolerance and records it:

    def test_pooled_output_is_the_originals(fidelity):
        ours, theirs = ...
        gap = np.abs(ours - theirs).max()
        fidelity("model: pooled output, Google's random model", gap, 2e-5)

The name of the check is shown in the table and starts with one of SECTIONS. For
exact equality the number is a count of differences and the tolerance 0. Several
numbers of one name in one test, as in a parametrised one, become one row with
the largest.

Tests with the fixture have the mark `fidelity`. A run of them with
`--fidelity_rows=FILE` writes its rows; the files of several runs, one per
Keras backend, make the table:

    python -m pytest -m fidelity --fidelity_rows=rows.json
    python tests/fidelity.py docs/reports/fidelity.md rows.json ...

`make fidelity` does all of it.
"""

import dataclasses
import importlib.metadata
import json
import pathlib
import platform
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence

import pytest

SECTIONS = {
    "model": "The model",
    "checkpoints": "Checkpoints",
    "optimizers": "Optimizers",
    "tokenization": "Tokenization",
    "records": "Records",
    "backends": "Keras backends",
    "conversions": "Conversions",
}
# Keras backend -> its name in the table, its package, its command.
BACKENDS = {
    "tensorflow": ("TensorFlow", "tensorflow", ".venv/bin/python"),
    "jax": ("JAX", "jax", "KERAS_BACKEND=jax .venv-jax/bin/python"),
    "torch": ("PyTorch", "torch", "KERAS_BACKEND=torch .venv-torch/bin/python"),
}
# In docs/reports/fidelity.md: everything below this line is replaced.
MARK = "<!-- `make fidelity` writes everything below this line. -->\n"

Fidelity = Callable[[str, float, float], None]


@dataclasses.dataclass(frozen=True)
class Row:
    """A cell of the table; `node` is the test, without its parameters."""

    check: str
    number: float
    tolerance: float
    node: str
    backend: str

    def __post_init__(self):
        if self.section not in SECTIONS:
            raise ValueError(
                f"expected a check that starts with one of "
                f"{', '.join(SECTIONS)} and a colon. Received: {self.check!r}"
            )

    @property
    def section(self) -> str:
        return self.check.partition(": ")[0]

    @property
    def key(self) -> tuple[str, str, str]:
        return self.check, self.node, self.backend


class Ledger:
    def __init__(self):
        self._rows: dict[tuple[str, str, str], Row] = {}

    def add(self, row: Row) -> None:
        """Keeps `row` unless its check already has a larger number."""
        kept = self._rows.setdefault(row.key, row)
        if kept.tolerance != row.tolerance:
            raise ValueError(
                f"expected one tolerance for {row.check!r}. Received: "
                f"{kept.tolerance:g} and {row.tolerance:g}"
            )
        if row.number > kept.number:
            self._rows[row.key] = row

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows.values())

    def write(self, path: pathlib.Path) -> None:
        """Writes the rows and the versions of packages."""
        packages = ("keras", BACKENDS[_backend()][1], "numpy")
        versions = {"Python": platform.python_version()} | {
            package: importlib.metadata.version(package) for package in packages
        }
        rows = [dataclasses.asdict(row) for row in self]
        run = {"versions": versions, "rows": rows}
        path.write_text(json.dumps(run, indent=1) + "\n", encoding="utf-8")


_LEDGER = pytest.StashKey[Ledger]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fidelity_rows",
        metavar="FILE",
        type=pathlib.Path,
        help="write the rows of the fixture `fidelity` as JSON",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_LEDGER] = Ledger()
    config.addinivalue_line(
        "markers", "fidelity: has rows in the table of fidelity"
    )


@pytest.hookimpl(tryfirst=True)  # Before `-m` selects.
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "fidelity" in getattr(item, "fixturenames", ()):
            item.add_marker("fidelity")


def pytest_sessionfinish(session: pytest.Session) -> None:
    path = session.config.getoption("fidelity_rows")
    if path:
        session.config.stash[_LEDGER].write(path)


@pytest.fixture
def fidelity(request: pytest.FixtureRequest) -> Fidelity:
    """Returns `fidelity(check, number, tolerance)`: asserts and records."""
    node = request.node.nodeid.partition("[")[0]
    ledger = request.config.stash[_LEDGER]

    def compare(check: str, number: float, tolerance: float) -> None:
        number, tolerance = float(number), float(tolerance)
        row = Row(check, number, tolerance, node, _backend())
        assert number <= tolerance, (
            f"{check}: {number:g}, more than the tolerance {tolerance:g}"
        )
        ledger.add(row)

    return compare


def _backend() -> str:
    import keras  # Imported after conftest.py has silenced TensorFlow.

    return keras.config.backend()


def table(runs: Iterable[dict]) -> str:
    """Returns the part below the mark, given what `Ledger.write` wrote."""
    runs = list(runs)
    ledger = Ledger()
    for row in (Row(**fields) for run in runs for fields in run["rows"]):
        ledger.add(row)
    versions = {
        "- " + ", ".join(f"{k} {v}" for k, v in run["versions"].items())
        for run in runs
    }
    lines = ["", "Measured with:", "", *sorted(versions)]
    for section, title in SECTIONS.items():
        mine = [row for row in ledger if row.section == section]
        if mine:
            lines += ["", f"## {title}", "", *_section(mine)]
    return "\n".join(lines) + "\n"


def _section(rows: Sequence[Row]) -> Iterator[str]:
    """Yields a table with a line per check and a column per backend."""
    backends = [b for b in BACKENDS if b in {row.backend for row in rows}]
    names = [BACKENDS[backend][0] for backend in backends]
    titles = ["check", *names, "tolerance", "command"]
    yield f"| {' | '.join(titles)} |"
    yield "|---" * len(titles) + "|"
    lines: dict[tuple, dict[str, Row]] = {}
    for row in rows:
        place = row.check, row.node, row.tolerance
        lines.setdefault(place, {})[row.backend] = row
    for (check, node, tolerance), found in sorted(lines.items()):
        numbers = [
            f"{found[b].number:.2g}" if b in found else "" for b in backends
        ]
        python = BACKENDS[next(b for b in backends if b in found)][2]
        command = f"`{python} -m pytest {node}`"
        cells = [check.partition(": ")[2], *numbers, f"{tolerance:g}", command]
        yield f"| {' | '.join(cells)} |"


def main(document: str, *rows: str) -> None:
    """Writes the table of the files `rows` into `document`.

    Prints to standard error which checks the document no longer has, since
    their tests were skipped or removed.
    """
    path = pathlib.Path(document)
    opening, mark, old = path.read_text(encoding="utf-8").partition(MARK)
    if not mark:
        raise SystemExit(f"error: expected the line {MARK.strip()} in {path}")
    new = table(json.loads(pathlib.Path(file).read_text()) for file in rows)
    path.write_text(opening + mark + new, encoding="utf-8")
    before, after = (
        re.findall(r"(?m)^\| (.+?) \|", text) for text in (old, new)
    )
    for check in sorted({*before} - {*after}):
        print(f"no longer in {path}: {check}", file=sys.stderr)


if __name__ == "__main__":
    main(*sys.argv[1:])
