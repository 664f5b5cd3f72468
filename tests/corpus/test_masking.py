import numpy as np
import pytest

from bert_tf.corpus import masking
from bert_tf.corpus.masking import MaskingRule, MaskingVocabulary
from bert_tf.corpus.settings import CreationConfig
from bert_tf.data import randomness

# 0 [PAD], 1 [CLS], 2 [SEP], 3 [MASK], 4 [UNK], 5-59 words, 60-99 "##" pieces.
CLS, SEP, MASK = 1, 2, 3
VOCABULARY = MaskingVocabulary(
    mask_id=MASK,
    special_ids=(CLS, SEP),
    replaceable_ids=np.arange(5, 100),
    continuation=np.arange(100) >= 60,
)


def make_sequences(rows, length, seed=0, shortest=5):
    """[CLS] a [SEP] b [SEP] of random ids, padded with 0."""
    rng = np.random.default_rng(seed)
    ends = rng.integers(shortest, length + 1, rows)
    ids = rng.integers(4, 100, (rows, length))
    columns = np.arange(length)
    input_mask = columns < ends[:, np.newaxis]
    ids[:, 0] = CLS
    ids[np.arange(rows), ends - 1] = SEP
    ids[np.arange(rows), ends // 2] = SEP
    return np.where(input_mask, ids, 0).astype(np.int32), input_mask


def run(ids, input_mask, seed=0, max_predictions_per_seq=20, **rule):
    rule = {"masked_lm_prob": 0.15, **rule}
    return masking.mask(
        ids,
        input_mask,
        MaskingRule(max_predictions_per_seq, **rule),
        VOCABULARY,
        randomness.keys([seed], np.arange(len(ids))),
    )


def words_of(ids, input_mask):
    """Lists of the columns of each word of one row."""
    words = []
    for column in np.flatnonzero(input_mask):
        if ids[column] in (CLS, SEP):
            continue
        goes_on = VOCABULARY.continuation[ids[column]]
        if goes_on and ids[column - 1] not in (CLS, SEP):
            words[-1].append(column)
        else:
            words.append([column])
    return words


@pytest.mark.parametrize("whole_words", [False, True])
def test_what_is_written_down_restores_the_input(whole_words):
    ids, input_mask = make_sequences(211, 37)
    masked = run(ids, input_mask, whole_words=whole_words)
    restored = masked.input_ids.copy()
    rows, slots = np.nonzero(masked.weights)
    positions = masked.positions[rows, slots]
    restored[rows, positions] = masked.ids[rows, slots]
    np.testing.assert_array_equal(restored, ids)
    assert not np.isin(ids[rows, positions], [0, CLS, SEP]).any()


@pytest.mark.parametrize("whole_words", [False, True])
def test_positions_ascend_and_are_padded_with_zeros(whole_words):
    ids, input_mask = make_sequences(211, 37)
    masked = run(ids, input_mask, whole_words=whole_words)
    counts = masked.weights.sum(axis=1).astype(int)
    for row, count in enumerate(counts):
        assert (np.diff(masked.positions[row, :count]) > 0).all()
        assert masked.weights[row, :count].all()
        for array in masked.positions, masked.ids, masked.weights:
            assert not array[row, count:].any()
    assert masked.weights.dtype == np.float32


@pytest.mark.parametrize("prob", [0.01, 0.15, 0.5, 1.0])
@pytest.mark.parametrize("most", [1, 7, 20])
def test_as_many_tokens_are_masked_as_the_original_would(prob, most):
    ids, input_mask = make_sequences(211, 37)
    masked = run(
        ids, input_mask, max_predictions_per_seq=most, masked_lm_prob=prob
    )
    lengths = input_mask.sum(axis=1)
    candidates = (input_mask & ~np.isin(ids, [CLS, SEP])).sum(axis=1)
    expected = [
        min(int(candidate), most, max(1, round(int(length) * prob)))
        for length, candidate in zip(lengths, candidates, strict=True)
    ]
    assert masked.weights.sum(axis=1).astype(int).tolist() == expected


def test_halves_are_rounded_to_even():
    lengths = np.array([5, 15, 25, 35])
    quota = masking._quota(lengths, MaskingRule(20, 0.1))
    assert quota.tolist() == [1, 2, 2, 4]
    assert quota.tolist() == [max(1, round(n * 0.1)) for n in lengths.tolist()]


@pytest.mark.parametrize("whole_words", [False, True])
def test_shares_of_mask_random_and_kept(whole_words):
    ids, input_mask = make_sequences(6000, 128, shortest=100)
    masked = run(ids, input_mask, whole_words=whole_words)
    rows, slots = np.nonzero(masked.weights)
    assert len(rows) > 95_000
    seen = masked.input_ids[rows, masked.positions[rows, slots]]
    truth = masked.ids[rows, slots]
    shares = np.array([masked.num_mask, masked.num_random, masked.num_kept])
    assert shares.sum() == len(rows)
    np.testing.assert_allclose(shares / len(rows), [0.8, 0.1, 0.1], atol=0.005)
    assert (seen == MASK).sum() == masked.num_mask
    # A random word may happen to be the true one.
    is_random = (seen != MASK) & (seen != truth)
    expected = masked.num_random * (1 - 1 / 95)
    assert abs(is_random.sum() - expected) < 5 * np.sqrt(expected / 95)
    assert set(seen[is_random]) == set(VOCABULARY.replaceable_ids.tolist())


def test_shares_can_be_chosen():
    ids, input_mask = make_sequences(97, 37)
    none = run(ids, input_mask, mask_share=0.0, random_share=0.0)
    np.testing.assert_array_equal(none.input_ids, ids)
    assert none.num_kept == none.weights.sum() > 0
    every = run(ids, input_mask, mask_share=1.0, random_share=0.0)
    assert (every.input_ids == MASK).sum() == every.num_mask
    assert every.num_random == every.num_kept == 0


@pytest.mark.parametrize(
    "shares",
    [
        (0.8, 0.1, 0.1),
        (1.0, 0.0, 0.0),
        (0.8, 0.2, 0.0),
        (0.8, 0.0, 0.2),
        (0.0, 0.8, 0.2),
        (0.0, 1.0, 0.0),
    ],
)
def test_the_shares_of_the_papers_ablation(shares):
    """Table 8: [MASK], random, the same. What is 0 does not happen at all."""
    names = "mask_share", "random_share", "keep_share"
    given = dict(zip(names, shares, strict=True))
    rule = CreationConfig("in", "out", "vocab", **given).masking_rule
    ids, input_mask = make_sequences(600, 128, shortest=100)
    keys = randomness.keys([0], np.arange(len(ids)))
    masked = masking.mask(ids, input_mask, rule, VOCABULARY, keys)
    found = np.array([masked.num_mask, masked.num_random, masked.num_kept])
    np.testing.assert_allclose(found / found.sum(), shares, atol=0.02)
    assert not found[np.array(shares) == 0].any()


def test_every_position_is_as_likely():
    ids, input_mask = make_sequences(20_000, 23, shortest=23)
    masked = run(ids, input_mask)
    rows, slots = np.nonzero(masked.weights)
    times = np.bincount(masked.positions[rows, slots], minlength=23)
    candidates = np.flatnonzero(~np.isin(ids[0], [CLS, SEP]))
    expected = len(rows) / len(candidates)
    assert (np.abs(times[candidates] / expected - 1) < 0.07).all()
    assert times.sum() == times[candidates].sum()


def test_whole_words_are_masked_together_in_one_way():
    ids, input_mask = make_sequences(400, 61)
    masked = run(ids, input_mask, whole_words=True, random_share=0.0)
    several = 0
    for row in range(len(ids)):
        count = int(masked.weights[row].sum())
        chosen = set(masked.positions[row, :count].tolist())
        for word in words_of(ids[row], input_mask[row]):
            hidden = chosen.intersection(word)
            assert hidden in (set(), set(word))
            is_mask = masked.input_ids[row, word] == MASK
            assert is_mask.all() or not is_mask.any()
            several += len(hidden) > 1
    assert several > 200


def test_whole_words_fill_the_quota_where_words_fit():
    ids, input_mask = make_sequences(400, 61, shortest=40)
    masked = run(ids, input_mask, whole_words=True)
    quota = masking._quota(input_mask.sum(axis=1), MaskingRule(20, 0.15))
    counts = masked.weights.sum(axis=1)
    assert (counts <= quota).all()
    for row, count in enumerate(counts.astype(int)):
        chosen = set(masked.positions[row, :count].tolist())
        words = words_of(ids[row], input_mask[row])
        left = [word for word in words if not chosen.intersection(word)]
        shortest = min(map(len, left), default=99)
        assert count + shortest > quota[row]


def test_a_word_longer_than_the_quota_is_passed_over():
    ids = np.array([[CLS, 5, 60, 61, 62, 6, SEP, 0]], np.int32)
    for seed in range(20):
        masked = run(
            ids, ids > 0, seed, max_predictions_per_seq=2, whole_words=True,
            masked_lm_prob=0.5,
        )  # fmt: skip
        assert masked.positions.tolist() == [[5, 0]]


def test_a_segment_that_starts_inside_a_word_starts_a_word():
    ids = np.array([[CLS, 5, SEP, 60, 61, SEP]], np.int32)
    sizes = set()
    for seed in range(40):
        masked = run(
            ids, ids > 0, seed, max_predictions_per_seq=2, whole_words=True,
            masked_lm_prob=0.4,
        )  # fmt: skip
        count = int(masked.weights.sum())
        sizes.add(tuple(masked.positions[0, :count].tolist()))
    assert sizes == {(1,), (3, 4)}


def test_chinese_is_masked_by_character():
    ids = np.tile(np.arange(4, 44, dtype=np.int32), (50, 1))
    every = np.ones(ids.shape, bool)
    one_by_one = run(ids, every, whole_words=False)
    whole = run(ids, every, whole_words=True)
    np.testing.assert_array_equal(one_by_one.positions, whole.positions)


def test_the_same_seed_gives_the_same_masks():
    ids, input_mask = make_sequences(31, 37)
    before = ids.copy()
    first, again = run(ids, input_mask), run(ids, input_mask)
    other = run(ids, input_mask, seed=1)
    np.testing.assert_array_equal(first.input_ids, again.input_ids)
    assert (first.positions != other.positions).any()
    np.testing.assert_array_equal(ids, before)


@pytest.mark.parametrize("whole_words", [False, True])
def test_a_sequence_is_masked_alike_in_any_company(whole_words):
    ids, input_mask = make_sequences(211, 37)
    rule = MaskingRule(20, 0.15, whole_words)
    keys = randomness.keys([3], np.arange(211))
    every = masking.mask(ids, input_mask, rule, VOCABULARY, keys)
    some = np.random.default_rng(0).permutation(211)[:50]
    part = masking.mask(
        ids[some], input_mask[some], rule, VOCABULARY, keys[some]
    )
    for name in "input_ids", "positions", "ids", "weights":
        np.testing.assert_array_equal(
            getattr(part, name), getattr(every, name)[some]
        )
