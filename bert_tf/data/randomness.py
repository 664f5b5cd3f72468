"""Random numbers that are functions of names, whoever draws them and when.

A name is a few integers: which document, which pass, which step. It gives a
key, and a key gives as many numbers as anybody asks for, each by its turn. No
generator is passed on from one draw to the next, so that work can be cut up
and put together in any way and is the same work.

The mathematics is SplitMix64's (Steele, Lea and Flood, "Fast splittable
pseudorandom number generators", 2014): the number of turn t of key k is its
finaliser at k + (t + 1) * GOLDEN.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

# Random numbers that are functions of names, whoever draws them and when.


GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_BITS = 64


def scramble(values: np.ndarray) -> np.ndarray:
    """Spreads each bit over all: SplitMix64's finaliser, a bijection."""
    values = values ^ (values >> np.uint64(30))
    values *= np.uint64(0xBF58476D1CE4E5B9)
    values ^= values >> np.uint64(27)
    values *= np.uint64(0x94D049BB133111EB)
    values ^= values >> np.uint64(31)
    return values


def keys(seed: Sequence[int], *names: np.ndarray) -> np.ndarray:
    """The keys of things: uint64 [n].

    Args:
      seed: What the numbers are for; nothing below 0.
      *names: Integers [n] each, 0 or more: together they name a thing.
    """
    root = np.random.SeedSequence(seed).generate_state(1, np.uint64)
    for name in names:
        root = _bits(root, name)
    return root


def subkeys(parents: np.ndarray, name: np.ndarray | int) -> np.ndarray:
    """The keys of parts of things: uint64 [n].

    Args:
      parents: Keys [n], of which nothing may be drawn themselves: a part and
        a turn of the same number would be one.
      name: Which part, 0 or more; integers [n], or one for all.
    """
    return _bits(parents, name)


def uniform(keys: np.ndarray, turn: np.ndarray | int) -> np.ndarray:
    """Numbers in [0, 1): float64, of the shape that the arguments make.

    Args:
      keys: uint64.
      turn: Which number of each key, 0 or more.
    """
    return (_bits(keys, turn) >> np.uint64(11)) * 2.0**-53


def below(
    keys: np.ndarray, turn: np.ndarray | int, limit: np.ndarray | int
) -> np.ndarray:
    """Integers from 0 up to `limit`, which is excluded: int64 [n].

    Args:
      keys: uint64 [n].
      turn: Which number of each key, 0 or more.
      limit: From 1 to 2 ** 53; integers [n], or one for all.
    """
    return (uniform(keys, turn) * limit).astype(np.int64)


def heads(keys: np.ndarray, turn: int, tosses: np.ndarray) -> np.ndarray:
    """How many of `tosses` coins show heads, a binomial number: int64 [n].

    Args:
      keys: uint64 [n].
      turn: Which number of each key, 0 or more.
      tosses: Integers [n], 0 or more.
    """
    coins = _bits(keys, turn)
    total = np.zeros(len(keys), np.int64)
    thrown = 0
    rows = np.flatnonzero(tosses)
    while rows.size:
        left = np.minimum(tosses[rows] - thrown, _BITS).astype(np.uint64)
        bits = _bits(coins[rows], thrown // _BITS) >> (_BITS - left)
        total[rows] += _count_ones(bits)
        thrown += _BITS
        rows = rows[tosses[rows] > thrown]
    return total


def _bits(keys: np.ndarray, turn: np.ndarray | int) -> np.ndarray:
    """64 random bits for each key and turn."""
    steps = np.asarray(turn).astype(np.uint64) + np.uint64(1)
    return scramble(keys + np.multiply(steps, GOLDEN))


def _count_ones(bits: np.ndarray) -> np.ndarray:
    # NumPy 1.26 has no bitwise_count.
    by_bit = np.unpackbits(bits.view(np.uint8)).reshape(-1, _BITS)
    return by_bit.sum(axis=1, dtype=np.int64)


# A shuffle of any length in no memory: a keyed permutation of range(size).


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
        shift = scramble(right + key) % base
        left, right = right, (left + shift) % base
    return left * base + right


def _decipher(
    values: np.ndarray, base: np.uint64, keys: np.ndarray
) -> np.ndarray:
    """Undoes `_encipher`."""
    left, right = np.divmod(values, base)
    for key in keys[::-1]:
        shift = scramble(left + key) % base
        # Never below 0, which these numbers do not know.
        left, right = (right + (base - shift)) % base, left
    return left * base + right
