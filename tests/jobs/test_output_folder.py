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
from bert_tf.jobs import output_folder
from bert_tf.jobs.start import Start

CONFIG = BertConfig(vocab_size=3, hidden_size=4, num_attention_heads=2)
START = Start(CONFIG, ("a", "b", "c"), True, None, None)
FACTS = {
    **START.facts("mrpc", "single_label", ["0", "1"]),
    "training_set": "89abcdef",
}
SETTINGS = {"learning_rate": 5e-5}
STRATEGY = tf.distribute.get_strategy()


def claim(folder, facts=FACTS, settings=SETTINGS, overwrite=None, **kwargs):
    """Claims a folder as a training does."""
    folder = str(folder)
    if overwrite is not None:
        output_folder.put_aside(folder, overwrite)
    output_folder.verify(folder, facts, settings, **kwargs)
    os.makedirs(folder, exist_ok=True)
    output_folder.claim(folder, facts, settings)


def train(folder):
    """Leaves a checkpoint, as a training does."""
    fill(folder, ["model.ckpt-7.index"])


def test_a_new_folder_is_created_and_marked(tmp_path):
    claim(tmp_path / "a" / "b")
    path = tmp_path / "a" / "b" / "fine_tuning.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    assert record["facts"]["task"] == "mrpc"
    assert record["settings"] == SETTINGS


def test_the_same_run_can_be_repeated(tmp_path):
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
def test_another_run_is_rejected(tmp_path, name, other, words):
    claim(tmp_path)
    train(tmp_path)
    before = (tmp_path / "fine_tuning.json").read_bytes()
    with pytest.raises(InputError, match=words) as error:
        claim(tmp_path, {**FACTS, name: other})
    assert "--overwrite_output_dir" in str(error.value)
    assert (tmp_path / "fine_tuning.json").read_bytes() == before


def test_facts_and_settings_are_known_once_there_is_a_model(tmp_path):
    folder = str(tmp_path / "out")
    assert output_folder.known(folder) == {}
    claim(tmp_path / "out")
    assert output_folder.known(folder) == {}
    train(tmp_path / "out")
    output_folder.note_kept(folder, folder)
    assert output_folder.known(folder) == {**FACTS, **SETTINGS}
    # Finished steps keep their settings.
    claim(tmp_path / "out", settings={"learning_rate": 1.0})
    assert output_folder.known(folder) == {**FACTS, **SETTINGS}
    (tmp_path / "out" / "fine_tuning.json").write_text('{"facts": {}}')
    assert output_folder.known(folder) == {}


def test_a_run_without_a_checkpoint_does_not_own_the_folder(tmp_path):
    claim(tmp_path)
    claim(tmp_path, {**FACTS, "task": "cola"})
    train(tmp_path)
    with pytest.raises(InputError, match="a run of task cola lies"):
        claim(tmp_path)


def test_a_fact_of_only_one_run_is_ignored(tmp_path):
    """Without training there is no training set."""
    claim(tmp_path)
    train(tmp_path)
    known = {k: v for k, v in FACTS.items() if k != "training_set"}
    output_folder.verify(str(tmp_path), known, {})


def test_other_settings_are_logged_each_time(tmp_path, caplog):
    claim(tmp_path)
    train(tmp_path)
    caplog.set_level("WARNING", "absl")
    for _ in range(2):
        caplog.clear()
        claim(tmp_path, settings={"learning_rate": 3e-5})
        assert "--learning_rate was 5e-05, is 3e-05" in caplog.text


def test_several_trainings_need_the_same_settings(tmp_path):
    claim(tmp_path)
    fill(tmp_path, ["trials/a/trial.json"])
    with pytest.raises(InputError, match="--learning_rate was 5e-05, is 3e"):
        claim(tmp_path, settings={"learning_rate": 3e-5}, is_several=True)


def test_an_output_folder_that_is_a_file(tmp_path):
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
    fill(tmp_path, RUN + OTHER_FILES)
    claim(tmp_path, {**FACTS, "task": "cola"}, overwrite=[])
    aside = {f"overwritten/{name}" for name in [*RUN, "fine_tuning.json"]}
    assert names_in(tmp_path) == {*OTHER_FILES, "fine_tuning.json", *aside}
    output_folder.settle(str(tmp_path))
    assert names_in(tmp_path) == {*OTHER_FILES, "fine_tuning.json"}
    assert not (tmp_path / "overwritten").exists()
    output_folder.settle(str(tmp_path))


