import json
import logging

import pytest

from bert_tf.errors import InputError
from bert_tf.interop import huggingface_tokenizer
from bert_tf.interop.huggingface_tokenizer import Tokenizer
from bert_tf.tokenization.wordpiece import FullTokenizer
from tests.interop.huggingface_folders import write_json
from tests.interop.small_models import VOCAB

# The model has room for more tokens.
VOCAB_SIZE = len(VOCAB) + 5
NORMALIZER = {
    "type": "BertNormalizer",
    "clean_text": True,
    "handle_chinese_chars": True,
    "strip_accents": None,
    "lowercase": True,
}


def whole(normalizer=NORMALIZER, **model):
    """The contents of a tokenizer.json."""
    return {
        "version": "1.0",
        "added_tokens": [{"id": 0, "content": "[PAD]", "special": True}],
        "normalizer": normalizer,
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {token: n for n, token in enumerate(VOCAB)},
        }
        | model,
    }


def read(tmp_path, vocab=None, tokenizer=None, settings=None, added=None):
    if vocab is not None:
        (tmp_path / "vocab.txt").write_text(
            "".join(f"{token}\n" for token in vocab), encoding="utf-8"
        )
    for name, values in (
        ("tokenizer.json", tokenizer),
        ("tokenizer_config.json", settings),
        ("added_tokens.json", added),
    ):
        if values is not None:
            write_json(tmp_path, name, values)
    return huggingface_tokenizer.read(str(tmp_path), VOCAB_SIZE)


def test_reads_the_vocabulary_of_either_file(tmp_path):
    assert read(tmp_path) == Tokenizer()
    assert read(tmp_path, added={"[E1]": 23}).vocab is None
    shuffled = dict(sorted(whole()["model"]["vocab"].items(), reverse=True))
    tokenizer = whole(vocab=shuffled)
    assert read(tmp_path, tokenizer=tokenizer, added={}).vocab == VOCAB
    # Older files do not have the type of the model.
    del tokenizer["model"]["type"]
    assert read(tmp_path, tokenizer=tokenizer).vocab == VOCAB
    # vocab.txt has priority.
    assert read(tmp_path, vocab=VOCAB[:7]).vocab == VOCAB[:7]


@pytest.mark.parametrize(
    ("tokenizer", "settings", "expected"),
    [
        (None, {}, (None, None)),
        (None, {"do_lower_case": True}, (True, None)),
        (None, {"do_lower_case": False, "strip_accents": None}, (False, None)),
        (None, {"do_lower_case": False, "strip_accents": True}, (False, True)),
        (whole(), {"model_max_length": 512}, (True, None)),
        # transformers builds its normalizer from the settings.
        (whole(), {"do_lower_case": False}, (False, None)),
        (
            whole(NORMALIZER | {"lowercase": False, "strip_accents": True}),
            None,
            (False, True),
        ),
        (
            whole({"type": "Sequence", "normalizers": [{}, NORMALIZER]}),
            None,
            (True, None),
        ),
        (whole(None), None, (None, None)),
        (whole({"type": "Lowercase"}), None, (None, None)),
        (whole({"type": "Sequence", "normalizers": 7}), None, (None, None)),
        (whole([]), None, (None, None)),
    ],
)
def test_reads_the_casing(tmp_path, tokenizer, settings, expected):
    found = read(tmp_path, VOCAB, tokenizer, settings)
    assert (found.do_lower_case, found.strip_accents) == expected


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"type": "BPE"}, "WordPiece .*; got 'BPE'"),
        ({"type": ["WordPiece"]}, r"got \['WordPiece'\]"),
        ({"continuing_subword_prefix": "@@"}, "with '@@'"),
        ({"vocab": {}}, "must map tokens to ids"),
        ({"vocab": ["[PAD]"]}, "must map tokens to ids"),
        ({"vocab": {"a": 0, "b": 2}}, "must be 0 to 1; 1 is missing"),
        ({"vocab": {"a": 1, "b": 2}}, "0 is missing"),
        ({"vocab": {"a": 0, "b": 0}}, "1 is missing"),
        ({"vocab": {"a": 0, "b": None}}, "1 is missing"),
        ({"vocab": {"a": 0, "b": "1"}}, "1 is missing"),
        ({"vocab": {"a": 0, " b": 1}}, "token 1, ' b', cannot be a line"),
        ({"vocab": {"a": 0, "b\nc": 1}}, "cannot be a line of vocab.txt"),
        (None, "must be WordPiece"),
        ("WordPiece", "must be WordPiece"),
    ],
)
def test_refuses_another_kind_of_vocabulary(tmp_path, model, message):
    tokenizer = whole(**model) if isinstance(model, dict) else {"model": model}
    with pytest.raises(InputError, match=message) as caught:
        read(tmp_path, tokenizer=tokenizer | {"version": "1.0"})
    assert "\n" not in str(caught.value)
    assert "tokenizer.json" in str(caught.value)


