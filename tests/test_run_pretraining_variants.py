"""The paper's other objectives and models: section 5.1, "No NSP" and "LTR"."""

import json
import os
import shutil
import signal

import in_process
import numpy as np
import pytest
from fine_tuning_runs import results
from small_pretraining import (
    LENGTH,
    PREDICTIONS,
    VOCAB,
    arguments,
    contents,
    examples,
    read,
    write_inputs,
)

from bert_tf.config import BertConfig
from bert_tf.data.records import RecordWriter, encode_batch
from bert_tf.data.schema import pretraining_schema
from bert_tf.interop import conversion
from bert_tf.jobs import pretraining
from bert_tf.pretrained import open_pretrained

LEFT_TO_RIGHT = {
    "attention_direction": "left_to_right",
    "objective": "causal_lm",
    "next_sentence": False,
}
STEPS = {"num_train_steps": 2, "num_warmup_steps": 1}
CAUSAL = {**LEFT_TO_RIGHT, **STEPS, "num_train_steps": 4}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    write_inputs(folder)
    return folder


@pytest.fixture
def launch():
    # Not for all tests: some run another script, whose flags would be in the
    # way.
    with in_process.script("run_pretraining") as launch:
        yield launch


@pytest.fixture
def run(launch, inputs):
    """Runs the script with the usual flags and some changes."""

    def call(output_dir, **changes):
        assert launch(arguments(inputs, output_dir, **changes)) == 0

    return call


@pytest.fixture
def says(launch, inputs, capsys):
    """Runs a job that fails; returns its one line of error."""

    def call(output_dir, **changes):
        assert launch(arguments(inputs, output_dir, **changes)) == 1
        return in_process.the_error(capsys, "run_pretraining")

    return call


@pytest.fixture(scope="module")
def causal(inputs, tmp_path_factory):
    """The folder of a causal LM, trained and evaluated."""
    folder = tmp_path_factory.mktemp("causal")
    words = arguments(
        inputs,
        folder,
        do_eval=True,
        vocab_file=inputs / "vocab.txt",
        **CAUSAL,
    )
    with in_process.script("run_pretraining") as launch:
        assert launch(words) == 0
    return folder


@pytest.fixture(scope="module", params=["done", "stopped"])
def ended(request, causal, tmp_path_factory):
    """The same folder, or its state at a step, without a release."""
    if request.param == "done":
        return causal
    folder = tmp_path_factory.mktemp("stopped") / "out"
    shutil.copytree(causal, folder)
    shutil.rmtree(folder / "release")
    for path in folder.glob("model.ckpt-4.*"):
        path.unlink()
    return folder


def test_a_causal_lm_is_trained_on_records_of_masked_words(causal):
    found = results(causal)
    assert list(found) == [
        "causal_lm_accuracy",
        "causal_lm_loss",
        "global_step",
        "loss",
        "perplexity",
    ]
    assert found["perplexity"] == pytest.approx(np.exp(found["loss"]))
    moments = read(causal / "model.ckpt-4")
    assert moments["cls/predictions/output_bias/adam_v"].all()
    assert not moments["cls/seq_relationship/output_weights/adam_v"].any()


def test_the_release_records_its_kind(causal):
    released = open_pretrained(causal / "release")
    assert released.config.is_left_to_right
    assert released.objective == "causal_lm"
    assert released.head == "masked_lm"


def test_an_evaluation_takes_the_direction_from_the_release(causal, run):
    before = results(causal)
    config = causal / "release" / "bert_config.json"
    assert json.loads(config.read_text())["attention_direction"]
    run(
        causal,
        do_train=None,
        do_eval=True,
        bert_config_file=config,
        objective="causal_lm",
        next_sentence=False,
    )
    assert results(causal) == before


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"attention_direction": None},
            "was trained with attention_direction=left_to_right",
        ),
        (
            {"objective": None},
            "was trained with objective=causal_lm",
        ),
        (
            {"next_sentence": None},
            "was trained with next_sentence=false",
        ),
        (
            {"next_sentence": None, "do_train": None, "do_eval": True},
            "was trained with next_sentence=false",
        ),
    ],
)
def test_another_model_or_objective_is_refused(ended, says, changes, words):
    before = contents(ended)
    assert words in says(ended, **{**CAUSAL, **changes})
    assert contents(ended) == before


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"objective": "causal_lm"},
            "the model would see the tokens that it must predict",
        ),
        (
            {**LEFT_TO_RIGHT, "do_export": True},
            "--objective must be masked_lm with --do_export",
        ),
    ],
)
def test_options_that_exclude_each_other(says, tmp_path, changes, words):
    assert words in says(tmp_path / "out", **changes)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_stopped_causal_lm_resumes_exactly(
    causal, launch, inputs, tmp_path, monkeypatch
):
    """With the weights and moments of the undisturbed run."""
    script = pretraining

    class Stop(script.Progress):
        def after_steps(self, step, records):
            if step == 2:
                os.kill(os.getpid(), signal.SIGTERM)

    words = arguments(inputs, tmp_path, **CAUSAL)
    with monkeypatch.context() as patch:
        patch.setattr(script, "Progress", Stop)
        assert launch(words) == 128 + signal.SIGTERM
    assert (tmp_path / "model.ckpt-2.index").exists()
    assert not (tmp_path / "release").exists()
    assert launch(words) == 0
    for prefix in ("model.ckpt-4", "release/bert_model.ckpt"):
        found, expected = read(tmp_path / prefix), read(causal / prefix)
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_a_causal_lm_cannot_fill_masks(causal, capsys):
    with in_process.script("fill_mask", ["init_checkpoint"]) as launch:
        words = [f"--init_checkpoint={causal}/release", "--text=w1 [MASK]"]
        assert launch(words) == 1
    line = in_process.the_error(capsys, "fill_mask")
    assert "was trained to predict the next word (objective causal_lm)" in line


