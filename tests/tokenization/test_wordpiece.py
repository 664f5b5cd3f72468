"""The Python tokenizer: vocabularies, pieces, ids and offsets."""

import pickle
import random
import subprocess
import sys

import numpy as np
import pytest

from bert_tf.errors import InputError
from bert_tf.tokenization import wordpiece
from bert_tf.tokenization.normalization import Normalizer
from bert_tf.tokenization.wordpiece import (
    FullTokenizer,
    Token,
    load_vocab,
    read_tokens,
)
from tests.tokenization import tokenization_oracle as oracle

# The vocabulary of the original's own test, and pieces for hostile texts.
GOOGLE = "[UNK] [CLS] [SEP] want ##want ##ed wa un runn ##ing ,"
MORE = "a ##a b ##b é ##é e ##e σ ##σ ς ##ς 中 ab ##ab Σ ##Σ [ ] mask ## # ."
VOCABS = [
    "bert-base-uncased",
    "bert-base-cased",
    "bert-base-multilingual-cased",
    "bert-base-chinese",
    "kr-bert-char16424",
]


@pytest.fixture
def vocab_file(tmp_path):
    def write(tokens):
        path = tmp_path / "vocab.txt"
        path.write_text(tokens.replace(" ", "\n"), encoding="utf-8")
        return path

    return write


@pytest.fixture
def google(vocab_file):
    return FullTokenizer(vocab_file(GOOGLE))


def test_example_of_the_original(google):
    tokens = google.tokenize("UNwant\u00e9d,running")
    assert tokens == ["un", "##want", "##ed", ",", "runn", "##ing"]
    assert google.convert_tokens_to_ids(tokens) == [7, 4, 5, 10, 8, 9]
    assert google.convert_ids_to_tokens([7, 4, 5, 10, 8, 9]) == tokens
    assert google.encode("UNwant\u00e9d,running") == [7, 4, 5, 10, 8, 9]


def test_a_word_with_an_unmatched_rest_is_unknown(google):
    assert google.tokenize("unwantedX unwanted") == [
        "[UNK]",
        "un",
        "##want",
        "##ed",
    ]


def test_empty_texts(google):
    for text in ("", " \t\n", "\0\u200b"):
        assert google.tokenize(text) == google.encode(text) == []
        assert google.tokenize_with_offsets(text) == []


@pytest.mark.parametrize("length", [99, 100, 101, 199, 200, 201, 1009])
@pytest.mark.parametrize("letter", ["a", "é", "中", "\U0001f917"])
def test_only_words_over_200_characters_are_too_long(
    vocab_file, length, letter
):
    path = vocab_file(f"[UNK] {letter} ##{letter}")
    tokenizer = FullTokenizer(path, do_lower_case=False)
    word = length * letter
    expected = [0] if length > 200 else [1] + [2] * (length - 1)
    if letter == "中":  # each is a word
        expected = [1] * length
    assert tokenizer.encode(word) == expected
    assert tokenizer.encode(f"{word} {letter}") == [*expected, 1]


def test_length_counts_after_normalization(vocab_file):
    tokenizer = FullTokenizer(vocab_file("[UNK] e ##e \u1112"))
    assert tokenizer.encode("e\u0301" * 200) == [1] + [2] * 199
    assert tokenizer.encode("e\u0301" * 201) == [0]
    assert tokenizer.encode("한" * 67) == [0]


@pytest.mark.parametrize(("do_lower_case", "strip_accents"), oracle.VARIANTS)
def test_hostile_texts(vocab_file, do_lower_case, strip_accents):
    path = vocab_file(f"{GOOGLE} {MORE}")
    tokenizer = FullTokenizer(path, do_lower_case, strip_accents)
    for text in oracle.hostile_texts(random.Random(17), 5_003):
        expected = oracle.tokenize(
            text, tokenizer.vocab, do_lower_case, strip_accents
        )
        assert_all_methods_give(tokenizer, text, expected)


