"""The texts and the verdict of the benchmark of large corpora."""

import itertools
import subprocess
import sys

import pytest
from absl import flags

from tests import in_process


@pytest.fixture(scope="module")
def benchmark(benchmarks):
    with in_process.script("corpus_scale"):
        flags.FLAGS.mark_as_parsed()
        yield benchmarks("corpus_scale")


def test_texts_follow_from_the_seed(benchmark, tmp_path):
    texts = []
    for name, seed in ("a", 3), ("b", 3), ("c", 4):
        benchmark.write_text(tmp_path / name, 20_000, seed)
        texts.append((tmp_path / name).read_text())
    assert texts[0] == texts[1] != texts[2]
    assert 20_000 <= len(texts[0]) < 60_000
    documents = texts[0].removesuffix("\n\n").split("\n\n")
    first = "".join(itertools.islice(benchmark.documents(3), len(documents)))
    assert texts[0] == first
    lengths = [len(line.split()) for line in texts[0].splitlines() if line]
    assert (min(lengths), max(lengths)) == (5, 30)


def row(benchmark, megabytes, cpu_seconds, mebibytes):
    usage = benchmark.sessions.SessionUsage(9.0, cpu_seconds, mebibytes * 2**20)
    return benchmark.Row(megabytes * 10**6, 7, 1234, usage)


@pytest.mark.parametrize(
    ("cpu_seconds", "mebibytes", "verdict"),
    [(20, 120, "is within"), (20.1, 120, "is not"), (20, 121, "is not")],
)
def test_the_verdict_holds_both_limits(
    benchmark, cpu_seconds, mebibytes, verdict
):
    rows = [
        row(benchmark, 5, 2.0, 100),
        row(benchmark, 50, cpu_seconds, mebibytes),
    ]
    text = benchmark.section(rows)
    assert f"which {verdict}" in text
    assert "| 5 MB | 7 | 1,234 | 100 MiB | 2.0 s |" in text
    assert max(map(len, text.splitlines())) <= 80


def test_the_picture_is_drawn(benchmark, tmp_path):
    rows = [row(benchmark, 5, 2.0, 100), row(benchmark, 50, 20, 110)]
    benchmark.draw(rows, str(tmp_path / "x.png"))
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


def test_memory_of_all_processes_counts(benchmark):
    child = "import time; x = b'1' * 50_000_000; time.sleep(0.4)"
    parent = (
        "import subprocess, sys; x = b'1' * 50_000_000; "
        f"subprocess.run([sys.executable, '-c', {child!r}])"
    )
    usage = benchmark.sessions.run([sys.executable, "-c", parent])
    assert usage.peak_bytes > 100_000_000
    assert usage.seconds > 0.4
    assert usage.cpu_seconds > 0
    with pytest.raises(subprocess.CalledProcessError):
        benchmark.sessions.run([sys.executable, "-c", "raise SystemExit(3)"])
