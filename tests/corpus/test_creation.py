import dataclasses
import functools
import gzip
import hashlib
import json
import os
import pathlib
import re

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.base import files
from bert_tf.corpus import creation
from bert_tf.corpus import text as text_module
from bert_tf.corpus.creation import Chunk, OutputPlan
from bert_tf.corpus.settings import (
    CLUSTER_SIZES,
    DEFAULT_SIZES,
    CreationConfig,
    PieceSizes,
)
from bert_tf.corpus.text import EncodedBlock, TextBlock
from bert_tf.data import records
from bert_tf.errors import InputError
from tests.text_corpora import SPECIALS, WORDS, write_text

# They divide a small text into many pieces of work.
SMALL = PieceSizes(sentences=11, instances=23)


def make_config(text="a", output="b", vocab_file="c", **settings):
    settings = {"max_seq_length": 31, "dupe_factor": 3, **settings}
    return CreationConfig(str(text), str(output), str(vocab_file), **settings)


# Options.


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_seq_length": 4}, "`max_seq_length` must be at least 5; got 4"),
        ({"masked_lm_prob": 0.0}, "`masked_lm_prob` must be above 0; got 0.0"),
        ({"mask_share": 0.9}, "a sum of 1; got 0.9, 0.1 and 0.1"),
        ({"mask_share": 1.2, "keep_share": -0.3}, "got 1.2, 0.1 and -0.3"),
    ],
)
def test_options_out_of_range(settings, message):
    with pytest.raises(InputError, match=message):
        make_config(**settings)


def test_output_paths(tmp_path):
    assert make_config(output="x, y,").output_paths([]) == ["x", "y"]
    os.mkfifo(tmp_path / "pipe")
    for output, message in [
        (f"x,{tmp_path}/pipe", f"{tmp_path}/pipe: this is not a file"),
        ("a", "output a would overwrite the text a"),
        ("x,./c", "output ./c would overwrite the vocabulary c"),
        ("x,y, ./x", "output ./x would overwrite the output x"),
        ("q/x,q/manifest.x.json", "manifest q/manifest.x.json would overwrite"),
    ]:
        with pytest.raises(InputError, match=re.escape(message)):
            make_config(output=output).output_paths(["a"])


# Chunks of the output files.


@pytest.mark.parametrize("total", [3, 4, 61, 1021])
@pytest.mark.parametrize("chunk_size", [1, 7, 2048])
def test_chunks_hold_every_rank_once_in_equal_shares(total, chunk_size):
    plan = OutputPlan(("a", "b.gz", "c"), total, chunk_size)
    starts = plan.chunk_starts(np.arange(total))
    ranks, shares = [], [0, 0, 0]
    for chunk in plan.chunks():
        size = chunk.stop - chunk.first
        assert 0 < size <= chunk_size
        assert chunk.total == total
        assert chunk.is_compressed == (chunk.shard == 1)
        shares[chunk.shard] += size
        ranks += range(chunk.first, chunk.stop)
        assert (starts[chunk.first : chunk.stop] == chunk.first).all()
        assert plan.chunk(chunk.first) == chunk
    assert ranks == list(range(total))
    assert max(shares) - min(shares) <= 1


# The stages, on their own.


@pytest.fixture
def stage_config(write):
    words = [*SPECIALS, "wa", "wb", "wc", "##1"]
    path = write("\n".join(words), "stages.txt")
    return CreationConfig("", "", path, max_seq_length=13)


@pytest.fixture
def folder(tmp_path, stage_config):
    """A scratch folder as the first two stages leave it."""
    text = b"wa wb1\nwb\nwc wa wa\n\nwb wb\nwa1\n" * 40
    encoded = creation.encode(stage_config, TextBlock("text", 0, text))
    text_module.write_corpus(str(tmp_path), [encoded])
    spans = cut(stage_config, str(tmp_path), 0, len(encoded.lengths))
    spans.tofile(tmp_path / creation.SPANS)
    return str(tmp_path)


def cut(config, folder, first, stop):
    return creation.cut(config, folder, 1000, (first, stop))


def test_the_vocabulary_of_a_job(stage_config, write):
    vocabulary = creation.load_vocabulary(stage_config)
    assert vocabulary.unk_id == 1
    assert (vocabulary.cls_id, vocabulary.sep_id) == (2, 3)
    assert vocabulary.masking.mask_id == 4
    assert vocabulary.masking.special_ids == (2, 3)
    assert vocabulary.masking.replaceable_ids.tolist() == [6, 7, 8, 9]
    assert np.flatnonzero(vocabulary.masking.continuation).tolist() == [9]
    for size, dtype in (256, np.uint8), (257, np.uint16), (2**17, np.uint32):
        words = [*SPECIALS, *(f"x{number}" for number in range(size - 6))]
        path = write("\n".join(words), f"{size}.txt")
        config = dataclasses.replace(stage_config, vocab_file=path)
        assert creation.load_vocabulary(config).token_dtype == dtype
    config = dataclasses.replace(
        stage_config, vocab_file=write("[PAD]\n[UNK]\nwa\n")
    )
    with pytest.raises(InputError, match=r"\[CLS\].*\[SEP\].*\[MASK\]"):
        creation.load_vocabulary(config)


