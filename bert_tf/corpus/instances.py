"""Cuts documents into the segments A and B of pre-training instances.

Instances are made for many documents in lock step: each step makes the next
instance of every unfinished piece of a document, in a few NumPy calls. Random
numbers are functions of document, piece, pass and step (see `randomness`), so
sections can be cut in any order and by any process.

A pair is made in three steps, which may run on three machines:

1. `draft_pairs` cuts A and either cuts B or chooses a point of another document
   at which B begins.
2. For a random B, a process that has the other document finds the tokens of B
   (`place_random_b`).
3. `truncate` shortens A and B to the sequence length.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator

import numpy as np

from bert_tf.corpus import text
from bert_tf.corpus.settings import CUTTING, CreationConfig
from bert_tf.corpus.text import Corpus, Pieces, Section
from bert_tf.data import randomness
from bert_tf.tokenization.packing import truncated_lengths

# An instance: two slices of the tokens of the corpus. Starts are int64 because
# a corpus may have more than 2 ** 31 tokens.
SPAN = np.dtype(
    [
        ("a_start", np.int64),
        ("b_start", np.int64),
        ("a_length", np.int32),
        ("b_length", np.int32),
        ("is_random_next", np.bool_),
    ]
)

# A pair that may be too long. If B is random, it comes from the document
# `other_document`, begins at the fraction `point` of its sentences and should
# have about `wanted` tokens.
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

# The subkeys of an instance's key, one for each random number.
_IS_SHORT, _TARGET, _MIDDLE, _IS_RANDOM, _OTHER, _POINT, _CUT_A, _CUT_B = range(
    8
)

# Takes starts [k] and lengths [k] and returns the tokens of these slices.
Reader = Callable[[np.ndarray, np.ndarray], np.ndarray]


def sections(corpus: Corpus, size: int) -> Iterator[tuple[int, int]]:
    """Divides a corpus into ranges of fewer than 3 * `size` sentences.

    They begin where pieces of `size` sentences begin, so a document with fewer
    than 2 * `size` sentences is never divided.
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
    config: CreationConfig, section: Section, size: int, num_documents: int
) -> np.ndarray:
    """Cuts documents into pairs of segments, `dupe_factor` times.

    Follows the original's create_instances_from_document: sentences are
    gathered up to the target length and divided at a random sentence boundary.
    B is the second part. With probability 0.5, and always for a single
    sentence, B is instead a segment of another document, and the next instance
    begins with the second part. All other documents are equally likely.

    For example, with a target of 8 tokens and sentences of 3, 2, 4 and 5
    tokens, the first three are gathered. Divided after the first, A is
    sentence 1. If B is the actual continuation, it is sentences 2 and 3 and
    the next instance begins with sentence 4. If B is random, the next instance
    begins with sentence 2.

    Args:
      size: See `text.Pieces`.
      num_documents: The number of documents in the whole text, at least 2.

    Returns:
      DRAFT [n], ordered by piece, then by pass, then by position in the text.
    """
    step = functools.partial(_draft_step, config, section.corpus, num_documents)
    return _in_lock_step(config, step, section.pieces(size))


def _in_lock_step(
    config: CreationConfig,
    step: Callable[..., tuple[np.ndarray, np.ndarray]],
    pieces: Pieces,
) -> np.ndarray:
    """Makes the instances of all pieces, one of each piece and pass at a time.

    `step` takes four arrays [k]: the keys of instances, the numbers of their
    documents, the sentences (or tokens) with which they begin and the ends of
    their pieces. It returns the instances [k] and the starts of the next ones
    [k]. `first` and `stop` of the pieces are in the units of `step`.

    Returns:
      The instances [n], ordered by piece, then by pass, then by step.
    """
    rows = np.arange(len(pieces.first) * config.dupe_factor)
    piece, number_of_pass = np.divmod(rows, config.dupe_factor)
    documents = pieces.documents[piece]
    keys = randomness.keys(
        config.seed(CUTTING), documents, pieces.positions[piece], number_of_pass
    )
    cursor, end = pieces.first[piece], pieces.stop[piece]
    batches, rows_made = [], []
    for number in itertools.count():
        instances, cursor = step(
            randomness.subkeys(keys, number), documents, cursor, end
        )
        batches.append(instances)
        rows_made.append(rows)
        active = cursor < end
        if not active.any():
            break
        rows, keys, documents, cursor, end = (
            values[active] for values in (rows, keys, documents, cursor, end)
        )
    order = np.argsort(np.concatenate(rows_made), kind="stable")
    return np.concatenate(batches)[order]


