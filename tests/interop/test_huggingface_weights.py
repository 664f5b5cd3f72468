"""Safetensors files, and the names and shapes of the weights in them."""

import dataclasses
import errno
import json
import struct

import ml_dtypes
import numpy as np
import pytest
import safetensors
from safetensors.numpy import save_file

from bert_tf import files
from bert_tf.errors import InputError
from bert_tf.interop import huggingface_names, huggingface_weights
from bert_tf.interop.checkpoint import HEADS
from bert_tf.interop.huggingface_names import (
    DECODER,
    PARTS_OF_HEAD,
    canonical,
    head_of_parts,
    rows,
)
from bert_tf.interop.huggingface_weights import (
    INDEX,
    HuggingFaceWeights,
    TensorFiles,
    open_tensors,
    parts_of,
    to_rows,
    weights_of,
)
from bert_tf.interop.keras_files import build_model
from bert_tf.modeling import checkpoint_variables
from tests.interop.huggingface_folders import (
    their_tensors,
    write_json,
    write_shards,
)
from tests.interop.small_models import (
    CONFIG,
    Arrays,
    arrays,
    assert_same_weights,
    pretrained,
    slots,
)

WORDS = "bert.embeddings.word_embeddings.weight"
BIAS = "cls.predictions.bias"
DECODER_BIAS = "cls.predictions.decoder.bias"
QUERY = "bert.encoder.layer.1.attention.self.query.weight"


# The table of names


def test_the_table_has_each_name_once_in_the_same_layer():
    table = rows(CONFIG)
    assert len({row.ours for row in table}) == len(table)
    assert len({row.theirs for row in table}) == len(table)
    for row in table:
        for n in range(CONFIG.num_hidden_layers):
            assert (f"/layer_{n}/" in row.ours) == (
                f".layer.{n}." in row.theirs
            )
    assert tuple(PARTS_OF_HEAD) == HEADS
    used = {part for parts in PARTS_OF_HEAD.values() for part in parts}
    assert used == {row.part for row in table}


@pytest.mark.parametrize("layers", [1, 2, 11])
def test_the_number_of_weights(layers):
    """5 of the embeddings, 16 a layer, 2 of the pooler, 7 of both heads."""
    config = dataclasses.replace(CONFIG, num_hidden_layers=layers)
    parts = [row.part for row in rows(config)]
    assert parts.count("encoder") == 5 + 16 * layers
    pretraining = [p for p in parts if p in PARTS_OF_HEAD["pretraining"]]
    assert len(pretraining) == 5 + 16 * layers + 2 + 7


@pytest.mark.parametrize("head", HEADS)
def test_the_table_has_the_variables_of_our_models(head):
    variables = checkpoint_variables(build_model(pretrained(head)))
    table = {row.ours: row for row in rows(CONFIG)}
    for name, variable in variables.items():
        assert table[name].fits(variable.shape), name
    parts = {table[name].part for name in variables}
    assert parts >= set(PARTS_OF_HEAD[head])


def test_kernels_are_transposed():
    for row in rows(CONFIG):
        value = np.zeros([size or 5 for size in row.shape])
        turned = row.turned(value)
        assert turned.shape == row.turned_shape(value.shape)
        assert row.turned(turned).shape == value.shape
        is_turned = row.turned_shape((2, 3)) == (3, 2)
        assert is_turned == row.ours.endswith("kernel")
        assert turned.flags.c_contiguous


def test_a_row_knows_its_shape_and_names():
    table = {row.ours: row for row in rows(CONFIG)}
    kernel = table["bert/encoder/layer_1/intermediate/dense/kernel"]
    assert kernel.shape == (12, 17)
    assert kernel.fits((12, 17))
    assert not kernel.fits((17, 12))
    assert not kernel.fits((12, 17, 1))
    classes = table["output_weights"]
    assert classes.fits((1, 12))
    assert classes.fits((997, 12))
    assert not classes.fits((0, 12))
    assert not classes.fits((5, 13))
    words = table["bert/embeddings/word_embeddings"]
    assert words.their_name("encoder") == "embeddings.word_embeddings.weight"
    assert words.their_name("token") == WORDS
    bias = table["cls/predictions/output_bias"]
    assert bias.their_name("encoder") == bias.theirs == BIAS


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("embeddings.LayerNorm.gamma", "bert.embeddings.LayerNorm.weight"),
        ("bert.embeddings.LayerNorm.beta", "bert.embeddings.LayerNorm.bias"),
        ("encoder.layer.1.x", "bert.encoder.layer.1.x"),
        ("pooler.dense.bias", "bert.pooler.dense.bias"),
        ("embeddings.position_ids", "bert.embeddings.position_ids"),
        (DECODER, WORDS),
        (DECODER_BIAS, BIAS),
        ("encoders.x", "encoders.x"),
        ("x.encoder.layer", "x.encoder.layer"),
        ("gamma", "gamma"),
        ("Norm.gamma", "Norm.gamma"),
    ],
)
def test_canonical_names(name, expected):
    assert canonical(name) == expected


