"""The folder of the project, its tests with a fixture, programs in it."""

import ast
import os
import pathlib
import subprocess
import sys
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


def python(
    *words: object, cwd: pathlib.Path = ROOT, without=(), **variables: str
) -> subprocess.CompletedProcess:
    """Runs Python, without variables that start with some prefixes."""
    outer = {k: v for k, v in os.environ.items() if not k.startswith(without)}
    return subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=cwd,
        env=outer | variables,
        capture_output=True,
        text=True,
    )
