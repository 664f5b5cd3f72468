"""The tokenizer in the graph gives the ids and offsets of the one in Python."""

import itertools
import random

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.tokenization import normalization, packing
from bert_tf.tokenization.graph import (
    BertTokenizer,
    GraphNormalizer,
    Tokens,
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
VOCABS = [
    "bert-base-uncased",
    "bert-base-cased",
    "bert-base-multilingual-cased",
    "bert-base-chinese",
    "kr-bert-char16424",
]
ENDS = ["", "", " ", "\n", "\u0301", "\u200b", ".", "Σ", "\U0001f917"]
GPU = tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU")
VARIANTS = pytest.mark.parametrize(
    ("do_lower_case", "strip_accents"), oracle.VARIANTS
)


def vocabulary(characters=LETTERS):
    """Special tokens, then each character at the start and inside of words."""
    letters = [c for c in dict.fromkeys(characters) if c.strip()]
    return SPECIAL + letters + [f"##{c}" for c in letters] + ["ab", "##ab"]


def rows_of(tokens):
    """[(id, start, end), ...] of each text."""
    columns = [column.to_list() for column in tokens]
    return [list(zip(*row, strict=True)) for row in zip(*columns, strict=True)]


def assert_agree(vocab, texts, *casing):
    """Compares ids and offsets; texts may be strings or bytes."""
    tokenizer, layer = (
        FullTokenizer(vocab, *casing),
        BertTokenizer(vocab, *casing),
    )
    batch = tf.constant(texts, tf.string)
    ids = layer.tokenize(batch).to_list()
    in_graph = tf.function(layer.tokenize_with_offsets, autograph=False)
    tokens = in_graph(batch)
    for column in tokens:
        assert column.dtype == tf.int32
        assert column.shape.rank == 2
    for text, row, got in zip(texts, ids, rows_of(tokens), strict=True):
        if isinstance(text, bytes):
            text = text.decode("utf-8", errors="ignore")
        expected = tokenizer.tokenize_with_offsets(text)
        assert got == [token[1:] for token in expected], ascii(text)
        assert row == tokenizer.encode(text), ascii(text)
    return tokenizer


def assert_agree_to_the_letter(texts, *casing):
    """Compares with a vocabulary that can spell every word, and with SMALL."""
    normalizer = Normalizer(*casing)
    letters = sorted({c for text in texts for c in normalizer(text)})
    tokenizer = assert_agree(vocabulary(letters), texts, *casing)
    assert not any("[UNK]" in tokenizer.tokenize(text) for text in texts[:97])
    assert_agree(SMALL, texts[::3], *casing)


def characters():
    """All characters that UTF-8 can hold: (assigned, others)."""
    assigned = normalization.assigned_characters() - oracle.CJK
    others = set(oracle.ALL) - assigned - set(oracle.ALL[0xD800:0xE000])
    return sorted(assigned), sorted(others)


@VARIANTS
def test_some_of_all_characters_and_hostile_texts(do_lower_case, strip_accents):
    """The slow test_every_assigned_character has all of the first."""
    assigned, others = characters()
    texts = [oracle.contexts(c, many=True) for c in assigned[::301]]
    texts += [oracle.contexts(c, many=False) for c in others[::1997]]
    texts += oracle.hostile_texts(random.Random(29), 2_003)
    texts += [" ".join(texts[start::997]) for start in range(97)]
    assert_agree_to_the_letter(texts, do_lower_case, strip_accents)


@pytest.mark.slow
@VARIANTS
def test_every_assigned_character(do_lower_case, strip_accents):
    """In many contexts; tests/parity has all code points in a few."""
    step = 1 if (do_lower_case, strip_accents) == (True, None) else 5
    texts = [oracle.contexts(c, many=True) for c in characters()[0][::step]]
    casing = do_lower_case, strip_accents
    vocab = vocabulary(sorted(set().union(*map(Normalizer(*casing), texts))))
    ids = BertTokenizer(vocab, *casing).tokenize(tf.constant(texts)).to_list()
    tokenizer = FullTokenizer(vocab, *casing)
    assert [
        ascii(text)
        for text, got in zip(texts, ids, strict=True)
        if got != tokenizer.encode(text)
    ] == []


@VARIANTS
def test_normalization_and_the_origin_of_characters(
    do_lower_case, strip_accents
):
    normalizer = Normalizer(do_lower_case, strip_accents)
    in_graph = GraphNormalizer(do_lower_case, strip_accents)
    texts = list(oracle.hostile_texts(random.Random(41), 2_003))
    texts += ["", "\u0301", "a", "\u0301a\u0301", "\0", ""]
    aligned = tf.function(in_graph.align, autograph=False)(tf.constant(texts))
    for made in (aligned.text, in_graph(tf.constant(texts))):
        words = tf.strings.split(made).to_list()
        for text, got in zip(texts, words, strict=True):
            expected = normalizer(text).encode().split(b" ")
            assert got == list(filter(None, expected)), ascii(text)
    assert aligned.starts.dtype == aligned.ends.dtype == tf.int32
    spans = zip(aligned.starts.numpy(), aligned.ends.numpy(), strict=True)
    assert list(spans) == [
        tuple(span)
        for text in texts
        for character, *span in zip(*normalizer.align(text), strict=True)
        if character != " "
    ]
    for nothing in ([], [""], ["", " ", "\0"]):
        nothing = tf.constant(nothing, tf.string)
        aligned = in_graph.align(nothing)
        assert aligned.text.shape == in_graph(nothing).shape == nothing.shape
        assert aligned.starts.shape == aligned.ends.shape == (0,)


@pytest.mark.parametrize(
    ("text", "spans"),
    [
        ("e\u0301\u0327a", [(0, 3), (3, 4)]),
        ("e\0\u0301", [(0, 1)]),  # Separated by a deleted character.
        ("e\u0301\0\u0301a", [(0, 2), (4, 5)]),
        ("한\u0301", [(0, 1), (0, 1), (0, 2)]),
        (".\u0301 \u0301a", [(0, 2), (4, 5)]),
        ("İ\u0301", [(0, 2)]),
        ("a\u302e\U0001d165", [(0, 1), (2, 3), (1, 2)]),  # NFD reorders them.
    ],
)
def test_accents_belong_to_the_character_before(text, spans):
    for texts in ([text], ["\u0301a", text]):
        _, starts, ends = GraphNormalizer(True, None).align(tf.constant(texts))
        got = zip(starts.numpy(), ends.numpy(), strict=True)
        assert list(got)[-len(spans) :] == spans
    normalized, *ends = Normalizer().align(text)
    rows = zip(normalized, *ends, strict=True)
    assert [(start, end) for c, start, end in rows if c != " "] == spans


@pytest.mark.parametrize("name", VOCABS)
def test_published_vocabularies(shared_data, name):
    path = shared_data / "vocab" / f"{name}-vocab.txt"
    rng = random.Random(31)
    words = [t.removeprefix("##") for t in FullTokenizer(path).inv_vocab]
    texts = [
        "".join(rng.choice(words) + rng.choice(ENDS) for _ in range(29))
        for _ in range(199)
    ]
    assert_agree(path, texts, "-cased" not in name)


def test_real_texts(shared_data):
    lines = []
    for name in (
        "pretraining_text/gutenberg/pg174.txt",
        "pretraining_text/wikitext-2-raw/wiki.test.raw",
        "nsmc/mini/ratings_train.txt",
    ):
        lines += (shared_data / name).read_bytes().split(b"\n")[::11]
    assert_agree(shared_data / "vocab/bert-base-uncased-vocab.txt", lines)


def test_invalid_utf8_is_dropped():
    # Lead and continuation bytes, overlong forms, surrogates, beyond U+10FFFF.
    parts = (
        b"a,\x80,\x9f,\xa0,\xbf,\xc0,\xc3,\xe0,\xe4,\xed,\xef,\xf0,\xf4,\xf5"
    )
    parts = [*parts.split(b","), b"\xff", b" ", b"\xcc", b"\x81"]
    rng = random.Random(43)
    texts = list(map(b"".join, itertools.product(parts, repeat=3)))
    texts += [b"".join(rng.choices(parts, k=9)) for _ in range(1_009)]
    texts += [rng.randbytes(13) for _ in range(1_009)]
    texts += ["\ufeffa\ufeff\0\ufffe\uffff\ufffd\r\n\U0010ffff中".encode()]
    expected = [text.decode(errors="ignore") for text in texts]
    got = drop_invalid_utf8(tf.constant(texts)).numpy()
    assert [text.decode() for text in got] == expected
    assert drop_invalid_utf8(tf.constant([[b"a\xff"]])).numpy() == [[b"a"]]


def test_offsets_are_characters_of_valid_utf8():
    parts = b"a,b,\x80,\xbf,\xc3,\xe0,\xe4\xb8,\xed\xa0,\xf0,\xff, ,\xcc\x81"
    parts = [*parts.split(b","), "é".encode(), "中".encode(), "🤗".encode()]
    rng = random.Random(59)
    texts = [b"".join(rng.choices(parts, k=9)) for _ in range(2_003)]
    assert_agree(SMALL, texts)
    _, starts, ends = BertTokenizer(SMALL).tokenize_with_offsets(texts)
    rows, starts, ends = starts.value_rowids(), starts.values, ends.values
    cuts = tf.strings.substr(
        tf.gather(drop_invalid_utf8(tf.constant(texts)), rows),
        starts,
        ends - starts,
        unit="UTF8_CHAR",
    )
    spans = zip(rows.numpy(), starts.numpy(), ends.numpy(), strict=True)
    assert [cut.decode() for cut in cuts.numpy()] == [
        texts[row].decode(errors="ignore")[start:end]
        for row, start, end in spans
    ]


@pytest.mark.parametrize("letter", ["a", "é", "中", "\U0001f917"])
def test_words_over_200_characters_are_unknown(letter):
    vocab = [*SMALL, letter + letter, f"##{letter}{letter}"]
    sizes = (1, 99, 100, 101, 199, 200, 201, 10_007)
    texts = [f"ab {letter * size}, ab" for size in sizes]
    texts += [f" é{letter * size}" + 99 * "\u0301" + "x" for size in sizes]
    assert_agree(vocab, texts)
    # The length counts after normalization.
    texts = ["e\u0301" * 200, "e\u0301" * 201, "한" * 66, "한" * 67, "\0" * 300]
    assert_agree(vocabulary(LETTERS + letter), texts)


def test_an_example_of_offsets():
    layer = BertTokenizer([*SPECIAL, *oracle.EXAMPLE_VOCAB])
    tokens = layer.tokenize_with_offsets(oracle.EXAMPLE)
    assert isinstance(tokens, Tokens)
    assert [
        (layer.vocabulary[number], oracle.EXAMPLE[start:end])
        for number, start, end in zip(
            *(column.numpy() for column in tokens), strict=True
        )
    ] == oracle.EXAMPLE_TOKENS


@pytest.mark.parametrize("max_seq_length", [None, 3, 4, 8, 11, 23])
@pytest.mark.parametrize("is_pair", [False, True])
def test_sequences_are_packed_as_in_python(max_seq_length, is_pair):
    vocab = vocabulary()
    layer = BertTokenizer(vocab, max_seq_length=max_seq_length)
    encode = FullTokenizer(vocab).encode
    first = ["a b a b a b a", "a", "", "É中", "ab" * 7, "a , a"]
    second = ["b", "a b a b a b", "a a a a a", "", "b" * 7, "!"]
    expected = [
        packing.pack(
            encode(a),
            encode(b) if is_pair else None,
            max_seq_length or 99,
            cls_id=2,
            sep_id=3,
        )
        for a, b in zip(first, second, strict=True)
    ]
    size = max_seq_length or max(len(ids) for ids, _ in expected)
    ids = [layer.tokenize(first), layer.tokenize(second)]
    for batch in (
        layer((tf.constant(first), second) if is_pair else first),
        layer.pack(ids if is_pair else ids[:1]),
    ):
        for values in batch.values():
            assert values.dtype == tf.int32
            assert values.shape == (len(first), size)
        for index, (input_ids, segments) in enumerate(expected):
            blank = [0] * (size - len(input_ids))
            mask = [1] * len(input_ids) + blank
            assert list(batch["input_ids"][index]) == input_ids + blank
            assert list(batch["segment_ids"][index]) == segments + blank
            assert list(batch["input_mask"][index]) == mask


@pytest.mark.parametrize("max_seq_length", [None, 3, 4, 8, 11])
def test_an_empty_second_text_can_be_left_out(max_seq_length):
    layer = BertTokenizer(vocabulary(), max_seq_length=max_seq_length)
    first = ["a b a b a b a b a b", "", "a", "a b a b a", "a b a b a b a"]
    second = ["", " ", "", "b", "\0"]
    ids = [layer.tokenize(first), layer.tokenize(second)]
    batch = layer.pack(ids, empty_second=False)
    pairs = zip(*(part.to_list() for part in ids), strict=True)
    for row, (a, b) in enumerate(pairs):
        input_ids, segment_ids = packing.pack(
            a, b or None, max_seq_length or 99, cls_id=2, sep_id=3
        )
        length = sum(batch["input_mask"][row])
        assert list(batch["input_ids"][row][:length]) == input_ids
        assert list(batch["segment_ids"][row][:length]) == segment_ids


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
    empty = layer.tokenize([])
    assert layer.pack([empty])["input_ids"].shape == (0, max_seq_length or 1)
    assert empty.to_list() == []
    assert layer.tokenize(["", " "]).to_list() == [[], []]
    assert layer.tokenize("").shape == (0,)
    for column in layer.tokenize_with_offsets(""):
        assert column.shape == (0,)
    for tokenize in (
        layer.tokenize_with_offsets,
        tf.function(layer.tokenize_with_offsets),
    ):
        for column in tokenize(tf.constant([], tf.string)):
            assert column.to_list() == []
        for column in tokenize(tf.constant(["", " \0", "\u0301"])):
            assert column.to_list() == [[], [], []]


def test_a_token_can_be_kept():
    tokens = [*vocabulary(), "[MASK]"]
    tokenizer, layer = FullTokenizer(tokens), BertTokenizer(tokens)
    rng = random.Random(61)
    parts = ["[MASK]", "[MASK]", "[mask]", "[MA", "SK]", "a", "Σ", " ", "é["]
    texts = ["".join(rng.choices(parts, k=k % 9)) for k in range(1_001)]
    expected = []
    for text in texts:
        ids = []
        for part in text.split("[MASK]"):
            ids += [tokens.index("[MASK]"), *tokenizer.encode(part)]
        expected.append(ids[1:])
    tokenize = tf.function(lambda texts: layer.tokenize(texts, keep="[MASK]"))
    assert tokenize(tf.constant(texts)).to_list() == expected
    assert tokenize(tf.constant([], tf.string)).to_list() == []
    assert list(layer.tokenize(b"a[MA\xffSK]", "[MASK]")) == [
        *layer.tokenize("a"),
        len(tokens) - 1,
    ]
    assert layer.tokenize("", "[MASK]").shape == (0,)
    for keep in "", "[MUSK]":
        with pytest.raises(InputError, match="keep must be in the vocabulary"):
            layer.tokenize("a", keep)


def test_padding_is_the_pad_token():
    layer = BertTokenizer(["a", *SPECIAL])
    ids = layer(["a", "a a"])["input_ids"]
    np.testing.assert_array_equal(ids, [[3, 0, 4, 1], [3, 0, 0, 4]])


@pytest.mark.parametrize("max_seq_length", [None, 6, 9])
def test_padding_to_the_longest_of_the_batch(max_seq_length):
    arguments = {"max_seq_length": max_seq_length}
    layer = BertTokenizer(vocabulary(), **arguments)
    short = BertTokenizer(vocabulary(), **arguments, padding="longest")
    for texts in (["a", "a a", ""], ["a", "a b a b a b"], [""]):
        expected = layer(texts)
        length = max(np.sum(expected["input_mask"], axis=1))
        for name, values in short(texts).items():
            assert values.dtype == tf.int32
            np.testing.assert_array_equal(values, expected[name][:, :length])
    assert short([])["input_ids"].shape[0] == 0
    assert short("a")["input_ids"].shape == (3,)
    ids = short(keras.Input((), dtype="string"))["input_ids"]
    assert ids.shape == (None, None)


def test_in_a_data_set():
    layer = BertTokenizer(vocabulary(), max_seq_length=7)
    texts = tf.data.Dataset.from_tensor_slices(["ab é", "Ab e", "a"])
    one = np.stack([b["input_ids"] for b in texts.map(layer)])
    batch = next(iter(texts.batch(3).map(layer)))["input_ids"]
    np.testing.assert_array_equal(one, batch)
    np.testing.assert_array_equal(batch[0], batch[1])


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"do_lower_case": False},
        {"strip_accents": False, "max_seq_length": 13, "name": "t"},
        {"max_seq_length": 13, "padding": "longest"},
    ],
)
def test_config_round_trip(arguments):
    layer = BertTokenizer(vocabulary(), **arguments)
    config = layer.get_config()
    assert config.items() >= arguments.items()
    copy = BertTokenizer.from_config(config)
    assert copy.get_config() == config
    text = ["Éa ab\u0301, AΣ"]
    assert copy.tokenize(text).to_list() == layer.tokenize(text).to_list()


