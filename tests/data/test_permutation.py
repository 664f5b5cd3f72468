import collections

import numpy as np
import pytest

from bert_tf.data.randomness import permute, unpermute


@pytest.mark.parametrize(
    "size", [1, 2, 3, 4, 5, 7, 16, 17, 60, 97, 1000, 1021, 65536, 65537]
)
def test_every_place_is_taken_once(size):
    places = permute(np.arange(size), size, seed=7)
    assert places.dtype == np.int64
    np.testing.assert_array_equal(np.sort(places), np.arange(size))


def test_a_part_of_the_ranks_gets_its_part_of_the_places():
    whole = permute(np.arange(1021), 1021, seed=(5, 1))
    part = permute(np.arange(300, 417), 1021, seed=(5, 1))
    np.testing.assert_array_equal(part, whole[300:417])


def test_size_may_be_far_beyond_the_memory():
    size = 10**13 + 37
    places = permute(np.array([0, 1, size - 1]), size, seed=3)
    assert len(set(places.tolist())) == 3
    assert (places >= 0).all()
    assert (places < size).all()


@pytest.mark.parametrize("size", [1, 2, 3, 17, 97, 1021, 10**13 + 37])
def test_the_rank_of_a_place_is_found(size):
    ranks = np.unique(np.linspace(0, size - 1, 211).astype(np.int64))
    places = permute(ranks, size, seed=(5, 1))
    np.testing.assert_array_equal(unpermute(places, size, (5, 1)), ranks)
    np.testing.assert_array_equal(
        permute(unpermute(ranks, size, 3), size, 3), ranks
    )


def test_neighbours_are_torn_apart():
    size = 100_003
    places = permute(np.arange(size), size, seed=11)
    correlation = np.corrcoef(np.arange(size), places)[0, 1]
    assert abs(correlation) < 4 / np.sqrt(size)
    # Among random numbers some two neighbours stay neighbours.
    assert (np.abs(np.diff(places)) == 1).sum() < 15
    cells = np.histogram2d(np.arange(size), places, bins=10)[0]
    expected = size / 100
    chi_square = ((cells - expected) ** 2 / expected).sum()
    assert 40 < chi_square < 140  # 81 degrees of freedom


def test_all_pairs_of_places_are_as_likely():
    size, seeds = 7, 4200
    pairs = collections.Counter(
        tuple(permute(np.array([2, 3]), size, seed).tolist())
        for seed in range(seeds)
    )
    expected = seeds / (size * (size - 1))
    assert len(pairs) == size * (size - 1)
    assert all(0.6 < n / expected < 1.4 for n in pairs.values())
