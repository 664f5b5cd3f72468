"""Which run owns an output folder, and what is removed with an old run."""

import errno
import json
import os
import signal
import subprocess
import sys

import pytest
import tensorflow as tf
from checkout import ROOT

from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.interop.checkpoint import Pretrained, write_metadata
from bert_tf.jobs import output_folder
from bert_tf.jobs.classifier import ClassifierConfig
from bert_tf.jobs.start import Start

CONFIG = BertConfig(vocab_size=3, hidden_size=4, num_attention_heads=2)
START = Start(CONFIG, ("a", "b", "c"), True, None, None)
FACTS = {
    **START.facts("mrpc", "single_label", ["0", "1"]),
    "training_set": "89abcdef",
}
STRATEGY = tf.distribute.get_strategy()
RELEASED = "release/bert_model.ckpt.index"


def claimed(
    folder, facts=FACTS, inputs=(), development_set=None, do_train=True, **flags
):
    """Claims a folder for the `with` block, to train in it by default."""
    config = ClassifierConfig(
        task_name="any", output_dir=str(folder), do_train=do_train, **flags
    )
    return output_folder.claimed(
        config.with_fallbacks(), STRATEGY, facts, inputs, development_set
    )


def begin(folder, *args, **kwargs):
    """Claims a folder for a run that ends at once."""
    with claimed(folder, *args, **kwargs):
        pass


def record_of(folder):
    return json.loads((folder / "fine_tuning.json").read_text(encoding="utf-8"))


def fill(folder, names):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x", encoding="utf-8")


def train(folder):
    """Leaves a checkpoint, as a training does."""
    fill(folder, ["model.ckpt-7.index"])


def names_in(folder):
    return {
        os.path.relpath(os.path.join(place, name), folder)
        for place, _, names in os.walk(folder)
        for name in names
    }


# Facts and settings.


def test_a_training_is_recorded(tmp_path):
    folder = tmp_path / "a" / "b"
    assert output_folder.known(str(folder)) == {}
    begin(folder, learning_rate=0.25, class_weights=("1", "2"))
    record = record_of(folder)
    assert record["facts"] == {**FACTS, "bilstm_head": False}
    assert record["settings"]["learning_rate"] == 0.25
    assert record["settings"]["class_weights"] == ["1", "2"]
    names = {"save_best", "optimizer", "random_seed", "label_smoothing"}
    assert names <= record["settings"].keys()
    # The record counts as soon as there is a model.
    assert output_folder.known(str(folder)) == {}
    train(folder)
    output_folder.record_kept(str(folder), str(folder))
    known = output_folder.known(str(folder))
    assert known == {**record["facts"], **record["settings"]}
    # Finished steps keep their settings, and evaluations change nothing.
    begin(folder, learning_rate=0.5)
    begin(folder, learning_rate=0.5, do_train=False)
    assert output_folder.known(str(folder)) == known
    (folder / "fine_tuning.json").write_text('{"facts": {}}')
    assert output_folder.known(str(folder)) == {}


@pytest.mark.parametrize(
    ("name", "other", "words"),
    [
        ("task", "cola", "with task mrpc, and this run has task cola. Name"),
        ("labels", ["0"], r'labels \["0", "1"\], .*labels \["0"\]\.'),
        ("problem", "regression", "problem"),
        ("vocabulary", "0123456789abc", r"vocabulary 01234567\."),
        ("training_set", "0123456789abc", r"training set 01234567\."),
        ("do_lower_case", False, "do_lower_case false"),
        ("bilstm_head", True, "bilstm_head true"),
        (
            "config",
            {"num_hidden_layers": 3, "hidden_size": 5},
            "a model of 3 layers, hidden size 5",
        ),
        (
            "config",
            {"attention_direction": "left_to_right"},
            "hidden size None, left_to_right",
        ),
    ],
)
def test_another_run_is_rejected(tmp_path, name, other, words):
    begin(tmp_path)
    train(tmp_path)
    before = (tmp_path / "fine_tuning.json").read_bytes()
    is_flag = name == "bilstm_head"
    facts = FACTS if is_flag else {**FACTS, name: other}
    flags = {name: other} if is_flag else {}
    for do_train in (True, False):
        with pytest.raises(InputError, match=words) as error:
            begin(tmp_path, facts, do_train=do_train, do_export=True, **flags)
        assert "--overwrite_output_dir" in str(error.value)
    assert (tmp_path / "fine_tuning.json").read_bytes() == before
    assert not (tmp_path / "export").exists()


