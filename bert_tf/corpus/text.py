"""Reads text files and stores their token ids as a corpus on disk.

With the format "text", each line is a sentence and a blank line ends a
document. The end of a file ends a document too; in the original, the next file
continues it. With the format "jsonl", each line is a JSON object, one field of
which holds a document with one sentence per line.

Any process can read any range of a file: a line belongs to the range in which
it begins.
"""

import dataclasses
import os
from collections.abc import Iterable, Iterator
from io import BufferedIOBase

import numpy as np

from bert_tf.base import files
from bert_tf.data import tables
from bert_tf.errors import in_file, listed, not_utf8
from bert_tf.tokenization.wordpiece import FullTokenizer

# The bytes of text that a worker gets at a time: about 0.1 s of work.
BLOCK_BYTES = 1 << 20
# What `sentences` yields between two documents.
DOCUMENT_END = ""
_BYTE_ORDER_MARK = "\ufeff"


@dataclasses.dataclass(frozen=True)
class TextBlock:
    """Whole lines of one file, `offset` bytes after its start."""

    path: str
    offset: int
    text: bytes


def blocks_of_files(paths: Iterable[str]) -> Iterator[TextBlock]:
    """Reads files one after the other in blocks; see `text_blocks`."""
    for path in paths:
        yield from text_blocks(path)


def text_blocks(
    path: str,
    start: int = 0,
    stop: int | None = None,
    block_bytes: int | None = None,
) -> Iterator[TextBlock]:
    """Reads the lines of a file that begin at the bytes [start, stop).

    Args:
      start: The offset of the range, in bytes of the uncompressed text.
      stop: The end of the range; None for the end of the file.
      block_bytes: About how many bytes to read at a time; default BLOCK_BYTES.
    """
    with files.open_read(path) as file, files.gzip_faults(path):
        offset = 0
        if start:
            # One byte earlier: a line begins at `start` if that byte is "\n".
            file.seek(start - 1)
            offset = start - 1 + len(file.readline())
        for text in _whole_lines(file, block_bytes or BLOCK_BYTES):
            if stop is not None and offset + len(text) >= stop:
                if stop > offset:
                    # Keep the last line that begins before `stop` whole.
                    end = text.find(b"\n", stop - offset - 1) + 1
                    yield TextBlock(path, offset, text[: end or None])
                return
            yield TextBlock(path, offset, text)
            offset += len(text)


def _whole_lines(file: BufferedIOBase, block_bytes: int) -> Iterator[bytes]:
    """Yields about `block_bytes` at a time, cut at the ends of lines."""
    pending: list[bytes] = []
    while chunk := file.read(block_bytes):
        lines, newline, rest = chunk.rpartition(b"\n")
        if newline:
            yield b"".join([*pending, lines, newline])
            pending = []
        pending.append(rest)
    if last := b"".join(pending):
        yield last


def sentences(
    block: TextBlock, errors: str = "strict", jsonl_field: str | None = None
) -> Iterator[str]:
    """Yields the sentences of a block, with DOCUMENT_END between documents.

    Sentences are stripped and not empty. DOCUMENT_END may occur several times
    in a row and at the start of the block.

    Args:
      errors: What to do about invalid UTF-8: "strict", "replace" or "ignore".
      jsonl_field: The field of each line's JSON object that holds a document;
        None for plain text.

    Raises:
      InputError: If the text is not UTF-8 and `errors` is "strict", or if a
        line is not a JSON object with text in `jsonl_field`.
    """
    # Not splitlines, which also splits at U+2028 and other characters.
    lines = decode(block, errors).removesuffix("\n").split("\n")
    if jsonl_field is None:
        yield from map(str.strip, lines)
        return
    for number, line in enumerate(lines):
        yield DOCUMENT_END
        line = line.removeprefix(_BYTE_ORDER_MARK)
        if line.strip():
            try:
                text = _document(line, jsonl_field)
            except ValueError as error:
                place = _line_of(block, number)
                raise in_file(block.path, str(error), place) from None
            yield from filter(None, map(str.strip, text.split("\n")))


def _line_of(block: TextBlock, lines_before: int) -> int:
    """Returns the number of a line of a block, from 1, for an error message.

    Counting lines means reading the file up to the block.
    """
    before = text_blocks(block.path, 0, block.offset)
    lines = sum(each.text.count(b"\n") for each in before)
    return lines + lines_before + 1


def _document(line: str, field: str) -> str:
    """Returns the text in a field of the JSON object on a line."""
    fields = tables.json_object(line)
    text = fields.get(field)
    if isinstance(text, str):
        return text
    raise ValueError(
        f"expected text in the field {field!r}; the fields are "
        f"{listed(fields, quote=True) or 'missing'}. Pass the name of the "
        "field that holds the text as `jsonl_field`."
    )


