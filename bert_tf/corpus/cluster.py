"""The work of data creation on a cluster, as functions for an engine.

`engines.pipeline` connects these functions:

1. `read_task` tokenizes a range of the text and yields it as sections of about
   16,000 sentences.
2. `SectionTable` numbers the sections and their documents. Every worker
   holds it: about 100 bytes per section.
3. `cut_section` cuts each section into instances. Pairs with a random B are
   sent as requests to the section of B; `complete_pairs` adds B.
4. `InstanceTable` numbers all instances. `assign_chunks` shuffles them and
   `write_chunk` writes the records of each chunk.

The records equal `creation`'s, byte for byte.

`plan_tasks` divides the files into ranges of bytes. A document belongs to the
range in which the break before it begins: a blank line, the start of the file,
or its own line of JSON. A worker begins at the first break of its range and
reads past the end of the range until the last document ends. So no text has to
be read from the start of a file. A compressed file is one range.
"""

import collections
import dataclasses
import functools
import itertools
import os
import posixpath
import secrets
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from bert_tf.base import files
from bert_tf.corpus import creation, instances
from bert_tf.corpus.creation import OutputPlan, WrittenChunk
from bert_tf.corpus.settings import SHUFFLING, CreationConfig
from bert_tf.corpus.text import (
    Corpus,
    EncodedBlock,
    Section,
    take_slices,
    text_blocks,
)
from bert_tf.data import randomness

# The largest number of tasks: all are listed in the job's description, whose
# size Dataflow limits.
MAX_TASKS = 10_000
# The bytes to read at a time to find the end of a range's last document.
TAIL_BYTES = 1 << 16
# A block without sentences, after which a new document begins.
_DOCUMENT_END = EncodedBlock(
    "", 0, np.zeros(0, np.uint8), np.zeros(0, np.int64), np.zeros(1, np.int64)
)


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
    continues: bool  # Whether the first document began before the section.


@dataclasses.dataclass(frozen=True)
class TaskReport:
    """Statistics of the text of a task."""

    num_sections: int
    text_bytes: dict[str, int]  # Path -> the bytes of text that were read.
    counts: collections.Counter[str]  # By their names in the manifest.