def test_names_of_the_table_are_canonical():
    for row in rows(CONFIG):
        assert canonical(row.theirs) == row.theirs
        assert canonical(row.their_name("encoder")) == row.theirs


@pytest.mark.parametrize(
    ("parts", "head"),
    [
        ({"encoder"}, "encoder"),
        ({"encoder", "pooler"}, "encoder"),
        ({"encoder", "pooler", "masked_lm", "next_sentence"}, "pretraining"),
        ({"encoder", "masked_lm"}, "masked_lm"),
        ({"encoder", "pooler", "masked_lm"}, "masked_lm"),
        ({"encoder", "pooler", "next_sentence"}, "next_sentence"),
        ({"encoder", "span"}, "span"),
        ({"encoder", "classes"}, "token"),
        ({"encoder", "pooler", "classes"}, None),
        ({"encoder", "pooler", "classes", "masked_lm"}, None),
    ],
)
def test_the_head_of_parts(parts, head):
    assert head_of_parts(parts) == head


# Safetensors files

TENSORS = {
    "a": np.arange(6, dtype="float32").reshape(2, 3),
    "b": np.full(5, -1.5, "float32"),
    "c": np.ones((1, 7), "float32"),
    "d": np.float32(3)[None],
}
# All numbers of 16 bits, with infinities and NaN.
ALL_BITS = np.arange(1 << 16, dtype="uint16")


def assert_holds(opened, tensors=TENSORS):
    assert opened.shapes == {n: x.shape for n, x in tensors.items()}
    for name, value in tensors.items():
        np.testing.assert_array_equal(opened.read(name), value)
        assert opened.read(name).dtype == np.float32


def open_one(tmp_path, value):
    """Writes a tensor "x" and opens the file."""
    save_file({"x": value}, tmp_path / "x.safetensors")
    return TensorFiles(str(tmp_path / "x.safetensors"))


def test_files_and_shards_are_read_as_they_were_written(tmp_path):
    path = str(tmp_path / "x.safetensors")
    huggingface_weights.write(path, TENSORS)
    assert_holds(TensorFiles(path))
    with safetensors.safe_open(path, "numpy") as file:
        assert file.metadata() == {"format": "pt"}
    for count in (1, 3, 4):
        write_shards(tmp_path, TENSORS, count)
        assert_holds(open_tensors(str(tmp_path / INDEX)))


def test_reads_and_writes_remote_files():
    path = "ram://tensors/model.safetensors"
    huggingface_weights.write(path, TENSORS)
    assert_holds(TensorFiles(path))
    with files.atomic_writer("ram://tensors/short.safetensors") as file:
        file.write(b"\x08")
    with pytest.raises(InputError, match="damaged"):
        TensorFiles("ram://tensors/short.safetensors")


@pytest.mark.parametrize(
    ("dtype", "name", "expected"),
    [
        (np.float16, "F16", ALL_BITS.view("float16").astype("float64")),
        # The upper half of a float32.
        (
            ml_dtypes.bfloat16,
            "BF16",
            (ALL_BITS.astype("uint32") << 16).view("float32"),
        ),
    ],
)
def test_half_precision_is_exact_in_float32(tmp_path, dtype, name, expected):
    opened = open_one(tmp_path, ALL_BITS.view(dtype))
    assert opened.dtype("x") == name
    np.testing.assert_array_equal(opened.read("x"), expected)


