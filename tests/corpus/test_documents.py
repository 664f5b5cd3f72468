import itertools

import numpy as np
import pytest

from bert_tf.corpus import instances
from bert_tf.corpus import text as text_module
from bert_tf.corpus.text import (
    TOKENS,
    Corpus,
    CorpusWriter,
    TextBlock,
    TextFormat,
    piece_ends,
    read_segments,
    read_slices,
    slices,
    token_dtype,
)


class LengthTokenizer:
    """Each word becomes its number of letters; "-" becomes nothing."""

    def encode(self, text):
        return [len(word) for word in text.split() if word != "-"]


PLAIN = TextFormat()


def encode(text, offset=0, layout=PLAIN):
    block = TextBlock("a.txt", offset, text)
    return encode_block(block, layout)


def encode_block(block, layout=PLAIN):
    return text_module.encode_block(
        block, LengthTokenizer(), np.dtype(np.uint8), layout
    )


def write_corpus(folder, paths):
    with CorpusWriter(str(folder)) as writer:
        for block in text_module.blocks_of_files(list(map(str, paths))):
            writer.append(encode_block(block))
    return writer, Corpus.open(str(folder))


def as_lists(folder, corpus):
    """Documents as lists of sentences, which are lists of ids."""
    tokens = np.fromfile(folder / TOKENS, np.uint8).tolist()
    sentences = [
        tokens[start:end]
        for start, end in itertools.pairwise(corpus.sentence_offsets)
    ]
    first, stop = corpus.sentence_range(np.arange(corpus.num_documents))
    return [sentences[a:b] for a, b in zip(first, stop, strict=True)]


def test_lines_are_sentences_and_blank_lines_end_documents():
    block = encode(b"a bb\n\n \nccc\n-\ndddd e", offset=5)
    assert block.tokens.tolist() == [1, 2, 3, 4, 1]
    assert block.lengths.tolist() == [2, 1, 2]
    assert block.breaks.tolist() == [1]


def test_white_space_alone_ends_documents_too():
    block = encode("a\n \t\u3000\r\nbb\n".encode(), offset=5)
    assert block.breaks.tolist() == [1]


def test_first_line_of_a_file_starts_a_document():
    assert encode(b"a\n", offset=0).breaks.tolist() == [0]
    assert encode(b"a\n\n", offset=2).breaks.tolist() == [1]


def test_lines_of_json_are_documents():
    layout = TextFormat(jsonl_field="text")
    block = encode(
        b'{"text": "a bb\\n\\n ccc"}\n\n{"text": " - "}\n{"text": "dddd"}',
        offset=5,
        layout=layout,
    )
    assert block.tokens.tolist() == [1, 2, 3, 4]
    assert block.lengths.tolist() == [2, 1, 1]
    assert block.breaks.tolist() == [0, 2]


def test_documents_run_over_blocks_and_end_with_files(tmp_path, monkeypatch):
    monkeypatch.setattr(text_module, "BLOCK_BYTES", 7)
    texts = [
        b"\n\na bb\nccc\n\n\ndddd\n",
        b"a\n" + b"b " * 50 + b"\nccc",
        b"\n \n",
        b"",
        b"a",
    ]
    paths = []
    for number, text in enumerate(texts):
        paths.append(tmp_path / f"{number}.txt")
        paths[-1].write_bytes(text)
    writer, corpus = write_corpus(tmp_path, paths)
    assert as_lists(tmp_path, corpus) == [
        [[1, 2], [3]],
        [[4]],
        [[1], [1] * 50, [3]],
        [[1]],
    ]
    assert writer.num_documents == corpus.num_documents == 4
    assert writer.num_sentences == corpus.num_sentences == 7
    assert writer.num_tokens == corpus.sentence_offsets[-1] == 57


def test_ids_are_as_narrow_as_the_vocabulary_allows():
    assert token_dtype(30522) == np.uint16
    assert token_dtype(2**16) == np.uint16
    assert token_dtype(119547) == np.uint32


def test_the_corpus_is_read_only(tmp_path):
    (tmp_path / "a.txt").write_text("a\n")
    _, corpus = write_corpus(tmp_path, [tmp_path / "a.txt"])
    with pytest.raises(ValueError, match="read-only"):
        corpus.sentence_offsets[0] = 5


def test_slices_are_read_end_to_end(tmp_path):
    items = np.arange(100, dtype=np.int32)
    items.tofile(tmp_path / "items")
    read = read_slices(
        str(tmp_path / "items"),
        items.dtype,
        starts=np.array([7, 0, 97, 5]),
        lengths=np.array([3, 1, 3, 0]),
    )
    assert read.tolist() == [7, 8, 9, 0, 97, 98, 99]


def test_slices_of_an_array_are_those_of_a_file():
    items = np.arange(100, dtype=np.int32)
    starts, lengths = np.array([7, 0, 97, 5, 50]), np.array([3, 1, 3, 0, 2])
    found = slices(items, starts, lengths)
    assert found.tolist() == [7, 8, 9, 0, 97, 98, 99, 50, 51]


@pytest.mark.parametrize("size", [1, 3, 7, 100])
def test_pieces_divide_long_documents(size):
    counts = np.array([1, 6, 7, 13, 14, 20, 21, 50])
    offsets = np.concatenate([[0], np.cumsum(counts)])
    section = Corpus(np.arange(offsets[-1] + 1), offsets).section(
        0, offsets[-1]
    )
    pieces = section.pieces(size)
    # They lie end to end, and cover everything.
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
            pieces.places[mine], pieces.first[mine] - offsets[document]
        )


@pytest.mark.parametrize("size", [3, 7, 100])
def test_pieces_of_sections_are_pieces_of_the_corpus(size):
    rng = np.random.default_rng(0)
    counts = rng.integers(1, 40, 31)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    corpus = Corpus(np.arange(offsets[-1] + 1), offsets)
    whole = corpus.section(0, corpus.num_sentences).pieces(size)
    ranges = list(instances.sections(corpus, size))
    found = [corpus.section(*range_).pieces(size) for range_ in ranges]
    for name in "documents", "places":
        joined = np.concatenate([getattr(pieces, name) for pieces in found])
        np.testing.assert_array_equal(joined, getattr(whole, name))
    firsts = [p.first + r[0] for p, r in zip(found, ranges, strict=True)]
    np.testing.assert_array_equal(np.concatenate(firsts), whole.first)


@pytest.mark.parametrize("size", [2, 5, 100])
def test_segments_on_disk_are_those_in_memory(tmp_path, size):
    rng = np.random.default_rng(0)
    text = "".join(
        "a " * words + "\n" * (1 + (rng.random() < 0.2))
        for words in rng.integers(1, 9, 300)
    )
    (tmp_path / "a.txt").write_text(text)
    _, corpus = write_corpus(tmp_path, [tmp_path / "a.txt"])
    owners = rng.integers(0, corpus.num_documents, 500)
    points, wanted = rng.random(500), rng.integers(-3, 30, 500)
    found = read_segments(str(tmp_path), owners, points, wanted, size)
    first, end = corpus.sentence_range(owners)
    start = first + (points * (end - first)).astype(int)
    end = first + piece_ends(start - first, end - first, size)
    stop = instances.find_stop(corpus, start, wanted, end)
    expected = corpus.sentence_offsets[np.stack([start, stop])]
    np.testing.assert_array_equal(found, expected)
    if size < 100:
        assert (stop == end).any()
    assert (stop < end).any()
