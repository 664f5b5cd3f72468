"""What a job starts from: its options, and what the checkpoint records."""

import dataclasses
import json
import os

import numpy as np
import pytest

from bert_tf.checkpoints import huggingface_names
from bert_tf.checkpoints import tf1 as checkpoints
from bert_tf.checkpoints.checkpoint import Pretrained, write_metadata
from bert_tf.checkpoints.pretrained import kept_weights, open_pretrained
from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.jobs.settings import StartOptions
from bert_tf.jobs.start import (
    Start,
    find_config,
    find_start,
    resolve,
)
from bert_tf.kinds.classification.job import ClassifierConfig
from bert_tf.kinds.pretraining.job import PretrainingConfig

VOCAB = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b")
CONFIG = BertConfig(
    vocab_size=7,
    hidden_size=4,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=5,
    max_position_embeddings=11,
)


def encoder_of_zeros(vocab_size=7):
    config = dataclasses.replace(CONFIG, vocab_size=vocab_size)
    return {
        row.ours: np.zeros(row.shape, "f")
        for row in huggingface_names.rows(config)
        if row.part == "encoder"
    }


@pytest.fixture
def release(tmp_path):
    """Writes a release of an encoder of zeros; returns its checkpoint."""

    def make(folder="release", rows=7, **facts):
        folder = tmp_path / folder
        folder.mkdir(parents=True)
        prefix = str(folder / "bert_model.ckpt")
        checkpoints.write(prefix, encoder_of_zeros(rows))
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


def test_a_start_combines_options_and_checkpoint(release, named, caplog):
    caplog.set_level("WARNING")
    facts = {"strip_accents": True, "labels": ("no", "yes")}
    vocab = (*VOCAB[:-1], "c")
    facts |= {"do_lower_case": False, "head": "classifier", "vocab": vocab}
    prefix = release(config=CONFIG, **facts)
    start = start_of(prefix)
    found = Start(
        path=start.path,
        weights=start.weights,
        config=CONFIG,
        init_checkpoint=prefix,
        **facts,
    )
    assert start == found
    assert not caplog.records
    # Options take precedence.
    start = start_of(prefix, strip_accents=False, **named)
    assert start == dataclasses.replace(
        found, weights=start.weights, vocab=VOCAB, strip_accents=False
    )
    [warning] = caplog.records
    first = f"line {len(VOCAB)} is the first of 1 that differ"
    assert first in warning.getMessage()
    # An old command line names each file.
    prefix = release("google")
    start = start_of(prefix, do_lower_case=False, **named)
    assert (start.config, start.vocab, start.head) == (CONFIG, VOCAB, "encoder")
    assert start.do_lower_case is False
    # Random weights need no checkpoint.
    known = {"config": CONFIG, "vocab": VOCAB}
    assert start_of(**named) == Start(**known, do_lower_case=True)
    casing = {"do_lower_case": False, "strip_accents": True}
    assert start_of(**casing, **named) == Start(**known, **casing)


def test_missing_files_and_files_that_do_not_fit(release, named, tmp_path):
    for flag, what in (
        ("bert_config_file", "configuration"),
        ("vocab_file", "vocabulary"),
    ):
        other = {name: path for name, path in named.items() if name != flag}
        with pytest.raises(InputError, match=f"Pass `{flag}`, or .* a {what}"):
            start_of(**other)
        with pytest.raises(InputError, match=f"no {what}. Pass `{flag}`"):
            start_of(release(what), **other)
    with pytest.raises(InputError, match=r"shape \[7, 4\], found \[8, 4\]"):
        start_of(release(rows=8), **named)
    longer = "\n".join([*VOCAB, "c"])
    (tmp_path / "words.txt").write_text(longer, encoding="utf-8")
    with pytest.raises(InputError, match=r"words.txt: has 8 tokens, .* of 7"):
        start_of(**named)


def test_the_configuration_to_pretrain(release, named):
    def find(**flags):
        config = PretrainingConfig(input_file="x", output_dir="x", **flags)
        return find_config(config, checkpoint)

    checkpoint = open_pretrained(release(config=BertConfig(13)))
    config, vocab = named["bert_config_file"], named["vocab_file"]
    assert find() == BertConfig(13)
    assert find(bert_config_file=config) == CONFIG
    found = find(model_size="L-2_H-128", vocab_file=vocab)
    assert found == BertConfig.from_name("tiny", vocab_size=len(VOCAB))


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
    word, other = str(known).lower(), str(not known).lower()
    message = f"`do_lower_case` must be {word}, since {prefix} .* got {other}"
    with pytest.raises(InputError, match=message):
        start_of(prefix, do_lower_case=not known, **named)


