"""A small file is there as a whole or not at all."""

import os

import pytest
import tensorflow as tf

from bert_tf.training.text_files import write_text


def test_it_is_written_and_written_over(tmp_path):
    path = tmp_path / "results.txt"
    for text in ("a long first text\n", "é\n"):
        write_text(str(path), text)
        assert path.read_text(encoding="utf-8") == text
    assert os.listdir(tmp_path) == ["results.txt"]


def test_a_failure_leaves_the_old_one_and_nothing_else(tmp_path, monkeypatch):
    def refuse(source, target, overwrite=False):
        raise tf.errors.ResourceExhaustedError(None, None, "disk full")

    path = tmp_path / "results.txt"
    write_text(str(path), "old")
    monkeypatch.setattr(tf.io.gfile, "rename", refuse)
    with pytest.raises(
        OSError, match=r"cannot write .*results\.txt: disk full"
    ):
        write_text(str(path), "new")
    assert os.listdir(tmp_path) == ["results.txt"]
    assert path.read_text() == "old"


def test_no_such_directory(tmp_path):
    with pytest.raises(OSError, match=r"cannot write .*none/results\.txt"):
        write_text(str(tmp_path / "none" / "results.txt"), "new")