PAIRS = [("ab", "中"), ("a b", ""), (b"b", "a")]


def test_a_list_of_tuples_is_a_batch_of_pairs():
    layer = BertTokenizer(vocabulary(), max_seq_length=7)
    columns = tuple(map(list, zip(*PAIRS, strict=True)))
    expected = layer(columns)
    mapped = tf.data.Dataset.range(1).map(lambda _: layer(list(PAIRS)))
    # Keras passes the tensors of a tuple as a list.
    tensors = [tf.constant(texts) for texts in columns]
    for found in (layer(PAIRS), next(iter(mapped)), layer(tensors)):
        for name, values in expected.items():
            np.testing.assert_array_equal(found[name], values)
    one = layer(PAIRS[0])
    np.testing.assert_array_equal(one["input_ids"], expected["input_ids"][0])


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([["a", "b"], ["b", "a"]], r"got a list of list\.$"),
        ([("a", "b"), "a"], r"got a list of str and tuple\.$"),
        (["a", np.array("b")], r"got a list of ndarray and str\.$"),
        ([("a", "b"), ("a",)], r"^Pair 1 .*tuple of two strings.*\('a',\)"),
        ([(["a"], ["b"])], r"^Pair 0 .*tuple of two.*\(\['a'\], \['b'\]\)"),
        ((["a", "b"], ["a"]), r"as many.*shapes \(2,\) and \(1,\)\.$"),
        (("a", ["b"]), r"as many.*shapes \(\) and \(1,\)\.$"),
        (("a", "b", "c"), r"got a tuple of 3\.$"),
        ([["a"], ["b"], ["c"]], r"tuples of two strings"),
        (np.array(PAIRS, str), r"got the shape \(3, 2\)\.$"),
        (keras.Input((2,), dtype="string"), r"got the shape \(None, 2\)\.$"),
    ],
)
def test_ambiguous_inputs(inputs, message):
    layer = BertTokenizer(vocabulary())
    with pytest.raises(InputError, match=message) as raised:
        layer(inputs)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("is_pair", [False, True])
