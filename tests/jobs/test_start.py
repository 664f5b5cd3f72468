"""What a job starts from: its options, and what the checkpoint records."""

import dataclasses
import json
import os

import numpy as np
import pytest

from bert_tf.checkpoints import huggingface_names
from bert_tf.checkpoints import tf1 as checkpoints
from bert_tf.checkpoints.checkpoint import Pretrained, write_metadata
from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.jobs.settings import StartOptions
from bert_tf.jobs.start import (
    Start,
    find_start,
    resolve,
)
from bert_tf.kinds.classification.job import ClassifierConfig

VOCAB = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b")
CONFIG = BertConfig(
    vocab_size=7,
    hidden_size=4,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=5,
    max_position_embeddings=11,
)


ENCODER = {
    row.ours: np.zeros(row.shape, "f")
    for row in huggingface_names.rows(CONFIG)
    if row.part == "encoder"
}


@pytest.fixture
def release(tmp_path):
    """Writes a release of an encoder of zeros; returns its checkpoint."""

    def make(folder="release", **facts):
        folder = tmp_path / folder
        folder.mkdir(parents=True)
        prefix = str(folder / "bert_model.ckpt")
        checkpoints.write(prefix, ENCODER)
        write_metadata(str(folder), Pretrained(prefix, {}, **facts))
        return prefix

    return make


@pytest.fixture
def named(tmp_path):
    config, vocab = tmp_path / "shape.json", tmp_path / "words.txt"
    config.write_text(CONFIG.to_json_string(), encoding="utf-8")
    vocab.write_text("\n".join(VOCAB), encoding="utf-8")
    return {"bert_config_file": str(config), "vocab_file": str(vocab)}


def start_of(init_checkpoint=None, **flags):
    return find_start(StartOptions(init_checkpoint=init_checkpoint, **flags))


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
    start = start_of(prefix, strip_accents=False, **named)
    assert start == dataclasses.replace(
        found, weights=start.weights, vocab=VOCAB, strip_accents=False
    )
    [warning] = caplog.records
    first = f"line {len(VOCAB)} is the first of 1 that differ"
    assert first in warning.getMessage()
    # An old command line names each file.
    start = start_of(release("google"), **named)
    assert (start.config, start.vocab, start.head) == (CONFIG, VOCAB, "encoder")
    known = {"config": CONFIG, "vocab": VOCAB}
    assert start_of(**named) == Start(**known, do_lower_case=True)
    casing = {"do_lower_case": False, "strip_accents": True}
    assert start_of(**casing, **named) == Start(**known, **casing)


@pytest.mark.parametrize(
    ("flag", "what"),
    [("bert_config_file", "configuration"), ("vocab_file", "vocabulary")],
)
def test_missing_files(release, named, flag, what):
    del named[flag]
    with pytest.raises(InputError, match=f"Pass `{flag}`, or .* a {what}"):
        start_of(**named)
    with pytest.raises(InputError, match=f"no {what}. Pass `{flag}`"):
        start_of(release(), **named)


@pytest.mark.parametrize(
    ("facts", "known"),
    [
        ({"do_lower_case": True}, True),
        ({"do_lower_case": False}, False),
        ({"folder": "uncased_L-12_H-768_A-12"}, True),
        ({"folder": "cased_L-12_H-768_A-12"}, False),
    ],
)
def test_casing_that_contradicts_the_checkpoint(release, named, facts, known):
    prefix = release(**facts)
    for wish in (None, known):
        start = start_of(prefix, do_lower_case=wish, **named)
        assert start.do_lower_case is known
    message = f"`do_lower_case` must be {str(known).lower()}, since {prefix} "
    with pytest.raises(InputError, match=message):
        start_of(prefix, do_lower_case=not known, **named)


@pytest.fixture
def fine_tuned(release):
    """Writes the release of a fine-tuned model; returns its folder."""

    def write(folder, head="classifier", **facts):
        facts |= {"config": CONFIG, "vocab": VOCAB, "do_lower_case": False}
        return os.path.dirname(release(folder, head=head, **facts))

    return write


@pytest.fixture
def resolved(tmp_path):
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
    """Without training, the weights do not come from another model."""
    fine_tuned("out/release", labels=("a", "b"))
    other = fine_tuned("other", labels=("c", "d"))
    flags = {"init_checkpoint": other, "max_seq_length": 11}
    for given in ({**flags, "init_checkpoint": None}, flags):
        _, start = resolved(**given, do_eval=True)
        assert (start.init_checkpoint, start.labels) == (None, ("a", "b"))
        assert start.do_lower_case is False
    assert f"`init_checkpoint={other}` is ignored" in caplog.text
    _, start = resolved(**flags, do_train=True)
    assert (start.init_checkpoint, start.labels) == (other, ("c", "d"))


def test_a_folder_without_a_model(resolved):
    with pytest.raises(InputError, match=r"no fine-tuned model in .*out"):
        resolved(do_eval=True)


def test_a_model_in_the_folder_takes_precedence(resolved, fine_tuned, tmp_path):
    """Its labels are recorded even if the training has not finished."""
    folder = fine_tuned("start", labels=("0", "1"))
    labels = ("entailment", "not_entailment")
    out = tmp_path / "out"
    record(out, {"labels": [*labels]})
    checkpoints.write(str(out / "model.ckpt-1"), ENCODER)
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


def test_a_trained_model_keeps_its_options(
    resolved, fine_tuned, tmp_path, caplog
):
    """The folder's record takes precedence over the release in it."""
    caplog.set_level("INFO", "absl")
    out, start = tmp_path / "out", {"init_checkpoint": fine_tuned("start")}
    fine_tuned("out/release", max_seq_length=5)
    record(out, max_seq_length=7, doc_stride=4, eval_steps=3)
    config, _ = resolved(max_seq_length=9, do_export=True, **start)
    assert (config.max_seq_length, config.doc_stride) == (9, 4)
    config, _ = resolved(do_predict=True, **start)
    assert (config.max_seq_length, config.doc_stride) == (7, 4)
    assert config.eval_steps == 0
    logged = f"Options recorded when {out} was trained: `max_seq_length=7`"
    assert f"{logged} `doc_stride=4`" in caplog.messages
    with pytest.raises(InputError, match=r"at most 11.*; got 128"):
        resolved(do_export=True, do_train=True, **start)
    # The release counts for a folder without a model.
    flags = {"init_checkpoint": fine_tuned("release", max_seq_length=5)}
    flags["output_dir"] = tmp_path / "new"
    for _ in range(2):
        config, _ = resolved(do_export=True, **flags)
        assert config.max_seq_length == 5
        record(tmp_path / "new", max_seq_length=7)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, r"at most 11.*; got 128"),
        (2, "out records `max_seq_length=2`, which is not a valid value. Pass"),
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


@pytest.mark.parametrize(
    ("recorded", "given", "expected"),
    [(None, None, 0.1), (0.0, None, 0.0), (0.0, 0.3, 0.3)],
)
def test_a_new_head_has_the_recorded_dropout(
    resolved, fine_tuned, recorded, given, expected
):
    folder = fine_tuned("start", head=None, classifier_dropout=recorded)
    config, _ = resolved(
        do_train=True,
        init_checkpoint=folder,
        max_seq_length=11,
        head_dropout=given,
    )
    assert config.head_dropout == expected
