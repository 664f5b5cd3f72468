"""The folder of the project, and the tests that use a fixture."""

import ast
import pathlib
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parent.parent


def nodes_with(fixture: str) -> Iterator[str]:
    """tests/FILE.py::NAME of every test that takes a fixture."""
    for path in (ROOT / "tests").rglob("test_*.py"):
        text = path.read_text(encoding="utf-8")
        # Parsing the tests that do not even contain the word takes seconds.
        for node in ast.walk(ast.parse(text)) if fixture in text else ():
            if (
                isinstance(node, ast.FunctionDef)
                and node.name.startswith("test_")
                and fixture in [a.arg for a in node.args.args]
            ):
                yield f"{path.relative_to(ROOT).as_posix()}::{node.name}"