def test_the_seed_affects_each_stage(stage_config, folder):
    other = dataclasses.replace(stage_config, random_seed=1)
    spans = [cut(config, folder, 0, 200) for config in (stage_config, other)]
    assert spans[0].tobytes() != spans[1].tobytes()
    chunk = Chunk(0, 0, 20, 101, False)
    numbers = [
        creation.chunk_numbers(config, chunk).tolist()
        for config in (stage_config, other)
    ]
    assert numbers[0] != numbers[1]
    # The same instances under other numbers or seeds are masked differently.
    tokens = np.fromfile(f"{folder}/{text_module.TOKENS}", np.uint8)
    read = functools.partial(text_module.take_slices, tokens)
    written = [
        creation.serialize_chunk(config, chunk, spans[0][:20], read).data
        for config, chunk in [
            (stage_config, chunk),
            (stage_config, chunk),
            (other, chunk),
            (stage_config, Chunk(0, 20, 40, 101, False)),
        ]
    ]
    assert written[0] == written[1]
    assert len(set(written)) == 3


# The whole job.


def read(paths, config):
    """All records, parsed as in the original."""
    spec = {
        feature.name: tf.io.FixedLenFeature(feature.shape, feature.dtype)
        for feature in config.schema
    }
    rows = []
    for path in map(str, paths):
        kind = "GZIP" if path.endswith(".gz") else ""
        for batch in tf.data.TFRecordDataset(path, kind).batch(10_000):
            rows.append(tf.io.parse_example(batch, spec))
    return {name: np.concatenate([row[name] for row in rows]) for name in spec}


def unmasked(rows):
    """The input ids before masking."""
    ids = rows["input_ids"].copy()
    line, slot = np.nonzero(rows["masked_lm_weights"])
    positions = rows["masked_lm_positions"][line, slot]
    ids[line, positions] = rows["masked_lm_ids"][line, slot]
    return ids


@pytest.mark.parametrize(
    "next_sentence", [True, pytest.param(False, marks=pytest.mark.slow)]
)
def test_files_do_not_depend_on_the_division_of_the_work(
    tmp_path, vocab_file, monkeypatch, next_sentence
):
    """Nor on whether documents are text or JSON, local or remote."""
    monkeypatch.setattr(text_module, "BLOCK_BYTES", 1500)
    names = "a.txt", "b.txt.gz"
    remote = f"ram://creation_{next_sentence}"
    lines = []
    for seed, name in enumerate(names):
        path = write_text(tmp_path / name, seed=seed)
        tf.io.gfile.copy(str(path), f"{remote}/{name}", overwrite=True)
        with files.open_read(str(path)) as file:
            documents = file.read().decode().split("\n\n")
        lines += [json.dumps({"body": document}) for document in documents]
    (tmp_path / "c.jsonl").write_text("\n".join(lines))
    text = f"{tmp_path}/a.txt,{tmp_path}/*.gz"
    jsonl = {"input_format": "jsonl", "jsonl_field": "body"}
    found = []
    for folder, source, settings, num_workers, num_instances in [
        (f"{tmp_path}/1", text, {}, 1, 23),
        (f"{tmp_path}/2", text, {}, 1, 2048),
        (f"{tmp_path}/3", text, {}, 2, 23),
        (f"{tmp_path}/4", f"{tmp_path}/c.jsonl", jsonl, 1, 23),
        (f"{remote}/5", f"{remote}/a.txt,{remote}/*.gz", {}, 1, 23),
    ]:
        output = f"{folder}/x.tfrecord,{folder}/y.tfrecord.gz"
        config = make_config(
            source, output, vocab_file, next_sentence=next_sentence, **settings
        )
        sizes = PieceSizes(sentences=11, instances=num_instances)
        creation.create(config, num_workers, sizes)
        manifest, *names = sorted(tf.io.gfile.listdir(folder))
        assert manifest == "manifest.x.tfrecord.json"
        assert names == ["x.tfrecord", "y.tfrecord.gz"]
        plain, packed = (
            tf.io.gfile.GFile(f"{folder}/{name}", "rb").read() for name in names
        )
        found.append((plain, gzip.decompress(packed)))
    assert found == [found[0]] * 5


