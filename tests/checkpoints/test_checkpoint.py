"""The files beside a checkpoint, and weight files that are never opened."""

import dataclasses
import json
import os

import numpy as np
import pytest

from bert_tf.base import files
from bert_tf.checkpoints.checkpoint import (
    Pretrained,
    local_file,
    with_metadata,
    write_metadata,
)
from bert_tf.checkpoints.pretrained import open_pretrained
from bert_tf.checkpoints.weights import checksum
from tests.checkpoints.small_models import CONFIG, pretrained, refused

EMPTY = Pretrained("there", {})


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


def test_remote_files_are_copied_for_the_block():
    path = "ram://copies/a.keras"
    with files.atomic_writer(path) as file:
        file.write(b"abc" * 99)
    with local_file(path) as local:
        assert local.endswith(".keras")
        with open(local, "rb") as copy:
            assert copy.read() == b"abc" * 99
    assert not os.path.exists(local)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("pytorch_model.bin", "is a pickle, and opening one runs code"),
        ("tf_model-00001-of-00002.h5", "is HDF5, the TensorFlow format"),
        ("flax_model.msgpack", "is the Flax format"),
    ],
)
def test_an_unsupported_format_is_named_with_its_remedy(tmp_path, name, reason):
    (tmp_path / "optimizer.pt").touch()
    (tmp_path / name).touch()
    with refused(f"{tmp_path} has no .*; {name} {reason}.*checkpoints.md.$"):
        open_pretrained(tmp_path)


def test_the_checksum_depends_on_names_shapes_and_values():
    ones = np.ones((2, 3), "float32")
    others = [{"b": ones}, {"a": ones.T}, {"a": ones, "b": ones}]
    others.append({"a": np.nextafter(ones, np.float32(2))})
    assert len({*map(checksum, [{"a": ones}, *others])}) == 5
