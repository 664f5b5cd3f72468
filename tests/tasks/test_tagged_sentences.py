import dataclasses
import logging
import random

import numpy as np
import pytest

from bert_tf.data import records
from bert_tf.errors import InputError
from bert_tf.tasks import ner
from bert_tf.tasks.conll import Sentence, read_conll
from bert_tf.tasks.ner import (
    TaggingEncoding,
    count_rows,
    labels_of,
    make_tagging_features,
    word_tags,
    write_tagging_features,
)
from bert_tf.tokenization.wordpiece import FullTokenizer

PAD, UNK, CLS, SEP, A, B, C, D = range(8)
VOCAB = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b", "c", "##d", "é", "-")
LABELS = ("O", "B-X", "I-X")
ENCODING = TaggingEncoding(VOCAB, True, None, 7, LABELS)


def sentence(words, tags=None, first_line=1):
    words = words.split(" ")
    return Sentence(
        tuple(words),
        tuple(tags.split()) if tags else None,
        tuple(range(first_line, first_line + len(words))),
        "x.txt",
    )


def rows(sentences, **changes):
    """The features of sentences as plain lists."""
    encoding = dataclasses.replace(ENCODING, **changes)
    made = make_tagging_features(sentences, encoding)
    return {name: values.tolist() for name, values in made.batch.items()}


# The features.


def test_a_label_stands_at_the_first_piece_of_its_word():
    sentences = [sentence("a bdd c", "O B-X I-X"), sentence("ad", "I-X")]
    assert rows(sentences) == {
        "input_ids": [
            [CLS, A, B, D, D, C, SEP],
            [CLS, A, D, SEP, PAD, PAD, PAD],
        ],
        "input_mask": [[1] * 7, [1] * 4 + [0] * 3],
        "segment_ids": [[0] * 7, [0] * 7],
        "label_ids": [[0, 0, 1, 0, 0, 2, 0], [0, 2, 0, 0, 0, 0, 0]],
        "label_mask": [[0, 1, 1, 0, 0, 1, 0], [0, 1, 0, 0, 0, 0, 0]],
    }


def test_types_are_those_of_records():
    batch = make_tagging_features([sentence("a")], ENCODING).batch
    assert list(batch) == [f.name for f in ENCODING.schema]
    assert {values.dtype for values in batch.values()} == {np.dtype(np.int32)}
    assert {values.shape for values in batch.values()} == {(1, 7)}


def test_a_word_may_be_several_to_the_tokenizer():
    made = rows([sentence("a-b c", "B-X O")])
    assert made["input_ids"] == [[CLS, A, 9, B, C, SEP, PAD]]
    assert made["label_ids"] == [[0, 1, 0, 0, 0, 0, 0]]
    assert made["label_mask"] == [[0, 1, 0, 0, 1, 0, 0]]


@pytest.mark.parametrize("nothing", ["\x00", "\ufffd", "\u200b", "", "\u0301"])
def test_a_word_of_no_piece_is_unknown(nothing):
    made = rows([sentence(f"a {nothing} b", "O B-X I-X")])
    assert made["input_ids"] == [[CLS, A, UNK, B, SEP, PAD, PAD]]
    assert made["label_ids"] == [[0, 0, 1, 2, 0, 0, 0]]


def test_the_casing_is_the_encodings():
    words = [sentence("É A")]
    assert rows(words)["input_ids"][0][1:3] == [UNK, A]
    assert rows(words, strip_accents=False)["input_ids"][0][1:3] == [8, A]
    assert rows(words, do_lower_case=False)["input_ids"][0][1:3] == [UNK, UNK]


def test_words_without_tags_are_marked_all_the_same():
    made = rows([sentence("ad b")])
    assert made["label_mask"] == [[0, 1, 0, 1, 0, 0, 0]]
    assert made["label_ids"] == [[0] * 7]


# What is too long.