def test_functional_model_in_a_keras_file(tmp_path, is_pair):
    inputs = keras.Input((), dtype="string"), keras.Input((), dtype="string")
    inputs = inputs if is_pair else inputs[0]
    tokens = BertTokenizer(vocabulary(), max_seq_length=11)(inputs)
    assert tokens["input_mask"].shape == (None, 11)
    assert tokens["input_mask"].dtype == "int32"
    model = keras.Model(inputs, tokens)
    model.save(tmp_path / "model.keras")
    copy = keras.models.load_model(tmp_path / "model.keras")
    texts = tf.constant(["ab, É", "AΣ"])
    batch = (texts, texts[::-1]) if is_pair else texts
    expected = model(batch)
    for name, values in copy.predict(batch, verbose=0).items():
        np.testing.assert_array_equal(values, expected[name])
        assert name == "input_mask" or values.any() == (
            is_pair or name == "input_ids"
        )


def test_keras_does_not_compile_strings_with_xla(monkeypatch):
    devices = [*tf.config.list_physical_devices(), GPU]
    monkeypatch.setattr(
        tf.config, "list_physical_devices", lambda *unused: devices
    )
    text = keras.Input((), dtype="string")
    tokens = BertTokenizer(vocabulary(), max_seq_length=11)(text)
    vectors = keras.layers.Embedding(99, 2)(tokens["input_ids"])
    pooled = keras.layers.GlobalAveragePooling1D()(vectors)
    model = keras.Model(text, pooled)
    model.compile("sgd", "mse")
    assert not model.jit_compile
    outer = keras.Model(text, keras.layers.Dense(1)(model(text)))
    outer.compile("sgd", "mse")
    assert not outer.jit_compile
    texts = tf.constant(["ab, É", "AΣ"])
    outer.fit(texts, np.ones((2, 1)), verbose=0)
    assert outer.predict(texts, verbose=0).shape == (2, 1)


