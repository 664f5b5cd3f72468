"""Modules of benchmarks/, which the fixture `benchmarks` returns by name."""

import functools

import module_folders
from checkout import ROOT

BENCHMARKS = ROOT / "benchmarks"
PEERS = BENCHMARKS / "peers"

# Takes more folders, such as PEERS.
importable = functools.partial(module_folders.importable, BENCHMARKS)