def test_a_long_sentence_goes_on_in_the_next_row():
    """Five pieces a row; a word that does not fit begins the next."""
    made = rows(
        [sentence("a b add cdd a", "B-X I-X B-X O B-X"), sentence("b", "I-X")]
    )
    assert made["input_ids"] == [
        [CLS, A, B, A, D, D, SEP],
        [CLS, C, D, D, A, SEP, PAD],
        [CLS, B, SEP, PAD, PAD, PAD, PAD],
    ]
    assert made["label_ids"] == [
        [0, 1, 2, 1, 0, 0, 0],
        [0, 0, 0, 0, 1, 0, 0],
        [0, 2, 0, 0, 0, 0, 0],
    ]
    assert made["label_mask"] == [
        [0, 1, 1, 1, 0, 0, 0],
        [0, 1, 0, 0, 1, 0, 0],
        [0, 1, 0, 0, 0, 0, 0],
    ]


def test_a_word_longer_than_a_row_keeps_its_first_pieces():
    words = sentence("a bddddddd c", "O B-X I-X")
    made = make_tagging_features([words], ENCODING)
    assert made.num_cut == 1
    assert made.batch["input_ids"].tolist() == [
        [CLS, A, SEP, PAD, PAD, PAD, PAD],
        [CLS, B, D, D, D, D, SEP],
        [CLS, C, SEP, PAD, PAD, PAD, PAD],
    ]
    assert made.batch["label_ids"][:, 1].tolist() == [0, 1, 2]


def test_a_row_needs_room_for_a_piece():
    assert rows([sentence("a b")], max_seq_length=3)["input_ids"] == [
        [CLS, A, SEP],
        [CLS, B, SEP],
    ]
    with pytest.raises(InputError, match=r"max_seq_length .* Received: 2"):
        rows([sentence("a b")], max_seq_length=2)


def random_sentences(seed, count=97):
    draw = random.Random(seed)
    forms = ["a", "bd", "cddd", "a-b", "\x00", "?", "ddd", "a" + "d" * 20]
    sentences = []
    for _ in range(count):
        words = draw.choices(forms, k=draw.randrange(1, 30))
        tags = draw.choices(LABELS, k=len(words))
        sentences.append(sentence(" ".join(words), " ".join(tags)))
    return sentences


def row_by_row(sentences, encoding):
    """The rows of sentences, one word after the other."""
    tokenizer = FullTokenizer(encoding.vocab, encoding.do_lower_case)
    room, found = encoding.max_seq_length - 2, []
    for each in sentences:
        row = []
        for word in each.words:
            ids = (tokenizer.encode(word) or [UNK])[:room]
            if len(row) + len(ids) > room:
                found.append(row)
                row = []
            row = row + ids
        found.append(row)
    return [[CLS, *row, SEP] for row in found]


@pytest.mark.parametrize("max_seq_length", [3, 4, 5, 7, 13, 29, 101])
def test_every_word_has_its_label_once(max_seq_length):
    sentences = random_sentences(seed=max_seq_length)
    encoding = dataclasses.replace(ENCODING, max_seq_length=max_seq_length)
    batch = make_tagging_features(sentences, encoding).batch
    ids = [
        row[mask > 0].tolist()
        for row, mask in zip(
            batch["input_ids"], batch["input_mask"], strict=True
        )
    ]
    assert ids == row_by_row(sentences, encoding)
    assert count_rows(sentences, encoding) == len(ids)
    assert batch["label_mask"].sum() == sum(len(s.words) for s in sentences)
    assert not batch["label_ids"][batch["label_mask"] == 0].any()
    tags = word_tags(batch["label_ids"], batch["label_mask"], sentences, LABELS)
    assert tags == [s.tags for s in sentences]


def test_no_sentences_are_no_rows():
    batch = make_tagging_features([], ENCODING).batch
    assert {values.shape for values in batch.values()} == {(0, 7)}


# Labels.


def test_labels_are_those_of_all_types():
    sentences = [sentence("a b c", "I-Z O B-A-b"), sentence("a b", "O B-Z")]
    assert labels_of(sentences) == ("O", "B-A-b", "B-Z", "I-A-b", "I-Z")
    assert labels_of([sentence("a", "B")]) == ("O", "B", "I")
    assert labels_of([sentence("a"), sentence("a", "O")]) == ("O",)


def test_an_unknown_tag_is_told_with_its_place():
    sentences = [sentence("a"), sentence("a b", "O B-Y", first_line=5)]
    with pytest.raises(InputError) as caught:
        make_tagging_features(sentences, ENCODING)
    assert str(caught.value) == (
        "Expected a tag among O, B-X, I-X. Received: 'B-Y' at x.txt:6; "
        "correct it, or train with --labels that include it"
    )


