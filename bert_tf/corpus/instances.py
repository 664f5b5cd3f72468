"""Segments A and B: where they lie in a corpus, and the sequences they make.

Instances are made for many documents in lock step: each step makes the next
instance of every piece of a document that is not at its end, in a few NumPy
calls. What is drawn for an instance is named by its document, piece, pass and
step (see `draws`): sections can be cut in any order and anywhere.

A pair is made in three moves, which may happen in three places: `draft_pairs`
cuts A and says where B is, or which point of which other document it begins
at; somebody who has that document finds it; `truncate` makes both fit.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from bert_tf.corpus import text
from bert_tf.corpus.text import Corpus, Pieces, Section
from bert_tf.data import randomness

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

# A pair that may be too long yet. Where B is random, `other_document` is where
# it comes from, `point` which of its sentences it begins with, as a share of
# all, and `wanted` how many tokens it aims at.
DRAFT = np.dtype(
    [
        ("key", np.uint64),
        ("a_start", np.int64),
        ("a_stop", np.int64),
        ("b_start", np.int64),
        ("b_stop", np.int64),
        ("is_random_next", np.bool_),
        ("other_document", np.int64),
        ("point", np.float64),
        ("wanted", np.int64),
    ]
)

# The turns of an instance's key.
_IS_SHORT, _TARGET, _MIDDLE, _IS_RANDOM, _OTHER, _POINT, _CUT_A, _CUT_B = range(
    8
)


# Takes starts [k] and lengths [k], returns the tokens in these slices.
Reader = Callable[[np.ndarray, np.ndarray], np.ndarray]


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
    """Divides a corpus into ranges of some `size` to 3 * `size` sentences.

    They begin where pieces of `size` sentences do: a document with fewer than
    2 * `size` is never divided.
    """
    marks = np.arange(0, corpus.num_sentences, size)
    starts = corpus.document_offsets
    document = np.searchsorted(starts, marks, "right") - 1
    first, stop = corpus.sentence_range(document)
    number = -(-(marks - first) // size)
    is_inside = number < text.num_pieces(stop - first, size)
    bounds = np.where(is_inside, first + number * size, stop)
    bounds = np.unique(np.append(bounds, corpus.num_sentences))
    return itertools.pairwise(bounds.tolist())


def draft_pairs(
    section: Section,
    size: int,
    num_documents: int,
    num_passes: int,
    rule: InstanceRule,
    seed: Sequence[int],
) -> np.ndarray:
    """Cuts documents into pairs of segments, several times.

    As the original's create_instances_from_document: sentences are gathered
    up to the target length and cut in two at a random sentence end. B is the
    second part, or, for half of them and for lone sentences, a piece of
    another document; what would have been B is then used again. Here the
    other document is always another one, each with the same chance.

    Args:
      section: The documents.
      size: As for `Pieces`.
      num_documents: In the whole text: 2 or more.
      num_passes: How often to cut, each time with other draws.
      rule: How to cut.
      seed: Of all draws.

    Returns:
      DRAFT [n], piece after piece, pass after pass, in the order of the text.
    """
    start = functools.partial(_draft_step, section.corpus, num_documents, rule)
    return _in_lock_step(start, section.pieces(size), num_passes, seed)


def _in_lock_step(
    step: Callable[..., tuple[np.ndarray, np.ndarray]],
    pieces: Pieces,
    num_passes: int,
    seed: Sequence[int],
) -> np.ndarray:
    """Takes the same step in all pieces and passes until each is at its end.

    Args:
      step: Takes the keys of instances, their documents, the sentences (or
        tokens) that they begin with and those before which pieces end, each
        [k]; returns the instances [k] and with what the next ones begin [k].
      pieces: What to cut; `first` and `stop` are in the units of `step`.
      num_passes: How often.
      seed: Of all draws.

    Returns:
      The instances [n], sorted by piece, then by pass, then by step.
    """
    rows = np.arange(len(pieces.first) * num_passes)
    piece, turn = np.divmod(rows, num_passes)
    keys = randomness.keys(
        seed, pieces.documents[piece], pieces.places[piece], turn
    )
    cursor, end = pieces.first[piece], pieces.stop[piece]
    owners = pieces.documents[piece]
    made, rows_made = [], []
    for number in itertools.count():
        instances, cursor = step(
            randomness.subkeys(keys, number), owners, cursor, end
        )
        made.append(instances)
        rows_made.append(rows)
        active = cursor < end
        if not active.any():
            break
        rows, keys, owners, cursor, end = (
            values[active] for values in (rows, keys, owners, cursor, end)
        )
    order = np.argsort(np.concatenate(rows_made), kind="stable")
    return np.concatenate(made)[order]


def _draft_step(
    corpus: Corpus,
    num_documents: int,
    rule: InstanceRule,
    keys: np.ndarray,
    owners: np.ndarray,
    cursor: np.ndarray,
    end: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Makes one pair for each piece; see `_in_lock_step`."""
    target = _targets(keys, rule)
    stop = find_stop(corpus, cursor, target, end)
    count = stop - cursor
    middle = (
        cursor + 1 + randomness.below(keys, _MIDDLE, np.maximum(count - 1, 1))
    )
    is_random = (count == 1) | (randomness.uniform(keys, _IS_RANDOM) < 0.5)
    other = randomness.below(keys, _OTHER, num_documents - 1)
    offsets = corpus.sentence_offsets
    drafts = np.empty(len(keys), DRAFT)
    drafts["key"] = keys
    drafts["a_start"] = offsets[cursor]
    drafts["a_stop"] = drafts["b_start"] = offsets[middle]
    drafts["b_stop"] = offsets[stop]
    drafts["is_random_next"] = is_random
    drafts["other_document"] = other + (other >= owners)
    drafts["point"] = randomness.uniform(keys, _POINT)
    drafts["wanted"] = target - (offsets[middle] - offsets[cursor])
    return drafts, np.where(is_random, middle, stop)


