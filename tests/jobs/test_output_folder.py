"""Which run owns an output folder, and what is removed with an old run."""

import errno
import json
import os

import pytest
import tensorflow as tf

from bert_tf.base import files
from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.jobs import output_folder
from bert_tf.jobs.start import Start
from bert_tf.kinds.classification.job import ClassifierConfig

CONFIG = BertConfig(vocab_size=3, hidden_size=4, num_attention_heads=2)
START = Start(config=CONFIG, vocab=("a", "b", "c"), do_lower_case=True)
FACTS = {
    **START.facts(task="mrpc", problem="single_label", labels=["0", "1"]),
    "training_set": "89abcdef",
}
COLA = {**FACTS, "task": "cola"}
RELEASED = "release/bert_model.ckpt.index"


def claimed(
    folder, facts=FACTS, inputs=(), development_set=None, do_train=True, **flags
):
    """Claims a folder for the `with` block, to train in it by default."""
    config = ClassifierConfig(
        task_name="any", output_dir=str(folder), do_train=do_train, **flags
    )
    strategy = tf.distribute.get_strategy()
    return output_folder.claimed(
        config.with_fallbacks(), strategy, facts, inputs, development_set
    )


def begin(folder, *args, **kwargs):
    """Claims a folder for a run that ends at once."""
    with claimed(folder, *args, **kwargs):
        pass


def refused(message, folder, *args, **kwargs):
    """Claims a folder, which fails and changes nothing."""
    before = names_in(folder)
    with pytest.raises(InputError, match=message) as error:
        begin(folder, *args, **kwargs)
    assert names_in(folder) == before
    return str(error.value)


def fill(folder, *names):
    """Writes files, by default the checkpoint that a training leaves."""
    for name in names or ("model.ckpt-7.index",):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x", encoding="utf-8")


def names_in(folder):
    return {
        os.path.relpath(os.path.join(place, name), folder)
        for place, _, names in os.walk(folder)
        for name in names
    }


def test_a_training_is_recorded(tmp_path):
    folder = tmp_path / "a" / "b"
    begin(folder, learning_rate=0.25, class_weights=("1", "2"))
    record = json.loads((folder / "fine_tuning.json").read_text())
    facts = {**FACTS, "lora_rank": None}
    assert record["facts"] == facts
    assert record["settings"]["learning_rate"] == 0.25
    assert record["settings"]["class_weights"] == ["1", "2"]
    names = {"save_best", "max_grad_norm", "random_seed", "class_weights"}
    assert names <= record["settings"].keys()
    # The record counts as soon as there is a model.
    assert output_folder.recorded_facts(str(folder)) == {}
    fill(folder)
    known = output_folder.recorded_facts(str(folder))
    assert known == {**record["facts"], **record["settings"]}
    # Without training there are no settings and no training set to compare.
    facts = {k: v for k, v in FACTS.items() if k != "training_set"}
    begin(folder, facts, learning_rate=0.5, do_train=False)
    assert output_folder.recorded_facts(str(folder)) == known


@pytest.mark.parametrize(
    ("name", "other", "words"),
    [
        ("task", "cola", "a run with task='mrpc', not 'cola'. Choose"),
        ("labels", ["0"], r"labels=\['0', '1'\], not \['0'\]\."),
        (
            "config",
            {"hidden_size": 8, "num_attention_heads": 2},
            r"a run with hidden_size=4, not 8\.",
        ),
    ],
)
def test_another_run_is_rejected(tmp_path, name, other, words):
    begin(tmp_path)
    fill(tmp_path)
    facts = {**FACTS, name: other}
    for do_train in (True, False):
        message = refused(words, tmp_path, facts, do_train=do_train)
        assert "`overwrite_output_dir`" in message


def test_a_run_without_a_checkpoint_does_not_own_the_folder(tmp_path):
    begin(tmp_path)
    begin(tmp_path, COLA)
    fill(tmp_path)
    refused("a run with task='cola'", tmp_path)


def test_other_settings_are_rejected(tmp_path):
    def run(development_set="old", **flags):
        flags = {"class_weights": ("1", "2"), "save_best": "loss", **flags}
        begin(tmp_path, development_set=development_set, **flags)

    run()
    fill(tmp_path)
    run()
    with pytest.raises(InputError, match="learning_rate=5e-05, not 3e-05; sav"):
        run(learning_rate=3e-5, save_best=None)
    # A search has its own learning rates.
    run(learning_rate=3e-5, search="paper")
    # Scores on different development sets cannot be compared.
    with pytest.raises(InputError, match="development_set='old', not 'new'"):
        run("new")
    # The folder of each of several trainings is named after its seed.
    run(random_seed=2, num_seeds=3)
    with pytest.raises(InputError, match="random_seed=12345, not 2"):
        run(random_seed=2)


RUN = [
    *("checkpoint", "model.ckpt-7.index", "eval_results.txt", RELEASED),
    *("train.tf_record", "trials/batch16/model.ckpt-1.index", "notes.txt"),
]
# A server may have it open.
EXPORT = "export/1763776800/saved_model.pb"


