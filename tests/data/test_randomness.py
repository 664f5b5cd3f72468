import collections

import numpy as np
import pytest

from bert_tf.data import randomness
from bert_tf.data.randomness import permute, unpermute

SEED = 7, 1


def test_the_numbers_are_splitmix64s():
    """The first three of the generator with seed 0, from its reference."""
    root = np.zeros(1, np.uint64)
    first = [int(randomness.subkeys(root, turn)[0]) for turn in range(3)]
    assert first == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x6C45D188009454F]


def test_a_key_depends_on_its_own_name_only():
    rng = np.random.default_rng(0)
    documents, passes = rng.integers(0, 10**12, (2, 301))
    every = randomness.keys(SEED, documents, passes)
    some = rng.permutation(301)[:97]
    np.testing.assert_array_equal(
        randomness.keys(SEED, documents[some], passes[some]), every[some]
    )
    tosses = rng.choice([0, 3, 64, 129, 500], 301)
    for function in (
        lambda rows: randomness.uniform(every[rows], tosses[rows]),
        lambda rows: randomness.heads(every[rows], 5, tosses[rows]),
    ):
        whole = function(np.arange(301))
        np.testing.assert_array_equal(function(some), whole[some])


def test_different_names_have_different_keys():
    first, second = np.divmod(np.arange(300 * 300), 300)
    found = [
        randomness.keys(seed, *names)
        for seed in [(7, 1), (7, 2), (8, 1)]
        for names in [(first, second), (first + 300, second)]
    ]
    assert len(np.unique(np.concatenate(found))) == 6 * 300 * 300
    parents = randomness.keys(SEED, np.arange(300))
    children = [randomness.subkeys(parents, name) for name in range(300)]
    assert len(np.unique(np.concatenate(children))) == 300 * 300


def test_numbers_are_spread_evenly_and_uncorrelated():
    keys = randomness.keys(SEED, np.arange(300))
    numbers = randomness.uniform(keys[:, np.newaxis], np.arange(300))
    assert 0 <= numbers.min() < 1e-4
    assert 1 - 1e-4 < numbers.max() < 1
    for axis in 0, 1:
        assert (np.abs(numbers.mean(axis) - 0.5) < 0.08).all()
    cells = np.histogram(numbers, bins=100, range=(0, 1))[0]
    assert 55 < ((cells - 900) ** 2 / 900).sum() < 155  # 99 degrees.
    upper = np.triu_indices(300, 1)
    for left, right in [
        (numbers[1:], numbers[:-1]),
        (numbers[:, 1:], numbers[:, :-1]),
        (numbers[upper], numbers.T[upper]),
    ]:
        pairs = np.corrcoef(left.ravel(), right.ravel())
        assert abs(pairs[0, 1]) < 4 / np.sqrt(left.size)


@pytest.mark.parametrize("limit", [1, 2, 7, 1000])
def test_integers_below_a_limit_are_equally_likely(limit):
    keys = randomness.keys(SEED, np.arange(20_000))
    numbers = randomness.below(keys, 3, np.full(20_000, limit))
    counts = np.bincount(numbers, minlength=limit)
    expected = 20_000 / limit
    assert len(counts) == limit
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert abs(chi_square - (limit - 1)) <= 4 * np.sqrt(2 * limit)


def test_integers_stay_below_the_largest_limits(monkeypatch):
    every_bit = np.full(1, ~np.uint64(0))
    monkeypatch.setattr(randomness, "_bits", lambda keys, index: every_bit)
    for limit in [1, 3, 2**31 - 1, 2**52 + 1, 2**53]:
        assert randomness.below(every_bit, 0, limit).tolist() == [limit - 1]


@pytest.mark.parametrize("tosses", [0, 1, 2, 63, 64, 65, 200])
def test_heads_are_binomial(tosses):
    keys = randomness.keys(SEED, np.arange(9000))
    heads = randomness.heads(keys, 5, np.full(9000, tosses))
    assert heads.min() >= 0
    assert heads.max() <= tosses
    spread = np.sqrt(tosses) / 2
    assert abs(heads.mean() - tosses / 2) <= 4 * spread / np.sqrt(9000)
    assert abs(heads.std() - spread) <= 0.04 * spread


# Shuffles.


@pytest.mark.parametrize(
    "size", [1, 2, 3, 4, 5, 7, 16, 17, 97, 1021, 65536, 65537, 10**13 + 37]
)
def test_a_shuffle_has_each_position_once(size):
    """A huge one is computed for some ranks alone."""
    if size < 10**6:
        positions = permute(np.arange(size), size, seed=(5, 1))
        np.testing.assert_array_equal(np.sort(positions), np.arange(size))
    ranks = np.unique(np.linspace(0, size - 1, 211).astype(np.int64))
    some = permute(ranks, size, seed=(5, 1))
    assert some.dtype == np.int64
    if size < 10**6:
        np.testing.assert_array_equal(some, positions[ranks])
    assert (some >= 0).all()
    assert (some < size).all()
    np.testing.assert_array_equal(unpermute(some, size, (5, 1)), ranks)


def test_neighbors_are_separated():
    size = 100_003
    positions = permute(np.arange(size), size, seed=11)
    correlation = np.corrcoef(np.arange(size), positions)[0, 1]
    assert abs(correlation) < 4 / np.sqrt(size)
    # In a random order, about two pairs of neighbors stay neighbors.
    assert (np.abs(np.diff(positions)) == 1).sum() < 15
    cells = np.histogram2d(np.arange(size), positions, bins=10)[0]
    expected = size / 100
    chi_square = ((cells - expected) ** 2 / expected).sum()
    assert 40 < chi_square < 140  # 81 degrees of freedom


def test_all_pairs_of_positions_are_equally_likely():
    size, seeds = 7, 4200
    pairs = collections.Counter(
        tuple(permute(np.array([2, 3]), size, seed).tolist())
        for seed in range(seeds)
    )
    expected = seeds / (size * (size - 1))
    assert len(pairs) == size * (size - 1)
    assert all(0.6 < n / expected < 1.4 for n in pairs.values())
