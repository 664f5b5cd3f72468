import numpy as np
import pytest

from bert_tf.corpus import masking
from bert_tf.corpus.masking import MaskingVocabulary
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


def run(ids, input_mask, seed=0, rows=None, **settings):
    """Masks sequences, or only some rows of them with the same keys."""
    rows = np.arange(len(ids)) if rows is None else rows
    return masking.mask(
        ids[rows],
        input_mask[rows],
        CreationConfig("in", "out", "vocab", **settings),
        VOCABULARY,
        randomness.keys([seed], rows),
    )


def words_of(ids, input_mask):
    """Lists of the columns of each word of one row."""
    words = []
    for column in np.flatnonzero(input_mask):
        if ids[column] in (CLS, SEP):
            continue
        continues = VOCABULARY.continuation[ids[column]]
        if continues and ids[column - 1] not in (CLS, SEP):
            words[-1].append(column)
        else:
            words.append([column])
    return words


@pytest.mark.parametrize("whole_words", [False, True])
def test_predictions_restore_the_input_and_ascend(whole_words):
    ids, input_mask = make_sequences(211, 37)
    masked = run(ids, input_mask, do_whole_word_mask=whole_words)
    restored = masked.input_ids.copy()
    rows, slots = np.nonzero(masked.weights)
    positions = masked.positions[rows, slots]
    restored[rows, positions] = masked.ids[rows, slots]
    np.testing.assert_array_equal(restored, ids)
    assert not np.isin(ids[rows, positions], [0, CLS, SEP]).any()
    counts = masked.weights.sum(axis=1).astype(int)
    for row, count in enumerate(counts):
        assert (np.diff(masked.positions[row, :count]) > 0).all()
        for array in masked.positions, masked.ids, masked.weights:
            assert not array[row, count:].any()


@pytest.mark.parametrize("prob", [0.01, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("most", [1, 7, 20])
def test_the_number_of_masked_tokens_is_the_originals(prob, most):
    """Python's round takes halves to the even number, as in 0.1 * 25."""
    ids, input_mask = make_sequences(211, 37)
    settings = {"max_predictions_per_seq": most, "masked_lm_prob": prob}
    masked = run(ids, input_mask, **settings)
    lengths = input_mask.sum(axis=1)
    candidates = (input_mask & ~np.isin(ids, [CLS, SEP])).sum(axis=1)
    expected = [
        min(int(candidate), most, max(1, round(int(length) * prob)))
        for length, candidate in zip(lengths, candidates, strict=True)
    ]
    assert {15, 25} <= set(lengths.tolist())
    assert masked.weights.sum(axis=1).astype(int).tolist() == expected


@pytest.mark.parametrize("whole_words", [False, True])
@pytest.mark.parametrize(
    "shares",
    [(0.8, 0.1, 0.1), (1, 0, 0), (0.8, 0.2, 0), (0.8, 0, 0.2), (0, 0, 1)],
)
def test_fractions_of_mask_random_and_kept(shares, whole_words):
    """Table 8 of the paper. Fractions of 0 do not occur."""
    names = "mask_share", "random_share", "keep_share"
    settings = dict(zip(names, shares, strict=True))
    ids, input_mask = make_sequences(2000, 128, shortest=100)
    masked = run(ids, input_mask, do_whole_word_mask=whole_words, **settings)
    rows, slots = np.nonzero(masked.weights)
    found = np.array([masked.num_mask, masked.num_random, masked.num_kept])
    assert found.sum() == len(rows)
    np.testing.assert_allclose(found / len(rows), shares, atol=0.009)
    assert not found[np.array(shares) == 0].any()
    seen = masked.input_ids[rows, masked.positions[rows, slots]]
    assert (seen == MASK).sum() == masked.num_mask
    # A random word may happen to be the original one.
    is_random = (seen != MASK) & (seen != masked.ids[rows, slots])
    expected = masked.num_random * (1 - 1 / 95)
    assert abs(is_random.sum() - expected) <= 5 * np.sqrt(expected / 95)
    if shares[1]:
        every = VOCABULARY.replaceable_ids.tolist()
        assert set(seen[is_random].tolist()) == set(every)


def test_all_positions_are_equally_likely():
    ids, input_mask = make_sequences(20_000, 23, shortest=23)
    masked = run(ids, input_mask)
    rows, slots = np.nonzero(masked.weights)
    times = np.bincount(masked.positions[rows, slots], minlength=23)
    candidates = np.flatnonzero(~np.isin(ids[0], [CLS, SEP]))
    expected = len(rows) / len(candidates)
    assert (np.abs(times[candidates] / expected - 1) < 0.07).all()
    assert times.sum() == times[candidates].sum()


def test_whole_words_are_masked_together_while_they_fit():
    ids, input_mask = make_sequences(400, 61, shortest=40)
    masked = run(
        ids, input_mask, do_whole_word_mask=True, random_share=0, keep_share=0.2
    )
    num_long = 0
    for row in range(len(ids)):
        count = int(masked.weights[row].sum())
        chosen = set(masked.positions[row, :count].tolist())
        words = words_of(ids[row], input_mask[row])
        for word in words:
            hidden = chosen.intersection(word)
            assert hidden in (set(), set(word))
            is_mask = masked.input_ids[row, word] == MASK
            assert is_mask.all() or not is_mask.any()
            num_long += len(hidden) > 1
        quota = round(int(input_mask[row].sum()) * 0.15)
        left = [word for word in words if not chosen.intersection(word)]
        shortest = min(map(len, left), default=99)
        assert quota - shortest < count <= quota
    assert num_long > 200


def masked_positions(ids, masked_lm_prob):
    """The masked positions of a single row under many keys."""
    settings = {"max_predictions_per_seq": 2, "do_whole_word_mask": True}
    settings["masked_lm_prob"] = masked_lm_prob
    masked = run(np.tile(ids, [40, 1]), np.tile(ids, [40, 1]) > 0, **settings)
    return {
        tuple(positions[weights > 0].tolist())
        for positions, weights in zip(
            masked.positions, masked.weights, strict=True
        )
    }


def test_words_are_masked_whole_or_skipped():
    # A word longer than the quota is skipped.
    ids = [CLS, 5, 60, 61, 62, 6, SEP, 0]
    assert masked_positions(ids, 0.5) == {(5,)}
    # A segment that starts inside a word starts a word.
    ids = [CLS, 5, SEP, 60, 61, SEP]
    assert masked_positions(ids, 0.4) == {(1,), (3, 4)}


@pytest.mark.parametrize("whole_words", [False, True])
def test_masks_depend_on_key_and_sequence_only(whole_words):
    ids, input_mask = make_sequences(211, 37)
    settings = {"do_whole_word_mask": whole_words}
    every = run(ids, input_mask, **settings)
    rows = np.random.default_rng(0).permutation(211)[:50]
    part = run(ids, input_mask, rows=rows, **settings)
    for name in "input_ids", "positions", "ids", "weights":
        np.testing.assert_array_equal(
            getattr(part, name), getattr(every, name)[rows]
        )
    other = run(ids, input_mask, seed=1, **settings)
    assert (every.positions != other.positions).any()