def test_an_unfinished_run_does_not_replace_the_one_set_aside(tmp_path):
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


def test_a_folder_without_a_run_is_not_overwritten(tmp_path):
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
def test_inputs_of_the_run_are_not_removed(tmp_path, needed):
    folder = tmp_path / "out"
    claim(folder)
    fill(folder, RUN)
    (folder / "link").symlink_to(folder / "release")
    before = names_in(folder)
    with pytest.raises(InputError, match="which it would remove"):
        claim(folder, overwrite=[str(folder / needed)])
    assert names_in(folder) == before


@pytest.mark.parametrize("needed", ["../x", "data.tsv", "model.ckpt-71"])
def test_inputs_beside_the_old_run_are_fine(tmp_path, needed):
    claim(tmp_path / "out")
    fill(tmp_path / "out", RUN)
    claim(tmp_path / "out", overwrite=[str(tmp_path / "out" / needed)])


def test_an_input_is_not_overwritten(tmp_path):
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
    # It is fine without training, and in the run's own folder.
    claim(tmp_path)
    train(tmp_path)
    claim(tmp_path, init_checkpoint=start)


def test_the_folder_of_the_kept_training(tmp_path):
    folder = str(tmp_path)
    claim(tmp_path)
    train(tmp_path)
    assert output_folder.kept(folder) == folder
    output_folder.note_kept(folder, str(tmp_path / "trials" / "a"))
    claim(tmp_path)
    assert output_folder.kept(folder) == str(tmp_path / "trials" / "a")
    output_folder.note_kept(folder, folder)
    assert output_folder.kept(folder) == folder


def test_the_kept_training_of_a_remote_folder():
    folder = "ram://output_folder/kept"
    assert output_folder.kept(folder) == folder
    for training in (f"{folder}/trials/a", folder):
        output_folder.note_kept(folder, training)
        assert output_folder.kept(folder) == training


def test_an_unclaimed_folder_holds_the_kept_training(tmp_path):
    assert output_folder.kept(str(tmp_path)) == str(tmp_path)


# One training at a time.

TRAINS = """
import sys
from bert_tf.jobs import output_folder

with output_folder.locked(sys.argv[1]):
    print("locked", flush=True)
    sys.stdin.read()
"""


