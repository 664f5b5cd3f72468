"""The tokenizer in Python, vocabularies and packing."""

import csv
import pickle
import random
import subprocess
import sys

import numpy as np
import pytest

from bert_tf.errors import InputError
from bert_tf.tokenization import wordpiece
from bert_tf.tokenization.normalization import Normalizer
from bert_tf.tokenization.packing import pack, truncated_lengths
from bert_tf.tokenization.wordpiece import (
    FullTokenizer,
    Token,
    load_vocab,
    read_tokens,
)
from tests.tokenization import tokenization_oracle as oracle

# The vocabulary of the original's own test, and tokens for hostile texts.
GOOGLE = ["[UNK]", "[CLS]", "[SEP]", "want", "##want", "##ed"]
GOOGLE += ["wa", "un", "runn", "##ing", ","]
MORE = "a ##a b ##b é ##é e ##e σ ##σ ς ##ς 中 ab ##ab Σ ##Σ [ ] mask ## # ."
VOCABS = [
    "bert-base-uncased",
    "bert-base-cased",
    "bert-base-multilingual-cased",
    "bert-base-chinese",
    "kr-bert-char16424",
]


@pytest.fixture(scope="module")
def google():
    return FullTokenizer(GOOGLE)


def test_example_of_the_original(google):
    tokens = google.tokenize("UNwant\u00e9d,running")
    assert tokens == ["un", "##want", "##ed", ",", "runn", "##ing"]
    assert google.convert_tokens_to_ids(tokens) == [7, 4, 5, 10, 8, 9]
    assert google.convert_ids_to_tokens([7, 4, 5, 10, 8, 9]) == tokens
    assert google.encode("UNwant\u00e9d,running") == [7, 4, 5, 10, 8, 9]
    assert google.tokenize("unwantedX un") == ["[UNK]", "un"]
    for text in ("", " \t\n", "\0\u200b"):
        assert google.tokenize(text) == google.encode(text) == []
        assert google.tokenize_with_offsets(text) == []


@pytest.mark.parametrize("length", [99, 199, 200, 201, 1009])
@pytest.mark.parametrize("letter", ["a", "é", "中", "\U0001f917"])
def test_words_over_200_characters_are_unknown(length, letter):
    tokenizer = FullTokenizer(
        ["[UNK]", letter, f"##{letter}"], do_lower_case=False
    )
    word = length * letter
    expected = [0] if length > 200 else [1] + [2] * (length - 1)
    if letter == "中":  # Each is a word.
        expected = [1] * length
    assert tokenizer.encode(word) == expected
    assert tokenizer.encode(f"{word} {letter}") == [*expected, 1]


def test_the_length_counts_after_normalization():
    tokenizer = FullTokenizer(["[UNK]", "e", "##e", "\u1112"])
    assert tokenizer.encode("e\u0301" * 200) == [1] + [2] * 199
    assert tokenizer.encode("e\u0301" * 201) == [0]
    assert tokenizer.encode("한" * 67) == [0]


def assert_all_methods_agree(tokenizer, text, expected):
    ids = tokenizer.convert_tokens_to_ids(expected)
    assert tokenizer.tokenize(text) == expected, ascii(text)
    assert tokenizer.encode(text) == ids, ascii(text)
    tokens = tokenizer.tokenize_with_offsets(text)
    assert [token.text for token in tokens] == expected, ascii(text)
    assert [token.id for token in tokens] == ids
    return tokens


@pytest.mark.parametrize(("do_lower_case", "strip_accents"), oracle.VARIANTS)
def test_hostile_texts(do_lower_case, strip_accents):
    casing = do_lower_case, strip_accents
    tokenizer = FullTokenizer([*GOOGLE, *MORE.split()], *casing)
    normalizer = Normalizer(*casing)
    for text in oracle.hostile_texts(random.Random(17), 4_003):
        expected = oracle.tokenize(text, tokenizer.vocab, *casing)
        tokens = assert_all_methods_agree(tokenizer, text, expected)
        if "Σ" in text:
            continue  # It depends on its neighbors.
        for token in tokens:
            source = normalizer(text[token.start : token.end])
            made = token.text.removeprefix("##") or token.text
            if token.text == "[UNK]":
                assert source.strip() != ""
            elif made.isascii():
                assert source.replace(" ", "") == made, ascii(text)
            else:
                assert set(made) <= set(source), ascii(text)


@pytest.mark.parametrize("name", VOCABS)
def test_published_vocabularies(shared_data, name):
    do_lower_case = "-cased" not in name
    path = shared_data / "vocab" / f"{name}-vocab.txt"
    tokenizer = FullTokenizer(path, do_lower_case)
    wordpiece.require_special_tokens(tokenizer.vocab)
    rng = random.Random(19)
    words = [token.removeprefix("##") for token in tokenizer.inv_vocab]
    texts = [
        "".join(
            rng.choice(words) + rng.choice(["", " ", "\n", "é", "한"])
            for _ in range(23)
        )
        for _ in range(151)
    ]
    for text in [*texts, *oracle.hostile_texts(rng, 503)]:
        expected = oracle.tokenize(text, tokenizer.vocab, do_lower_case)
        assert_all_methods_agree(tokenizer, text, expected)


