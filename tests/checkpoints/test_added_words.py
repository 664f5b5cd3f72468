"""New words in a vocabulary, in every format."""

import dataclasses
import importlib.util

import keras
import numpy as np
import pytest
from keras import ops

from bert_tf.checkpoints import conversion
from bert_tf.checkpoints.added_words import add_words
from bert_tf.checkpoints.pretrained import open_pretrained
from bert_tf.tokenization.wordpiece import FullTokenizer
from tests.checkpoints.small_models import pretrained, refused, slots

OLD = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcde", "##a", "##b")
OLD += ("##c", "##d", "##e", "ab", "##cd", "bad", "-", ".", "x1", "x2", "x3")
# The third has characters that the vocabulary lacks.
FILE = "abcd\n\n  Cabbe \nzz\nabcd\nbad\nÉd\n"
WORDS = ("abcd", "cabbe", "zz", "ed")
PIECES = (("ab", "##cd"), ("c", "##a", "##b", "##b", "##e"), ("[UNK]",))
PIECES += (("e", "##d"),)
EMBEDDINGS = "bert/embeddings/word_embeddings"
BIAS = "cls/predictions/output_bias"
FORMATS = ["huggingface", "keras"]
if keras.backend.backend() == "tensorflow":
    FORMATS.append("google")


@pytest.fixture
def source():
    return dataclasses.replace(pretrained("pretraining"), vocab=OLD)


@pytest.fixture
def listed(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text(FILE, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("to", FORMATS)
def test_words_are_added_in_every_format(source, listed, to, tmp_path):
    planned = conversion.plan(add_words(source, listed), to)
    folder = tmp_path / "made"
    folder.mkdir()
    conversion.write(planned, str(folder))
    made = open_pretrained(folder)
    conversion.verify(planned, made)
    assert made.vocab == (*OLD, *WORDS)
    assert made.config.vocab_size == len(OLD) + len(WORDS)
    before, after = source.weights, made.weights
    ids = {token: number for number, token in enumerate(OLD)}
    for name, value in before.items():
        grown = after[name]
        np.testing.assert_array_equal(grown[: len(value)], value)
        new = grown[len(value) :]
        assert len(new) == (len(WORDS) if name in (EMBEDDINGS, BIAS) else 0)
        for row, pieces in zip(new, PIECES, strict=False):
            expected = np.mean([value[ids[p]] for p in pieces], axis=0)
            np.testing.assert_allclose(row, expected, rtol=1e-6)


def test_texts_without_the_words_do_not_change(source, listed):
    grown = add_words(source, listed)
    text = "bad ab.cde-ABC ecab zzz"
    tokenizers = [FullTokenizer(each.vocab) for each in (source, grown)]
    before, after = (tokenizer.encode(text) for tokenizer in tokenizers)
    assert after == before
    batch = {"input_ids": np.array([before], np.int32)}
    outputs = [
        conversion.keras_files.build_model(
            dataclasses.replace(each, head="encoder")
        )(batch)["sequence_output"]
        for each in (source, grown)
    ]
    ours, theirs = map(ops.convert_to_numpy, outputs)
    np.testing.assert_array_equal(ours, theirs)


def test_a_new_word_is_one_token(source, listed, tmp_path):
    """In each tokenizer; and the first piece of longer words."""
    grown = add_words(source, listed)
    text = "ABCD, cabbé zz! éd abcda"
    tokens = ["abcd", "[UNK]", "cabbe", "zz", "[UNK]", "ed", "abcd", "##a"]
    tokenizer = FullTokenizer(grown.vocab)
    assert tokenizer.tokenize(text) == tokens
    ids = tokenizer.convert_tokens_to_ids(tokens)
    assert tokenizer.encode(text) == ids
    if keras.backend.backend() == "tensorflow":
        from bert_tf.tokenization.graph import BertTokenizer

        in_graph = BertTokenizer(grown.vocab).tokenize([text])
        assert in_graph.to_list() == [ids]
    if importlib.util.find_spec("transformers"):
        import transformers

        planned = conversion.plan(grown, "huggingface")
        conversion.write(planned, str(tmp_path))
        theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
        assert theirs(text, add_special_tokens=False)["input_ids"] == ids


def test_rows_without_a_token_are_replaced(source, listed):
    """A model may have more rows than its vocabulary has tokens."""
    size = len(OLD)
    short = dataclasses.replace(source, vocab=OLD[: size - 2])
    grown = add_words(short, listed)
    assert grown.config.vocab_size == size + 2
    table, old = grown.weights[EMBEDDINGS], source.weights[EMBEDDINGS]
    assert table.shape == grown.weights.shapes[EMBEDDINGS] == (size + 2, 12)
    np.testing.assert_array_equal(table[: size - 2], old[: size - 2])
    assert not np.isclose(table[size - 2], old[size - 2]).any()
    short = dataclasses.replace(source, vocab=OLD[: size - 5])
    grown = add_words(short, listed)
    assert grown.config.vocab_size == size
    assert grown.weights[BIAS].shape == (size,)
    assert grown.weights[BIAS][-1] == source.weights[BIAS][-1]


def test_slots_of_new_words_are_zero(source, listed):
    state = slots(source.weights)
    weights = type(source.weights)({**source.weights, **state})
    source = dataclasses.replace(source, weights=weights)
    grown = add_words(source, listed)
    planned = conversion.plan(grown, "google", keep_optimizer=True)
    assert {f"{BIAS}/adam_v", f"{EMBEDDINGS}/adam_m"} < {*planned.bookkeeping}
    for name in planned.bookkeeping:
        old, new = weights[name], grown.weights[name]
        np.testing.assert_array_equal(new[: len(old)] if old.ndim else new, old)
        assert not (new[len(old) :].any() if old.ndim else False)
    assert grown.weights[f"{BIAS}/adam_m"].shape == (len(OLD) + len(WORDS),)


def test_skipped_lines_are_counted(source, listed, caplog):
    add_words(source, listed)
    assert f"Skipped 1 duplicates; the first: {listed}:5: 'abcd'" in caplog.text
    assert f"Skipped 1 known words; the first: {listed}:6: 'bad'" in caplog.text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "abcd\nab-cd",
            "words.txt:2: 'ab-cd' cannot be one token: the tokenizer changes "
            "it to 'ab - cd' before it looks for tokens.",
        ),
        ("new word", "words.txt:1: 'new word' cannot be one token"),
        ("中文", "changes it to '中 文'"),
        ("\u200b", "changes it to 'nothing'"),
        ("##ad", "changes it to '# # ad'"),
        (
            "e" * 101,
            "words.txt:1: a word must have at most 100 characters; got 101.",
        ),
        ("bad\n\n", "words.txt: there is no new word."),
    ],
)
def test_invalid_words_are_refused(source, tmp_path, content, message):
    path = tmp_path / "words.txt"
    path.write_text(content, encoding="utf-8")
    with refused(message):
        add_words(source, str(path))


@pytest.mark.parametrize("name", ["config", "vocab", "do_lower_case"])
def test_config_vocabulary_and_casing_are_required(source, listed, name):
    unknown = dataclasses.replace(source, **{name: None})
    with refused("`add_words` needs `"):
        add_words(unknown, listed)
