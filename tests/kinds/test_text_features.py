"""Vectors of texts, and the files that hold them, without a model."""

import dataclasses
import io
import json

import numpy as np
import pytest

from bert_tf.base import files
from bert_tf.errors import InputError
from bert_tf.kinds.vectors.features import (
    WRITERS,
    TextFeatures,
    choose_layers,
    extract,
    how_many_at_a_time,
    read_texts,
    vectors,
)
from bert_tf.tasks.encoding import TextEncoding
from bert_tf.tasks.examples import Example
from tests.tasks import small_training

LAYERS, H, S = 5, small_training.H, 11
CONFIG = dataclasses.replace(small_training.CONFIG, num_hidden_layers=LAYERS)
VOCAB = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh")
ENCODING = TextEncoding(VOCAB, True, None, S)


def test_reads_a_text_from_each_line(write):
    path = write(b"\xef\xbb\xbf a b \r\n\n\t\nc\xe2\x80\xa8d\n\ne")
    texts = list(read_texts(path))
    assert [t.text_a for t in texts] == ["a b", "", "", "c\u2028d", "", "e"]
    assert {t.text_b for t in texts} == {None}
    assert [t.where for t in texts] == [f"{path}:{n}" for n in range(1, 7)]
    with pytest.raises(InputError, match=r"a\.txt:2: byte 0xff"):
        list(read_texts(write(b"a\nb\xff\n")))


@pytest.mark.parametrize(
    ("line", "first", "second"),
    [
        ("a ||| b ||| c", "a ||| b", "c"),
        ("a ||| ||| b", "a |||", "b"),
        ("a |||  b ", "a", " b"),
        ("a ||| ", "a |||", None),
        (" ||| b", "||| b", None),
    ],
)
def test_pairs_are_split_as_in_the_original(write, line, first, second):
    [text] = read_texts(write(line.encode()))
    assert (text.text_a, text.text_b) == (first, second)


@pytest.mark.parametrize(
    ("layers", "states"),
    [
        ("0, -5,4", {"0": [1], "-5": [1], "4": [5]}),
        ("layer_0,layer_4", {"layer_0": [1], "layer_4": [5]}),
        ("embeddings,last", {"embeddings": [0], "last": [5]}),
        ("concat_last_four,-1", {"concat_last_four": [2, 3, 4, 5], "-1": [5]}),
        ("all", {f"layer_{n}": [n + 1] for n in range(LAYERS)}),
    ],
)
def test_layers_by_number_and_name(layers, states):
    choices = choose_layers(layers, CONFIG)
    found = {
        name: list(range(LAYERS + 1))[choice.states]
        for name, choice in choices.items()
    }
    assert list(found.items()) == list(states.items())


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ("5", "from -5 to 4.*got '5'"),
        ("layer_5", "layer_0 to layer_4.*got 'layer_5'"),
        ("1_0", "got '1_0'"),
        ("first", "embeddings, .*concat_last_four.* or all; got 'first'"),
        ("-1,last,-1", "different layers; got '-1,last,-1'"),
    ],
)
def test_invalid_layers(layers, message):
    with pytest.raises(InputError, match=message):
        choose_layers(layers, CONFIG)


@pytest.mark.parametrize("pooling", ["cls", "mean", "max"])
def test_padding_is_not_pooled(pooling):
    states = np.random.default_rng(2).normal(size=(LAYERS + 1, 2, 7, H))
    mask, choices = np.arange(7) < [[7], [4]], choose_layers("-1", CONFIG)
    found = [
        vectors({"hidden_states": [*x]}, mask, choices, pooling)["-1"]
        for x in (states, states + 9 * ~mask[..., np.newaxis])
    ]
    np.testing.assert_allclose(*found, rtol=1e-6)


