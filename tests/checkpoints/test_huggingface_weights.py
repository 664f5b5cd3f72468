"""Safetensors files, and the weights in them by this project's names."""

import dataclasses
import errno
import json

import ml_dtypes
import numpy as np
import pytest
import safetensors
from safetensors.numpy import save_file

from bert_tf.checkpoints import huggingface_weights
from bert_tf.checkpoints.huggingface_names import DECODER, HEADS
from bert_tf.checkpoints.huggingface_weights import (
    INDEX,
    HuggingFaceWeights,
    TensorFiles,
    huggingface_tensors,
    open_tensors,
)
from tests.checkpoints.small_models import (
    CONFIG,
    Arrays,
    arrays,
    assert_same_weights,
    refused,
    their_tensors,
    write_json,
    write_shards,
)

WORDS = "bert.embeddings.word_embeddings.weight"
BIAS = "cls.predictions.bias"
DECODER_BIAS = "cls.predictions.decoder.bias"
QUERY = "bert.encoder.layer.1.attention.self.query.weight"


TENSORS = {
    "a": np.arange(6, dtype="float32").reshape(2, 3),
    "b": np.full(5, -1.5, "float32"),
    "c": np.ones((1, 7), "float32"),
    "d": np.float32(3)[None],
}
# All numbers of 16 bits, with infinities and NaN.
ALL_BITS = np.arange(1 << 16, dtype="uint16")


def assert_holds(opened):
    assert opened.shapes == {n: x.shape for n, x in TENSORS.items()}
    for name, value in TENSORS.items():
        np.testing.assert_array_equal(opened.read(name), value)
        assert opened.read(name).dtype == np.float32


def open_one(tmp_path, value):
    """Writes a tensor "x" and opens the file."""
    save_file({"x": value}, tmp_path / "x.safetensors")
    return TensorFiles(str(tmp_path / "x.safetensors"))


def test_reads_files_and_shards(tmp_path):
    path = str(tmp_path / "x.safetensors")
    huggingface_weights.write(path, TENSORS)
    assert_holds(TensorFiles(path))
    with safetensors.safe_open(path, "numpy") as file:
        assert file.metadata() == {"format": "pt"}
    for count in (1, 3):
        write_shards(tmp_path, TENSORS, count)
        assert_holds(open_tensors(str(tmp_path / INDEX)))


def test_writes_any_float_in_any_order(tmp_path):
    path = str(tmp_path / "x.safetensors")
    tensors = {
        "turned": np.arange(15, dtype="float32").reshape(3, 5).T,
        "brain": np.arange(5).astype(ml_dtypes.bfloat16),
    }
    huggingface_weights.write(path, tensors, {"bert_tf": "\u00e9"})
    opened = TensorFiles(path)
    assert opened.metadata == {"format": "pt", "bert_tf": "\u00e9"}
    assert opened.dtype("brain") == "BF16"
    for name, value in tensors.items():
        np.testing.assert_array_equal(opened.read(name), value)


# The upper half of a float32 is a bfloat16.
UPPER_HALVES = (ALL_BITS.astype("uint32") << 16).view("float32")


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (np.float16, ALL_BITS.view("float16").astype("float64")),
        (ml_dtypes.bfloat16, UPPER_HALVES),
    ],
)
def test_half_precision_is_exact_in_float32(tmp_path, dtype, expected):
    # Weights are not NaN or larger.
    kept = np.abs(expected) < 2.0**48
    found = open_one(tmp_path, ALL_BITS.view(dtype)[kept]).read("x")
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, expected[kept])


def test_float64_must_be_exact_in_float32(tmp_path):
    wide = np.array([0.0, -0.0, 1.5, -(2.0**-149), 2.0**60])
    found = open_one(tmp_path, wide).read("x")
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, wide)
    for value in (0.1, 1e39, 2.0**-150, 2.0**24 + 1):
        opened = open_one(tmp_path, np.array([1.0, value]))
        with refused("float32 cannot represent"):
            opened.read("x")


def test_refuses_damaged_and_unreadable_files(tmp_path, monkeypatch):
    path = tmp_path / "x.safetensors"
    with refused("there is no such"):
        TensorFiles(str(path))
    huggingface_weights.write(str(path), TENSORS)
    pointer = b"version https://git-lfs.github.com/spec/v1\n" * 3
    for content in (path.read_bytes()[:-1], pointer):
        path.write_bytes(content)
        with refused(f"{path}: this is not a safetensors file"):
            TensorFiles(str(path))

    def refuse(*arguments):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)
    with refused(f"{path}: Permission denied"):
        TensorFiles(str(path))