def test_a_causal_lm_is_not_converted_to_hugging_face(causal, tmp_path, capsys):
    with in_process.script(
        "convert_checkpoint", ["input", "output_dir", "to"]
    ) as launch:
        words = [f"--input={causal}/release", "--to=huggingface"]
        assert launch([*words, f"--output_dir={tmp_path}/out"]) == 1
    line = in_process.the_error(capsys, "convert_checkpoint")
    assert "attention_direction of a Hugging Face model" in line
    assert not [*tmp_path.iterdir()]


@pytest.mark.slow
def test_masked_words_with_left_to_right_attention(run, tmp_path):
    """With both objectives; pairs are classified by their last token."""
    run(tmp_path, do_eval=True, attention_direction="left_to_right", **STEPS)
    found = results(tmp_path)
    assert {"masked_lm_loss", "next_sentence_loss"} <= found.keys()
    released = open_pretrained(tmp_path / "release")
    assert (released.head, released.objective) == ("pretraining", None)
    moments = read(tmp_path / "model.ckpt-2")
    assert moments["bert/pooler/dense/kernel/adam_v"].any()
    planned = conversion.plan(released, "keras")
    (tmp_path / "keras").mkdir()
    conversion.write(planned, str(tmp_path / "keras"))
    assert open_pretrained(tmp_path / "keras").config == released.config


@pytest.fixture
def without_labels(inputs, tmp_path):
    """The records of one file, without the labels of the next sentence."""
    path = tmp_path / "plain.tfrecord"
    batch = examples(17)
    schema = [
        feature
        for feature in pretraining_schema(LENGTH, PREDICTIONS)
        if feature.name != "next_sentence_labels"
    ]
    with RecordWriter(str(path)) as writer:
        writer.write_all(encode_batch(schema, batch))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("pack", [False, True])
def test_without_next_sentence_labels_are_not_needed(
    run, inputs, without_labels, tmp_path, pack
):
    """Records with and without them train the same model."""
    variant = {"next_sentence": False, "pack_sequences": pack, **STEPS}
    folders = []
    for path in (without_labels, inputs / "a.tfrecord"):
        folders.append(tmp_path / path.stem)
        run(folders[-1], input_file=path, do_eval=True, **variant)
    found, expected = (read(folder / "model.ckpt-2") for folder in folders)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
    assert results(folders[0]) == results(folders[1])
    assert open_pretrained(folders[0] / "release").head == "masked_lm"


def test_missing_labels_are_an_error(says, without_labels, tmp_path):
    line = says(tmp_path / "out", input_file=without_labels)
    assert "next_sentence_labels" in line


def test_records_without_next_sentences_are_refused(says, inputs, tmp_path):
    path = tmp_path / "records" / "a.tfrecord"
    path.parent.mkdir()
    shutil.copy(inputs / "a.tfrecord", path)
    manifest = {"settings": {"next_sentence": False}}
    (path.parent / "manifest.a.tfrecord.json").write_text(json.dumps(manifest))
    line = says(tmp_path / "out", input_file=path)
    assert f"{path} was made with --nonext_sentence." in line
    assert not (tmp_path / "out" / "pretraining.json").exists()


@pytest.mark.slow
def test_models_without_the_head_can_be_evaluated(run, tmp_path):
    run(tmp_path / "a", next_sentence=False, **STEPS)
    planned = conversion.plan(
        open_pretrained(tmp_path / "a" / "release"), "huggingface"
    )
    (tmp_path / "theirs").mkdir()
    conversion.write(planned, str(tmp_path / "theirs"))
    run(
        tmp_path / "b",
        do_train=None,
        do_eval=True,
        next_sentence=False,
        init_checkpoint=tmp_path / "theirs",
    )
    assert "next_sentence_loss" not in results(tmp_path / "b")


def test_a_named_size_replaces_a_configuration(run, inputs, tmp_path):
    run(
        tmp_path,
        bert_config_file=None,
        model_size="L-1_H-8_A-2",
        vocab_file=inputs / "vocab.txt",
        num_train_steps=1,
        num_warmup_steps=0,
    )
    config = open_pretrained(tmp_path / "release").config
    assert config == BertConfig.from_name("L-1_H-8_A-2", VOCAB)
