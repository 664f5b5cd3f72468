"""The stages of a cluster, done by one that keeps everything in dicts."""

import collections
import dataclasses

import numpy as np
import pytest

from bert_tf.corpus import cluster, creation, instances, ranges
from bert_tf.corpus.cluster import Batch, Directory, Totals
from bert_tf.corpus.ranges import TextSection
from bert_tf.corpus.settings import CreationConfig, PieceSizes
from bert_tf.corpus.text import slices
from bert_tf.data import records
from tests.text_corpora import write_text

SIZES = PieceSizes(sentences=11, instances=23, text_bytes=900)


def make_config(tmp_path, vocab_file, **settings):
    for number, longest in enumerate([9, 60]):
        path = tmp_path / f"{number}.txt"
        write_text(path, 9, seed=number, most_sentences=longest)
    outputs = f"{tmp_path}/a.tfrecord,{tmp_path}/b.tfrecord.gz"
    settings = {"max_seq_length": 31, "dupe_factor": 3, **settings}
    return CreationConfig(
        f"{tmp_path}/0.txt,{tmp_path}/1.txt",
        outputs,
        str(vocab_file),
        **settings,
    )


def read(config, sizes):
    """The sections of the text, in a random order, and the directory."""
    tasks = ranges.plan_tasks(config.input_paths(), sizes.text_bytes)
    found = [
        item
        for task in tasks
        for item in ranges.read_task(task, config, sizes.sentences)
    ]
    sections = [item for item in found if isinstance(item, TextSection)]
    reports = [item for item in found if not isinstance(item, TextSection)]
    table = Directory.of(config, map(cluster.entry_of, sections), reports)
    np.random.default_rng(0).shuffle(sections)
    return sections, table


def make_instances(config, sizes, sections, table):
    """All instances in batches, and how many there are of each section."""
    size = sizes.sentences
    found = [
        cut
        for section in sections
        for cut in cluster.cut(section, config, size, table)
    ]
    batches = [cut.complete for cut in found]
    asked = collections.defaultdict(lambda: {"sections": [], "questions": []})
    for section in sections:
        for address, copy in cluster.copies(section, table):
            asked[address]["sections"].append(copy)
    for cut in found:
        for address, batch in cut.questions:
            asked[address]["questions"].append(batch)
    for group in asked.items():
        batches += cluster.answer(group, config, size, table)
    return batches, [(cut.index, cut.count) for cut in found]


def create(config, sizes, folder):
    """Writes the parts; returns the bytes of the two outputs."""
    sections, table = read(config, sizes)
    batches, counts = make_instances(config, sizes, sections, table)
    outputs = tuple(config.output_paths([]))
    totals = Totals.of(outputs, sizes.instances, counts, table)
    dealt = collections.defaultdict(list)
    for batch in batches:
        for first, part in cluster.deal(batch, config, totals):
            dealt[first].append(part)
    written = [
        cluster.write_part(group, config, str(folder), totals)
        for group in dealt.items()
    ]
    data = [b"", b""]
    for shard, part in sorted(written, key=lambda item: item[1].first):
        path = cluster.part_path(str(folder), part.first)
        with open(path, "rb") as file:
            data[shard] += file.read()
    return data


@pytest.mark.parametrize(
    ("sentences", "settings"),
    [
        (4, {}),
        (10_000, {"do_whole_word_mask": True, "random_seed": 3}),
        (11, {"next_sentence": False}),
    ],
)
def test_a_cluster_writes_what_one_machine_does(
    tmp_path, vocab_file, settings, sentences
):
    config = make_config(tmp_path, vocab_file, **settings)
    sizes = dataclasses.replace(SIZES, sentences=sentences)
    data = create(config, sizes, tmp_path)
    creation.create(config, 1, sizes)
    for path, found in zip(config.output_paths([]), data, strict=True):
        with open(path, "rb") as file:
            assert file.read() == found
        assert records.verify(path) > 20


def test_no_worker_gets_more_than_its_share(tmp_path, vocab_file):
    config = make_config(tmp_path, vocab_file, dupe_factor=40)
    sections, table = read(config, SIZES)
    assert len(sections) > 20
    found = [
        cut
        for section in sections
        for cut in cluster.cut(section, config, 11, table)
    ]
    load = collections.Counter()
    for cut in found:
        for address, batch in cut.questions:
            load[address] += len(batch)
            tokens = batch.pairs["a_stop"] - batch.pairs["a_start"]
            assert tokens.sum() == len(batch.tokens)
    mean = load.total() / len(sections)
    assert max(load.values()) < 1.6 * mean  # Of some 60, by chance.
    assert len(load) < 2 * len(sections)
    assert any(copy for _, copy in load)


