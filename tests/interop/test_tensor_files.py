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
from bert_tf.interop import huggingface_weights
from bert_tf.interop.huggingface_weights import TensorFiles, open_tensors
from tests.interop.huggingface_folders import write_json, write_shards

TENSORS = {
    "a": np.arange(6, dtype="float32").reshape(2, 3),
    "b": np.full(5, -1.5, "float32"),
    "c": np.ones((1, 7), "float32"),
    "d": np.float32(3)[None],
}


# Each of the numbers that 16 bits can be, infinities and NaN among them.
ALL_BITS = np.arange(1 << 16, dtype="uint16")


def assert_holds(opened, tensors=TENSORS):
    assert opened.shapes == {n: x.shape for n, x in tensors.items()}
    for name, value in tensors.items():
        np.testing.assert_array_equal(opened.read(name), value)
        assert opened.read(name).dtype == np.float32


def test_reads_what_was_written(tmp_path):
    path = str(tmp_path / "x.safetensors")
    huggingface_weights.write(path, TENSORS)
    assert_holds(TensorFiles(path))
    with safetensors.safe_open(path, "numpy") as file:
        assert file.metadata() == {"format": "pt"}


@pytest.mark.parametrize("count", [1, 3, 4])
def test_reads_shards_as_one(tmp_path, count):
    write_shards(tmp_path, TENSORS, count)
    opened = open_tensors(str(tmp_path / huggingface_weights.INDEX))
    assert_holds(opened)


def test_reads_and_writes_what_lies_elsewhere():
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
def test_widens_every_number_of_half_precision_exactly(
    tmp_path, dtype, name, expected
):
    save_file({"x": ALL_BITS.view(dtype)}, tmp_path / "x.safetensors")
    opened = TensorFiles(str(tmp_path / "x.safetensors"))
    assert opened.dtype("x") == name
    np.testing.assert_array_equal(opened.read("x"), expected)


@pytest.mark.parametrize("dtype", ["int64", "uint8", "bool"])
def test_reads_what_is_no_float_as_it_is(tmp_path, dtype):
    save_file({"x": np.ones(3, dtype)}, tmp_path / "x.safetensors")
    opened = TensorFiles(str(tmp_path / "x.safetensors"))
    assert not opened.is_float("x")
    assert opened.read("x").dtype == dtype


def test_refuses_a_type_that_numpy_lacks(tmp_path):
    path = tmp_path / "x.safetensors"
    path.write_bytes(damaged({"a": entry([24], [0, 24], "F8_E8M0")}))
    opened = TensorFiles(str(path))
    with pytest.raises(InputError, match="Received: F8_E8M0 in") as caught:
        opened.read("a")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "values",
    [
        [0.0, -0.0, 1.5, -(2.0**-149), np.inf, np.nan],
        [float(np.finfo("float32").max)],
    ],
)
def test_makes_float64_narrower_where_nothing_changes(tmp_path, values):
    wide = np.array(values, "float64")
    save_file({"x": wide}, tmp_path / "x.safetensors")
    found = TensorFiles(str(tmp_path / "x.safetensors")).read("x")
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, wide)


@pytest.mark.parametrize("value", [0.1, 1e39, 2.0**-150, 2.0**24 + 1])
def test_refuses_float64_that_would_change(tmp_path, value):
    save_file({"x": np.array([1.0, value])}, tmp_path / "x.safetensors")
    opened = TensorFiles(str(tmp_path / "x.safetensors"))
    with pytest.raises(InputError, match="numbers that float32 holds"):
        opened.read("x")


def test_says_what_it_may_not_read(tmp_path, monkeypatch):
    path = tmp_path / "x.safetensors"
    huggingface_weights.write(str(path), TENSORS)

    def refuse(*arguments):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(InputError, match=f"{path}: Permission denied"):
        TensorFiles(str(path))


def damaged(tensors, content=b"\0" * 24):
    """A file with any header."""
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


def test_the_file_that_the_bad_ones_are_made_from_is_good(tmp_path):
    (tmp_path / "x.safetensors").write_bytes(GOOD)
    assert_holds(
        TensorFiles(str(tmp_path / "x.safetensors")), {"a": np.zeros((2, 3))}
    )


@pytest.mark.parametrize("content", BAD_FILES.values(), ids=BAD_FILES)
def test_refuses_a_damaged_file_in_one_line(tmp_path, content):
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        TensorFiles(str(path))
    assert "\n" not in str(caught.value)
    assert f"safetensors file at {path}. Received: " in str(caught.value)


def test_refuses_a_file_that_is_not_there_or_a_directory(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        TensorFiles(str(tmp_path / "x.safetensors"))
    with pytest.raises(InputError, match="a directory"):
        TensorFiles(str(tmp_path))


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
def test_an_index_names_nothing_but_files_beside_it(tmp_path, shard):
    outside = tmp_path / "x.safetensors"
    save_file(TENSORS, outside)
    inside = tmp_path / "inside"
    (inside / "a").mkdir(parents=True)
    index = {"weight_map": dict.fromkeys(TENSORS, shard)}
    write_json(inside, huggingface_weights.INDEX, index)
    with pytest.raises(InputError, match="expected files beside") as caught:
        open_tensors(str(inside / huggingface_weights.INDEX))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("index", [{}, {"weight_map": {}}, {"weight_map": []}])
def test_an_index_lists_something(tmp_path, index):
    write_json(tmp_path, huggingface_weights.INDEX, index)
    with pytest.raises(InputError, match="expected the key 'weight_map'"):
        open_tensors(str(tmp_path / huggingface_weights.INDEX))


def test_index_and_shards_agree(tmp_path):
    write_shards(tmp_path, TENSORS, 2)
    index = tmp_path / huggingface_weights.INDEX
    listed = json.loads(index.read_text())
    second = "model-00002-of-00002.safetensors"
    # "b" and "d" are in the second.
    for change, complaint in (
        ({"a": second}, "adds 'a'"),
        ({"x": second}, "lacks 'x'"),
    ):
        homes = listed["weight_map"] | change
        write_json(tmp_path, huggingface_weights.INDEX, {"weight_map": homes})
        with pytest.raises(InputError, match=complaint):
            open_tensors(str(index))
    write_json(tmp_path, huggingface_weights.INDEX, listed)
    assert_holds(open_tensors(str(index)))
    (tmp_path / second).unlink()
    with pytest.raises(InputError, match=rf"{second}. Received: no such file"):
        open_tensors(str(index))
