import gzip
import itertools
import json
import os

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.corpus import instances
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


def sentences(tmp_path, text, lines_before=0, **settings):
    """The sentences of the end of a file, after lines of another block."""
    before = b"abc\n" * lines_before
    path = tmp_path / "a.txt"
    path.write_bytes(before + text)
    block = TextBlock(str(path), len(before), text)
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


@pytest.mark.parametrize("size", [1, 2, 13, 64, 10_000])
def test_blocks_hold_all_lines_whole(tmp_path, monkeypatch, size):
    monkeypatch.setattr(text_module, "BLOCK_BYTES", size)
    path = tmp_path / "text.gz"
    path.write_bytes(gzip.compress(b"".join(LINES)))
    blocks = list(text_module.blocks_of_files([str(path)]))
    assert b"".join(block.text for block in blocks) == b"".join(LINES)
    ends = np.cumsum([len(block.text) for block in blocks]).tolist()
    assert [block.offset for block in blocks] == [0, *ends[:-1]]
    assert all(block.text.endswith(b"\n") for block in blocks[:-1])


@pytest.mark.parametrize("size", [1, 7, 10_000])
@pytest.mark.parametrize("step", [1, 5, 31, 500])
def test_a_line_is_in_the_range_in_which_it_begins(tmp_path, size, step):
    path = tmp_path / "text"
    path.write_bytes(b"".join(LINES))
    starts = [len(b"".join(LINES[:number])) for number in range(len(LINES))]
    for start in range(0, starts[-1] + 10, step):
        blocks = text_module.text_blocks(str(path), start, start + step, size)
        expected = [
            line
            for line, offset in zip(LINES, starts, strict=True)
            if start <= offset < start + step
        ]
        assert b"".join(block.text for block in blocks) == b"".join(expected)


def test_ranges_of_remote_files():
    text = b"".join(LINES)
    with tf.io.gfile.GFile("ram://ranges/text", "wb") as file:
        file.write(text)
    found = [
        block
        for start in range(0, len(text), 100)
        for block in text_module.text_blocks(
            "ram://ranges/text", start, start + 100
        )
    ]
    assert b"".join(block.text for block in found) == text
    assert found[1].offset == len(found[0].text)


def test_damaged_gzip_files_are_named(tmp_path):
    path = tmp_path / "text.gz"
    path.write_bytes(gzip.compress(os.urandom(5000))[:-100])
    with pytest.raises(InputError, match=r"text\.gz"):
        list(text_module.text_blocks(str(path)))


def test_lines_are_sentences(tmp_path):
    text = "a\u2028b\x0bc\r\n \u3000\t\n\nd".encode()
    assert sentences(tmp_path, text) == ["a\u2028b\x0bc", "", "", "d"]


def test_json_objects_are_documents(tmp_path):
    texts = ["One.\n\n Two. \r\nThree.", "\n", "Fünf \u2028."]
    lines = [json.dumps({"id": 3, "body": text}) for text in texts]
    text = "\ufeff" + "\n \r\n".join(lines) + "\n"
    found = sentences(tmp_path, text.encode(), jsonl_field="body")
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
        ("[1]", r"a\.txt:9"),
        ('"text"', r"a\.txt:9"),
        ('{"text": "a"', r"a\.txt:9"),
        (
            '{"id": 3, "body": ""}',
            r"a\.txt:9: expected a field 'text', found 'id' and 'body'\. .* "
            "--jsonl_field",
        ),
        ("{}", r"a\.txt:9: .* 'text', found an empty object\."),
        ('{"text": ["a"]}', r":9: the field 'text' must be text, not a list"),
        ('{"text": null}', r":9: the field 'text' must be text, not null\."),
        ('{"text": "\\ud83d"}', r"a\.txt:9: .*half of a surrogate pair"),
        ("a\xff", r"a\.txt:9: byte 0xff is not UTF-8\. .*--errors=replace"),
    ],
)
def test_lines_without_a_document_are_named(
    tmp_path, monkeypatch, line, message
):
    monkeypatch.setattr(text_module, "BLOCK_BYTES", 5)
    text = b'{"text": "a"}\n' + line.encode("latin-1") + b"\n{\n"
    with pytest.raises(InputError, match=message) as raised:
        sentences(tmp_path, text, lines_before=7, jsonl_field="text")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("errors", "expected"), [("replace", "c\ufffdc"), ("ignore", "cc")]
)
def test_invalid_utf8_can_be_replaced_or_ignored(tmp_path, errors, expected):
    assert sentences(tmp_path, b"c\xffc\n", errors=errors) == [expected]


