"""The benchmark of the pre-training step: its work, its sides, their turns."""

import sys

import numpy as np
import pytest
from benchmark_modules import (
    PEERS,
    importable,
    stand_for_sides,
    write_side,
)

from tests import in_process

# It stands for a side: its updates are all of the same length.
PROGRAM = """
import time
import training

if "--compile" in sys.argv:
    sys.argv.remove("--compile")

def make(request):
    assert sum(map(sum, request["rows"])) == 256
    return training.Work(lambda: time.sleep(0.01), lambda: time.sleep(0.001))

training.main(make, ["pytest"])
"""


@pytest.fixture(scope="module")
def launch(benchmarks):
    with in_process.script("training_step") as launch:
        yield launch


@pytest.fixture
def benchmark(launch):
    return sys.modules["training_step"]


def test_all_sides_take_turns_in_every_case(
    launch, benchmark, monkeypatch, tmp_path, capsys
):
    program = write_side(tmp_path, PROGRAM)
    stand_for_sides(program, benchmark, monkeypatch)
    words = [
        "--models=384x6",
        "--lengths=32,128",
        "--tokens=256",
        "--rounds=2",
        "--least_seconds=0",
        f"--peer_python={sys.executable}",
        f"--keras_hub_python={sys.executable}",
        f"--output={tmp_path / 'results.json'}",
    ]
    assert launch(words) == 0
    kept = benchmark.Comparison.read(tmp_path / "results.json")
    assert kept.cases == [
        "384x6, 8 x 32, float32",
        "384x6, 8 x 32, bfloat16",
        "384x6, 2 x 128, float32",
        "384x6, 2 x 128, bfloat16",
    ]
    for case in kept.cases:
        assert kept.sides(case) == list(benchmark.TITLES)
        precision = case.split(", ")[-1]
        assert kept.aims[case] == benchmark.AIMS[precision]
    assert {turn.amount for turn in kept.turns} == {2 * 256}
    assert all(turn.share > 0 for turn in kept.turns)
    title = "| matmul peak, GFLOP/s | share of it |"
    assert title in capsys.readouterr().out


def test_nothing_compiles_without_a_compiler(launch, benchmark, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    names = {"variants": ["ours", "compiled"]}
    step_sides = benchmark.step_sides
    monkeypatch.setattr(step_sides, "FLAGS", type("", (), names))
    assert step_sides.left_out() == {"compiled": "there is no C++ compiler"}


def test_our_side_makes_updates():
    request = {
        "config": {
            "vocab_size": 50,
            "hidden_size": 8,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "intermediate_size": 16,
            "max_position_embeddings": 16,
            "type_vocab_size": 2,
        },
        "rows": [[16], [16], [11]],
        "max_seq_length": 16,
        "max_predictions_per_seq": 2,
        "precision": "float32",
        "matrix_size": 31,
    }
    with importable(PEERS) as module_of:
        side = module_of("bert_tf_training")
    work = side.make(request)
    first = work.steps()
    assert np.isfinite(first).all()
    assert not np.array_equal(work.steps(), first)
    assert work.products().shape == (31, 31)
    assert work.peak_bytes() is None
