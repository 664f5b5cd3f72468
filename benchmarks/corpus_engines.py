"""Data creation on one machine, on Apache Spark and on Apache Beam.

    .venv-spark/bin/python benchmarks/corpus_engines.py --sides=local,spark
    .venv-spark/bin/python benchmarks/corpus_engines.py --sides=beam ...

runs create_pretraining_data.py with two workers on texts of 5, 50 and 200 MB,
made as in corpus_scale.py. Spark runs a cluster with two executors of one core
and 1 GiB (`local-cluster[2,1,1024]`), Beam two processes; each needs its own
environment (`make spark`, `make test-beam`). With --output, later runs add
sides to the same file. CPU time and memory are those of all processes, sampled
20 times a second.
"""

import collections
import contextlib
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence

import comparison
import corpus_scale
import sides

from bert_tf import cli
from bert_tf.base import files
from bert_tf.base.options import option
from bert_tf.jobs import vocabulary

FLAGS = {
    "local": ["--num_workers=2"],
    "spark": ["--runner=spark", "--spark_master=local-cluster[2,1,1024]"],
    "beam": [
        "--runner=beam",
        "--beam_options=--direct_running_mode=multi_processing "
        "--direct_num_workers=2",
    ],
}
NAMES = {"local": "one machine", "spark": "Spark", "beam": "Beam"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class CorpusEnginesConfig(comparison.PageOptions):
    """Options of this benchmark."""

    sides: tuple[str, ...] = option(
        "What to measure: local, spark, beam.", default=("local", "spark")
    )
    megabytes: tuple[str, ...] = option(
        "Sizes of the texts.", default=("5", "50", "200")
    )
    vocab_size: int = option(
        "Size of the vocabulary, learned from the first text.", default=8000
    )
    output: str | None = option("JSON file of all results.", default=None)


def run(config: CorpusEnginesConfig) -> list[dict[str, object]]:
    """Runs the benchmark."""
    rows = []
    if config.output and files.exists(config.output):
        rows = json.loads(files.read_text(config.output))
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for size in config.megabytes:
            text = folder / "text.txt"
            corpus_scale.write_text(text, int(float(size) * 1e6))
            vocab = folder / "vocab.txt"
            if not vocab.exists():
                vocabulary.run(
                    vocabulary.VocabularyConfig(
                        input_file=str(text),
                        output_file=str(vocab),
                        vocab_size=config.vocab_size,
                    )
                )
            for side in config.sides:
                rows.append(measure(side, float(size), folder))
                print(rows[-1], file=sys.stderr)
                if config.output:
                    files.write_text(config.output, json.dumps(rows, indent=1))
    comparison.publish(section(rows), config.page, "engines")
    return rows


def measure(
    side: str, megabytes: float, folder: pathlib.Path
) -> dict[str, object]:
    """Makes records; returns their checksum and what it took."""
    command = [
        sys.executable,
        str(sides.ROOT / "create_pretraining_data.py"),
        f"--input_file={folder}/text.txt",
        f"--output_file={folder}/1.tfrecord,{folder}/2.tfrecord",
        f"--vocab_file={folder}/vocab.txt",
        *FLAGS[side],
    ]
    environment = {
        **os.environ,
        "SPARK_LOCAL_DIRS": str(folder),
        "SPARK_WORKER_DIR": str(folder / "work"),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(sides.ROOT),
    }
    cpu: dict[int, tuple[str, float]] = {}
    peaks: collections.Counter[str] = collections.Counter()
    start = time.monotonic()
    with subprocess.Popen(
        command,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,
    ) as process:
        while process.poll() is None:
            now: collections.Counter[str] = collections.Counter()
            for pid, role, seconds, size in processes_of(process.pid):
                cpu[pid] = role, seconds
                now[role] += size
                now["all"] += size
            peaks |= now
            time.sleep(0.05)
    seconds = time.monotonic() - start
    if process.returncode:
        sys.exit(f"{side} has failed; run: {' '.join(command)}")
    seconds_of: collections.Counter[str] = collections.Counter()
    for role, used in cpu.values():
        seconds_of[role] += used
    manifest = files.read_json(f"{folder}/manifest.1.tfrecord.json")
    return {
        "side": side,
        "megabytes": megabytes,
        "seconds": seconds,
        "cpu_seconds": seconds_of,
        "mebibytes": {k: n / comparison.MIB for k, n in peaks.items()},
        "examples": manifest["counts"]["instances"],
        "sha256": [each["sha256"] for each in manifest["outputs"]],
    }


def processes_of(session: int) -> Iterator[tuple[int, str, float, int]]:
    """Yields the id, role, CPU seconds and bytes of a session's processes."""
    ticks, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        # The process may end meanwhile.
        with contextlib.suppress(OSError):
            pid = int(folder.name)
            if os.getsid(pid) != session:
                continue
            words = (folder / "stat").read_text().rpartition(")")[2].split()
            line = (folder / "cmdline").read_bytes()
            if not line:
                continue  # It has just ended.
            yield (
                pid,
                role_of(line),
                (int(words[11]) + int(words[12])) / ticks,
                int(words[21]) * page,
            )


def role_of(line: bytes) -> str:
    """Returns what a process of Spark does, from its command line."""
    if b"pyspark.daemon" in line:
        return "Python of the executors"
    if b"CoarseGrainedExecutorBackend" in line:
        return "Java of the executors"
    return "Java of the driver" if b"java" in line else "Python"


def section(rows: Sequence[dict]) -> str:
    """Returns the section of docs/reports/performance.md."""
    titles = ["text", "engine", "time", "CPU time", "of the driver"]
    titles += ["memory", "per executor"]
    cells = []
    for row in rows:
        sizes = row["mebibytes"]
        parts = [sizes.get(f"{x} of the executors", 0) for x in JAVA_PYTHON]
        cpu = row["cpu_seconds"]
        driver = [cpu.get(name, 0) for name in ("Python", "Java of the driver")]
        cells.append(
            [
                f"{row['megabytes']:,.0f} MB",
                NAMES[row["side"]],
                f"{row['seconds']:,.0f} s",
                f"{sum(cpu.values()):,.0f} s",
                f"{sum(driver):,.0f} s" if row["side"] == "spark" else "-",
                f"{sizes['all']:,.0f} MiB",
                " + ".join(f"{size / 2:,.0f}" for size in parts if size) or "-",
            ]
        )
    return comparison.paragraphs(
        [
            f"- {sides.processor()}; `create_pretraining_data.py` with two "
            "workers and `--dupe_factor=10`; all wrote the same bytes",
            "- Memory is the largest sum over all processes; per executor, MiB "
            "of Java and of Python. Spark's driver is a process of Java and "
            "one of Python",
        ],
        comparison.table([titles, *cells]),
    )


JAVA_PYTHON = ("Java", "Python")

if __name__ == "__main__":
    cli.main(run)