def test_an_example_of_offsets():
    tokenizer = FullTokenizer(["[UNK]", *oracle.EXAMPLE_VOCAB])
    tokens = tokenizer.tokenize_with_offsets(oracle.EXAMPLE)
    assert [
        (t.text, oracle.EXAMPLE[t.start : t.end]) for t in tokens
    ] == oracle.EXAMPLE_TOKENS
    assert tokens[0] == Token("cafe", 1, 2, 7)


def test_offsets_of_reordered_marks():
    low, high = "\U0001d165", "\u302e"  # classes 216 and 224
    tokenizer = FullTokenizer(["[UNK]", "a", f"##{low}{high}"])
    tokens = tokenizer.tokenize_with_offsets(f"a{high}{low}")
    assert tokens == [Token("a", 1, 0, 1), Token(f"##{low}{high}", 2, 1, 3)]


def test_caches_are_bounded(monkeypatch):
    monkeypatch.setattr(wordpiece, "_CACHE_ENTRIES", 3)
    tokenizer = FullTokenizer(GOOGLE)
    text = " ".join(["want", "wa,", "un", "running", "x" * 99] * 7)
    ids = tokenizer.convert_tokens_to_ids(tokenizer.tokenize(text))
    assert tokenizer.encode(text) == tokenizer.encode(text) == ids
    assert 0 < len(tokenizer._ids_of_chunk) <= 3
    assert max(map(len, tokenizer._ids_of_chunk)) < 99


def test_tokenizers_can_be_pickled():
    tokenizer = FullTokenizer(GOOGLE, do_lower_case=False)
    copy = pickle.loads(pickle.dumps(tokenizer))
    assert copy.encode("want Want") == tokenizer.encode("want Want") == [3, 0]


def test_no_tensorflow_is_imported():
    program = (
        "import sys; from bert_tf.tokenization import packing, wordpiece;"
        "wordpiece.FullTokenizer(['[UNK]', 'x']).encode('x');"
        "sys.exit('tensorflow' in sys.modules or 'keras' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


# Vocabularies.


@pytest.mark.parametrize(
    ("content", "tokens"),
    [
        (
            "[UNK]\r\n a\t\n\u2028\nb\x0bc\n##\u2028\nz".encode(),
            ["[UNK]", "a", "", "b\x0bc", "##", "z"],
        ),
        (b"[UNK]\n\nb", ["[UNK]", "", "b"]),
        (b"\xef\xbb\xbf[UNK]\n\nb\n", ["[UNK]", "", "b"]),
        (b"[UNK]\n\nb\n\n \r\n", ["[UNK]", "", "b"]),
        (b"[UNK]\n\nb\n\xe2\x80\xa8", ["[UNK]", "", "b"]),
    ],
)
def test_lines_of_vocabularies(tmp_path, content, tokens):
    path = tmp_path / "vocab.txt"
    path.write_bytes(content)
    assert read_tokens(str(path)) == tokens
    for vocabulary in (path, f"file://{path}", tokens):
        vocab = load_vocab(vocabulary)
        assert list(vocab.items()) == [(t, n) for n, t in enumerate(tokens)]


def test_tokens_are_read_without_validation(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_bytes(b"a\n\n\na\n")
    assert read_tokens(str(path)) == ["a", "", "", "a"]
    path.write_bytes(b"")
    assert read_tokens(str(path)) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[UNK]\nab\nc\nab \n", r":4: the token 'ab' is also on line 2\."),
        (b"[UNK]\n\n\na\n", r":3: the token '' is also on line 2\."),
        (b"\n\n", "is empty"),
        (b"", "is empty"),
        (b"[UNK]\nok\n\xc3(\n", r"vocab\.txt:3: byte 0xc3 is not UTF-8"),
        (b"a\nb\n", r"has 2 tokens, but not \[UNK\]"),
    ],
)
def test_unusable_vocabularies(tmp_path, content, message):
    path = tmp_path / "vocab.txt"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as raised:
        FullTokenizer(path)
    assert "\n" not in str(raised.value)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize(
    ("vocabulary", "message"),
    [
        (["[UNK]", "a", "a"], "list of tokens:3: the token 'a' is also on"),
        (["a"], r"list of tokens has 1 tokens, but not \[UNK\]"),
        ([], "list of tokens: the vocabulary is empty"),
        ("/nowhere/vocab.txt", "No such file"),
        ("file:///nowhere/vocab.txt", "No such file"),
    ],
)
def test_unusable_lists_and_paths(vocabulary, message):
    with pytest.raises(InputError, match=message):
        FullTokenizer(vocabulary)


