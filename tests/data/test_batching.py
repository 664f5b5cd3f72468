import itertools

import numpy as np
import pytest

from bert_tf.data import pipeline

LENGTHS = np.random.default_rng(3).integers(1, 14, 251) * 8  # Up to 104.


def plan(lengths=LENGTHS, num_batches=97, batch_size=7, seed=5):
    return pipeline.training_plan(
        lengths, num_batches=num_batches, batch_size=batch_size, seed=seed
    )


def counts(rows, n=251):
    return np.bincount(np.ravel(rows), minlength=n)


def padding(rows, lengths=LENGTHS):
    """The share of places that hold nothing."""
    longest = lengths[rows].max(axis=1, keepdims=True)
    return 1 - lengths[rows].sum() / (longest * np.ones(rows.shape)).sum()


# Training.


@pytest.mark.parametrize("num_batches", [1, 35, 36, 97, 251])
def test_the_rows_are_those_of_whole_epochs_and_a_part(num_batches):
    rows = plan(num_batches=num_batches)
    assert rows.shape == (num_batches, 7)
    assert rows.dtype == np.int32
    seen = counts(rows)
    whole = num_batches * 7 // 251
    assert set(seen) <= {whole, whole + 1}
    assert seen.sum() == num_batches * 7


@pytest.mark.parametrize("num_batches", [3, 36, 97])
def test_sorting_by_length_keeps_the_rows(num_batches):
    same = np.full(251, 104)
    sorted_, unsorted = plan(num_batches=num_batches), plan(same, num_batches)
    np.testing.assert_array_equal(counts(sorted_), counts(unsorted))
    assert (sorted_ != unsorted).any()


def test_every_stretch_keeps_its_rows():
    """Nothing wanders further than a quarter of an epoch."""
    per_stretch = 251 // (4 * 7)
    sorted_, unsorted = plan(), plan(np.full(251, 8))
    for first in range(0, 97, per_stretch):
        stretch = slice(first, first + per_stretch)
        np.testing.assert_array_equal(
            counts(sorted_[stretch]), counts(unsorted[stretch])
        )


def test_batches_hold_rows_of_like_lengths():
    assert padding(plan(np.full(251, 8))) > 0.35
    assert padding(plan()) < 0.12


def test_batches_do_not_come_by_length():
    """Neither from short to long, nor the other way round."""
    longest = LENGTHS[plan(num_batches=240)].max(axis=1)
    steps = np.sign(np.diff(longest))
    assert abs(steps.mean()) < 0.1
    assert 0.3 < np.mean(steps > 0) < 0.6


def test_the_company_of_a_row_changes():
    """Of those that share a batch in one epoch, few do so in the next."""
    lengths = np.random.default_rng(0).integers(1, 9, 1009) * 8
    first, second = np.split(plan(lengths, 2 * 144, 7), 2)

    def pairs(rows):
        return {
            frozenset(pair)
            for row in rows.tolist()
            for pair in itertools.pairwise(row)
        }

    both = pairs(first) & pairs(second)
    assert len(both) < 0.05 * len(pairs(first))


def test_the_plan_is_a_function_of_its_arguments():
    first = plan()
    np.testing.assert_array_equal(plan(), first)
    assert (plan(seed=6) != first).mean() > 0.9
    assert (plan(LENGTHS[::-1]) != first).mean() > 0.9


def test_the_plan_is_this_one():
    """Runs resume under later versions of NumPy and of this project."""
    lengths = np.array([8, 16, 24] * 8)
    assert plan(lengths, 6, 2, seed=1).tolist() == [
        [4, 5],
        [0, 13],
        [11, 14],
        [19, 23],
        [12, 3],
        [9, 21],
    ]


def test_a_longer_plan_starts_like_a_shorter_one():
    per_stretch = 251 // (4 * 7)
    whole = 97 // per_stretch * per_stretch
    np.testing.assert_array_equal(plan(num_batches=200)[:whole], plan()[:whole])


