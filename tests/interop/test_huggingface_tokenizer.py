import json
import logging

import pytest

from bert_tf.errors import InputError
from bert_tf.interop import huggingface_tokenizer
from bert_tf.interop.huggingface_tokenizer import Tokenizer
from bert_tf.tokenization.wordpiece import FullTokenizer
from tests.interop.huggingface_folders import write_json
from tests.interop.small_models import VOCAB

# The model has room for some more.
VOCAB_SIZE = len(VOCAB) + 5
NORMALIZER = {
    "type": "BertNormalizer",
    "clean_text": True,
    "handle_chinese_chars": True,
    "strip_accents": None,
    "lowercase": True,
}


def whole(normalizer=NORMALIZER, **model):
    """What a tokenizer.json holds."""
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
    if tokenizer is not None:
        write_json(tmp_path, "tokenizer.json", tokenizer)
    if settings is not None:
        write_json(tmp_path, "tokenizer_config.json", settings)
    if added is not None:
        write_json(tmp_path, "added_tokens.json", added)
    return huggingface_tokenizer.read(str(tmp_path), VOCAB_SIZE)


def test_a_folder_may_have_none(tmp_path):
    assert read(tmp_path) == Tokenizer()


def test_reads_a_vocabulary(tmp_path):
    assert read(tmp_path, vocab=VOCAB) == Tokenizer(VOCAB)


def test_reads_the_vocabulary_of_a_tokenizer_json(tmp_path):
    shuffled = dict(sorted(whole()["model"]["vocab"].items(), reverse=True))
    assert read(tmp_path, tokenizer=whole(vocab=shuffled)).vocab == VOCAB


def test_vocab_txt_goes_first(tmp_path):
    assert read(tmp_path, vocab=VOCAB[:7], tokenizer=whole()).vocab == VOCAB[:7]


def test_an_older_tokenizer_json_does_not_name_its_model(tmp_path):
    tokenizer = whole()
    del tokenizer["model"]["type"]
    assert read(tmp_path, tokenizer=tokenizer).vocab == VOCAB


@pytest.mark.parametrize(
    ("tokenizer", "settings", "expected"),
    [
        (None, {}, (None, None)),
        (None, {"do_lower_case": True}, (True, None)),
        (None, {"do_lower_case": False, "strip_accents": None}, (False, None)),
        (None, {"do_lower_case": False, "strip_accents": True}, (False, True)),
        (whole(), None, (True, None)),
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
        (whole({"type": "Sequence"}), None, (None, None)),
        (whole({"type": "Sequence", "normalizers": 7}), None, (None, None)),
        (whole([]), None, (None, None)),
    ],
)
def test_reads_the_casing(tmp_path, tokenizer, settings, expected):
    found = read(tmp_path, VOCAB, tokenizer, settings)
    assert (found.do_lower_case, found.strip_accents) == expected


@pytest.mark.parametrize(
    ("model", "complaint"),
    [
        ({"type": "BPE"}, "Received: 'BPE'"),
        ({"type": "Unigram"}, "Received: 'Unigram'"),
        ({"type": ["WordPiece"]}, r"Received: \['WordPiece'\]"),
        ({"continuing_subword_prefix": "@@"}, "with '@@'"),
        ({"vocab": {}}, "the id of every token"),
        ({"vocab": ["[PAD]"]}, "the id of every token"),
        ({"vocab": {"a": 0, "b": 2}}, "0 to 1, each once.*no token with id 1"),
        ({"vocab": {"a": 1, "b": 2}}, "no token with id 0"),
        ({"vocab": {"a": 0, "b": 0}}, "no token with id 1"),
        ({"vocab": {"a": 0, "b": -1}}, "no token with id 1"),
        ({"vocab": {"a": 0, "b": None}}, "no token with id 1"),
        ({"vocab": {"a": 0, "b": []}}, "no token with id 1"),
        ({"vocab": {"a": 0, "b": "1"}}, "no token with id 1"),
        ({"vocab": {"a": 0, " b": 1}}, "on a line of a vocab.txt.*' b', id 1"),
        ({"vocab": {"a": 0, "b\nc": 1}}, "on a line of a vocab.txt"),
    ],
)
def test_refuses_another_kind_of_vocabulary(tmp_path, model, complaint):
    with pytest.raises(InputError, match=complaint) as caught:
        read(tmp_path, tokenizer=whole(**model))
    assert "\n" not in str(caught.value)
    assert "tokenizer.json" in str(caught.value)


