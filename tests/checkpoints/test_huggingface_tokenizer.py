"""Vocabulary and casing of Hugging Face folders."""

import json

import pytest

from bert_tf.checkpoints import huggingface_tokenizer
from bert_tf.tokenization.wordpiece import FullTokenizer
from tests.checkpoints.small_models import (
    VOCAB,
    pretrained,
    refused,
    write_json,
)

# The model has room for more tokens.
VOCAB_SIZE = len(VOCAB) + 5
UNCASED = {
    "type": "BertNormalizer",
    "clean_text": True,
    "handle_chinese_chars": True,
    "strip_accents": None,
    "lowercase": True,
}
CASED = UNCASED | {"lowercase": False, "strip_accents": True}


def whole(normalizer=UNCASED, added=None, **model):
    """The contents of a tokenizer.json."""
    flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
    added_tokens = [
        {"id": n, "content": token, **dict.fromkeys(flags, False)}
        for token, n in (added or {"[PAD]": 0}).items()
    ]
    return {
        "added_tokens": added_tokens,
        "normalizer": normalizer,
        "model": {
            "type": "WordPiece",
            "continuing_subword_prefix": "##",
            "unk_token": "[UNK]",
            "max_input_chars_per_word": 100,
            "vocab": {token: n for n, token in enumerate(VOCAB)},
        }
        | model,
    }


def decoder(added):
    """Added tokens in the form of a tokenizer_config.json."""
    by_id = {str(n): {"content": token} for token, n in added.items()}
    return {"added_tokens_decoder": by_id}


@pytest.fixture
def read(tmp_path):
    """Returns a function that writes files and reads the tokenizer."""

    def read(vocab=None, tokenizer=None, settings=None, added=None):
        if vocab is not None:
            text = "".join(f"{token}\n" for token in vocab)
            (tmp_path / "vocab.txt").write_text(text, encoding="utf-8")
        for name, values in (
            ("tokenizer.json", tokenizer),
            ("tokenizer_config.json", settings),
            ("added_tokens.json", added),
        ):
            if values is not None:
                write_json(tmp_path, name, values)
        return huggingface_tokenizer.read(str(tmp_path), VOCAB_SIZE)

    return read


def warning(caplog):
    [record] = caplog.records
    assert "\n" not in record.getMessage()
    return record.getMessage()


def test_reads_the_vocabulary_of_either_file(read, tmp_path):
    assert {*read().values()} == {None}
    assert "vocab" not in read(added={"[E1]": 23})
    shuffled = dict(sorted(whole()["model"]["vocab"].items(), reverse=True))
    tokenizer = whole(vocab=shuffled)
    assert read(tokenizer=tokenizer, added={})["vocab"] == VOCAB
    # vocab.txt has priority. Programs that tokenize with it validate it.
    vocab = (*VOCAB, "", VOCAB[5], "", "x")
    assert read([*vocab, "", " "])["vocab"] == vocab
    with refused(r"vocab\.txt:25: .* on line 6\."):
        FullTokenizer(tmp_path / "vocab.txt")


@pytest.mark.parametrize(
    ("normalizer", "settings", "expected"),
    [
        (None, {}, (None, None)),
        (None, {"do_lower_case": False, "strip_accents": True}, (False, True)),
        (UNCASED, {}, (True, None)),
        (CASED, {}, (False, True)),
        # transformers builds its normalizer from the settings.
        (UNCASED, {"do_lower_case": False}, (False, None)),
        (
            {"type": "Sequence", "normalizers": [{"type": "NFC"}, UNCASED]},
            {},
            (True, None),
        ),
    ],
)
def test_reads_the_casing(read, normalizer, settings, expected):
    found = read(VOCAB, whole(normalizer), settings)
    assert (found["do_lower_case"], found["strip_accents"]) == expected


REFUSED = [
    (UNCASED, {"type": "BPE", "merges": []}, "WordPiece .*; got BPE"),
    (UNCASED, {"continuing_subword_prefix": "@@"}, "with '@@'"),
    (UNCASED, {"vocab": {"a": 0, "b": 2}}, "must be 0 to 1"),
    (UNCASED | {"lowercase": "true"}, {}, "not a tokenizer"),
]


@pytest.mark.parametrize(("normalizer", "model", "message"), REFUSED)
def test_refuses_another_kind_of_tokenizer(read, normalizer, model, message):
    with refused(rf"tokenizer\.json.*{message}"):
        read(tokenizer=whole(normalizer, **model))


def test_refuses_wrong_settings(read):
    with refused("added_tokens_decoder must be an object"):
        read(VOCAB, whole(), {"added_tokens_decoder": [7]})


