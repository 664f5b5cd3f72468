"""What a job starts from: its options, and what the checkpoint records."""

import dataclasses
import json
import os
import pathlib
import shutil

import numpy as np
import pytest

from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.interop.checkpoint import Pretrained, write_metadata
from bert_tf.jobs.pretraining import PretrainingConfig
from bert_tf.jobs.settings import StartOptions
from bert_tf.jobs.start import (
    Start,
    casing_of_name,
    find_config,
    find_start,
    open_start,
    require_length,
    resolve,
)
from bert_tf.pretrained import open_pretrained
from bert_tf.training import checkpoints

VOCAB = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b")
CONFIG = BertConfig(
    vocab_size=7,
    hidden_size=4,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=5,
    max_position_embeddings=11,
)


@pytest.fixture
def release(tmp_path):
    """Writes a release with word embeddings only; returns its checkpoint."""

    def make(folder="release", rows=7, **facts):
        folder = tmp_path / folder
        folder.mkdir(parents=True)
        prefix = str(folder / "bert_model.ckpt")
        table = {"bert/embeddings/word_embeddings": np.zeros([rows, 4], "f")}
        checkpoints.write(prefix, table)
        write_metadata(str(folder), Pretrained(prefix, {}, **facts))
        return prefix

    return make


@pytest.fixture
def named(tmp_path):
    """Files that options name: a configuration and a vocabulary."""
    config, vocab = tmp_path / "shape.json", tmp_path / "words.txt"
    config.write_text(CONFIG.to_json_string(), encoding="utf-8")
    vocab.write_text("\n".join(VOCAB), encoding="utf-8")
    return {"bert_config_file": str(config), "vocab_file": str(vocab)}


def start_of(init_checkpoint=None, **flags):
    return find_start(StartOptions(init_checkpoint=init_checkpoint, **flags))


# A checkpoint and the files that options name.


def test_a_start_combines_options_and_checkpoint(release, named):
    facts = {"strip_accents": True, "labels": ("no", "yes")}
    prefix = release(
        config=CONFIG,
        vocab=(*VOCAB[:-1], "c"),
        do_lower_case=False,
        head="classifier",
        **facts,
    )
    found = Start(
        CONFIG,
        (*VOCAB[:-1], "c"),
        False,
        init_checkpoint=prefix,
        head="classifier",
        **facts,
    )
    assert start_of(prefix) == found
    # Options take precedence.
    start = start_of(prefix, strip_accents=False, **named)
    assert start == dataclasses.replace(found, vocab=VOCAB, strip_accents=False)
    # An old command line names each file.
    prefix = release("google")
    assert start_of(prefix, do_lower_case=False, **named) == Start(
        CONFIG, VOCAB, False, None, prefix, head="encoder"
    )
    # Random weights need no checkpoint.
    assert start_of(**named) == Start(CONFIG, VOCAB, True, None, None)
    uncased = start_of(do_lower_case=False, strip_accents=True, **named)
    assert (uncased.do_lower_case, uncased.strip_accents) == (False, True)


@pytest.mark.parametrize(
    ("flag", "what"),
    [("bert_config_file", "configuration"), ("vocab_file", "vocabulary")],
)
def test_missing_files_are_reported(release, named, flag, what):
    del named[flag]
    with pytest.raises(InputError, match=f"Give --{flag}, or .* a {what}"):
        start_of(**named)
    with pytest.raises(InputError, match=f"release.* no {what}. Give --{flag}"):
        start_of(release(), **named)


def test_files_that_do_not_fit_are_reported(release, named, tmp_path):
    with pytest.raises(InputError, match=r"for 8 tokens, .*vocab_size of 7"):
        start_of(release(rows=8), **named)
    longer = "\n".join([*VOCAB, "c"])
    (tmp_path / "words.txt").write_text(longer, encoding="utf-8")
    with pytest.raises(InputError, match=r"words.txt: has 8 tokens, .* of 7"):
        start_of(**named)
    require_length(11, CONFIG)
    with pytest.raises(InputError, match=r"at most 11, .*; got 12"):
        require_length(12, CONFIG)


def test_the_configuration_to_pretrain(release, named, tmp_path):
    def find(pretrained=None, **flags):
        config = PretrainingConfig(input_file="x", output_dir="x", **flags)
        return find_config(config, pretrained)

    checkpoint = open_pretrained(release(config=BertConfig(13)))
    config, vocab = named["bert_config_file"], named["vocab_file"]
    assert find(checkpoint) == BertConfig(13)
    assert find(checkpoint, bert_config_file=config) == CONFIG
    found = find(checkpoint, model_size="L-2_H-128", vocab_file=vocab)
    assert found == BertConfig.from_name("tiny", vocab_size=len(VOCAB))
    for flags, words in (
        ({}, "Give --bert_config_file"),
        ({"bert_config_file": config, "model_size": "tiny"}, "exclude each"),
        ({"model_size": "tiny"}, "--model_size=tiny needs --vocab_file"),
    ):
        with pytest.raises(InputError, match=words):
            find(**flags)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("is_recorded", [True, False])