def test_a_fact_of_only_one_run_is_ignored(tmp_path):
    """Without training there is no training set."""
    begin(tmp_path)
    train(tmp_path)
    known = {k: v for k, v in FACTS.items() if k != "training_set"}
    begin(tmp_path, known, do_train=False, do_export=True)
    assert (tmp_path / "export").is_dir()


def test_a_run_without_a_checkpoint_does_not_own_the_folder(tmp_path):
    begin(tmp_path)
    begin(tmp_path, {**FACTS, "task": "cola"})
    train(tmp_path)
    with pytest.raises(InputError, match="with task cola"):
        begin(tmp_path)


def test_other_settings_are_logged_or_rejected(tmp_path, caplog):
    """For several trainings, they are an error."""
    caplog.set_level("WARNING", "absl")
    begin(tmp_path, class_weights=("1", "2"))
    train(tmp_path)
    begin(tmp_path, class_weights=("1", "2"))
    assert not caplog.text
    for _ in range(2):
        caplog.clear()
        begin(tmp_path, class_weights=("1", "2"), learning_rate=3e-5)
        assert "--learning_rate was 5e-05, is 3e-05" in caplog.text
    begin(tmp_path, class_weights=("1", "2"), num_seeds=2)
    with pytest.raises(InputError, match="--learning_rate was 5e-05, is 3e"):
        begin(tmp_path, learning_rate=3e-5, num_seeds=2)
    # A search has its own learning rates.
    caplog.clear()
    begin(
        tmp_path,
        class_weights=("1", "2"),
        learning_rate=3e-5,
        search="paper",
    )
    assert not caplog.text


def test_another_seed_is_another_training(tmp_path, caplog):
    """An unfinished training continues with a warning."""
    begin(tmp_path, random_seed=1)
    train(tmp_path)
    begin(tmp_path, random_seed=1)
    assert not caplog.text
    begin(tmp_path, random_seed=2)
    assert "--random_seed was 1, is 2" in caplog.text
    fill(tmp_path, [RELEASED])
    message = r"--random_seed=2 has no effect: .* --random_seed=1\. "
    with pytest.raises(InputError, match=message):
        begin(tmp_path, random_seed=2)
    # The folder of each of several trainings is named after its seed.
    caplog.clear()
    begin(tmp_path, random_seed=1)
    begin(tmp_path, random_seed=2, num_seeds=3)
    assert not caplog.text
    begin(tmp_path, random_seed=2, overwrite_output_dir=True)
    assert record_of(tmp_path)["settings"]["random_seed"] == 2


def test_the_development_set_that_selects_is_a_setting(tmp_path, caplog):
    """Scores on different development sets cannot be compared."""
    begin(tmp_path, development_set="old", save_best="loss")
    train(tmp_path)
    begin(tmp_path, development_set="old", save_best="loss")
    assert not caplog.text
    begin(tmp_path, development_set="new", save_best="loss")
    assert "another development set" in caplog.text
    with pytest.raises(InputError, match="another development set"):
        begin(tmp_path, development_set="new", save_best="loss", num_seeds=2)
    # The last weights are kept, whatever their score.
    caplog.clear()
    begin(tmp_path, development_set="new")
    assert "--save_best was loss" in caplog.text
    assert "development set" not in caplog.text


# Replacing a run.

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
    RELEASED,
    "trials/batch16/model.ckpt-1.index",
    "best/best.json",
    "glue_submission/CoLA.tsv",
]
OTHER_FILES = [
    "notes.txt",
    "train.tsv",
    "my_release/x",
    # The checkpoint of another training.
    "bert_model.ckpt.index",
    "bert_config.json",
    "vocab.txt",
    # A server may have it open.
    "export/1763776800/saved_model.pb",
    "export/1763776800/assets/vocab.txt",
    "export/1763776800/assets.extra/model_card.json",
]


def overwrite(folder, **kwargs):
    begin(folder, overwrite_output_dir=True, **kwargs)


def test_the_old_run_stays_until_the_new_one_is_finished(tmp_path):
    begin(tmp_path)
    users = ["release/v1.zip", "eval/notes.txt"]
    fill(tmp_path, [*RUN, *OTHER_FILES, *users])
    overwrite(tmp_path, facts={**FACTS, "task": "cola"})
    left = {*OTHER_FILES, "fine_tuning.json"}
    aside = [*RUN, *users, "fine_tuning.json"]
    assert names_in(tmp_path) == left | {f"overwritten/{n}" for n in aside}
    # A new run that is not finished does not count.
    fill(tmp_path, ["model.ckpt-2.index"])
    overwrite(tmp_path, facts={**FACTS, "task": "cola"})
    assert names_in(tmp_path) == left | {f"overwritten/{n}" for n in aside}
    # Files of the user are never removed.
    output_folder.remove_replaced_run(str(tmp_path))
    assert names_in(tmp_path) == left | {f"overwritten/{n}" for n in users}
    for name in users:
        (tmp_path / "overwritten" / name).unlink()
    for _ in range(2):
        output_folder.remove_replaced_run(str(tmp_path))
        assert not (tmp_path / "overwritten").exists()


