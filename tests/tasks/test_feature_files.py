"""The formats of vectors: what is written is what comes back."""

import collections
import io
import json
import os

import numpy as np
import pytest
import tensorflow as tf

from bert_tf import files
from bert_tf.errors import InputError
from bert_tf.tasks.features import WRITERS, TextFeatures

VOCAB = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", '"é', "##b")
WIDTHS = {"-1": 3, "concat_last_four": 5}


def features(lengths=(4, 2, 7), is_pooled=False) -> list[TextFeatures]:
    random = np.random.default_rng(3)
    return [
        TextFeatures(
            line,
            random.integers(0, len(VOCAB), length).astype("int32"),
            {
                name: random.normal(
                    size=[width] if is_pooled else [length, width]
                ).astype("float32")
                for name, width in WIDTHS.items()
            },
        )
        for line, length in enumerate(lengths)
    ]


def written(path, texts, kind) -> bytes:
    with WRITERS[kind](str(path), VOCAB) as write:
        for text in texts:
            write(text)
    return path.read_bytes()


# JSON lines.


def the_originals_line(text: TextFeatures) -> str:
    """Written from the description of its format; one float at a time."""
    tokens = []
    for place, token in enumerate(text.input_ids):
        layers = []
        for name, values in text.vectors.items():
            layer = collections.OrderedDict()
            layer["index"] = int(name) if name == "-1" else name
            layer["values"] = [round(float(x), 6) for x in values[place]]
            layers.append(layer)
        entry = collections.OrderedDict()
        entry["token"] = VOCAB[token]
        entry["layers"] = layers
        tokens.append(entry)
    result = collections.OrderedDict()
    result["linex_index"] = text.line
    result["features"] = tokens
    return json.dumps(result) + "\n"


def test_json_lines_are_the_originals(tmp_path):
    texts = features()
    expected = "".join(map(the_originals_line, texts))
    assert written(tmp_path / "a.jsonl", texts, "jsonl") == expected.encode()
    assert expected.startswith('{"linex_index": 0, "features": [{"token": "')


def test_json_numbers_are_rounded_as_python_does(tmp_path):
    random = np.random.default_rng(5)
    numbers = np.concatenate(
        [
            random.normal(size=3000) * 10.0 ** random.integers(-9, 4, 3000),
            # Halves of a millionth, exactly.
            np.arange(-301, 301, 2) / 128,
            [0.0, -0.0, 1e-7, -1e-7, 123456.789, np.inf, -np.inf, np.nan],
        ]
    ).astype("float32")
    text = TextFeatures(0, np.array([2]), {"-1": numbers[np.newaxis]})
    expected = the_originals_line(text).encode()
    assert written(tmp_path / "a", [text], "jsonl") == expected


def test_json_of_pooled_vectors(tmp_path):
    texts = features(is_pooled=True)
    lines = written(tmp_path / "a", texts, "jsonl").decode().splitlines()
    for text, line in zip(texts, lines, strict=True):
        found = json.loads(line)
        assert list(found) == ["linex_index", "layers"]
        assert [layer["index"] for layer in found["layers"]] == [
            *(-1, "concat_last_four")
        ]
        for layer, name in zip(found["layers"], WIDTHS, strict=True):
            expected = text.vectors[name]
            np.testing.assert_allclose(layer["values"], expected, atol=1e-6)


# NumPy.


def test_npz_of_tokens(tmp_path):
    texts = features()
    written(tmp_path / "a.npz", texts, "npz")
    with np.load(tmp_path / "a.npz") as arrays:
        assert {*arrays} == {"offsets", "input_ids", *WIDTHS}
        offsets = arrays["offsets"]
        assert offsets.tolist() == [0, 4, 6, 13]
        assert (offsets.dtype, arrays["input_ids"].dtype) == (
            *(np.int64, np.int32),
        )
        for text, first, end in zip(
            texts, offsets[:-1], offsets[1:], strict=True
        ):
            expected = text.vectors | {"input_ids": text.input_ids}
            for name, values in expected.items():
                found = arrays[name][first:end]
                np.testing.assert_array_equal(found, values)
                assert found.dtype == values.dtype


