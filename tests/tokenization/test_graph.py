"""The tokenizer in the graph gives the ids of the one in Python."""

import functools
import random

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.tokenization import normalization, packing
from bert_tf.tokenization.graph import BertTokenizer
from bert_tf.tokenization.graph_normalization import drop_invalid_utf8
from bert_tf.tokenization.wordpiece import FullTokenizer
from tests.tokenization import tokenization_oracle as oracle

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
LETTERS = "abeéσςΣ中.,[]#!ab mask\u1112\u1161\u11ab"
VOCABS = [
    "bert-base-uncased",
    "bert-base-cased",
    "bert-base-multilingual-cased",
    "bert-base-chinese",
    "kr-bert-char16424",
]
GPU = tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU")
VARIANTS = pytest.mark.parametrize(
    ("do_lower_case", "strip_accents"), oracle.VARIANTS
)


def vocabulary(characters=LETTERS):
    """Special tokens, then each character at the start and inside of words."""
    letters = [c for c in dict.fromkeys(characters) if c.strip()]
    return SPECIAL + letters + [f"##{c}" for c in letters] + ["ab", "##ab"]


def write(folder, tokens):
    path = folder / "vocab.txt"
    path.write_text("\n".join(tokens), encoding="utf-8")
    return path


def assert_agree(layer, tokenizer, texts):
    """Compares ids; texts may be strings or bytes."""
    ids = tf.function(layer.tokenize)(tf.constant(texts, tf.string)).to_list()
    for text, got in zip(texts, ids, strict=True):
        if isinstance(text, bytes):
            text = text.decode("utf-8", errors="ignore")
        assert got == tokenizer.encode(text), ascii(text)


def assert_agree_to_the_letter(folder, texts, do_lower_case, strip_accents):
    """Compares with a vocabulary in which every word can be spelt."""
    normalizer = normalization.Normalizer(do_lower_case, strip_accents)
    letters = sorted({c for text in texts for c in normalizer(text)})
    path = write(folder, vocabulary(letters))
    arguments = path, do_lower_case, strip_accents
    tokenizer = FullTokenizer(*arguments)
    assert_agree(BertTokenizer(*arguments), tokenizer, texts)
    assert not any("[UNK]" in tokenizer.tokenize(text) for text in texts[:97])


@functools.cache
def scalars():
    """All characters that UTF-8 can hold: (assigned, others)."""
    assigned = normalization.assigned_characters() - oracle.CJK
    others = set(oracle.ALL) - assigned - set(oracle.ALL[0xD800:0xE000])
    return sorted(assigned), sorted(others)


@VARIANTS
def test_some_of_all_characters(tmp_path, do_lower_case, strip_accents):
    """The slow test_every_assigned_character has all of the first."""
    assigned, others = scalars()
    texts = [oracle.contexts(c, many=True) for c in assigned[::101]]
    texts += [oracle.contexts(c, many=False) for c in others[::997]]
    assert_agree_to_the_letter(tmp_path, texts, do_lower_case, strip_accents)


@pytest.mark.slow
@VARIANTS
def test_every_assigned_character(tmp_path, do_lower_case, strip_accents):
    """In many contexts; tests/parity has all code points, in a few."""
    characters = scalars()[0]
    texts = [oracle.contexts(c, many=True) for c in characters]
    assert_agree_to_the_letter(tmp_path, texts, do_lower_case, strip_accents)


@VARIANTS
def test_hostile_texts(tmp_path, do_lower_case, strip_accents):
    texts = list(oracle.hostile_texts(random.Random(29), 6_007))
    assert_agree_to_the_letter(tmp_path, texts, do_lower_case, strip_accents)


