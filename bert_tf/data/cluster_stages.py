"""Data creation without a disk that all can see into, as pure functions.

The stages of `stages`, for workers that hand each other what they have made:
sections of the text, questions to other sections, instances. Each function
takes what one worker gets at a time and none holds more than that. For the
order of things see `beam_creation`.
"""

import collections
import dataclasses
import functools
import posixpath
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from bert_tf import files
from bert_tf.data import documents, instances, permutation, stages
from bert_tf.data.creation_config import CreationConfig
from bert_tf.data.dealing import Dealing
from bert_tf.data.directory import Directory, require_once
from bert_tf.data.text_ranges import TextSection
from bert_tf.errors import InputError

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
    a_tokens = documents.slices(a_source, spans["a_start"], a_length)
    b_tokens = documents.slices(b_source, spans["b_start"], b_length)
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
        a_tokens = documents.slices(tokens, some["a_start"], lengths)
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
    ranks = permutation.unpermute(
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
    places = permutation.permute(
        ranks, plan.total, stages.shuffling_seed(config)
    )
    batch = Batch.joined(batches)
    rows = _rows_of(places, totals.places(batch))
    part = stages.part_of(
        config,
        plan,
        places,
        batch.pairs[rows],
        functools.partial(documents.slices, batch.tokens),
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
