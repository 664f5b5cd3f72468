"""Segments A and B: where they lie in a corpus, and the sequences they make.

Instances are made for many documents in lock step: each step makes the next
instance of every document that still has sentences, in a few NumPy calls.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator

import numpy as np

from bert_tf.data.documents import Corpus

# One instance: two slices of the corpus's tokens. Starts are int64, a corpus
# may hold more than 2 ** 31 tokens.
SPAN = np.dtype(
    [
        ("a_start", np.int64),
        ("b_start", np.int64),
        ("a_length", np.int32),
        ("b_length", np.int32),
        ("is_random_next", np.bool_),
    ]
)


@dataclasses.dataclass(frozen=True)
class InstanceRule:
    """How a document is cut into instances (BERT paper, appendix A.2).

    Attributes:
      max_seq_length: Tokens of an instance at most, specials counted; L.
      short_seq_prob: Share of the sequences that aim at a random shorter
        length, so that fine-tuning on short texts is no surprise.
      next_sentence: Pairs of segments for next-sentence prediction; without,
        one segment of consecutive text.
    """

    max_seq_length: int
    short_seq_prob: float
    next_sentence: bool = True

    @property
    def room(self) -> int:
        """Tokens that are left beside [CLS] and one or two [SEP]."""
        return self.max_seq_length - (3 if self.next_sentence else 2)


def sections(corpus: Corpus, size: int) -> Iterator[tuple[int, int]]:
    """Divides a corpus into ranges of `size` to 2 * `size` sentences.

    They begin where documents do, if there is such a place: a document with
    fewer than `size` sentences is never divided.
    """
    marks = np.arange(0, corpus.num_sentences, size)
    starts = corpus.document_offsets
    nearest = starts[np.searchsorted(starts, marks)]
    bounds = np.where(nearest < marks + size, nearest, marks)
    bounds = np.unique(np.append(bounds, corpus.num_sentences))
    return itertools.pairwise(bounds.tolist())


def make_spans(
    corpus: Corpus,
    section: tuple[int, int],
    num_passes: int,
    rule: InstanceRule,
    rng: np.random.Generator,
) -> np.ndarray:
    """Cuts the documents of a section into instances, several times.

    Args:
      corpus: Two documents or more where `rule.next_sentence`.
      section: The first sentence and the one after the last. Where they are
        inside a document, the document is taken to begin or to end there.
      num_passes: How often to cut, each time with other draws.
      rule: How to cut.
      rng: All draws come from it.

    Returns:
      SPAN [number of instances], nothing in them empty.
    """
    offsets = corpus.document_offsets
    first_document = np.searchsorted(offsets, section[0], "right") - 1
    stop_document = np.searchsorted(offsets, section[1], "left")
    documents = np.tile(np.arange(first_document, stop_document), num_passes)
    first, stop = corpus.sentence_range(documents)
    first, stop = np.maximum(first, section[0]), np.minimum(stop, section[1])
    if rule.next_sentence:
        steps = _pair_spans(corpus, documents, first, stop, rule, rng)
    else:
        steps = _single_spans(corpus, first, stop, rule, rng)
    return np.concatenate(list(steps))


def _pair_spans(
    corpus: Corpus,
    documents: np.ndarray,
    cursor: np.ndarray,
    end: np.ndarray,
    rule: InstanceRule,
    rng: np.random.Generator,
) -> Iterator[np.ndarray]:
    """Yields steps of [CLS] A [SEP] B [SEP] instances: sentences to `end`.

    As the original's create_instances_from_document: sentences are gathered
    up to the target length and cut in two at a random sentence end. B is the
    second part, or, for half of them and for lone sentences, a piece of
    another document; what would have been B is then used again. Here the
    other document is always another one, each with the same chance.
    """
    while cursor.size:
        target = _targets(len(cursor), rule, rng)
        stop = _stop(corpus, cursor, target, end)
        middle = cursor + rng.integers(1, np.maximum(stop - cursor, 2))
        is_random = (stop - cursor == 1) | (rng.random(len(cursor)) < 0.5)
        offsets = corpus.sentence_offsets
        wanted = target - (offsets[middle] - offsets[cursor])
        first_b, stop_b = _other_segments(corpus, documents, wanted, rng)
        first_b = np.where(is_random, first_b, middle)
        stop_b = np.where(is_random, stop_b, stop)
        yield _truncated(
            offsets[[cursor, middle]],
            offsets[[first_b, stop_b]],
            is_random,
            rule.room,
            rng,
        )
        cursor = np.where(is_random, middle, stop)
        active = cursor < end
        documents, cursor, end = documents[active], cursor[active], end[active]


def _stop(
    corpus: Corpus, first: np.ndarray, wanted: np.ndarray, end: np.ndarray
) -> np.ndarray:
    """The sentences before which segments stop: int64 [n].

    A segment that starts with sentence `first` takes one sentence at least,
    and more until it has `wanted` tokens or its document is at its `end`.
    """
    goal = corpus.sentence_offsets[first] + np.maximum(wanted, 1)
    stop = np.searchsorted(corpus.sentence_offsets, goal, "left")
    return np.minimum(stop, end)


def _other_segments(
    corpus: Corpus,
    documents: np.ndarray,
    wanted: np.ndarray,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Segments of some `wanted` tokens from anywhere but `documents`.

    Returns:
      The first sentence, and the one before which the segment stops.
    """
    other = rng.integers(0, corpus.num_documents - 1, len(documents))
    other += other >= documents
    first, end = corpus.sentence_range(other)
    first = rng.integers(first, end)
    return first, _stop(corpus, first, wanted, end)


