"""The script from its command line to its files.

It runs in this process, since TensorFlow takes seconds to start. Tasks, the
selection of models and mistakes have their own files.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys

import fine_tuning_runs
import in_process
import numpy as np
import pytest
import sentence_files
import tensorflow as tf
from fine_tuning_runs import (
    ANSWERS,
    LENGTH,
    OLD,
    arguments,
    assert_same,
    assert_same_answers,
    contents,
    names_in,
    read,
    results,
    table,
    weights,
)

from bert_tf.config import BertConfig
from bert_tf.data.schema import classification_schema
from bert_tf.heads import BertClassifier
from bert_tf.jobs import classifier
from bert_tf.modeling import checkpoint_variables
from bert_tf.pretrained import open_pretrained
from bert_tf.training import checkpoints, distribution
from bert_tf.training.weights import restore
from tests.conftest import ROOT
from tests.training import toy_task

# Flags of the original's run_classifier.py, with their defaults.
ORIGINAL = {
    "data_dir": None,
    "bert_config_file": None,
    "task_name": None,
    "vocab_file": None,
    "output_dir": None,
    "init_checkpoint": None,
    "do_lower_case": True,
    "max_seq_length": 128,
    "do_train": False,
    "do_eval": False,
    "do_predict": False,
    "train_batch_size": 32,
    "eval_batch_size": 8,
    "predict_batch_size": 8,
    "learning_rate": 5e-5,
    "num_train_epochs": 3.0,
    "warmup_proportion": 0.1,
    "save_checkpoints_steps": 1000,
    "iterations_per_loop": 1000,
    "use_tpu": False,
    "tpu_name": None,
    "tpu_zone": None,
    "gcp_project": None,
    "master": None,
    "num_tpu_cores": 8,
}


@pytest.fixture(scope="module")
def launch():
    with fine_tuning_runs.classifier() as launch:
        yield launch


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """The flags that name the model's files and the data."""
    folder = tmp_path_factory.mktemp("inputs")
    data = sentence_files.write(folder / "data", "sst-2")
    return {**fine_tuning_runs.write_model(folder), "data_dir": data}


@pytest.fixture(scope="module")
def done(launch, inputs, tmp_path_factory):
    """The folder of a run, started as the original was."""
    folder = tmp_path_factory.mktemp("done")
    fine_tuning_runs.write_release(start_of(inputs), ("0", "1"))
    assert launch(old_command(inputs, folder)) == 0
    return folder


def start_of(inputs):
    """A model that the runs start from."""
    return inputs["data_dir"].parent / "start"


def old_command(inputs, folder):
    """A command line with all flags of the original, and two of ours."""
    given = {
        **OLD,
        **inputs,
        "init_checkpoint": start_of(inputs),
        "output_dir": folder,
    }
    assert given.keys() == ORIGINAL.keys()
    words = [f"--{name}={value}" for name, value in given.items()]
    return [*words, "--glue_submission", "--jit_compile=false"]


@pytest.fixture
def run(launch, inputs):
    """Runs the script on the task, with the usual flags and some changes."""

    def call(output_dir, status=0, **changes):
        words = {
            **inputs,
            "task_name": "sst-2",
            "output_dir": output_dir,
            **changes,
        }
        assert launch(arguments(**words)) == status

    return call


# What it writes.


def test_flags_and_defaults_of_the_original():
    known = in_process.flags_of(classifier)
    assert {name: known[name].default for name in ORIGINAL} == ORIGINAL


def test_the_files_of_a_run(done):
    assert names_in(done) == {
        "checkpoint",
        "eval.tf_record",
        "eval_results.json",
        "eval_results.txt",
        "events.out.tfevents",
        "fine_tuning.json",
        "glue_submission/SST-2.tsv",
        "manifest.eval.tf_record.json",
        "manifest.predict.tf_record.json",
        "manifest.train.tf_record.json",
        "model.ckpt-3.data-00000-of-00001",
        "model.ckpt-3.index",
        "model.ckpt-6.data-00000-of-00001",
        "model.ckpt-6.index",
        "predict.tf_record",
        "predictions.tsv",
        "release/bert_config.json",
        "release/bert_model.ckpt.data-00000-of-00001",
        "release/bert_model.ckpt.index",
        "release/bert_tf.json",
        "release/vocab.txt",
        "test_results.tsv",
        "train.tf_record",
    }