def test_saved_model(tmp_path):
    module = tf.Module()
    module.layer = layer = BertTokenizer(vocabulary())
    signature = [tf.TensorSpec([None], tf.string)]
    module.serve = tf.function(lambda text: layer(text), signature)
    function = module.serve.get_concrete_function()
    tf.saved_model.save(module, tmp_path, signatures=function)
    assert (tmp_path / "saved_model.pb").stat().st_size < 1_000_000
    serve = tf.saved_model.load(tmp_path).signatures["serving_default"]
    texts = tf.constant(["ab, É", "AΣ \u302e\U0001d165", ""])
    for name, values in layer(texts).items():
        np.testing.assert_array_equal(serve(texts)[name], values)


def test_tensorflow_serving_has_all_ops_of_the_graph():
    layer = BertTokenizer(vocabulary())

    def everything(text):
        return (
            layer((text, text)),
            layer.tokenize_with_offsets(text),
            layer.pack([layer.tokenize(text, keep="ab")]),
            drop_invalid_utf8(text),
        )

    spec = tf.TensorSpec([None], tf.string)
    graph = tf.function(everything).get_concrete_function(spec).graph
    nodes = list(graph.as_graph_def().node)
    for inner in graph.as_graph_def().library.function:
        nodes += inner.node_def
    foreign = {node.op for node in nodes if not hasattr(tf.raw_ops, node.op)}
    assert foreign == {"FastWordpieceTokenizeWithOffsets"}


@pytest.mark.parametrize(
    ("vocab", "arguments", "message"),
    [
        (["[UNK]", "a"], {}, r"not \[PAD\], \[CLS\] and \[SEP\]"),
        ([*SPECIAL, "a", "a"], {}, "list of tokens:6: the token 'a' is also"),
        ([*SPECIAL, "a" * 300], {}, "exceeds"),
        (SPECIAL, {"max_seq_length": 2}, "max_seq_length must be .*; got 2"),
        (SPECIAL, {"padding": "none"}, "max_length or longest; got 'none'"),
        ("nowhere.txt", {}, "No such file"),
    ],
)
def test_unusable_arguments(vocab, arguments, message):
    with pytest.raises(InputError, match=message) as raised:
        BertTokenizer(vocab, **arguments)
    assert "\n" not in str(raised.value)
