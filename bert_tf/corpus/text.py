"""Text files, read in blocks of whole lines; documents and sentences in them.

In the format "text" a line is a sentence and a blank line ends a document; the
end of a file ends its document too, where the original lets it run on into the
next file. In the format "jsonl" a line is a document: a JSON object of which
one field holds the text, one sentence a line.

Any process can read any range of a file: a line belongs to the range in which
it begins.
"""

import contextlib
import dataclasses
import itertools
import os
from collections.abc import Iterator, Sequence
from io import BufferedIOBase
from typing import Protocol

import numpy as np

from bert_tf import files
from bert_tf.data import tables
from bert_tf.errors import InputError

# Text files, read in blocks of whole lines; documents and sentences in them.


# Text that a worker gets at a time: some tenths of a second of work.
BLOCK_BYTES = 1 << 20
# Stands between the sentences of two documents.
DOCUMENT_END = ""
FORMATS = ("text", "jsonl")
_BYTE_ORDER_MARK = "\ufeff"


@dataclasses.dataclass(frozen=True)
class TextFormat:
    """How documents are written down.

    Attributes:
      errors: What to do about bytes that are not UTF-8: "strict", "replace" or
        "ignore".
      jsonl_field: The field of a JSON object that holds a document's text;
        None for plain text.
    """

    errors: str = "strict"
    jsonl_field: str | None = None


@dataclasses.dataclass(frozen=True)
class TextBlock:
    """Whole lines of one file.

    Attributes:
      path: Where they are from.
      offset: The bytes of text that stand before them in the file.
      text: The lines, undecoded.
    """

    path: str
    offset: int
    text: bytes


@dataclasses.dataclass(frozen=True)
class _Place:
    """A line of a block, `path:line` as a string.

    To number it, the file is read up to there: only for one that is told.
    """

    block: TextBlock
    lines_before: int

    def __str__(self) -> str:
        path = self.block.path
        before = text_blocks(path, 0, self.block.offset)
        lines = sum(block.text.count(b"\n") for block in before)
        return f"{path}:{lines + self.lines_before + 1}"


def blocks_of_files(paths: Sequence[str]) -> Iterator[TextBlock]:
    """Reads files, block by block.

    Raises:
      InputError: A file cannot be read, or is no gzip file but named so.
    """
    for path in paths:
        yield from text_blocks(path)


def text_blocks(
    path: str,
    start: int = 0,
    stop: int | None = None,
    block_bytes: int | None = None,
) -> Iterator[TextBlock]:
    """Reads the lines of a file that begin from `start` up to `stop`.

    Args:
      path: The file.
      start: A place in its text.
      stop: The place from which on lines are left out; None for the end.
      block_bytes: About how much to read at a time; BLOCK_BYTES unless told.

    Raises:
      InputError: The file cannot be read, or is no gzip file but named so.
    """
    with files.open_read(path) as file, files.gzip_faults(path):
        offset = _seek_line(file, start)
        for text in _whole_lines(file, block_bytes or BLOCK_BYTES):
            if stop is not None and offset + len(text) >= stop:
                if inside := _lines_before(text, stop - offset):
                    yield TextBlock(path, offset, inside)
                return
            yield TextBlock(path, offset, text)
            offset += len(text)


def _seek_line(file: BufferedIOBase, start: int) -> int:
    """Moves to the first line that begins at `start` or later."""
    if start == 0:
        return 0
    # A byte earlier: a line begins at `start` if that is a line feed.
    file.seek(start - 1)
    return start - 1 + len(file.readline())


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


def _lines_before(text: bytes, stop: int) -> bytes:
    """The lines that begin at a place before `stop`."""
    if stop <= 0:
        return b""
    end = text.find(b"\n", stop - 1)
    return text if end < 0 else text[: end + 1]