def test_only_the_folder_of_a_run_is_overwritten(tmp_path):
    fill(tmp_path, ["release/mine.txt", "predictions.tsv"])
    with pytest.raises(InputError, match=r"files but no fine_tuning.json"):
        overwrite(tmp_path)
    assert len(names_in(tmp_path)) == 2
    overwrite(tmp_path / "new")
    assert names_in(tmp_path / "new") == {"fine_tuning.json"}
    with pytest.raises(InputError, match=r"new, needs --do_train"):
        overwrite(tmp_path / "new", do_train=False)


@pytest.mark.parametrize(
    "needed",
    [RELEASED[:-6], "model.ckpt-7", "train.tf_record", ".", "link"],
)
def test_inputs_of_the_run_are_not_removed(tmp_path, needed):
    """The lock is released, too."""
    folder = tmp_path / "out"
    begin(folder)
    fill(folder, RUN)
    (folder / "link").symlink_to(folder / "release")
    before = names_in(folder)
    path = str(folder / needed)
    for flags in ({"init_checkpoint": path}, {"inputs": [path]}):
        with pytest.raises(InputError, match="which this run reads"):
            overwrite(folder, **flags)
    assert names_in(folder) == before
    with output_folder.locked(str(folder)):
        pass


def test_inputs_beside_the_old_run_are_fine(tmp_path):
    folder = tmp_path / "out"
    begin(folder)
    fill(folder, RUN)
    names = ["../x", "data.tsv"]
    overwrite(folder, inputs=[str(folder / name) for name in names])


def test_inputs_are_not_overwritten(tmp_path):
    fill(tmp_path, ["predictions.tsv", "vocab.txt"])
    with pytest.raises(InputError, match=r"overwrite its .*predictions.tsv"):
        begin(tmp_path, inputs=[str(tmp_path / "predictions.tsv")])
    begin(tmp_path, vocab_file=str(tmp_path / "vocab.txt"))
    fill(tmp_path, ["x"])
    with pytest.raises(InputError, match="x is a file"):
        begin(tmp_path / "x", do_train=False)


@pytest.mark.parametrize("name", ["", "bert_model.ckpt"])
def test_the_folder_of_a_checkpoint_is_not_trained_in(tmp_path, name):
    start = str(tmp_path / name)
    with pytest.raises(InputError, match="contains --init_checkpoint"):
        begin(tmp_path, init_checkpoint=start)
    # It is fine without training, and in the folder of the run itself.
    begin(tmp_path, init_checkpoint=start, do_train=False)
    begin(tmp_path)
    train(tmp_path)
    begin(tmp_path, init_checkpoint=start)


@pytest.mark.parametrize("export_dir", ["out/export", "elsewhere/models"])
def test_an_unusable_export_folder_is_found_first(tmp_path, export_dir):
    """Nothing is claimed, and a run that would be replaced stays in place."""
    out, place = tmp_path / "out", tmp_path / export_dir
    fill(tmp_path, [export_dir])
    flags = {"do_export": True, "export_dir": str(place)}
    with pytest.raises(InputError, match=export_dir):
        begin(out, **flags)
    assert not (out / "fine_tuning.json").exists()
    train(out)
    (out / "fine_tuning.json").write_text('{"facts": {}, "settings": {}}')
    before = names_in(out)
    with pytest.raises(InputError, match=export_dir):
        overwrite(out, **flags)
    assert names_in(out) == before
    assert place.read_text() == "x"


def test_the_folder_of_the_kept_training(tmp_path):
    begin(tmp_path)
    for folder in (str(tmp_path), "ram://output_folder/kept"):
        assert output_folder.kept(folder) == folder
        for training in (f"{folder}/trials/a", folder):
            output_folder.record_kept(folder, training)
            assert output_folder.kept(folder) == training
    assert record_of(tmp_path)["facts"]["task"] == "mrpc"


# One training at a time.

