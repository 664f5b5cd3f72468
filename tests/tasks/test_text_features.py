"""Vectors of texts, and the files that hold them, without a model."""

import collections
import dataclasses
import io
import json
import os

import numpy as np
import pytest
import tensorflow as tf

from bert_tf import files
from bert_tf.errors import InputError
from bert_tf.tasks.encoding import TextEncoding
from bert_tf.tasks.features import (
    POOLINGS,
    WRITERS,
    TextFeatures,
    choose_layers,
    extract,
    how_many_at_a_time,
    read_texts,
    vectors,
)
from tests.tasks import small_training

LAYERS, H = 5, small_training.H
CONFIG = dataclasses.replace(small_training.CONFIG, num_hidden_layers=LAYERS)
VOCAB = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh")
S = 11
ENCODING = TextEncoding(VOCAB, True, None, S)


@pytest.fixture
def write(tmp_path):
    def write(content) -> str:
        path = tmp_path / "input.txt"
        path.write_bytes(content)
        return str(path)

    return write


# ----------------------------------------------------------------------- texts


def test_reads_a_text_from_each_line(write):
    path = write(b"\xef\xbb\xbf a b \r\n\n\t\nc\xe2\x80\xa8d\n\ne")
    texts = list(read_texts(path))
    assert [t.text_a for t in texts] == ["a b", "", "", "c\u2028d", "", "e"]
    assert {t.text_b for t in texts} == {None}
    assert [t.where for t in texts] == [f"{path}:{n}" for n in range(1, 7)]


@pytest.mark.parametrize(
    ("line", "first", "second"),
    [
        ("a ||| b", "a", "b"),
        ("a ||| b ||| c", "a ||| b", "c"),
        ("a ||| ||| b", "a |||", "b"),
        ("a |||  b ", "a", " b"),
        ("a|||b", "a|||b", None),
        ("a ||| ", "a |||", None),
        (" ||| b", "||| b", None),
        ("|||", "|||", None),
    ],
)
def test_pairs_are_split_as_in_the_original(write, line, first, second):
    [text] = read_texts(write(line.encode()))
    assert (text.text_a, text.text_b) == (first, second)


def test_invalid_utf8(write):
    with pytest.raises(InputError, match=r"input\.txt:2: byte 0xff"):
        list(read_texts(write(b"a\nb\xff\n")))


# ---------------------------------------------------------------------- layers


@pytest.mark.parametrize(
    ("layers", "states"),
    [
        ("-1", {"-1": [5]}),
        ("0, -5,4", {"0": [1], "-5": [1], "4": [5]}),
        ("layer_0,layer_4", {"layer_0": [1], "layer_4": [5]}),
        ("embeddings,last", {"embeddings": [0], "last": [5]}),
        ("second_to_last", {"second_to_last": [4]}),
        ("sum_last_four", {"sum_last_four": [2, 3, 4, 5]}),
        ("concat_last_four,-1", {"concat_last_four": [2, 3, 4, 5], "-1": [5]}),
        ("all", {f"layer_{n}": [n + 1] for n in range(LAYERS)}),
    ],
)
def test_layers_by_number_and_name(layers, states):
    choices = choose_layers(layers, CONFIG)
    assert list(choices) == list(states)
    assert {
        name: list(range(LAYERS + 1))[choice.states]
        for name, choice in choices.items()
    } == states


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ("5", "from -5 to 4.*got '5'"),
        ("-6", "from -5 to 4.*got '-6'"),
        ("layer_5", "layer_0 to layer_4.*got 'layer_5'"),
        ("layer_-1", "got 'layer_-1'"),
        ("1_0", "got '1_0'"),
        ("first", "embeddings, .*concat_last_four.* or all; got 'first'"),
        ("", "got ''"),
        ("-1,", "got ''"),
        ("-1,last,-1", "different layers; got '-1,last,-1'"),
        ("all,layer_3", "different layers"),
    ],
)
def test_wrong_layers(layers, message):
    with pytest.raises(InputError, match=message):
        choose_layers(layers, CONFIG)


def test_a_small_model_has_no_last_four():
    small = dataclasses.replace(CONFIG, num_hidden_layers=3)
    with pytest.raises(
        InputError, match=r"a model with 3 layers; got .sum_last"
    ):
        choose_layers("sum_last_four", small)


# --------------------------------------------------------------------- vectors


@pytest.fixture
def states() -> list[np.ndarray]:
    random = np.random.default_rng(2)
    return [
        random.normal(size=(3, 7, H)).astype("float32")
        for _ in range(LAYERS + 1)
    ]


LENGTHS = np.array([7, 4, 2])
MASK = (np.arange(7) < LENGTHS[:, np.newaxis]).astype("int32")


