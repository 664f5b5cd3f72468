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


def test_different_names_have_different_keys():
    first, second = np.divmod(np.arange(300 * 300), 300)
    found = [
        randomness.keys(seed, *names)
        for seed in [(7, 1), (7, 2), (8, 1)]
        for names in [(first, second), (first + 300, second)]
    ]
    assert len(np.unique(np.concatenate(found))) == 6 * 300 * 300


def test_numbers_are_spread_evenly():
    keys = randomness.keys(SEED, np.arange(300))
    numbers = randomness.uniform(keys[:, np.newaxis], np.arange(300))
    assert 0 <= numbers.min() < 1e-4
    assert 1 - 1e-4 < numbers.max() < 1
    for axis in 0, 1:
        assert (np.abs(numbers.mean(axis) - 0.5) < 0.08).all()
    cells = np.histogram(numbers, bins=100, range=(0, 1))[0]
    assert 55 < ((cells - 900) ** 2 / 900).sum() < 155  # 99 degrees.


@pytest.mark.parametrize("limit", [1, 7, 1000])
def test_integers_below_a_limit_are_equally_likely(limit):
    keys = randomness.keys(SEED, np.arange(20_000))
    counts = np.bincount(randomness.below(keys, 3, limit), minlength=limit)
    assert len(counts) == limit
    chi_square = ((counts - 20_000 / limit) ** 2).sum() * limit / 20_000
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


@pytest.mark.parametrize("size", [1, 2, 3, 5, 16, 17, 97, 65537])
def test_a_shuffle_has_each_position_once(size):
    ranks = np.arange(size)
    positions = permute(ranks, size, seed=(5, 1))
    np.testing.assert_array_equal(np.sort(positions), ranks)
    np.testing.assert_array_equal(unpermute(positions, size, (5, 1)), ranks)
    some = permute(ranks[::7], size, seed=(5, 1))
    np.testing.assert_array_equal(some, positions[::7])


def test_a_huge_shuffle_is_computed_for_some_ranks_alone():
    size = 10**13 + 37
    ranks = np.linspace(0, size - 1, 211).astype(np.int64)
    positions = permute(ranks, size, seed=7)
    assert 0 <= positions.min() < positions.max() < size
    np.testing.assert_array_equal(unpermute(positions, size, 7), ranks)


def test_all_pairs_of_positions_are_equally_likely():
    size, seeds = 7, 4200
    pairs = collections.Counter(
        tuple(permute(np.array([2, 3]), size, seed).tolist())
        for seed in range(seeds)
    )
    expected = seeds / (size * (size - 1))
    assert len(pairs) == size * (size - 1)
    assert all(0.6 < n / expected < 1.4 for n in pairs.values())
