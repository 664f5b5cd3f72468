"""The steps of a cluster, in one process."""

import collections
import contextlib
import dataclasses
import gzip
import itertools
import json
import pathlib
import random

import pytest

from bert_tf.corpus import cluster, text
from bert_tf.corpus.cluster import SectionTable, TaskReport, TextRange
from bert_tf.corpus.engines import pipeline
from bert_tf.corpus.settings import PieceSizes
from tests.corpus import engine_checks
from tests.text_corpora import config_of_two_texts, files_in, write_text


@pytest.fixture
def job(tmp_path, vocab_file):
    return config_of_two_texts(tmp_path, vocab_file, 9, 60)


@pytest.mark.parametrize("size", [1, 4, 10])
def test_sections_are_small_and_end_with_documents_or_pieces(
    job, tmp_path, monkeypatch, size
):
    monkeypatch.setattr(text, "BLOCK_BYTES", 100)
    path = write_text(tmp_path / "long.txt", 30, most_sentences=60)
    [task] = cluster.plan_tasks([str(path)], 10**6)
    *sections, _ = cluster.read_task(task, job, size)
    lengths = [section.corpus.num_sentences for section in sections]
    most_in_a_block = 100 // 3
    assert max(lengths) <= 2 * size + most_in_a_block
    followed = [
        section.corpus
        for section, after in itertools.pairwise(sections)
        if after.continues
    ]
    assert followed
    assert {corpus.num_sentences for corpus in followed} == {size}
    assert {corpus.num_documents for corpus in followed} == {1}
    assert [section.position for section in sections] == [
        (0, number) for number in range(len(sections))
    ]


def test_tasks_have_equal_sizes(tmp_path, monkeypatch):
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
    monkeypatch.setattr(cluster, "MAX_TASKS", 10)
    assert len(cluster.plan_tasks(paths[:1], 1)) == 10


def test_copies_balance_the_requests(job):
    # A section of a hundred short documents, and eleven long documents.
    entries = [(0, n, 1, False, 100, 100) for n in range(1, 12)]
    entries.append((0, 0, 100, False, 1, 100))
    counts = collections.Counter(sentences=1200)
    report = TaskReport(len(entries), {}, counts)
    table = SectionTable.of(job, entries, [report])
    assert table.copies.tolist() == [11] + [1] * 11


class ListEngine:
    """An engine in this process, whose collections are lists in random order.

    `faults` has, for some labels, a function that changes the collection.
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


@pytest.mark.parametrize("input_format", ["text", "jsonl"])
@pytest.mark.parametrize("text_bytes", [40, 333])
@pytest.mark.parametrize("sentences", [1, 5])
def test_documents_may_begin_and_end_anywhere_in_a_range(
    tmp_path, job, caplog, monkeypatch, sentences, text_bytes, input_format
):
    """Ranges of bytes, blocks and sections divide documents and lines."""
    monkeypatch.setattr(cluster, "TAIL_BYTES", 64)
    monkeypatch.setattr(text, "BLOCK_BYTES", 150)
    texts = [
        write_text(tmp_path / "a.txt", 5).read_text(),
        "",
        "\n \n\n",
        write_text(tmp_path / "c.txt", 3, 2, most_sentences=50).read_text(),
        "\n\n \nwa\n\u3000\n\n\n" + "wb wc\n" * 3 + "wd",
    ]
    paths = [f"{tmp_path}/{number}.txt" for number in range(5)]
    for path, content in zip(paths, texts, strict=True):
        if input_format == "jsonl":
            lines = [{"text": document} for document in content.split("\n\n")]
            content = "\n".join(map(json.dumps, lines))
        pathlib.Path(path).write_text(content)
    sizes = PieceSizes(sentences, 23, text_bytes)
    engine_checks.assert_equal_to_one_machine(
        lambda job: create(job, sizes),
        dataclasses.replace(
            job, input_file=",".join(paths), input_format=input_format
        ),
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