def computed(states, layers, pooling="none") -> dict[str, np.ndarray]:
    found = vectors(
        {"hidden_states": states}, MASK, choose_layers(layers, CONFIG), pooling
    )
    return small_training.as_arrays(found)


def test_vectors_of_tokens(states):
    found = computed(states, "embeddings,-2,sum_last_four,concat_last_four")
    np.testing.assert_array_equal(found["embeddings"], states[0])
    np.testing.assert_array_equal(found["-2"], states[4])
    np.testing.assert_allclose(
        found["sum_last_four"], np.sum(states[-4:], axis=0), rtol=1e-5
    )
    np.testing.assert_array_equal(
        found["concat_last_four"], np.concatenate(states[-4:], axis=-1)
    )
    assert {x.dtype for x in found.values()} == {np.dtype("float32")}


@pytest.mark.parametrize(
    ("pooling", "by_hand"),
    [
        ("cls", lambda tokens: tokens[0]),
        ("mean", lambda tokens: tokens.mean(axis=0)),
        ("max", lambda tokens: tokens.max(axis=0)),
    ],
)
def test_pooling_ignores_padding(states, pooling, by_hand):
    # Whatever the model makes of padding.
    states[-1][MASK == 0] = 99.0
    found = computed(states, "last", pooling)["last"]
    rows = zip(states[-1], LENGTHS, strict=True)
    expected = [by_hand(row[:length]) for row, length in rows]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_row_of_padding_is_no_error(states, pooling):
    mask = np.zeros_like(MASK)
    choices = choose_layers("-1", CONFIG)
    found = vectors({"hidden_states": states}, mask, choices, pooling)
    assert not np.isnan(small_training.as_arrays(found)["-1"]).any()


# ------------------------------------------------------------------ extraction


class Computing:
    """In place of a model: the vector of a token is its id, and its place."""

    def __init__(self, is_pooled=False):
        self.is_pooled = is_pooled
        self.shapes = []

    def __call__(self, batch):
        ids = batch["input_ids"]
        self.shapes.append(ids.shape)
        places = np.broadcast_to(np.arange(ids.shape[1]), ids.shape)
        vectors = np.stack([ids, places], axis=-1).astype("float32")
        return {"-1": vectors[:, 1] if self.is_pooled else vectors}


def texts(count) -> list[str]:
    random = np.random.default_rng(7)
    return [
        " ".join(random.choice([*"abcdefgh"], size=random.integers(0, S - 1)))
        for _ in range(count)
    ]


def extracted(path, compute, texts_at_a_time=8, **options):
    options = {"batch_size": 2, "multiple": 4} | options
    return extract(
        read_texts(path),
        ENCODING,
        compute,
        texts_at_a_time=texts_at_a_time,
        **options,
    )


def test_texts_stay_in_order(write):
    lines = texts(29)
    path = write("\n".join(lines).encode() + b"\n")
    found = list(extracted(path, Computing()))
    assert [text.line for text in found] == list(range(29))
    for text, line in zip(found, lines, strict=True):
        tokens = ["[CLS]", *line.split(), "[SEP]"]
        assert [VOCAB[n] for n in text.input_ids] == tokens
        [vectors] = text.vectors.values()
        assert vectors[:, 0].tolist() == text.input_ids.tolist()
        assert vectors[:, 1].tolist() == list(range(len(tokens)))


def test_pooled_vectors(write):
    path = write("\n".join(["a b", "", "c", "d e f"]).encode())
    found = list(extracted(path, Computing(is_pooled=True)))
    first = [VOCAB[int(text.vectors["-1"][0])] for text in found]
    assert first == ["a", "[SEP]", "c", "d"]


def test_pairs_have_two_segments(write):
    seen = []

    def compute(batch):
        seen.append(batch)
        return Computing()(batch)

    list(extracted(write(b"a b ||| c d e"), compute, multiple=1))
    [batch] = seen
    assert [VOCAB[n] for n in batch["input_ids"][0]] == [
        *("[CLS]", "a", "b", "[SEP]", "c", "d", "e", "[SEP]")
    ]
    assert batch["segment_ids"].tolist() == [[0, 0, 0, 0, 1, 1, 1, 1]]
    assert batch["input_mask"].tolist() == [[1] * 8]


def test_batches_have_similar_lengths(write):
    path = write("\n".join(texts(97)).encode())
    compute = Computing()
    list(extracted(path, compute, batch_size=3, texts_at_a_time=60))
    assert {length for _, length in compute.shapes} == {4, 8, 11}
    assert max(rows * length for rows, length in compute.shapes) <= 3 * S
    assert sum(rows for rows, _ in compute.shapes) == 97
    compute = Computing()
    list(extracted(path, compute, multiple=S))
    assert {length for _, length in compute.shapes} == {S}


