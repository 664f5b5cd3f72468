"""Where the project lies that is tested, and which of its tests are marked."""

import ast
import pathlib
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parent.parent


def nodes_with(fixture: str) -> Iterator[str]:
    """tests/FILE.py::NAME of every test that takes a fixture."""
    for path in (ROOT / "tests").rglob("test_*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.FunctionDef)
                and node.name.startswith("test_")
                and fixture in [a.arg for a in node.args.args]
            ):
                yield f"{path.relative_to(ROOT).as_posix()}::{node.name}"