SECOND = "model-00002-of-00002.safetensors"
OUTSIDE = [
    *("../x.safetensors", "/x.safetensors", "a\\x.safetensors", "x.bin", 7),
]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda shards: shards | {"x": SECOND},
            "not both have the tensor 'x'",
        ),
        (lambda shards: {"b": SECOND}, "not both have the tensor 'd'"),
        (lambda shards: {"a": "x.safetensors"}, "there is no such"),
        *((lambda s, x=x: {"a": x}, "in the same folder") for x in OUTSIDE),
    ],
)
def test_index_and_shards_must_agree(tmp_path, change, message):
    write_shards(tmp_path, TENSORS, 2)
    shards = json.loads((tmp_path / INDEX).read_text())["weight_map"]
    write_json(tmp_path, INDEX, {"weight_map": change(shards)})
    with refused(message):
        open_tensors(str(tmp_path / INDEX))


@pytest.fixture
def opened(tmp_path):
    """Returns a function that writes tensors to a file and opens it."""

    def open_file(tensors, config=CONFIG):
        path = str(tmp_path / "x.safetensors")
        save_file(tensors, path)
        return HuggingFaceWeights(TensorFiles(path), config)

    return open_file


def test_kernels_are_transposed(opened):
    tensors = their_tensors()
    weights = opened(tensors)
    assert_same_weights(arrays("pretraining"), weights)
    assert weights.parts == set(HEADS["pretraining"].parts)
    np.testing.assert_array_equal(
        weights["bert/encoder/layer_1/intermediate/dense/kernel"],
        tensors["bert.encoder.layer.1.intermediate.dense.weight"].T,
    )
    with pytest.raises(KeyError):
        weights["bert.pooler.dense.bias"]


def rename(old, new):
    return lambda tensors: {n.replace(old, new): x for n, x in tensors.items()}


@pytest.mark.parametrize(
    "change",
    [
        rename("LayerNorm.weight", "LayerNorm.gamma"),
        rename("LayerNorm.bias", "LayerNorm.beta"),
        rename("bert.", ""),
        rename(WORDS, DECODER),
        rename(BIAS, DECODER_BIAS),
        lambda t: t | {DECODER: t[WORDS], DECODER_BIAS: t[BIAS]},
        lambda t: t | {"bert.embeddings.position_ids": np.arange(19)[None]},
        lambda t: t | {"bert.embeddings.token_type_ids": np.zeros(19, int)},
    ],
)
def test_reads_other_spellings(opened, change):
    assert_same_weights(arrays("pretraining"), opened(change(their_tensors())))


def test_includes_foreign_tensors_by_their_names(opened, caplog):
    names = ("encoders.x", "x.encoder.layer", "gamma", "Norm.gamma")
    foreign = {name: np.ones(3, "float32") for name in names}
    foreign["half"] = np.arange(3, dtype=ml_dtypes.bfloat16)
    foreign["a\nb\x1b[31m" + 10**4 * "c"] = np.ones(2, bool)
    weights = opened(their_tensors() | foreign)
    assert_same_weights(Arrays(arrays("pretraining") | foreign), weights)
    assert weights.parts == set(HEADS["pretraining"].parts)
    assert not weights.explained
    [record] = caplog.records
    message = record.getMessage()
    assert "tensors that are not BERT's: " in message
    assert "'Norm.gamma'" in message
    assert len(message) < 500
    assert message.isprintable()


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        (QUERY, np.ones((12, 12), "int8"), f"{QUERY} must be F32, F16"),
        ("output_bias", np.ones(3), "not belong .* config: 'output_bias'"),
        (DECODER, np.ones((23, 12)), f"{DECODER} differs from {WORDS}"),
        (DECODER_BIAS, np.ones(23), f"{DECODER_BIAS} differs from {BIAS}"),
    ],
)
def test_refuses_weights_of_another_model(opened, name, tensor, message):
    with refused(f"x.safetensors: .*{message}"):
        opened(their_tensors() | {name: tensor})


@pytest.mark.parametrize("layers", [1, 1000])
def test_refuses_another_number_of_layers(opened, layers):
    config = dataclasses.replace(CONFIG, num_hidden_layers=layers)
    with refused("x.safetensors: .*layer"):
        opened(their_tensors(), config)


@pytest.mark.parametrize("dtype", ["float64", ml_dtypes.bfloat16])
def test_writes_float32_if_that_is_exact(opened, dtype):
    weights = arrays("pretraining")
    for name, value in weights.items():
        weights[name] = value.astype(ml_dtypes.bfloat16).astype(dtype)
    tensors = huggingface_tensors(weights, CONFIG, "pretraining")
    assert {value.dtype for value in tensors.values()} == {np.dtype("float32")}
    assert_same_weights(weights, opened(tensors))
    name = "bert/pooler/dense/bias"
    weights[name] = np.full(12, 0.1)
    with refused(f"{name} has float64 numbers"):
        huggingface_tensors(weights, CONFIG, "pretraining")