@pytest.mark.parametrize("name", VOCABS)
def test_real_vocabularies(shared_data, name):
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
    for text in [*texts, *oracle.hostile_texts(rng, 1_009)]:
        expected = oracle.tokenize(text, tokenizer.vocab, do_lower_case)
        assert_all_methods_give(tokenizer, text, expected)


def assert_all_methods_give(tokenizer, text, expected):
    ids = tokenizer.convert_tokens_to_ids(expected)
    assert tokenizer.tokenize(text) == expected, ascii(text)
    assert tokenizer.encode(text) == ids, ascii(text)
    tokens = tokenizer.tokenize_with_offsets(text)
    assert [token.text for token in tokens] == expected, ascii(text)
    assert [token.id for token in tokens] == ids


@pytest.mark.parametrize(("do_lower_case", "strip_accents"), oracle.VARIANTS)
def test_offsets_hold_what_made_the_token(
    vocab_file, do_lower_case, strip_accents
):
    path = vocab_file(f"{GOOGLE} {MORE}")
    tokenizer = FullTokenizer(path, do_lower_case, strip_accents)
    normalizer = Normalizer(do_lower_case, strip_accents)
    for text in oracle.hostile_texts(random.Random(23), 5_003):
        text = text.replace("Σ", "S")  # lower-cased by its context
        for token in tokenizer.tokenize_with_offsets(text):
            source = normalizer(text[token.start : token.end])
            made = token.text.removeprefix("##") or token.text
            if token.text == "[UNK]":
                assert source.strip() != ""
            elif made.isascii():
                assert source.replace(" ", "") == made, ascii(text)
            else:
                assert set(made) <= set(source), ascii(text)


