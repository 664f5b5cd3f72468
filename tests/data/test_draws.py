import numpy as np
import pytest

from bert_tf.data import randomness

SEED = 7, 1


def test_the_numbers_are_splitmix64s():
    """The first three of the generator with seed 0, from its reference."""
    root = np.zeros(1, np.uint64)
    first = [randomness._bits(root, turn)[0] for turn in range(3)]
    assert [hex(bits) for bits in first] == [
        "0xe220a8397b1dcdaf",
        "0x6e789e6aa1b965f4",
        "0x6c45d188009454f",
    ]


def test_a_key_follows_from_its_own_name_alone():
    rng = np.random.default_rng(0)
    documents, passes = rng.integers(0, 10**12, (2, 301))
    every = randomness.keys(SEED, documents, passes)
    some = rng.permutation(301)[:97]
    np.testing.assert_array_equal(
        randomness.keys(SEED, documents[some], passes[some]), every[some]
    )
    turns = rng.integers(0, 1000, 301)
    np.testing.assert_array_equal(
        randomness.uniform(every[some], turns[some]),
        randomness.uniform(every, turns)[some],
    )


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


def test_numbers_are_spread_evenly_from_0_to_1():
    keys = randomness.keys(SEED, np.arange(2000))
    numbers = randomness.uniform(keys[:, np.newaxis], np.arange(50))
    assert numbers.shape == (2000, 50)
    assert 0 <= numbers.min() < 1e-4
    assert 1 - 1e-4 < numbers.max() < 1
    for axis in 0, 1:
        assert (np.abs(numbers.mean(axis) - 0.5) < 0.21).all()
    cells = np.histogram(numbers, bins=100, range=(0, 1))[0]
    assert 55 < ((cells - 1000) ** 2 / 1000).sum() < 155  # 99 degrees.


def test_neither_turns_nor_keys_know_of_their_neighbours():
    keys = randomness.keys(SEED, np.arange(300))
    numbers = randomness.uniform(keys[:, np.newaxis], np.arange(300))
    for left, right in [
        (numbers[1:], numbers[:-1]),
        (numbers[:, 1:], numbers[:, :-1]),
        (numbers, numbers.T),
    ]:
        different = left is not numbers or ~np.eye(300, dtype=bool)
        pairs = np.corrcoef(left[different].ravel(), right[different].ravel())
        assert abs(pairs[0, 1]) < 4 / np.sqrt(numbers.size)


@pytest.mark.parametrize("limit", [1, 2, 7, 1000])
def test_integers_below_a_limit_are_as_likely(limit):
    keys = randomness.keys(SEED, np.arange(20_000))
    numbers = randomness.below(keys, 3, np.full(20_000, limit))
    counts = np.bincount(numbers, minlength=limit)
    expected = 20_000 / limit
    assert len(counts) == limit
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert abs(chi_square - (limit - 1)) <= 4 * np.sqrt(2 * limit)
    np.testing.assert_array_equal(numbers, randomness.below(keys, 3, limit))


def test_integers_stay_below_the_largest_limits(monkeypatch):
    every_bit = np.full(1, ~np.uint64(0))
    monkeypatch.setattr(randomness, "_bits", lambda keys, turn: every_bit)
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
    if tosses == 2:
        shares = np.bincount(heads) / 9000
        np.testing.assert_allclose(shares, [0.25, 0.5, 0.25], atol=0.02)


def test_heads_do_not_depend_on_the_other_rows():
    tosses = np.array([3, 500, 0, 64, 129])
    keys = randomness.keys(SEED, np.arange(5))
    together = randomness.heads(keys, 2, tosses)
    alone = [
        randomness.heads(keys[row : row + 1], 2, tosses[row : row + 1])[0]
        for row in range(5)
    ]
    assert together.tolist() == alone