@pytest.mark.parametrize("name", VOCABS)
def test_real_vocabularies(shared_data, name):
    path = shared_data / "vocab" / f"{name}-vocab.txt"
    tokenizer = FullTokenizer(path, do_lower_case="-cased" not in name)
    layer = BertTokenizer(path, do_lower_case="-cased" not in name)
    rng = random.Random(31)
    words = [token.removeprefix("##") for token in tokenizer.inv_vocab]
    ends = ["", "", " ", "\n", "\u0301", "\u200b", ".", "Σ"]
    texts = [
        "".join(rng.choice(words) + rng.choice(ends) for _ in range(29))
        for _ in range(199)
    ]
    assert_agree(layer, tokenizer, texts)


def test_real_texts(shared_data):
    path = shared_data / "vocab" / "bert-base-uncased-vocab.txt"
    lines = []
    for name in (
        "pretraining_text/gutenberg/pg174.txt",
        "pretraining_text/wikitext-2-raw/wiki.test.raw",
        "nsmc/mini/ratings_train.txt",
    ):
        lines += (shared_data / name).read_bytes().split(b"\n")
    assert_agree(BertTokenizer(path), FullTokenizer(path), lines)


def test_bytes_that_are_not_utf8(tmp_path):
    path = write(tmp_path, vocabulary())
    layer, tokenizer = BertTokenizer(path), FullTokenizer(path)
    # Lead and continuation bytes, overlong forms, surrogates, beyond U+10FFFF.
    parts = (
        b"a,\x80,\x9f,\xa0,\xbf,\xc0,\xc3,\xe0,\xe4,\xed,\xef,\xf0,\xf4,\xf5"
    )
    parts = [*parts.split(b","), b"\xff", b" ", b"\xc3\xa9", b"\xe4\xb8\xad"]
    rng = random.Random(37)
    texts = [b"".join(rng.choices(parts, k=7)) for _ in range(3_001)]
    assert_agree(layer, tokenizer, texts)


@pytest.mark.parametrize("letter", ["a", "é", "中", "\U0001f917"])
def test_only_words_over_200_characters_are_too_long(tmp_path, letter):
    path = write(tmp_path, vocabulary(LETTERS + letter))
    pair = BertTokenizer(path, False), FullTokenizer(path, False)
    sizes = (99, 100, 101, 199, 200, 201, 1009)
    assert_agree(*pair, [f"a {letter * size} a" for size in sizes])
    assert pair[1].encode("\U0001f917" * 201) == [1]


def test_length_counts_after_normalization(tmp_path):
    path = write(tmp_path, vocabulary())
    texts = ["e\u0301" * 200, "e\u0301" * 201, "한" * 66, "한" * 67, "\0" * 300]
    assert_agree(BertTokenizer(path), FullTokenizer(path), texts)


def packed(tokenizer, texts, max_seq_length):
    """The expected sequences of one text or a pair, in Python."""
    ids = [tokenizer.encode(text) for text in texts]
    second = ids[1] if len(ids) == 2 else None
    return packing.pack(ids[0], second, max_seq_length, cls_id=2, sep_id=3)


@pytest.mark.parametrize("max_seq_length", [None, 3, 4, 8, 11, 23])
@pytest.mark.parametrize("is_pair", [False, True])
def test_packs_as_python_does(tmp_path, max_seq_length, is_pair):
    path = write(tmp_path, vocabulary())
    tokenizer = FullTokenizer(path)
    layer = BertTokenizer(path, max_seq_length=max_seq_length)
    first = ["a b a b a b a", "a", "", "É中", "ab" * 7, "a , a"]
    second = ["b", "a b a b a b", "a a a a a", "", "b" * 7, "!"]
    rows = list(zip(first, second, strict=True) if is_pair else zip(first))
    batch = layer((tf.constant(first), second) if is_pair else first)
    expected = [packed(tokenizer, row, max_seq_length or 99) for row in rows]
    size = max_seq_length or max(len(ids) for ids, _ in expected)
    for values in batch.values():
        assert values.dtype == tf.int32
        assert values.shape == (len(rows), size)
    for index, (ids, segments) in enumerate(expected):
        blank = [0] * (size - len(ids))
        assert list(batch["input_ids"][index]) == ids + blank
        assert list(batch["segment_ids"][index]) == segments + blank
        assert list(batch["input_mask"][index]) == [1] * len(ids) + blank