def sentences(block: TextBlock, layout: TextFormat) -> Iterator[str]:
    """Yields the sentences of a block, and DOCUMENT_END between documents.

    Sentences are stripped and not empty. There may be several DOCUMENT_ENDs in
    a row, and also at the block's start.

    Raises:
      InputError: The text is not UTF-8, with "strict"; or a line of "jsonl" is
        no JSON object with the field that is asked for.
    """
    lines = decode(block, layout.errors).removesuffix("\n").split("\n")
    if layout.jsonl_field is None:
        # Not splitlines, which would split at U+2028 and others too.
        yield from map(str.strip, lines)
        return
    for number, line in enumerate(lines):
        yield DOCUMENT_END
        line = line.removeprefix(_BYTE_ORDER_MARK)
        if line.strip():
            place = _Place(block, number)
            text = _field(line, layout.jsonl_field, place)
            yield from filter(None, map(str.strip, text.split("\n")))


def _field(line: str, name: str, place: _Place) -> str:
    """The text in a field of a JSON object."""
    fields = tables.json_object(line, place)
    text = fields.get(name)
    if isinstance(text, str):
        return text
    if name in fields:
        raise InputError(
            f"Expected text in the field {name!r}. Received: a "
            f"{type(text).__name__} at {place}; name another field by "
            "--jsonl_field"
        )
    raise InputError(
        f"Expected a field {name!r} in every object. Received: the fields "
        f"{', '.join(map(repr, fields)) or 'of an empty object'} at {place}; "
        "name another by --jsonl_field"
    )


def decode(block: TextBlock, errors: str) -> str:
    """A block's text.

    Args:
      block: The text, UTF-8.
      errors: What to do about bytes that are not: "strict", "replace" or
        "ignore".

    Raises:
      InputError: Such bytes, with "strict".
    """
    try:
        return block.text.decode("utf-8", errors)
    except UnicodeDecodeError as error:
        place = _Place(block, block.text.count(b"\n", 0, error.start))
        raise InputError(
            "Expected UTF-8 text. Received: byte "
            f"0x{block.text[error.start]:02x} at {place}; convert the file, or "
            "pass --errors=replace"
        ) from error


# Blocks of text -> token ids on disk, with the ends of sentences, documents.


class Tokenizer(Protocol):
    """What encoding asks of a tokenizer."""

    def encode(self, text: str) -> list[int]:
        """The ids of a line's tokens."""


@dataclasses.dataclass(frozen=True)
class EncodedBlock:
    """The sentences of a TextBlock.

    Attributes:
      path: The file that it is from.
      num_bytes: Bytes of text that it was made from.
      tokens: Integers [t], the ids of all sentences.
      lengths: int64 [s], tokens of each sentence, 1 or more.
      breaks: int64, ascending: sentences, counted from the block's first,
        before which a document ends: at blank lines and at the start of a
        file. `s` itself says that the next block starts a document.
    """

    path: str
    num_bytes: int
    tokens: np.ndarray
    lengths: np.ndarray
    breaks: np.ndarray

    def part(self, first: int, stop: int) -> "EncodedBlock":
        """The sentences from `first` up to `stop`; the bytes stay."""
        offsets = np.concatenate([[0], np.cumsum(self.lengths)])
        at_end = len(self.lengths) + 1 if stop == len(self.lengths) else stop
        is_inside = (first <= self.breaks) & (self.breaks < at_end)
        return dataclasses.replace(
            self,
            tokens=self.tokens[offsets[first] : offsets[stop]],
            lengths=self.lengths[first:stop],
            breaks=self.breaks[is_inside] - first,
        )


def token_dtype(vocab_size: int) -> np.dtype:
    """The narrowest type that holds every id."""
    return np.min_scalar_type(vocab_size - 1)


def encode_block(
    block: TextBlock,
    tokenizer: Tokenizer,
    dtype: np.dtype,
    layout: TextFormat,
) -> EncodedBlock:
    """Encodes a block's sentences; those without a token count for nothing.

    Args:
      block: The text, UTF-8.
      tokenizer: Makes ids of a line.
      dtype: The type of the ids in the result.
      layout: How documents are written down in it.

    Raises:
      InputError: As `text_files.sentences`.
    """
    tokens: list[int] = []
    lengths: list[int] = []
    breaks = [0] if block.offset == 0 else []
    for sentence in sentences(block, layout):
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