def _draft_step(
    config: CreationConfig,
    corpus: Corpus,
    num_documents: int,
    keys: np.ndarray,
    documents: np.ndarray,
    cursor: np.ndarray,
    end: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Makes one pair for each piece; see `_in_lock_step`."""
    target = _target_lengths(config, keys)
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
    drafts["other_document"] = other + (other >= documents)
    drafts["point"] = randomness.uniform(keys, _POINT)
    drafts["wanted"] = target - (offsets[middle] - offsets[cursor])
    return drafts, np.where(is_random, middle, stop)


def find_stop(
    corpus: Corpus, first: np.ndarray, wanted: np.ndarray, end: np.ndarray
) -> np.ndarray:
    """Returns the ends of segments, as sentences: int64 [n].

    A segment that starts with sentence `first` has at least one sentence. It
    takes further sentences until it has `wanted` tokens or reaches the `end`
    of its piece.
    """
    goal = corpus.sentence_offsets[first] + np.maximum(wanted, 1)
    stop = np.searchsorted(corpus.sentence_offsets, goal, "left")
    return np.minimum(stop, end)


def place_random_b(
    drafts: np.ndarray,
    corpus: Corpus,
    first: np.ndarray,
    lengths: np.ndarray,
    size: int,
) -> None:
    """Finds the tokens of each random B.

    Args:
      drafts: DRAFT [n]; this function sets `b_start` and `b_stop`.
      corpus: The documents that have B.
      first: int64 [n], the first sentence of each of these documents.
      lengths: int64 [n], the number of sentences of each.
      size: See `text.Pieces`.
    """
    positions = (drafts["point"] * lengths).astype(np.int64)
    start = first + positions
    end = first + text.piece_ends(positions, lengths, size)
    stop = find_stop(corpus, start, drafts["wanted"], end)
    offsets = corpus.sentence_offsets
    drafts["b_start"], drafts["b_stop"] = offsets[start], offsets[stop]


def truncate(drafts: np.ndarray, max_tokens: int) -> np.ndarray:
    """Truncates pairs to `max_tokens` in all: DRAFT [n] to SPAN [n].

    The original (truncate_seq_pair) drops tokens one by one from the longer
    segment, from B if both are equal, each from the front or the back with
    equal probability. The final lengths have a closed form, and the number of
    tokens dropped from the front is binomial.
    """
    a_length = drafts["a_stop"] - drafts["a_start"]
    b_length = drafts["b_stop"] - drafts["b_start"]
    a_kept, b_kept = truncated_lengths(a_length, b_length, max_tokens)
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
    config: CreationConfig, section: Section, size: int
) -> np.ndarray:
    """Cuts documents into consecutive [CLS] A [SEP] instances.

    Segment A ends with the last sentence that fits. A sentence that is longer
    than the target is cut there and continues in the next instance, so each
    token is in exactly one instance of each pass.

    For `size`, see `text.Pieces`.

    Returns:
      SPAN [n], in the order of `draft_pairs`.
    """
    offsets = section.corpus.sentence_offsets
    pieces = section.pieces(size)
    in_tokens = dataclasses.replace(
        pieces, first=offsets[pieces.first], stop=offsets[pieces.stop]
    )
    return _in_lock_step(
        config, functools.partial(_single_step, config, offsets), in_tokens
    )


def _single_step(
    config: CreationConfig,
    offsets: np.ndarray,
    keys: np.ndarray,
    documents: np.ndarray,
    cursor: np.ndarray,
    end: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Makes one segment for each piece; see `_in_lock_step`."""
    limit = np.minimum(cursor + _target_lengths(config, keys), end)
    whole = offsets[np.searchsorted(offsets, limit, "right") - 1]
    stop = np.where(whole > cursor, whole, limit)
    spans = np.zeros(len(cursor), SPAN)
    spans["a_start"] = cursor
    spans["a_length"] = stop - cursor
    return spans, stop


def _target_lengths(config: CreationConfig, keys: np.ndarray) -> np.ndarray:
    """Draws a target length for each instance: int64 [n].

    The original draws one length for each pass over a document, so a
    whole book may become pairs of single sentences.
    """
    longest = config.max_text_tokens
    short = 2 + randomness.below(keys, _TARGET, longest - 1)
    is_short = randomness.uniform(keys, _IS_SHORT) < config.short_seq_prob
    return np.where(is_short, short, longest)


def gather(
    read: Reader,
    spans: np.ndarray,
    max_seq_length: int,
    cls_id: int,
    sep_id: int,
) -> dict[str, np.ndarray]:
    """Builds [CLS] A [SEP] B [SEP] sequences with padding.

    If the length of B is 0, its [SEP] is left out too.

    Args:
      read: Returns the concatenated slices of the tokens of the corpus.
      spans: SPAN [n].
      max_seq_length: L.

    Returns:
      `input_ids`, int32 [n, L], padded with 0; `input_mask`, bool [n, L], False
      for padding; and `segment_ids`, int8 [n, L], 1 in B and its [SEP].
    """
    column = np.arange(max_seq_length)  # [L], broadcast against [n, 1]
    a_sep = spans["a_length"][:, np.newaxis] + 1
    b_length = spans["b_length"][:, np.newaxis]
    end = a_sep + np.where(b_length, b_length + 2, 1)
    input_mask = column < end
    is_text = input_mask & (column != 0) & (column != a_sep)
    is_text &= column != end - 1

    input_ids = np.where(input_mask, np.int32(sep_id), np.int32(0))
    input_ids[:, 0] = cls_id
    # A boolean mask is filled row by row, so A comes before B.
    input_ids[is_text] = read(
        np.stack([spans["a_start"], spans["b_start"]], axis=1).ravel(),
        np.stack([spans["a_length"], spans["b_length"]], axis=1).ravel(),
    )
    segment_ids = input_mask & (column > a_sep)
    return {
        "input_ids": input_ids,
        "input_mask": input_mask,
        "segment_ids": segment_ids.view(np.int8),
    }
