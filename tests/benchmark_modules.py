"""Modules of benchmarks/, imported as when one of them runs.

The fixture `benchmarks` in conftest.py returns them by name:

def test_it(benchmarks):
    assert benchmarks("comparison").shown(0.5) == "0.50"
"""

import functools

import module_folders
from checkout import ROOT

BENCHMARKS = ROOT / "benchmarks"
PEERS = BENCHMARKS / "peers"

# Takes more folders, such as PEERS.
importable = functools.partial(module_folders.importable, BENCHMARKS)
