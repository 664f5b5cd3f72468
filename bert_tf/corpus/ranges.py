"""Reads ranges of text files as sections, for many machines at a time.

`plan_tasks` divides the files into ranges of bytes. A document belongs to the
range in which the break before it begins: a blank line, the start of the file,
or its own line of JSON. The worker with that range reads past its end until the
document ends; the worker with the next range begins with its first break. So no
text has to be read from the start of a file. A compressed file is one range.

A worker holds one or two sections of a task at a time, however long the
documents are.
"""

import collections
import dataclasses
import itertools
import os
from collections.abc import Iterator, Sequence

import numpy as np

from bert_tf.base import files
from bert_tf.corpus import creation
from bert_tf.corpus.settings import CreationConfig
from bert_tf.corpus.text import Corpus, EncodedBlock, text_blocks
from bert_tf.errors import InputError

# The bytes to read at a time to find the end of a range's last document.
TAIL_BYTES = 1 << 16


@dataclasses.dataclass(frozen=True)
class TextRange:
    """The bytes [start, stop) of a file; `stop` is None for the rest."""

    path: str
    start: int = 0
    stop: int | None = None


@dataclasses.dataclass(frozen=True)
class ReadingTask:
    """What a worker reads at a time: a large range, or many small files."""

    number: int  # In the order of the text.
    ranges: tuple[TextRange, ...]


@dataclasses.dataclass(frozen=True)
class TextSection:
    """A part of the tokenized text that fits into memory.

    `position` is the number of the task and of the section within the task.
    """

    position: tuple[int, int]
    tokens: np.ndarray  # Integers [t], the token ids.
    corpus: Corpus  # The boundaries of sentences and (parts of) documents.
    continues: bool  # Whether the first document began in the section before.


@dataclasses.dataclass(frozen=True)
class TaskReport:
    """Statistics of the text of a task.

    `error` is what the user has to fix, or "". If it is set, the rest of the
    task was not read.
    """

    number: int
    num_sections: int
    text_bytes: dict[str, int]  # Bytes of text that were read of each file.
    counts: collections.Counter[str]  # By their names in the manifest.
    error: str = ""


def plan_tasks(paths: Sequence[str], text_bytes: int) -> Iterator[ReadingTask]:
    """Divides files into tasks of about `text_bytes` each."""
    numbers = itertools.count()
    pending: list[TextRange] = []
    size = 0
    for path in paths:
        # A gzip file, whose size is unknown, counts as a whole task.
        file_bytes = size_of(path) or text_bytes
        count = max(round(file_bytes / text_bytes), 1)
        starts = [file_bytes * number // count for number in range(count)]
        for start, stop in itertools.pairwise([*starts, None]):
            pending.append(TextRange(path, start or 0, stop))
            size += min(file_bytes, text_bytes)
            if size >= text_bytes:
                yield ReadingTask(next(numbers), tuple(pending))
                pending, size = [], 0
    if pending:
        yield ReadingTask(next(numbers), tuple(pending))


def size_of(path: str) -> int:
    """Returns the bytes of text in a file; 0, for unknown, if compressed."""
    if path.endswith(".gz"):
        return 0
    with files.open_read(path) as file:
        # The `seek` of TensorFlow's files returns None.
        file.seek(0, os.SEEK_END)
        return file.tell()


def read_task(
    task: ReadingTask, config: CreationConfig, section_size: int
) -> Iterator[TextSection | TaskReport]:
    """Tokenizes the documents of a task.

    Yields:
      Sections of about `section_size` sentences (see `text.Pieces`), then one
      report. An InputError is in the report, because a cluster would retry the
      task if it were raised.
    """
    text_bytes = {text_range.path: 0 for text_range in task.ranges}
    counts: collections.Counter[str] = collections.Counter()
    collector = _SectionCollector(task.number, section_size)
    fault = ""
    try:
        for text_range in task.ranges:
            for block in _owned_blocks(config, text_range):
                text_bytes[block.path] += block.num_bytes
                counts.update(creation.token_counts(config, block))
                yield from collector.add(block)
            collector.end_document()
    except InputError as error:
        fault = str(error)
    else:
        yield from collector.finish()
    yield TaskReport(
        task.number, collector.num_sections, text_bytes, counts, fault
    )


def _owned_blocks(
    config: CreationConfig, text_range: TextRange
) -> Iterator[EncodedBlock]:
    """Yields the documents that belong to a range, in blocks.

    `num_bytes` of the blocks counts the bytes of the range only.
    """
    path, start, stop = dataclasses.astuple(text_range)
    has_begun = False
    for text in text_blocks(path, start, stop):
        block = creation.encode(config, text)
        first = 0 if has_begun else _first_break(block)
        has_begun = has_begun or len(block.breaks) > 0
        yield block.slice(first, len(block.lengths))
    if not has_begun or stop is None:
        return
    for text in text_blocks(path, stop, block_bytes=TAIL_BYTES):
        block = creation.encode(config, text)
        yield dataclasses.replace(
            block.slice(0, _first_break(block)), num_bytes=0
        )
        if len(block.breaks):
            return


def _first_break(block: EncodedBlock) -> int:
    """Returns the first sentence of the first new document, or the end."""
    return int(block.breaks[0]) if len(block.breaks) else len(block.lengths)


class _SectionCollector:
    """Gathers blocks of sentences into sections.

    A section ends with a document, unless the document is long: then the
    section is one piece of it.
    """

    def __init__(self, task: int, size: int) -> None:
        self._task = task
        self._size = size
        self.num_sections = 0
        self._continues = False
        self._tokens = np.zeros(0, np.uint8)
        self._lengths = np.zeros(0, np.int64)
        # The sentences before which a document ends; 0 and the end may occur.
        self._breaks = np.zeros(0, np.int64)

    def add(self, block: EncodedBlock) -> Iterator[TextSection]:
        """Adds sentences; yields the sections that are complete."""
        before = len(self._lengths)
        self._breaks = np.concatenate([self._breaks, before + block.breaks])
        self._tokens = np.concatenate([self._tokens, block.tokens])
        self._lengths = np.concatenate([self._lengths, block.lengths])
        while stop := self._next_stop():
            yield self._take(stop)

    def end_document(self) -> None:
        """Ends the current document."""
        self._breaks = np.append(self._breaks, len(self._lengths))

    def finish(self) -> Iterator[TextSection]:
        """Yields the rest, whose last document has ended."""
        while stop := self._next_stop() or len(self._lengths):
            yield self._take(stop)

    def _next_stop(self) -> int:
        """Returns the sentence before which a section can end, or 0."""
        closed = self._breaks[self._breaks >= self._size]
        if closed.size:
            return int(closed[0])
        open_from = int(self._breaks[-1]) if self._breaks.size else 0
        if len(self._lengths) - open_from < 2 * self._size:
            return 0
        return open_from or self._size

    def _take(self, stop: int) -> TextSection:
        """Removes the first `stop` sentences and returns them."""
        offsets = np.concatenate([[0], np.cumsum(self._lengths[:stop])])
        is_inside = (self._breaks > 0) & (self._breaks < stop)
        inside = np.unique([0, *self._breaks[is_inside].tolist(), stop])
        section = TextSection(
            (self._task, self.num_sections),
            self._tokens[: offsets[-1]],
            Corpus(offsets, inside),
            self._continues,
        )
        self.num_sections += 1
        self._continues = stop not in self._breaks
        self._tokens = self._tokens[offsets[-1] :]
        self._lengths = self._lengths[stop:]
        self._breaks = self._breaks[self._breaks > stop] - stop
        return section
