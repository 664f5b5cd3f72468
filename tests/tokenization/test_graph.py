"""The tokenizer in the graph gives the ids and offsets of the one in Python."""

import itertools
import random

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.tokenization import normalization, packing
from bert_tf.tokenization.graph import BertTokenizer
from bert_tf.tokenization.graph_normalization import (
    GraphNormalizer,
    drop_invalid_utf8,
)
from bert_tf.tokenization.normalization import Normalizer
from bert_tf.tokenization.wordpiece import FullTokenizer
from tests.tokenization import tokenization_oracle as oracle

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
LETTERS = "abeéσςΣ中.,[]#!ab mask\u1112\u1161\u11ab"
# Few letters, so that many words are unknown; and longer tokens.
_TOKENS = (
    "[PAD] [UNK] [CLS] [SEP] a ##a b ##b é ##é e ##e σ ##σ ς ##ς 中 ab ##ab "
    "aab ##éa Σ ##Σ [ ] mask un ##want ##ed ## # . ' \u1112 ##\u1161 ##\u11ab "
    "##\u1161\u11ab ##\U0001d165\u302e ##\u302e"
)
SMALL = _TOKENS.split()
INPUTS = ("input_ids", "input_mask", "segment_ids")
SLOW = pytest.mark.slow


def vocabulary(characters=LETTERS):
    """Special tokens, then each character at the start and inside of words."""
    letters = [c for c in dict.fromkeys(characters) if c.strip()]
    return SPECIAL + letters + [f"##{c}" for c in letters] + ["ab", "##ab"]


def assert_agree(vocab, texts, *casing):
    """Compares ids and offsets; texts may be strings or bytes."""
    tokenizer = FullTokenizer(vocab, *casing)
    layer = BertTokenizer(vocab, *casing)
    batch = tf.constant(texts, tf.string)
    in_graph = tf.function(layer.tokenize_with_offsets, autograph=False)
    tokens = in_graph(batch)
    for column in tokens:
        assert column.dtype == tf.int32
        assert column.shape.rank == 2
    assert layer.tokenize(batch).to_list() == tokens.ids.to_list()
    columns = [column.to_list() for column in tokens]
    for text, ids, *found in zip(texts, *columns, strict=True):
        if isinstance(text, bytes):
            text = text.decode("utf-8", errors="ignore")
        expected = tokenizer.tokenize_with_offsets(text)
        offsets = list(zip(*found, strict=True))
        assert offsets == [token[2:] for token in expected], ascii(text)
        assert ids == tokenizer.encode(text), ascii(text)
    return tokenizer


@pytest.mark.parametrize(
    ("do_lower_case", "strip_accents"),
    [
        pytest.param(*casing, marks=[] if casing[1] is None else [SLOW])
        for casing in oracle.VARIANTS
    ],
)
def test_some_of_all_characters_and_hostile_texts(do_lower_case, strip_accents):
    """The slow tests in tests/parity/test_tokenizers.py have all characters."""
    casing = do_lower_case, strip_accents
    codes = [*range(0, 0x30000, 307), *range(0x30000, 0x110000, 7993)]
    some = [chr(code) for code in codes if not 0xD800 <= code < 0xE000]
    texts = [oracle.contexts(c, many=True) for c in some]
    texts += oracle.hostile_texts(random.Random(29), 601)
    texts += [" ".join(texts[start::997]) for start in range(29)]
    # One vocabulary can spell every word.
    letters = sorted(set().union(*map(Normalizer(*casing), texts)))
    tokenizer = assert_agree(vocabulary(letters), texts, *casing)
    assert not any("[UNK]" in tokenizer.tokenize(text) for text in texts[:97])
    if casing == (True, None):
        assert_agree(SMALL, texts[::3], *casing)