@pytest.mark.parametrize("model", [None, [], "WordPiece"])
def test_refuses_a_tokenizer_json_without_a_model(tmp_path, model):
    with pytest.raises(InputError, match="expected a WordPiece vocabulary"):
        read(tmp_path, tokenizer={"model": model, "version": "1.0"})


def test_a_vocabulary_is_read_with_its_faults(tmp_path):
    """Whoever tokenizes with it is told of them."""
    vocab = (*VOCAB, "", VOCAB[5], "", "x")
    assert read(tmp_path, vocab=[*vocab, "", " "]).vocab == vocab
    with pytest.raises(InputError, match=r"lines 6 and 25 of .*vocab\.txt"):
        FullTokenizer(tmp_path / "vocab.txt")


def listed(tokens):
    """Added tokens as a tokenizer.json has them."""
    return [{"id": n, "content": token} for n, token in tokens.items()]


def decoder(tokens):
    """Added tokens as a tokenizer_config.json has them."""
    return {str(n): {"content": token} for n, token in tokens.items()}


def warning(caplog):
    [record] = caplog.records
    assert "\n" not in record.getMessage()
    return record.getMessage()


@pytest.mark.parametrize("where", ["tokenizer", "settings", "added", "all"])
@pytest.mark.parametrize("has_vocab_txt", [True, False])
def test_added_tokens_go_on_behind_the_vocabulary(
    tmp_path, caplog, where, has_vocab_txt
):
    tokens = {24: "[E2]", 0: "[PAD]", 23: "[E1]"}
    tokenizer, settings, added = whole(), {}, {}
    if where in ("tokenizer", "all"):
        tokenizer["added_tokens"] = listed(tokens)
    if where in ("settings", "all"):
        settings["added_tokens_decoder"] = decoder(tokens)
    if where in ("added", "all"):
        added = {token: n for n, token in tokens.items()}
    vocab = VOCAB if has_vocab_txt else None
    with caplog.at_level(logging.WARNING):
        found = read(tmp_path, vocab, tokenizer, settings, added)
    assert found.vocab == (*VOCAB, "[E1]", "[E2]")
    assert "adds 2 to its vocabulary ('[E1]', '[E2]')" in warning(caplog)


def test_tokens_that_are_in_the_vocabulary_already_add_nothing(
    tmp_path, caplog
):
    """As in every tokenizer.json, and in what is written here and read."""
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


def test_without_a_vocabulary_nothing_is_added(tmp_path):
    assert read(tmp_path, added={"[E1]": 23}).vocab is None


@pytest.mark.parametrize("token", [" x", "x ", "x\ny", ""])
def test_an_added_token_that_is_no_line_keeps_its_id_free(
    tmp_path, caplog, token
):
    with caplog.at_level(logging.WARNING):
        found = read(tmp_path, VOCAB, added={token: 23, "y": 24})
    assert found.vocab == (*VOCAB, "[unused23]", "y")
    assert "1 of them left out, with white space" in warning(caplog)


def test_an_added_token_without_an_embedding_is_left_out(tmp_path, caplog):
    added = {f"[E{n}]": n for n in (23, 27, 28, 24, 25, 26, 900)}
    with caplog.at_level(logging.WARNING):
        found = read(tmp_path, VOCAB, added=added)
    assert found.vocab == (*VOCAB, *(f"[E{n}]" for n in range(23, 28)))
    message = warning(caplog)
    assert "adds 7 to its vocabulary" in message
    assert "2 of them left out, with ids that the model has no" in message


@pytest.mark.parametrize(
    ("added", "complaint"),
    [
        ({"x": 24}, "go on from 23. Received: 24 for 'x', and no .* id 23"),
        ({"x": 23, "y": 25}, "Received: 25 for 'y', and no token with id 24"),
        ({"x": 0}, r"one token with id 0 in .* '\[PAD\]' and 'x'"),
        ({"x": 23, "y": 23}, "one token with id 23 in .* 'x' and 'y'"),
        ({"a": 23}, "behind the 23 .* 'a' with id 23, which has id 5"),
        ({"x": -1}, "behind the 23 of the vocabulary .* 'x' with id -1"),
        ({"x": "23"}, "words with ids. Received: 'x' with id '23'"),
        ({"x": True}, "words with ids. Received: 'x' with id True"),
        ({"x": None}, "words with ids. Received: 'x' with id None"),
    ],
)
def test_refuses_added_tokens_that_contradict(tmp_path, added, complaint):
    with pytest.raises(InputError, match=complaint) as caught:
        read(tmp_path, VOCAB, added=added)
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_refuses_files_that_do_not_agree_on_added_tokens(tmp_path):
    tokenizer = whole() | {"added_tokens": listed({23: "x"})}
    settings = {"added_tokens_decoder": decoder({23: "y"})}
    with pytest.raises(InputError, match="one token with id 23"):
        read(tmp_path, VOCAB, tokenizer, settings)
    settings = {"added_tokens_decoder": {"²": {"content": "y"}}}
    with pytest.raises(InputError, match="Received: 'y' with id '²'"):
        read(tmp_path, VOCAB, whole(), settings)


