"""Random numbers and shuffles that do not depend on how work is divided.

Random numbers are functions of names. A name is a few integers: a document, a
pass, a step. Each name has a key, and a key has any number of random numbers,
each with an index. No generator state is passed on, so work can be divided and
ordered in any way with the same result:

    keys = randomness.keys(seed, documents, passes)  # one key for each pair
    randomness.uniform(keys, 0)  # the first random number of each key

The algorithm is SplitMix64 (Steele, Lea and Flood, "Fast splittable
pseudorandom number generators", 2014): number i of key k is its finalizer at
k + (i + 1) * GOLDEN.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_BITS = 64
# Four rounds suffice with perfect round functions (Luby and Rackoff, 1988).
ROUNDS = 8


def scramble(values: np.ndarray) -> np.ndarray:
    """Applies SplitMix64's finalizer, a bijection in which all bits mix."""
    values = values ^ (values >> np.uint64(30))
    values *= np.uint64(0xBF58476D1CE4E5B9)
    values ^= values >> np.uint64(27)
    values *= np.uint64(0x94D049BB133111EB)
    values ^= values >> np.uint64(31)
    return values


def keys(seed: Sequence[int], *names: np.ndarray) -> np.ndarray:
    """Returns the keys of named things: uint64 [n].

    Args:
      seed: Non-negative integers: a seed and the purpose of the numbers.
      *names: Non-negative integers [n] each; together they name a thing.
    """
    root = np.random.SeedSequence(seed).generate_state(1, np.uint64)
    for name in names:
        root = _bits(root, name)
    return root


def subkeys(parents: np.ndarray, name: np.ndarray | int) -> np.ndarray:
    """Returns the keys of parts of things: uint64 [n].

    Args:
      parents: Keys [n]. Do not draw numbers from them too: number i of a
        parent equals its subkey i.
      name: The part, not negative; integers [n], or one for all.
    """
    return _bits(parents, name)


def uniform(keys: np.ndarray, index: np.ndarray | int) -> np.ndarray:
    """Returns random number `index` of each key: float64 in [0, 1)."""
    return (_bits(keys, index) >> np.uint64(11)) * 2.0**-53


def below(
    keys: np.ndarray, index: np.ndarray | int, limit: np.ndarray | int
) -> np.ndarray:
    """Returns random number `index` of each key: int64 [n] in [0, limit).

    `limit` is from 1 to 2 ** 53: integers [n], or one for all.
    """
    return (uniform(keys, index) * limit).astype(np.int64)


def heads(keys: np.ndarray, index: int, tosses: np.ndarray) -> np.ndarray:
    """Returns the number of heads in `tosses` [n] of a fair coin: int64 [n].

    Number `index` of each key determines all of its tosses.
    """
    coins = _bits(keys, index)
    total = np.zeros(len(keys), np.int64)
    tossed = 0
    rows = np.flatnonzero(tosses)
    while rows.size:
        left = np.minimum(tosses[rows] - tossed, _BITS).astype(np.uint64)
        bits = _bits(coins[rows], tossed // _BITS) >> (_BITS - left)
        # NumPy 1.26 has no bitwise_count.
        by_bit = np.unpackbits(bits.view(np.uint8)).reshape(-1, _BITS)
        total[rows] += by_bit.sum(axis=1, dtype=np.int64)
        tossed += _BITS
        rows = rows[tosses[rows] > tossed]
    return total


def _bits(keys: np.ndarray, index: np.ndarray | int) -> np.ndarray:
    """Returns 64 random bits for each key and index."""
    steps = np.asarray(index).astype(np.uint64) + np.uint64(1)
    return scramble(keys + np.multiply(steps, GOLDEN))


def permute(
    ranks: np.ndarray, size: int, seed: int | Sequence[int]
) -> np.ndarray:
    """Returns the positions of `ranks` in a shuffle of range(size): int64 [n].

    Needs no memory for the shuffle: it is a keyed permutation that is computed
    for each rank. For example, permute(np.arange(5), 5, seed=7) has each of 0
    to 4 once; permute(np.array([3]), 5, seed=7) returns only the fourth.

    A rank is split into two digits, left and right, in a base whose square is
    at least `size`. Each round of this Feistel network maps (left, right) to
    (right, left + random function of right), which can be undone. A result of
    `size` or more is permuted again until it is smaller.

    Args:
      ranks: Integers [n] in [0, size).
      size: The number of things to shuffle, at least 1.
      seed: Non-negative integers that select the shuffle.
    """
    base, round_keys = _permutation(size, seed)

    def encipher(values: np.ndarray) -> np.ndarray:
        left, right = np.divmod(values, base)
        for key in round_keys:
            shift = scramble(right + key) % base
            left, right = right, (left + shift) % base
        return left * base + right

    return _apply_until_below(size, encipher, ranks)


def unpermute(
    positions: np.ndarray, size: int, seed: int | Sequence[int]
) -> np.ndarray:
    """Returns the ranks to which `permute` gives these positions: int64 [n]."""
    base, round_keys = _permutation(size, seed)

    def decipher(values: np.ndarray) -> np.ndarray:
        left, right = np.divmod(values, base)
        for key in round_keys[::-1]:
            shift = scramble(left + key) % base
            # Adding base - shift keeps the unsigned difference positive.
            left, right = (right + (base - shift)) % base, left
        return left * base + right

    return _apply_until_below(size, decipher, positions)


def _permutation(
    size: int, seed: int | Sequence[int]
) -> tuple[np.uint64, np.ndarray]:
    """Returns the base and the keys of the rounds."""
    base = np.uint64(math.isqrt(size - 1) + 1)
    return base, np.random.SeedSequence(seed).generate_state(ROUNDS, np.uint64)


def _apply_until_below(
    size: int, cipher: Callable[[np.ndarray], np.ndarray], numbers: np.ndarray
) -> np.ndarray:
    """Applies a permutation of a larger range until all are below `size`."""
    values = cipher(numbers.astype(np.uint64))
    while (outside := values >= size).any():
        values[outside] = cipher(values[outside])
    return values.astype(np.int64)
