"""Whose a folder is, and what goes when it is taken over."""

import json
import os

import pytest

from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.fine_tuning import output_folder
from bert_tf.fine_tuning.start import Start

CONFIG = BertConfig(vocab_size=3, hidden_size=4, num_attention_heads=2)
START = Start(CONFIG, ("a", "b", "c"), True, None, None)
FACTS = output_folder.facts("mrpc", "single_label", ["0", "1"], START)
SETTINGS = {"learning_rate": 5e-5}


def claim(folder, facts=FACTS, settings=SETTINGS, **kwargs):
    output_folder.claim(str(folder), facts, settings, **kwargs)


def test_a_new_folder_is_made_and_marked(tmp_path):
    claim(tmp_path / "a" / "b")
    path = tmp_path / "a" / "b" / "fine_tuning.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    assert record["facts"]["task"] == "mrpc"
    assert record["settings"] == SETTINGS


def test_the_same_run_may_come_again(tmp_path):
    claim(tmp_path)
    claim(tmp_path)


@pytest.mark.parametrize(
    ("name", "other", "words"),
    [
        ("task", "cola", "of task cola.*a run of task mrpc lies"),
        ("labels", ["0"], r'labels \["0"\].*labels \["0", "1"\]'),
        ("problem", "regression", "problem"),
        ("vocabulary", "0123456789abc", "vocabulary 01234567"),
        ("do_lower_case", False, "do_lower_case false"),
        (
            "config",
            {"num_hidden_layers": 3, "hidden_size": 5},
            "a model of 3 layers, hidden size 5",
        ),
    ],
)
def test_another_run_is_refused(tmp_path, name, other, words):
    claim(tmp_path)
    before = (tmp_path / "fine_tuning.json").read_bytes()
    with pytest.raises(InputError, match=words) as error:
        claim(tmp_path, {**FACTS, name: other})
    assert "--overwrite_output_dir" in str(error.value)
    assert (tmp_path / "fine_tuning.json").read_bytes() == before


def test_other_settings_are_told(tmp_path, caplog):
    claim(tmp_path)
    caplog.set_level("WARNING", "absl")
    claim(tmp_path, settings={"learning_rate": 3e-5})
    assert "learning_rate was 5e-05, is 3e-05" in caplog.text


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "x").write_text("mine", encoding="utf-8")
    with pytest.raises(InputError, match=r"Received: the file .*x$"):
        claim(tmp_path / "x")


RUN = [
    "checkpoint",
    "model.ckpt-7.index",
    "model.ckpt-7.data-00000-of-00001",
    "eval_results.txt",
    "eval_results.json",
    "train.tf_record",
    "manifest.train.tf_record.json",
    "eval_mismatched.tf_record",
    "test_results.tsv",
    "predictions_mismatched.tsv",
    "evaluations.jsonl",
    "events.out.tfevents.123.host",
    "release/bert_model.ckpt.index",
    "trials/batch16/model.ckpt-1.index",
    "best/best.json",
]
NOT_OURS = [
    "notes.txt",
    "train.tsv",
    "my_release/x",
    # A checkpoint that somebody starts from may lie there.
    "bert_model.ckpt.index",
    "bert_config.json",
    "vocab.txt",
]


def fill(folder, names):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x", encoding="utf-8")


def test_what_a_run_wrote_goes_and_nothing_else(tmp_path):
    claim(tmp_path)
    fill(tmp_path, RUN + NOT_OURS)
    claim(tmp_path, {**FACTS, "task": "cola"}, overwrite=True)
    left = {
        os.path.relpath(os.path.join(folder, name), tmp_path)
        for folder, _, names in os.walk(tmp_path)
        for name in names
    }
    assert left == {*NOT_OURS, "fine_tuning.json"}


@pytest.mark.parametrize(
    "needed",
    ["release/bert_model.ckpt", "model.ckpt-7", "train.tf_record", "."],
)
def test_what_the_run_needs_is_not_removed(tmp_path, needed):
    fill(tmp_path, RUN)
    with pytest.raises(InputError, match="which it would remove"):
        claim(tmp_path, overwrite=True, keep=[str(tmp_path / needed)])
    assert all((tmp_path / name).exists() for name in RUN)


@pytest.mark.parametrize("needed", ["../x", "data.tsv", "model.ckpt-71"])
def test_other_inputs_may_lie_beside(tmp_path, needed):
    fill(tmp_path / "out", RUN)
    path = str(tmp_path / "out" / needed)
    claim(tmp_path / "out", overwrite=True, keep=[path])


def test_knows_which_training_is_kept(tmp_path):
    folder = str(tmp_path)
    claim(tmp_path)
    assert output_folder.kept(folder) == folder
    output_folder.note_kept(folder, str(tmp_path / "trials" / "a"))
    claim(tmp_path)
    assert output_folder.kept(folder) == str(tmp_path / "trials" / "a")
    output_folder.note_kept(folder, folder)
    assert output_folder.kept(folder) == folder


def test_a_folder_that_nobody_claimed_is_its_own(tmp_path):
    assert output_folder.kept(str(tmp_path)) == str(tmp_path)