@pytest.mark.parametrize("dtype", ["int64", "uint8", "bool"])
def test_other_dtypes_are_read_unchanged(tmp_path, dtype):
    opened = open_one(tmp_path, np.ones(3, dtype))
    assert not opened.is_float("x")
    assert opened.read("x").dtype == dtype


def test_float64_must_be_exact_in_float32(tmp_path):
    values = [0.0, -0.0, 1.5, -(2.0**-149), np.inf, np.nan]
    wide = np.array([*values, np.finfo("float32").max], "float64")
    found = open_one(tmp_path, wide).read("x")
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, wide)
    for value in (0.1, 1e39, 2.0**-150, 2.0**24 + 1):
        opened = open_one(tmp_path, np.array([1.0, value]))
        with pytest.raises(InputError, match="float32 cannot represent"):
            opened.read("x")


def damaged(tensors, content=b"\0" * 24):
    """The bytes of a file with any header."""
    header = json.dumps(tensors).encode()
    return struct.pack("<Q", len(header)) + header + content


def entry(shape, offsets, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


GOOD = damaged({"a": entry([2, 3], [0, 24])})
BAD_FILES = {
    "empty": b"",
    "cut off in the length": GOOD[:5],
    "cut off in the header": GOOD[:30],
    "cut off in the numbers": GOOD[:-1],
    "too long": GOOD + b"\0",
    "header longer than the file": struct.pack("<Q", 10**6) + GOOD[8:],
    "header longer than any": struct.pack("<Q", 1 << 63) + GOOD[8:],
    "text": b"version https://git-lfs.github.com/spec/v1\n" * 3,
    "a pickle": b"\x80\x04\x95K\x00\x00\x00\x00\x00\x00\x00}\x94.",
    "not a dict": damaged([1, 2]),
    "shape and length differ": damaged({"a": entry([2, 4], [0, 24])}),
    "negative shape": damaged({"a": entry([-2, -3], [0, 24])}),
    "too large a shape": damaged({"a": entry([2**40, 2**40], [0, 24])}),
    "offsets outside": damaged({"a": entry([2, 3], [8, 32])}),
    "offsets backwards": damaged({"a": entry([2, 3], [24, 0])}),
    "overlapping": damaged(
        {"a": entry([2, 3], [0, 24]), "b": entry([2, 3], [0, 24])}
    ),
    "unknown dtype": damaged({"a": entry([2, 3], [0, 24], "Q32")}),
    "no dtype": damaged({"a": {"shape": [2, 3], "data_offsets": [0, 24]}}),
}


@pytest.mark.parametrize("content", BAD_FILES.values(), ids=BAD_FILES)
def test_refuses_a_damaged_file_in_one_line(tmp_path, content):
    path = tmp_path / "x.safetensors"
    path.write_bytes(GOOD)
    assert_holds(TensorFiles(str(path)), {"a": np.zeros((2, 3))})
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        TensorFiles(str(path))
    assert "\n" not in str(caught.value)
    assert f"{path}: this is not a safetensors file" in str(caught.value)


def test_refuses_what_cannot_be_read(tmp_path, monkeypatch):
    path = tmp_path / "x.safetensors"
    with pytest.raises(InputError, match="there is no such"):
        TensorFiles(str(path))
    with pytest.raises(InputError, match="a directory"):
        TensorFiles(str(tmp_path))
    path.write_bytes(damaged({"a": entry([24], [0, 24], "F8_E8M0")}))
    with pytest.raises(InputError, match="no dtype F8_E8M0"):
        TensorFiles(str(path)).read("a")

    def refuse(*arguments):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(InputError, match=f"{path}: Permission denied"):
        TensorFiles(str(path))


@pytest.mark.parametrize(
    "shard",
    [
        "../x.safetensors",
        "/etc/x.safetensors",
        "a/x.safetensors",
        "a\\x.safetensors",
        "..",
        "",
        "x.bin",
        ".safetensors",
        "x.safetensors\n",
        7,
        None,
        ["x.safetensors"],
    ],
)
def test_an_index_lists_files_of_its_folder_only(tmp_path, shard):
    save_file(TENSORS, tmp_path / "x.safetensors")
    inside = tmp_path / "inside"
    (inside / "a").mkdir(parents=True)
    index = {"weight_map": dict.fromkeys(TENSORS, shard)}
    write_json(inside, INDEX, index)
    with pytest.raises(InputError, match="in the same folder") as caught:
        open_tensors(str(inside / INDEX))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("index", [{}, {"weight_map": {}}, {"weight_map": []}])
def test_an_index_is_not_empty(tmp_path, index):
    write_json(tmp_path, INDEX, index)
    with pytest.raises(InputError, match="'weight_map' must map"):
        open_tensors(str(tmp_path / INDEX))


def test_index_and_shards_agree(tmp_path):
    write_shards(tmp_path, TENSORS, 2)
    index = tmp_path / INDEX
    good = json.loads(index.read_text())
    second = "model-00002-of-00002.safetensors"
    # "b" and "d" are in the second.
    for change, message in (
        ({"a": second}, "there is a tensor 'a'"),
        ({"x": second}, "there is no tensor 'x'"),
    ):
        homes = good["weight_map"] | change
        write_json(tmp_path, INDEX, {"weight_map": homes})
        with pytest.raises(InputError, match=message):
            open_tensors(str(index))
    homes = {n: home for n, home in good["weight_map"].items() if n != "d"}
    write_json(tmp_path, INDEX, {"weight_map": homes})
    with pytest.raises(InputError, match="there is a tensor 'd'"):
        open_tensors(str(index))
    (tmp_path / second).unlink()
    with pytest.raises(InputError, match=f"{second}: there is no such"):
        open_tensors(str(index))


# Hugging Face's weights by our names


@pytest.fixture
def opened(tmp_path):
    """Writes tensors to a file and opens it."""

    def open_file(tensors, config=CONFIG):
        path = str(tmp_path / "x.safetensors")
        save_file(tensors, path)
        return HuggingFaceWeights(TensorFiles(path), config)

    return open_file


@pytest.fixture
def refused(opened):
    """Opens invalid tensors; returns the error message."""

    def open_file(tensors, config=CONFIG):
        with pytest.raises(InputError) as caught:
            opened(tensors, config)
        assert "\n" not in str(caught.value)
        assert "x.safetensors" in str(caught.value)
        return str(caught.value)

    return open_file


@pytest.mark.parametrize("head", HEADS)
def test_weights_have_our_names_and_shapes(opened, head):
    weights = opened(their_tensors(head))
    stored = {n: x for n, x in arrays(head).items() if n in weights}
    assert_same_weights(Arrays(stored), weights)
    assert weights.parts == set(PARTS_OF_HEAD[head])
    assert "bert/encoder/layer_0/output/dense/kernel" in weights
    assert "bert.encoder.layer.0.output.dense.weight" not in weights
    for name, shape in weights.shapes.items():
        assert weights[name].shape == tuple(shape)


def test_a_kernel_is_the_transpose(opened):
    tensors = their_tensors()
    kernel = "bert/encoder/layer_1/intermediate/dense/kernel"
    np.testing.assert_array_equal(
        opened(tensors)[kernel],
        tensors["bert.encoder.layer.1.intermediate.dense.weight"].T,
    )


def rename(tensors, old, new):
    return {name.replace(old, new): value for name, value in tensors.items()}


@pytest.mark.parametrize(
    "change",
    [
        lambda t: rename(t, "LayerNorm.weight", "LayerNorm.gamma"),
        lambda t: rename(t, "LayerNorm.bias", "LayerNorm.beta"),
        lambda t: {n.removeprefix("bert."): x for n, x in t.items()},
        lambda t: t | {DECODER: t[WORDS]},
        lambda t: t | {DECODER_BIAS: t[BIAS]},
        lambda t: rename(t, WORDS, DECODER),
        lambda t: rename(t, BIAS, DECODER_BIAS),
        lambda t: t | {"bert.embeddings.position_ids": np.arange(19)[None]},
        lambda t: (
            t | {"bert.embeddings.token_type_ids": np.zeros((1, 19), int)}
        ),
        lambda t: dict(sorted(t.items(), reverse=True)),
    ],
)
def test_reads_other_spellings(opened, change):
    tensors = their_tensors()
    assert_same_weights(opened(tensors), opened(change(tensors)))


@pytest.mark.parametrize("dtype", ["float16", ml_dtypes.bfloat16, "float64"])
def test_reads_other_precisions_as_float32(opened, dtype):
    tensors = {n: x.astype(dtype) for n, x in their_tensors().items()}
    single = {n: x.astype("float32") for n, x in tensors.items()}
    weights = opened(tensors)
    assert_same_weights(opened(single), weights)
    assert {weights[n].dtype for n in weights.shapes} == {np.dtype("float32")}


@pytest.mark.parametrize(
    ("copy", "of"),
    [
        (DECODER, WORDS),
        (DECODER_BIAS, BIAS),
        ("embeddings.word_embeddings.weight", WORDS),
    ],
)
def test_refuses_copies_that_differ(refused, copy, of):
    tensors = their_tensors()
    other = tensors[of].copy()
    other.flat[-1] += 1e-6
    assert f"{copy} differs from {of}" in refused(tensors | {copy: other})


def test_includes_foreign_tensors_by_their_names(opened, caplog):
    tensors = their_tensors()
    more = {f"bert.adapter.{n}.weight": np.ones(3, "float32") for n in range(7)}
    more["counts"] = np.arange(3)
    more["half"] = np.arange(3, dtype=ml_dtypes.bfloat16)
    weights = opened(tensors | more)
    assert_same_weights(Arrays(arrays("pretraining") | more), weights)
    assert weights["counts"].dtype == np.int64
    assert weights["half"].dtype == np.float32
    assert weights.parts == set(PARTS_OF_HEAD["pretraining"])
    with pytest.raises(KeyError):
        weights["bert.pooler.dense.bias"]
    assert not weights.explained
    [record] = caplog.records
    message = record.getMessage()
    assert "tensors that are not BERT's: 'bert.adapter.0.weight'" in message
    assert "adapter.4" not in message
    caplog.clear()
    hostile = "a\nb\x1b[31m" + 10**4 * "c"
    opened(their_tensors() | {hostile: np.ones(3, "float32")})
    [record] = caplog.records
    assert len(record.getMessage()) < 400
    assert "\n" not in record.getMessage()
    assert "\x1b" not in record.getMessage()


@pytest.mark.parametrize("name", ["output_bias", "bert/pooler/dense/bias"])
def test_refuses_foreign_tensors_with_our_names(refused, name):
    message = refused(their_tensors() | {name: np.ones(3, "float32")})
    assert (
        f"these tensors do not belong to a BERT with this config: {name!r}"
        in (message)
    )


def test_explains_what_it_leaves_out(opened):
    tensors = their_tensors()
    counter = "embeddings.position_ids"
    weights = opened(
        tensors
        | {counter: np.arange(19)[None]}
        | {DECODER: tensors[WORDS], DECODER_BIAS: tensors[BIAS]}
    )
    assert weights.explained == {
        counter: "a counter, which nothing reads",
        DECODER: f"a copy of {WORDS}",
        DECODER_BIAS: f"a copy of {BIAS}",
    }


@pytest.mark.parametrize("layers", [1, 3, 1000])
def test_refuses_another_number_of_layers(refused, layers, monkeypatch):
    tensors = their_tensors()
    if layers == 1000:  # Names of so many layers are not even generated.
        monkeypatch.setattr(huggingface_names, "rows", None)
    config = dataclasses.replace(CONFIG, num_hidden_layers=layers)
    assert "layer" in refused(tensors, config)


@pytest.mark.parametrize(
    "name",
    [
        WORDS,
        QUERY,
        "bert.encoder.layer.0.output.LayerNorm.bias",
        "bert.pooler.dense.bias",
        "cls.predictions.transform.dense.weight",
        "cls.seq_relationship.bias",
    ],
)
def test_refuses_half_a_part(refused, name):
    tensors = their_tensors()
    del tensors[name]
    assert f"missing: {name!r}." in refused(tensors)


def test_whole_parts_are_optional_except_the_encoder(opened, refused):
    tensors = their_tensors()
    for gone in ("pooler", "cls.predictions", "cls.seq_rel"):
        rest = {n: x for n, x in tensors.items() if gone not in n}
        assert len(opened(tensors).parts - opened(rest).parts) == 1
    message = refused({n: x for n, x in tensors.items() if n[:4] == "cls."})
    assert "layers" in message or "encoder" in message
    others = {f"layer.{n}.weight": np.ones(3, "float32") for n in range(20)}
    assert "weights of encoder are missing" in refused(others)


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        (WORDS, (24, 12), "[23, 12]"),
        (WORDS, (12, 23), "[23, 12]"),
        (QUERY, (12, 13), "[12, 12]"),
        (QUERY, (144,), "[12, 12]"),
        ("bert.encoder.layer.1.output.dense.weight", (17, 12), "[12, 17]"),
        ("bert.pooler.dense.bias", (12, 1), "[12]"),
        ("cls.seq_relationship.weight", (3, 12), "[2, 12]"),
        ("cls.predictions.bias", (0,), "[23]"),
        ("classifier.bias", (0,), "[classes]"),
    ],
)
def test_refuses_another_shape(refused, name, shape, expected):
    head = "classifier" if name.startswith("classifier") else "pretraining"
    message = refused(their_tensors(head) | {name: np.ones(shape, "float32")})
    assert f"{name} must have shape {expected}, as the config says" in message
    assert f"got {list(shape)}" in message