def test_results_and_the_release(done):
    metrics = results(done)
    keys = ["eval_accuracy", "eval_loss", "global_step", "loss"]
    assert list(metrics) == keys
    assert metrics["global_step"] == 6
    values = json.loads((done / "eval_results.json").read_text())
    assert values.pop("train_seconds") > 0
    assert len(bytes.fromhex(values.pop("weights_sha256"))) == 32
    assert values == metrics
    released = open_pretrained(done / "release")
    assert released.labels == ("0", "1")
    assert released.head == "classifier"
    assert released.problem_type == "single_label_classification"
    assert released.do_lower_case is True
    assert list(released.vocab) == sentence_files.VOCAB


def parsed(path):
    """Reads a file of records as the original would."""
    spec = {
        feature.name: tf.io.FixedLenFeature(feature.shape, feature.dtype)
        for feature in classification_schema(LENGTH, "single_label", 2)
    }
    raw = list(tf.data.TFRecordDataset(str(path)).as_numpy_iterator())
    return tf.io.parse_example(raw, spec)


def test_records_have_the_format_of_the_original(done):
    features = parsed(done / "train.tf_record")
    assert features.keys() == {
        "input_ids",
        "input_mask",
        "segment_ids",
        "label_ids",
        "is_real_example",
    }
    data = sentence_files.examples("train.tsv", ("0", "1"), 12)
    for row, (_, label, text, _) in enumerate(data):
        tokens = ["[CLS]", *text.split(), "[SEP]"]
        ids = [sentence_files.VOCAB.index(token) for token in tokens]
        ids += [0] * (LENGTH - len(ids))
        assert features["input_ids"][row].numpy().tolist() == ids
        assert features["label_ids"][row] == int(label)


def test_results_equal_the_released_model_on_the_records(done):
    """The model is evaluated without the training loop."""
    release = str(done / "release")
    config = BertConfig.from_json_file(
        os.path.join(release, "bert_config.json")
    )
    model = BertClassifier(config, 2)
    model.build()
    weights = checkpoints.Reader(checkpoints.find(release))
    report = restore(checkpoint_variables(model), weights)
    assert report.missing == report.left_over == ()

    def probabilities(name):
        features = parsed(done / name)
        logits = model(features)["logits"].numpy()
        return tf.nn.softmax(logits).numpy(), features["label_ids"].numpy()

    values, labels = probabilities("eval.tf_record")
    metrics, losses = results(done), -np.log(values[np.arange(7), labels])
    assert metrics["eval_accuracy"] == np.mean(values.argmax(1) == labels)
    assert metrics["eval_loss"] == pytest.approx(losses.mean(), rel=1e-5)
    means = [losses[:3].mean(), losses[3:6].mean(), losses[6]]
    assert metrics["loss"] == pytest.approx(np.mean(means), rel=1e-5)
    values, _ = probabilities("predict.tf_record")
    written = np.array(table(done / "test_results.tsv"), float)
    np.testing.assert_allclose(written, values, atol=1e-6)


def test_both_formats_of_predictions(done):
    chosen = np.array(table(done / "test_results.tsv"), float).argmax(1)
    header, *rows = table(done / "predictions.tsv")
    assert header == [
        "id",
        "text",
        "prediction",
        "probability_0",
        "probability_1",
    ]
    data = sentence_files.examples("test.tsv", ("0", "1"), 5)
    for row, (n, _, text, _), label in zip(rows, data, chosen, strict=True):
        assert row[:3] == [str(n), text, str(label)]
    assert table(done / "glue_submission" / "SST-2.tsv") == [
        ["index", "prediction"],
        *(row[::2][:2] for row in rows),
    ]


# Rerunning.


def test_rerunning_a_finished_run_trains_nothing(
    done, launch, inputs, tmp_path, caplog
):
    folder = tmp_path / "out"
    shutil.copytree(done, folder)
    before = contents(folder)
    caplog.set_level("INFO", "absl")
    assert launch(old_command(inputs, folder)) == 0
    assert "Nothing to train: step 6 of 6 is done" in caplog.text
    for name in ("train", "eval", "predict"):
        assert f"Reusing {folder}/{name}.tf_record: same" in caplog.text
    after = contents(folder)
    changed = {path.name for path in after if before.get(path) != after[path]}
    assert changed <= {"eval_results.json"}  # Its training time is 0.


def test_an_interrupted_run_resumes_bit_for_bit(done, launch, inputs, tmp_path):
    """From the checkpoint in the middle."""
    folder = tmp_path / "out"
    shutil.copytree(done, folder)
    (folder / "model.ckpt-6.index").unlink()
    shutil.rmtree(folder / "release")
    assert launch(old_command(inputs, folder)) == 0
    for name in ("model.ckpt-6", "release/bert_model.ckpt"):
        assert_same(read(folder / name), read(done / name))
    assert_same_answers(folder, done)


