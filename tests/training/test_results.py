"""`eval_results.txt` as the original writes it, and the same as JSON."""

import json
import os
import re

import numpy as np

from bert_tf.training.results import write_json, write_results

METRICS = {
    "next_sentence_loss": 0.5,
    "global_step": 20,
    "masked_lm_loss": np.float32(10.166912),
    "loss": np.float64(10.858),
    "masked_lm_accuracy": 0.0,
    "next_sentence_accuracy": 1e-07,
}
LINE = re.compile(r"[a-z_]+ = \d+(\.\d+)?(e-\d+)?\n")


def test_sorted_lines_of_key_and_number(tmp_path, caplog):
    path = tmp_path / "eval_results.txt"
    write_results(str(path), METRICS)
    assert path.read_bytes() == (
        b"global_step = 20\n"
        b"loss = 10.858\n"
        b"masked_lm_accuracy = 0.0\n"
        b"masked_lm_loss = 10.166912\n"
        b"next_sentence_accuracy = 1e-07\n"
        b"next_sentence_loss = 0.5\n"
    )
    assert os.listdir(tmp_path) == ["eval_results.txt"]
    caplog.set_level("INFO", "absl")
    write_results(str(path), METRICS)
    assert "  masked_lm_loss = 10.166912" in caplog.text


def test_the_originals_file_has_the_same_shape(tmp_path, shared_data):
    """Same keys, same order, same look of a line."""
    folder = shared_data / "google_bert_outputs" / "pretraining"
    path = tmp_path / "eval_results.txt"
    write_results(str(path), METRICS)
    files = [path, folder / "eval_results.txt"]
    ours, theirs = [file.read_text().splitlines(True) for file in files]
    assert all(LINE.fullmatch(line) for line in ours + theirs)
    assert [line.split()[0] for line in ours] == [
        line.split()[0] for line in theirs
    ]


def test_json_holds_the_same_numbers(tmp_path):
    path = tmp_path / "eval_results.json"
    write_json(str(path), METRICS)
    values = json.loads(path.read_text())
    assert list(values) == sorted(METRICS)
    assert {name: str(value) for name, value in values.items()} == {
        name: str(value) for name, value in METRICS.items()
    }
    assert values["masked_lm_loss"] == 10.166912
    assert type(values["global_step"]) is int


def test_json_has_no_word_for_what_is_no_number(tmp_path):
    path = tmp_path / "eval_results.json"
    values = {"b": float("nan"), "a": np.float64("inf"), "c": np.int64(3)}
    write_json(str(path), values)
    assert path.read_bytes() == b'{\n  "a": null,\n  "b": null,\n  "c": 3\n}\n'


def test_json_holds_words_as_well(tmp_path):
    path = tmp_path / "eval_results.json"
    write_json(str(path), {"loss": 0.5}, of="the last")
    assert json.loads(path.read_text()) == {"loss": 0.5, "of": "the last"}
