"""Modules of benchmarks/, which find each other as they do when one runs.

The fixture `benchmarks` gives those that need nothing else:

def test_it(benchmarks):
    assert benchmarks("wikitext").articles(path) == ...
"""

import contextlib
import importlib
import pathlib
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from unittest import mock

import pytest
from checkout import ROOT

BENCHMARKS = ROOT / "benchmarks"
PEERS = BENCHMARKS / "peers"


@contextlib.contextmanager
def importable(
    *folders: pathlib.Path, absent: Iterable[str] = ()
) -> Iterator[Callable[[str], types.ModuleType]]:
    """Lets them be imported; what was, goes when the block ends.

    Args:
      folders: Where they are found beside benchmarks/, such as PEERS.
      absent: Packages that they import and that are not installed here.

    Yields:
      A function from a module's name to the module.
    """
    before = set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        for folder in (BENCHMARKS, *folders):
            patch.syspath_prepend(folder)
        for name in absent:
            patch.setitem(sys.modules, name, mock.MagicMock())
        try:
            yield importlib.import_module
        finally:
            for name in set(sys.modules) - before:
                # Some modules import much when they are asked for a name.
                file = vars(sys.modules[name]).get("__file__")
                if file and BENCHMARKS in pathlib.Path(file).parents:
                    del sys.modules[name]


def write_side(folder: pathlib.Path, program: str) -> pathlib.Path:
    """Writes a side's program, which finds what those in PEERS share."""
    path = folder / "side.py"
    head = f"import sys\nsys.path.insert(0, {str(PEERS)!r})\n"
    path.write_text(head + program, encoding="utf-8")
    return path


def stand_for_sides(
    program: pathlib.Path,
    benchmark: types.ModuleType,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Makes a program all sides of a benchmark of steps.

    It is told what they are told; they may be compiled.
    """
    commands = benchmark.command

    def command(side):
        _, _, *more = commands(side)
        return [sys.executable, program, *more]

    monkeypatch.setattr(benchmark, "command", command)
    monkeypatch.setenv("CXX", sys.executable)
