"""Modules of benchmarks/, which find each other as they do when one runs.

The fixture `benchmarks` gives those that need nothing else:

def test_it(benchmarks):
    assert benchmarks("wikitext").articles(path) == ...
"""

import functools
import pathlib
import sys
import types

import module_folders
import pytest
from checkout import ROOT

BENCHMARKS = ROOT / "benchmarks"
PEERS = BENCHMARKS / "peers"

# Takes more folders, such as PEERS.
importable = functools.partial(module_folders.importable, BENCHMARKS)


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