# The options of a run.


@pytest.fixture
def fine_tuned(release):
    """Writes the release of a fine-tuned model; returns its folder."""

    def write(folder, head="classifier", **facts):
        facts |= {"config": CONFIG, "vocab": VOCAB, "do_lower_case": False}
        return os.path.dirname(release(folder, head=head, **facts))

    return write


@pytest.fixture
def resolved(tmp_path):
    """Resolves the options of a run in `out`."""

    def resolve_options(*heads, **flags):
        values = {"output_dir": f"{tmp_path}/out", "task_name": "cola", **flags}
        return resolve(ClassifierConfig(**values), *heads or ["classifier"])

    return resolve_options


def record(folder, facts=None, **settings):
    """Writes what a training with these settings records."""
    folder.mkdir(exist_ok=True)
    text = json.dumps({"facts": facts or {}, "settings": settings})
    (folder / "fine_tuning.json").write_text(text, encoding="utf-8")


def test_an_earlier_run_in_the_folder_is_enough(resolved, fine_tuned, caplog):
    """Except to train, which starts from the given checkpoint."""
    folder = fine_tuned("out/release", labels=("a", "b"))
    _, start = resolved(max_seq_length=11, do_eval=True)
    assert (start.config, start.labels) == (CONFIG, ("a", "b"))
    assert start.do_lower_case is False
    # The weights come from its checkpoint or its best evaluation.
    assert start.init_checkpoint is None
    training = {"do_train": True, "max_seq_length": 11}
    with pytest.raises(InputError, match="Pass `bert_config_file`, or"):
        resolved(**training)
    _, start = resolved(**training, init_checkpoint=folder)
    assert start.init_checkpoint == folder
    # Without training, the weights do not come from another model either.
    other = fine_tuned("other", labels=("c", "d"))
    flags = {"init_checkpoint": other, "max_seq_length": 11, "do_eval": True}
    _, start = resolved(**flags)
    assert (start.init_checkpoint, start.labels) == (None, ("a", "b"))
    assert f"`init_checkpoint={other}` is ignored" in caplog.text


def test_a_folder_without_a_model(resolved, tmp_path):
    for flag in ("do_export", "do_eval"):
        with pytest.raises(InputError, match=r"no fine-tuned model in .*out"):
            resolved(**{flag: True})
    assert not (tmp_path / "out").exists()


def test_a_model_of_another_task_needs_training(resolved, fine_tuned):
    folder = fine_tuned("out/release", head="token")
    heads, length = ("classifier", "choice"), {"max_seq_length": 11}
    message = "out/release is a model .* token, not classifier or choice. Pass"
    with pytest.raises(InputError, match=message):
        resolved(*heads, do_export=True, **length)
    _, start = resolved("token", do_export=True, **length)
    assert start.head == "token"
    flags = {"init_checkpoint": folder, "do_train": True}
    _, start = resolved(*heads, **flags, **length)
    assert start.head == "token"


def test_a_model_in_the_folder_takes_precedence(resolved, fine_tuned, tmp_path):
    """Its labels are recorded even if the training has not finished."""
    folder = fine_tuned("start", labels=("0", "1"))
    labels = ("entailment", "not_entailment")
    out = tmp_path / "out"
    record(out, {"labels": [*labels]})
    checkpoints.write(str(out / "model.ckpt-1"), encoder_of_zeros())
    flags = {"init_checkpoint": folder, "max_seq_length": 11}
    _, start = resolved(**flags, do_eval=True)
    assert start.labels == labels
    _, start = resolved(**flags, do_train=True)
    assert start.labels == ("0", "1")
    # --init_checkpoint may name its checkpoint, with another --output_dir.
    flags["init_checkpoint"] = out / "model.ckpt-1"
    flags["bert_config_file"] = f"{folder}/bert_config.json"
    flags["vocab_file"] = f"{folder}/vocab.txt"
    _, start = resolved(**flags, do_eval=True, output_dir=tmp_path / "other")
    assert start.labels == labels


# The options that a model was trained with.


