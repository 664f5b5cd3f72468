"""run_classifier.py from its command line to its files, in this process.

Tasks and errors have their own files.
"""

import functools
import json
import os
import shutil

import doc_pages
import fine_tuning_runs
import in_process
import keras
import numpy as np
import pytest
import sentence_files
import tensorflow as tf
from checkout import ROOT
from fine_tuning_runs import (
    ANSWERS,
    FLAGS,
    LENGTH,
    ORIGINAL,
    assert_same,
    assert_same_answers,
    contents,
    files_of_a_run,
    names_in,
    read,
    results,
    table,
    weights,
)

from bert_tf.base.options import OptionError
from bert_tf.checkpoints.pretrained import open_pretrained
from bert_tf.data.records import classification_schema
from bert_tf.kinds.classification import job as classifier
from bert_tf.kinds.classification.job import ClassifierConfig
from bert_tf.modeling.heads import BertClassifier

pytestmark = pytest.mark.usefixtures("eager_fixtures", "eagerly")

WITHOUT_FILES = {"bert_config_file": None, "vocab_file": None}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """All flags of the original but --output_dir, as an old command line."""
    folder = tmp_path_factory.mktemp("inputs")
    return {
        **ORIGINAL,
        **FLAGS,
        **fine_tuning_runs.write_model(folder),
        "data_dir": sentence_files.write(folder / "data", "sst-2"),
        "init_checkpoint": fine_tuning_runs.write_release(
            folder / "start", ("0", "1")
        ),
        "task_name": "SST-2",
        "do_eval": True,
        "do_predict": True,
        "eval_batch_size": 3,
        "predict_batch_size": 2,
        "save_checkpoints_steps": 3,
        "tpu_name": "mine",
        "tpu_zone": "europe-west4-a",
        "gcp_project": "mine",
        "master": "grpc://10.0.0.2:8470",
        "class_weights": "balanced",
    }


@pytest.fixture(scope="module")
def run(inputs):
    """Runs the script as the original was run, with some changes."""
    return functools.partial(fine_tuning_runs.run, "run_classifier", **inputs)


@pytest.fixture(scope="module")
def done(run, tmp_path_factory):
    """The folder of a run that does everything."""
    folder = tmp_path_factory.mktemp("done")
    run(folder)
    return folder


@pytest.fixture
def copy(done, tmp_path):
    """A copy of the folder of a finished run."""
    return shutil.copytree(done, tmp_path / "copy")


def test_flags_and_defaults_of_the_original():
    known = in_process.flags_of(classifier)
    expected = ORIGINAL | {"data_dir": None, "task_name": None}
    expected |= {"max_seq_length": 128, "eval_batch_size": 8}
    assert {name: known[name].default for name in expected} == expected


def test_the_files_of_a_run(done):
    records = ("train.tf_record", "eval.tf_record", "predict.tf_record")
    assert names_in(done) == files_of_a_run(3, 6, records=records) | {
        *("glue_submission/SST-2.tsv", "predictions.tsv", "test_results.tsv"),
    }
    metrics = results(done)
    keys = ["eval_accuracy", "eval_loss", "global_step", "loss"]
    assert list(metrics) == keys
    values = json.loads((done / "eval_results.json").read_text())
    assert values.pop("train_seconds") > 0
    assert len(bytes.fromhex(values.pop("weights_sha256"))) == 32
    assert values == metrics
    released = open_pretrained(done / "release")
    assert (released.labels, released.head) == (("0", "1"), "classifier")
    assert released.problem_type == "single_label_classification"
    # An export of the text model takes as many texts as the training.
    assert released.is_pair is False
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


def test_results_equal_the_released_model_on_the_records(done):
    """The model is evaluated without the training loop."""
    model = BertClassifier.from_pretrained(done / "release")

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


def test_rerunning_a_finished_run_trains_nothing(copy, run, caplog):
    before = contents(copy)
    caplog.set_level("INFO", "absl")
    run(copy)
    assert "Nothing to train: step 6 of 6 is done" in caplog.text
    for name in ("train", "eval", "predict"):
        assert f"Reusing {copy}/{name}.tf_record" in caplog.text
    after = contents(copy)
    changed = {path.name for path in after if before.get(path) != after[path]}
    assert changed <= {"eval_results.json"}  # Its training time is 0.


def test_an_interrupted_run_resumes_bit_for_bit(done, copy, run):
    """From the checkpoint in the middle."""
    (copy / "model.ckpt-6.index").unlink()
    shutil.rmtree(copy / "release")
    run(copy)
    for name in ("model.ckpt-6", "release/bert_model.ckpt"):
        assert_same(read(copy / name), read(done / name))
    assert_same_answers(copy, done)


def test_the_output_folder_is_enough_to_predict(done, copy, run):
    """Its release has the configuration, vocabulary and labels."""
    for name in ("eval_results.txt", "test_results.tsv"):
        (copy / name).unlink()
    record = (copy / "fine_tuning.json").read_bytes()
    run(copy, **ANSWERS, **WITHOUT_FILES, init_checkpoint=None)
    assert results(copy) == results(done)
    assert_same_answers(copy, done)
    # A later training can still compare its settings.
    assert (copy / "fine_tuning.json").read_bytes() == record


def test_predictions_are_equal_on_any_devices(done, run, tmp_path, two_devices):
    """A release in the output folder is the model, also without checkpoints."""
    shutil.copytree(done / "release", tmp_path / "release")
    run(tmp_path, **ANSWERS, **two_devices)
    assert_same_answers(tmp_path, done)


# tests/test_cli.py compares the options of both.
@pytest.mark.slow
def test_python_and_the_command_line_agree(done, inputs, tmp_path):
    out = tmp_path / "out"
    flags = {**inputs, "class_weights": ["balanced"]}
    trained = classifier.run(ClassifierConfig(**flags, output_dir=out))
    assert trained.release == str(out / "release")
    assert trained.metrics == pytest.approx(results(done))
    assert_same(
        *(weights(f / "release" / "bert_model.ckpt") for f in (out, done))
    )
    flags |= {"do_train": False, "mixed_precision": "bfloat16"}
    flags |= {"init_checkpoint": trained.release, "output_dir": tmp_path / "b"}
    assert classifier.run(ClassifierConfig(**flags)).release is None
    assert keras.config.dtype_policy().name == "float32"
    with pytest.raises(OptionError, match=r"`num_seeds` must be at least 1"):
        ClassifierConfig(**flags, num_seeds=0)


@pytest.mark.slow
def test_the_example_of_the_page_runs(tmp_path, monkeypatch):
    """On a very small CoLA, with the model that the page names."""
    monkeypatch.chdir(tmp_path)
    sentence_files.write(tmp_path / "glue_data" / "CoLA", "cola")
    fine_tuning_runs.write_release(
        tmp_path / "uncased_L-12_H-768_A-12", ("0", "1")
    )
    [block] = doc_pages.blocks(ROOT / "docs" / "scripts" / "index.md", "python")
    faster = "max_seq_length=23, jit_compile='false', init_checkpoint="
    code = block.text.replace("init_checkpoint=", faster)
    namespace = {}
    exec(compile(code, "docs/scripts/index.md", "exec"), namespace)
    result = namespace["result"]
    assert "eval_mcc" in result.metrics
    assert result.release == "cola_output/release"
    assert os.path.dirname(result.export) == "cola_output/export"