@pytest.mark.parametrize(
    ("text", "offset", "breaks"),
    [
        ("a bb\n\n \nccc\n-\ndddd e", 5, [1]),
        ("a\n \t\u3000\r\nbb\n", 5, [1]),
        ("a\n", 0, [0]),
        ("a\n\n", 2, [1]),
    ],
)
def test_documents_end_at_blank_lines_and_starts_of_files(text, offset, breaks):
    block = encode(TextBlock("a.txt", offset, text.encode()))
    assert block.breaks.tolist() == breaks
    if "ccc" in text:
        assert block.tokens.tolist() == [1, 2, 3, 4, 1]
        assert block.lengths.tolist() == [2, 1, 2]


def test_lines_of_json_are_encoded_as_documents():
    text = b'{"t": "a bb\\n\\n ccc"}\n\n{"t": " - "}\n{"t": "dddd"}'
    block = encode(TextBlock("a.txt", 5, text), jsonl_field="t")
    assert block.tokens.tolist() == [1, 2, 3, 4]
    assert block.lengths.tolist() == [2, 1, 1]
    assert block.breaks.tolist() == [0, 2]


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
    assert corpus.num_sentences == 7
    with pytest.raises(ValueError, match="read-only"):
        corpus.sentence_offsets[0] = 5


def test_slices_of_files_and_arrays_are_concatenated(tmp_path):
    items = np.arange(100, dtype=np.int32)
    items.tofile(tmp_path / "items")
    slices = np.array([7, 0, 97, 5, 50]), np.array([3, 1, 3, 0, 2])
    path = str(tmp_path / "items")
    for found in (
        text_module.read_slices(path, items.dtype, *slices),
        text_module.take_slices(items, *slices),
    ):
        assert found.tolist() == [7, 8, 9, 0, 97, 98, 99, 50, 51]


@pytest.mark.parametrize("size", [1, 3, 7, 100])
def test_pieces_divide_long_documents(size):
    counts = np.array([1, 6, 7, 13, 14, 20, 21, 50])
    offsets = np.concatenate([[0], np.cumsum(counts)])
    section = Corpus(np.arange(offsets[-1] + 1), offsets).section(
        0, offsets[-1]
    )
    pieces = section.pieces(size)
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


@pytest.mark.parametrize("size", [3, 7, 100])
def test_pieces_of_sections_are_pieces_of_the_corpus(size):
    counts = np.random.default_rng(0).integers(1, 40, 31)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    corpus = Corpus(np.arange(offsets[-1] + 1), offsets)
    whole = corpus.section(0, corpus.num_sentences).pieces(size)
    ranges = list(instances.sections(corpus, size))
    found = [corpus.section(*range_).pieces(size) for range_ in ranges]
    for name in "documents", "positions":
        joined = np.concatenate([getattr(pieces, name) for pieces in found])
        np.testing.assert_array_equal(joined, getattr(whole, name))
    firsts = [p.first + r[0] for p, r in zip(found, ranges, strict=True)]
    np.testing.assert_array_equal(np.concatenate(firsts), whole.first)


@pytest.mark.parametrize("size", [2, 5, 100])
def test_segments_on_disk_equal_those_in_memory(tmp_path, size):
    rng = np.random.default_rng(0)
    text = "".join(
        "a " * words + "\n" * (1 + (rng.random() < 0.2))
        for words in rng.integers(1, 9, 300)
    )
    corpus = write_corpus(tmp_path, [text.encode()])
    owners = rng.integers(0, corpus.num_documents, 500)
    points, wanted = rng.random(500), rng.integers(-3, 30, 500)
    found = text_module.read_segments(
        str(tmp_path), owners, points, wanted, size
    )
    first, end = corpus.sentence_range(owners)
    start = first + (points * (end - first)).astype(int)
    end = first + text_module.piece_ends(start - first, end - first, size)
    stop = instances.find_stop(corpus, start, wanted, end)
    expected = corpus.sentence_offsets[np.stack([start, stop])]
    np.testing.assert_array_equal(found, expected)
    if size < 100:
        assert (stop == end).any()
    assert (stop < end).any()
