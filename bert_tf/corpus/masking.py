"""Which tokens a masked language model has to guess, and what it sees there.

Whole batches at a time: arrays are [n, L], n sequences of L positions. What
happens to a sequence follows from its own key and not from its neighbours.
"""

import dataclasses
import functools

import numpy as np

from bert_tf.data import randomness

# The parts of a sequence's key. Each has a turn for every position or word.
_ORDER, _FATE, _REPLACEMENT = range(3)


@dataclasses.dataclass(frozen=True)
class MaskingRule:
    """How much is masked and how (BERT paper, section 3.1, task 1).

    Attributes:
      max_predictions_per_seq: Masked positions of a sequence at most; P.
      masked_lm_prob: Share of the tokens of a sequence, specials counted.
      whole_words: All pieces of a word are masked together or not at all.
      mask_share: Probability that a chosen word becomes [MASK].
      random_share: Probability that it is replaced by random words; in what
        is left of 1 it stays as it is, and still has to be predicted.
    """

    max_predictions_per_seq: int
    masked_lm_prob: float
    whole_words: bool = False
    mask_share: float = 0.8
    random_share: float = 0.1


@dataclasses.dataclass(frozen=True)
class MaskingVocabulary:
    """What masking has to know of a vocabulary of V entries.

    Attributes:
      mask_id: The id of [MASK].
      special_ids: The ids that are never masked: [CLS] and [SEP].
      replaceable_ids: Integers [r], the real words among which a random
        replacement is drawn: never [PAD], [unused7] or the like.
      continuation: bool [V], True for pieces that go on a word ("##ing").
    """

    mask_id: int
    special_ids: tuple[int, ...]
    replaceable_ids: np.ndarray
    continuation: np.ndarray


@dataclasses.dataclass(frozen=True)
class Masked:
    """A masked batch: n sequences of L positions, P predictions at most.

    Attributes:
      input_ids: int32 [n, L], what the model is to see.
      positions: int32 [n, P], ascending, then 0.
      ids: int32 [n, P], the true tokens there, then 0.
      weights: float32 [n, P], 1 for a prediction, 0 for what fills up.
      num_mask: Tokens of the batch that became [MASK].
      num_random: Tokens that were replaced by a random one.
      num_kept: Tokens to be predicted that were left as they are.
    """

    input_ids: np.ndarray
    positions: np.ndarray
    ids: np.ndarray
    weights: np.ndarray
    num_mask: int
    num_random: int
    num_kept: int


def mask(
    input_ids: np.ndarray,
    input_mask: np.ndarray,
    rule: MaskingRule,
    vocabulary: MaskingVocabulary,
    keys: np.ndarray,
) -> Masked:
    """Chooses words, hides them, and writes down what they were.

    The original's create_masked_lm_predictions, with two differences on
    purpose: [MASK], random or kept is decided once for all pieces of a word,
    and a random replacement is a real word. A word of k pieces is replaced by
    k independent random pieces, so that the length stays.

    Whole words are known by their "##" alone: Chinese, of which each
    character is a word of its own, is masked character by character.

    Args:
      input_ids: int32 [n, L].
      input_mask: bool [n, L], False at padding.
      rule: How much and how.
      vocabulary: What the ids mean.
      keys: uint64 [n], of `draws`: equal keys and equal sequences are masked
        alike.
    """
    candidates = input_mask & ~np.isin(input_ids, vocabulary.special_ids)
    words = _word_numbers(input_ids, candidates, rule, vocabulary)
    quota = _quota(np.count_nonzero(input_mask, axis=1), rule)
    chosen = _choose_words(words, candidates, quota, keys)
    rows, columns = np.nonzero(
        np.take_along_axis(chosen, words, axis=1) & candidates
    )
    fates = randomness.subkeys(keys, _FATE)[rows]
    fate = randomness.uniform(fates, words[rows, columns])
    is_mask = fate < rule.mask_share
    is_random = ~is_mask & (fate < rule.mask_share + rule.random_share)
    num_mask, num_random = int(is_mask.sum()), int(is_random.sum())

    truth = input_ids[rows, columns]
    seen = np.where(is_mask, vocabulary.mask_id, truth)
    replacements = randomness.subkeys(keys, _REPLACEMENT)[rows[is_random]]
    options = vocabulary.replaceable_ids
    seen[is_random] = options[
        randomness.below(replacements, columns[is_random], len(options))
    ]
    masked_ids = input_ids.copy()
    masked_ids[rows, columns] = seen
    pack = functools.partial(
        _pack, rows, (len(input_ids), rule.max_predictions_per_seq)
    )
    return Masked(
        input_ids=masked_ids,
        positions=pack(columns.astype(np.int32)),
        ids=pack(truth),
        weights=pack(np.ones(len(rows), np.float32)),
        num_mask=num_mask,
        num_random=num_random,
        num_kept=len(rows) - num_mask - num_random,
    )


def _word_numbers(
    input_ids: np.ndarray,
    candidates: np.ndarray,
    rule: MaskingRule,
    vocabulary: MaskingVocabulary,
) -> np.ndarray:
    """Numbers the words of each row from 0: int32 [n, L].

    What the numbers are where there is no candidate has no meaning.
    """
    starts = candidates
    if rule.whole_words:
        # After [CLS] or [SEP] a piece starts a word, whatever it looks like:
        # the segment may have been cut inside a word.
        goes_on = vocabulary.continuation[input_ids]
        goes_on[:, 1:] &= candidates[:, :-1]
        starts = candidates & ~goes_on
    return np.maximum(np.cumsum(starts, axis=1, dtype=np.int32) - 1, 0)


def _quota(lengths: np.ndarray, rule: MaskingRule) -> np.ndarray:
    """Tokens to mask in sequences of `lengths` tokens: int64 [n].

    Halves go to the even number, as Python 3's round does in the original.
    """
    share = np.rint(lengths * rule.masked_lm_prob).astype(np.int64)
    return np.clip(share, 1, rule.max_predictions_per_seq)


def _choose_words(
    words: np.ndarray,
    candidates: np.ndarray,
    quota: np.ndarray,
    keys: np.ndarray,
) -> np.ndarray:
    """Takes words in random order while they fit: bool [n, L], by number.

    A word longer than what is left of the quota is passed over.
    """
    rows, length = words.shape
    every = np.arange(rows)
    flat = (words + every[:, np.newaxis] * length)[candidates]
    sizes = np.bincount(flat, minlength=words.size).reshape(words.shape)
    exists = sizes > 0
    turns = randomness.subkeys(keys, _ORDER)[:, np.newaxis]
    priority = randomness.uniform(turns, np.arange(length))
    order = np.argsort(np.where(exists, priority, 2.0), axis=1)
    chosen = np.zeros(words.shape, bool)
    left = quota.copy()
    for word in order.T[: exists.sum(axis=1).max(initial=0)]:
        size = sizes[every, word]
        fits = size <= left
        chosen[every, word] = fits
        left -= size * fits
        if not left.any():
            break
    return chosen


def _pack(
    rows: np.ndarray, shape: tuple[int, int], values: np.ndarray
) -> np.ndarray:
    """Sets each row's values at its start: [m] to [n, P], then zeros.

    rows [0, 0, 2] and values [5, 7, 6] give [[5, 7], [0, 0], [6, 0]].
    """
    counts = np.bincount(rows, minlength=shape[0])
    packed = np.zeros(shape, values.dtype)
    packed[np.arange(shape[1]) < counts[:, np.newaxis]] = values
    return packed