def test_questions_are_answered_a_few_at_a_time(
    tmp_path, vocab_file, monkeypatch
):
    monkeypatch.setattr(cluster, "BATCH_SIZE", 7)
    config = make_config(tmp_path, vocab_file)
    sections, table = read(config, SIZES)
    batches, counts = make_instances(config, SIZES, sections, table)
    answers = [b for b in batches if b.pairs["is_random_next"].any()]
    assert len(answers) > 2 * len(sections)
    ids = np.concatenate(
        [np.stack([b.sections, b.numbers], axis=1) for b in batches]
    )
    expected = [(index, n) for index, count in counts for n in range(count)]
    assert sorted(map(tuple, ids.tolist())) == sorted(expected)


def test_negatives_come_from_another_document(tmp_path, vocab_file):
    """Each document has a word of its own."""
    config = make_config(tmp_path, vocab_file)
    text = "\n\n".join(
        "\n".join([f"w{chr(97 + n)}"] * (3 + n)) for n in range(26)
    )
    (tmp_path / "0.txt").write_text(text)
    (tmp_path / "1.txt").write_text("")
    sections, table = read(config, SIZES)
    batches, _ = make_instances(config, SIZES, sections, table)
    others = collections.Counter()
    for batch in batches:
        for pair in batch.pairs:
            a, b = (
                set(batch.tokens[start : start + length].tolist())
                for start, length in [
                    (pair["a_start"], pair["a_length"]),
                    (pair["b_start"], pair["b_length"]),
                ]
            )
            assert len(a) == len(b) == 1
            assert (a != b) == pair["is_random_next"]
            others.update(b if pair["is_random_next"] else ())
    assert len(others) == 26


def make_batch(numbers, shift):
    """Instances of 2 and 3 tokens, which are their number and a count."""
    numbers = np.array(numbers)
    spans = np.zeros(len(numbers), instances.SPAN)
    spans["a_start"] = np.arange(len(numbers)) * 5 + shift
    spans["b_start"] = spans["a_start"] + 2
    spans["a_length"], spans["b_length"] = 2, 3
    tokens = np.repeat(numbers, 5) * 10 + np.tile(np.arange(5), len(numbers))
    tokens = np.concatenate([np.zeros(shift, int), tokens])
    return Batch(np.zeros_like(numbers), numbers, spans, tokens)


def tokens_of(batch):
    read = [
        slices(
            batch.tokens, batch.pairs[f"{x}_start"], batch.pairs[f"{x}_length"]
        )
        for x in "ab"
    ]
    return [tokens.tolist() for tokens in read]


def test_batches_are_divided_and_joined():
    first, second = make_batch([3, 1, 4], 2), make_batch([9], 0)
    some = first.take(np.array([2, 0]))
    assert some.numbers.tolist() == [4, 3]
    assert len(some.tokens) == 10
    joined = Batch.joined([some, second])
    assert len(joined) == 3
    assert tokens_of(joined) == [
        [40, 41, 30, 31, 90, 91],
        [42, 43, 44, 32, 33, 34, 92, 93, 94],
    ]


def test_a_mistake_stops_everybody(tmp_path, vocab_file):
    config = make_config(tmp_path, vocab_file)
    (tmp_path / "1.txt").write_bytes(b"\xff")
    sections, table = read(config, SIZES)
    assert sections
    batches, counts = make_instances(config, SIZES, sections, table)
    assert batches == counts == []
    totals = Totals.of(("a",), 23, counts, table)
    assert "0xff at" in totals.mistake
    few = make_config(tmp_path, vocab_file)
    sections, table = read(few, SIZES)
    batches, counts = make_instances(few, SIZES, sections, table)
    totals = Totals.of(("a",) * 10**6, 23, counts, table)
    assert "instances for 1000000 files" in totals.mistake
    assert not list(cluster.deal(batches[0], few, totals))


def test_a_runner_that_repeats_elements_is_found_out(tmp_path, vocab_file):
    config = make_config(tmp_path, vocab_file)
    sections, table = read(config, SIZES)
    batches, counts = make_instances(config, SIZES, sections, table)
    totals = Totals.of(("a",), 10**6, counts, table)
    [(first, parts)] = collect(
        part
        for batch in batches
        for part in cluster.deal(batch, config, totals)
    )
    with pytest.raises(RuntimeError, match="lost or repeated"):
        Totals.of(("a",), 10**6, counts[1:], table)
    for wrong in (parts[1:], [*parts, parts[0]]):
        with pytest.raises(RuntimeError, match="lost or repeated"):
            cluster.write_part((first, wrong), config, str(tmp_path), totals)


def collect(pairs):
    groups = collections.defaultdict(list)
    for key, value in pairs:
        groups[key].append(value)
    return list(groups.items())