def test_offsets_into_the_original(vocab_file):
    words = "[UNK] cafe re ##sume \u1112 ##\u1161 ##\u11ab ! ' s"
    tokenizer = FullTokenizer(vocab_file(words))
    text = "  Cafe\u0301 RÉSU\u00adME\u0301! 한 Caf\u00e9's \u2603\u2603"
    tokens = tokenizer.tokenize_with_offsets(text)
    assert [(t.text, text[t.start : t.end]) for t in tokens] == [
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
    assert tokens[0] == Token("cafe", 1, 2, 7)


def test_offsets_of_marks_that_change_places(vocab_file):
    low, high = "\U0001d165", "\u302e"  # classes 216 and 224
    tokenizer = FullTokenizer(vocab_file(f"[UNK] a ##{low}{high}"))
    tokens = tokenizer.tokenize_with_offsets(f"a{high}{low}")
    assert tokens == [Token("a", 1, 0, 1), Token(f"##{low}{high}", 2, 1, 3)]


def test_caches_are_bounded_and_right(google, monkeypatch):
    monkeypatch.setattr(wordpiece, "_CACHE_ENTRIES", 3)
    text = " ".join(["want", "wa,", "un", "running", "x" * 99] * 7)
    ids = google.convert_tokens_to_ids(google.tokenize(text))
    assert google.encode(text) == google.encode(text) == ids
    assert 0 < len(google._ids_of_chunk) <= 3
    assert max(map(len, google._ids_of_chunk)) < 99


def test_tokenizer_travels_to_other_processes(vocab_file):
    tokenizer = FullTokenizer(vocab_file(GOOGLE), do_lower_case=False)
    copy = pickle.loads(pickle.dumps(tokenizer))
    assert copy.encode("want Want") == tokenizer.encode("want Want") == [3, 0]


def test_vocab_lines_are_stripped_and_end_at_line_feeds(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_bytes("[UNK]\r\n a\t\n\u2028\nb\x0bc\n##\u2028\nz".encode())
    vocab = load_vocab(path)
    assert vocab == {"[UNK]": 0, "a": 1, "": 2, "b\x0bc": 3, "##": 4, "z": 5}
    assert list(vocab.values()) == list(range(6))


@pytest.mark.parametrize("begin", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("end", [b"", b"\n", b"\n\n \r\n", b"\n\xe2\x80\xa8"])
def test_vocabularies_as_editors_leave_them(tmp_path, begin, end):
    path = tmp_path / "vocab.txt"
    path.write_bytes(begin + b"[UNK]\n\nb" + end)
    assert load_vocab(path) == {"[UNK]": 0, "": 1, "b": 2}
    assert read_tokens(str(path)) == ["[UNK]", "", "b"]


def test_reads_tokens_whatever_they_are_good_for(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_bytes(b"a\n\n\na\n")
    assert read_tokens(str(path)) == ["a", "", "", "a"]
    path.write_bytes(b"")
    assert read_tokens(str(path)) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[UNK]\nab\nc\nab \n", r"'ab' on lines 2 and 4"),
        (b"[UNK]\n\n\na\n", r"'' on lines 2 and 3"),
        (b"\n\n", "Received: nothing"),
        (b"", "Received: nothing"),
        (b"[UNK]\nok\n\xc3(\n", r"byte 0xc3 at .*vocab\.txt:3"),
        (b"a\nb\n", r"Expected \[UNK\]"),
    ],
)
def test_unusable_vocabularies(tmp_path, content, message):
    path = tmp_path / "vocab.txt"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as raised:
        FullTokenizer(path)
    assert "\n" not in str(raised.value)
    assert str(path) in str(raised.value)


def test_a_vocabulary_may_be_a_list(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("[UNK]\na\n##b\n")
    tokenizer = FullTokenizer(["[UNK]", "a", "##b"])
    assert tokenizer.vocab == load_vocab(path)
    assert tokenizer.tokenize("ab A c") == ["a", "##b", "a", "[UNK]"]
    for tokens, message in [
        (["[UNK]", "a", "a"], "'a' on lines 2 and 3 of a list of tokens"),
        (["a"], r"Expected \[UNK\].* from a list of tokens"),
        ([], "Received: nothing"),
    ]:
        with pytest.raises(InputError, match=message):
            FullTokenizer(tokens)


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_missing_vocabulary(tmp_path, scheme):
    path = f"{scheme}{tmp_path}/none.txt"
    with pytest.raises(InputError, match="No such file"):
        load_vocab(path)


def test_vocabulary_behind_a_scheme(vocab_file):
    path = vocab_file(GOOGLE)
    assert load_vocab(f"file://{path}") == load_vocab(path)


def test_required_special_tokens_are_all_named(vocab_file):
    vocab = load_vocab(vocab_file(GOOGLE))
    wordpiece.require_special_tokens(vocab, ["[CLS]", "[UNK]"])
    with pytest.raises(InputError, match=r"\[PAD\] \[MASK\] .* from v.txt"):
        wordpiece.require_special_tokens(vocab, path="v.txt")


def test_masks_of_ids():
    tokens = ["[PAD]", "[unused9]", "[", "]", "a", "##b", "", "##", "[a", "[]"]
    continuation = wordpiece.continuation_mask(tokens)
    replaceable = wordpiece.replaceable_ids(tokens)
    assert continuation.dtype == replaceable.dtype == np.bool_
    assert list(np.flatnonzero(continuation)) == [5, 7]
    assert list(np.flatnonzero(~replaceable)) == [0, 1, 6]


def test_no_tensorflow_is_imported(vocab_file):
    program = (
        "import sys; from bert_tf.tokenization import packing, wordpiece;"
        f"wordpiece.FullTokenizer({str(vocab_file(GOOGLE))!r}).encode('x');"
        "sys.exit('tensorflow' in sys.modules or 'keras' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_vocabulary_has_to_fit_the_model():
    vocab = {
        token: i for i, token in enumerate([*wordpiece.SPECIAL_TOKENS, "a"])
    }
    wordpiece.require_fit(vocab, 6, "vocab.txt")
    wordpiece.require_fit(vocab, 99, "vocab.txt")
    with pytest.raises(InputError, match=r"at most 5 .* vocab.txt.*: 6"):
        wordpiece.require_fit(vocab, 5, "vocab.txt")
    del vocab["[MASK]"]
    with pytest.raises(InputError, match=r"Expected \[MASK\]"):
        wordpiece.require_fit(vocab, 99, "vocab.txt")
