"""Whose a folder is, and what goes when it is taken over."""

import errno
import json
import os
import signal
import subprocess
import sys

import pytest
from checkout import ROOT

from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.fine_tuning import output_folder
from bert_tf.fine_tuning.start import Start

CONFIG = BertConfig(vocab_size=3, hidden_size=4, num_attention_heads=2)
START = Start(CONFIG, ("a", "b", "c"), True, None, None)
FACTS = {
    **output_folder.facts("mrpc", "single_label", ["0", "1"], START),
    "training_set": "89abcdef",
}
SETTINGS = {"learning_rate": 5e-5}


def claim(folder, facts=FACTS, settings=SETTINGS, overwrite=None, **kwargs):
    """What a training does before it begins."""
    folder = str(folder)
    if overwrite is not None:
        output_folder.put_aside(folder, overwrite)
    output_folder.verify(folder, facts, settings, **kwargs)
    os.makedirs(folder, exist_ok=True)
    output_folder.claim(folder, facts, settings)


def train(folder):
    """Leaves what a training leaves."""
    fill(folder, ["model.ckpt-7.index"])


def test_a_new_folder_is_made_and_marked(tmp_path):
    claim(tmp_path / "a" / "b")
    path = tmp_path / "a" / "b" / "fine_tuning.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    assert record["facts"]["task"] == "mrpc"
    assert record["settings"] == SETTINGS


def test_the_same_run_may_come_again(tmp_path):
    claim(tmp_path)
    train(tmp_path)
    claim(tmp_path)


@pytest.mark.parametrize(
    ("name", "other", "words"),
    [
        ("task", "cola", "of task cola.*a run of task mrpc lies"),
        ("labels", ["0"], r'labels \["0"\].*labels \["0", "1"\]'),
        ("problem", "regression", "problem"),
        ("vocabulary", "0123456789abc", "vocabulary 01234567"),
        ("training_set", "0123456789abc", "training set 01234567"),
        ("do_lower_case", False, "do_lower_case false"),
        (
            "config",
            {"num_hidden_layers": 3, "hidden_size": 5},
            "a model of 3 layers, hidden size 5",
        ),
        (
            "config",
            {"attention_direction": "left_to_right"},
            "hidden size None, left_to_right, or",
        ),
    ],
)
def test_another_run_is_refused(tmp_path, name, other, words):
    claim(tmp_path)
    train(tmp_path)
    before = (tmp_path / "fine_tuning.json").read_bytes()
    with pytest.raises(InputError, match=words) as error:
        claim(tmp_path, {**FACTS, name: other})
    assert "--overwrite_output_dir" in str(error.value)
    assert (tmp_path / "fine_tuning.json").read_bytes() == before


def test_what_is_known_is_of_a_model(tmp_path):
    """Facts and settings; where there is no model yet, nothing."""
    folder = str(tmp_path / "out")
    assert output_folder.known(folder) == {}
    claim(tmp_path / "out")
    assert output_folder.known(folder) == {}
    train(tmp_path / "out")
    output_folder.note_kept(folder, folder)
    assert output_folder.known(folder) == {**FACTS, **SETTINGS}
    # Steps that are done stay as they are.
    claim(tmp_path / "out", settings={"learning_rate": 1.0})
    assert output_folder.known(folder) == {**FACTS, **SETTINGS}
    (tmp_path / "out" / "fine_tuning.json").write_text('{"facts": {}}')
    assert output_folder.known(folder) == {}


def test_a_run_that_failed_before_it_began_owns_nothing(tmp_path):
    claim(tmp_path)
    claim(tmp_path, {**FACTS, "task": "cola"})
    train(tmp_path)
    with pytest.raises(InputError, match="a run of task cola lies"):
        claim(tmp_path)


def test_what_only_one_run_tells_is_no_difference(tmp_path):
    """Without training there is no training set."""
    claim(tmp_path)
    train(tmp_path)
    known = {k: v for k, v in FACTS.items() if k != "training_set"}
    output_folder.verify(str(tmp_path), known, {})


def test_other_settings_are_told_each_time(tmp_path, caplog):
    claim(tmp_path)
    train(tmp_path)
    caplog.set_level("WARNING", "absl")
    for _ in range(2):
        caplog.clear()
        claim(tmp_path, settings={"learning_rate": 3e-5})
        assert "--learning_rate was 5e-05, is 3e-05" in caplog.text


def test_several_trainings_are_to_be_alike(tmp_path):
    claim(tmp_path)
    fill(tmp_path, ["trials/a/trial.json"])
    with pytest.raises(InputError, match="--learning_rate was 5e-05, is 3e"):
        claim(tmp_path, settings={"learning_rate": 3e-5}, is_several=True)


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
    "nbest_predictions.json",
    "null_odds.json",
    "dev_predictions.txt",
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
    # A server may have it open.
    "export/1763776800/saved_model.pb",
    "export/1763776800/assets/vocab.txt",
    "export/1763776800/assets.extra/model_card.json",
]


def fill(folder, names):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x", encoding="utf-8")


def names_in(folder):
    return {
        os.path.relpath(os.path.join(place, name), folder)
        for place, _, names in os.walk(folder)
        for name in names
    }


def test_the_old_run_stays_until_the_new_one_is_done(tmp_path):
    claim(tmp_path)
    fill(tmp_path, RUN + NOT_OURS)
    claim(tmp_path, {**FACTS, "task": "cola"}, overwrite=[])
    aside = {f"overwritten/{name}" for name in [*RUN, "fine_tuning.json"]}
    assert names_in(tmp_path) == {*NOT_OURS, "fine_tuning.json", *aside}
    output_folder.settle(str(tmp_path))
    assert names_in(tmp_path) == {*NOT_OURS, "fine_tuning.json"}
    assert not (tmp_path / "overwritten").exists()
    output_folder.settle(str(tmp_path))


