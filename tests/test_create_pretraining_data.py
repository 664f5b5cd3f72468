"""create_pretraining_data.py, run as a command."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
import time

import pytest
from checkout import ROOT

from bert_tf import files

SCRIPT = ROOT / "create_pretraining_data.py"

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


@pytest.fixture
def work(tmp_path):
    """A folder with a vocabulary and a text of two documents."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "##c"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    (tmp_path / "text.txt").write_text("a bc a\nb\n\nbcc a\na b\n" * 50)
    (tmp_path / "out").mkdir()
    return tmp_path


def command(work, *flags):
    return [
        sys.executable,
        str(SCRIPT),
        f"--input_file={work}/text.txt",
        f"--output_file={work}/out/x.tfrecord",
        f"--vocab_file={work}/vocab.txt",
        *flags,
    ]


def run(work, *flags, **options):
    return subprocess.run(
        command(work, *flags), capture_output=True, text=True, **options
    )


def test_records_are_written_and_some_are_logged(work):
    done = run(work)
    assert done.returncode == 0, done.stderr
    assert sorted(os.listdir(work / "out")) == [
        "manifest.x.tfrecord.json",
        "x.tfrecord",
    ]
    manifest = json.loads((work / "out/manifest.x.tfrecord.json").read_text())
    assert ORIGINAL_DEFAULTS.items() <= manifest["settings"].items()
    total = manifest["counts"]["instances"]
    assert f"Wrote {total} total instances" in done.stderr
    assert done.stderr.count("*** Example ***") == 5
    assert re.search(r"tokens: \[CLS\] .* \[SEP\] .* \[SEP\]\n", done.stderr)


def test_an_output_may_match_the_glob_of_the_inputs(work):
    done = run(
        work, f"--input_file={work}/t*", f"--output_file={work}/t.tfrecord"
    )
    assert done.returncode == 0, done.stderr


def test_flags_are_recorded_in_the_manifest(work):
    done = run(
        work,
        "--nonext_sentence",
        "--nodo_lower_case",
        "--strip_accents",
        "--do_whole_word_mask",
        "--max_seq_length=17",
        "--mask_share=0.5",
        "--keep_share=0.4",
        "--errors=ignore",
        "--verbosity=-1",
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    manifest = json.loads((work / "out/manifest.x.tfrecord.json").read_text())
    expected = {
        "next_sentence": False,
        "do_lower_case": False,
        "strip_accents": True,
        "do_whole_word_mask": True,
        "max_seq_length": 17,
        "mask_share": 0.5,
        "keep_share": 0.4,
        "errors": "ignore",
    }
    assert expected.items() <= manifest["settings"].items()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--input_file=nothing*.txt"], "nothing*.txt"),
        (["--max_seq_length=4"], "--max_seq_length must be at least 5; got 4"),
        (["--mask_share=0.7"], "a sum of 1; got 0.7, 0.1 and 0.1"),
        (["--output_file=/proc/none/x"], "/proc/none/x"),
        (["--dup_factor=3"], "dupe_factor"),
        (["--runner=spark"], "<local|beam>"),
        (["--runner=beam", "--num_workers=2"], "give --runner=local"),
        (["--beam_options=--runner=x"], "give --runner=beam"),
    ],
)
def test_errors_are_one_line(work, flags, message):
    done = run(work, *flags)
    assert done.returncode in (1, 2)
    lines = done.stderr.splitlines()
    assert len([line for line in lines if "error: " in line]) == 1
    assert message in lines[-1]
    assert "Traceback" not in done.stderr
    assert not os.listdir(work / "out")


