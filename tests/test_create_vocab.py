"""create_vocab.py, run as a command."""

import gzip
import os
import pathlib
import signal
import subprocess
import sys

import pytest

from bert_tf.tokenization.wordpiece import load_vocab

SCRIPT = pathlib.Path(__file__).resolve().parent.parent / "create_vocab.py"
TEXT = "The cat sat. Łódź!\n\nA cat, a hat: 한국어 中文 " * 17 + "\n"


@pytest.fixture
def run(tmp_path):
    """Returns a function that runs the script in a folder with a text."""
    (tmp_path / "a.txt").write_text(TEXT, encoding="utf-8")

    def start(*arguments):
        return subprocess.run(
            [sys.executable, SCRIPT, "--output_file=out/vocab.txt", *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )

    start.folder = tmp_path
    start.output = tmp_path / "out" / "vocab.txt"
    return start


def test_writes_a_vocabulary(run):
    (run.folder / "b.txt.gz").write_bytes(gzip.compress(b"zebra zebra"))
    done = run("--input_file=a.txt,*.gz", "--vocab_size=53")
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    vocab = load_vocab(run.output)
    assert len(vocab) == 53
    assert {"[PAD]", "z", "##\u11a8"} <= vocab.keys()
    first = run.output.read_bytes()
    assert first.endswith(b"\n")
    assert [f.name for f in run.output.parent.iterdir()] == ["vocab.txt"]
    run("--input_file=a.txt,*.gz", "--vocab_size=53")
    assert run.output.read_bytes() == first


def test_flags_reach_the_job(run):
    done = run(
        "--input_file=a.txt",
        "--vocab_size=21",
        "--nodo_lower_case",
        "--num_unused_tokens=3",
        "--min_frequency=17",
        "--limit_alphabet=11",
    )
    assert done.returncode == 0, done.stderr
    vocab = load_vocab(run.output)
    assert len(vocab) == 21
    assert vocab["[unused2]"] == 7
    assert {"A", "a", "cat"} <= vocab.keys()
    assert "Alphabet: 11 characters" in done.stderr


def test_accents_can_be_kept(run):
    done = run("--input_file=a.txt", "--vocab_size=37", "--nostrip_accents")
    assert done.returncode == 0, done.stderr
    assert {"한", "##ó", "ł"} <= load_vocab(run.output).keys()
    assert "not composed" not in done.stderr


def test_decomposed_words_are_warned_of(run):
    """If accents are kept, the two forms of a word are two words."""
    text = 3 * "한 \u1112\u1161\u11ab "
    (run.folder / "a.txt").write_text(text, encoding="utf-8")
    done = run("--input_file=a.txt", "--vocab_size=9", "--nostrip_accents")
    assert done.returncode == 0, done.stderr
    [line] = [line for line in done.stderr.splitlines() if "NFC" in line]
    assert "1 of 2 distinct words are not in Unicode's form NFC" in line
    assert r"'\u1112\u1161\u11ab', which would be 한. They" in line
    done = run("--input_file=a.txt", "--vocab_size=9")
    assert done.returncode == 0, done.stderr
    assert "distinct words are not" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--vocab_size=53"], "input_file"),
        (["--input_file=a.txt", "--vocab_size=59000"], "vocab_size is 59000"),
        (["--input_file=bad.txt", "--vocab_size=53"], "bad.txt:3: byte 0xff"),
        (["--input_file=a.txt", "--errors=ignore"], "strict"),
        (["--input_file=empty*"], "no words in empty1 and empty2. Name"),
        (
            ["--input_file=empty*,blank*"],
            "empty2, blank3, ... (5 in all). Name",
        ),
    ],
)
def test_errors_are_one_line(run, arguments, message):
    (run.folder / "bad.txt").write_bytes(b"a\nb\nc\xff\n")
    for name in "empty1", "empty2":
        (run.folder / name).touch()
    for name in "blank3", "blank4", "blank5":
        (run.folder / name).write_text(" \n\n\t\n")
    done = run(*arguments)
    assert done.returncode != 0
    [line] = [line for line in done.stderr.splitlines() if "error:" in line]
    assert message in line
    assert "Traceback" not in done.stderr
    assert not run.output.exists()


def test_the_text_is_not_overwritten(run):
    done = run("--input_file=*.txt", "--output_file=./a.txt")
    assert done.returncode == 1
    assert "output ./a.txt would overwrite the text a.txt" in done.stderr
    assert (run.folder / "a.txt").read_text(encoding="utf-8") == TEXT


def test_a_stopped_job_leaves_no_files(run):
    """The job reads from a pipe that is not closed, so it is still running."""
    os.mkfifo(run.folder / "endless.txt")
    program = subprocess.Popen(
        [
            *(sys.executable, SCRIPT, "--input_file=endless.txt"),
            "--output_file=out/vocab.txt",
        ],
        cwd=run.folder,
        stderr=subprocess.PIPE,
        text=True,
    )
    with open(run.folder / "endless.txt", "wb"):
        program.send_signal(signal.SIGTERM)
        _, stderr = program.communicate(timeout=30)
    assert program.returncode == 128 + signal.SIGTERM
    assert "Traceback" not in stderr
    assert not run.output.parent.exists()


def test_invalid_utf8_can_be_dropped(run):
    (run.folder / "bad.txt").write_bytes(b"ab\xff ab ab")
    done = run("--input_file=bad.txt", "--vocab_size=8", "--errors=replace")
    assert done.returncode == 0, done.stderr
    assert list(load_vocab(run.output))[5:] == ["a", "##b", "ab"]
