"""The offsets in the graph are those of the tokenizer in Python."""

import random

import pytest
import tensorflow as tf

from bert_tf.tokenization.graph import BertTokenizer, Tokens
from bert_tf.tokenization.graph_normalization import drop_invalid_utf8
from bert_tf.tokenization.normalization import Normalizer
from bert_tf.tokenization.wordpiece import FullTokenizer
from tests.tokenization import tokenization_oracle as oracle

SPECIAL = "[PAD] [UNK] [CLS] [SEP]"
# Few letters, so that many words are unknown; and pieces of several.
PIECES = (
    "a ##a b ##b é ##é e ##e σ ##σ ς ##ς 中 ab ##ab aab ##éa Σ ##Σ [ ] mask "
    "un ##want ##ed ## # . ' \u1112 ##\u1161 ##\u11ab ##\u1161\u11ab "
    "##\U0001d165\u302e ##\u302e"
)
SMALL = f"{SPECIAL} {PIECES}".split()
VARIANTS = pytest.mark.parametrize(
    ("do_lower_case", "strip_accents"), oracle.VARIANTS
)
VOCABS = [
    "bert-base-uncased",
    "bert-base-cased",
    "bert-base-multilingual-cased",
    "bert-base-chinese",
    "kr-bert-char16424",
]


def rows_of(tokens):
    """[(id, start, end), ...] of each text."""
    columns = [column.to_list() for column in tokens]
    return [list(zip(*row, strict=True)) for row in zip(*columns, strict=True)]


def in_graph(layer):
    return tf.function(
        layer.tokenize_with_offsets, [tf.TensorSpec([None], tf.string)]
    )


def assert_agree(vocab, texts, *casing):
    """Compares ids and offsets; texts may be strings or bytes."""
    tokenizer = FullTokenizer(vocab, *casing)
    tokens = in_graph(BertTokenizer(vocab, *casing))(
        tf.constant(texts, tf.string)
    )
    for column in tokens:
        assert column.dtype == tf.int32
        assert column.shape.rank == 2
    for text, got in zip(texts, rows_of(tokens), strict=True):
        if isinstance(text, bytes):
            text = text.decode(errors="ignore")
        expected = tokenizer.tokenize_with_offsets(text)
        assert got == [token[1:] for token in expected], ascii(text)


@VARIANTS
def test_hostile_texts(do_lower_case, strip_accents):
    texts = list(oracle.hostile_texts(random.Random(47), 6_007))
    texts += [" ".join(texts[start::997]) for start in range(997)]
    casing = do_lower_case, strip_accents
    assert_agree(SMALL, texts, *casing)
    letters = {c for text in texts for c in Normalizer(*casing)(text)} - {" "}
    letters = sorted(letters)
    vocab = [*SPECIAL.split(), *letters, *(f"##{c}" for c in letters)]
    assert_agree(vocab, texts, *casing)


@VARIANTS
def test_some_of_all_characters(do_lower_case, strip_accents):
    assigned = [c for c in oracle.ALL[::31] if not "\ud800" <= c <= "\udfff"]
    texts = [oracle.contexts(c, many=True) for c in assigned[:2_000]]
    texts += [oracle.contexts(c, many=False) for c in assigned[2_000::7]]
    assert_agree(SMALL, texts, do_lower_case, strip_accents)


@pytest.mark.parametrize("name", VOCABS)
def test_real_vocabularies(shared_data, name):
    path = shared_data / "vocab" / f"{name}-vocab.txt"
    words = [t.removeprefix("##") for t in FullTokenizer(path).inv_vocab]
    rng = random.Random(53)
    ends = ["", "", " ", "\n", "\u0301", "\u200b", ".", "Σ", "\U0001f917"]
    texts = [
        "".join(rng.choice(words) + rng.choice(ends) for _ in range(29))
        for _ in range(199)
    ]
    assert_agree(path, texts, "-cased" not in name)


def test_real_texts(shared_data):
    path = shared_data / "vocab" / "bert-base-uncased-vocab.txt"
    lines = []
    for name in ("wikitext-2-raw/wiki.test.raw", "gutenberg/pg174.txt"):
        content = (shared_data / "pretraining_text" / name).read_bytes()
        lines += content.split(b"\n")[::7]
    assert_agree(path, lines)


@pytest.mark.parametrize("letter", ["a", "é", "中", "\U0001f917"])
def test_words_over_200_characters(letter):
    sizes = (1, 100, 199, 200, 201, 1_009, 100_003)
    texts = [f"ab {letter * size}, ab" for size in sizes]
    texts += [f" é{letter * size}" + 99 * "\u0301" + "x" for size in sizes]
    pieces = letter + letter, f"##{letter}{letter}"
    assert_agree([*SMALL, *pieces], texts)


def test_length_counts_after_normalization():
    texts = ["e\u0301" * 200, "e\u0301" * 201, "한" * 66, "한" * 67, "\0" * 300]
    assert_agree(SMALL, texts)


def test_offsets_cut_out_of_what_is_utf8():
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


def test_an_example_of_each_kind():
    words = f"{SPECIAL} cafe re ##sume \u1112 ##\u1161 ##\u11ab ! ' s"
    layer = BertTokenizer(words.split())
    text = "  Cafe\u0301 RÉSU\u00adME\u0301! 한 Caf\u00e9's \u2603\u2603"
    tokens = layer.tokenize_with_offsets(text)
    assert isinstance(tokens, Tokens)
    names = [layer.vocabulary[number] for number in tokens.ids.numpy()]
    spans = zip(tokens.starts.numpy(), tokens.ends.numpy(), strict=True)
    cuts = [text[start:end] for start, end in spans]
    assert list(zip(names, cuts, strict=True)) == [
        ("cafe", "Cafe\u0301"),
        ("re", "RÉ"),
        ("##sume", "SU\u00adME\u0301"),
        ("!", "!"),
        ("\u1112", "한"),
        ("##\u1161", "한"),
        ("##\u11ab", "한"),
        ("cafe", "Caf\u00e9"),
        ("'", "'"),
        ("s", "s"),
        ("[UNK]", "\u2603\u2603"),
    ]


def test_scalars_and_empty_batches():
    layer = BertTokenizer(SMALL)
    for column in layer.tokenize_with_offsets(""):
        assert column.shape == (0,)
    for tokenize in (layer.tokenize_with_offsets, in_graph(layer)):
        for column in tokenize(tf.constant([], tf.string)):
            assert column.to_list() == []
        for column in tokenize(tf.constant(["", " \0", "\u0301"])):
            assert column.to_list() == [[], [], []]
