"""Proof on a Spark cluster: the same bytes, whatever is killed.

`make spark` runs it. A test waits for a marker that a worker writes in the
middle of a stage, then kills a process with SIGKILL.
"""

import json
import os
import pathlib
import re
import signal
import subprocess

import pytest

from bert_tf.corpus import creation
from bert_tf.corpus.settings import CreationConfig
from tests import spark_cluster
from tests.spark_cluster import SIZES, STAGES, Cluster, wait_for
from tests.text_corpora import SPECIALS, WORDS, files_in, write_text

pytestmark = pytest.mark.slow
# Four output files on two executors, one of them compressed.
OUTPUTS = ["a.tfrecord", "b.tfrecord", "c.tfrecord.gz", "sub/d.tfrecord"]
# What a worker's Python runs first: it hides the package wherever it is.
WITHOUT_THE_PACKAGE = """
import sys

class Finder:
    def find_spec(self, name, *_):
        if name == "bert_tf":
            raise ModuleNotFoundError("No module named 'bert_tf'")

sys.meta_path.insert(0, Finder())
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    pytest.importorskip("pyspark")
    with Cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """A folder with texts in both formats and a vocabulary."""
    folder = tmp_path_factory.mktemp("texts")
    (folder / "vocab.txt").write_text("\n".join(SPECIALS + WORDS))
    write_text(folder / "a.txt", 150)
    write_text(folder / "b.txt.gz", 40, seed=1, most_sentences=120)
    documents = (folder / "a.txt").read_text().split("\n\n")
    lines = [json.dumps({"text": document}) for document in documents]
    (folder / "a.jsonl").write_text("\n".join(lines))
    return folder


def options(texts, folder, input_format="text"):
    names = ["a.txt", "b.txt.gz"] if input_format == "text" else ["a.jsonl"]
    return {
        "input_file": ",".join(f"{texts}/{name}" for name in names),
        "output_file": ",".join(f"{folder}/{name}" for name in OUTPUTS),
        "vocab_file": f"{texts}/vocab.txt",
        "input_format": input_format,
        "do_whole_word_mask": True,
        "max_seq_length": 64,
        "dupe_factor": 10,
    }


def flags(texts, folder, *more, **formats):
    given = options(texts, folder, **formats)
    return [f"--{name}={value}" for name, value in given.items()] + [*more]


def written(folder):
    """Returns all files by name; the manifest without the folder's name."""
    return {
        name: content.replace(str(folder).encode(), b"")
        for name, content in files_in(folder).items()
    }


@pytest.fixture(scope="module")
def expected(texts, tmp_path_factory):
    """What one machine writes, by format of the text."""
    found = {}
    for input_format in "text", "jsonl":
        folder = tmp_path_factory.mktemp("local")
        given = options(texts, folder, input_format)
        creation.create(CreationConfig(**given), 1, SIZES)
        found[input_format] = written(folder)
        assert len(found[input_format]) == 1 + len(OUTPUTS)
    return found


def assert_completes(program, expected, folder):
    _, stderr = program.communicate(timeout=spark_cluster.PATIENCE)
    assert program.returncode == 0, stderr
    assert "Traceback" not in stderr
    assert "at org.apache" not in stderr
    assert "WARN" not in stderr
    assert written(folder) == expected
    # No temporary folder is left.
    names = {path.partition("/")[0] for path in expected}
    assert set(os.listdir(folder)) == names


def assert_fails(program, folder):
    """Returns the program's error, which must be one line."""
    _, stderr = program.communicate(timeout=spark_cluster.PATIENCE)
    assert program.returncode == 1, stderr
    # The log of absl: the letter of the level, then the date.
    lines = [s for s in stderr.splitlines() if not s.startswith("I")]
    assert len(lines) == 1, stderr
    assert not folder.exists() or not written(folder)
    return lines[0]


def paused(cluster, texts, folder, stage, settings=()):
    """Starts a job that pauses in a stage; returns it and the worker's pid."""
    marker = folder.parent / f"{folder.name}-marker"
    pause = {"stage": stage, "marker": str(marker)}
    program = cluster.launch(flags(texts, folder), pause, settings)

    def note():
        assert program.poll() is None, program.stderr.read()
        return marker.exists() and json.loads(marker.read_text())

    return program, wait_for(note, f"the pause in the stage {stage}")["pid"]


def executor_of(pid):
    """Returns the Java process that started a Python worker's daemon."""
    executor = spark_cluster.parent_of(spark_cluster.parent_of(pid))
    command = pathlib.Path(f"/proc/{executor}/cmdline").read_bytes()
    assert b"CoarseGrainedExecutorBackend" in command
    return executor


