"""From lines of text to vectors, without a model."""

import dataclasses

import numpy as np
import pytest

from bert_tf.errors import InputError
from bert_tf.tasks.encoding import TextEncoding
from bert_tf.tasks.features import (
    POOLINGS,
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


# Texts.


def test_a_text_a_line(write):
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
def test_pairs_as_the_originals_pattern_splits_them(write, line, first, second):
    [text] = read_texts(write(line.encode()))
    assert (text.text_a, text.text_b) == (first, second)


def test_what_is_not_utf8_is_told_with_its_line(write):
    with pytest.raises(InputError, match=r"byte 0xff at .*input\.txt:2"):
        list(read_texts(write(b"a\nb\xff\n")))


# Layers.


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
        ("5", "from -5 to 4.*: '5'"),
        ("-6", "from -5 to 4.*: '-6'"),
        ("layer_5", "layer_0 to layer_4.*: 'layer_5'"),
        ("layer_-1", "'layer_-1'"),
        ("1_0", "'1_0'"),
        ("first", "embeddings, .*concat_last_four.*, or all.*: 'first'"),
        ("", "Received: ''"),
        ("-1,", "Received: ''"),
        ("-1,last,-1", "each layer once.*=-1,last,-1"),
        ("all,layer_3", "each layer once"),
    ],
)
def test_no_such_layer(layers, message):
    with pytest.raises(InputError, match=message):
        choose_layers(layers, CONFIG)


def test_a_small_model_has_no_last_four():
    with pytest.raises(InputError, match="at least 4 layers"):
        choose_layers(
            "sum_last_four", dataclasses.replace(CONFIG, num_hidden_layers=3)
        )


# Vectors.


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
def test_vectors_of_texts_are_of_their_tokens_alone(states, pooling, by_hand):
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


# Extraction.


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


def test_every_text_in_its_order(write):
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


def test_pooled_vectors_are_one_a_text(write):
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


def test_batches_are_of_about_one_length_and_within_their_budget(write):
    path = write("\n".join(texts(97)).encode())
    compute = Computing()
    list(extracted(path, compute, batch_size=3, texts_at_a_time=60))
    assert {length for _, length in compute.shapes} == {4, 8, 11}
    assert max(rows * length for rows, length in compute.shapes) <= 3 * S
    assert sum(rows for rows, _ in compute.shapes) == 97


def test_lengths_can_all_be_one(write):
    path = write("\n".join(texts(13)).encode())
    compute = Computing()
    list(extracted(path, compute, multiple=S))
    assert {length for _, length in compute.shapes} == {S}


def test_no_more_texts_are_read_than_are_worked_on(write):
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


def test_tells_of_texts_that_are_cut(write, caplog):
    path = write(b"a\n" + b"b " * S + b"\nc\n" + b"d " * 99)
    found = list(extracted(path, Computing()))
    assert [len(text.input_ids) for text in found] == [3, S, 3, S]
    [record] = caplog.records
    assert record.getMessage() == "2 of 4 texts were cut to --max_seq_length=11"


def test_says_nothing_where_all_fit(write, caplog):
    list(extracted(write(b"a\n\nb"), Computing()))
    assert not caplog.records


@pytest.mark.parametrize(
    ("layers", "places", "batch_size", "expected"),
    [
        # 2^28 bytes / (4 layers * 768 * 4 bytes * 128 places) = 170.7
        ("-1,-2,-3,-4", 128, 32, 160),
        ("concat_last_four", 128, 32, 160),
        ("sum_last_four", 128, 32, 672),
        ("-1", 1, 32, 4096),
        # A batch at least.
        ("all", 512, 50, 50),
    ],
)
def test_memory_is_bounded(layers, places, batch_size, expected):
    config = dataclasses.replace(
        CONFIG, hidden_size=768, num_attention_heads=12, num_hidden_layers=12
    )
    assert expected == how_many_at_a_time(
        choose_layers(layers, config),
        config,
        places=places,
        batch_size=batch_size,
    )