@pytest.mark.parametrize("max_seq_length", [None, 3, 4, 8, 11])
def test_a_second_text_of_no_piece_can_be_none(max_seq_length):
    """As in `data.features`; it takes no room from the first, then."""
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
    assert list(layer("ab, a")["input_ids"]) == [
        2,
        *layer.tokenize("ab, a"),
        3,
        *tail,
    ]
    pair = layer(("a", b"b"))["segment_ids"]
    assert list(pair)[:5] == [0, 0, 0, 1, 1]
    for inputs in ([], tf.constant([], tf.string), ([], [])):
        assert layer(inputs)["input_ids"].shape == (0, max_seq_length or 1)
    assert layer.tokenize([]).to_list() == []
    assert layer.tokenize(["", " "]).to_list() == [[], []]
    assert layer.tokenize("").shape == (0,)


@pytest.mark.parametrize("max_seq_length", [None, 7])
@pytest.mark.parametrize("is_pair", [False, True])
def test_packs_ids_as_it_packs_texts(max_seq_length, is_pair):
    layer = BertTokenizer(vocabulary(), max_seq_length=max_seq_length)
    texts = [["a b a b a b a", "", "É中"], ["b", "a b a b", ""]]
    texts = texts if is_pair else texts[:1]
    for rows in (slice(None), slice(0)):
        batch = [tf.constant(part, tf.string)[rows] for part in texts]
        got = layer.pack([layer.tokenize(part) for part in batch])
        expected = layer(tuple(batch) if is_pair else batch[0])
        for name, values in expected.items():
            np.testing.assert_array_equal(got[name], values)
    ids = [tf.ragged.constant([[5, 9, 5], [2]]), tf.ragged.constant([[4], []])]
    packed = layer.pack(ids[: len(texts)])["input_ids"][0]
    tail = [4, 3] if is_pair else []
    assert list(packed)[: 5 + len(tail)] == [2, 5, 9, 5, 3, *tail]


def test_a_token_that_stands_for_itself():
    tokens = [*vocabulary(), "[MASK]"]
    tokenizer, layer = FullTokenizer(tokens), BertTokenizer(tokens)
    rng = random.Random(61)
    parts = ["[MASK]", "[MASK]", "[mask]", "[MA", "SK]", "a", "Σ", " ", "é["]
    texts = ["".join(rng.choices(parts, k=k % 9)) for k in range(3_001)]
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


@pytest.mark.parametrize("keep", ["", "[MASK]"])
def test_keeps_only_tokens_of_the_vocabulary(keep):
    with pytest.raises(InputError, match="Expected what to keep"):
        BertTokenizer(vocabulary()).tokenize("a", keep)


def test_padding_is_the_pad_token():
    layer = BertTokenizer(["a", *SPECIAL])
    ids = layer(["a", "a a"])["input_ids"]
    np.testing.assert_array_equal(ids, [[3, 0, 4, 1], [3, 0, 0, 4]])


@pytest.mark.parametrize("max_seq_length", [None, 6, 9])
def test_padded_to_the_longest_of_the_batch(max_seq_length):
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


