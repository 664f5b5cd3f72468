"""TF1 checkpoints, `.keras` files and models from them."""

import dataclasses
import json
import os
import zipfile

import keras
import numpy as np
import pytest

from bert_tf.checkpoints import conversion, keras_files, tf1
from bert_tf.checkpoints.huggingface_names import HEADS
from bert_tf.checkpoints.keras_files import (
    ModelWeights,
    build_model,
    heads_of,
    load_model,
)
from bert_tf.checkpoints.pretrained import open_pretrained
from bert_tf.modeling import heads
from bert_tf.modeling.encoder import BertModel
from tests.checkpoints.small_models import (
    CONFIG,
    Arrays,
    arrays,
    assert_same_weights,
    pretrained,
    refused,
    slots,
)

CLASSES = {
    "encoder": BertModel,
    "pretraining": heads.BertPretrainer,
    "classifier": heads.BertClassifier,
    "choice": heads.BertMultipleChoice,
    "token": heads.BertTokenClassifier,
    "span": heads.BertSpanLabeler,
}


def test_without_metadata_the_names_determine_the_head(tmp_path):
    tf1.write_pretrained(str(tmp_path), pretrained("pretraining"))
    (tmp_path / "bert_tf.json").unlink()
    read = tf1.read(str(tmp_path / "bert_model.ckpt.index"))
    assert read.head == "pretraining"
    assert read.do_lower_case is None
    same_names = ("classifier", "choice", "token")
    for head in HEADS:
        expected = None if head in same_names else head
        names = list(arrays(head))
        assert tf1.head_of(names) == expected
        assert tf1.head_of([*names, *slots(arrays(head))]) == expected
    assert tf1.head_of([*arrays("span"), *arrays("classifier")]) is None


def test_sizes_are_compared_before_a_model_is_made(tmp_path):
    """Such a model would need 360 GB."""
    tf1.write_pretrained(str(tmp_path), pretrained("encoder"))
    config = dataclasses.replace(CONFIG, vocab_size=10**7, hidden_size=9_000)
    (tmp_path / "bert_config.json").write_text(config.to_json_string())
    with refused(r"\[10000000, 9000\]"):
        BertModel.from_pretrained(tmp_path)


def test_a_pipe_is_not_a_checkpoint(tmp_path):
    tf1.write_pretrained(str(tmp_path), pretrained("encoder"))
    path = tmp_path / f"{tf1.PREFIX}{tf1.DATA}"
    path.unlink()
    os.mkfifo(path)
    with refused(f"{path}: this is not a file"):
        tf1.read(str(tmp_path / tf1.PREFIX))


def test_reads_a_checkpoint_that_tf1_wrote(shared_data):
    folder = shared_data / "checkpoints" / "tf1_tiny_keras_bert"
    read = tf1.read(str(folder))
    assert read.head == "pretraining"
    assert read.config.hidden_size == 4
    assert len(read.vocab) == 15
    assert "global_step" in read.weights


@pytest.mark.parametrize(
    ("to", "bad"),
    [("keras", np.nan), ("google", -np.inf), ("huggingface", 3e38)],
)
def test_weights_that_are_not_finite_are_refused(tmp_path, to, bad):
    source = pretrained("classifier")
    source.weights["output_bias"][2] = bad
    conversion.write(conversion.plan(source, to), str(tmp_path))
    message = f"{tmp_path}.*bias has numbers that are NaN, infinite or"
    with refused(message):
        heads.BertClassifier.from_pretrained(tmp_path)
    with refused(message):
        planned = conversion.plan(open_pretrained(tmp_path), "google")
        conversion.write(planned, str(tmp_path / "google"))
    if to == "keras":
        with refused(message):
            load_model(tmp_path / "model.keras")


@pytest.mark.parametrize("head", HEADS)
def test_builds_the_class_of_the_head_with_its_weights(head):
    whole = pretrained(head)
    model = build_model(whole)
    assert type(model) is CLASSES.get(head, heads.BertPretrainer)
    assert head in heads_of(type(model))
    assert type(model).head_name == heads_of(type(model))[0]
    ours = ModelWeights(model, "here")
    same = Arrays({name: ours[name] for name in whole.weights})
    assert_same_weights(same, whole.weights)
    if head in CLASSES:
        assert set(ours.shapes) == set(whole.weights)


def test_reads_a_custom_model(tmp_path):
    encoder = BertModel(CONFIG, name="mine")
    ids = keras.Input((None,), dtype="int32", name="input_ids")
    pooled = encoder({"input_ids": ids})["pooled_output"]
    model = keras.Model(ids, keras.layers.Dense(2, name="top")(pooled))
    model.save(tmp_path / "own.keras")
    read = keras_files.read(str(tmp_path / "own.keras"))
    assert read.head is None
    assert "bert/pooler/dense/kernel" in read.weights
    assert read.weights.shapes["top/kernel"] == (12, 2)
    with pytest.raises(KeyError):
        read.weights["no/such"]


def rewrite(path, change):
    """Replaces config.json in a `.keras` file by a function of its bytes."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members["config.json"] = change(members["config.json"])
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(path.read_bytes()[:-999]),
        # Lists that are nested too deeply for JSON.
        lambda path: rewrite(path, lambda _: b"[" * 99_999 + b"]" * 99_999),
    ],
)
def test_refuses_a_damaged_file(tmp_path, damage):
    keras_files.write(str(tmp_path), pretrained("encoder"))
    path = tmp_path / "model.keras"
    damage(path)
    with refused(r"model\.keras.{0,400}$"):
        keras_files.read(str(path))


@pytest.mark.parametrize("read", [keras_files.read, load_model])
def test_runs_no_code_from_a_file(tmp_path, read):
    layer = keras.layers.Lambda(lambda x: x, output_shape=(2,))
    path = str(tmp_path / "x.keras")
    keras.Sequential([keras.Input((2,)), layer]).save(path)
    with refused("x.keras: .* it contains a Lambda, .*safe_mode=False"):
        read(path)
    assert load_model(path, safe_mode=False).layers[0].name == layer.name
    pickle = {"class_name": "TorchModuleWrapper", "config": {"module": "gASV"}}
    rewrite(path, lambda _: json.dumps({"layers": [pickle]}).encode())
    with refused("x.keras: .* it contains a TorchModuleWrapper, "):
        read(path)


def test_load_model_names_what_it_cannot_load(tmp_path):
    with refused(r"model\.keras: there is no such file"):
        load_model(tmp_path)
    with refused("path must be a string or a pathlib.Path; got None"):
        load_model(None)
