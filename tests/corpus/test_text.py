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

LINES = [b"x" * (n * 7 % 31) + b"\n" for n in range(97)] + [b"end"]


class LengthTokenizer:
    """Turns each word into its number of letters and "-" into nothing."""

    def encode(self, text):
        return [len(word) for word in text.split() if word != "-"]


def encode(block, jsonl_field=None):
    return text_module.encode_block(
        block, LengthTokenizer(), np.dtype(np.uint8), jsonl_field=jsonl_field
    )


def sentences(write, text, lines_before=0, **settings):
    """The sentences of the end of a file, after lines of another block."""
    before = b"abc\n" * lines_before
    block = TextBlock(write(before + text), len(before), text)
    return list(text_module.sentences(block, **settings))


def write_corpus(folder, texts):
    """Writes a file for each text, and the corpus of all."""
    paths = []
    for number, text in enumerate(texts):
        paths.append(f"{folder}/{number}.txt")
        (folder / f"{number}.txt").write_bytes(text)
    blocks = map(encode, text_module.blocks_of_files(paths))
    num_documents = text_module.write_corpus(str(folder), blocks)
    corpus = Corpus.open(str(folder))
    assert num_documents == corpus.num_documents
    return corpus


@pytest.mark.parametrize("size", [1, 7, 64, 10_000])
@pytest.mark.parametrize("step", [1, 31, 500, None])
def test_a_line_is_in_the_range_in_which_it_begins(write, size, step):
    """Blocks hold whole lines. A compressed file is read as a whole."""
    data = b"".join(LINES)
    path = write(data) if step else write(gzip.compress(data), "a.gz")
    starts = [len(b"".join(LINES[:number])) for number in range(len(LINES))]
    for start in range(0, starts[-1] + 10, step or 10_000):
        stop = start + step if step else None
        blocks = list(text_module.text_blocks(path, start, stop, size))
        expected = [
            line
            for line, offset in zip(LINES, starts, strict=True)
            if start <= offset < (stop or 10_000)
        ]
        assert b"".join(block.text for block in blocks) == b"".join(expected)
        for block in blocks:
            end = block.offset + len(block.text)
            assert data[block.offset : end] == block.text
            assert block.text.endswith(b"\n") or end == len(data)


def test_ranges_of_remote_and_damaged_files(write):
    text, remote = b"".join(LINES), "ram://ranges/text"
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
        ("{}", r"a\.txt:9: .* 'text'; the fields are missing\."),
        ('{"text": ["a"]}', r":9: expected text in the field 'text'"),
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


@pytest.mark.parametrize(
    ("text", "offset", "field", "tokens", "lengths", "breaks"),
    [
        ("a bb\n\n \nccc\n-\ndddd e", 5, None, [1, 2, 3, 4, 1], [2, 1, 2], [1]),
        ("a\n \t\u3000\r\nbb\n", 5, None, [1, 2], [1, 1], [1]),
        ("a\n", 0, None, [1], [1], [0]),
        ("a\n\n", 2, None, [1], [1], [1]),
        (
            '{"t": "a bb\\n\\n ccc"}\n\n{"t": " - "}\n{"t": "dddd"}',
            5,
            "t",
            [1, 2, 3, 4],
            [2, 1, 1],
            [0, 2],
        ),
    ],
)
def test_documents_end_at_blank_lines_and_starts_of_files(
    text, offset, field, tokens, lengths, breaks
):
    block = encode(TextBlock("a.txt", offset, text.encode()), field)
    assert block.tokens.tolist() == tokens
    assert block.lengths.tolist() == lengths
    assert block.breaks.tolist() == breaks


def test_documents_span_blocks_and_end_with_files(tmp_path, monkeypatch):
    monkeypatch.setattr(text_module, "BLOCK_BYTES", 7)
    texts = [
        b"\n\na bb\nccc\n\n\ndddd\n",
        b"a\n" + b"b " * 50 + b"\nccc",
        b"\n \n",
        b"",
        b"a",
    ]
    corpus = write_corpus(tmp_path, texts)
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


@pytest.mark.parametrize("size", [1, 3, 7, 100])
def test_pieces_divide_long_documents(size):
    counts = np.array([1, 6, 7, 13, 14, 20, 21, 50])
    offsets = np.concatenate([[0], np.cumsum(counts)])
    corpus = Corpus(np.arange(offsets[-1] + 1), offsets)
    pieces = corpus.section(0, offsets[-1]).pieces(size)
    assert pieces.first.tolist() == [0, *pieces.stop[:-1].tolist()]
    assert pieces.stop[-1] == offsets[-1]
    lengths = pieces.stop - pieces.first
    for document, count in enumerate(counts.tolist()):
        mine = pieces.documents == document
        assert lengths[mine].sum() == count
        assert (lengths[mine][:-1] == size).all()
        assert lengths[mine][-1] < 2 * size
        assert mine.sum() == 1 or (lengths[mine] >= size).all()
        np.testing.assert_array_equal(
            pieces.positions[mine], pieces.first[mine] - offsets[document]
        )