def test_larger_chunks_give_the_same_gzip_file(tmp_path, vocab_file):
    """A cluster's chunks are larger than one machine's."""
    text = write_text(tmp_path / "text.txt")
    found = []
    for number, sizes in enumerate((DEFAULT_SIZES, CLUSTER_SIZES)):
        path = tmp_path / str(number) / "x.tfrecord.gz"
        settings = {"max_seq_length": 9, "dupe_factor": 60}
        config = make_config(text, path, vocab_file, **settings)
        manifest = creation.create(config, 1, sizes)
        found.append(path.read_bytes())
    assert manifest["counts"]["instances"] > 2 * DEFAULT_SIZES.instances
    assert found[0] == found[1]


def test_the_manifest_describes_the_records(tmp_path, vocab_file):
    text = write_text(tmp_path / "text.txt")
    paths = [tmp_path / "out" / f"{i}.tfrecord" for i in range(3)]
    output = ", ".join(map(str, paths))
    config = make_config(text, output, vocab_file)
    manifest = creation.create(config, 1, SMALL)
    on_disk = paths[0].with_name("manifest.0.tfrecord.json").read_text()
    assert json.loads(on_disk) == manifest
    sizes = [records.verify(str(path)) for path in paths]
    assert max(sizes) - min(sizes) <= 1
    assert manifest["outputs"] == [
        {
            "path": str(path),
            "records": size,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
        for path, size in zip(paths, sizes, strict=True)
    ]
    assert manifest["inputs"] == [
        {"path": str(text), "bytes": os.path.getsize(text)}
    ]
    assert manifest["vocabulary"] == {
        "path": str(vocab_file),
        "size": len(SPECIALS + WORDS),
        "sha256": hashlib.sha256(vocab_file.read_bytes()).hexdigest(),
    }
    assert manifest["settings"]["max_seq_length"] == 31
    counts = manifest["counts"]
    assert list(counts) == sorted(counts)
    rows = read(paths, config)
    assert counts["documents"] == 60
    assert counts["instances"] == sum(sizes) == len(rows["input_ids"])
    assert counts["random_next"] == rows["next_sentence_labels"].sum()
    assert counts["instance_tokens"] == rows["input_mask"].sum()
    assert rows["masked_lm_weights"].sum() == (
        counts["masked_as_mask"]
        + counts["masked_as_random"]
        + counts["masked_as_kept"]
    )
    # Segments are consecutive words of the text.
    vocab = SPECIALS + WORDS
    pieces = " ".join(
        " ".join([word[:2], *(f"##{digit}" for digit in word[2:])])
        for word in text.read_text().replace("\n\n", " | ").split()
    )
    for ids, mask in zip(unmasked(rows), rows["input_mask"], strict=True):
        tokens = " ".join(vocab[i] for i in ids[mask.astype(bool)])
        assert tokens.startswith("[CLS] ")
        a, b = tokens.removesuffix(" [SEP]")[6:].split(" [SEP] ")
        assert a in pieces
        assert b in pieces


def test_instances_of_all_documents_are_shuffled(tmp_path, vocab_file):
    text = tmp_path / "text.txt"
    text.write_text("wa wa wa wa\n" * 300 + "\n" + "wb wb wb wb\n" * 300)
    config = make_config(text, tmp_path / "out", vocab_file)
    creation.create(config, 1)
    ids = unmasked(read([tmp_path / "out"], config))
    is_a = ids[:, 1] == len(SPECIALS)
    assert 0.3 < is_a.mean() < 0.7
    assert 0.4 < (is_a[1:] != is_a[:-1]).mean() < 0.6


def test_statistics_are_close_to_the_originals(tmp_path, shared_data):
    """The original: 60 instances, 53 % random next, 922 masked of 60 x 20."""
    vocab_file = shared_data / "vocab" / "bert-base-uncased-vocab.txt"
    text = shared_data / "pretraining_text" / "sample_text.txt"
    output, settings = tmp_path / "out", {"max_seq_length": 128}
    found = [
        creation.create(
            make_config(text, output, vocab_file, random_seed=seed, **settings),
            num_workers=1,
        )["counts"]
        for seed in range(16)  # Times 3, the default here, for dupe_factor.
    ]
    totals = {name: sum(count[name] for count in found) for name in found[0]}
    masked = sum(totals[f"masked_as_{x}"] for x in ("mask", "random", "kept"))
    assert 56 <= totals["instances"] / 16 / 3 * 5 <= 64
    assert 0.45 < totals["random_next"] / totals["instances"] < 0.61
    assert 14.5 < masked / totals["instances"] < 16.2


SINGLE = {
    "next_sentence": False,
    "do_whole_word_mask": True,
    "short_seq_prob": 0.5,
}


@pytest.mark.parametrize(
    ("settings", "digest"),
    [({}, "b2cc046f315980ce"), (SINGLE, "b5e16ec621207102")],
)
def test_records_stay_the_same_between_versions(
    tmp_path, shared_data, settings, digest
):
    config = make_config(
        shared_data / "pretraining_text" / "sample_text.txt",
        tmp_path / "out",
        shared_data / "vocab" / "bert-base-uncased-vocab.txt",
        **{"max_seq_length": 32, "dupe_factor": 2, **settings},
    )
    creation.create(config, 1)
    data = (tmp_path / "out").read_bytes()
    assert hashlib.sha256(data).hexdigest().startswith(digest)


JSONL = {"input_format": "jsonl"}
MANY = {"output": ",".join(f"out/{i}" for i in range(99))}


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        (b"\n \n", {}, "text.txt` has only blank lines"),
        (b"wa\nwb\n", {}, r"found 1 document\(s\), 2 .*Put blank .*`next_sent"),
        (b"wa\n\nwb\n\nwc\n", {}, r"3 document\(s\), 3 .*Put .*`next_"),
        (b"wa\nwb\n\nwc\xff\n", {}, r"text\.txt:4: byte 0xff"),
        (
            b'{"text": "wa\\nwb"}',
            JSONL,
            r"1 document\(s\), 2 .*End .*`next_sentence=F",
        ),
        (
            b'{"text": "wa"}\n{"text": "wb"}',
            JSONL,
            r"End each sentence in 'text' with \\n or",
        ),
        (b'{"text": "wa"}\n{"txt": 1}', JSONL, r"text\.txt:2: .*'text'"),
        (b"wa\nwb\n\nwc\n", MANY, "instances for 99 files"),
        (b"wa\nwb\n\nwc\n", {"output": "text.txt/x/0"}, "Cannot write"),
    ],
)
def test_unusable_texts_leave_existing_files(
    write, tmp_path, monkeypatch, vocab_file, text, settings, message
):
    monkeypatch.chdir(tmp_path)
    write(text, "text.txt")
    os.mkdir("out")
    write(b"old", "out/0")
    settings = {"output": "out/0", **settings}
    config = make_config("text.txt", vocab_file=vocab_file, **settings)
    with pytest.raises(InputError, match=message):
        creation.create(config, 1)
    assert os.listdir("out") == ["0"]
    assert pathlib.Path("out/0").read_bytes() == b"old"


