import random
from unittest import mock

import numpy as np
import pytest

from bert_tf.corpus import creation, instances, text
from bert_tf.corpus.settings import CreationConfig
from bert_tf.corpus.text import Corpus
from bert_tf.data import randomness

ROOM = 20


def make_corpus(sentences_per_document, max_sentence_length, scale=1):
    rng = np.random.default_rng(1)
    counts = rng.integers(1, 2 * sentences_per_document, 37)
    lengths = rng.integers(1, max_sentence_length + 1, counts.sum()) * scale
    return Corpus(np.cumsum([0, *lengths]), np.cumsum([0, *counts]))


def make_spans(corpus, passes=3, seed=0, section=None, size=1000, **settings):
    """The spans of a section, by default of the whole corpus."""
    config = CreationConfig(
        *("in", "out", "vocab"),
        max_seq_length=ROOM + 3,
        dupe_factor=passes,
        random_seed=seed,
        **{"short_seq_prob": 0.0, **settings},
    )
    bounds = section or (0, corpus.num_sentences)
    with mock.patch.object(Corpus, "open", return_value=corpus):
        return creation.cut(config, "", size, bounds)


def document_of(corpus, token):
    starts = corpus.sentence_offsets[corpus.document_offsets]
    return np.searchsorted(starts, token, "right") - 1


def count_tokens(corpus, spans):
    """Returns how often each token is in an A or an actual B."""
    times = np.zeros(corpus.sentence_offsets[-1], int)
    for span in spans:
        times[span["a_start"] : span["a_start"] + span["a_length"]] += 1
        if not span["is_random_next"]:
            times[span["b_start"] : span["b_start"] + span["b_length"]] += 1
    return times


@pytest.mark.parametrize("longest", [1, 6, 50])
@pytest.mark.parametrize("short_seq_prob", [0.0, 0.3, 1.0])
def test_segments_stay_inside_a_document_and_fit(longest, short_seq_prob):
    corpus = make_corpus(11, longest)
    spans = make_spans(corpus, short_seq_prob=short_seq_prob)
    length = spans["a_length"] + spans["b_length"]
    assert spans["a_length"].min() > 0
    assert spans["b_length"].min() > 0
    assert length.max() <= ROOM
    owners = {}
    for name in "ab":
        start, size = spans[f"{name}_start"], spans[f"{name}_length"]
        owners[name] = document_of(corpus, start)
        last_owner = document_of(corpus, start + size - 1)
        np.testing.assert_array_equal(owners[name], last_owner)
    is_random = spans["is_random_next"]
    np.testing.assert_array_equal(owners["a"] != owners["b"], is_random)
    # Instances are ordered by document.
    assert (np.diff(owners["a"]) >= 0).all()


def test_an_actual_b_follows_a_if_nothing_is_truncated():
    corpus = make_corpus(11, 1)
    spans = make_spans(corpus)
    real = spans[~spans["is_random_next"]]
    follows = real["a_start"] + real["a_length"]
    np.testing.assert_array_equal(real["b_start"], follows)
    whole = real["a_length"] + real["b_length"] == ROOM
    starts = corpus.sentence_offsets[corpus.document_offsets]
    assert np.isin((follows + real["b_length"])[~whole], starts).all()


def test_half_of_the_pairs_are_random_and_single_sentences_always():
    corpus = make_corpus(300, 2)
    spans = make_spans(corpus, passes=9)
    assert len(spans) > 5000
    assert 0.48 < spans["is_random_next"].mean() < 0.54
    # Other documents are equally likely.
    owners = document_of(corpus, spans["b_start"][spans["is_random_next"]])
    shares = np.bincount(owners, minlength=corpus.num_documents) / len(owners)
    assert (np.abs(shares - 1 / corpus.num_documents) < 0.01).all()
    for single in (make_corpus(1, 3), make_corpus(11, 1, scale=40)):
        assert make_spans(single)["is_random_next"].all()


def test_short_targets_are_chosen_for_each_instance():
    corpus = make_corpus(400, 1)
    spans = make_spans(corpus, passes=9, short_seq_prob=0.4)
    full = spans["a_length"] + spans["b_length"] == ROOM
    # A short target can be the full length; ends of documents are not.
    assert abs(full.mean() - (0.6 + 0.4 / (ROOM - 1))) < 0.05
    documents = document_of(corpus, spans["a_start"])
    assert len(np.unique(documents[~full])) == corpus.num_documents


@pytest.mark.parametrize("next_sentence", [True, False])
@pytest.mark.parametrize("size", [3, 7, 10_000])
def test_sections_give_the_instances_of_the_corpus(next_sentence, size):
    corpus = make_corpus(11, 1)
    settings = {
        "passes": 5,
        "size": size,
        "short_seq_prob": 0.2,
        "next_sentence": next_sentence,
    }
    whole = make_spans(corpus, **settings)
    sections = list(instances.sections(corpus, size))
    assert (len(sections) > 1) == (size < 100)
    pieces = [
        make_spans(corpus, section=section, **settings) for section in sections
    ]
    np.testing.assert_array_equal(np.concatenate(pieces), whole)
    assert (count_tokens(corpus, whole) == 5).all()