def test_texts_stay_in_order(write, warnings):
    random = np.random.default_rng(7)
    lines = [
        " ".join(random.choice([*"abcdefgh"], size=length))
        for length in random.integers(0, S + 2, 97)
    ]
    num_read = 0

    def read():
        nonlocal num_read
        for text in read_texts(write("\n".join(lines) + "\n")):
            num_read += 1
            yield text

    def predict(features):
        """Returns the id and the position of each token."""
        ids = features.arrays["input_ids"]
        positions = np.broadcast_to(np.arange(ids.shape[1]), ids.shape)
        return {"-1": np.stack([ids, positions], axis=-1).astype("float32")}

    found = extract(read(), ENCODING, predict, texts_at_a_time=60)
    for number, (line, text) in enumerate(zip(lines, found, strict=True)):
        assert text.line == number
        assert num_read <= (number // 60 + 1) * 60
        tokens = ["[CLS]", *line.split()[: S - 2], "[SEP]"]
        assert [VOCAB[n] for n in text.input_ids] == tokens
        expected = [[n, place] for place, n in enumerate(text.input_ids)]
        assert text.vectors["-1"].tolist() == expected
    num_cut = sum(len(line.split()) > S - 2 for line in lines)
    assert warnings == [
        f"{num_cut} of 97 texts were truncated to `max_seq_length={S}`"
    ]


def test_memory_is_bounded():
    config = dataclasses.replace(
        CONFIG, hidden_size=768, num_attention_heads=12, num_hidden_layers=12
    )
    # 2^28 bytes / (4 layers * 768 * 4 bytes * 128 tokens) = 170.7
    for layers, num_vectors, batch_size, expected in [
        ("concat_last_four", 128, 32, 160),
        ("-1", 1, 32, 4096),
        ("all", 512, 50, 50),  # At least a batch.
    ]:
        choices = choose_layers(layers, config)
        options = {"vectors_per_text": num_vectors, "batch_size": batch_size}
        assert how_many_at_a_time(choices, config, **options) == expected


# A vector of a token: its id, its position, and the length of its window.
def located(features):
    ids, mask = (features.arrays[name] for name in ("input_ids", "input_mask"))
    positions = np.broadcast_to(np.arange(ids.shape[1]), ids.shape)
    lengths = np.broadcast_to(mask.sum(axis=1, keepdims=True), ids.shape)
    return np.stack([ids, positions, lengths], axis=-1).astype(np.float32)


@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_pooled_vectors_are_of_all_windows(pooling):
    pool = {"mean": np.mean, "max": np.max}[pooling]
    rows = []

    def predict(features):
        masks = features.arrays["input_mask"] > 0
        found = [x[m] for x, m in zip(located(features), masks, strict=True)]
        rows.extend(found)
        return {"x": np.stack([pool(x, axis=0) for x in found])}

    def extracted(examples, **options):
        encoding = dataclasses.replace(ENCODING, max_seq_length=6)
        sizes = {"texts_at_a_time": 9, "doc_stride": 2}
        return [*extract(examples, encoding, predict, **sizes, **options)]

    pair = Example("", "h", "a b c d e", where="x:7")
    found = extracted([pair, Example("", "b")], pooling=pooling)
    of_pair = [x for x in rows if VOCAB.index("h") in x[:, 0]]
    of_other = [x for x in rows if VOCAB.index("h") not in x[:, 0]]
    assert (len(of_pair), len(of_other)) == (3, 1)
    for text, windows in zip(found, (of_pair, of_other), strict=True):
        expected = pool(np.concatenate(windows), axis=0)
        np.testing.assert_allclose(text.vectors["x"], expected, rtol=1e-6)


FILE_VOCAB = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", '"é', "##b")
WIDTHS = {"-1": 3, "concat_last_four": 5}


def features(lengths=(4, 2, 7), is_pooled=False) -> list[TextFeatures]:
    random = np.random.default_rng(3)

    def vector(width, length):
        shape = [width] if is_pooled else [length, width]
        return random.normal(size=shape).astype("float32")

    return [
        TextFeatures(
            line,
            random.integers(0, len(FILE_VOCAB), length).astype("int32"),
            {name: vector(width, length) for name, width in WIDTHS.items()},
        )
        for line, length in enumerate(lengths)
    ]


def written(path, texts, kind):
    with WRITERS[kind](str(path), FILE_VOCAB) as write:
        for text in texts:
            write(text)
    return path


def layers_by_hand(text, *place):
    """Returns the rounded vectors of a text, or of one of its tokens."""
    return [
        {
            "index": -1 if name == "-1" else name,
            "values": [round(float(x), 6) for x in values[place]],
        }
        for name, values in text.vectors.items()
    ]


def test_json_lines_are_those_of_the_original(tmp_path):
    random = np.random.default_rng(5)
    numbers = [
        random.normal(size=3000) * 10.0 ** random.integers(-9, 4, 3000),
        # Halves of a millionth, exactly.
        np.arange(-301, 301, 2) / 128,
        [0.0, -0.0, 1e-7, -1e-7, 123456.789, np.inf, -np.inf, np.nan],
    ]
    vector = np.concatenate(numbers).astype("float32")
    texts = [*features(), TextFeatures(3, np.array([2]), {"-1": vector[None]})]
    path = written(tmp_path / "a.jsonl", texts, "jsonl")
    for text, line in zip(texts, path.read_text().splitlines(), strict=True):
        tokens = [
            {"token": FILE_VOCAB[token], "layers": layers_by_hand(text, place)}
            for place, token in enumerate(text.input_ids)
        ]
        assert line == json.dumps(
            {"linex_index": text.line, "features": tokens}
        )
    texts = features(is_pooled=True)
    written(path, texts, "jsonl")
    for text, line in zip(texts, path.read_text().splitlines(), strict=True):
        layers = layers_by_hand(text, ...)
        assert json.loads(line) == {"linex_index": text.line, "layers": layers}


def test_pooled_vectors_in_a_remote_npz():
    texts = features(is_pooled=True)
    path = written("ram://feature_files/a.npz", texts, "npz")
    arrays = np.load(io.BytesIO(files.open_read(path).read()))
    assert {*arrays} == {*WIDTHS}
    for name in WIDTHS:
        expected = np.stack([text.vectors[name] for text in texts])
        np.testing.assert_array_equal(arrays[name], expected)


@pytest.mark.parametrize("kind", WRITERS)
def test_files_are_atomic_and_reproducible(tmp_path, kind, monkeypatch):
    def fail():
        yield features()[0]
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        written(tmp_path / "a", fail(), kind)
    assert not list(tmp_path.iterdir())
    first = written(tmp_path / "a", features(), kind).read_bytes()
    monkeypatch.setattr("time.time", lambda: 2e9)
    second = written(tmp_path / "b", features(), kind).read_bytes()
    assert second == first
    with pytest.raises(InputError, match="Cannot write"):
        written(tmp_path / "a" / "b", [], kind)
