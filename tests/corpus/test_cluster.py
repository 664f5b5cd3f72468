"""The steps of a cluster, in one process."""

import collections
import contextlib
import dataclasses
import gzip
import itertools
import json
import random

import numpy as np
import pytest

from bert_tf.corpus import cluster, creation, text
from bert_tf.corpus.cluster import (
    ReadingTask,
    SectionTable,
    TaskReport,
    TextRange,
    TextSection,
)
from bert_tf.corpus.engines import pipeline
from bert_tf.corpus.settings import CreationConfig, PieceSizes
from bert_tf.corpus.text import Corpus
from bert_tf.errors import InputError
from tests.corpus import engine_checks
from tests.text_corpora import config_of_two_texts, files_in, write_text

# Sections of text.


@pytest.fixture
def config(vocab_file):
    return CreationConfig("", "", str(vocab_file), max_seq_length=31)


def read(config, paths, text_bytes, size):
    """The sections and the reports of all tasks."""
    tasks = cluster.plan_tasks(list(map(str, paths)), text_bytes)
    found = [
        item for task in tasks for item in cluster.read_task(task, config, size)
    ]
    sections = [item for item in found if isinstance(item, TextSection)]
    reports = [item for item in found if isinstance(item, TaskReport)]
    assert len(reports) == len(tasks)
    return sections, reports


def split_at(items, offsets):
    return [items[a:b] for a, b in itertools.pairwise(offsets)]


def as_documents(sections):
    """Documents as lists of sentences, which are lists of ids."""
    found = []
    for section in sections:
        corpus = section.corpus
        sentences = split_at(section.tokens.tolist(), corpus.sentence_offsets)
        new = split_at(sentences, corpus.document_offsets)
        if section.continues:
            found[-1] += new.pop(0)
        found += new
    return found


def read_by_one_machine(config, folder, paths):
    """The documents as `creation` reads them, and the size of the text."""
    blocks = list(text.blocks_of_files(list(map(str, paths))))
    encoded = [creation.encode(config, block) for block in blocks]
    text.write_corpus(str(folder), encoded)
    dtype = creation.load_vocabulary(config).token_dtype
    tokens = np.fromfile(folder / text.TOKENS, dtype)
    section = TextSection((0, 0), tokens, Corpus.open(str(folder)), False)
    return as_documents([section]), sum(len(block.text) for block in blocks)


@pytest.mark.parametrize("input_format", ["text", "jsonl"])
@pytest.mark.parametrize("text_bytes", [40, 333, 10**6])
@pytest.mark.parametrize("size", [1, 5, 10_000])
def test_ranges_hold_the_documents_of_the_whole_text(
    config, tmp_path, monkeypatch, text_bytes, size, input_format
):
    monkeypatch.setattr(cluster, "TAIL_BYTES", 64)
    monkeypatch.setattr(text, "BLOCK_BYTES", 150)
    paths = [
        write_text(tmp_path / "a.txt", 7),
        write_text(tmp_path / "b.txt.gz", 3, seed=1),
        tmp_path / "empty.txt",
        tmp_path / "blank.txt",
        write_text(tmp_path / "c.txt", 3, seed=2, most_sentences=50),
        tmp_path / "last.txt",
    ]
    paths[2].write_text("")
    paths[3].write_text("\n \n\n")
    paths[5].write_text("\n\n \nwa\n\u3000\n\n\n" + "wb wc\n" * 3 + "wd")
    if input_format == "jsonl":
        config = dataclasses.replace(config, input_format="jsonl")
        for path in paths[2:]:
            documents = path.read_text().split("\n\n")
            lines = [json.dumps({"text": text}) for text in documents]
            path.write_text("\n".join(lines))
        paths = paths[2:]
    sections, reports = read(config, paths, text_bytes, size)
    expected, num_bytes = read_by_one_machine(config, tmp_path, paths)
    assert as_documents(sections) == expected
    counts = sum((r.counts for r in reports), start=collections.Counter())
    assert counts["sentences"] == sum(map(len, expected))
    read_bytes = [sum(report.text_bytes.values()) for report in reports]
    assert sum(read_bytes) == num_bytes
    assert (len(reports) > 9) == (text_bytes < 1000)


@pytest.mark.parametrize("size", [1, 4, 10])
def test_sections_are_small_and_end_with_documents_or_pieces(
    config, tmp_path, monkeypatch, size
):
    monkeypatch.setattr(text, "BLOCK_BYTES", 100)
    path = write_text(tmp_path / "a.txt", 30, most_sentences=60)
    sections, _ = read(config, [path], 10**6, size)
    lengths = [section.corpus.num_sentences for section in sections]
    most_in_a_block = 100 // 3
    assert max(lengths) <= 2 * size + most_in_a_block
    is_followed = [section.continues for section in sections[1:]] + [False]
    for section, has_next in zip(sections, is_followed, strict=True):
        if has_next:
            assert section.corpus.num_sentences == size
            assert section.corpus.num_documents == 1
    assert any(is_followed)
    assert [section.position for section in sections] == [
        (0, number) for number in range(len(sections))
    ]


def test_unreadable_texts_are_errors(config, tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"wa\n\n" * 50 + b"wa\xff\n\n" + b"wa\n\n" * 50)
    with pytest.raises(InputError, match=f"{path}:101: byte 0xff"):
        read(config, [path], 40, 1000)
    path = tmp_path / "a.gz"
    path.write_bytes(b"no gzip")
    task = ReadingTask(3, (TextRange(str(path)),))
    with pytest.raises(InputError, match="gzip"):
        list(cluster.read_task(task, config, 5))


