"""The engine on one machine; `test_spark_cluster` has a cluster."""

import dataclasses
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest
from checkout import ROOT

from bert_tf.corpus import creation
from bert_tf.corpus.engines import spark
from bert_tf.corpus.settings import PieceSizes
from bert_tf.errors import InputError
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


@pytest.mark.parametrize("next_sentence", [True, False])
def test_files_and_samples_equal_those_of_one_machine(
    session, config, tmp_path, caplog, next_sentence
):
    caplog.set_level("INFO")
    config = dataclasses.replace(config, next_sentence=next_sentence)
    results = []
    for create, argument in (creation.create, 1), (spark.create, None):
        caplog.clear()
        manifest = create(config, argument, SIZES)
        samples = [
            record.getMessage()
            for record in caplog.records
            if record.funcName == "log_samples"
        ]
        assert len(samples) == 20
        results.append((manifest, files_in(tmp_path / "out"), samples))
        assert len(results[-1][1]) == 3
    assert results[0] == results[1]
    # The session of the caller goes on.
    assert session.range(3).count() == 3


@pytest.mark.parametrize(
    ("text", "outputs", "message"),
    [
        (b"wa\nwb\n\nwc\xff\n", "out/0", r"^a\.txt:4: byte 0xff"),
        (b"wa\nwb\n", "out/0", "has 1 with 2 in all. Put blank lines"),
        (b"wa\nwb\n\nwa\n", "out/0,1,2,3,4,5,6", "instances for 7 files"),
        # A path that cannot be written fails before the text is read.
        (b"\xff", "out/0,a.txt/b", r"Cannot write .*a.txt/b"),
    ],
)
def test_unusable_texts_leave_existing_files(
    session, config, tmp_path, text, outputs, message
):
    (tmp_path / "a.txt").write_bytes(text)
    (tmp_path / "out").mkdir()
    (tmp_path / "out/0").write_bytes(b"old")
    before = files_in(tmp_path)
    outputs = ",".join(f"{tmp_path}/{name}" for name in outputs.split(","))
    config = dataclasses.replace(
        config,
        input_file=f"{tmp_path}/a.txt",
        output_file=outputs,
        dupe_factor=1,
    )
    with pytest.raises(InputError) as raised:
        spark.create(config, sizes=SIZES)
    error = str(raised.value).replace(f"{tmp_path}/", "")
    assert "\n" not in error
    assert re.search(message, error)
    assert files_in(tmp_path) == before
    assert os.listdir(tmp_path / "out") == ["0"]


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
            engine.once("List", list, engine.map("Fail", function, items))

    with pytest.raises(InputError, match=r"^Cannot write x: full\.$"):
        run(refuse)
    with pytest.raises(Exception, match="KeyError: 'a bug with x'"):
        run(fail)
    with pytest.raises(InputError, match=r"^Spark stopped the job: ") as raised:
        run(end)
    assert "\n" not in str(raised.value)


def test_groups_hold_all_values(session):
    def listed(group):
        key, values = group
        return key, list(values)

    def both_listed(group):
        key, (first, second) = group
        return key, (list(first), list(second))

    pairs = [(n % 7, n) for n in range(5000)]
    with spark.opened(None) as engine:
        items = engine.spread("Items", [pairs[:30], pairs[30:]])
        numbers = engine.flat_map("Numbers", list, items)
        keys = engine.spread("Keys", [(n, "x") for n in range(7)])
        both = engine.union("Both", keys, numbers)
        grouped = engine.map("List", listed, engine.group("Group", both))
        found = engine.once("All", dict, grouped).value
        assert {key: len(values) for key, values in found.items()} == {
            key: 1 + len(range(key, 5000, 7)) for key in range(7)
        }
        joined = engine.co_group("Join", keys, numbers)
        two = engine.once("Two", dict, engine.map("Lists", both_listed, joined))
        for key in range(7):
            first, second = two.value[key]
            assert first == ["x"]
            assert sorted(second) == list(range(key, 5000, 7))


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


def test_the_reason_is_a_line_of_java():
    log = "26/11/28 ERROR X: Application has been killed. Reason: All masters"
    error = "An error occurred\n: java.lang.IllegalStateException: stopped\n"
    assert spark.reason(log, error) == "All masters"
    assert spark.reason("", error) == "stopped"
    assert spark.reason("", "\nplain\nmore") == "plain"