@pytest.mark.parametrize("input_format", ["text", "jsonl"])
def test_a_cluster_writes_the_bytes_of_one_machine(
    cluster, texts, expected, tmp_path, input_format
):
    folder = tmp_path / "out"
    given = flags(texts, folder, input_format=input_format)
    assert_completes(cluster.launch(given), expected[input_format], folder)


def test_spark_submit_starts_the_script(cluster, texts, tmp_path):
    """With pieces of the default size, where the rest has small ones."""
    given = flags(texts, tmp_path / "a")
    _, stderr = cluster.submit(given).communicate()
    creation.create(CreationConfig(**options(texts, tmp_path / "b")), 1)
    found, expected = written(tmp_path / "a"), written(tmp_path / "b")
    assert found == expected, stderr
    assert len(expected) == 1 + len(OUTPUTS)
    # Errors keep their line and their exit status, without a Java stack trace.
    program = cluster.submit([*given, f"--vocab_file={texts}/nothing.txt"])
    # It prints the standard error of Python programs to its standard output.
    stdout, stderr = program.communicate()
    assert program.returncode == 1
    assert "create_pretraining_data.py: error: Cannot read" in stdout
    assert "at org.apache" not in stdout + stderr


@pytest.mark.parametrize("stage", STAGES)
def test_an_executor_is_killed(cluster, texts, expected, tmp_path, stage):
    cluster.restore()
    folder = tmp_path / "out"
    program, pid = paused(cluster, texts, folder, stage)
    os.kill(executor_of(pid), signal.SIGKILL)
    assert_completes(program, expected["text"], folder)


@pytest.mark.parametrize("stage", ["chunks", "join"])
def test_a_worker_is_killed_with_its_executor(
    cluster, texts, expected, tmp_path, stage
):
    """What it stored is lost, so earlier stages run again in part."""
    cluster.restore()
    folder = tmp_path / "out"
    program, pid = paused(cluster, texts, folder, stage)
    executor = executor_of(pid)
    parent = spark_cluster.parent_of(executor)
    [worker] = [w for w in cluster.workers.values() if w.pid == parent]
    spark_cluster.kill(worker)
    assert_completes(program, expected["text"], folder)


@pytest.mark.parametrize("who", ["Python", "Java"])
def test_the_driver_is_killed_and_the_job_runs_again(
    cluster, texts, expected, tmp_path, who
):
    cluster.restore()
    folder = tmp_path / "out"
    program, _ = paused(cluster, texts, folder, "chunks")
    if who == "Python":
        os.kill(program.pid, signal.SIGKILL)
        program.communicate()
        # Complete files appear at the end only.
        assert not any((folder / name).exists() for name in OUTPUTS)
        assert os.listdir(folder)
    else:
        [java] = (
            subprocess.run(
                ["pgrep", "-P", str(program.pid), "java"],
                capture_output=True,
                text=True,
                check=True,
            )
        ).stdout.split()
        os.kill(int(java), signal.SIGKILL)
        assert "Java process has ended" in assert_fails(program, folder)
    cluster.restore()
    program = cluster.launch(flags(texts, folder))
    assert_completes(program, expected["text"], folder)


def test_speculative_tasks_change_nothing(cluster, texts, expected, tmp_path):
    cluster.restore()
    folder = tmp_path / "out"
    settings = {
        "spark.speculation": "true",
        "spark.speculation.interval": "50ms",
        "spark.speculation.quantile": "0.1",
        "spark.speculation.multiplier": "1.1",
    }
    # The pause ends when another attempt has come to the same place.
    program, _ = paused(cluster, texts, folder, "chunks", settings.items())
    assert_completes(program, expected["text"], folder)
    assert (tmp_path / "out-marker.other").exists()


@pytest.mark.parametrize("mistake", ["package", "vocabulary", "text"])
def test_errors_of_workers_are_one_line(cluster, texts, tmp_path, mistake):
    """Relative paths are those of a disk that the workers do not have."""
    cluster.restore()
    folder = tmp_path / "out"
    given, settings = flags(texts, folder), {}
    if mistake == "package":
        (tmp_path / "sitecustomize.py").write_text(WITHOUT_THE_PACKAGE)
        settings = {"spark.executorEnv.PYTHONPATH": str(tmp_path)}
        expected = "A Spark worker lacks the module bert_tf."
    elif mistake == "text":
        (tmp_path / "bad.txt").write_bytes(b"wa\nwb\n\nwc\xff\n")
        given.append(f"--input_file={tmp_path}/bad.txt")
        expected = f"error: {tmp_path}/bad.txt:4: byte 0xff"
    else:
        given.append("--vocab_file=vocab.txt")
        expected = "On the worker .*: Cannot read vocab.txt: No such file"
    program = cluster.launch(given, settings=settings.items(), cwd=texts)
    assert re.search(expected, assert_fails(program, folder))