TRAINS = """
import sys
from bert_tf.jobs import output_folder
from bert_tf.jobs.classifier import ClassifierConfig

with output_folder.locked(sys.argv[1]):
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_a_killed_training_releases_its_lock(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", TRAINS, str(tmp_path)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "locked\n"
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


def test_only_a_training_locks_the_folder(tmp_path):
    folder = str(tmp_path / "out")
    message = r"is writing to .*/out. Wait until"
    with claimed(folder, do_train=False), output_folder.locked(folder):
        pass
    with output_folder.locked(folder):
        begin(folder, do_train=False)
        with pytest.raises(InputError, match=message):
            begin(folder)
    with (
        claimed(folder),
        pytest.raises(InputError, match=message),
        output_folder.locked(folder),
    ):
        pass
    with output_folder.locked(folder):
        pass


def test_a_new_folder_without_files_is_removed(tmp_path):
    folder = tmp_path / "a" / "new"
    with output_folder.locked(str(folder)):
        assert folder.is_dir()
    assert not folder.exists()
    with output_folder.locked(str(folder)):
        (folder / "model.ckpt-1.index").touch()
    assert os.listdir(folder) == ["model.ckpt-1.index"]


def test_file_systems_without_locks_are_not_locked(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(output_folder.fcntl, "flock", refuse)
    for folder in (str(tmp_path), "gs://bucket/folder"):
        with output_folder.locked(folder):
            pass


# The output folder of a pre-training.

KIND = {
    "attention_direction": "bidirectional",
    "num_attention_heads": 2,
    "hidden_act": "gelu_tanh",
    "objective": "masked_lm",
    "next_sentence": True,
}
OTHERS = [
    ("attention_direction", "left_to_right"),
    ("num_attention_heads", 4),
    ("hidden_act", "relu"),
    ("objective", "causal_lm"),
    ("next_sentence", False),
]


def verify(folder, kind=KIND, seed=None):
    output_folder.verify_kind(str(folder), kind, seed)


def pretrain(folder, kind=KIND, seed=1):
    """Leaves the files of a run that was stopped at its seventh step."""
    output_folder.record_kind(str(folder), kind, seed)
    train(folder)


@pytest.mark.parametrize(("name", "value"), OTHERS)
def test_another_kind_of_pretraining_is_rejected(tmp_path, name, value):
    """The kind is recorded, or known from an old release."""
    pretrain(tmp_path)
    words = {"True": "true", "False": "false"}
    known, now = (words.get(str(v), v) for v in (KIND[name], value))
    other = {**KIND, name: value}
    with pytest.raises(InputError) as error:
        verify(tmp_path, other)
    assert str(error.value) == (
        f"The model in {tmp_path} was trained with {name}={known}, and this "
        f"run has {name}={now}. Name another --output_dir."
    )
    verify(tmp_path, {k: v for k, v in other.items() if k != name})
    release = str(tmp_path / "old" / "release")
    os.makedirs(release)
    config = BertConfig(
        vocab_size=3, hidden_size=4, **{n: other[n] for n in [*KIND][:3]}
    )
    facts = output_folder.released_kind(other)
    write_metadata(release, Pretrained(release, {}, config, **facts))
    verify(tmp_path / "old", other)
    with pytest.raises(InputError, match=f"{name}="):
        verify(tmp_path / "old")
    # A record is more recent than a release.
    pretrain(tmp_path / "old")
    verify(tmp_path / "old")


def test_the_same_pretraining_continues(tmp_path, caplog):
    verify(tmp_path / "new")
    other = {**KIND, "next_sentence": False}
    output_folder.record_kind(str(tmp_path), other, 1)
    # A run without a checkpoint does not own the folder.
    verify(tmp_path)
    pretrain(tmp_path)
    record = (tmp_path / "pretraining.json").read_bytes()
    assert json.loads(record) == {
        "facts": KIND,
        "settings": {"random_seed": 1},
    }
    pretrain(tmp_path, other, seed=2)
    assert (tmp_path / "pretraining.json").read_bytes() == record
    verify(tmp_path)
    verify(tmp_path, seed=1)
    assert not caplog.messages
    verify(tmp_path, seed=2)
    assert f"{tmp_path} was trained with --random_seed=1" in caplog.text
    # A folder of an earlier version, without a record or a release.
    (tmp_path / "pretraining.json").unlink()
    verify(tmp_path, other)


def test_a_folder_that_can_be_written_to_is_not_changed(tmp_path):
    for folder in (tmp_path, tmp_path / "new"):
        output_folder.require_writable(str(folder))
    assert not os.listdir(tmp_path)
    (tmp_path / "out").write_text("mine")
    with pytest.raises(InputError, match="out is a file"):
        output_folder.require_writable(str(tmp_path / "out"))
    assert (tmp_path / "out").read_text() == "mine"