def test_a_list_of_tuples_is_a_batch_of_pairs(tmp_path):
    layer = BertTokenizer(write(tmp_path, vocabulary()), max_seq_length=7)
    columns = tuple(map(list, zip(*PAIRS, strict=True)))
    expected = layer(columns)
    mapped = tf.data.Dataset.range(1).map(lambda _: layer(list(PAIRS)))
    for found in (layer(PAIRS), next(iter(mapped))):
        for name, values in expected.items():
            np.testing.assert_array_equal(found[name], values)
    one = layer(PAIRS[0])
    np.testing.assert_array_equal(one["input_ids"], expected["input_ids"][0])
    # Keras passes the tensors of a tuple as a list.
    tensors = [tf.constant(texts) for texts in columns]
    np.testing.assert_array_equal(
        layer(tensors)["input_ids"], expected["input_ids"]
    )


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([["a", "b"], ["b", "a"]], "tuples of two .*: a list of list$"),
        ([("a", "b"), "a"], "tuples of two .*: a list of str, tuple$"),
        (["a", np.array("b")], "tuples of two .*: a list of ndarray, str$"),
        ([("a", "b"), ("a",)], r"tuple of two strings.*\('a',\) at 1"),
        ([(["a"], ["b"])], r"tuple of two strings.*\(\['a'\], \['b'\]\) at 0"),
        ((["a", "b"], ["a"]), r"as many.*Received: shapes \(2,\) and \(1,\)"),
        (("a", ["b"]), r"as many.*Received: shapes \(\) and \(1,\)"),
        (np.array(PAIRS, str), r"Received: shape \(3, 2\)"),
        (keras.Input((2,), dtype="string"), r"Received: shape \(None, 2\)"),
    ],
)
def test_ambiguous_pairs_are_an_error(inputs, message):
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


def exported(folder, layer):
    """Writes a SavedModel with one endpoint; returns its concrete function."""
    module = tf.Module()
    module.layer = layer
    signature = [tf.TensorSpec([None], tf.string)]
    module.serve = tf.function(lambda text: layer(text), signature)
    function = module.serve.get_concrete_function()
    tf.saved_model.save(module, folder, signatures=function)
    return function


def test_saved_model(tmp_path):
    layer = BertTokenizer(vocabulary())
    exported(tmp_path, layer)
    assert (tmp_path / "saved_model.pb").stat().st_size < 1_000_000
    serve = tf.saved_model.load(tmp_path).signatures["serving_default"]
    texts = tf.constant(["ab, É", "AΣ \u302e\U0001d165", ""])
    for name, values in layer(texts).items():
        np.testing.assert_array_equal(serve(texts)[name], values)


@pytest.mark.parametrize(
    "function",
    [
        lambda layer, text: layer(text),
        lambda layer, text: layer((text, text)),
        lambda layer, text: layer.tokenize_with_offsets(text),
        lambda layer, text: layer.pack([layer.tokenize(text, keep="ab")]),
        lambda layer, text: drop_invalid_utf8(text),
    ],
)
def test_graph_holds_only_what_tensorflow_serving_knows(function):
    layer = BertTokenizer(vocabulary())
    traced = tf.function(lambda text: function(layer, text))
    graph = traced.get_concrete_function(tf.TensorSpec([None], tf.string)).graph
    nodes = list(graph.as_graph_def().node)
    for inner in graph.as_graph_def().library.function:
        nodes += inner.node_def
    foreign = {node.op for node in nodes if not hasattr(tf.raw_ops, node.op)}
    foreign -= {"FastWordpieceTokenizeWithOffsets"}
    assert not foreign
    assert len(nodes) > 1


@pytest.mark.parametrize(
    ("vocab", "arguments", "message"),
    [
        (["[UNK]", "a"], {}, r"\[PAD\] \[CLS\] \[SEP\]"),
        ([*SPECIAL, "a", "a"], {}, "'a' on lines 5 and 6 of a list"),
        ([*SPECIAL, "a" * 300], {}, "exceeds"),
        (SPECIAL, {"max_seq_length": 2}, "Received: 2"),
        (SPECIAL, {"padding": "none"}, "max_length, longest. Received: 'none'"),
        ("nowhere.txt", {}, "No such file"),
    ],
)
def test_unusable_arguments(vocab, arguments, message):
    with pytest.raises(InputError, match=message) as raised:
        BertTokenizer(vocab, **arguments)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("inputs", [[["a"], ["b"], ["c"]], ("a", "b", "c")])
def test_three_texts(inputs):
    with pytest.raises(InputError, match="two"):
        BertTokenizer(SPECIAL)(inputs)


def test_matrix_of_texts():
    with pytest.raises(InputError, match=r"Received: shape \(1, 1\)"):
        BertTokenizer(SPECIAL)(tf.constant([["a"]]))