def test_the_output_folder_is_enough_to_predict(done, run, tmp_path):
    """Its release has the configuration, vocabulary and labels."""
    folder = tmp_path / "out"
    shutil.copytree(done, folder)
    (folder / "eval_results.txt").unlink()
    (folder / "test_results.tsv").unlink()
    run(
        folder,
        **ANSWERS,
        bert_config_file=None,
        vocab_file=None,
        eval_batch_size=3,
    )
    assert results(folder) == results(done)
    assert_same_answers(folder, done)
    # A later training can still compare its settings.
    facts = json.loads((folder / "fine_tuning.json").read_text())
    assert facts["settings"]["train_batch_size"] == 4


@pytest.mark.parametrize(
    "way",
    [
        pytest.param("longest", marks=pytest.mark.slow),
        "max_length",
        "mirrored",
    ],
)
def test_predictions_are_equal_with_any_padding_and_devices(
    done, run, tmp_path, monkeypatch, way
):
    """The release predicts in a new folder."""
    changes = {"padding": way}
    if way == "mirrored":
        makers = {"mirrored": lambda config: toy_task.two_devices()}
        monkeypatch.setattr(distribution, "_MAKERS", makers)
        changes = {"distribution_strategy": way}
    run(
        tmp_path,
        **ANSWERS | changes,
        init_checkpoint=done / "release",
        eval_batch_size=3,
        bert_config_file=None,
        vocab_file=None,
    )
    assert_same_answers(tmp_path, done)
    assert not (tmp_path / "release").exists()


# Training.


@pytest.mark.slow
@pytest.mark.parametrize("way", ["max_length", "mirrored"])
def test_training_is_equal_with_any_padding_and_devices(
    run, tmp_path, monkeypatch, way
):
    """Each batch has all examples."""
    changes = {
        **fine_tuning_runs.write_model(
            tmp_path, **fine_tuning_runs.WITHOUT_DROPOUT
        ),
        "head_dropout": 0.0,
        "train_batch_size": 12,
        "num_train_epochs": 3,
    }
    run(tmp_path / "longest", **changes, padding="longest")
    if way == "mirrored":
        makers = {"mirrored": lambda config: toy_task.two_devices()}
        monkeypatch.setattr(distribution, "_MAKERS", makers)
        changes["distribution_strategy"] = way
    else:
        changes["padding"] = way
    run(tmp_path / way, **changes)
    ours, theirs = (
        weights(tmp_path / name / "model.ckpt-3") for name in ("longest", way)
    )
    # The gradient of key biases is rounding only, which Adam amplifies.
    for name in [name for name in ours if name.endswith("key/bias")]:
        del ours[name], theirs[name]
    assert_same(ours, theirs, atol=1e-5)


@pytest.mark.slow
def test_a_signal_saves_a_checkpoint_to_resume_from(
    done, run, inputs, tmp_path, monkeypatch
):
    """After the second step, between two checkpoints."""
    from bert_tf.jobs import fine_tuning

    class Stop(fine_tuning.Progress):
        def after_steps(self, step, records):
            if step == 2:
                os.kill(os.getpid(), signal.SIGTERM)

    start = {"init_checkpoint": start_of(inputs)}
    with monkeypatch.context() as patch:
        patch.setattr(fine_tuning, "Progress", Stop)
        run(tmp_path, status=128 + signal.SIGTERM, **start)
    assert (tmp_path / "model.ckpt-2.index").exists()
    assert not (tmp_path / "release").exists()
    run(tmp_path, **start)
    assert_same(read(tmp_path / "model.ckpt-6"), read(done / "model.ckpt-6"))


# A separate process.


def program(words):
    inherited = {**os.environ}
    inherited.pop("TF_CPP_MIN_LOG_LEVEL", None)
    done = subprocess.run(
        [sys.executable, str(ROOT / "run_classifier.py"), *words],
        capture_output=True,
        text=True,
        env=inherited,
    )
    return done.returncode, done.stderr.splitlines()


@pytest.mark.slow
def test_a_separate_process_gives_the_same_weights(done, inputs, tmp_path):
    status, lines = program(old_command(inputs, tmp_path))
    assert status == 0, "\n".join(lines)
    ours, theirs = (read(f / "model.ckpt-6") for f in (tmp_path, done))
    assert_same(ours, theirs, atol=1e-4)
    assert not [line for line in lines if re.match(r"[IWE]0000|WARN", line)]