def _truncated(
    a_range: np.ndarray,
    b_range: np.ndarray,
    is_random: np.ndarray,
    room: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """Cuts pairs of token ranges [2, n] to `room` tokens together: SPAN [n].

    The original (truncate_seq_pair) drops tokens one by one from the longer
    segment, B on a tie, each from its front or back with equal chance. How
    many each loses in the end has a closed form; how many of them go in front
    is binomial.
    """
    a_length, b_length = (
        np.diff(a_range, axis=0)[0],
        np.diff(b_range, axis=0)[0],
    )
    a_kept = np.minimum(a_length, np.maximum((room + 1) // 2, room - b_length))
    b_kept = np.minimum(b_length, np.maximum(room // 2, room - a_length))
    spans = np.empty(len(is_random), SPAN)
    spans["a_start"] = a_range[0] + rng.binomial(a_length - a_kept, 0.5)
    spans["b_start"] = b_range[0] + rng.binomial(b_length - b_kept, 0.5)
    spans["a_length"] = a_kept
    spans["b_length"] = b_kept
    spans["is_random_next"] = is_random
    return spans


def _single_spans(
    corpus: Corpus,
    first: np.ndarray,
    stop: np.ndarray,
    rule: InstanceRule,
    rng: np.random.Generator,
) -> Iterator[np.ndarray]:
    """Yields steps of [CLS] A [SEP] instances that tile runs of sentences.

    A ends with the last sentence that fits; a sentence with more tokens than
    the target is cut there and goes on in the next instance. So every token
    is in exactly one instance.
    """
    cursor, end = corpus.sentence_offsets[[first, stop]]
    while cursor.size:
        limit = np.minimum(cursor + _targets(len(cursor), rule, rng), end)
        after = np.searchsorted(corpus.sentence_offsets, limit, "right")
        whole = corpus.sentence_offsets[after - 1]
        a_end = np.where(whole > cursor, whole, limit)
        spans = np.zeros(len(cursor), SPAN)
        spans["a_start"] = cursor
        spans["a_length"] = a_end - cursor
        yield spans
        active = a_end < end
        cursor, end = a_end[active], end[active]


def _targets(
    count: int, rule: InstanceRule, rng: np.random.Generator
) -> np.ndarray:
    """The lengths that `count` sequences aim at, each drawn by itself.

    The original draws once for a document's whole pass: a book of which that
    falls on 3 becomes thousands of sequences of 3 tokens.
    """
    short = rng.integers(2, rule.room + 1, count)
    is_short = rng.random(count) < rule.short_seq_prob
    return np.where(is_short, short, rule.room)


@dataclasses.dataclass(frozen=True)
class Sequences:
    """A batch of n sequences of L positions, not masked yet.

    Attributes:
      input_ids: int32 [n, L], padded with 0.
      input_mask: bool [n, L], False at padding.
      segment_ids: int8 [n, L], 1 in B and its [SEP].
    """

    input_ids: np.ndarray
    input_mask: np.ndarray
    segment_ids: np.ndarray


def gather(
    read: Callable[[np.ndarray, np.ndarray], np.ndarray],
    spans: np.ndarray,
    max_seq_length: int,
    cls_id: int,
    sep_id: int,
) -> Sequences:
    """Fetches the tokens of instances: [CLS] A [SEP] B [SEP], padded.

    Without B, where its length is 0, the second [SEP] is left out too.

    Args:
      read: Takes starts [k] and lengths [k]; returns the corpus's tokens in
        these slices, end to end.
      spans: SPAN [n].
      max_seq_length: L.
      cls_id: Id of [CLS].
      sep_id: Id of [SEP].
    """
    column = np.arange(max_seq_length)  # [L], against [n, 1]
    a_sep = spans["a_length"][:, np.newaxis] + 1
    b_length = spans["b_length"][:, np.newaxis]
    end = a_sep + np.where(b_length, b_length + 2, 1)
    input_mask = column < end
    is_text = input_mask & (column != 0) & (column != a_sep)
    is_text &= column != end - 1

    input_ids = np.where(input_mask, np.int32(sep_id), np.int32(0))
    input_ids[:, 0] = cls_id
    # Row by row, A before B: the order in which a mask is filled.
    input_ids[is_text] = read(
        np.stack([spans["a_start"], spans["b_start"]], axis=1).ravel(),
        np.stack([spans["a_length"], spans["b_length"]], axis=1).ravel(),
    )
    segment_ids = input_mask & (column > a_sep)
    return Sequences(input_ids, input_mask, segment_ids.view(np.int8))
