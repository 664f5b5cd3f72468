"""What every worker of a cluster has to know of the whole text.

A Directory numbers the documents that others have read and says in which
section each of them is: some 100 bytes for a section, which is one or two MB
of text. It is the only thing that everybody holds.
"""

import collections
import dataclasses
import functools
import posixpath
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from bert_tf import files
from bert_tf.corpus import creation, instances, stages
from bert_tf.corpus.ranges import TaskReport, TextSection
from bert_tf.corpus.settings import CreationConfig
from bert_tf.corpus.stages import Dealing
from bert_tf.corpus.text import Section, piece_ends, slices
from bert_tf.data import randomness
from bert_tf.errors import InputError

# What every worker of a cluster has to know of the whole text.


# One section: its place in the order of the text, the documents in it, whether
# the first one goes on from the section before, the sentences of that one, and
# the sentences of all.
ENTRY = np.dtype(
    [
        ("task", np.int64),
        ("number", np.int64),
        ("documents", np.int64),
        ("goes_on", np.bool_),
        ("first_length", np.int64),
        ("sentences", np.int64),
    ]
)


def entry_of(section: TextSection) -> tuple[int, ...]:
    """What the directory has to know of a section: the fields of an ENTRY."""
    bounds = section.corpus.document_offsets
    return (
        *section.place,
        section.corpus.num_documents,
        section.goes_on,
        int(bounds[1]),
        int(bounds[-1]),
    )