def test_what_was_never_finished_does_not_replace_what_was(tmp_path):
    claim(tmp_path)
    fill(tmp_path, RUN)
    claim(tmp_path, overwrite=[])
    fill(tmp_path, ["model.ckpt-2.index"])
    claim(tmp_path, overwrite=[])
    assert (tmp_path / "overwritten/model.ckpt-7.index").exists()
    assert not (tmp_path / "model.ckpt-2.index").exists()


def test_files_of_the_user_inside_a_run_are_never_removed(tmp_path):
    claim(tmp_path)
    fill(tmp_path, [*RUN, "release/v1.zip", "eval/notes.txt"])
    claim(tmp_path, overwrite=[])
    output_folder.settle(str(tmp_path))
    assert names_in(tmp_path) == {
        "fine_tuning.json",
        "overwritten/release/v1.zip",
        "overwritten/eval/notes.txt",
    }


def test_what_is_no_run_is_not_overwritten(tmp_path):
    fill(tmp_path, ["release/mine.txt", "predictions.tsv"])
    with pytest.raises(InputError, match=r"where fine_tuning.json lies"):
        claim(tmp_path, overwrite=[])
    assert len(names_in(tmp_path)) == 2


def test_a_new_folder_needs_no_overwriting(tmp_path):
    claim(tmp_path / "new", overwrite=[])
    assert names_in(tmp_path / "new") == {"fine_tuning.json"}


@pytest.mark.parametrize(
    "needed",
    ["release/bert_model.ckpt", "model.ckpt-7", "train.tf_record", ".", "link"],
)
def test_what_the_run_needs_is_not_removed(tmp_path, needed):
    folder = tmp_path / "out"
    claim(folder)
    fill(folder, RUN)
    (folder / "link").symlink_to(folder / "release")
    before = names_in(folder)
    with pytest.raises(InputError, match="which it would remove"):
        claim(folder, overwrite=[str(folder / needed)])
    assert names_in(folder) == before


@pytest.mark.parametrize("needed", ["../x", "data.tsv", "model.ckpt-71"])
def test_other_inputs_may_lie_beside(tmp_path, needed):
    claim(tmp_path / "out")
    fill(tmp_path / "out", RUN)
    claim(tmp_path / "out", overwrite=[str(tmp_path / "out" / needed)])


def test_an_input_is_not_written_over(tmp_path):
    path = tmp_path / "predictions.tsv"
    fill(tmp_path, ["predictions.tsv", "vocab.txt"])
    with pytest.raises(InputError, match=r"write over.*predictions.tsv"):
        claim(tmp_path, inputs=[str(path)])
    claim(tmp_path, inputs=[str(tmp_path / "vocab.txt")])


@pytest.mark.parametrize("name", ["", "bert_model.ckpt"])
def test_the_folder_of_a_checkpoint_is_not_trained_in(tmp_path, name):
    start = str(tmp_path / name)
    with pytest.raises(InputError, match="apart from --init_checkpoint"):
        claim(tmp_path, init_checkpoint=start)
    claim(tmp_path)  # Without training, and in a run's own folder.
    train(tmp_path)
    claim(tmp_path, init_checkpoint=start)


def test_knows_which_training_is_kept(tmp_path):
    folder = str(tmp_path)
    claim(tmp_path)
    train(tmp_path)
    assert output_folder.kept(folder) == folder
    output_folder.note_kept(folder, str(tmp_path / "trials" / "a"))
    claim(tmp_path)
    assert output_folder.kept(folder) == str(tmp_path / "trials" / "a")
    output_folder.note_kept(folder, folder)
    assert output_folder.kept(folder) == folder


def test_knows_it_of_a_remote_folder_too():
    folder = "ram://output_folder/kept"
    assert output_folder.kept(folder) == folder
    for training in (f"{folder}/trials/a", folder):
        output_folder.note_kept(folder, training)
        assert output_folder.kept(folder) == training


def test_a_folder_that_nobody_claimed_is_its_own(tmp_path):
    assert output_folder.kept(str(tmp_path)) == str(tmp_path)


# One training at a time

TRAINS = """
import sys
from bert_tf.fine_tuning import output_folder

with output_folder.locked(sys.argv[1]):
    print("locked", flush=True)
    sys.stdin.read()
"""


def start_training(folder):
    """A process that has the folder until its input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", TRAINS, str(folder)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "locked\n"
    return process


def test_a_second_training_is_refused_and_a_killed_one_forgotten(tmp_path):
    with start_training(tmp_path) as process:
        with (
            pytest.raises(InputError) as error,
            output_folder.locked(str(tmp_path)),
        ):
            pass
        assert str(error.value) == (
            f"Process {process.pid} is writing to {tmp_path}. Wait until it "
            "ends, or give another --output_dir."
        )
        process.send_signal(signal.SIGKILL)
        process.wait()
        with output_folder.locked(str(tmp_path)):
            assert not list(tmp_path.iterdir())


def test_a_locked_folder_without_files_does_not_stay(tmp_path):
    folder = tmp_path / "a" / "new"
    with output_folder.locked(str(folder)):
        assert folder.is_dir()
    assert not folder.exists()
    with output_folder.locked(str(folder)):
        (folder / "model.ckpt-1.index").touch()
    assert os.listdir(folder) == ["model.ckpt-1.index"]


def test_where_there_are_no_locks_a_training_goes_on(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(output_folder.fcntl, "flock", refuse)
    with output_folder.locked(str(tmp_path)):
        pass
    with output_folder.locked("gs://bucket/folder"):
        pass
