"""Text files -> token ids on disk, with the ends of sentences and documents.

A text holds one sentence a line and a blank line between documents; the end
of a file ends its document too, where the original lets it run on into the
next file. Files are read in blocks of whole lines, any process can encode any
block, and the results are joined in order.
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
from bert_tf.errors import InputError

# Text that a worker gets at a time: some tenths of a second of work.
BLOCK_BYTES = 1 << 20


class Tokenizer(Protocol):
    """What encoding asks of a tokenizer."""

    def encode(self, text: str) -> list[int]:
        """The ids of a line's tokens."""


@dataclasses.dataclass(frozen=True)
class TextBlock:
    """Whole lines of one file.

    Attributes:
      path: Where they are from.
      first_line: The number of the first one, from 1.
      text: The lines, undecoded.
    """

    path: str
    first_line: int
    text: bytes


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


def text_blocks(paths: Sequence[str]) -> Iterator[TextBlock]:
    """Reads files, block by block.

    Raises:
      InputError: A file cannot be read, or is no gzip file but named so.
    """
    for path in paths:
        line = 1
        with files.open_read(path) as file, files.gzip_faults(path):
            for text in _whole_lines(file):
                yield TextBlock(path, line, text)
                line += text.count(b"\n")


def _whole_lines(file: BufferedIOBase) -> Iterator[bytes]:
    """Yields about BLOCK_BYTES at a time, cut at the ends of lines."""
    pending: list[bytes] = []
    while chunk := file.read(BLOCK_BYTES):
        lines, newline, rest = chunk.rpartition(b"\n")
        if newline:
            yield b"".join([*pending, lines, newline])
            pending = []
        pending.append(rest)
    if last := b"".join(pending):
        yield last


def token_dtype(vocab_size: int) -> np.dtype:
    """The narrowest type that holds every id."""
    return np.min_scalar_type(vocab_size - 1)


def encode_block(
    block: TextBlock, tokenizer: Tokenizer, dtype: np.dtype, errors: str
) -> EncodedBlock:
    """Encodes a block's lines; those without a token count for nothing.

    Args:
      block: The text, UTF-8.
      tokenizer: Makes ids of a line.
      dtype: The type of the ids in the result.
      errors: As `decode`.

    Raises:
      InputError: The text is not UTF-8, with "strict".
    """
    tokens: list[int] = []
    lengths: list[int] = []
    breaks = [0] if block.first_line == 1 else []
    for line in _stripped_lines(decode(block, errors)):
        if ids := tokenizer.encode(line):
            tokens.extend(ids)
            lengths.append(len(ids))
        elif not line:
            breaks.append(len(lengths))
    return EncodedBlock(
        block.path,
        len(block.text),
        np.array(tokens, dtype),
        np.array(lengths, np.int64),
        np.unique(np.array(breaks, np.int64)),
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
        line = block.first_line + block.text.count(b"\n", 0, error.start)
        raise InputError(
            "Expected UTF-8 text. Received: byte "
            f"0x{block.text[error.start]:02x} at {block.path}:{line}; convert "
            "the file, or pass --errors=replace"
        ) from error


def _stripped_lines(text: str) -> Iterator[str]:
    # Not splitlines, which would split at U+2028 and others too.
    return map(str.strip, text.removesuffix("\n").split("\n"))


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