# Checks of the text and of the instances.

FINE = {
    "tokens": 1000,
    "sentences": 100,
    "unknown_tokens": 100,
    "sentences_longer_than_an_instance": 3,
    "tokens_beyond_an_instance": 50,
}


def test_tokens_are_counted(stage_config):
    block = EncodedBlock(
        *("a.txt", 20),
        tokens=np.array([*[6] * 10, 1, *[6] * 6, 1]),
        lengths=np.array([1, 12, 5]),
        breaks=np.array([0]),
    )
    assert creation.token_counts(stage_config, block) == {
        "tokens": 18,
        "sentences": 3,
        "unknown_tokens": 2,
        "sentences_longer_than_an_instance": 1,
        "tokens_beyond_an_instance": 2,
    }


@pytest.mark.parametrize(
    ("name", "value", "warning"),
    [
        ("unknown_tokens", 101, "10 % of the tokens are [UNK]"),
        ("tokens_beyond_an_instance", 51, "3 of 100 lines are longer"),
    ],
)
def test_suspicious_statistics_are_warned_of(caplog, name, value, warning):
    creation.check_instances(make_config(), FINE)
    assert not caplog.records
    creation.check_instances(make_config(), {**FINE, name: value})
    [record] = caplog.records
    assert warning in record.message
    single = make_config(next_sentence=False)
    caplog.clear()
    creation.check_instances(single, {**FINE, name: value})
    assert len(caplog.records) == (name != "tokens_beyond_an_instance")


# What other jobs read from the manifest.


def test_casing_and_next_sentences_are_read_from_manifests(tmp_path):
    paths = [str(tmp_path / name) for name in ("a", "b", "c")]

    def describe(path, **settings):
        text = json.dumps({"settings": settings})
        files.write_text(files.manifest_path(path), text)

    assert creation.casing_of(paths) == {}
    cased = {"do_lower_case": False, "strip_accents": None}
    describe(paths[0], **cased)
    describe(paths[1], **cased, next_sentence=True)
    assert creation.casing_of(paths) == cased
    creation.require_next_sentence(paths)
    describe(paths[2], do_lower_case=True, next_sentence=False)
    assert creation.casing_of(paths) == {}
    with pytest.raises(InputError, match=f"{paths[2]} was made with `next_s"):
        creation.require_next_sentence(paths)
