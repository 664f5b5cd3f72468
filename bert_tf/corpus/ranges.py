"""Text, read by many machines at a time: ranges of files into sections.

Files are divided into ranges of bytes. A document belongs to the range in
which the break before it begins: a blank line, the start of the file, or its
own line of JSON. Whoever has that range reads on, past its end, until the
document is over; whoever has the next one begins with its first break. So no
text has to be read from its start, and a single file is as good as many. What
is compressed cannot be entered in the middle and is one range.

Of a task's text no more is kept than a section or two, however long its
documents are.
"""

import collections
import dataclasses
import functools
import itertools
import os
from collections.abc import Iterator, Sequence

import numpy as np

from bert_tf import files
from bert_tf.corpus import creation, stages
from bert_tf.corpus.settings import CreationConfig
from bert_tf.corpus.text import Corpus, EncodedBlock, text_blocks
from bert_tf.errors import InputError

# What is read at a time to find the end of a range's last document.
TAIL_BYTES = 1 << 16


@dataclasses.dataclass(frozen=True)
class TextRange:
    """Some of the text of a file.

    Attributes:
      path: The file.
      start: The first byte.
      stop: The byte after the last; None for the end of the file.
    """

    path: str
    start: int = 0
    stop: int | None = None


@dataclasses.dataclass(frozen=True)
class ReadingTask:
    """What a worker reads at a time.

    Attributes:
      number: Of the task, in the order of the text.
      ranges: What to read; a large range, or the whole of many small files.
    """

    number: int
    ranges: tuple[TextRange, ...]


@dataclasses.dataclass(frozen=True)
class TextSection:
    """A piece of the text with its tokens, small enough for the memory.

    Attributes:
      place: Number of the task and number within it: sections are sorted so.
      tokens: Integers [t].
      corpus: Where its sentences are, and its documents as far as they are
        inside.
      goes_on: The first document began in the section before.
    """

    place: tuple[int, int]
    tokens: np.ndarray
    corpus: Corpus
    goes_on: bool


@dataclasses.dataclass(frozen=True)
class TaskReport:
    """What there was in the text of a task.

    Attributes:
      number: Of the task.
      num_sections: The sections that were yielded.
      text_bytes: The bytes of text that were read of each file.
      counts: What was counted, by the manifest's names.
      mistake: What the user has to mend before the text can be read; if it is
        not empty, there is no more of the task.
    """

    number: int
    num_sections: int
    text_bytes: dict[str, int]
    counts: collections.Counter[str]
    mistake: str = ""


def plan_tasks(paths: Sequence[str], text_bytes: int) -> Iterator[ReadingTask]:
    """Divides files into tasks of about `text_bytes` each.

    Raises:
      InputError: A file cannot be reached.
    """
    numbers = itertools.count()
    pending: list[TextRange] = []
    size = 0
    for path in paths:
        # A gzip file is a task by itself, however large.
        file_bytes = size_of(path) or text_bytes
        for text_range in _ranges(path, file_bytes, text_bytes):
            pending.append(text_range)
            size += min(file_bytes, text_bytes)
            if size >= text_bytes:
                yield ReadingTask(next(numbers), tuple(pending))
                pending, size = [], 0
    if pending:
        yield ReadingTask(next(numbers), tuple(pending))


def size_of(path: str) -> int:
    """The bytes of a file; 0 for a compressed one, of which nobody knows."""
    if path.endswith(".gz"):
        return 0
    with files.open_read(path) as file:
        # Files of TensorFlow's return nothing when they seek.
        file.seek(0, os.SEEK_END)
        return file.tell()