@pytest.mark.parametrize(
    ("flags", "length"),
    [
        ({"do_export": True, "do_eval": True}, 7),
        ({"do_export": True, "max_seq_length": 9}, 9),
        ({"do_predict": True}, 7),
        # A training reads no records.
        ({"do_export": True, "do_train": True}, 128),
    ],
)
def test_a_trained_model_keeps_its_length(
    resolved, fine_tuned, tmp_path, caplog, flags, length
):
    """The folder's record takes precedence over the release in it."""
    caplog.set_level("INFO", "absl")
    folder = fine_tuned("out/release", max_seq_length=5)
    out = tmp_path / "out"
    record(
        out, max_seq_length=7, doc_stride=4, max_query_length=5, eval_steps=3
    )
    if length > CONFIG.max_position_embeddings:
        with pytest.raises(InputError, match=r"at most 11.*; got 128"):
            resolved(**flags, init_checkpoint=folder)
    else:
        config, _ = resolved(**flags, init_checkpoint=folder)
        assert (config.max_seq_length, config.eval_steps) == (length, 0)
        assert config.doc_stride == 4
    logged = f"Options recorded when {out} was trained: `max_seq_length=7`"
    logged += " `doc_stride=4`"
    assert (logged in caplog.messages) == (length == 7)


def test_a_release_records_its_length(resolved, fine_tuned, tmp_path):
    """It counts for a new folder, and for one without a model yet."""
    folder = fine_tuned("release", max_seq_length=5)
    flags = {"init_checkpoint": folder, "do_export": True}
    assert resolved(**flags)[0].max_seq_length == 5
    record(tmp_path / "out", max_seq_length=7)
    assert resolved(**flags)[0].max_seq_length == 5


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, r"at most 11.*; got 128"),
        (2, "out records `max_seq_length=2`, which is not a valid value. Pass"),
        ([5], r"records `max_seq_length=\[5\]`, which"),
    ],
)
def test_missing_and_invalid_records(
    resolved, fine_tuned, tmp_path, caplog, value, message
):
    fine_tuned("out/release")
    record(tmp_path / "out", max_seq_length=value)
    with pytest.raises(InputError, match=message):
        resolved(do_export=True)
    logged = "Using defaults for options that the model does not record: `max"
    assert (logged in caplog.text) == (value is None)


# The head of a checkpoint; see tests/checkpoints/test_compatibility.py.


class Task:
    kind = head = "classifier"
    problem_type = "single_label_classification"
    labels = ("no", "yes", "maybe")

    @property
    def num_outputs(self):
        return max(1, len(self.labels))


BELOW_HEAD = ["bert/pooler/dense/bias"]


@pytest.fixture
def classifier(tmp_path):
    """Writes a checkpoint with a head of three outputs, and its facts."""

    def make(**facts):
        prefix = str(tmp_path / "bert_model.ckpt")
        shapes = {BELOW_HEAD[0]: [4], "output_weights": [3, 4]}
        shapes["output_bias"] = [3]
        tensors = {n: np.zeros(shape, "f") for n, shape in shapes.items()}
        checkpoints.write(prefix, tensors)
        facts = {"labels": Task.labels, **facts}
        write_metadata(str(tmp_path), Pretrained(prefix, {}, **facts))
        return prefix

    return make


def opened(path, is_trained, **changes):
    """Returns the names of the weights that a task takes."""
    task = type("Other", (Task,), changes)()
    weights = kept_weights(open_pretrained(path), task, is_trained)
    return [*weights.shapes]


@pytest.mark.parametrize(
    ("facts", "changes", "words"),
    [
        ({}, {"labels": ("a", "b")}, "its head has 3 outputs, not 2"),
        ({}, {"labels": ()}, "its head has 3 outputs, not 1"),
        ({"head": "token"}, {}, "its head is token, not classifier"),
        (
            {"problem_type": "multi_label_classification"},
            {},
            "its problem type is multi_label_classification, not single_",
        ),
    ],
)
def test_a_head_of_another_task(classifier, facts, changes, words):
    path = classifier(**facts)
    with pytest.raises(InputError, match=f"{words}.*, or `do_train`"):
        opened(path, False, **changes)
    assert opened(path, True, **changes) == BELOW_HEAD
    # Other names of labels matter to a training only.
    path = classifier(labels=("a", "b", "c"))
    assert opened(path, True) == BELOW_HEAD
    assert "output_weights" in opened(path, False)


def test_training_of_an_encoder_has_no_new_head(classifier, caplog):
    assert opened(classifier(), True, head="encoder", labels=())
    assert "Training a new head" not in caplog.text


@pytest.mark.parametrize(
    ("recorded", "given", "expected"),
    [(None, None, 0.1), (0.0, None, 0.0), (0.0, 0.3, 0.3)],
)
def test_a_new_head_has_the_recorded_dropout(
    resolved, fine_tuned, recorded, given, expected
):
    """An option takes precedence."""
    folder = fine_tuned("start", head=None, classifier_dropout=recorded)
    config, _ = resolved(
        do_train=True,
        init_checkpoint=folder,
        max_seq_length=11,
        head_dropout=given,
    )
    assert config.head_dropout == expected
