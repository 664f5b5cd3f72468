"""The engine on one machine; `test_spark_cluster` has a cluster."""

import dataclasses
import os
import shutil
import signal
import subprocess
import sys

import pytest
from checkout import ROOT

from bert_tf.corpus.engines import spark
from bert_tf.corpus.settings import PieceSizes
from bert_tf.errors import InputError
from tests.corpus import engine_checks
from tests.text_corpora import config_of_two_texts, files_in, write_text

SIZES = PieceSizes(sentences=30, instances=61, text_bytes=6000)


@pytest.mark.parametrize("module", ["pandas", "pyarrow", "pyspark"])
def test_spark_has_to_be_installed(monkeypatch, module):
    for name in "pandas", "pyarrow":
        monkeypatch.setitem(sys.modules, name, sys)
    monkeypatch.setitem(sys.modules, module, None)
    message = rf"needs the package {module}.*pip install '\.\[spark\]'"
    with (
        pytest.raises(InputError, match=message),
        spark.opened(None),
    ):
        pass


# What follows needs Apache Spark.


@pytest.fixture(scope="module")
def session():
    """Spark in a process that goes on, as in a notebook."""
    pytest.importorskip("pyspark")
    if not shutil.which("java"):
        pytest.skip("Java is missing")
    with spark._start("local[2]") as session:
        yield session


@pytest.fixture
def config(tmp_path, vocab_file):
    return config_of_two_texts(tmp_path, vocab_file, 30, 90)


def create(job):
    return spark.create(job, sizes=SIZES)


@pytest.mark.parametrize("next_sentence", [True, False])
def test_files_and_samples_equal_those_of_one_machine(
    session, config, tmp_path, caplog, next_sentence
):
    config = dataclasses.replace(config, next_sentence=next_sentence)
    engine_checks.assert_equal_to_one_machine(
        create, config, SIZES, tmp_path / "out", caplog
    )
    # The session of the caller goes on.
    assert session.range(3).count() == 3


def test_errors_of_workers_are_raised(session):
    # Spark sends nested functions to workers that cannot import this module.
    def refuse(item):
        raise InputError(f"Cannot write {item}: full.") from OSError("full")

    def fail(item):
        raise KeyError(f"a bug with {item}")

    def end(item):
        os._exit(3)

    def run(function):
        with spark.opened(None) as engine:
            items = engine.spread("Items", ["x"])
            engine.once("List", list, engine.flat_map("Fail", function, items))

    with pytest.raises(InputError, match=r"^Cannot write x: full\.$"):
        run(refuse)
    with pytest.raises(Exception, match="KeyError: 'a bug with x'"):
        run(fail)
    with pytest.raises(InputError, match=r"^Spark stopped the job: ") as raised:
        run(end)
    assert "\n" not in str(raised.value)


def test_groups_hold_all_values(session):
    def both_listed(group):
        key, (first, second) = group
        return [(key, (list(first), sorted(second)))]

    pairs = [(n % 7, n) for n in range(5000)]
    with spark.opened(None) as engine:
        items = engine.spread("Items", [pairs[:30], pairs[30:]])
        numbers = engine.flat_map("Numbers", list, items)
        keys = engine.spread("Keys", [(n, "x") for n in range(7)])
        joined = engine.group("Join", keys, numbers)
        lists = engine.flat_map("Lists", both_listed, joined)
        found = engine.once("All", dict, lists).value
        assert found == {
            key: (["x"], list(range(key, 5000, 7))) for key in range(7)
        }


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.slow
def test_signals_stop_the_job(session, config, tmp_path, number):
    """In a process of its own; nothing that it wrote is left."""
    write_text(tmp_path / "a.txt", 3000)
    flags = [
        f"--{name}={getattr(config, name)}"
        for name in ("input_file", "output_file", "vocab_file")
    ]
    flags += ["--runner=spark", "--spark_master=local[1]"]
    with subprocess.Popen(
        [sys.executable, ROOT / "create_pretraining_data.py", *flags],
        stderr=subprocess.PIPE,
        text=True,
    ) as program:
        for line in program.stderr:
            if "Reading from" in line:
                break
        folder = tmp_path / "out"
        while not any("chunk-" in name for name in files_in(folder)):
            assert program.poll() is None
        program.send_signal(number)
        _, stderr = program.communicate()
    assert program.returncode == 128 + number
    assert "Traceback" not in stderr
    assert files_in(folder) == {}


def test_java_has_to_be_installed():
    pytest.importorskip("pyspark")
    code = "from bert_tf.corpus.engines.spark import _start; _start('')"
    found = subprocess.run(
        [sys.executable, "-c", code],
        env={"PATH": "/nowhere", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert "needs Java 17 or newer" in found.stderr.splitlines()[-1]