def test_tasks_have_equal_sizes(tmp_path):
    for number, size in enumerate([300, 30, 30, 30, 30, 149, 151]):
        (tmp_path / f"{number}").write_bytes(b"x" * size)
    (tmp_path / "7.gz").write_bytes(gzip.compress(b""))
    paths = [f"{tmp_path}/{n}" for n in (*range(7), "7.gz")]
    tasks = cluster.plan_tasks(paths, 100)
    assert [task.number for task in tasks] == list(range(len(tasks)))
    assert [task.ranges for task in tasks] == [
        (TextRange(paths[0], 0, 100),),
        (TextRange(paths[0], 100, 200),),
        (TextRange(paths[0], 200, None),),
        tuple(map(TextRange, paths[1:5])),
        (TextRange(paths[5]),),
        (TextRange(paths[6], 0, 75),),
        (TextRange(paths[6], 75, None),),
        (TextRange(paths[7]),),
    ]


def test_the_number_of_tasks_is_limited(tmp_path, monkeypatch):
    monkeypatch.setattr(cluster, "MAX_TASKS", 10)
    (tmp_path / "a").write_bytes(b"x" * 10_000)
    (tmp_path / "b.gz").write_bytes(b"x" * 10_000)
    paths = [f"{tmp_path}/a", f"{tmp_path}/b.gz"]
    tasks = cluster.plan_tasks(paths, 10)
    assert [task.ranges[0].path for task in tasks] == [paths[0]] * 10 + [
        paths[1]
    ]
    assert len(cluster.plan_tasks(paths, 5000)) == 3


def table_of(*entries):
    """Each entry has the values of `cluster.ENTRY`."""
    counts = collections.Counter(sentences=sum(entry[5] for entry in entries))
    report = TaskReport(len(entries), {}, counts)
    config = CreationConfig("in", "out", "vocab")
    return SectionTable.of(config, entries, [report])


def test_copies_balance_the_requests():
    # A section of a hundred short documents, and eleven long documents.
    entries = [(0, n, 1, False, 100, 100) for n in range(1, 12)]
    table = table_of((0, 0, 100, False, 1, 100), *entries)
    assert table.copies.tolist() == [11] + [1] * 11
    rng = np.random.default_rng(0)
    index = table.find(rng.integers(0, 111, 10_000), rng.random(10_000))
    load = np.bincount(index, minlength=12) / table.copies
    assert load.max() < 1.1 * 10_000 / 12
    # Sections that share a document share its requests.
    table = table_of(
        (0, 0, 3, False, 1, 6),
        (0, 1, 1, False, 5, 5),  # A document of 17 sentences ...
        (0, 2, 1, True, 5, 5),
        (0, 3, 2, True, 7, 8),  # ... ends here, before another one.
        (2, 0, 1, False, 12, 12),
        (2, 1, 1, False, 5, 5),  # A document of 11 sentences.
        (2, 2, 1, True, 6, 6),
    )
    assert table.copies.tolist() == [3, 1, 1, 2, 1, 1, 1]


# From text to records.


class ListEngine:
    """An engine in this process, whose collections are lists in random order.

    Args:
      faults: For some labels, a function that changes the collection.
    """

    def __init__(self, faults=()):
        self._faults = dict(faults)
        self._random = random.Random(0)

    def spread(self, label, items):
        return list(items)

    def flat_map(self, label, function, collection, *arguments):
        items = [each for x in collection for each in function(x, *arguments)]
        self._random.shuffle(items)
        return self._faults.get(label, list)(items)

    def keep(self, label, collection):
        return collection

    def union(self, label, *collections):
        return list(itertools.chain(*collections))

    def group(self, label, *parts):
        groups = collections.defaultdict(lambda: tuple([] for _ in parts))
        for part, pairs in enumerate(parts):
            for key, value in pairs:
                groups[key][part].append(value)
        return list(groups.items())

    def once(self, label, function, *inputs):
        return function(*inputs)

    def run(self):
        pass


SIZES = PieceSizes(sentences=11, instances=23, text_bytes=900)


def create(job, sizes=SIZES, **options):
    engine = contextlib.nullcontext(ListEngine(**options))
    return pipeline.create(job, engine, sizes)


@pytest.fixture
def job(tmp_path, vocab_file):
    return config_of_two_texts(tmp_path, vocab_file, 9, 60)


@pytest.mark.parametrize(
    ("sentences", "settings"),
    [
        (4, {}),
        (10_000, {"do_whole_word_mask": True, "random_seed": 3}),
        (11, {"next_sentence": False}),
    ],
)
def test_a_cluster_writes_the_files_of_one_machine(
    tmp_path, job, caplog, sentences, settings
):
    sizes = dataclasses.replace(SIZES, sentences=sentences)
    engine_checks.assert_equal_to_one_machine(
        lambda job: create(job, sizes),
        dataclasses.replace(job, **settings),
        sizes,
        tmp_path / "out",
        caplog,
    )


@engine_checks.UNUSABLE
def test_unusable_texts_leave_existing_files(
    tmp_path, job, text, outputs, message
):
    engine_checks.assert_existing_files_are_left(
        create, job, tmp_path, text, outputs, message
    )


@pytest.mark.parametrize("label", ["Entries", "Counts", "Assign chunks"])
@pytest.mark.parametrize("mistake", [lambda x: x[1:], lambda x: [*x, x[0]]])
def test_lost_or_repeated_elements_are_errors(tmp_path, job, label, mistake):
    with pytest.raises(RuntimeError, match="lost or repeated"):
        create(job, faults={label: mistake})
    assert files_in(tmp_path / "out") == {}