@pytest.mark.parametrize(
    ("text", "spans"),
    [
        ("e\u0301\u0327a", [(0, 3), (3, 4)]),
        ("e\0\u0301", [(0, 1)]),  # Separated by a deleted character.
        ("e\u0301\0\u0301a", [(0, 2), (4, 5)]),
        ("한\u0301", [(0, 1), (0, 1), (0, 2)]),
        (".\u0301 \u0301a", [(0, 2), (4, 5)]),
        ("a\u302e\U0001d165", [(0, 1), (2, 3), (1, 2)]),  # NFD reorders them.
    ],
)
def test_accents_belong_to_the_character_before(text, spans):
    for texts in ([text], ["\u0301a", text]):
        _, starts, ends = GraphNormalizer(True, None).align(tf.constant(texts))
        got = zip(starts.numpy(), ends.numpy(), strict=True)
        assert list(got)[-len(spans) :] == spans
    rows = zip(*Normalizer().align(text), strict=True)
    assert [(start, end) for c, start, end in rows if c != " "] == spans


def test_invalid_utf8_is_dropped():
    # Lead and continuation bytes, overlong forms, surrogates, beyond U+10FFFF.
    parts = (
        b"a,\x80,\x9f,\xa0,\xbf,\xc0,\xc3,\xe0,\xe4,\xed,\xef,\xf0,\xf4,\xf5"
    )
    parts = [*parts.split(b","), b"\xff", b" ", b"\xcc", b"\x81"]
    rng = random.Random(43)
    texts = [b"".join(rng.choices(parts, k=9)) for _ in range(1_009)]
    texts += [rng.randbytes(13) for _ in range(1_009)]
    texts += ["\ufeffa\ufeff\0\ufffe\uffff\ufffd\r\n\U0010ffff中".encode()]
    assert_agree(SMALL, texts)
    texts += map(b"".join, itertools.product(parts, repeat=3))
    expected = [text.decode(errors="ignore") for text in texts]
    got = drop_invalid_utf8(tf.constant(texts)).numpy()
    assert [text.decode() for text in got] == expected


@pytest.mark.parametrize("max_seq_length", [None, 3, 8, 23])
def test_sequences_are_packed_as_in_python(max_seq_length):
    vocab = ["a", *vocabulary("b中")]  # [PAD] is not 0.
    layer = BertTokenizer(vocab, max_seq_length=max_seq_length)
    encode = FullTokenizer(vocab).encode
    first = ["a b a b a b a", "a", "", "É中", "b" * 7, "a , a"]
    second = ["b", "a b a b a b", "a a a a a", "", "b" * 7, "\0"]
    ids = [layer.tokenize(first), layer.tokenize(second)]
    for batches, seconds in [
        ([layer(first), layer.pack(ids[:1])], [None] * 6),
        ([layer((tf.constant(first), second)), layer.pack(ids)], second),
        # A second text without tokens is missing.
        (
            [layer.pack(ids, empty_second=False)],
            [text if text.strip("\0") else None for text in second],
        ),
    ]:
        expected = [
            packing.pack(
                encode(a),
                None if b is None else encode(b),
                max_seq_length or 99,
                cls_id=3,
                sep_id=4,
            )
            for a, b in zip(first, seconds, strict=True)
        ]
        size = max_seq_length or max(len(row) for row, _ in expected)
        for batch in batches:
            for values in batch.values():
                assert values.dtype == tf.int32
                assert values.shape == (len(first), size)
            rows = zip(*(batch[name].numpy() for name in INPUTS), strict=True)
            for found, (row, segments) in zip(rows, expected, strict=True):
                padding = [0] * (size - len(row))
                assert found[0].tolist() == row + [1] * len(padding)
                assert found[1].tolist() == [1] * len(row) + padding
                assert found[2].tolist() == segments + padding