def _ranges(path: str, size: int, text_bytes: int) -> Iterator[TextRange]:
    """Divides a file into equal ranges of about `text_bytes`."""
    count = max(round(size / text_bytes), 1)
    bounds = [size * number // count for number in range(count)]
    for start, stop in itertools.pairwise([*bounds, None]):
        yield TextRange(path, start or 0, stop)


def read_task(
    task: ReadingTask, config: CreationConfig, section_size: int
) -> Iterator[TextSection | TaskReport]:
    """Tokenizes the documents of a task.

    Args:
      task: What to read.
      config: The settings.
      section_size: As `size` of `documents.Pieces`.

    Yields:
      Sections of some `section_size` sentences, then one report. What the user
      has to mend is in the report: as an exception, it would have a cluster
      try again.
    """
    text_bytes = dict.fromkeys(_paths(task), 0)
    counts: collections.Counter[str] = collections.Counter()
    collector = _Collector(task.number, section_size)
    mistake = ""
    try:
        for text_range in task.ranges:
            for block in _owned_blocks(config, text_range):
                text_bytes[block.path] += block.num_bytes
                counts.update(creation.token_counts(config, block))
                yield from collector.add(block)
            collector.end_document()
    except InputError as error:
        mistake = str(error)
    else:
        yield from collector.rest()
    yield TaskReport(
        task.number, collector.num_sections, text_bytes, counts, mistake
    )


def _paths(task: ReadingTask) -> list[str]:
    return [text_range.path for text_range in task.ranges]


def _owned_blocks(
    config: CreationConfig, text_range: TextRange
) -> Iterator[EncodedBlock]:
    """Yields the documents that belong to a range, in blocks.

    The bytes of the blocks are those of the range, each counted once.
    """
    encode = functools.partial(stages.encode, config, "")
    path, start, stop = dataclasses.astuple(text_range)
    is_open = False
    for text in text_blocks(path, start, stop):
        block = encode(text)
        first = 0 if is_open else _first_break(block)
        is_open = is_open or len(block.breaks) > 0
        yield block.part(first, len(block.lengths))
    if not is_open or stop is None:
        return
    for text in text_blocks(path, stop, block_bytes=TAIL_BYTES):
        block = encode(text)
        rest = block.part(0, _first_break(block))
        yield dataclasses.replace(rest, num_bytes=0)
        if len(block.breaks):
            return


def _first_break(block: EncodedBlock) -> int:
    """The sentence that the first document begins with; all, if none does."""
    return int(block.breaks[0]) if len(block.breaks) else len(block.lengths)


class _Collector:
    """Gathers blocks of sentences into sections.

    A section ends with a document, unless that is long: then it holds one
    piece of it.

    Attributes:
      num_sections: Sections made so far.
    """

    def __init__(self, task: int, size: int) -> None:
        self._task = task
        self._size = size
        self.num_sections = 0
        self._goes_on = False
        self._tokens = np.zeros(0, np.uint8)
        self._lengths = np.zeros(0, np.int64)
        # Sentences before which a document ends, 0 and the end left out.
        self._breaks = np.zeros(0, np.int64)

    def add(self, block: EncodedBlock) -> Iterator[TextSection]:
        """Takes the next sentences; yields the sections that are complete."""
        before = len(self._lengths)
        self._breaks = np.concatenate([self._breaks, before + block.breaks])
        self._tokens = np.concatenate([self._tokens, block.tokens])
        self._lengths = np.concatenate([self._lengths, block.lengths])
        while stop := self._next_stop():
            yield self._cut(stop)

    def end_document(self) -> None:
        """Ends the document that is open."""
        self._breaks = np.append(self._breaks, len(self._lengths))

    def rest(self) -> Iterator[TextSection]:
        """Yields what is left, its last document being over."""
        while stop := self._next_stop() or len(self._lengths):
            yield self._cut(stop)

    def _next_stop(self) -> int:
        """The sentence before which a section may end; 0 for none yet."""
        closed = self._breaks[self._breaks >= self._size]
        if closed.size:
            return int(closed[0])
        open_from = int(self._breaks[-1]) if self._breaks.size else 0
        if len(self._lengths) - open_from < 2 * self._size:
            return 0
        return open_from or self._size

    def _cut(self, stop: int) -> TextSection:
        """Takes the first `stop` sentences away."""
        offsets = np.concatenate([[0], np.cumsum(self._lengths[:stop])])
        is_inside = (self._breaks > 0) & (self._breaks < stop)
        inside = np.unique([0, *self._breaks[is_inside].tolist(), stop])
        section = TextSection(
            (self._task, self.num_sections),
            self._tokens[: offsets[-1]],
            Corpus(offsets, inside),
            self._goes_on,
        )
        self.num_sections += 1
        self._goes_on = stop not in self._breaks
        self._tokens = self._tokens[offsets[-1] :]
        self._lengths = self._lengths[stop:]
        self._breaks = self._breaks[self._breaks > stop] - stop
        return section
