"""create_pretraining_data.py, run in this process and as a command."""

import os
import re
import resource
import signal
import subprocess
import sys
import time

import in_process
import pytest
from checkout import ROOT

from bert_tf.base import files

SCRIPT_NAME = "create_pretraining_data"
# The defaults of the original's flags.
ORIGINAL_DEFAULTS = {
    "do_lower_case": True,
    "do_whole_word_mask": False,
    "max_seq_length": 128,
    "max_predictions_per_seq": 20,
    "random_seed": 12345,
    "dupe_factor": 10,
    "masked_lm_prob": 0.15,
    "short_seq_prob": 0.1,
}
WRITTEN = ["manifest.x.tfrecord.json", "x.tfrecord"]


@pytest.fixture
def work(tmp_path, monkeypatch):
    """A folder with a vocabulary, a text of two documents and an output."""
    monkeypatch.chdir(tmp_path)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "##c"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    (tmp_path / "text.txt").write_text("a bc a\nb\n\nbcc a\na b\n" * 50)
    (tmp_path / "out").mkdir()
    (tmp_path / "out/x.tfrecord").write_bytes(b"old")
    return tmp_path


FLAGS = ["--input_file=text.txt", "--output_file=out/x.tfrecord"]
FLAGS += ["--vocab_file=vocab.txt"]
SCRIPT = [sys.executable, ROOT / "create_pretraining_data.py", *FLAGS]


def start(*flags, **options):
    options |= {"stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([*SCRIPT, *flags], **options)


def manifest():
    return files.read_json("out/manifest.x.tfrecord.json")


def test_records_are_written_and_some_are_logged(work, launch, caplog):
    program = start("--num_workers=2")
    _, stderr = program.communicate()
    assert program.returncode == 0, stderr
    assert sorted(os.listdir("out")) == WRITTEN
    assert ORIGINAL_DEFAULTS.items() <= manifest()["settings"].items()
    total = manifest()["counts"]["instances"]
    assert f"Wrote {total} total instances" in stderr
    assert stderr.count("*** Example ***") == 5
    assert re.search(r"tokens: \[CLS\] .* \[SEP\] .* \[SEP\]\n", stderr)
    # An output may match the glob of the inputs.
    assert launch([*FLAGS, "--input_file=t*", "--output_file=t.tfrecord"]) == 0


def test_flags_are_recorded_in_the_manifest(work, launch, capsys):
    expected = {
        "next_sentence": False,
        "do_lower_case": False,
        "strip_accents": True,
        "do_whole_word_mask": True,
        "max_seq_length": 17,
        "errors": "ignore",
    }
    words = [f"--{name}={value}" for name, value in expected.items()]
    assert launch([*FLAGS, *words, "--verbosity=-1"]) == 0
    assert capsys.readouterr().err == ""
    assert expected.items() <= manifest()["settings"].items()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--input_file=nothing*.txt"], "nothing*.txt"),
        (["--output_file=/proc/none/x"], "/proc/none/x"),
        (["--output_file=link/vocab.txt"], "would overwrite the vocabulary"),
        (["--runner=dask"], "<local|spark|beam>"),
        (["--runner=beam", "--num_workers=2"], "pass --runner=local"),
        (["--beam_options=--runner=x"], "pass --runner=beam"),
    ],
)
def test_errors_are_one_line(work, launch, capsys, flags, message):
    os.symlink(work, "link")
    assert launch([*FLAGS, *flags]) in (1, 2)
    error = in_process.the_error(capsys, "create_pretraining_data")
    assert message in error
    assert sorted(os.listdir()) == ["link", "out", "text.txt", "vocab.txt"]
    assert os.listdir("out") == ["x.tfrecord"]
    assert (work / "text.txt").read_text().startswith("a bc a\nb\n")


def test_beam_writes_the_same_files(work):
    pytest.importorskip("apache_beam")
    _, stderr = start("--runner=local").communicate()
    expected = {path: path.read_bytes() for path in (work / "out").iterdir()}
    assert len(expected) == 2, stderr
    options = "--beam_options=--direct_running_mode=multi_threading"
    program = start("--runner=beam", options)
    _, stderr = program.communicate()
    assert program.returncode == 0, stderr
    assert {p: p.read_bytes() for p in (work / "out").iterdir()} == expected
    assert stderr.count("*** Example ***") == 5
    assert "WARN" not in stderr
    program = start("--runner=beam", "--beam_options=--runner=Flnk")
    _, stderr = program.communicate()
    assert program.returncode == 1
    assert "error: --beam_options='--runner=Flnk' cannot be used: " in stderr
    assert "Traceback" not in stderr


def test_a_full_disk_leaves_existing_files(work):
    (work / "text.txt").write_text("a b\nb\n\n" * 100_000)
    limit = resource.RLIMIT_FSIZE, (2**20, 2**20)
    program = start(
        "--num_workers=1", preexec_fn=lambda: resource.setrlimit(*limit)
    )
    _, stderr = program.communicate()
    assert program.returncode == 1
    assert "error: Cannot write" in stderr.splitlines()[-1]
    assert os.listdir("out") == ["x.tfrecord"]
    assert (work / "out/x.tfrecord").read_bytes() == b"old"


@pytest.mark.parametrize(
    ("num_workers", "number"), [(1, signal.SIGINT), (2, signal.SIGKILL)]
)
def test_a_stopped_job_leaves_existing_files(work, launch, number, num_workers):
    (work / "text.txt").write_text("a b\nb\n\n" * 12_000)
    flags = (f"--num_workers={num_workers}", "--dupe_factor=20")
    program = start(*flags, start_new_session=True)
    for line in program.stderr:
        if "Example" in line:
            break
    os.killpg(program.pid, number)
    began = time.monotonic()
    _, stderr = program.communicate(timeout=30)
    assert time.monotonic() - began < 5
    assert "Traceback" not in stderr
    assert (work / "out/x.tfrecord").read_bytes() == b"old"
    assert files.expand("out/*") == ["out/x.tfrecord"]
    if number != signal.SIGKILL:
        assert program.returncode == 128 + number
        assert os.listdir("out") == ["x.tfrecord"]
        return
    # The files that it left are ignored, and removed by the next job.
    assert len(os.listdir("out")) > 1
    assert launch([*FLAGS, "--dupe_factor=1"]) == 0
    assert sorted(os.listdir("out")) == WRITTEN


def test_neither_the_script_nor_its_workers_import_tensorflow(work):
    document = ("a b " * 60 + "\n") * 20 + "\n"
    (work / "text.txt").write_text(document * 300)  # More than one block.
    python, *command = SCRIPT
    command += ["--num_workers=2", "--dupe_factor=1"]
    done = subprocess.run(
        [python, "-X", "importtime", *command], capture_output=True, text=True
    )
    assert done.returncode == 0
    imported = re.findall(r"\| +(\S+)$", done.stderr, re.MULTILINE)
    assert imported.count("numpy") == 3  # This process and two workers.
    assert "tensorflow" not in imported
    assert "keras" not in imported