def test_casing_that_contradicts_the_checkpoint(
    release, named, known, is_recorded
):
    if is_recorded:
        prefix = release(do_lower_case=known)
    else:
        prefix = release(f"{'un' if known else ''}cased_L-12_H-768_A-12")
    assert start_of(prefix, **named).do_lower_case is known
    assert start_of(prefix, do_lower_case=known, **named).do_lower_case is known
    with pytest.raises(InputError) as error:
        start_of(prefix, do_lower_case=not known, **named)
    assert str(error.value) == (
        f"--do_lower_case must be {str(known).lower()}, since {prefix} is "
        f"{'uncased' if known else 'cased'}; got {str(not known).lower()}. "
        "Leave out the flag to use the checkpoint's casing."
    )


@pytest.mark.parametrize(
    ("path", "casing"),
    [
        ("uncased_L-12_H-768_A-12/bert_model.ckpt", True),
        ("/models/cased_L-24_H-1024_A-16/bert_model.ckpt", False),
        ("wwm_uncased_L-24_H-1024_A-16/bert_model.ckpt", True),
        ("wwm_cased_L-24_H-1024_A-16/bert_model.ckpt", False),
        ("multi_cased_L-12_H-768_A-12/bert_model.ckpt", False),
        ("multilingual_L-12_H-768_A-12/bert_model.ckpt", True),
        ("chinese_L-12_H-768_A-12/bert_model.ckpt", True),
        ("uncased_L-2_H-128_A-2/bert_model.ckpt", True),
        ("uncased/cased_L-12/bert_model.ckpt", False),
        ("models/bert-base-cased", False),
        ("models/bert-base-uncased/", True),
        ("gs://bucket/uncased_L-4_H-256_A-4/bert_model.ckpt", True),
        ("showcased/bert_model.ckpt", None),
        ("release/bert_model.ckpt", None),
        ("bert_model.ckpt", None),
    ],
)
def test_casing_of_a_name(path, casing):
    assert casing_of_name(path) is casing


# The options of a run.


@pytest.fixture
def fine_tuned(release):
    """Writes the release of a fine-tuned model; returns its folder."""

    def write(folder, head="classifier", **facts):
        prefix = release(
            folder,
            config=CONFIG,
            vocab=VOCAB,
            do_lower_case=False,
            head=head,
            **facts,
        )
        return os.path.dirname(prefix)

    return write


def record(folder, facts=None, **settings):
    """Writes what a training with these settings records."""
    text = json.dumps({"facts": facts or {}, "settings": settings})
    (folder / "fine_tuning.json").write_text(text, encoding="utf-8")


def test_an_earlier_run_in_the_folder_is_enough(given, fine_tuned, tmp_path):
    fine_tuned("out/release", labels=("a", "b"))
    config = given(
        f"--output_dir={tmp_path}/out", "--max_seq_length=11", "--do_eval"
    )
    _, start = resolve(config, "classifier")
    assert start.config == CONFIG
    assert start.labels == ("a", "b")
    assert start.do_lower_case is False
    # The weights are those of its checkpoint or of its best evaluation.
    assert start.init_checkpoint is None


def test_training_starts_from_the_given_checkpoint(given, fine_tuned, tmp_path):
    folder = fine_tuned("out/release")
    config = given(
        f"--output_dir={tmp_path}/out", "--max_seq_length=11", "--do_train"
    )
    with pytest.raises(InputError, match="Give --bert_config_file, or"):
        resolve(config, "classifier")
    _, start = resolve(given(f"--init_checkpoint={folder}"), "classifier")
    assert start.init_checkpoint == folder


@pytest.mark.parametrize("word", ["--do_export", "--do_eval"])
def test_a_folder_without_a_model(given, tmp_path, word):
    config = given(f"--output_dir={tmp_path}/new", word)
    with pytest.raises(InputError, match=r"no fine-tuned model in .*new"):
        resolve(config, "classifier")
    assert not (tmp_path / "new").exists()