def test_a_vocabulary_is_not_validated(tmp_path):
    """A program that tokenizes with it validates it."""
    vocab = (*VOCAB, "", VOCAB[5], "", "x")
    assert read(tmp_path, vocab=[*vocab, "", " "]).vocab == vocab
    with pytest.raises(InputError, match=r"vocab\.txt:25: .* on line 6\."):
        FullTokenizer(tmp_path / "vocab.txt")


# Added tokens


def entries(tokens):
    """Added tokens in the form of a tokenizer.json."""
    return [{"id": n, "content": token} for n, token in tokens.items()]


def decoder(tokens):
    """Added tokens in the form of a tokenizer_config.json."""
    return {str(n): {"content": token} for n, token in tokens.items()}


def warning(caplog):
    [record] = caplog.records
    assert "\n" not in record.getMessage()
    return record.getMessage()


@pytest.mark.parametrize("where", ["tokenizer", "settings", "added", "all"])
@pytest.mark.parametrize("has_vocab_txt", [True, False])
def test_added_tokens_follow_the_vocabulary(
    tmp_path, caplog, where, has_vocab_txt
):
    tokens = {24: "[E2]", 0: "[PAD]", 23: "[E1]"}
    tokenizer, settings, added = whole(), {}, {}
    if where in ("tokenizer", "all"):
        tokenizer["added_tokens"] = entries(tokens)
    if where in ("settings", "all"):
        settings["added_tokens_decoder"] = decoder(tokens)
    if where in ("added", "all"):
        added = {token: n for n, token in tokens.items()}
    vocab = VOCAB if has_vocab_txt else None
    with caplog.at_level(logging.WARNING):
        found = read(tmp_path, vocab, tokenizer, settings, added)
    assert found.vocab == (*VOCAB, "[E1]", "[E2]")
    assert "adds 2 tokens to its vocabulary ('[E1]' and" in warning(caplog)