def test_passes_documents_and_seeds_are_cut_differently():
    lengths = np.tile([3, 1, 4, 1, 5, 9, 2, 6], 50)
    corpus = Corpus(np.cumsum([0, *lengths]), np.array([0, 200, 400]))
    found = []
    for seed in 0, 1:
        spans = make_spans(corpus, passes=2, seed=seed, short_seq_prob=0.5)
        starts = spans["a_start"] % corpus.sentence_offsets[200]
        found += np.split(starts, np.flatnonzero(np.diff(starts) < -100) + 1)
    assert len(found) == 8
    assert len({starts.tobytes() for starts in found}) == 8


def truncate_one_by_one(a_length, b_length, room, rng):
    """The original's loop; returns the lengths and the drops in front."""
    lengths, front = [a_length, b_length], [0, 0]
    while sum(lengths) > room:
        longer = 0 if lengths[0] > lengths[1] else 1
        lengths[longer] -= 1
        front[longer] += rng.random() < 0.5
    return lengths, front


def truncate(a_length, b_length, room):
    """Truncates segments of these lengths [n] that both start at token 0."""
    drafts = np.zeros(len(a_length), instances.DRAFT)
    drafts["key"] = randomness.keys([0], np.arange(len(a_length)))
    drafts["a_stop"], drafts["b_stop"] = a_length, b_length
    return instances.truncate(drafts, room)


def test_truncation_equals_the_originals_loop():
    rng = random.Random(0)
    lengths = [(a, b) for a in range(1, 31) for b in range(1, 31)]
    for room in 2, 3, 12, 13:
        spans = truncate(*np.array(lengths).T, room)
        for pair, span in zip(lengths, spans, strict=True):
            kept, _ = truncate_one_by_one(*pair, room, rng)
            assert [span["a_length"], span["b_length"]] == kept
            assert 0 <= span["a_start"] <= pair[0] - kept[0]
            assert 0 <= span["b_start"] <= pair[1] - kept[1]
    # Tokens are dropped from both ends alike.
    lengths = np.full(20_000, 30)
    spans = truncate(lengths, lengths, 40)
    fronts = [truncate_one_by_one(30, 30, 40, rng)[1] for _ in range(5000)]
    for column, name in enumerate(["a_start", "b_start"]):
        expected = np.array(fronts)[:, column]
        assert abs(spans[name].mean() - expected.mean()) < 0.1
        assert abs(spans[name].std() - expected.std()) < 0.1


@pytest.mark.parametrize(
    ("longest", "short_seq_prob"), [(1, 0.2), (6, 0.2), (9, 0), (90, 0.2)]
)
def test_single_segments_tile_the_documents(longest, short_seq_prob):
    corpus = make_corpus(11, longest)
    settings = {"short_seq_prob": short_seq_prob, "next_sentence": False}
    spans = make_spans(corpus, passes=4, **settings)
    assert (spans["a_length"] > 0).all()
    assert (spans["a_length"] <= ROOM + 1).all()
    assert not spans["b_length"].any()
    ends = spans["a_start"] + spans["a_length"]
    owners = document_of(corpus, ends - 1)
    np.testing.assert_array_equal(document_of(corpus, spans["a_start"]), owners)
    assert (count_tokens(corpus, spans) == 4).all()
    if longest <= ROOM and not short_seq_prob:
        # They end with the last sentence that fits.
        offsets = corpus.sentence_offsets
        assert np.isin(ends, offsets).all()
        inside = ~np.isin(ends, offsets[corpus.document_offsets])
        after = np.searchsorted(offsets, ends[inside], "right")
        assert (offsets[after] - spans["a_start"][inside] > ROOM + 1).all()


def test_gather_puts_segments_between_specials():
    spans = np.array([(7, 31, 2, 3, True), (3, 0, 4, 0, False)], instances.SPAN)
    sequences = instances.gather(
        lambda *slices: text.take_slices(np.arange(50), *slices),
        spans,
        9,
        98,
        99,
    )
    assert sequences["input_ids"].tolist() == [
        [98, 7, 8, 99, 31, 32, 33, 99, 0],
        [98, 3, 4, 5, 6, 99, 0, 0, 0],
    ]
    assert sequences["input_mask"].tolist() == [
        [1] * 8 + [0],
        [1] * 6 + [0] * 3,
    ]
    assert sequences["segment_ids"].tolist() == [
        [0, 0, 0, 0, 1, 1, 1, 1, 0],
        [0] * 9,
    ]