@pytest.mark.parametrize("n", [1, 2, 5])
def test_sets_smaller_than_a_batch(n):
    rows = plan(np.arange(1, n + 1), num_batches=10, batch_size=7)
    seen = counts(rows, n)
    assert seen.max() - seen.min() <= 1


def test_nothing_to_plan():
    assert plan(num_batches=0).shape == (0, 7)


# Shares.


@pytest.mark.parametrize("num_shards", [1, 2, 3])
@pytest.mark.parametrize("replicas", [1, 2, 5])
def test_shares_are_the_whole(num_shards, replicas):
    rows = plan(batch_size=num_shards * replicas * 3)
    dealt = pipeline.shares(rows, num_shards, 3)
    assert dealt.shape == (num_shards, 97 * replicas, 3)
    together = dealt.reshape(num_shards, 97, replicas * 3)
    together = together.transpose(1, 0, 2).reshape(97, -1)
    np.testing.assert_array_equal(np.sort(together), np.sort(rows))
    [first] = pipeline.shares(rows[:1], 1, rows.shape[1])
    np.testing.assert_array_equal(first, rows[:1])


def test_shares_are_equally_long():
    """Rows sorted within their batch are dealt in turn."""
    rows = np.arange(24).reshape(2, 12)
    assert pipeline.shares(rows, 2, 3).tolist() == [
        [[0, 4, 8], [2, 6, 10], [12, 16, 20], [14, 18, 22]],
        [[1, 5, 9], [3, 7, 11], [13, 17, 21], [15, 19, 23]],
    ]


# Evaluation.


def evaluation(lengths=LENGTHS, max_length=104, batch_size=3, num_shards=1):
    return pipeline.evaluation_plan(
        lengths,
        max_length=max_length,
        batch_size=batch_size,
        num_shards=num_shards,
    )


@pytest.mark.parametrize("num_shards", [1, 2, 3])
@pytest.mark.parametrize("batch_size", [1, 3, 7, 300])
def test_every_row_is_there_once(num_shards, batch_size):
    made = evaluation(batch_size=batch_size, num_shards=num_shards)
    rows = np.concatenate([batch.reshape(-1) for batch in made.batches])
    np.testing.assert_array_equal(np.sort(rows[rows >= 0]), np.arange(251))
    for batch in made.batches[:-1]:
        assert (batch >= 0).all()
    assert (made.batches[-1] >= 0).any()


@pytest.mark.parametrize("num_shards", [1, 2, 3])
def test_batches_keep_to_the_budget(num_shards):
    made = evaluation(num_shards=num_shards)
    for batch, length in zip(made.batches, made.lengths, strict=True):
        shards, size = batch.shape
        assert shards == num_shards
        assert size % 3 == 0
        assert size * length <= 3 * 104 < (size + 3) * length
        assert LENGTHS[batch[batch >= 0]].max() == length
    assert (np.diff(made.lengths) <= 0).all()
    assert made.lengths[0] == 104


def test_there_are_few_shapes():
    lengths = np.random.default_rng(1).integers(1, 17, 20_011) * 8
    made = evaluation(lengths, 128, 8)
    shapes = {(b.shape, n) for b, n in zip(*made, strict=True)}
    assert len(shapes) <= 16


def test_rows_of_one_length_keep_their_order():
    made = evaluation(np.full(10, 16), 16, 2, 2)
    assert [batch.tolist() for batch in made.batches] == [
        [[0, 2], [1, 3]],
        [[4, 6], [5, 7]],
        [[8, -1], [9, -1]],
    ]
    lengths = np.random.default_rng(2).integers(1, 3, 1009) * 8
    rows = [batch.ravel() for batch in evaluation(lengths, 16, 1).batches]
    np.testing.assert_array_equal(
        np.concatenate(rows)[:1009],
        [*np.flatnonzero(lengths == 16), *np.flatnonzero(lengths == 8)],
    )


def test_no_rows_are_no_batches():
    made = evaluation(np.zeros(0, int))
    assert made.batches == []
    assert made.lengths.shape == (0,)