@pytest.mark.parametrize("max_seq_length", [None, 6])
def test_padding_to_the_longest_of_the_batch(max_seq_length):
    arguments = {"max_seq_length": max_seq_length}
    layer = BertTokenizer(vocabulary(), **arguments)
    short = BertTokenizer(vocabulary(), **arguments, padding="longest")
    in_graph = short
    if max_seq_length:
        signature = [tf.TensorSpec([None], tf.string)]
        in_graph = tf.function(short, signature, autograph=False)
    for texts in (["a", "a a", ""], ["a", "a b a b a b"], [""]):
        expected = layer(texts)
        length = max(np.sum(expected["input_mask"], axis=1))
        traced = in_graph(tf.constant(texts))
        for name, values in short(texts).items():
            assert values.dtype == tf.int32
            np.testing.assert_array_equal(values, expected[name][:, :length])
            np.testing.assert_array_equal(values, traced[name])
    assert short([])["input_ids"].shape[0] == 0
    assert short("a")["input_ids"].shape == (3,)
    ids = short(keras.Input((), dtype="string"))["input_ids"]
    assert ids.shape == (None, None)


@pytest.mark.parametrize("max_seq_length", [None, 7])
def test_scalars_and_empty_batches(max_seq_length):
    layer = BertTokenizer(vocabulary(), max_seq_length=max_seq_length)
    tail = [] if max_seq_length is None else [0] * 2
    ids = [2, *layer.tokenize("ab, a"), 3, *tail]
    assert list(layer("ab, a")["input_ids"]) == ids
    pair = layer(("a", b"b"))["segment_ids"]
    assert list(pair)[:5] == [0, 0, 0, 1, 1]
    for inputs in ([], tf.constant([], tf.string), ([], [])):
        assert layer(inputs)["input_ids"].shape == (0, max_seq_length or 1)
    assert layer.tokenize("").shape == (0,)
    for column in layer.tokenize_with_offsets(""):
        assert column.shape == (0,)
    for texts in ([], ["", " \0", "\u0301"]):
        texts = tf.constant(texts, tf.string)
        offsets = layer.tokenize_with_offsets(texts)
        for column in (layer.tokenize(texts), *offsets):
            assert column.to_list() == [[]] * len(texts)


def test_a_token_can_be_kept():
    tokens = [*vocabulary(), "[MASK]"]
    tokenizer, layer = FullTokenizer(tokens), BertTokenizer(tokens)
    rng = random.Random(61)
    parts = ["[MASK]", "[MASK]", "[mask]", "[MA", "SK]", "a", "Σ", " ", "é["]
    texts = ["".join(rng.choices(parts, k=k % 9)) for k in range(301)]
    texts.append("a[MA\udcffSK]")
    expected = []
    for text in texts:
        ids = []
        for part in text.replace("\udcff", "").split("[MASK]"):
            ids += [tokens.index("[MASK]"), *tokenizer.encode(part)]
        expected.append(ids[1:])
    texts = [text.encode(errors="surrogateescape") for text in texts]
    assert layer.tokenize(texts, keep="[MASK]").to_list() == expected
    assert layer.tokenize([], keep="[MASK]").to_list() == []
    assert layer.tokenize("", "[MASK]").shape == (0,)


def test_config_round_trip():
    for arguments in (
        {"do_lower_case": False, "max_seq_length": 13, "padding": "longest"},
        {"strip_accents": False, "name": "t"},
    ):
        layer = BertTokenizer(vocabulary(), **arguments)
        config = layer.get_config()
        assert config.items() >= arguments.items()
        copy = BertTokenizer.from_config(config)
        assert copy.get_config() == config
        text = ["Éa ab\u0301, AΣ"]
        for name, values in layer(text).items():
            np.testing.assert_array_equal(copy(text)[name], values)


PAIRS = [("ab", "中"), ("a b", ""), (b"b", "a")]