@pytest.mark.parametrize("dtype", ["int8", "int64", "bool"])
def test_refuses_another_dtype(refused, dtype):
    message = refused(their_tensors() | {QUERY: np.ones((12, 12), dtype)})
    assert f"{QUERY} must be float32, float16, bfloat16 or float64" in message


# Our weights by Hugging Face's names


@pytest.mark.parametrize("head", HEADS)
def test_a_class_gets_the_weights_of_its_parts(head):
    weights = arrays("pretraining") | arrays("span") | arrays("token")
    if head == "choice":
        weights |= arrays("choice")
    weights = Arrays(weights)
    parts = {row.part for row in to_rows(weights, CONFIG, head)}
    assert parts == set(PARTS_OF_HEAD[head])
    assert parts_of(arrays(head), CONFIG) == parts | {"pooler"}


def test_ignores_an_optimizer():
    weights = arrays("pretraining")
    more = Arrays(weights | slots(weights))
    assert set(weights_of(more)) == set(weights)
    expected = to_rows(weights, CONFIG, "pretraining")
    assert to_rows(more, CONFIG, "pretraining").keys() == expected.keys()


def test_an_encoder_may_have_no_pooler():
    tensors = to_rows(arrays("token", pooler=False), CONFIG, "encoder")
    assert {row.part for row in tensors} == {"encoder"}


