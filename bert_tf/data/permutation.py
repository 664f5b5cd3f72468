"""A shuffle of any length in no memory: a keyed permutation of range(size).

The ranks are enciphered by a Feistel network over pairs of digits in base
ceil(sqrt(size)); the few values that fall beyond `size` are enciphered again
until they are inside ("cycle walking"; Black and Rogaway, "Ciphers with
arbitrary finite domains", 2002). Both steps can be undone, so no two ranks
meet, and any worker can find any place of the shuffle by itself.
"""

import math
from collections.abc import Sequence

import numpy as np

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
    base = np.uint64(math.isqrt(size - 1) + 1)
    keys = np.random.SeedSequence(seed).generate_state(ROUNDS, np.uint64)
    places = _encipher(ranks.astype(np.uint64), base, keys)
    while (outside := places >= size).any():
        places[outside] = _encipher(places[outside], base, keys)
    return places.astype(np.int64)


def _encipher(
    values: np.ndarray, base: np.uint64, keys: np.ndarray
) -> np.ndarray:
    """A bijection of range(base * base): uint64 [n] to uint64 [n]."""
    left, right = np.divmod(values, base)
    for key in keys:
        left, right = right, (left + _scramble(right + key) % base) % base
    return left * base + right


def _scramble(values: np.ndarray) -> np.ndarray:
    """Spreads each bit over all: the finaliser of SplitMix64 (Steele, 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(
        0xBF58476D1CE4E5B9
    )
    values = (values ^ (values >> np.uint64(27))) * np.uint64(
        0x94D049BB133111EB
    )
    return values ^ (values >> np.uint64(31))