def decode(block: TextBlock, errors: str) -> str:
    """Decodes a block of UTF-8 text; see `sentences` for `errors`."""
    try:
        return block.text.decode("utf-8", errors)
    except UnicodeDecodeError as error:
        line = _line_of(block, block.text.count(b"\n", 0, error.start))
        advice = "Convert the file to UTF-8 or pass `errors=replace`."
        raise not_utf8(error, block.path, line, advice) from error


@dataclasses.dataclass(frozen=True)
class EncodedBlock:
    """The token ids of the sentences of a TextBlock.

    `breaks` are the sentences that begin a new document: after a blank line, at
    each line of JSON Lines and at the start of a file. The break s, after the
    last sentence, means that the next block begins a new document.
    """

    path: str
    num_bytes: int  # Bytes of text in the block.
    tokens: np.ndarray  # Integers [t], the token ids of all sentences.
    lengths: np.ndarray  # int64 [s], the tokens of each sentence, at least 1.
    breaks: np.ndarray  # int64, ascending.

    def slice(self, first: int, stop: int | None = None) -> "EncodedBlock":
        """Returns the sentences [first, stop); `num_bytes` is unchanged."""
        offsets = np.concatenate([[0], np.cumsum(self.lengths)])
        stop = len(self.lengths) if stop is None else stop
        at_end = stop + (stop == len(self.lengths))
        is_inside = (first <= self.breaks) & (self.breaks < at_end)
        return dataclasses.replace(
            self,
            tokens=self.tokens[offsets[first] : offsets[stop]],
            lengths=self.lengths[first:stop],
            breaks=self.breaks[is_inside] - first,
        )

    def followed_by(self, other: "EncodedBlock") -> "EncodedBlock":
        """Returns `other` with the sentences of this block before its own."""
        breaks = [self.breaks, len(self.lengths) + other.breaks]
        return dataclasses.replace(
            other,
            tokens=np.concatenate([self.tokens, other.tokens]),
            lengths=np.concatenate([self.lengths, other.lengths]),
            breaks=np.concatenate(breaks),
        )


def encode_block(
    block: TextBlock,
    tokenizer: FullTokenizer,
    dtype: np.dtype,
    errors: str = "strict",
    jsonl_field: str | None = None,
) -> EncodedBlock:
    """Tokenizes the sentences of a block; drops those without tokens.

    For example, the lines "a b", "", "c" at the start of a file give three
    tokens, the lengths [2, 1] and the breaks [0, 1].

    `dtype` is the type of the token ids in the result. For the other arguments
    and errors, see `sentences`.
    """
    tokens: list[int] = []
    lengths: list[int] = []
    breaks = [0] if block.offset == 0 else []
    for sentence in sentences(block, errors, jsonl_field):
        if sentence == DOCUMENT_END:
            breaks.append(len(lengths))
        elif ids := tokenizer.encode(sentence):
            tokens.extend(ids)
            lengths.append(len(ids))
    return EncodedBlock(
        block.path,
        len(block.text),
        np.array(tokens, dtype),
        np.array(lengths, np.int64),
        np.unique(np.array(breaks, np.int64)),
    )


# Names of the files of a corpus within its folder.
TOKENS = "tokens"
_SENTENCES, _DOCUMENTS = "sentences", "documents"