def test_tokens_of_the_vocabulary_may_be_listed_again(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        found = read(
            tmp_path,
            (*VOCAB, "[E1]"),
            whole(),
            {"added_tokens_decoder": decoder({0: "[PAD]", 23: "[E1]"})},
            {"[E1]": 23},
        )
    assert found.vocab == (*VOCAB, "[E1]")
    assert not caplog.records


@pytest.mark.parametrize("token", [" x", "x ", "x\ny", ""])
def test_a_token_that_is_no_line_is_replaced(tmp_path, caplog, token):
    with caplog.at_level(logging.WARNING):
        found = read(tmp_path, VOCAB, added={token: 23, "y": 24})
    assert found.vocab == (*VOCAB, "[unused23]", "y")
    assert "; 1 left out, with outer white space" in warning(caplog)


def test_a_token_without_an_embedding_is_left_out(tmp_path, caplog):
    added = {f"[E{n}]": n for n in (23, 27, 28, 24, 25, 26, 900)}
    with caplog.at_level(logging.WARNING):
        found = read(tmp_path, VOCAB, added=added)
    assert found.vocab == (*VOCAB, *(f"[E{n}]" for n in range(23, 28)))
    message = warning(caplog)
    assert "adds 7 tokens to its vocabulary" in message
    assert "; 2 left out, without an embedding" in message


@pytest.mark.parametrize(
    ("added", "message"),
    [
        ({"x": 24}, "no token has id 23, but 'x' has 24.*from 23"),
        ({"x": 23, "y": 25}, "no token has id 24, but 'y' has 25"),
        ({"x": 0}, r"both '\[PAD\]' and 'x' have id 0"),
        ({"x": 23, "y": 23}, "both 'x' and 'y' have id 23"),
        ({"a": 23}, "vocabulary's 23; got 'a' with id 23, which has id 5"),
        ({"x": -1}, "vocabulary's 23; got 'x' with id -1"),
        ({"x": "23"}, "integer ids; got 'x' with id '23'"),
        ({"x": True}, "integer ids; got 'x' with id True"),
        ({"x": None}, "integer ids; got 'x' with id None"),
    ],
)
def test_refuses_contradicting_tokens(tmp_path, added, message):
    with pytest.raises(InputError, match=message) as caught:
        read(tmp_path, VOCAB, added=added)
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_refuses_contradicting_files(tmp_path):
    tokenizer = whole() | {"added_tokens": entries({23: "x"})}
    settings = {"added_tokens_decoder": decoder({23: "y"})}
    with pytest.raises(InputError, match="both 'x' and 'y' have id 23"):
        read(tmp_path, VOCAB, tokenizer, settings)
    settings = {"added_tokens_decoder": {"²": {"content": "y"}}}
    with pytest.raises(InputError, match="got 'y' with id '²'"):
        read(tmp_path, VOCAB, whole(), settings)


@pytest.mark.parametrize("value", [None, 7, [7], {"7": 7}, {"7": None}])
def test_ignores_malformed_lists_of_tokens(tmp_path, value):
    tokenizer = whole() | {"added_tokens": value}
    settings = {"added_tokens_decoder": value}
    assert read(tmp_path, VOCAB, tokenizer, settings).vocab == VOCAB


# Casing and other settings


@pytest.mark.parametrize("name", ["do_lower_case", "strip_accents"])
@pytest.mark.parametrize("value", ["true", 1, []])
def test_refuses_a_wrong_casing(tmp_path, name, value):
    with pytest.raises(InputError, match=f"{name} of the tokenizer must be t"):
        read(tmp_path, VOCAB, settings={name: value})


@pytest.mark.parametrize(
    ("normalizer", "settings", "difference"),
    [
        ({}, {"tokenize_chinese_chars": False}, "tokenize_chinese_chars=F"),
        ({}, {"do_basic_tokenize": False}, "do_basic_tokenize=False"),
        ({}, {"tokenizer_class": "BertJapaneseTokenizer"}, "='BertJapanese"),
        ({"handle_chinese_chars": False}, {}, "handle_chinese_chars=False"),
        ({"clean_text": False}, {}, "clean_text=False"),
        ({}, {}, None),
        ({}, {"tokenizer_class": "BertTokenizerFast"}, None),
        ({}, {"tokenizer_class": None, "tokenize_chinese_chars": None}, None),
        ({}, {"never_split": None, "model_max_length": 10**30}, None),
    ],
)
def test_logs_a_tokenizer_that_differs(
    tmp_path, caplog, normalizer, settings, difference
):
    with caplog.at_level(logging.WARNING):
        found = read(tmp_path, VOCAB, whole(NORMALIZER | normalizer), settings)
    assert found.vocab == VOCAB
    if difference is None:
        assert not caplog.records
    else:
        assert difference in warning(caplog)


@pytest.mark.parametrize("do_lower_case", [True, False])
@pytest.mark.parametrize("strip_accents", [True, False, None])
def test_a_tokenizer_is_read_as_it_was_written(
    tmp_path, do_lower_case, strip_accents
):
    tokenizer = Tokenizer(VOCAB, do_lower_case, strip_accents)
    huggingface_tokenizer.write(str(tmp_path), tokenizer, 19)
    assert huggingface_tokenizer.read(str(tmp_path), VOCAB_SIZE) == tokenizer
    assert FullTokenizer(tmp_path / "vocab.txt").inv_vocab == list(VOCAB)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert settings["model_max_length"] == 19
    assert settings["tokenizer_class"] == "BertTokenizer"


def test_logs_an_unknown_casing(tmp_path, caplog):
    tokenizer = Tokenizer(VOCAB)
    with caplog.at_level(logging.WARNING):
        huggingface_tokenizer.write(str(tmp_path), tokenizer, 19)
    assert "will lower-case" in warning(caplog)
    assert huggingface_tokenizer.read(str(tmp_path), VOCAB_SIZE) == tokenizer