def test_texts_are_read_part_by_part(write):
    read = 0

    def count(texts):
        nonlocal read
        for text in texts:
            read += 1
            yield text

    path = write("\n".join(texts(31)).encode())
    found = extract(
        count(read_texts(path)),
        ENCODING,
        Computing(),
        batch_size=2,
        texts_at_a_time=6,
    )
    for line, _ in enumerate(found):
        assert read <= (line // 6 + 1) * 6


def test_warns_of_truncated_texts(write, caplog):
    path = write(b"a\n" + b"b " * S + b"\nc\n" + b"d " * 99)
    found = list(extracted(path, Computing()))
    assert [len(text.input_ids) for text in found] == [3, S, 3, S]
    [record] = caplog.records
    expected = "2 of 4 texts were truncated to --max_seq_length=11"
    assert record.getMessage() == expected
    list(extracted(write(b"a\n\nb"), Computing()))
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("layers", "vectors_per_text", "batch_size", "expected"),
    [
        # 2^28 bytes / (4 layers * 768 * 4 bytes * 128 tokens) = 170.7
        ("-1,-2,-3,-4", 128, 32, 160),
        ("concat_last_four", 128, 32, 160),
        ("sum_last_four", 128, 32, 672),
        ("-1", 1, 32, 4096),
        # A batch at least.
        ("all", 512, 50, 50),
    ],
)
def test_memory_is_bounded(layers, vectors_per_text, batch_size, expected):
    config = dataclasses.replace(
        CONFIG, hidden_size=768, num_attention_heads=12, num_hidden_layers=12
    )
    assert expected == how_many_at_a_time(
        choose_layers(layers, config),
        config,
        vectors_per_text=vectors_per_text,
        batch_size=batch_size,
    )


# ----------------------------------------------------------------------- files

FILE_VOCAB = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", '"é', "##b")
WIDTHS = {"-1": 3, "concat_last_four": 5}


def features(lengths=(4, 2, 7), is_pooled=False) -> list[TextFeatures]:
    random = np.random.default_rng(3)
    return [
        TextFeatures(
            line,
            random.integers(0, len(FILE_VOCAB), length).astype("int32"),
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
    with WRITERS[kind](str(path), FILE_VOCAB) as write:
        for text in texts:
            write(text)
    return path.read_bytes()


def the_originals_line(text: TextFeatures) -> str:
    """Returns the line by the description of the format."""
    tokens = []
    for place, token in enumerate(text.input_ids):
        layers = []
        for name, values in text.vectors.items():
            layer = collections.OrderedDict()
            layer["index"] = int(name) if name == "-1" else name
            layer["values"] = [round(float(x), 6) for x in values[place]]
            layers.append(layer)
        entry = collections.OrderedDict()
        entry["token"] = FILE_VOCAB[token]
        entry["layers"] = layers
        tokens.append(entry)
    result = collections.OrderedDict()
    result["linex_index"] = text.line
    result["features"] = tokens
    return json.dumps(result) + "\n"


def test_json_lines_are_those_of_the_original(tmp_path):
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


def test_npz_in_a_remote_file():
    path = "ram://feature_files/a.npz"
    with WRITERS["npz"](path, FILE_VOCAB) as write:
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
    with WRITERS["npz"]("a.npz", FILE_VOCAB) as write:
        write(features()[0])
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]


@pytest.mark.parametrize("name", ["a.tfrecord", "a.tfrecord.gz"])
@pytest.mark.parametrize("is_pooled", [False, True])
def test_tensorflow_reads_the_records(tmp_path, name, is_pooled):
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


@pytest.mark.parametrize("kind", WRITERS)
def test_files_appear_whole(tmp_path, kind, monkeypatch):
    def fail():
        with WRITERS[kind](str(tmp_path / "a"), FILE_VOCAB) as write:
            write(features()[0])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not list(tmp_path.iterdir())
    # Equal vectors give equal bytes at any time.
    first = written(tmp_path / "a", features(), kind)
    monkeypatch.setattr("time.time", lambda: 2e9)
    assert written(tmp_path / "b", features(), kind) == first
    writer = WRITERS[kind](str(tmp_path / "a" / "b"), FILE_VOCAB)
    with pytest.raises(InputError, match="Cannot write"), writer:
        pass


@pytest.mark.parametrize("kind", WRITERS)
def test_a_pipe(tmp_path, kind):
    expected = written(tmp_path / "file", features(), kind)
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with WRITERS[kind](str(tmp_path / "pipe"), FILE_VOCAB) as write:
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
