"""Text files, read in blocks of whole lines; documents and sentences in them.

In the format "text" a line is a sentence and a blank line ends a document; the
end of a file ends its document too, where the original lets it run on into the
next file. In the format "jsonl" a line is a document: a JSON object of which
one field holds the text, one sentence a line.

Any process can read any range of a file: a line belongs to the range in which
it begins.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from io import BufferedIOBase

from bert_tf import files
from bert_tf.data import delimited
from bert_tf.errors import InputError

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
    fields = delimited.json_object(line, place)
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