# Names of the files of a corpus, within its folder.
TOKENS = "tokens"
_SENTENCES, _DOCUMENTS = "sentences", "documents"


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Where the D documents and S sentences of a tokenized text are.

    Attributes:
      sentence_offsets: int64 [S + 1]; sentence s has the tokens
        sentence_offsets[s] to sentence_offsets[s + 1], the latter excluded.
      document_offsets: int64 [D + 1]; document d has the sentences
        document_offsets[d] to document_offsets[d + 1], the latter excluded.
    """

    sentence_offsets: np.ndarray
    document_offsets: np.ndarray

    @classmethod
    def open(cls, folder: str) -> "Corpus":
        """Maps what CorpusWriter wrote into memory, read-only.

        The operating system fetches what is touched and may drop it again.
        """
        return cls(
            *(_mapped(folder, name) for name in (_SENTENCES, _DOCUMENTS))
        )

    @property
    def num_documents(self) -> int:
        return len(self.document_offsets) - 1

    @property
    def num_sentences(self) -> int:
        return len(self.sentence_offsets) - 1

    def sentence_range(
        self, documents: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The first sentence of each document, and the one after its last."""
        offsets = self.document_offsets
        return offsets[documents], offsets[documents + 1]

    def section(self, first: int, stop: int) -> "Section":
        """Copies what is known of the sentences from `first` up to `stop`."""
        offsets = self.document_offsets
        document = int(np.searchsorted(offsets, first, "right")) - 1
        after = int(np.searchsorted(offsets, stop, "left"))
        inside = np.clip(offsets[document : after + 1], first, stop) - first
        sentences = np.array(self.sentence_offsets[first : stop + 1])
        skipped = first - int(offsets[document])
        return Section(Corpus(sentences, inside), document, skipped)


@dataclasses.dataclass(frozen=True)
class Pieces:
    """What is cut into instances by itself: documents, or parts of long ones.

    A document of fewer than twice `size` sentences is one piece; a longer one
    is cut after each `size` sentences, but for a last piece of `size` or more.

    Attributes:
      documents: int64 [p], the number of the document in the whole text.
      places: int64 [p], sentences of the document that stand before the piece.
      first: int64 [p], the first sentence, counted from a section's.
      stop: int64 [p], the one after the last.
    """

    documents: np.ndarray
    places: np.ndarray
    first: np.ndarray
    stop: np.ndarray


@dataclasses.dataclass(frozen=True)
class Section:
    """Consecutive documents; it begins and ends where pieces do.

    Attributes:
      corpus: Its sentences, and its documents as far as they are inside.
      first_document: The number of the first one in the whole text.
      skipped: Sentences of that one that stand before the section.
    """

    corpus: Corpus
    first_document: int
    skipped: int

    def pieces(self, size: int) -> Pieces:
        """Divides the documents."""
        index = np.arange(self.corpus.num_documents)
        first, stop = self.corpus.sentence_range(index)
        counts = num_pieces(stop - first, size)
        index = np.repeat(index, counts)
        number = np.arange(len(index)) - np.repeat(
            np.cumsum(counts) - counts, counts
        )
        places = number * size
        ends = piece_ends(places, (stop - first)[index], size)
        return Pieces(
            self.first_document + index,
            places + np.where(index == 0, self.skipped, 0),
            first[index] + places,
            first[index] + ends,
        )


