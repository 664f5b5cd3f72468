"""The files beside a checkpoint, and weight files that are never opened."""

import dataclasses
import json
import os

import pytest

from bert_tf.base import files
from bert_tf.checkpoints.checkpoint import (
    Pretrained,
    find_unsupported,
    local_file,
    unsupported_format,
    with_metadata,
    write_metadata,
)
from tests.checkpoints.small_models import CONFIG, pretrained, refused

EMPTY = Pretrained("there", {})


# The files beside a checkpoint


@pytest.mark.parametrize(
    ("act", "in_google"),
    [("gelu_tanh", "gelu"), ("gelu_erf", "gelu_erf"), ("relu", "relu")],
)
def test_metadata_is_read_as_it_was_written(tmp_path, act, in_google):
    known = {"max_seq_length": 7, "version_2_with_negative": False}
    whole = pretrained(
        "classifier",
        dataclasses.replace(CONFIG, hidden_act=act),
        path=EMPTY.path,
        weights=EMPTY.weights,
        do_lower_case=False,
        strip_accents=True,
        problem_type="multi_label_classification",
        classifier_dropout=0.25,
        **known,
    )
    assert whole.trained_with == known
    write_metadata(str(tmp_path), whole)
    assert with_metadata(EMPTY, str(tmp_path)) == whole
    config = json.loads((tmp_path / "bert_config.json").read_text())
    assert config["hidden_act"] == in_google
    lines = (tmp_path / "vocab.txt").read_text().split("\n")
    assert lines[:3] == ["[PAD]", "[UNK]", "[CLS]"]
    assert lines[-1] == ""


def test_unknown_values_are_not_written(tmp_path):
    write_metadata(str(tmp_path), EMPTY)
    assert list(tmp_path.iterdir()) == []
    assert with_metadata(EMPTY, str(tmp_path)) == EMPTY


def test_reads_published_files(tmp_path):
    """Configurations have other keys; editors add marks and line ends."""
    values = CONFIG.to_dict() | {"directionality": "bidi", "pooler_type": "x"}
    (tmp_path / "bert_config.json").write_text(json.dumps(values))
    (tmp_path / "vocab.txt").write_bytes("\ufeffa\r\n b \r\n".encode())
    read = with_metadata(EMPTY, str(tmp_path))
    assert read.config == CONFIG
    assert read.vocab == ("a", "b")


def test_remote_files_are_copied_for_the_block(tmp_path):
    with local_file(str(tmp_path / "a.keras")) as local:
        assert local == str(tmp_path / "a.keras")
    path = "ram://copies/a.keras"
    with files.atomic_writer(path) as file:
        file.write(b"abc" * 99)
    with local_file(path) as local:
        assert local.endswith(".keras")
        with open(local, "rb") as copy:
            assert copy.read() == b"abc" * 99
    assert not os.path.exists(local)
    with refused("ram://copies/none"):
        local_file("ram://copies/none").__enter__()


# Weight files that are never opened


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["config.json", "vocab.txt", "model.safetensors"], None),
        (["bert_model.ckpt.index", "bert_model.ckpt.data-00000-of-1"], None),
        (["optimizer.pt", "pytorch_model.bin", "a.bin"], "pytorch_model.bin"),
        (["tf_model.h5", "a.msgpack"], "tf_model.h5"),
        (["b.pt", "a.ckpt"], "a.ckpt"),
        (["pytorch_model.bin.index.json", "b-1-of-1.bin"], "b-1-of-1.bin"),
    ],
)
def test_finds_the_most_likely_weight_file(names, found):
    assert find_unsupported(names) == found


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("pytorch_model.bin", "is a pickle, and opening one runs code"),
        ("tf_model-00001-of-00002.h5", "is HDF5, the TensorFlow format"),
        ("flax_model.msgpack", "is the Flax format"),
    ],
)
@pytest.mark.parametrize("repository", [None, "owner/name"])
def test_an_unsupported_format_is_named_with_its_remedy(
    name, reason, repository
):
    message = str(unsupported_format(f"some/folder/{name}", repository))
    where = repository or "some/folder"
    assert message.startswith(f"{where} has no model.safetensors; {name} ")
    assert reason in message
    assert message.endswith("docs/guide/checkpoints.md.")