def plan_tasks(paths: Sequence[str], text_bytes: int) -> list[ReadingTask]:
    """Divides files into tasks of `text_bytes`, or into MAX_TASKS larger ones.

    Both numbers are approximate. A compressed file is not divided.
    """
    sizes = list(map(_text_size, paths))
    text_bytes = max(text_bytes, sum(sizes) // MAX_TASKS)
    groups: list[list[TextRange]] = [[]]
    pending_bytes = 0
    for path, size in zip(paths, sizes, strict=True):
        # A gzip file, whose size is unknown, counts as a whole task.
        size = size or text_bytes
        count = max(round(size / text_bytes), 1)
        starts = [size * number // count for number in range(count)]
        for start, stop in itertools.pairwise([*starts, None]):
            groups[-1].append(TextRange(path, start or 0, stop))
            pending_bytes += min(size, text_bytes)
            if pending_bytes >= text_bytes:
                groups.append([])
                pending_bytes = 0
    numbered = enumerate(map(tuple, filter(None, groups)))
    return [ReadingTask(number, ranges) for number, ranges in numbered]


def _text_size(path: str) -> int:
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

    A worker holds one or two sections of a task at a time, however long the
    documents are.

    Yields:
      Sections of about `section_size` sentences (see `text.Pieces`), then one
      report.
    """
    text_bytes = {text_range.path: 0 for text_range in task.ranges}
    counts: collections.Counter[str] = collections.Counter()

    def counted() -> Iterator[EncodedBlock]:
        for text_range in task.ranges:
            for block in _owned_blocks(config, text_range):
                text_bytes[block.path] += block.num_bytes
                counts.update(creation.token_counts(config, block))
                yield block
            yield _DOCUMENT_END

    num_sections = 0
    for section in _sections(task.number, counted(), section_size):
        yield section
        num_sections += 1
    yield TaskReport(num_sections, text_bytes, counts)


def _owned_blocks(
    config: CreationConfig, text_range: TextRange
) -> Iterator[EncodedBlock]:
    """Yields the documents that belong to a range, in blocks.

    `num_bytes` of the blocks counts the bytes of the range only.
    """
    path, stop = text_range.path, text_range.stop
    has_begun = False
    for text in text_blocks(path, text_range.start, stop):
        block = creation.encode(config, text)
        yield block.slice(0 if has_begun else _first_break(block))
        has_begun |= len(block.breaks) > 0
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


def _sections(
    task: int, blocks: Iterable[EncodedBlock], size: int
) -> Iterator[TextSection]:
    """Joins blocks of sentences to sections.

    A section ends with a document, unless the document is long: then each of
    its pieces but the last is a section.
    """
    rest, number, continues = _DOCUMENT_END, 0, False
    for block in itertools.chain(blocks, [None]):
        if block is not None:
            rest = rest.followed_by(block)
        is_last = block is None
        while stop := _next_stop(rest, size) or is_last * len(rest.lengths):
            taken, rest = rest.slice(0, stop), rest.slice(stop)
            offsets = np.concatenate([[0], np.cumsum(taken.lengths)])
            documents = np.unique([0, *taken.breaks.tolist(), stop])
            corpus = Corpus(offsets, documents)
            yield TextSection((task, number), taken.tokens, corpus, continues)
            number += 1
            continues = 0 not in rest.breaks


def _next_stop(block: EncodedBlock, size: int) -> int:
    """Returns the sentence before which a section can end, or 0."""
    closed = block.breaks[block.breaks >= size]
    if closed.size:
        return int(closed[0])
    open_from = int(block.breaks[-1]) if block.breaks.size else 0
    if len(block.lengths) - open_from < 2 * size:
        return 0
    return open_from or size


# A section: its position; its number of documents; whether the first document
# began before it; the sentences of the first document in it; all its sentences.
ENTRY = np.dtype(
    [
        ("task", np.int64),
        ("number", np.int64),
        ("documents", np.int64),
        ("continues", np.bool_),
        ("first_length", np.int64),
        ("sentences", np.int64),
    ]
)


def entry_of(section: TextSection) -> tuple[int, ...]:
    """Returns the fields of a section's ENTRY."""
    bounds = section.corpus.document_offsets
    count = section.corpus.num_documents
    first, stop = int(bounds[1]), int(bounds[-1])
    return (*section.position, count, section.continues, first, stop)


@dataclasses.dataclass(frozen=True)
class SectionTable:
    """The n sections and their documents, numbered in the order of the text.

    All arrays except `entries` are int64 [n].
    """

    entries: np.ndarray  # ENTRY [n].
    first_document: np.ndarray  # The number of the section's first document.
    skipped: np.ndarray  # The sentences of that document before the section.
    first_total: np.ndarray  # All sentences of that document.
    copies: np.ndarray  # How many workers share the requests to the section.
    counts: dict[str, int]  # By their names in the manifest.

    @classmethod
    def of(
        cls,
        config: CreationConfig,
        entries: Iterable[tuple[int, ...]],
        reports: Iterable[TaskReport],
    ) -> "SectionTable":
        """Builds the table from what the readers of the text found.

        Args:
          entries: The results of `entry_of`, one per section, in any order.
          reports: The reports of all tasks, in any order.

        Raises:
          InputError: If the text cannot be used.
        """
        table = np.unique(np.array(rows := list(entries), ENTRY))
        ends = np.cumsum(table["documents"] - table["continues"])
        counts: collections.Counter[str] = collections.Counter()
        num_sections = 0
        for report in reports:
            num_sections += report.num_sections
            counts.update(report.counts)
        require_once(len(rows), len(table), num_sections)
        counts["documents"] = int(ends[-1]) if len(ends) else 0
        creation.check_text(config, counts)
        before = np.cumsum(table["sentences"]) - table["sentences"]
        begins = np.where(table["continues"], 0, np.arange(len(table)))
        skipped = before - before[np.maximum.accumulate(begins)]
        first_document = ends - table["documents"]
        last = np.searchsorted(first_document, first_document, "right") - 1
        first_total = (skipped + table["first_length"])[last]
        return cls(
            table,
            first_document,
            skipped,
            first_total,
            _num_copies(
                table["documents"], table["first_length"] / first_total
            ),
            dict(counts),
        )

    def index(self, position: tuple[int, int]) -> int:
        """Returns the number of a section."""
        task, number = position
        return int(np.searchsorted(self.entries["task"], task)) + number

    def section(self, index: int, section: TextSection) -> Section:
        """Returns a section with its position among all documents."""
        return Section(
            section.corpus,
            int(self.first_document[index]),
            int(self.skipped[index]),
        )

    def find(self, documents: np.ndarray, points: np.ndarray) -> np.ndarray:
        """Returns the sections in which segments begin: int64 [n].

        Args:
          documents: Integers [n], the document of each segment.
          points: float64 [n], where to begin, as a fraction of the document.
        """
        last = np.searchsorted(self.first_document, documents, "right") - 1
        first = np.searchsorted(self.first_document, documents, "left")
        first = np.minimum(first, last)
        # If several sections share a document, all of them except the last
        # have the same number of sentences.
        positions = (points * self.first_total[last]).astype(np.int64)
        number = positions // self.entries["sentences"][first]
        return first + np.minimum(number, last - first)

    def extents(
        self, index: int, section: Section, documents: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns the first sentences and the lengths of whole documents.

        Args:
          documents: As for `find`, which gives `index` for all of them.

        Returns:
          Two arrays int64 [n]. Sentences count from the section's first; a
          document that began before the section has a negative one.
        """
        local = documents - section.first_document
        first, stop = section.corpus.sentence_range(local)
        is_first = local == 0
        lengths = np.where(is_first, self.first_total[index], stop - first)
        return first - np.where(is_first, section.skipped, 0), lengths


def require_once(arrived: int, different: int, expected: int) -> None:
    """Raises RuntimeError unless a runner passed on each element once."""
    if not arrived == different == expected:
        raise RuntimeError(
            f"The runner lost or repeated elements: of {expected} elements, "
            f"{arrived} arrived, {different} of them different."
        )


def _num_copies(documents: np.ndarray, fractions: np.ndarray) -> np.ndarray:
    """Returns how many workers share the requests to each section: int64 [n].

    Short and long documents get equally many requests, so a section of many
    short documents gets more than a section of few. With these copies no worker
    gets more requests than an average section, and there are fewer than twice
    as many copies as sections. `fractions` [n] is the share of its first
    document that each section has.
    """
    load = documents - 1 + fractions
    return np.ceil(load / load.sum() * len(load)).astype(np.int64)


# The number of a section, and which of its copies.
Address = tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Batch:
    """Instances with their tokens, which the slices of `pairs` refer to.

    `pairs` is instances.SPAN [n]; or instances.DRAFT [n] for pairs without
    their random B.
    """

    sections: np.ndarray  # int64 [n], the sections they come from.
    numbers: np.ndarray  # int64 [n], their numbers within their sections.
    pairs: np.ndarray
    tokens: np.ndarray

    def __len__(self) -> int:
        return len(self.pairs)

    def take(self, rows: np.ndarray) -> "Batch":
        """Returns some of the complete instances, with only their tokens."""
        sections, numbers = self.sections[rows], self.numbers[rows]
        return _with_tokens(
            sections, numbers, self.pairs[rows], self.tokens, self.tokens
        )

    @classmethod
    def joined(cls, batches: Iterable["Batch"]) -> "Batch":
        """Concatenates batches."""
        batches = list(batches)
        sizes = np.array([len(batch.tokens) for batch in batches])
        shift = np.repeat(np.cumsum(sizes) - sizes, list(map(len, batches)))
        pairs = np.concatenate([batch.pairs for batch in batches])
        for name in {"a_start", "a_stop", "b_start", "b_stop"}.intersection(
            pairs.dtype.names or ()
        ):
            pairs[name] += shift
        return cls(
            np.concatenate([batch.sections for batch in batches]),
            np.concatenate([batch.numbers for batch in batches]),
            pairs,
            np.concatenate([batch.tokens for batch in batches]),
        )


def _with_tokens(
    sections: np.ndarray,
    numbers: np.ndarray,
    spans: np.ndarray,
    a_source: np.ndarray,
    b_source: np.ndarray,
) -> Batch:
    """Copies the tokens of instances: of each A, then of each B."""
    a_length, b_length = spans["a_length"], spans["b_length"]
    a_tokens = take_slices(a_source, spans["a_start"], a_length)
    b_tokens = take_slices(b_source, spans["b_start"], b_length)
    spans = spans.copy()
    spans["a_start"] = np.cumsum(a_length) - a_length
    spans["b_start"] = len(a_tokens) + np.cumsum(b_length) - b_length
    tokens = np.concatenate([a_tokens, b_tokens])
    return Batch(sections, numbers, spans, tokens)


@dataclasses.dataclass(frozen=True)
class CutSection:
    """The `count` instances that begin in section `index`.

    Those without a random B are `complete`. The others are `requests` to the
    sections of B.
    """

    index: int
    count: int
    complete: Batch
    requests: list[tuple[Address, Batch]]


def cut_section(
    section: TextSection,
    config: CreationConfig,
    size: int,
    table: SectionTable,
) -> CutSection:
    """Cuts a section into instances; for `size`, see `text.Pieces`."""
    index, tokens = table.index(section.position), section.tokens
    text = table.section(index, section)
    requests: list[tuple[Address, Batch]] = []
    if config.next_sentence:
        drafts = instances.draft_pairs(
            config, text, size, table.counts["documents"]
        )
        count = len(drafts)
        own = np.flatnonzero(~drafts["is_random_next"])
        spans = instances.truncate(drafts[own], config.max_text_tokens)
        requests = list(_requests(index, drafts, tokens, table))
    else:
        spans = instances.single_spans(config, text, size)
        count, own = len(spans), np.arange(len(spans))
    complete = _with_tokens(
        np.full_like(own, index), own, spans, tokens, tokens
    )
    return CutSection(index, count, complete, requests)


def _requests(
    index: int, drafts: np.ndarray, tokens: np.ndarray, table: SectionTable
) -> Iterator[tuple[Address, Batch]]:
    """Groups the drafts with a random B by the section that has it."""
    rows = np.flatnonzero(drafts["is_random_next"])
    asking = drafts[rows]
    section = table.find(asking["other_document"], asking["point"])
    copies = table.copies[section].astype(np.uint64)
    copy = (asking["key"] % copies).astype(np.int64)
    for chosen in _groups(section, copy):
        some = asking[chosen]
        lengths = some["a_stop"] - some["a_start"]
        a_tokens = take_slices(tokens, some["a_start"], lengths)
        some["a_stop"] = np.cumsum(lengths)
        some["a_start"] = some["a_stop"] - lengths
        address = int(section[chosen[0]]), int(copy[chosen[0]])
        numbers = rows[chosen]
        yield (
            address,
            Batch(np.full_like(numbers, index), numbers, some, a_tokens),
        )


def _groups(*keys: np.ndarray) -> Iterator[np.ndarray]:
    """Yields the rows of each combination of keys [n] that occurs."""
    order = np.lexsort(keys)
    if order.size:
        is_new = np.diff(np.stack(keys)[:, order]).any(axis=0)
        yield from np.split(order, np.flatnonzero(is_new) + 1)


def replicate(
    section: TextSection, table: SectionTable
) -> Iterator[tuple[Address, TextSection]]:
    """Yields the section once for each worker that completes its requests."""
    index = table.index(section.position)
    return (((index, copy), section) for copy in range(table.copies[index]))


def complete_pairs(
    grouped: tuple[Address, tuple[Iterable[TextSection], Iterable[Batch]]],
    config: CreationConfig,
    size: int,
    table: SectionTable,
) -> Iterator[Batch]:
    """Completes the pairs whose B is in a section.

    Args:
      grouped: The address; its section, alone in an iterable; and any number of
        requests.
      size: See `text.Pieces`.
    """
    (index, _), ([section], requests) = grouped
    if not (requests := list(requests)):
        return
    batch = Batch.joined(requests)
    text, drafts = table.section(index, section), batch.pairs
    extents = table.extents(index, text, drafts["other_document"])
    instances.place_random_b(drafts, text.corpus, *extents, size)
    yield _with_tokens(
        batch.sections,
        batch.numbers,
        instances.truncate(drafts, config.max_text_tokens),
        batch.tokens,
        section.tokens,
    )


@dataclasses.dataclass(frozen=True)
class InstanceTable:
    """The number of instances of each section, and where they are written.

    Attributes:
      first_number: int64, the number of each section's first instance among
        all, before the shuffle.
      plan: The output files and their chunks.
    """

    first_number: np.ndarray
    plan: OutputPlan

    @classmethod
    def of(
        cls,
        outputs: tuple[str, ...],
        chunk_size: int,
        counts: Iterable[tuple[int, int]],
        table: SectionTable,
    ) -> "InstanceTable":
        """Adds up the instances of all sections.

        Args:
          chunk_size: The largest number of instances of a chunk.
          counts: Pairs of a section's number and its number of instances.
        """
        sizes = np.zeros(len(table.entries), np.int64)
        index, count = np.array(list(counts)).T
        require_once(len(index), len(np.unique(index)), len(sizes))
        sizes[index] = count
        first_number = np.cumsum(sizes) - sizes
        plan = OutputPlan(outputs, int(sizes.sum()), chunk_size)
        return cls(first_number, plan)

    def numbers(self, batch: Batch) -> np.ndarray:
        """Returns the numbers of instances before the shuffle: int64 [n]."""
        return self.first_number[batch.sections] + batch.numbers


def assign_chunks(
    batch: Batch, config: CreationConfig, table: InstanceTable
) -> Iterator[tuple[int, Batch]]:
    """Shuffles instances; yields first ranks of chunks and their instances."""
    ranks = randomness.unpermute(
        table.numbers(batch), table.plan.total, config.seed(SHUFFLING)
    )
    starts = table.plan.chunk_starts(ranks)
    for rows in _groups(starts):
        yield int(starts[rows[0]]), batch.take(rows)


def write_chunk(
    assigned: tuple[int, tuple[Iterable[Batch]]],
    config: CreationConfig,
    folder: str,
    table: InstanceTable,
) -> tuple[int, tuple[int, WrittenChunk]]:
    """Masks the instances of a chunk and writes them to a temporary file.

    Args:
      assigned: The first rank of the chunk, and its instances.
      folder: A folder that all workers can write to.

    Returns:
      The number of the output file, the first rank, the chunk without its data.
    """
    first, (batches,) = assigned
    plan = table.plan.chunk(first)
    batch = Batch.joined(batches)
    rows = _rows_of(creation.chunk_numbers(config, plan), table.numbers(batch))
    chunk = creation.serialize_chunk(
        config,
        plan,
        batch.pairs[rows],
        functools.partial(take_slices, batch.tokens),
    )
    path = chunk_path(folder, first)
    attempt = attempt_path(path)
    with files.atomic_writer(attempt) as file:
        file.write(chunk.data)
    with files.input_errors("write", path):
        files.rename(attempt, path)
    # The random name is not returned: Spark stops a job if a retried task has
    # other results.
    return plan.shard, (first, dataclasses.replace(chunk, data=b""))


def _rows_of(wanted: np.ndarray, indexes: np.ndarray) -> np.ndarray:
    """Returns the position in `indexes` of each number in `wanted`."""
    order = np.argsort(indexes)
    is_wanted = np.isin(indexes, wanted)
    require_once(len(indexes), len(np.unique(indexes[is_wanted])), len(wanted))
    return order[np.searchsorted(indexes[order], wanted)]


def chunk_path(folder: str, first: int) -> str:
    """Returns the file of a chunk until it is copied to its output file."""
    return posixpath.join(folder, f"chunk-{first}")


def attempt_path(path: str) -> str:
    """Returns a new name, since a task may run on two workers at a time."""
    return f"{path}-{secrets.token_hex(4)}"