def test_forms_of_a_batch_of_pairs():
    layer = BertTokenizer(vocabulary(), max_seq_length=7)
    columns = tuple(map(list, zip(*PAIRS, strict=True)))
    expected = layer(columns)
    data = tf.data.Dataset.from_tensor_slices(columns)
    rows = data.map(lambda *pair: layer(pair)).batch(3)
    # Keras passes the tensors of a tuple as a list.
    tensors = [tf.constant(texts) for texts in columns]
    for found in (layer(PAIRS), layer(tensors), *rows):
        for name, values in expected.items():
            np.testing.assert_array_equal(found[name], values)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([["a", "b"], ["b", "a"]], r"must be a text, .*got \[\['a', 'b'\]"),
        ([("a", "b"), ("a",)], r"must be a text, .*got .*\('a',\)\]"),
        ((["a", "b"], ["a"]), r"same number.*shapes \(2,\) and \(1,\)\.$"),
        (("a", "b", "c"), r"got \('a', 'b', 'c'\)\.$"),
        (None, r"got None\.$"),
        (np.array([1, 2], "i"), r"got array\(\[1, 2\], dtype=int32\)\.$"),
        (
            keras.Input((2,), dtype="string"),
            r"got TensorShape\(\[None, 2\]\)\.$",
        ),
    ],
)
def test_ambiguous_inputs(inputs, message):
    layer = BertTokenizer(vocabulary())
    with pytest.raises(InputError, match=message):
        layer(inputs)


@pytest.mark.parametrize(
    ("vocab", "arguments", "message"),
    [
        (["[UNK]", "a"], {}, r"not \[PAD\], \[CLS\] and \[SEP\]"),
        (SPECIAL, {"max_seq_length": 2}, "max_seq_length must be .*; got 2"),
        (SPECIAL, {"padding": "none"}, "max_length or longest; got 'none'"),
    ],
)
def test_unusable_arguments(vocab, arguments, message):
    with pytest.raises(InputError, match=message):
        BertTokenizer(vocab, **arguments)


def test_a_token_too_long_for_the_graph():
    layer = BertTokenizer([*SPECIAL, "a" * 300])
    assert list(layer("a")["input_ids"]) == [2, 1, 3]
    with pytest.raises(InputError, match=r"cannot use .*exceeds"):
        tf.function(layer.tokenize, autograph=False)(tf.constant(["a"]))


def test_the_first_call_needs_no_tables(monkeypatch):
    """They take more than a second."""
    monkeypatch.delattr(normalization, "replacement_table")
    layer = BertTokenizer(vocabulary())
    texts = ["É a\u0301", "中"]
    batches = texts, np.array(texts), [text.encode() for text in texts]
    for batch in (*batches, tf.constant(texts)):
        assert layer((batch, texts))["input_ids"].shape == (2, 7)


def test_functional_model_in_a_keras_file(tmp_path):
    inputs = keras.Input((), dtype="string"), keras.Input((), dtype="string")
    layer = BertTokenizer(vocabulary(), max_seq_length=11)
    tokens = layer(inputs)
    assert tokens["input_mask"].shape == (None, 11)
    assert tokens["input_mask"].dtype == "int32"
    assert not layer.supports_jit  # XLA has no strings.
    keras.Model(inputs, tokens).save(tmp_path / "model.keras")
    copy = keras.models.load_model(tmp_path / "model.keras")
    texts = tf.constant(["ab, É", "AΣ"])
    found = copy.predict((texts, texts[::-1]), verbose=0)
    for name, values in layer((texts, texts[::-1])).items():
        np.testing.assert_array_equal(found[name], values)


@pytest.mark.slow
def test_tensorflow_serving_has_all_ops_of_the_graph(caplog):
    layer = BertTokenizer(vocabulary())

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def everything(text):
        ids, starts, ends = layer.tokenize_with_offsets(text)
        return {
            "ids": ids.to_tensor(),
            "starts": starts.to_tensor(),
            "ends": ends.to_tensor(),
            "kept": layer.tokenize(text, keep="ab").to_tensor(),
            "valid": drop_invalid_utf8(text),
            **layer((text, text)),
        }

    graph = everything.get_concrete_function().graph.as_graph_def()
    assert "AutoGraph could not" not in caplog.text
    nodes = list(graph.node)
    for inner in graph.library.function:
        nodes += inner.node_def
    foreign = {node.op for node in nodes if not hasattr(tf.raw_ops, node.op)}
    assert foreign == {"FastWordpieceTokenizeWithOffsets"}
    # The tables are captured: no function contains a copy.
    assert max(node.ByteSize() for node in nodes) < 10_000
