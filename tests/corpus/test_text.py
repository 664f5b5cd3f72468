import gzip
import itertools
import json
import os

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.corpus import text as text_module
from bert_tf.corpus.text import Corpus, TextBlock
from bert_tf.errors import InputError


class LengthTokenizer:
    """Turns each word into its number of letters and "-" into nothing."""

    def encode(self, text):
        return [len(word) for word in text.split() if word != "-"]


def sentences(write, text, lines_before=0, **settings):
    """The sentences of the end of a file, after lines of another block."""
    before = b"abc\n" * lines_before
    block = TextBlock(write(before + text), len(before), text)
    return list(text_module.sentences(block, **settings))


def test_ranges_of_remote_and_damaged_files(write):
    text, remote = b"abc\nde\n\n" * 99, "ram://ranges/text"
    with tf.io.gfile.GFile(remote, "wb") as file:
        file.write(text)
    found = [
        block
        for start in range(0, len(text), 100)
        for block in text_module.text_blocks(remote, start, start + 100)
    ]
    assert b"".join(block.text for block in found) == text
    assert found[1].offset == len(found[0].text)
    path = write(gzip.compress(os.urandom(5000))[:-100], "text.gz")
    with pytest.raises(InputError, match=r"text\.gz"):
        list(text_module.text_blocks(path))


@pytest.mark.parametrize(
    ("text", "settings", "expected"),
    [
        (
            "a\u2028b\x0bc\r\n \u3000\t\n\nd".encode(),
            {},
            ["a\u2028b\x0bc", "", "", "d"],
        ),
        (b"c\xffc\n", {"errors": "replace"}, ["c\ufffdc"]),
        (b"c\xffc\n", {"errors": "ignore"}, ["cc"]),
    ],
)
def test_lines_are_sentences(write, text, settings, expected):
    assert sentences(write, text, **settings) == expected


def test_json_objects_are_documents(write):
    texts = ["One.\n\n Two. \r\nThree.", "\n", "Fünf \u2028."]
    lines = [json.dumps({"id": 3, "body": text}) for text in texts]
    text = "\ufeff" + "\n \r\n".join(lines) + "\n"
    found = sentences(write, text.encode(), jsonl_field="body")
    documents = [
        list(group)
        for has_text, group in itertools.groupby(found, bool)
        if has_text
    ]
    assert documents == [["One.", "Two.", "Three."], ["Fünf \u2028."]]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("wa wb", r"a\.txt:9"),
        (
            '{"id": 3, "body": ""}',
            r"a\.txt:9: expected text in the field 'text'; .* 'id' and "
            r"'body'\. .*`jsonl_field`",
        ),
        ('{"text": null}', r":9: expected text in the field 'text'"),
        ("a\xff", r"a\.txt:9: byte 0xff is not UTF-8\. .*`errors=replace`"),
    ],
)
def test_lines_without_a_document_are_named(write, monkeypatch, line, message):
    monkeypatch.setattr(text_module, "BLOCK_BYTES", 5)
    text = b'{"text": "a"}\n' + line.encode("latin-1") + b"\n{\n"
    with pytest.raises(InputError, match=message) as raised:
        sentences(write, text, lines_before=7, jsonl_field="text")
    assert "\n" not in str(raised.value)


def test_documents_span_blocks_and_end_with_files(tmp_path, monkeypatch):
    monkeypatch.setattr(text_module, "BLOCK_BYTES", 7)
    texts = [
        b"\n\na bb\nccc\n-\n\n \t\ndddd\n",
        b"a\n" + b"b " * 50 + b"\nccc",
        b"\n \n",
        b"",
        b"a",
    ]
    paths = [tmp_path / f"{number}.txt" for number in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_bytes(text)
    blocks = [
        text_module.encode_block(block, LengthTokenizer(), np.dtype(np.uint8))
        for block in text_module.blocks_of_files(map(str, paths))
    ]
    assert text_module.write_corpus(str(tmp_path), blocks) == 4
    corpus = Corpus.open(str(tmp_path))
    tokens = np.fromfile(tmp_path / text_module.TOKENS, np.uint8).tolist()
    found = [
        tokens[start:end]
        for start, end in itertools.pairwise(corpus.sentence_offsets)
    ]
    first, stop = corpus.sentence_range(np.arange(corpus.num_documents))
    assert [found[a:b] for a, b in zip(first, stop, strict=True)] == [
        [[1, 2], [3]],
        [[4]],
        [[1], [1] * 50, [3]],
        [[1]],
    ]


def test_pieces_divide_long_documents():
    offsets = np.cumsum([0, 1, 7, 8, 10])
    corpus = Corpus(np.arange(27), offsets)
    pieces = corpus.section(0, 26).pieces(4)
    assert pieces.documents.tolist() == [0, 1, 2, 2, 3, 3]
    assert pieces.positions.tolist() == [0, 0, 0, 4, 0, 4]
    assert pieces.first.tolist() == [0, 1, 8, 12, 16, 20]
    assert pieces.stop.tolist() == [1, 8, 12, 16, 20, 26]
