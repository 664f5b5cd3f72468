"""`.keras` files: written, read, and damaged."""

import dataclasses
import zipfile

import keras
import pytest
from interop.small_models import CONFIG, assert_same_weights, pretrained

import bert_tf
from bert_tf.errors import InputError
from bert_tf.interop import keras_files


@pytest.mark.parametrize(
    "head", ["encoder", "pretraining", "classifier", "choice", "token", "span"]
)
def test_what_was_written_is_read(tmp_path, head):
    whole = pretrained(head)
    keras_files.write(str(tmp_path), whole)
    read = keras_files.read(str(tmp_path / "model.keras"))
    assert_same_weights(read.weights, whole.weights)
    for fact in ("config", "vocab", "do_lower_case", "labels", "head"):
        assert getattr(read, fact) == getattr(whole, fact), fact


def test_a_model_of_the_users_own(tmp_path):
    encoder = bert_tf.BertModel(CONFIG, name="mine")
    inputs = {
        "input_ids": keras.Input((None,), dtype="int32", name="input_ids")
    }
    pooled = encoder(inputs)["pooled_output"]
    model = keras.Model(inputs, keras.layers.Dense(2, name="top")(pooled))
    model.save(tmp_path / "own.keras")
    read = keras_files.read(str(tmp_path / "own.keras"))
    assert read.head is None
    assert "bert/pooler/dense/kernel" in read.weights
    assert read.weights.shapes["top/kernel"] == (12, 2)
    with pytest.raises(KeyError):
        read.weights["no/such"]


def test_a_config_beside_it_that_contradicts(tmp_path):
    keras_files.write(str(tmp_path), pretrained("encoder"))
    other = dataclasses.replace(CONFIG, num_attention_heads=4)
    (tmp_path / "bert_config.json").write_text(other.to_json_string())
    with pytest.raises(InputError, match="another configuration"):
        keras_files.read(str(tmp_path))


@pytest.mark.parametrize("content", [None, b"", b"PK\x03\x04 no", b"cut"])
def test_a_file_that_is_none(tmp_path, content):
    path = tmp_path / "model.keras"
    if content == b"cut":
        keras_files.write(str(tmp_path), pretrained("encoder"))
        content = path.read_bytes()[:-999]
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=r"model\.keras") as raised:
        keras_files.read(str(path))
    assert "\n" not in str(raised.value)


def _with_nested_json(path):
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members["config.json"] = b"[" * 99_999 + b"]" * 99_999
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def _with_header(path, offset, value):
    """Changes what the directory of a zip file says of config.json."""
    content = bytearray(path.read_bytes())
    entry = content.rindex(b"config.json") - 46
    assert content[entry:].startswith(b"PK\x01\x02")
    content[entry + offset] = value
    path.write_bytes(content)


@pytest.mark.parametrize(
    "damage",
    [
        _with_nested_json,
        # Encrypted; compressed by an unknown method; a name of 200 characters,
        # which are in the message of zipfile; at another place.
        lambda path: _with_header(path, 8, 1),
        lambda path: _with_header(path, 10, 77),
        lambda path: _with_header(path, 28, 200),
        lambda path: _with_header(path, 42, 3),
    ],
)
def test_a_damaged_file(tmp_path, damage):
    keras_files.write(str(tmp_path), pretrained("encoder"))
    path = tmp_path / "model.keras"
    damage(path)
    with pytest.raises(InputError, match=r"model\.keras") as raised:
        keras_files.read(str(path))
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 500


def test_nothing_in_it_is_run(tmp_path):
    layer = keras.layers.Lambda(lambda x: x, output_shape=(2,))
    keras.Sequential([keras.Input((2,)), layer]).save(tmp_path / "x.keras")
    with pytest.raises(InputError, match="cannot read"):
        keras_files.read(str(tmp_path / "x.keras"))