@pytest.mark.parametrize(
    ("change", "head", "message"),
    [
        ({"bert/extra": (3,)}, "encoder", "do not belong .*'bert/extra'"),
        ({"bert/pooler/dense/bias": None}, "encoder", "bert.pooler.dense.bias"),
        ({"bert/embeddings/LayerNorm/beta": None}, "encoder", "LayerNorm.bias"),
        ({"bert/pooler/dense/bias": (13,)}, "encoder", r"shape \[12\]"),
        ({}, "span", "qa_outputs.weight"),
        ({}, "classifier", "classifier.weight"),
    ],
)
def test_refuses_weights_of_another_model(change, head, message):
    weights = arrays("pretraining")
    for name, shape in change.items():
        weights.pop(name, None)
        if shape:
            weights[name] = np.ones(shape, "float32")
    with pytest.raises(InputError, match=f"^memory: .*{message}"):
        to_rows(weights, CONFIG, head)


def test_writes_float32_if_that_is_exact():
    weights = arrays("encoder")
    expected = to_rows(weights, CONFIG, "encoder")
    wide = Arrays({n: x.astype("float64") for n, x in weights.items()})
    for row, value in to_rows(wide, CONFIG, "encoder").items():
        np.testing.assert_array_equal(value, expected[row])
        assert value.dtype == np.float32
    half = Arrays({n: x.astype(ml_dtypes.bfloat16) for n, x in weights.items()})
    tensors = to_rows(half, CONFIG, "encoder")
    assert {x.dtype for x in tensors.values()} == {np.dtype("float32")}
    name = "bert/pooler/dense/bias"
    wide[name][3] = 0.1
    with pytest.raises(InputError, match=f"{name} has float64 numbers"):
        to_rows(wide, CONFIG, "encoder")
    weights[name] = weights[name].astype("int32")
    with pytest.raises(InputError, match=f"{name} must be .*; got int32"):
        to_rows(weights, CONFIG, "encoder")