def test_a_model_of_another_task_needs_training(given, fine_tuned, tmp_path):
    folder = fine_tuned("out/release", head="token")
    heads = "classifier", "choice"
    config = given(f"--output_dir={tmp_path}/out", "--do_export")
    message = "out/release is a model .* token, not classifier or choice. Name"
    with pytest.raises(InputError, match=message):
        resolve(config, *heads)
    _, start = resolve(given("--max_seq_length=11"), "token")
    assert start.head == "token"
    config = given(f"--init_checkpoint={folder}", "--do_train")
    _, start = resolve(config, *heads)
    assert start.head == "token"


def test_a_model_in_the_folder_takes_precedence(given, fine_tuned, tmp_path):
    """Its labels are recorded even if the training has not finished."""
    folder = fine_tuned("start", labels=("0", "1"))
    labels = ("entailment", "not_entailment")
    out = tmp_path / "out"
    out.mkdir()
    record(out, {"labels": [*labels], "bilstm_head": False})
    (out / "model.ckpt-1.index").touch()
    config = given(
        f"--output_dir={out}",
        f"--init_checkpoint={folder}",
        "--max_seq_length=11",
        "--do_eval",
    )
    _, start = resolve(config, "classifier")
    assert start.labels == labels
    # --init_checkpoint may name its checkpoint, with another --output_dir.
    for path in pathlib.Path(folder).glob("bert_model.ckpt.*"):
        suffix = path.name.removeprefix("bert_model.ckpt")
        shutil.copy(path, out / f"model.ckpt-1{suffix}")
    config = given(
        f"--output_dir={tmp_path / 'other'}",
        f"--init_checkpoint={out / 'model.ckpt-1'}",
        f"--bert_config_file={folder}/bert_config.json",
        f"--vocab_file={folder}/vocab.txt",
    )
    _, start = resolve(config, "classifier")
    assert start.labels == labels
    config = given(
        f"--init_checkpoint={folder}", f"--output_dir={out}", "--do_train"
    )
    _, start = resolve(config, "classifier")
    assert start.labels == ("0", "1")


# The options that a model was trained with.


@pytest.fixture
def logged(caplog):
    """Returns the log lines about --max_seq_length since the last call."""
    caplog.set_level("INFO", "absl")

    def logged():
        lines = [line for line in caplog.messages if "max_seq_length" in line]
        caplog.clear()
        return lines

    return logged


def test_an_export_has_the_length_of_the_training(
    given, fine_tuned, tmp_path, logged
):
    """The folder's record takes precedence over the release in it."""
    fine_tuned("out/release", max_seq_length=5)
    out = tmp_path / "out"
    record(out, max_seq_length=7, doc_stride=5, eval_steps=3)
    config = given(f"--output_dir={out}", "--do_export", "--do_eval")
    config, _ = resolve(config, "classifier")
    assert config.max_seq_length == 7
    assert config.eval_steps == 0
    assert logged() == [f"As {out} was trained: --max_seq_length=7"]


@pytest.mark.parametrize(
    ("words", "length"),
    [
        (["--do_export", "--max_seq_length=9"], 9),
        (["--do_export", "--do_train", "--max_seq_length=11"], 11),
        # Only an export without training reads records.
        (["--do_export", "--do_train"], 128),
        (["--do_predict"], 128),
    ],
)
def test_records_that_are_not_used(
    given, fine_tuned, tmp_path, logged, words, length
):
    folder = fine_tuned("out/release")
    record(tmp_path / "out", max_seq_length=7)
    paths = f"--output_dir={tmp_path}/out", f"--init_checkpoint={folder}"
    config = given(*paths, *words)
    if length > CONFIG.max_position_embeddings:
        with pytest.raises(InputError, match=r"at most 11.*; got 128"):
            resolve(config, "classifier")
    else:
        config, _ = resolve(config, "classifier")
        assert config.max_seq_length == length
    assert not logged()


def test_a_release_records_its_length(given, fine_tuned, tmp_path, logged):
    """It counts for a new folder, and for one without a model yet."""
    folder = fine_tuned("release", max_seq_length=5)
    (tmp_path / "begun").mkdir()
    record(tmp_path / "begun", max_seq_length=7)
    for out in ("new", "begun"):
        config = given(
            f"--output_dir={tmp_path}/{out}",
            f"--init_checkpoint={folder}",
            "--do_export",
        )
        config, _ = resolve(config, "classifier")
        assert config.max_seq_length == 5
        assert logged() == [f"As {folder} was trained: --max_seq_length=5"]