def start_training(folder):
    """Starts a process that locks the folder until its input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", TRAINS, str(folder)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "locked\n"
    return process


def test_a_killed_training_releases_its_lock(tmp_path):
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
    with output_folder.locked(str(tmp_path)):
        pass
    with output_folder.locked("gs://bucket/folder"):
        pass


# The options of a run.


def claimed(config, task="rte", **kwargs):
    """Claims --output_dir for the `with` block."""
    return output_folder.claimed(
        config.with_fallbacks(), STRATEGY, {"task": task}, [], **kwargs
    )


def begin(config, **kwargs):
    """Claims --output_dir for a run that ends at once."""
    with claimed(config, **kwargs):
        pass


def test_the_settings_of_a_training_are_recorded(given, tmp_path):
    out = tmp_path / "out"
    config = given(f"--output_dir={out}", "--do_train", "--learning_rate=0.25")
    begin(config)
    (out / "model.ckpt-1.index").touch()
    path = out / "fine_tuning.json"
    record = path.read_bytes()
    settings = json.loads(record)["settings"]
    assert settings["learning_rate"] == 0.25
    assert {"class_weights", "label_smoothing", "save_best"} <= set(settings)
    for words in (["--nodo_train", "--learning_rate=0.5"], ["--do_train"]):
        begin(given(*words))
        assert path.read_bytes() == record


def test_only_a_training_can_overwrite_a_run(given, tmp_path):
    config = given(f"--output_dir={tmp_path}/out", "--overwrite_output_dir")
    with pytest.raises(InputError, match="expected --do_train with"):
        begin(config)


def test_a_rerun_with_a_list_has_the_same_settings(given, tmp_path, caplog):
    """JSON has lists, and options have tuples."""
    out = tmp_path / "out"
    config = given(f"--output_dir={out}", "--do_train", "--class_weights=1,2")
    begin(config)
    (out / "model.ckpt-1.index").touch()
    begin(config)
    assert not caplog.text
    # With several trainings, other settings are an error.
    begin(given("--num_seeds=2"))


def test_another_seed_is_another_training(given, tmp_path, caplog):
    """An unfinished training continues with a warning."""
    out = tmp_path / "out"
    given(f"--output_dir={out}", "--do_train")

    def warnings(*words):
        caplog.clear()
        begin(given(*words))
        return caplog.text

    warnings("--random_seed=1")
    (out / "model.ckpt-1.index").touch()
    assert not warnings("--random_seed=1")
    assert "--random_seed was 1, is 2" in warnings("--random_seed=2")
    fill(out, ["release/bert_model.ckpt.index"])
    message = r"--random_seed=2 has no effect: .*out .* --random_seed=1\. "
    with pytest.raises(InputError, match=message):
        warnings("--random_seed=2")
    assert not warnings("--random_seed=1")
    # The folder of each of several trainings is named after its seed.
    assert not warnings("--random_seed=2", "--num_seeds=3")
    warnings("--num_seeds=1", "--overwrite_output_dir")
    record = json.loads((out / "fine_tuning.json").read_text())
    assert record["settings"]["random_seed"] == 2


def test_the_development_set_that_selects_is_a_setting(given, tmp_path, caplog):
    """Scores on different development sets cannot be compared."""
    out = tmp_path / "out"
    given(f"--output_dir={out}", "--do_train")

    def warnings(development_set, *words):
        caplog.clear()
        begin(given(*words), development_set=development_set)
        return caplog.text

    warnings("old", "--save_best=loss")
    (out / "model.ckpt-1.index").touch()
    assert not warnings("old")
    assert "the development set was another" in warnings("new")
    with pytest.raises(InputError, match="the development set was another"):
        warnings("new", "--num_seeds=2")
    # The last weights are kept, whatever their score.
    last = warnings("new", "--num_seeds=1", "--save_best=")
    assert "--save_best was loss" in last
    assert "the development set" not in last


def test_only_a_training_locks_the_folder(given, tmp_path):
    folder = str(tmp_path / "out")
    evaluation = given(f"--output_dir={folder}", "--do_eval")
    training = given("--do_train")
    message = r"is writing to .*/out. Wait until"
    with claimed(evaluation), output_folder.locked(folder):
        pass
    with output_folder.locked(folder):
        begin(evaluation)
        with pytest.raises(InputError, match=message):
            begin(training)
    with (
        claimed(training),
        pytest.raises(InputError, match=message),
        output_folder.locked(folder),
    ):
        pass
    with output_folder.locked(folder):
        pass


def test_the_initial_checkpoint_is_not_overwritten(given, tmp_path):
    """The lock is released, too."""
    out = tmp_path / "out"
    config = given(
        f"--output_dir={out}",
        f"--init_checkpoint={out}/release/bert_model.ckpt",
        "--do_train",
        "--overwrite_output_dir",
    )
    fill(out, ["release/bert_model.ckpt.index", "release/vocab.txt"])
    (out / "fine_tuning.json").write_text('{"facts": {}}')
    before = names_in(out)
    with pytest.raises(InputError, match="which it would remove"):
        begin(config)
    assert names_in(out) == before
    with output_folder.locked(str(out)):
        pass


@pytest.mark.parametrize("export_dir", ["out/export", "elsewhere/models"])
def test_an_unusable_export_folder_is_found_first(given, tmp_path, export_dir):
    """Nothing is claimed, and a run that would be replaced stays in place."""
    out, place = tmp_path / "out", tmp_path / export_dir
    fill(tmp_path, [export_dir])
    config = given(
        f"--output_dir={out}",
        "--do_train",
        "--do_export",
        f"--export_dir={place}",
    )
    message = f"the export to .*{export_dir}: "
    with pytest.raises(InputError, match=message):
        begin(config)
    assert not (out / "fine_tuning.json").exists()
    fill(out, ["model.ckpt-1.index"])
    (out / "fine_tuning.json").write_text('{"facts": {}, "settings": {}}')
    before = names_in(out)
    with pytest.raises(InputError, match=message):
        begin(given("--overwrite_output_dir"))
    assert names_in(out) == before
    assert place.read_text() == "x"


def test_a_folder_of_another_task_gets_no_exports(given, tmp_path):
    out = tmp_path / "out"
    begin(given(f"--output_dir={out}", "--do_train"))
    (out / "model.ckpt-1.index").touch()
    config = given("--nodo_train", "--do_export")
    with pytest.raises(InputError, match=r"of task mrpc.*a run of task rte"):
        begin(config, task="mrpc")
    assert not (out / "export").exists()
    begin(config)
    assert (out / "export").is_dir()
