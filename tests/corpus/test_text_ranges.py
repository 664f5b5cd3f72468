import gzip
import itertools
import json

import numpy as np
import pytest

from bert_tf.corpus import ranges, stages, text
from bert_tf.corpus.ranges import (
    ReadingTask,
    TaskReport,
    TextRange,
    TextSection,
)
from bert_tf.corpus.settings import CreationConfig
from bert_tf.corpus.text import Corpus, CorpusWriter
from tests.text_corpora import write_text


@pytest.fixture
def config(vocab_file):
    return CreationConfig("", "", str(vocab_file), max_seq_length=31)


def read(config, paths, text_bytes, size):
    """Sections and reports of all tasks, and which task each is from."""
    tasks = ranges.plan_tasks(list(map(str, paths)), text_bytes)
    found = [
        item for task in tasks for item in ranges.read_task(task, config, size)
    ]
    sections = [item for item in found if isinstance(item, TextSection)]
    reports = [item for item in found if isinstance(item, TaskReport)]
    assert [report.number for report in reports] == list(range(len(reports)))
    return sections, reports


def as_documents(sections):
    """Documents as lists of sentences, which are lists of ids."""
    found = []
    for section in sections:
        sentences = [
            section.tokens[first:stop].tolist()
            for first, stop in itertools.pairwise(
                section.corpus.sentence_offsets
            )
        ]
        new = [
            sentences[first:stop]
            for first, stop in itertools.pairwise(
                section.corpus.document_offsets
            )
        ]
        if section.goes_on:
            found[-1] += new.pop(0)
        found += new
    return found


def as_one_machine_reads(config, folder, paths):
    """The same by `creation`'s way, and the size of the text."""
    size = 0
    with CorpusWriter(str(folder)) as writer:
        for block in text.blocks_of_files(list(map(str, paths))):
            writer.append(stages.encode(config, "", block))
            size += len(block.text)
    corpus = Corpus.open(str(folder))
    dtype = stages.tools(config).token_dtype
    tokens = np.fromfile(folder / text.TOKENS, dtype)
    return as_documents([TextSection((0, 0), tokens, corpus, False)]), size


@pytest.mark.parametrize("text_bytes", [40, 333, 1000, 10**6])
@pytest.mark.parametrize("size", [1, 5, 10_000])
def test_any_ranges_are_read_as_the_whole_is(
    config, tmp_path, monkeypatch, text_bytes, size
):
    monkeypatch.setattr(ranges, "TAIL_BYTES", 64)
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
    sections, reports = read(config, paths, text_bytes, size)
    expected, num_bytes = as_one_machine_reads(config, tmp_path, paths)
    assert as_documents(sections) == expected
    counts = sum((r.counts for r in reports), start=type(reports[0].counts)())
    assert counts["sentences"] == sum(map(len, expected))
    read_bytes = [sum(report.text_bytes.values()) for report in reports]
    assert sum(read_bytes) == num_bytes
    assert not any(report.mistake for report in reports)
    assert (len(reports) > 10) == (text_bytes < 1000)


@pytest.mark.parametrize("text_bytes", [30, 500, 10**6])
def test_lines_of_json_are_read_from_anywhere(config, tmp_path, text_bytes):
    texts = ["wa wb\nwc", "\n", "wd", "we\n\n wf " * 9] * 5
    lines = [json.dumps({"n": n, "text": t}) for n, t in enumerate(texts)]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(lines))
    settings = {"input_format": "jsonl"}
    config = CreationConfig("", "", config.vocab_file, **settings)
    sections, reports = read(config, [path], text_bytes, 7)
    expected, _ = as_one_machine_reads(config, tmp_path, [path])
    assert len(expected) == 15
    assert as_documents(sections) == expected
    assert (len(reports) > 1) == (text_bytes < 10**6)


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
    goes_on = [section.goes_on for section in sections[1:]] + [False]
    for section, is_followed in zip(sections, goes_on, strict=True):
        if is_followed:
            assert section.corpus.num_sentences == size
            assert section.corpus.num_documents == 1
    assert any(goes_on)
    assert [section.place for section in sections] == [
        (0, number) for number in range(len(sections))
    ]


def test_what_has_to_be_mended_is_reported(config, tmp_path, monkeypatch):
    monkeypatch.setattr(ranges, "TAIL_BYTES", 5)
    path = tmp_path / "a.txt"
    path.write_bytes(b"wa\n\n" * 50 + b"wa\xff\n\n" + b"wa\n\n" * 50)
    sections, reports = read(config, [path], 40, 1000)
    told = [report.mistake for report in reports if report.mistake]
    assert f"0xff at {path}:101" in told[0]
    assert len(told) <= 2  # Who looks for the end of a document meets it too.
    # Others have read what is theirs.
    assert len(sections) >= len(reports) - 2


def test_tasks_are_of_equal_size(tmp_path):
    paths = []
    for number, size in enumerate([1000, 30, 30, 30, 30, 149, 151]):
        paths.append(tmp_path / f"{number}")
        paths[-1].write_bytes(b"x" * size)
    paths.append(tmp_path / "b.gz")
    paths[-1].write_bytes(gzip.compress(b""))
    one, two, three, four, five, six, seven, packed = map(str, paths)
    tasks = list(ranges.plan_tasks(list(map(str, paths)), 100))
    expected = [
        *((TextRange(one, n * 100, n * 100 + 100),) for n in range(9)),
        (TextRange(one, 900, None),),
        (TextRange(two), TextRange(three), TextRange(four), TextRange(five)),
        (TextRange(six),),
        (TextRange(seven, 0, 75), TextRange(seven, 75, None)),
        (TextRange(packed),),
    ]
    assert [task.number for task in tasks] == list(range(len(tasks)))
    assert [task.ranges for task in tasks[:12]] == expected[:12]
    assert [r for task in tasks[12:] for r in task.ranges] == [
        *expected[12],
        *expected[13],
    ]


def test_files_that_cannot_be_read_are_reported(config, tmp_path):
    path = tmp_path / "a.gz"
    path.write_bytes(b"no gzip")
    task = ReadingTask(3, (TextRange(str(path)),))
    [report] = ranges.read_task(task, config, 5)
    assert report.number == 3
    assert "whole gzip file" in report.mistake