def test_beam_writes_the_same_files(work):
    pytest.importorskip("apache_beam")
    done = run(work, "--runner=local")
    assert done.returncode == 0, done.stderr
    expected = {path: path.read_bytes() for path in (work / "out").iterdir()}
    assert len(expected) == 2
    options = "--beam_options=--direct_running_mode=multi_threading"
    done = run(work, "--runner=beam", options)
    assert done.returncode == 0, done.stderr
    assert {p: p.read_bytes() for p in (work / "out").iterdir()} == expected
    assert done.stderr.count("*** Example ***") == 5
    assert "WARN" not in done.stderr
    done = run(work, "--runner=beam", "--beam_options=--runner=Flnk")
    assert done.returncode == 1
    assert "error: --runner in --beam_options must be one of" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["text.txt", "vocab.txt"])
def test_inputs_are_not_overwritten(work, name):
    before = (work / name).read_bytes()
    os.symlink(work, work / "link")
    done = run(work, f"--output_file={work}/link/{name}")
    assert done.returncode == 1
    assert f"would overwrite the {name.removesuffix('.txt')}" in done.stderr
    assert (work / name).read_bytes() == before


def test_a_full_disk_leaves_existing_files(work):
    (work / "text.txt").write_text("a b\nb\n\n" * 100_000)
    (work / "out/x.tfrecord").write_bytes(b"old")
    done = run(
        work,
        "--num_workers=1",
        preexec_fn=lambda: resource.setrlimit(
            resource.RLIMIT_FSIZE, (2**20, 2**20)
        ),
    )
    assert done.returncode == 1
    assert "error: Cannot write" in done.stderr.splitlines()[-1]
    assert os.listdir(work / "out") == ["x.tfrecord"]
    assert (work / "out/x.tfrecord").read_bytes() == b"old"


@pytest.mark.parametrize(
    ("num_workers", "number"),
    [(1, signal.SIGINT), (2, signal.SIGTERM)],
)
def test_a_stopped_job_leaves_existing_files(work, number, num_workers):
    (work / "text.txt").write_text("a b\nb\n\n" * 12_000)
    (work / "out/x.tfrecord").write_bytes(b"old")
    program = subprocess.Popen(
        command(work, f"--num_workers={num_workers}", "--dupe_factor=20"),
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    for line in program.stderr:
        if "Writing" in line:
            break
    time.sleep(0.3)
    os.killpg(program.pid, number)
    start = time.monotonic()
    _, stderr = program.communicate(timeout=30)
    assert time.monotonic() - start < 5
    assert program.returncode == 128 + number
    assert "Traceback" not in stderr
    assert os.listdir(work / "out") == ["x.tfrecord"]
    assert (work / "out/x.tfrecord").read_bytes() == b"old"


def test_a_killed_job_leaves_the_old_output(work):
    (work / "text.txt").write_text("a b\nb\n\n" * 12_000)
    (work / "out/x.tfrecord").write_bytes(b"old")
    program = subprocess.Popen(
        command(work, "--num_workers=2", "--dupe_factor=20"),
        stderr=subprocess.PIPE,
        text=True,
    )
    for line in program.stderr:
        if "Example" in line:
            break
    program.kill()
    program.communicate(timeout=30)
    assert (work / "out/x.tfrecord").read_bytes() == b"old"
    # The files that it left are ignored, and removed by the next job.
    assert files.expand(f"{work}/out/*") == [f"{work}/out/x.tfrecord"]
    assert len(os.listdir(work / "out")) > 1
    assert run(work, "--dupe_factor=1").returncode == 0
    assert sorted(os.listdir(work / "out")) == [
        "manifest.x.tfrecord.json",
        "x.tfrecord",
    ]


def test_neither_the_script_nor_its_workers_import_tensorflow(work):
    document = ("a b " * 60 + "\n") * 20 + "\n"
    (work / "text.txt").write_text(document * 300)  # More than one block.
    arguments = command(work, "--num_workers=2", "--dupe_factor=1")
    done = subprocess.run(
        [arguments[0], "-X", "importtime", *arguments[1:]],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0
    imported = re.findall(r"\| +(\S+)$", done.stderr, re.MULTILINE)
    assert imported.count("numpy") == 3  # This process and two workers.
    assert "tensorflow" not in imported
    assert "keras" not in imported
