"""A shuffle of any length in no memory: a keyed permutation of range(size).

The ranks are enciphered by a Feistel network over pairs of digits in base
ceil(sqrt(size)); the few values that fall beyond `size` are enciphered again
until they are inside ("cycle walking"; Black and Rogaway, "Ciphers with
arbitrary finite domains", 2002). Both steps can be undone, so no two ranks
meet, any worker can find any place of the shuffle by itself, and whoever holds
what lies at a place can tell its rank.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from bert_tf.data import draws

# Four suffice in theory (Luby and Rackoff, 1988) with perfect round functions.
ROUNDS = 8


def permute(
    ranks: np.ndarray, size: int, seed: int | Sequence[int]
) -> np.ndarray:
    """Returns the places of `ranks` in a shuffle of range(size).

    Args:
      ranks: Integers [n] in [0, size).
      size: How many things are shuffled, 1 or more.
      seed: Chooses the shuffle; nothing below 0.

    Returns:
      int64 [n]: place i holds where the thing of rank i is found.
    """
    return _walk(_encipher, ranks, size, seed)


def unpermute(
    places: np.ndarray, size: int, seed: int | Sequence[int]
) -> np.ndarray:
    """Returns the ranks that `permute` gives these places: int64 [n].

    Args:
      places: Integers [n] in [0, size).
      size: As for `permute`.
      seed: As for `permute`.
    """
    return _walk(_decipher, places, size, seed)


def _walk(
    cipher: Callable[[np.ndarray, np.uint64, np.ndarray], np.ndarray],
    values: np.ndarray,
    size: int,
    seed: int | Sequence[int],
) -> np.ndarray:
    """Enciphers values, or deciphers them, until they are inside again."""
    base = np.uint64(math.isqrt(size - 1) + 1)
    keys = np.random.SeedSequence(seed).generate_state(ROUNDS, np.uint64)
    values = cipher(values.astype(np.uint64), base, keys)
    while (outside := values >= size).any():
        values[outside] = cipher(values[outside], base, keys)
    return values.astype(np.int64)


def _encipher(
    values: np.ndarray, base: np.uint64, keys: np.ndarray
) -> np.ndarray:
    """A bijection of range(base * base): uint64 [n] to uint64 [n]."""
    left, right = np.divmod(values, base)
    for key in keys:
        shift = draws.scramble(right + key) % base
        left, right = right, (left + shift) % base
    return left * base + right


def _decipher(
    values: np.ndarray, base: np.uint64, keys: np.ndarray
) -> np.ndarray:
    """Undoes `_encipher`."""
    left, right = np.divmod(values, base)
    for key in keys[::-1]:
        shift = draws.scramble(left + key) % base
        # Never below 0, which these numbers do not know.
        left, right = (right + (base - shift)) % base, left
    return left * base + right