def num_pieces(lengths: np.ndarray, size: int) -> np.ndarray:
    """The pieces of documents of so many sentences."""
    return np.maximum(lengths // size, 1)


def piece_ends(
    places: np.ndarray, lengths: np.ndarray, size: int
) -> np.ndarray:
    """Where the pieces end that hold the sentences `places` of documents.

    Args:
      places: Integers [n], sentences counted from their document's first.
      lengths: Integers [n], the sentences of each document.
      size: As for `Pieces`.
    """
    number = places // size + 1
    is_last = number >= num_pieces(lengths, size)
    return np.where(is_last, lengths, number * size)


def _mapped(folder: str, name: str) -> np.ndarray:
    path = os.path.join(folder, name)
    return np.asarray(np.memmap(path, np.int64, mode="r"))


def read_slices(
    path: str, dtype: np.dtype, starts: np.ndarray, lengths: np.ndarray
) -> np.ndarray:
    """Reads scattered slices of a file of items of type `dtype`, end to end.

    As fast as a mapping, of which the pages around all that was touched would
    count as memory of this process.

    Args:
      path: A local file.
      dtype: The type of its items.
      starts: Integers [n], the first item of each slice.
      lengths: Integers [n], the items in each.
    """
    places = (starts * dtype.itemsize).tolist()
    sizes = (lengths * dtype.itemsize).tolist()
    with open(path, "rb", buffering=0) as file:
        handle = file.fileno()
        slices = map(os.pread, itertools.repeat(handle), sizes, places)
        return np.frombuffer(b"".join(slices), dtype)


def slices(
    items: np.ndarray, starts: np.ndarray, lengths: np.ndarray
) -> np.ndarray:
    """What `read_slices` reads, from an array instead of a file."""
    before = np.cumsum(lengths) - lengths
    shifts = np.repeat(starts - before, lengths)
    return items[shifts + np.arange(len(shifts))]


def read_segments(
    folder: str,
    documents: np.ndarray,
    points: np.ndarray,
    wanted: np.ndarray,
    size: int,
) -> np.ndarray:
    """Finds segments that begin somewhere in documents of a corpus.

    A segment takes one sentence at least, and more until it has `wanted`
    tokens or its piece ends.

    Args:
      folder: The folder of the corpus.
      documents: Integers [n], their numbers.
      points: float64 [n], where to begin, from 0 up to 1, excluded.
      wanted: Integers [n].
      size: As for `Pieces`.

    Returns:
      int64 [2, n]: the first token, and the one after the last.
    """
    integers = np.dtype(np.int64)
    bounds = read_slices(
        os.path.join(folder, _DOCUMENTS),
        integers,
        documents,
        np.full(len(documents), 2),
    ).reshape(-1, 2)
    lengths = bounds[:, 1] - bounds[:, 0]
    places = (points * lengths).astype(np.int64)
    wanted = np.maximum(wanted, 1)
    # No sentence is empty: more than `wanted` of them are never needed.
    counts = np.minimum(piece_ends(places, lengths, size) - places, wanted)
    offsets = read_slices(
        os.path.join(folder, _SENTENCES),
        integers,
        bounds[:, 0] + places,
        counts + 1,
    )
    begins = np.cumsum(counts + 1) - (counts + 1)
    goals = np.repeat(offsets[begins] + wanted, counts + 1)
    short_of_it = np.add.reduceat((offsets < goals).astype(np.int64), begins)
    stops = begins + np.minimum(short_of_it, counts)
    return np.stack([offsets[begins], offsets[stops]])


class CorpusWriter:
    """Appends encoded blocks to the files of a corpus.

    They grow by writing only: a full disk is an OSError here, whereas a write
    into a mapping would kill the process.

    Use it in a `with` statement; the end of that ends the last document.

    Attributes:
      num_tokens: Tokens written so far.
      num_sentences: Sentences written so far.
      num_documents: Documents that are complete so far.
    """

    def __init__(self, folder: str) -> None:
        self.num_tokens = 0
        self.num_sentences = 0
        self.num_documents = 0
        self._last_break = 0
        self._paths = [
            os.path.join(folder, name)
            for name in (TOKENS, _SENTENCES, _DOCUMENTS)
        ]

    def __enter__(self) -> "CorpusWriter":
        with contextlib.ExitStack() as stack:
            self._tokens, self._sentences, self._documents = (
                stack.enter_context(open(path, "wb")) for path in self._paths
            )
            self._stack = stack.pop_all()
        start = np.zeros(1, np.int64)
        self._sentences.write(start)
        self._documents.write(start)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._stack:
            if kind is None:
                self._end_documents(np.array([self.num_sentences]))

    def append(self, block: EncodedBlock) -> None:
        """Adds a block; the blocks have to come in order."""
        self._tokens.write(block.tokens)
        self._sentences.write(self.num_tokens + np.cumsum(block.lengths))
        self._end_documents(self.num_sentences + block.breaks)
        self.num_tokens += len(block.tokens)
        self.num_sentences += len(block.lengths)

    def _end_documents(self, breaks: np.ndarray) -> None:
        """Ends a document before each of these sentences, if there is one."""
        breaks = breaks[breaks > self._last_break]
        self._documents.write(breaks)
        self.num_documents += len(breaks)
        self._last_break = max([self._last_break, *breaks[-1:].tolist()])
