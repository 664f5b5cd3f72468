"""create_vocab.py, run as a command."""

import gzip
import os
import subprocess
import sys

import in_process
import pytest
from checkout import ROOT

from bert_tf.tokenization.vocabulary_file import load_vocab

SCRIPT_NAME = "create_vocab"
TEXT = "The cat sat. Łódź!\n\nA cat, a hat: 한국어 中文 " * 17 + "\n"


@pytest.fixture
def run(launch, tmp_path, monkeypatch):
    """Returns a function that runs the script in a folder with a text."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text(TEXT, encoding="utf-8")

    def start(*words):
        return launch(["--output_file=out/vocab.txt", *words])

    return start


def test_a_process_writes_the_same_vocabulary_again(run, tmp_path):
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"zebra zebra"))
    words = ["--input_file=a.txt,*.gz", "--vocab_size=53"]
    done = subprocess.run(
        [sys.executable, ROOT / "create_vocab.py", "--output_file=1", *words],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    vocab = load_vocab("1")
    assert len(vocab) == 53
    assert {"[PAD]", "z", "##\u11a8"} <= vocab.keys()
    assert run(*words) == 0
    assert os.listdir("out") == ["vocab.txt"]
    written = (tmp_path / "out/vocab.txt").read_bytes()
    assert written == (tmp_path / "1").read_bytes()
    assert written.endswith(b"\n")


def test_flags_reach_the_job(run, caplog):
    assert not run(
        "--input_file=a.txt",
        "--vocab_size=21",
        "--nodo_lower_case",
        "--num_unused_tokens=3",
        "--min_frequency=17",
        "--limit_alphabet=11",
    )
    vocab = load_vocab("out/vocab.txt")
    assert len(vocab) == 21
    assert vocab["[unused2]"] == 7
    assert {"A", "a", "cat"} <= vocab.keys()
    assert "Alphabet: 11 characters" in caplog.text
    assert not run("--input_file=a.txt", "--vocab_size=37", "--nostrip_accents")
    assert {"한", "##ó", "ł"} <= load_vocab("out/vocab.txt").keys()
    assert "NFC" not in caplog.text


def test_decomposed_words_are_warned_of(run, tmp_path, caplog):
    """If accents are kept, the two forms of a word are two words."""
    text = 3 * "한 \u1112\u1161\u11ab "
    (tmp_path / "a.txt").write_text(text, encoding="utf-8")
    assert not run("--input_file=a.txt", "--vocab_size=9")
    assert "NFC" not in caplog.text
    assert not run("--input_file=a.txt", "--vocab_size=9", "--nostrip_accents")
    assert "1 of 2 distinct words are not in Unicode's form NFC" in caplog.text
    assert r"'\u1112\u1161\u11ab', which would be 한. They" in caplog.text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--input_file=a.txt", "--vocab_size=59000"], "vocab_size is 59000"),
        (["--input_file=bad.txt", "--vocab_size=53"], "bad.txt:3: byte 0xff"),
        (["--input_file=empty*"], "no words in empty1 and empty2. Pass"),
        (["--input_file=empty*,b*k*"], "empty2, blank3, ... (5 in all). Pass"),
        (["--input_file=*.txt", "--output_file=./a.txt"], "overwrite the text"),
    ],
)
def test_errors_are_one_line(run, tmp_path, capsys, words, message):
    (tmp_path / "bad.txt").write_bytes(b"a\nb\nc\xff\n")
    for name in "empty1", "empty2":
        (tmp_path / name).touch()
    for name in "blank3", "blank4", "blank5":
        (tmp_path / name).write_text(" \n\n\t\n")
    assert run(*words) != 0
    assert message in in_process.the_error(capsys, "create_vocab")
    assert not (tmp_path / "out").exists()
    assert (tmp_path / "a.txt").read_text(encoding="utf-8") == TEXT


def test_invalid_utf8_can_be_dropped(run, tmp_path):
    (tmp_path / "bad.txt").write_bytes(b"ab\xff ab ab")
    assert not run("--input_file=bad.txt", "--vocab_size=8", "--errors=replace")
    assert list(load_vocab("out/vocab.txt"))[5:] == ["a", "##b", "ab"]