def test_a_vocabulary_has_to_fit_the_model(caplog):
    tokens = [*wordpiece.SPECIAL_TOKENS, "a"]
    wordpiece.require_fit(load_vocab(tokens), 6, "vocab.txt")
    assert not caplog.records
    wordpiece.require_fit(load_vocab(tokens), 99, "vocab.txt")
    assert "6 tokens, fewer than the model's vocab_size of 99" in caplog.text
    with pytest.raises(InputError, match=r"^vocab\.txt: has 6 .* of 5\.$"):
        wordpiece.require_fit(load_vocab(tokens), 5, "vocab.txt")
    tokens.remove("[MASK]")
    with pytest.raises(InputError, match=r"vocab.txt .* not \[MASK\]\."):
        wordpiece.require_fit(load_vocab(tokens), 99, "vocab.txt")
    wordpiece.require_special_tokens(load_vocab(GOOGLE), ["[CLS]", "[UNK]"])
    with pytest.raises(InputError, match=r"not \[PAD\] and \[MASK\]\."):
        wordpiece.require_special_tokens(load_vocab(GOOGLE))


def test_masks_of_ids():
    tokens = ["[PAD]", "[unused9]", "[", "]", "a", "##b", "", "##", "[a", "[]"]
    continuation = wordpiece.continuation_mask(tokens)
    replaceable = wordpiece.replaceable_ids(tokens)
    assert continuation.dtype == replaceable.dtype == np.bool_
    assert list(np.flatnonzero(continuation)) == [5, 7]
    assert list(np.flatnonzero(~replaceable)) == [0, 1, 6]


# Packing.


def truncated_by_loop(length_a, length_b, room):
    """The original's loop."""
    while length_a + length_b > room:
        if length_a > length_b:
            length_a -= 1
        else:
            length_b -= 1
    return length_a, length_b


def test_truncated_lengths_are_those_of_the_loop():
    a, b, room = np.indices((17, 17, 23)).reshape(3, -1)
    expected = list(map(truncated_by_loop, a, b, room))
    kept = np.transpose(truncated_lengths(a, b, room))
    np.testing.assert_array_equal(kept, expected)
    assert truncated_lengths(9, 5, 7) == (4, 3)
    assert truncated_lengths(9, 2, 7) == (5, 2)


@pytest.mark.parametrize(
    ("ids_a", "ids_b", "length", "input_ids", "segment_ids"),
    [
        ([5, 6], [7], 9, [2, 5, 6, 3, 7, 3], [0, 0, 0, 0, 1, 1]),
        ([5, 6], None, 9, [2, 5, 6, 3], [0, 0, 0, 0]),
        ([5], [], 9, [2, 5, 3, 3], [0, 0, 0, 1]),
        ([5, 6, 7], None, 4, [2, 5, 6, 3], [0, 0, 0, 0]),
        ([5, 6, 7], None, 2, [2, 3], [0, 0]),
        ([5, 6, 7], [8, 9], 6, [2, 5, 6, 3, 8, 3], [0, 0, 0, 0, 1, 1]),
        ([5], [8], 3, [2, 3, 3], [0, 0, 1]),
    ],
)
def test_packing(ids_a, ids_b, length, input_ids, segment_ids):
    packed = pack(ids_a, ids_b, length, cls_id=2, sep_id=3)
    assert packed == (input_ids, segment_ids)


@pytest.mark.parametrize(("ids_b", "max_seq_length"), [(None, 1), ([4], 2)])
def test_no_room_for_special_tokens(ids_b, max_seq_length):
    with pytest.raises(InputError, match=f"got {max_seq_length}"):
        pack([4], ids_b, max_seq_length, cls_id=2, sep_id=3)


def test_records_of_google(shared_data):
    """MRPC as google-research/bert's run_classifier.py wrote it."""
    import tensorflow as tf

    tokenizer = FullTokenizer(
        shared_data / "vocab" / "bert-base-uncased-vocab.txt"
    )
    cls_id, sep_id = tokenizer.convert_tokens_to_ids(["[CLS]", "[SEP]"])
    path = shared_data / "google_bert_outputs" / "mrpc" / "eval.tf_record"
    dataset = tf.data.TFRecordDataset(str(path)).as_numpy_iterator()
    with open(shared_data / "glue" / "MRPC" / "dev.tsv", encoding="utf-8") as f:
        rows = list(csv.reader(f, delimiter="\t", quotechar=None, quoting=3))
    for row, record in zip(rows[1:], dataset, strict=True):
        ids, segments = pack(
            *map(tokenizer.encode, row[3:5]), 128, cls_id, sep_id
        )
        features = tf.train.Example.FromString(record).features.feature
        padding = [0] * (128 - len(ids))
        assert features["input_ids"].int64_list.value == ids + padding
        assert features["segment_ids"].int64_list.value == segments + padding
