import collections

import numpy as np
import pytest

from bert_tf.corpus import cluster, text
from bert_tf.corpus.cluster import Directory
from bert_tf.corpus.ranges import TaskReport, TextSection
from bert_tf.corpus.settings import CreationConfig
from bert_tf.corpus.text import Corpus

CONFIG = CreationConfig("in", "out", "vocab")
SIZE = 5
# Sentences of the documents of each section, and whether the first goes on.
SECTIONS = [
    ((0, 0), [1, 2, 3], False),
    ((0, 1), [5], False),  # A document of 17 sentences ...
    ((0, 2), [5], True),
    ((0, 3), [7, 1], True),  # ... up to here, and another.
    ((2, 0), [12], False),
    ((2, 1), [5], False),  # One of 11.
    ((2, 2), [6], True),
]
LENGTHS = [1, 2, 3, 17, 1, 12, 11]


def make_section(place, lengths, goes_on):
    bounds = np.concatenate([[0], np.cumsum(lengths)])
    corpus = Corpus(np.arange(bounds[-1] + 1), bounds)
    return TextSection(place, np.arange(bounds[-1]), corpus, goes_on)


def make_directory(reports=(), shuffle=0):
    sections = [make_section(*section) for section in SECTIONS]
    order = np.random.default_rng(shuffle).permutation(len(sections))
    counts = collections.Counter(sentences=sum(LENGTHS), tokens=9)
    report = TaskReport(0, len(SECTIONS), {"a": 3}, counts)
    return Directory.of(
        CONFIG,
        [cluster.entry_of(sections[index]) for index in order],
        [report, *reports],
    )


@pytest.mark.parametrize("shuffle", [0, 1, 2])
def test_documents_are_numbered_in_the_order_of_the_text(shuffle):
    table = make_directory(shuffle=shuffle)
    assert not table.mistake
    assert table.num_documents == 7
    assert table.counts == {"sentences": 47, "tokens": 9, "documents": 7}
    assert table.first_document.tolist() == [0, 3, 3, 3, 5, 6, 6]
    assert table.skipped.tolist() == [0, 0, 5, 10, 0, 0, 5]
    assert table.first_total.tolist() == [1, 17, 17, 17, 12, 11, 11]
    places = [place for place, _, _ in SECTIONS]
    assert [table.index(place) for place in places] == list(range(7))
    section = table.section(3, make_section(*SECTIONS[3]))
    assert (section.first_document, section.skipped) == (3, 10)


def test_segments_begin_where_they_do_in_the_whole_text():
    table = make_directory()
    sections = [make_section(*section) for section in SECTIONS]
    starts = np.cumsum([sum(lengths) for _, lengths, _ in SECTIONS])
    starts = np.concatenate([[0], starts])
    rng = np.random.default_rng(0)
    owners, points = rng.integers(0, 7, 999), rng.random(999)
    index = table.find(owners, points)
    lengths = np.array(LENGTHS)[owners]
    first = np.concatenate([[0], np.cumsum(LENGTHS)])[owners]
    places = (points * lengths).astype(int)
    for number, section in enumerate(sections):
        mine = index == number
        assert mine.any()
        begin, end = table.segments(
            number,
            table.section(number, section),
            owners[mine],
            points[mine],
            SIZE,
        )
        expected = (first + places)[mine] - starts[number]
        np.testing.assert_array_equal(begin, expected)
        ends = first + text.piece_ends(places, lengths, SIZE)
        np.testing.assert_array_equal(end, ends[mine] - starts[number])
        assert (begin >= 0).all()
        assert (end <= section.corpus.num_sentences).all()


def test_copies_even_out_the_questions():
    # A hundred short documents in one section, and eleven long ones.
    entries = [(0, 0, 100, False, 1, 100)]
    entries += [(0, n, 1, False, 100, 100) for n in range(1, 12)]
    counts = collections.Counter(sentences=1200)
    table = Directory.of(CONFIG, entries, [TaskReport(0, 12, {}, counts)])
    assert table.copies.tolist() == [11] + [1] * 11
    rng = np.random.default_rng(0)
    index = table.find(rng.integers(0, 111, 10_000), rng.random(10_000))
    load = np.bincount(index, minlength=12) / table.copies
    assert load.max() < 1.1 * 10_000 / 12
    # Of a document that sections share, each has its part.
    assert make_directory().copies.tolist() == [3, 1, 1, 2, 1, 1, 1]


def test_the_first_mistake_is_told():
    counts = collections.Counter()
    reports = [
        TaskReport(5, 0, {}, counts, "five"),
        TaskReport(2, 0, {}, counts, "two"),
    ]
    assert make_directory(reports).mistake == "two"
    nothing = Directory.of(CONFIG, [], [TaskReport(0, 0, {"a": 0}, counts)])
    assert "nothing but blank lines" in nothing.mistake
    entries = [(0, 0, 1, False, 3, 3)]
    report = TaskReport(0, 1, {}, collections.Counter(sentences=3))
    one = Directory.of(CONFIG, entries, [report])
    assert "Received: 1 document" in one.mistake


@pytest.mark.parametrize("entries", [[], [0, 0], [1]])
def test_a_runner_that_loses_or_repeats_elements_is_found_out(entries):
    found = [(0, number, 1, False, 3, 3) for number in entries]
    counts = collections.Counter(sentences=6)
    reports = [TaskReport(n, 1, {}, counts) for n in range(2)]
    with pytest.raises(RuntimeError, match="lost or repeated"):
        Directory.of(CONFIG, found, reports)