def test_a_replaced_run_is_moved_away_whole(tmp_path):
    folder = tmp_path / "out"
    begin(folder)
    fill(folder, *RUN, EXPORT)
    for number in (1, 2):
        aside = tmp_path / f"out.replaced-{number}"
        moved = names_in(folder) - {EXPORT}
        with claimed(folder, COLA, overwrite_output_dir=True):
            refused("is writing to", folder)
        assert names_in(aside) == moved
        assert names_in(folder) == {"fine_tuning.json", EXPORT}
    fill(folder)
    assert output_folder.recorded_facts(str(folder))["task"] == "cola"
    assert {*RUN} <= names_in(tmp_path / "out.replaced-1")


def test_a_killed_replacement_continues(tmp_path, monkeypatch):
    folder, rename = tmp_path / "out", files.rename
    begin(folder)
    fill(folder, *RUN)
    moved = []

    def rename_two(source, target):
        if len(moved) == 2:
            raise KeyboardInterrupt
        moved.append(target)
        rename(source, target)

    monkeypatch.setattr(files, "rename", rename_two)
    with pytest.raises(KeyboardInterrupt):
        begin(folder, COLA, overwrite_output_dir=True)
    monkeypatch.setattr(files, "rename", rename)
    begin(folder, COLA, overwrite_output_dir=True)
    assert names_in(folder) == {"fine_tuning.json"}
    aside = [names_in(tmp_path / f"out.replaced-{n}") for n in (1, 2)]
    assert set.union(*aside) == {*RUN, "fine_tuning.json"}
    assert "fine_tuning.json" in aside[1]


def test_only_the_folder_of_a_run_is_overwritten(tmp_path):
    flags = {"overwrite_output_dir": True}
    fill(tmp_path, "release/mine.txt", "predictions.tsv")
    refused("files but no fine_tuning.json", tmp_path, **flags)
    begin(tmp_path / "new", **flags)


@pytest.mark.parametrize(
    ("name", "needed"),
    [
        ("init_checkpoint", "model.ckpt-7"),
        ("teacher", "."),
        ("inputs", "link"),
        ("inputs", "train.tf_record"),
    ],
)
def test_inputs_of_the_run_are_not_removed(tmp_path, name, needed):
    folder = tmp_path / "out"
    begin(folder)
    fill(folder, *RUN)
    (folder / "link").symlink_to(folder / "release")
    path = str(folder / needed)
    flags = {name: [path] if name == "inputs" else path}
    flags["overwrite_output_dir"] = True
    refused("would move its input", folder, **flags)
    # Inputs beside the folder do not matter, and the lock is released.
    begin(folder, inputs=[f"{folder}.tsv"], overwrite_output_dir=True)


def test_inputs_are_not_overwritten(tmp_path):
    fill(tmp_path, "predictions.tsv", "vocab.txt", "x")
    inputs = [str(tmp_path / "predictions.tsv")]
    refused("overwrite its .*predictions.tsv", tmp_path, inputs=inputs)
    refused("x` is a file", tmp_path / "x", do_train=False)
    begin(tmp_path, vocab_file=str(tmp_path / "vocab.txt"))


@pytest.mark.parametrize("name", ["", "bert_model.ckpt"])
def test_the_folder_of_a_checkpoint_is_not_trained_in(tmp_path, name):
    fill(tmp_path, "bert_model.ckpt.index")
    start = str(tmp_path / name)
    refused("contains `init_checkpoint`", tmp_path, init_checkpoint=start)
    # It is fine without training, and in the folder of the run itself.
    begin(tmp_path, init_checkpoint=start, do_train=False)
    begin(tmp_path)
    fill(tmp_path)
    begin(tmp_path, init_checkpoint=start)


def test_an_unusable_export_folder_is_found_first(tmp_path):
    """A run that would be replaced stays in place."""
    out = tmp_path / "out"
    begin(out)
    fill(out, "export", "model.ckpt-7.index")
    refused("out/export", out, do_export=True, overwrite_output_dir=True)


def test_the_lock_ends_with_the_run(tmp_path):
    """The kernel releases it, so that no file is left by a killed process."""
    with claimed(tmp_path):
        refused(f"Another process is writing to {tmp_path}. W", tmp_path)
        # Evaluating while another process trains is fine.
        begin(tmp_path, do_train=False)
        assert names_in(tmp_path) == {"fine_tuning.json"}
    begin(tmp_path)
    with output_folder.locked(str(tmp_path / "new")):
        pass  # A new folder without files is removed.
    assert not (tmp_path / "new").exists()


def test_file_systems_without_locks_are_not_locked(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(output_folder.fcntl, "flock", refuse)
    for folder in (str(tmp_path), "gs://bucket/folder"):
        with output_folder.locked(folder):
            pass


KIND = {"objective": "masked_lm", "num_attention_heads": 2}


def compare(folder, **changes):
    run = {"facts": {**KIND, **changes}}
    output_folder.require_same(str(folder), run, name="pretraining.json")


def test_a_record_counts_once_there_is_a_checkpoint(tmp_path):
    output_folder.write_record(
        str(tmp_path), {"facts": KIND}, "pretraining.json"
    )
    compare(tmp_path, num_attention_heads=4)
    fill(tmp_path)
    compare(tmp_path)
    # Facts of later versions are not compared.
    compare(tmp_path, new=True)
    with pytest.raises(InputError, match=r"of another job.*pretraining\.json"):
        output_folder.require_same(str(tmp_path), {})
    words = r"num_attention_heads=2, not 4\. Choose another `output_dir`\.$"
    with pytest.raises(InputError, match=words):
        compare(tmp_path, num_attention_heads=4)