@dataclasses.dataclass(frozen=True)
class Directory:
    """Where the documents are, as numbered in the order of the text.

    Attributes:
      entries: ENTRY [n], in the order of the text.
      first_document: int64 [n], the number of each section's first document.
      skipped: int64 [n], the sentences of that which stand before the section.
      first_total: int64 [n], all sentences of that document.
      copies: int64 [n], how many workers share the questions to each section.
      counts: What was counted, by the manifest's names.
      mistake: What the user has to mend before anything can be made of the
        text; empty if all is well.
    """

    entries: np.ndarray
    first_document: np.ndarray
    skipped: np.ndarray
    first_total: np.ndarray
    copies: np.ndarray
    counts: dict[str, int]
    mistake: str

    @classmethod
    def of(
        cls,
        config: CreationConfig,
        entries: Iterable[tuple[int, ...]],
        reports: Iterable[TaskReport],
    ) -> "Directory":
        """Puts together what the readers of the text know.

        Args:
          config: The settings.
          entries: An `entry_of` each section, in any order.
          reports: Of all tasks, in any order.

        Raises:
          RuntimeError: There are more entries than sections, or less.
        """
        table = np.unique(np.array(found := list(entries), ENTRY))
        begun = np.cumsum(table["documents"] - table["goes_on"])
        counts: collections.Counter[str] = collections.Counter()
        mistakes = {}
        expected = 0
        for report in reports:
            expected += report.num_sections
            counts.update(report.counts)
            if report.mistake:
                mistakes[report.number] = report.mistake
        require_once(len(found), len(table), expected)
        counts["documents"] = int(begun[-1]) if len(begun) else 0
        first_document = begun - table["documents"]
        skipped = _skipped(table)
        last = np.searchsorted(first_document, first_document, "right") - 1
        first_total = (skipped + table["first_length"])[last]
        return cls(
            table,
            first_document,
            skipped,
            first_total,
            _copies(table["documents"], table["first_length"] / first_total),
            dict(counts),
            mistakes[min(mistakes)] if mistakes else _verdict(config, counts),
        )

    @property
    def num_documents(self) -> int:
        return self.counts["documents"]

    def index(self, place: tuple[int, int]) -> int:
        """The number of a section."""
        task, number = place
        first = np.searchsorted(self.entries["task"], task)
        return int(first) + number

    def section(self, index: int, section: TextSection) -> Section:
        """A section with its place among the documents."""
        return Section(
            section.corpus,
            int(self.first_document[index]),
            int(self.skipped[index]),
        )

    def find(self, documents: np.ndarray, points: np.ndarray) -> np.ndarray:
        """The sections that segments of documents begin in: int64 [n].

        Args:
          documents: Integers [n], the numbers of documents.
          points: float64 [n], where in the document to begin, from 0 up to 1,
            excluded.
        """
        last = np.searchsorted(self.first_document, documents, "right") - 1
        first = np.searchsorted(self.first_document, documents, "left")
        first = np.minimum(first, last)
        # Of a document that several sections share, all but the last of them
        # hold equally many sentences.
        places = (points * self.first_total[last]).astype(np.int64)
        number = places // self.entries["sentences"][first]
        return first + np.minimum(number, last - first)

    def segments(
        self,
        index: int,
        section: Section,
        documents: np.ndarray,
        points: np.ndarray,
        size: int,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Where in a section segments begin, and where their pieces end.

        Args:
          index: The number of the section.
          section: The section.
          documents: As for `find`, which gives `index` for all of them.
          points: As for `find`.
          size: As for `documents.Pieces`.

        Returns:
          Two of int64 [n], sentences counted from the section's first.
        """
        local = documents - section.first_document
        first, stop = section.corpus.sentence_range(local)
        is_first = local == 0
        lengths = np.where(is_first, self.first_total[index], stop - first)
        first = first - np.where(is_first, section.skipped, 0)
        places = (points * lengths).astype(np.int64)
        return first + places, first + piece_ends(places, lengths, size)


def require_once(found: int, different: int, expected: int) -> None:
    """Sees to it that a runner has passed everything on, and once.

    Raises:
      RuntimeError: It has not.
    """
    if not found == different == expected:
        raise RuntimeError(
            f"Expected {expected} elements, each once. Received: {found}, "
            f"{different} of them different; the runner has lost or repeated "
            "some"
        )


def _skipped(table: np.ndarray) -> np.ndarray:
    """Sentences of each section's first document that stand before it."""
    before = np.cumsum(table["sentences"]) - table["sentences"]
    begins = np.where(table["goes_on"], 0, np.arange(len(table)))
    return before - before[np.maximum.accumulate(begins)]


def _copies(documents: np.ndarray, parts: np.ndarray) -> np.ndarray:
    """How many workers share the questions to each section: int64 [n].

    Every document is asked for as often as any other, be it a line or a
    library: a section of many short ones gets more questions than one of few.
    With so many copies, none gets more than the average section; there are
    less than twice as many copies as sections.

    Args:
      documents: Integers [n], the documents of each section.
      parts: float64 [n], how much of its first document each section has.
    """
    load = documents - 1 + parts
    return np.ceil(load / load.sum() * len(load)).astype(np.int64)


def _verdict(config: CreationConfig, counts: collections.Counter[str]) -> str:
    """What has to be mended in a text that could be read."""
    try:
        creation.check_text(config, counts)
    except InputError as error:
        return str(error)
    return ""


# Data creation without a disk that all can see into, as pure functions.


# The number of a section, and which of its copies.
Address = tuple[int, int]

# About how many questions are answered at a time.
BATCH_SIZE = 1 << 11


@dataclasses.dataclass(frozen=True)
class Batch:
    """Some instances, complete or not, with their tokens.

    Attributes:
      sections: int64 [n], the numbers of the sections that they are from.
      numbers: int64 [n], which instances of their section they are.
      pairs: instances.SPAN [n], or instances.DRAFT [n] where B is still to be
        fetched from another section; as ranges of `tokens`.
      tokens: Integers.
    """

    sections: np.ndarray
    numbers: np.ndarray
    pairs: np.ndarray
    tokens: np.ndarray

    def __len__(self) -> int:
        return len(self.pairs)

    def take(self, rows: np.ndarray) -> "Batch":
        """Some complete instances, with their own tokens only."""
        sections, numbers = self.sections[rows], self.numbers[rows]
        return _complete(
            sections, numbers, self.pairs[rows], self.tokens, self.tokens
        )

    @classmethod
    def joined(cls, batches: Iterable["Batch"]) -> "Batch":
        """The instances of several, one after the other."""
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


def _complete(
    sections: np.ndarray,
    numbers: np.ndarray,
    spans: np.ndarray,
    a_source: np.ndarray,
    b_source: np.ndarray,
) -> Batch:
    """Fetches the tokens of instances: first of each A, then of each B."""
    a_length, b_length = spans["a_length"], spans["b_length"]
    a_tokens = slices(a_source, spans["a_start"], a_length)
    b_tokens = slices(b_source, spans["b_start"], b_length)
    spans = spans.copy()
    spans["a_start"] = np.cumsum(a_length) - a_length
    spans["b_start"] = len(a_tokens) + np.cumsum(b_length) - b_length
    tokens = np.concatenate([a_tokens, b_tokens])
    return Batch(sections, numbers, spans, tokens)


@dataclasses.dataclass(frozen=True)
class CutSection:
    """What becomes of a section.

    Attributes:
      index: The number of the section.
      count: All instances that begin in it.
      complete: Those that need nothing from elsewhere.
      questions: The others, each batch with whom to ask.
    """

    index: int
    count: int
    complete: Batch
    questions: list[tuple[Address, Batch]]


def cut(
    section: TextSection,
    config: CreationConfig,
    size: int,
    directory: Directory,
) -> Iterator[CutSection]:
    """Cuts a section into instances; nothing comes of a text with a mistake.

    Args:
      section: Of the text.
      config: The settings.
      size: As for `documents.Pieces`.
      directory: Of the whole text.
    """
    if directory.mistake:
        return
    index = directory.index(section.place)
    text = directory.section(index, section)
    if config.next_sentence:
        drafts = stages.draft_pairs(config, text, size, directory.num_documents)
        own = np.flatnonzero(~drafts["is_random_next"])
        spans = instances.truncate(drafts[own], config.instance_rule.room)
        asking = _questions(index, drafts, section.tokens, directory)
        count, questions = len(drafts), list(asking)
    else:
        spans = stages.single_spans(config, text, size)
        own, count, questions = np.arange(len(spans)), len(spans), []
    tokens = section.tokens
    complete = _complete(_same(index, own), own, spans, tokens, tokens)
    yield CutSection(index, count, complete, questions)


def _same(index: int, like: np.ndarray) -> np.ndarray:
    return np.full(len(like), index, np.int64)


def _questions(
    index: int, drafts: np.ndarray, tokens: np.ndarray, directory: Directory
) -> Iterator[tuple[Address, Batch]]:
    """Addresses those drafts that need a B from elsewhere."""
    rows = np.flatnonzero(drafts["is_random_next"])
    asking = drafts[rows]
    section = directory.find(asking["other_document"], asking["point"])
    copies = directory.copies[section].astype(np.uint64)
    copy = (asking["key"] % copies).astype(np.int64)
    for chosen in _groups(section, copy):
        some = asking[chosen]
        lengths = some["a_stop"] - some["a_start"]
        a_tokens = slices(tokens, some["a_start"], lengths)
        some["a_stop"] = np.cumsum(lengths)
        some["a_start"] = some["a_stop"] - lengths
        address = int(section[chosen[0]]), int(copy[chosen[0]])
        numbers = rows[chosen]
        yield address, Batch(_same(index, numbers), numbers, some, a_tokens)


def _groups(*keys: np.ndarray) -> Iterator[np.ndarray]:
    """Yields the rows of each combination of keys [n] that there is."""
    order = np.lexsort(keys)
    if order.size:
        is_new = np.logical_or.reduce(
            [np.diff(key[order]) != 0 for key in keys]
        )
        yield from np.split(order, np.flatnonzero(is_new) + 1)


def copies(
    section: TextSection, directory: Directory
) -> Iterator[tuple[Address, TextSection]]:
    """Yields a section for each worker that has to answer questions to it."""
    if not directory.mistake:
        index = directory.index(section.place)
        for copy in range(directory.copies[index]):
            yield (index, copy), section


def answer(
    asked: tuple[Address, dict[str, Iterable[Any]]],
    config: CreationConfig,
    size: int,
    directory: Directory,
) -> Iterator[Batch]:
    """Completes pairs whose B is in a section.

    Args:
      asked: Where; "sections" has one TextSection, "questions" any number of
        batches, which are read a few at a time.
      config: The settings.
      size: As for `documents.Pieces`.
      directory: Of the whole text.
    """
    (index, _), found = asked
    [section] = found["sections"]
    text = directory.section(index, section)
    offsets = text.corpus.sentence_offsets
    for questions in _gathered(found["questions"]):
        drafts = questions.pairs
        first, end = directory.segments(
            index, text, drafts["other_document"], drafts["point"], size
        )
        stop = instances.find_stop(text.corpus, first, drafts["wanted"], end)
        drafts["b_start"], drafts["b_stop"] = offsets[first], offsets[stop]
        yield _complete(
            questions.sections,
            questions.numbers,
            instances.truncate(drafts, config.instance_rule.room),
            questions.tokens,
            section.tokens,
        )


def _gathered(batches: Iterable[Batch]) -> Iterator[Batch]:
    """Joins batches of which a cluster has many and small ones."""
    pending: list[Batch] = []
    size = 0
    for batch in batches:
        pending.append(batch)
        size += len(batch)
        if size >= BATCH_SIZE:
            yield Batch.joined(pending)
            pending, size = [], 0
    if pending:
        yield Batch.joined(pending)


@dataclasses.dataclass(frozen=True)
class Totals:
    """How many instances there are.

    Attributes:
      first_place: int64, the place of each section's first one among all.
      dealing: Where they go; None where nothing is to be written.
      mistake: What the user has to mend.
    """

    first_place: np.ndarray
    dealing: Dealing | None
    mistake: str = ""

    @classmethod
    def of(
        cls,
        outputs: tuple[str, ...],
        part_size: int,
        counts: Iterable[tuple[int, int]],
        directory: Directory,
    ) -> "Totals":
        """Adds up.

        Args:
          outputs: The files that are asked for.
          part_size: Instances of a part at most.
          counts: The number of each section, and its instances.
          directory: Of the whole text.

        Raises:
          RuntimeError: A section is missing, or there twice.
        """
        if directory.mistake:
            return cls(np.zeros(0, np.int64), None, directory.mistake)
        sizes = np.zeros(len(directory.entries), np.int64)
        index, count = np.array(list(counts)).T
        require_once(len(index), len(np.unique(index)), len(sizes))
        sizes[index] = count
        first_place = np.cumsum(sizes) - sizes
        try:
            dealing = Dealing(outputs, int(sizes.sum()), part_size)
        except InputError as error:
            return cls(first_place, None, str(error))
        return cls(first_place, dealing)

    def places(self, batch: Batch) -> np.ndarray:
        """The places of instances among all, before the shuffle: int64 [n]."""
        return self.first_place[batch.sections] + batch.numbers


def deal(
    batch: Batch, config: CreationConfig, totals: Totals
) -> Iterator[tuple[int, Batch]]:
    """Shuffles instances: yields the first rank of a part, and those in it."""
    if totals.dealing is None:
        return
    ranks = randomness.unpermute(
        totals.places(batch),
        totals.dealing.total,
        stages.shuffling_seed(config),
    )
    parts = totals.dealing.part_starts(ranks)
    for rows in _groups(parts):
        yield int(parts[rows[0]]), batch.take(rows)


@dataclasses.dataclass(frozen=True)
class WrittenPart:
    """A part of an output file, in a file of its own.

    Attributes:
      first: The rank of its first instance.
      num_instances: How many they are.
      counts: What is in them, by the manifest's names.
      samples: As of `stages.Part`.
    """

    first: int
    num_instances: int
    counts: collections.Counter[str]
    samples: dict[str, np.ndarray]


def write_part(
    dealt: tuple[int, Iterable[Batch]],
    config: CreationConfig,
    folder: str,
    totals: Totals,
) -> tuple[int, WrittenPart]:
    """Masks and writes a part: the number of its output file, and it.

    Args:
      dealt: The rank that the part begins with, and its instances.
      config: The settings.
      folder: A folder that all workers see.
      totals: Of all instances.
    """
    first, batches = dealt
    assert totals.dealing is not None  # or nothing would have been dealt
    plan = totals.dealing.plan(first)
    ranks = np.arange(plan.first, plan.stop)
    places = randomness.permute(
        ranks, plan.total, stages.shuffling_seed(config)
    )
    batch = Batch.joined(batches)
    rows = _rows_of(places, totals.places(batch))
    part = stages.part_of(
        config,
        plan,
        places,
        batch.pairs[rows],
        functools.partial(slices, batch.tokens),
    )
    with files.atomic_writer(part_path(folder, first)) as file:
        file.write(part.data)
    return plan.shard, WrittenPart(
        first, part.num_instances, part.counts, part.samples
    )


def _rows_of(wanted: np.ndarray, found: np.ndarray) -> np.ndarray:
    """Where in `found` the numbers of `wanted` are, which are the same ones."""
    order = np.argsort(found)
    is_wanted = np.isin(found, wanted)
    require_once(len(found), len(np.unique(found[is_wanted])), len(wanted))
    return order[np.searchsorted(found[order], wanted)]


def part_path(folder: str, first: int) -> str:
    """Where a part waits for the others of its file."""
    return posixpath.join(folder, f"part-{first}")
