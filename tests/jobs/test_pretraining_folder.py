"""Which pre-training can continue in an output folder."""

import json
import os

import pytest

from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.interop.checkpoint import Pretrained, write_metadata
from bert_tf.jobs import output_folder

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
    release = str(folder / "release")
    output_folder.verify_kind(str(folder), release, kind, seed)


def train(folder, kind=KIND, seed=1):
    """Leaves the files of a run that was stopped at its seventh step."""
    output_folder.claim_kind(str(folder), kind, seed)
    (folder / "model.ckpt-7.index").touch()


def release(folder, kind):
    """Writes the release of an earlier version, which kept no record."""
    (folder / "release").mkdir()
    config = BertConfig(
        vocab_size=3,
        hidden_size=4,
        **{name: kind[name] for name in [*KIND][:3]},
    )
    facts = output_folder.released_kind(kind)
    place = str(folder / "release")
    write_metadata(place, Pretrained(place, {}, config, **facts))


def test_another_seed_is_logged(tmp_path, caplog):
    """Another seed can help if training diverged."""
    verify(tmp_path, seed=1)
    train(tmp_path, seed=1)
    verify(tmp_path)
    verify(tmp_path, seed=1)
    assert not caplog.messages
    verify(tmp_path, seed=2)
    assert f"{tmp_path} was trained with --random_seed=1" in caplog.text


def test_the_record_is_written_before_the_first_step(tmp_path):
    output_folder.claim_kind(str(tmp_path), KIND, 1)
    [name] = os.listdir(tmp_path)
    record = json.loads((tmp_path / name).read_text(encoding="utf-8"))
    assert name == "pretraining.json"
    assert record["facts"] == KIND


@pytest.mark.parametrize(("name", "value"), OTHERS)
def test_another_objective_or_architecture_is_rejected(tmp_path, name, value):
    train(tmp_path)
    words = {"True": "true", "False": "false"}
    known, now = (words.get(str(v), v) for v in (KIND[name], value))
    with pytest.raises(InputError) as error:
        verify(tmp_path, {**KIND, name: value})
    assert str(error.value) == (
        f"expected {name}={known}, as the model in {tmp_path} was trained, "
        f"or another --output_dir. Received: {now}"
    )


def test_the_same_pretraining_continues(tmp_path):
    train(tmp_path)
    before = (tmp_path / "pretraining.json").read_bytes()
    verify(tmp_path)
    train(tmp_path, {**KIND, "objective": "causal_lm"})
    assert (tmp_path / "pretraining.json").read_bytes() == before


def test_only_given_facts_are_compared(tmp_path):
    train(tmp_path)
    verify(tmp_path, {"objective": "masked_lm"})


def test_a_run_without_a_checkpoint_does_not_own_the_folder(tmp_path):
    other = {**KIND, "next_sentence": False}
    output_folder.claim_kind(str(tmp_path), KIND, 1)
    verify(tmp_path, other)
    train(tmp_path, other)
    with pytest.raises(InputError, match="next_sentence=false, as the"):
        verify(tmp_path)


@pytest.mark.parametrize(("name", "value"), OTHERS)
def test_a_release_counts_without_a_record(tmp_path, name, value):
    other = {**KIND, name: value}
    release(tmp_path, other)
    verify(tmp_path, other)
    with pytest.raises(InputError, match=f"{name}="):
        verify(tmp_path)


def test_a_record_takes_precedence_over_a_release(tmp_path):
    """The record is more recent."""
    release(tmp_path, {**KIND, "objective": "causal_lm"})
    train(tmp_path)
    verify(tmp_path)


def test_an_old_run_without_a_release_continues(tmp_path):
    (tmp_path / "model.ckpt-7.index").touch()
    verify(tmp_path)
    verify(tmp_path / "new")


def test_a_writable_folder_is_not_changed(tmp_path):
    for folder in (tmp_path, tmp_path / "new"):
        output_folder.require_writable(str(folder))
    assert not os.listdir(tmp_path)


def test_an_output_folder_that_is_a_file(tmp_path):
    path = tmp_path / "out"
    path.write_text("mine")
    with pytest.raises(InputError, match="Received: the file"):
        output_folder.require_writable(str(path))
    assert path.read_text() == "mine"