def test_npz_of_pooled_vectors(tmp_path):
    texts = features(is_pooled=True)
    written(tmp_path / "a.npz", texts, "npz")
    with np.load(tmp_path / "a.npz") as arrays:
        assert {*arrays} == {*WIDTHS}
        for name in WIDTHS:
            expected = np.stack([text.vectors[name] for text in texts])
            np.testing.assert_array_equal(arrays[name], expected)


def test_npz_where_no_file_tells_how_far_it_is():
    path = "ram://feature_files/a.npz"
    with WRITERS["npz"](path, VOCAB) as write:
        for text in features():
            write(text)
    with np.load(io.BytesIO(files.open_read(path).read())) as arrays:
        assert arrays["offsets"].tolist() == [0, 4, 6, 13]
        found = [arrays[name] for name in WIDTHS]
    for name, values in zip(WIDTHS, found, strict=True):
        expected = np.concatenate([text.vectors[name] for text in features()])
        np.testing.assert_array_equal(values, expected)


def test_npz_in_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with WRITERS["npz"]("a.npz", VOCAB) as write:
        write(features()[0])
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]


# TFRecord.


@pytest.mark.parametrize("name", ["a.tfrecord", "a.tfrecord.gz"])
@pytest.mark.parametrize("is_pooled", [False, True])
def test_records_as_tensorflow_reads_them(tmp_path, name, is_pooled):
    texts = features(is_pooled=is_pooled)
    written(tmp_path / name, texts, "tfrecord")
    schema = {
        name: tf.io.FixedLenSequenceFeature([width], tf.float32, True)
        for name, width in WIDTHS.items()
    }
    schema["line_index"] = tf.io.FixedLenFeature([], tf.int64)
    schema["input_ids"] = tf.io.FixedLenSequenceFeature([], tf.int64, True)
    kind = "GZIP" if name.endswith("gz") else ""
    records = tf.data.TFRecordDataset(str(tmp_path / name), kind)
    for text, record in zip(texts, records, strict=True):
        found = tf.io.parse_single_example(record, schema)
        assert found["line_index"] == text.line
        assert found["input_ids"].numpy().tolist() == text.input_ids.tolist()
        for name, values in text.vectors.items():
            np.testing.assert_array_equal(
                found[name], np.reshape(values, [-1, WIDTHS[name]])
            )


# All of them.


@pytest.mark.parametrize("kind", WRITERS)
def test_the_same_vectors_give_the_same_bytes(tmp_path, kind, monkeypatch):
    first = written(tmp_path / "a", features(), kind)
    monkeypatch.setattr("time.time", lambda: 2e9)
    assert written(tmp_path / "b", features(), kind) == first


@pytest.mark.parametrize("kind", WRITERS)
def test_nothing_is_left_of_what_fails(tmp_path, kind):
    def fail():
        with WRITERS[kind](str(tmp_path / "a"), VOCAB) as write:
            write(features()[0])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", WRITERS)
def test_a_place_that_cannot_be_written_to(tmp_path, kind):
    (tmp_path / "file").touch()
    writer = WRITERS[kind](str(tmp_path / "file" / "a"), VOCAB)
    with pytest.raises(InputError, match="Cannot write"), writer:
        pass


@pytest.mark.parametrize("kind", WRITERS)
def test_vectors_go_into_a_pipe(tmp_path, kind):
    expected = written(tmp_path / "file", features(), kind)
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with WRITERS[kind](str(tmp_path / "pipe"), VOCAB) as write:
        for text in features():
            write(text)
    received = os.read(reader, 2**16)
    os.close(reader)
    assert (tmp_path / "pipe").is_fifo()
    if kind == "npz":  # Sizes follow the data where nothing can be rewritten.
        expected, found = (
            dict(np.load(io.BytesIO(content)))
            for content in (expected, received)
        )
        np.testing.assert_equal(found, expected)
    else:
        assert received == expected
