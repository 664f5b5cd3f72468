import gzip
import itertools
import os

import numpy as np
import pytest

from bert_tf.data import documents
from bert_tf.data.documents import Corpus, CorpusWriter, TextBlock
from bert_tf.errors import InputError


class LengthTokenizer:
    """Each word becomes its number of letters; "-" becomes nothing."""

    def encode(self, text):
        return [len(word) for word in text.split() if word != "-"]


def encode(text, first_line=1, errors="strict"):
    block = TextBlock("a.txt", first_line, text)
    return documents.encode_block(
        block, LengthTokenizer(), np.dtype(np.uint8), errors
    )


def write_corpus(folder, paths):
    with CorpusWriter(str(folder)) as writer:
        for block in documents.text_blocks(list(map(str, paths))):
            writer.append(
                documents.encode_block(
                    block, LengthTokenizer(), np.dtype(np.uint8), "strict"
                )
            )
    return writer, Corpus.open(str(folder))


def as_lists(folder, corpus):
    """Documents as lists of sentences, which are lists of ids."""
    tokens = np.fromfile(folder / documents.TOKENS, np.uint8).tolist()
    sentences = [
        tokens[start:end]
        for start, end in itertools.pairwise(corpus.sentence_offsets)
    ]
    first, stop = corpus.sentence_range(np.arange(corpus.num_documents))
    return [sentences[a:b] for a, b in zip(first, stop, strict=True)]


def test_lines_are_sentences_and_blank_lines_end_documents():
    block = encode(b"a bb\n\n \nccc\n-\ndddd e", first_line=5)
    assert block.tokens.tolist() == [1, 2, 3, 4, 1]
    assert block.lengths.tolist() == [2, 1, 2]
    assert block.breaks.tolist() == [1]


def test_white_space_alone_ends_documents_too():
    block = encode("a\n \t\u3000\r\nbb\n".encode(), first_line=5)
    assert block.breaks.tolist() == [1]


def test_first_line_of_a_file_starts_a_document():
    assert encode(b"a\n", first_line=1).breaks.tolist() == [0]
    assert encode(b"a\n\n", first_line=2).breaks.tolist() == [1]


def test_lines_end_at_line_feeds_only():
    block = encode("a\u2028b\x0bc\r\nd".encode())
    assert len(block.lengths) == 2


def test_bytes_that_are_not_utf8_are_told_with_their_line():
    with pytest.raises(InputError, match=r"0xff at a\.txt:9.*--errors=replace"):
        encode(b"a\nbb\nc\xffc\n", first_line=7)


@pytest.mark.parametrize(("errors", "length"), [("replace", 3), ("ignore", 2)])
def test_bytes_that_are_not_utf8_can_be_passed_over(errors, length):
    assert encode(b"c\xffc\n", errors=errors).tokens.tolist() == [length]


def test_documents_run_over_blocks_and_end_with_files(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "BLOCK_BYTES", 7)
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


@pytest.mark.parametrize("size", [1, 2, 13, 64, 10_000])
def test_blocks_hold_whole_lines_and_all_of_them(tmp_path, monkeypatch, size):
    monkeypatch.setattr(documents, "BLOCK_BYTES", size)
    lines = [b"x" * (n * 7 % 31) + b"\n" for n in range(97)] + [b"end"]
    path = tmp_path / "text.gz"
    path.write_bytes(gzip.compress(b"".join(lines)))
    blocks = list(documents.text_blocks([str(path)]))
    assert b"".join(block.text for block in blocks) == b"".join(lines)
    for block in blocks:
        assert block.text.startswith(lines[block.first_line - 1])
    assert all(block.text.endswith(b"\n") for block in blocks[:-1])


def test_damaged_gzip_files_are_named(tmp_path):
    path = tmp_path / "text.gz"
    path.write_bytes(gzip.compress(os.urandom(5000))[:-100])
    with pytest.raises(InputError, match=r"text\.gz"):
        list(documents.text_blocks([str(path)]))


def test_ids_are_as_narrow_as_the_vocabulary_allows():
    assert documents.token_dtype(30522) == np.uint16
    assert documents.token_dtype(2**16) == np.uint16
    assert documents.token_dtype(119547) == np.uint32


def test_the_corpus_is_read_only(tmp_path):
    (tmp_path / "a.txt").write_text("a\n")
    _, corpus = write_corpus(tmp_path, [tmp_path / "a.txt"])
    with pytest.raises(ValueError, match="read-only"):
        corpus.sentence_offsets[0] = 5


def test_slices_are_read_end_to_end(tmp_path):
    items = np.arange(100, dtype=np.int32)
    items.tofile(tmp_path / "items")
    read = documents.read_slices(
        str(tmp_path / "items"),
        items.dtype,
        starts=np.array([7, 0, 97, 5]),
        lengths=np.array([3, 1, 3, 0]),
    )
    assert read.tolist() == [7, 8, 9, 0, 97, 98, 99]
