"""What every worker of a cluster has to know of the whole text.

A Directory numbers the documents that others have read and says in which
section each of them is: some 100 bytes for a section, which is one or two MB
of text. It is the only thing that everybody holds.
"""

import collections
import dataclasses
from collections.abc import Iterable

import numpy as np

from bert_tf.data import creation_report
from bert_tf.data.creation_config import CreationConfig
from bert_tf.data.documents import Section, piece_ends
from bert_tf.data.text_ranges import TaskReport, TextSection
from bert_tf.errors import InputError

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
        creation_report.check_text(config, counts)
    except InputError as error:
        return str(error)
    return ""