@dataclasses.dataclass(frozen=True)
class Corpus:
    """The boundaries of the D documents and S sentences of a tokenized text.

    Document d has the sentences [document_offsets[d], document_offsets[d + 1]),
    and sentence s the tokens [sentence_offsets[s], sentence_offsets[s + 1]).
    """

    sentence_offsets: np.ndarray  # int64 [S + 1]
    document_offsets: np.ndarray  # int64 [D + 1]

    @classmethod
    def open(cls, folder: str) -> "Corpus":
        """Memory-maps the files of `write_corpus`, read-only.

        The operating system loads the pages that are used and can drop them.
        """
        paths = (os.path.join(folder, f) for f in (_SENTENCES, _DOCUMENTS))
        return cls(*(np.asarray(np.memmap(p, np.int64, "r")) for p in paths))

    @property
    def num_documents(self) -> int:
        return len(self.document_offsets) - 1

    @property
    def num_sentences(self) -> int:
        return len(self.sentence_offsets) - 1

    def sentence_range(
        self, documents: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns the first sentence and the end of each document."""
        offsets = self.document_offsets
        return offsets[documents], offsets[documents + 1]

    def section(self, first: int, stop: int) -> "Section":
        """Copies the boundaries within the sentences [first, stop)."""
        offsets = self.document_offsets
        document = int(np.searchsorted(offsets, first, "right")) - 1
        after = int(np.searchsorted(offsets, stop, "left"))
        inside = np.clip(offsets[document : after + 1], first, stop) - first
        sentences = np.array(self.sentence_offsets[first : stop + 1])
        skipped = first - int(offsets[document])
        return Section(Corpus(sentences, inside), document, skipped)


@dataclasses.dataclass(frozen=True)
class Pieces:
    """Short documents and pieces of long ones, from which instances are cut.

    A document of fewer than 2 * `size` sentences is one piece. A longer one is
    divided after every `size` sentences; the last piece also gets the rest.
    For example, 10 sentences with size 4 give pieces of 4 and 6.

    All arrays are int64 [number of pieces].
    """

    documents: np.ndarray  # The number of the document in the whole text.
    positions: np.ndarray  # The sentences of the document before the piece.
    first: np.ndarray  # The first sentence, counted from the section's start.
    stop: np.ndarray  # The end of the piece, counted from there too.


@dataclasses.dataclass(frozen=True)
class Section:
    """Consecutive documents; the section begins and ends where pieces do."""

    corpus: Corpus  # The section's sentences and (parts of) documents.
    first_document: int  # The number of the first document in the text.
    skipped: int  # The sentences of that document before the section.

    def pieces(self, size: int) -> Pieces:
        """Divides the documents into pieces of about `size` sentences."""
        index = np.arange(self.corpus.num_documents)
        first, stop = self.corpus.sentence_range(index)
        counts = num_pieces(stop - first, size)
        index = np.repeat(index, counts)
        number = np.arange(len(index)) - np.repeat(
            np.cumsum(counts) - counts, counts
        )
        positions = number * size
        ends = piece_ends(positions, (stop - first)[index], size)
        return Pieces(
            self.first_document + index,
            positions + np.where(index == 0, self.skipped, 0),
            first[index] + positions,
            first[index] + ends,
        )


def num_pieces(lengths: np.ndarray, size: int) -> np.ndarray:
    """Returns the number of pieces of documents of `lengths` sentences."""
    return np.maximum(lengths // size, 1)


def piece_ends(
    positions: np.ndarray, lengths: np.ndarray, size: int
) -> np.ndarray:
    """Returns the ends of the pieces that contain given sentences: int [n].

    The sentences, `positions`, and the ends are counted from the start of their
    document, which has `lengths` sentences.
    """
    number = positions // size + 1
    is_last = number >= num_pieces(lengths, size)
    return np.where(is_last, lengths, number * size)


def take_slices(
    items: np.ndarray, starts: np.ndarray, lengths: np.ndarray
) -> np.ndarray:
    """Concatenates slices of an array, which may be a mapped file.

    Args:
      items: An array [n].
      starts: Integers [k], the first item of each slice.
      lengths: Integers [k], the number of items of each slice.
    """
    before = np.cumsum(lengths) - lengths
    shifts = np.repeat(starts - before, lengths)
    return items[shifts + np.arange(len(shifts))]


def write_corpus(folder: str, blocks: Iterable[EncodedBlock]) -> int:
    """Writes blocks, in their order, as the files of a corpus.

    The files grow by writing: a full disk then raises an OSError, whereas
    writing to a mapping would kill the process.

    Returns:
      The number of documents. The last one ends with the last block.
    """
    num_tokens = num_sentences = num_documents = last_break = 0

    def end_documents(breaks: np.ndarray) -> None:
        """Ends the document before each of these sentences, unless empty."""
        nonlocal num_documents, last_break
        breaks = breaks[breaks > last_break]
        document_file.write(breaks)
        num_documents += len(breaks)
        last_break = max([last_break, *breaks[-1:].tolist()])

    with (
        open(os.path.join(folder, TOKENS), "wb") as token_file,
        open(os.path.join(folder, _SENTENCES), "wb") as sentence_file,
        open(os.path.join(folder, _DOCUMENTS), "wb") as document_file,
    ):
        sentence_file.write(np.zeros(1, np.int64))
        document_file.write(np.zeros(1, np.int64))
        for block in blocks:
            token_file.write(block.tokens)
            sentence_file.write(num_tokens + np.cumsum(block.lengths))
            end_documents(num_sentences + block.breaks)
            num_tokens += len(block.tokens)
            num_sentences += len(block.lengths)
        end_documents(np.array([num_sentences]))
    return num_documents
