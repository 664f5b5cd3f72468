"""The benchmark of the input pipeline: what is drawn, and for how long."""

import itertools
import sys
import time

import pytest

from bert_tf.data import records
from tests import in_process


@pytest.fixture(scope="module")
def launch(benchmarks):
    with in_process.script("input_pipeline") as launch:
        yield launch


@pytest.fixture
def benchmark(launch):
    return sys.modules["input_pipeline"]


def test_batches_are_drawn_until_the_time_is_over(benchmark):
    numbers = itertools.count()

    def slow():
        for number in numbers:
            time.sleep(0.01)
            yield number

    reply = benchmark.Pipeline(slow()).ask(0.05)
    assert 1 <= reply["times"] == next(numbers) <= 5
    assert reply["seconds"] >= 0.05
    assert reply["cpu_seconds"] == reply["request_cpu_seconds"] < 0.05


def test_all_of_it(launch, benchmark, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(benchmark, "RECORDS_PER_FILE", 50)
    monkeypatch.setattr(benchmark, "BATCHES_BEFORE", 1)
    monkeypatch.setattr(benchmark, "SECONDS", 0.01)
    path = tmp_path / "results.json"
    assert launch(["--rounds=2", f"--output={path}"]) == 0
    kept = benchmark.Comparison.read(path)
    assert [turn.case for turn in kept.turns] == ["32 x 128"] * 2
    assert all(turn.amount % 32 == 0 < turn.rate for turn in kept.turns)
    assert "## Input pipeline" in capsys.readouterr().out


def test_there_are_as_many_records_as_it_says(benchmark, tmp_path, monkeypatch):
    monkeypatch.setattr(benchmark, "RECORDS_PER_FILE", 3)
    features = benchmark.schema.pretraining_schema(128, 20)
    paths = benchmark.write_files(str(tmp_path), features)
    assert [records.count_records(path) for path in paths] == [3] * 4
