"""Where programs and data lie."""

import pathlib

BENCHMARKS = pathlib.Path(__file__).resolve().parent
PEERS = BENCHMARKS / "peers"
ROOT = BENCHMARKS.parent
# Beside the checkout, where there is one.
DATA = ROOT.parent / "shared" / "data"