@pytest.mark.parametrize("value", [None, 7, [7], {"7": 7}, {"7": None}])
def test_passes_over_what_lists_no_tokens(tmp_path, value):
    tokenizer = whole() | {"added_tokens": value}
    settings = {"added_tokens_decoder": value}
    assert read(tmp_path, VOCAB, tokenizer, settings).vocab == VOCAB


@pytest.mark.parametrize("name", ["do_lower_case", "strip_accents"])
@pytest.mark.parametrize("value", ["true", 1, []])
def test_refuses_a_casing_that_is_none(tmp_path, name, value):
    with pytest.raises(InputError, match=f"expected {name} to be true, false"):
        read(tmp_path, VOCAB, settings={name: value})


@pytest.mark.parametrize(
    ("tokenizer", "settings", "difference"),
    [
        (None, {"tokenize_chinese_chars": False}, "tokenize_chinese_chars=F"),
        (None, {"do_basic_tokenize": False}, "do_basic_tokenize=False"),
        (
            None,
            {"tokenizer_class": "BertJapaneseTokenizer"},
            "tokenizer_class='BertJapaneseTokenizer'",
        ),
        (
            whole(NORMALIZER | {"handle_chinese_chars": False}),
            None,
            "handle_chinese_chars=False",
        ),
        (whole(NORMALIZER | {"clean_text": False}), None, "clean_text=False"),
    ],
)
def test_warns_in_one_line_of_a_tokenizer_that_differs(
    tmp_path, caplog, tokenizer, settings, difference
):
    with caplog.at_level(logging.WARNING):
        assert read(tmp_path, VOCAB, tokenizer, settings).vocab == VOCAB
    [record] = caplog.records
    assert difference in record.getMessage()
    assert "\n" not in record.getMessage()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"tokenize_chinese_chars": True, "tokenizer_class": "BertTokenizer"},
        {"tokenizer_class": "BertTokenizerFast", "do_basic_tokenize": True},
        {"tokenizer_class": None, "tokenize_chinese_chars": None},
        {"never_split": None, "model_max_length": 1000000000000000019884624},
    ],
)
def test_does_not_warn_of_bert_tokenizers(tmp_path, caplog, settings):
    with caplog.at_level(logging.WARNING):
        read(tmp_path, VOCAB, whole(), settings)
    assert not caplog.records


@pytest.mark.parametrize("do_lower_case", [True, False])
@pytest.mark.parametrize("strip_accents", [True, False, None])
def test_reads_what_it_writes(tmp_path, do_lower_case, strip_accents):
    tokenizer = Tokenizer(VOCAB, do_lower_case, strip_accents)
    huggingface_tokenizer.write(str(tmp_path), tokenizer, 19)
    assert huggingface_tokenizer.read(str(tmp_path), VOCAB_SIZE) == tokenizer
    assert FullTokenizer(tmp_path / "vocab.txt").inv_vocab == list(VOCAB)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert settings["model_max_length"] == 19
    assert settings["tokenizer_class"] == "BertTokenizer"


def test_says_when_the_casing_is_not_known(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        huggingface_tokenizer.write(str(tmp_path), Tokenizer(VOCAB), 19)
    [record] = caplog.records
    assert "will lower-case" in record.getMessage()
    assert huggingface_tokenizer.read(str(tmp_path), VOCAB_SIZE) == Tokenizer(
        VOCAB
    )


@pytest.mark.parametrize(
    ("vocab", "expected"),
    [(None, 0), (VOCAB, 0), (("a", "b", "[PAD]"), 2), (("a", "b"), None)],
)
def test_finds_the_padding(vocab, expected):
    assert huggingface_tokenizer.pad_token_id(vocab) == expected