@pytest.mark.parametrize(
    "settings", [{}, {"mixed_precision": "float32", "max_seq_length": None}]
)
def test_the_default_of_an_unrecorded_length_is_logged(
    given, fine_tuned, tmp_path, logged, settings
):
    fine_tuned("out/release")
    if settings:
        record(tmp_path / "out", **settings)
    config = given(f"--output_dir={tmp_path}/out", "--do_export")
    with pytest.raises(InputError, match=r"at most 11.*; got 128"):
        resolve(config, "classifier")
    assert logged() == [
        "Using defaults for options that the model does not record: "
        "--max_seq_length=128"
    ]


@pytest.mark.parametrize("value", ["long", 2, [5]])
def test_an_impossible_record(given, fine_tuned, tmp_path, value):
    fine_tuned("out/release")
    record(tmp_path / "out", max_seq_length=value)
    config = given(f"--output_dir={tmp_path}/out", "--do_export")
    with pytest.raises(InputError) as error:
        resolve(config, "classifier")
    assert str(error.value) == (
        f"{tmp_path}/out records --max_seq_length={value!r}, which is not a "
        "valid value. Give --max_seq_length."
    )


# The head of a checkpoint.


class Task:
    head = "classifier"
    bilstm_head = False
    problem_type = "single_label_classification"
    labels = ("no", "yes", "maybe")


@pytest.fixture
def classifier(tmp_path):
    """Writes a checkpoint with a head of three outputs, and its facts."""

    def make(bilstm=False, **facts):
        prefix = str(tmp_path / "bert_model.ckpt")
        tensors = {
            "bert/pooler/dense/bias": np.zeros(4, "f"),
            "output_weights": np.zeros([3, 4], "f"),
            "output_bias": np.zeros(3, "f"),
        }
        if bilstm:
            tensors["bilstm/forward_lstm/lstm_cell/bias"] = np.zeros(16, "f")
        checkpoints.write(prefix, tensors)
        facts = {"labels": Task.labels, **facts}
        write_metadata(str(tmp_path), Pretrained(prefix, {}, **facts))
        return prefix

    return make


def opened(path, **changes):
    """Opens a checkpoint twice: to train, and to use as it is."""
    task = type("Other", (Task,), changes)
    return [
        open_start(path, config=CONFIG, task=task, is_trained=is_trained)
        for is_trained in (True, False)
    ]


@pytest.mark.parametrize(
    "labels", [("no", "yes", "maybe"), ("maybe", "no", "yes"), None]
)
def test_a_head_of_the_same_task_is_kept(classifier, labels):
    for weights in opened(classifier(labels=labels)):
        assert "output_weights" in weights.shapes


def test_a_bilstm_is_kept_or_dropped_with_its_head(classifier):
    path = classifier(bilstm=True)
    for weights in opened(path, bilstm_head=True):
        assert "bilstm/forward_lstm/lstm_cell/bias" in weights.shapes
    task = type("Other", (Task,), {"bilstm_head": True, "labels": ("a", "b")})
    weights = open_start(path, config=CONFIG, task=task, is_trained=True)
    assert [*weights.shapes] == ["bert/pooler/dense/bias"]


def test_labels_without_names_fit_any_task(classifier):
    numbers = ("LABEL_0", "LABEL_1", "LABEL_2")
    for weights in opened(classifier(labels=numbers)):
        assert "output_bias" in weights.shapes


def test_a_head_for_other_labels_is_trained_from_scratch(classifier, caplog):
    caplog.set_level("WARNING", "absl")
    path = classifier(labels=("a", "b", "c"))
    trained, used = opened(path)
    assert list(trained.shapes) == ["bert/pooler/dense/bias"]
    assert "Training a new head" in caplog.text
    assert "its labels are a, b and c" in caplog.text
    assert "output_weights" in used.shapes


@pytest.mark.parametrize(
    ("facts", "changes", "words"),
    [
        ({}, {"labels": ("a", "b")}, "its head has 3 outputs, not 2"),
        ({}, {"labels": ()}, "its head has 3 outputs, not 1"),
        ({"head": "token"}, {}, "its head is token, not classifier"),
        ({}, {"bilstm_head": True}, "it has no BiLSTM"),
        ({"bilstm": True}, {}, "it has a BiLSTM"),
        (
            {"problem_type": "multi_label_classification"},
            {},
            "its problem type is multi_label_classification, not single_",
        ),
    ],
)
def test_a_head_of_another_task(classifier, facts, changes, words):
    path = classifier(**facts)
    with pytest.raises(InputError, match=words) as error:
        opened(path, **changes)
    assert "or give --do_train" in str(error.value)
    task = type("Other", (Task,), changes)
    weights = open_start(path, config=CONFIG, task=task, is_trained=True)
    assert [*weights.shapes] == ["bert/pooler/dense/bias"]
