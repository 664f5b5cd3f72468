"""Chooses and replaces the tokens that a masked language model predicts.

Arrays are [n, L]: n sequences of L positions. The result for a sequence depends
on its tokens and its key only, not on the other rows of the batch.
"""

import dataclasses

import numpy as np

from bert_tf.corpus.settings import CreationConfig
from bert_tf.data import randomness

# Names of the subkeys of a sequence's key. Each subkey gives one random number
# per word (order, fate) or position (replacement).
_ORDER, _FATE, _REPLACEMENT = range(3)


@dataclasses.dataclass(frozen=True)
class MaskingVocabulary:
    """Vocabulary data for masking; V is the number of tokens.

    Random replacements are drawn from `replaceable_ids` [r]: all but [PAD],
    [unused7] and the like.
    """

    mask_id: int
    special_ids: tuple[int, ...]  # Never masked: [CLS] and [SEP].
    replaceable_ids: np.ndarray
    continuation: np.ndarray  # bool [V], True for "##ing" and the like.


@dataclasses.dataclass(frozen=True)
class Masked:
    """A masked batch: n sequences of L positions with up to P predictions."""

    input_ids: np.ndarray  # int32 [n, L], the input of the model.
    positions: np.ndarray  # int32 [n, P], ascending, then 0 for padding.
    ids: np.ndarray  # int32 [n, P], the original tokens, then 0.
    weights: np.ndarray  # float32 [n, P], 1 for predictions, 0 for padding.
    num_mask: int  # Tokens replaced by [MASK].
    num_random: int  # Tokens replaced by a random token.
    num_kept: int  # Tokens to predict that were left unchanged.


def mask(
    input_ids: np.ndarray,
    input_mask: np.ndarray,
    config: CreationConfig,
    vocabulary: MaskingVocabulary,
    keys: np.ndarray,
) -> Masked:
    """Masks a batch (BERT paper, section 3.1, task 1).

    Follows the original's create_masked_lm_predictions, with two deliberate
    differences: there is one decision per word (mask, replace or keep) instead
    of one per token, and a random replacement is never a special or unused
    token. A word of k tokens is replaced by k independent random tokens, which
    keeps the length.

    Words are recognized by "##" alone: in Chinese, each character is a separate
    word.

    A worked example with `do_whole_word_mask`, 15 % and 14 tokens:

        [CLS] the man ##ia went to [SEP] ...   quota: round(0.15 * 14) = 2
        words:  0   1    1    2    3           "man ##ia" is word 1
        random order of the words: 2, 1, 0 ... "went" fits (1 left), "man ##ia"
                                               is too long, "the" fits (0 left)

    Args:
      input_ids: int32 [n, L].
      input_mask: bool [n, L], False for padding.
      config: The options of masking, such as `masked_lm_prob`.
      keys: uint64 [n], from `randomness.keys`.
    """
    candidates = input_mask & ~np.isin(input_ids, vocabulary.special_ids)
    words = _word_numbers(
        input_ids, candidates, vocabulary, config.do_whole_word_mask
    )
    # np.rint rounds halves to even, like Python's round in the original.
    lengths = np.count_nonzero(input_mask, axis=1)
    quota = np.rint(lengths * config.masked_lm_prob).astype(np.int64)
    quota = np.clip(quota, 1, config.max_predictions_per_seq)
    chosen = _choose_words(words, candidates, quota, keys)
    rows, columns = np.nonzero(
        np.take_along_axis(chosen, words, axis=1) & candidates
    )
    fate = randomness.uniform(
        randomness.subkeys(keys, _FATE)[rows], words[rows, columns]
    )
    is_mask = fate < config.mask_share
    is_random = ~is_mask & (fate < config.mask_share + config.random_share)
    num_mask, num_random = int(is_mask.sum()), int(is_random.sum())

    original = input_ids[rows, columns]
    replaced = np.where(is_mask, vocabulary.mask_id, original)
    options = vocabulary.replaceable_ids
    replaced[is_random] = options[
        randomness.below(
            randomness.subkeys(keys, _REPLACEMENT)[rows[is_random]],
            columns[is_random],
            len(options),
        )
    ]
    masked_ids = input_ids.copy()
    masked_ids[rows, columns] = replaced
    shape = (len(input_ids), config.max_predictions_per_seq)
    return Masked(
        input_ids=masked_ids,
        positions=_pack(rows, shape, columns.astype(np.int32)),
        ids=_pack(rows, shape, original),
        weights=_pack(rows, shape, np.ones(len(rows), np.float32)),
        num_mask=num_mask,
        num_random=num_random,
        num_kept=len(rows) - num_mask - num_random,
    )


def _word_numbers(
    input_ids: np.ndarray,
    candidates: np.ndarray,
    vocabulary: MaskingVocabulary,
    whole_words: bool,
) -> np.ndarray:
    """Numbers the words of each row from 0: int32 [n, L].

    The numbers at positions that are not candidates are meaningless. Without
    `whole_words`, each token counts as a word.
    """
    starts = candidates
    if whole_words:
        # After [CLS] or [SEP], "##" starts a word: the segment may have been
        # cut inside a word.
        continues = vocabulary.continuation[input_ids]
        continues[:, 1:] &= candidates[:, :-1]
        starts = candidates & ~continues
    return np.maximum(np.cumsum(starts, axis=1, dtype=np.int32) - 1, 0)


def _choose_words(
    words: np.ndarray,
    candidates: np.ndarray,
    quota: np.ndarray,
    keys: np.ndarray,
) -> np.ndarray:
    """Takes words in random order while they fit the quota of tokens.

    A word that is longer than what is left of the quota is skipped.

    Returns:
      bool [n, L], True where the word with number l was chosen.
    """
    num_rows, length = words.shape
    rows = np.arange(num_rows)
    flat = (words + rows[:, np.newaxis] * length)[candidates]
    sizes = np.bincount(flat, minlength=words.size).reshape(words.shape)
    exists = sizes > 0
    subkeys = randomness.subkeys(keys, _ORDER)[:, np.newaxis]
    priority = randomness.uniform(subkeys, np.arange(length))
    order = np.argsort(np.where(exists, priority, 2.0), axis=1)
    chosen = np.zeros(words.shape, bool)
    left = quota.copy()
    for word in order.T[: exists.sum(axis=1).max(initial=0)]:
        size = sizes[rows, word]
        fits = size <= left
        chosen[rows, word] = fits
        left -= size * fits
        if not left.any():
            break
    return chosen


def _pack(
    rows: np.ndarray, shape: tuple[int, int], values: np.ndarray
) -> np.ndarray:
    """Collects the values of each row: [m] to [n, P], padded with zeros.

    rows [0, 0, 2] and values [5, 7, 6] give [[5, 7], [0, 0], [6, 0]].
    """
    counts = np.bincount(rows, minlength=shape[0])
    packed = np.zeros(shape, values.dtype)
    packed[np.arange(shape[1]) < counts[:, np.newaxis]] = values
    return packed