def find_stop(
    corpus: Corpus, first: np.ndarray, wanted: np.ndarray, end: np.ndarray
) -> np.ndarray:
    """The sentences before which segments stop: int64 [n].

    A segment that starts with sentence `first` takes one sentence at least,
    and more until it has `wanted` tokens or its piece is at its `end`.
    """
    goal = corpus.sentence_offsets[first] + np.maximum(wanted, 1)
    stop = np.searchsorted(corpus.sentence_offsets, goal, "left")
    return np.minimum(stop, end)


def truncate(drafts: np.ndarray, room: int) -> np.ndarray:
    """Cuts pairs to `room` tokens together: DRAFT [n] to SPAN [n].

    The original (truncate_seq_pair) drops tokens one by one from the longer
    segment, B on a tie, each from its front or back with equal chance. How
    many each loses in the end has a closed form; how many of them go in front
    is binomial.
    """
    a_length = drafts["a_stop"] - drafts["a_start"]
    b_length = drafts["b_stop"] - drafts["b_start"]
    a_kept = np.minimum(a_length, np.maximum((room + 1) // 2, room - b_length))
    b_kept = np.minimum(b_length, np.maximum(room // 2, room - a_length))
    keys = drafts["key"]
    spans = np.empty(len(drafts), SPAN)
    spans["a_start"] = drafts["a_start"] + randomness.heads(
        keys, _CUT_A, a_length - a_kept
    )
    spans["b_start"] = drafts["b_start"] + randomness.heads(
        keys, _CUT_B, b_length - b_kept
    )
    spans["a_length"] = a_kept
    spans["b_length"] = b_kept
    spans["is_random_next"] = drafts["is_random_next"]
    return spans


def single_spans(
    section: Section,
    size: int,
    num_passes: int,
    rule: InstanceRule,
    seed: Sequence[int],
) -> np.ndarray:
    """Cuts documents into [CLS] A [SEP] instances that tile them.

    A ends with the last sentence that fits; a sentence with more tokens than
    the target is cut there and goes on in the next instance. So every token
    is in exactly one instance of each pass.

    Args:
      section: The documents.
      size: As for `Pieces`.
      num_passes: How often to cut, each time with other draws.
      rule: How to cut.
      seed: Of all draws.

    Returns:
      SPAN [n], in the order of `draft_pairs`.
    """
    offsets = section.corpus.sentence_offsets
    pieces = section.pieces(size)
    in_tokens = dataclasses.replace(
        pieces, first=offsets[pieces.first], stop=offsets[pieces.stop]
    )
    step = functools.partial(_single_step, offsets, rule)
    return _in_lock_step(step, in_tokens, num_passes, seed)


def _single_step(
    offsets: np.ndarray,
    rule: InstanceRule,
    keys: np.ndarray,
    owners: np.ndarray,
    cursor: np.ndarray,
    end: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Makes one segment for each piece; see `_in_lock_step`."""
    limit = np.minimum(cursor + _targets(keys, rule), end)
    whole = offsets[np.searchsorted(offsets, limit, "right") - 1]
    stop = np.where(whole > cursor, whole, limit)
    spans = np.zeros(len(cursor), SPAN)
    spans["a_start"] = cursor
    spans["a_length"] = stop - cursor
    return spans, stop


def _targets(keys: np.ndarray, rule: InstanceRule) -> np.ndarray:
    """The lengths that sequences aim at, each drawn by itself: int64 [n].

    The original draws once for a document's whole pass: a book of which that
    falls on 3 becomes thousands of sequences of 3 tokens.
    """
    short = 2 + randomness.below(keys, _TARGET, rule.room - 1)
    is_short = randomness.uniform(keys, _IS_SHORT) < rule.short_seq_prob
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
    read: Reader,
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