def test_an_unknown_tag_is_spelled_as_in_its_file(tmp_path):
    path = tmp_path / "iob1.txt"
    path.write_text("a I-X\nb I-DATE\n")
    message = r"Received: 'I-DATE' \(B-DATE in IOB2\) at .*iob1\.txt:2;"
    with pytest.raises(InputError, match=message):
        make_tagging_features(read_conll(str(path)).sentences, ENCODING)


# Predictions.


def test_tags_of_words_are_the_predictions_at_their_first_pieces():
    sentences = [sentence("a bd c"), sentence("a b c a b c"), sentence("bd")]
    mask = make_tagging_features(sentences, ENCODING).batch["label_mask"]
    assert len(mask) == 4
    predicted = np.full(mask.shape, 2)
    predicted[mask > 0] = [0, 1, 2, 1, 1, 0, 2, 0, 1, 0]
    assert word_tags(predicted, mask, sentences, LABELS) == [
        ("O", "B-X", "I-X"),
        ("B-X", "B-X", "O", "I-X", "O", "B-X"),
        ("O",),
    ]


def test_labels_of_other_sentences_are_refused():
    mask = make_tagging_features([sentence("a b")], ENCODING).batch[
        "label_mask"
    ]
    for words in ("a", "a b c"):
        with pytest.raises(ValueError, match="Received: 2"):
            word_tags(mask, mask, [sentence(words)], LABELS)


# Records.


def test_records_hold_the_features(tmp_path, caplog):
    caplog.set_level(logging.INFO, "absl")
    sentences = [sentence("a bdd c", "O B-X I-X"), sentence("a b c a b c")]
    path = str(tmp_path / "a.tf_record")
    assert write_tagging_features(path, sentences, ENCODING)
    assert records.count_records(path) == 3
    records.check_first_record(path, ENCODING.schema)
    batch = make_tagging_features(sentences, ENCODING).batch
    expected = records.frame(records.encode_batch(ENCODING.schema, batch))
    with open(path, "rb") as file:
        assert file.read() == expected
    assert "2 sentences in 3 rows of at most 7 places" in caplog.text
    assert "tokens: [CLS] a b ##d ##d c [SEP]" in caplog.text
    assert "labels: O B-X I-X" in caplog.text


def test_records_are_used_again_until_something_changes(tmp_path, monkeypatch):
    path = str(tmp_path / "a.tf_record")
    sentences = random_sentences(seed=1)
    assert write_tagging_features(path, sentences, ENCODING)
    assert not write_tagging_features(path, sentences, ENCODING)
    retagged = dataclasses.replace(sentences[3], tags=None)
    changed = [*sentences[:3], retagged, *sentences[4:]]
    assert write_tagging_features(path, changed, ENCODING)
    other = dataclasses.replace(ENCODING, max_seq_length=8)
    assert write_tagging_features(path, changed, other)
    assert write_tagging_features(path, changed, other, reading={"column": 1})


def test_parts_are_one_file(tmp_path, monkeypatch):
    path, other = (str(tmp_path / name) for name in "ab")
    sentences = random_sentences(seed=2)
    write_tagging_features(path, sentences, ENCODING)
    monkeypatch.setattr(ner, "_SENTENCES_PER_PART", 11)
    write_tagging_features(other, sentences, ENCODING)
    with open(path, "rb") as one, open(other, "rb") as two:
        assert one.read() == two.read()


def test_the_official_file_keeps_all_its_words(shared_data):
    conll = str(shared_data / "conll2003" / "eng.testa")
    vocab = shared_data / "vocab" / "bert-base-uncased-vocab.txt"
    sentences = read_conll(conll).sentences
    labels = labels_of(sentences)
    assert len(labels) == 9
    words = tuple(vocab.read_text(encoding="utf-8").splitlines())
    for length in (32, 128):
        encoding = TaggingEncoding(words, True, None, length, labels)
        batch, num_cut = make_tagging_features(sentences, encoding)
        assert num_cut == 0
        assert len(batch["input_ids"]) > len(sentences)
        assert batch["label_mask"].sum() == 51362
        tags = word_tags(
            batch["label_ids"], batch["label_mask"], sentences, labels
        )
        assert tags == [s.tags for s in sentences]