ADDED = {"[PAD]": 0, "e1": 23, "e2": 24}


@pytest.mark.parametrize(
    ("tokenizer", "settings", "added"),
    [
        (whole(added=ADDED), {}, {}),
        (whole(), decoder(ADDED), {}),
        (whole(), {}, ADDED),
        (whole(added=ADDED), decoder(ADDED), ADDED),
    ],
)
def test_added_tokens_follow_the_vocabulary(
    read, caplog, tokenizer, settings, added
):
    """They may be in the vocabulary already."""
    for vocab in (None, VOCAB, (*VOCAB, "e1", "e2")):
        found = read(vocab, tokenizer, settings, added)
        assert found["vocab"] == (*VOCAB, "e1", "e2")
    assert not caplog.records


@pytest.mark.parametrize("token", [" x", "x\ny", ""])
def test_replaces_a_token_that_cannot_be_a_line(read, token):
    found = read(VOCAB, added={token: 23, "y": 24})
    assert found["vocab"] == (*VOCAB, "[unused23]", "y")


def test_a_token_without_an_embedding_is_left_out(read):
    added = {f"e{n}": n for n in (23, 27, 28, 24, 25, 26, 900)}
    found = read(VOCAB, added=added)
    assert found["vocab"] == (*VOCAB, *(f"e{n}" for n in range(23, 28)))


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ({"x": 23, "y": 25}, "consecutive from 23; got 23 and 25"),
        ({"x": 0}, r"both '\[PAD\]' and 'x' have id 0"),
        ({"x": 23, "y": 23}, "both 'x' and 'y' have id 23"),
        ({"x": -1}, "integer ids; got 'x' with id -1"),
    ],
)
def test_refuses_contradicting_tokens(read, tmp_path, tokens, message):
    with refused(f"{tmp_path}.*{message}"):
        read(VOCAB, added=tokens)


@pytest.mark.parametrize(
    ("do_lower_case", "lost"),
    [(True, "'<x>', 'GmbH', 'a b' and '[E11]'"), (False, "'<x>', 'a b' and")],
)
def test_names_added_tokens_that_never_occur(read, caplog, do_lower_case, lost):
    """transformers finds them in a text; both of our tokenizers do not."""
    tokens = ("<x>", "GmbH", "a b", "[E11]", "kg")
    added = {token: n for n, token in enumerate(tokens, len(VOCAB))}
    added |= {"[MASK]": 4}
    settings = {"do_lower_case": do_lower_case}
    vocab = read(VOCAB, settings=settings, added=added)["vocab"]
    assert vocab == (*VOCAB, *tokens)
    assert f"bert_tf never finds ({lost}" in warning(caplog)
    ids = FullTokenizer(vocab, do_lower_case).encode(" ".join(tokens))
    assert {vocab.index(x) for x in ("<x>", "a b", "[E11]")}.isdisjoint(ids)
    assert vocab.index("kg") in ids


@pytest.mark.parametrize(
    ("normalizer", "settings", "difference"),
    [
        ({}, {"tokenize_chinese_chars": False}, "tokenize_chinese_chars=F"),
        ({}, {"tokenizer_class": "BertJapaneseTokenizer"}, "='BertJapanese"),
        ({"clean_text": False}, {}, "clean_text=False"),
        ({}, {"tokenizer_class": "BertTokenizerFast"}, None),
        ({}, {"tokenizer_class": None, "tokenize_chinese_chars": None}, None),
    ],
)
def test_logs_a_tokenizer_that_differs(
    read, caplog, normalizer, settings, difference
):
    found = read(VOCAB, whole(UNCASED | normalizer), settings)
    assert found["vocab"] == VOCAB
    if difference is None:
        assert not caplog.records
    else:
        assert difference in warning(caplog)


@pytest.mark.parametrize("do_lower_case", [True, False, None])
@pytest.mark.parametrize("strip_accents", [True, None])
def test_reads_what_was_written(
    tmp_path, caplog, read, do_lower_case, strip_accents
):
    casing = {"do_lower_case": do_lower_case, "strip_accents": strip_accents}
    whole = pretrained("encoder", **casing)
    huggingface_tokenizer.write(str(tmp_path), whole, 19)
    if do_lower_case is None:
        assert "will lower-case" in warning(caplog)
    assert read() == {**casing, "vocab": VOCAB}
    assert FullTokenizer(tmp_path / "vocab.txt").inv_vocab == list(VOCAB)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert settings["model_max_length"] == 19
    assert settings["tokenizer_class"] == "BertTokenizer"
