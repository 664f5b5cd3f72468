import dataclasses
import functools
import hashlib
import json
import os
import pathlib
import re

import numpy as np
import pytest
import tensorflow as tf

from bert_tf import files
from bert_tf.corpus import creation, instances
from bert_tf.corpus import text as text_module
from bert_tf.corpus.creation import Chunk, OutputPlan
from bert_tf.corpus.settings import CreationConfig, PieceSizes
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
        ({"max_seq_length": 4}, "--max_seq_length must be at least 5; got 4"),
        ({"max_predictions_per_seq": 0}, "_per_seq must be at least 1"),
        ({"dupe_factor": 0}, "--dupe_factor must be at least 1; got 0"),
        ({"random_seed": -1}, "--random_seed must be at least 0; got -1"),
        ({"masked_lm_prob": 0.0}, "--masked_lm_prob must be above 0; got 0.0"),
        ({"masked_lm_prob": 1.01}, "--masked_lm_prob must be at most 1"),
        ({"short_seq_prob": -0.1}, "--short_seq_prob must be at least 0"),
        ({"short_seq_prob": 1.1}, "--short_seq_prob must be at most 1"),
        ({"errors": "drop"}, "--errors must be .*strict, replace or ignore"),
        ({"input_format": "json"}, "--input_format must be .*text or jsonl"),
        ({"mask_share": 0.9}, "a sum of 1; got 0.9, 0.1 and 0.1"),
        ({"mask_share": 1.2, "keep_share": -0.3}, "got 1.2, 0.1 and -0.3"),
    ],
)
def test_options_out_of_range(settings, message):
    with pytest.raises(InputError, match=message):
        make_config(**settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"max_seq_length": 5},
        {"masked_lm_prob": 1.0},
        {"short_seq_prob": 0.0},
        {"mask_share": 0.1, "random_share": 0.2, "keep_share": 0.7},
        {"mask_share": 1.0, "random_share": 0.0, "keep_share": 0.0},
    ],
)
def test_options_at_their_limits(settings):
    config = make_config(**settings)
    assert settings.items() <= config.settings().items()
    assert "vocab_file" not in config.settings()


def test_lengths_follow_from_the_options():
    config = make_config(max_predictions_per_seq=7)
    shapes = {feature.name: feature.shape for feature in config.schema}
    assert shapes["input_ids"] == (31,)
    assert shapes["masked_lm_ids"] == (7,)
    assert config.max_text_tokens == 28
    assert make_config(next_sentence=False).max_text_tokens == 29


def test_output_paths(tmp_path):
    assert make_config(output="x, y,").output_paths([]) == ["x", "y"]
    os.mkfifo(tmp_path / "pipe")
    for output, message in [
        (" , ", "--output_file must be a comma-separated list of files"),
        (f"x,{tmp_path}/pipe", f"{tmp_path}/pipe is a device or a pipe"),
        ("a", "output a would overwrite the text a"),
        ("x,./c", "output ./c would overwrite the vocabulary c"),
        ("x,y, ./x", "output ./x would overwrite the output x"),
        (
            "q/x,q/manifest.x.json",
            "manifest q/manifest.x.json would overwrite the output",
        ),
    ]:
        with pytest.raises(InputError, match=re.escape(message)):
            make_config(output=output).output_paths(["a"])


# Chunks of the output files.


@pytest.mark.parametrize("total", [3, 4, 61, 100, 1021])
@pytest.mark.parametrize("chunk_size", [1, 7, 2048])
def test_chunks_hold_every_rank_once_in_equal_shares(total, chunk_size):
    plan = OutputPlan(("a", "b.gz", "c"), total, chunk_size)
    chunks = list(plan.chunks())
    starts = plan.chunk_starts(np.arange(total))
    ranks, shares = [], [0, 0, 0]
    for chunk in chunks:
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


def test_a_chunk_ends_with_its_file():
    assert list(OutputPlan(("a", "b"), 10, 4).chunks()) == [
        Chunk(0, 0, 4, 10, False),
        Chunk(0, 4, 5, 10, False),
        Chunk(1, 5, 9, 10, False),
        Chunk(1, 9, 10, 10, False),
    ]
    with pytest.raises(InputError, match="only 4 instances for 5 files"):
        OutputPlan(tuple("abcde"), 4, 2048)
    assert len(list(OutputPlan(tuple("abcd"), 4, 2048).chunks())) == 4


# The stages, on their own.

TEXT = "wa wb1\nwb\nwc wa wa\n\nwb wb\nwa1\n" * 40


@pytest.fixture
def stage_config(tmp_path):
    vocab_file = tmp_path / "stages.txt"
    vocab_file.write_text(
        "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n[unused0]\nwa\nwb\nwc\n##1\n"
    )
    return CreationConfig("", "", str(vocab_file), max_seq_length=13)


@pytest.fixture
def folder(tmp_path, stage_config):
    """A scratch folder as the first two stages leave it."""
    block = TextBlock("text", 0, TEXT.encode())
    encoded = creation.encode(stage_config, block)
    text_module.write_corpus(str(tmp_path), [encoded])
    spans = cut(stage_config, str(tmp_path), 0, len(encoded.lengths))
    spans.tofile(tmp_path / creation.SPANS)
    return str(tmp_path)


def cut(config, folder, first, stop):
    return creation.cut(config, folder, 1000, (first, stop))


def write(config, folder, first, stop, total=101, is_compressed=False):
    chunk = Chunk(0, first, stop, total, is_compressed)
    return creation.write_chunk(config, folder, chunk)


def test_the_vocabulary_of_a_job(stage_config, tmp_path):
    vocabulary = creation.load_vocabulary(stage_config)
    assert (vocabulary.unk_id, vocabulary.cls_id, vocabulary.sep_id) == (
        *(1, 2, 3),
    )
    assert vocabulary.masking.mask_id == 4
    assert vocabulary.masking.special_ids == (2, 3)
    assert vocabulary.masking.replaceable_ids.tolist() == [6, 7, 8, 9]
    assert np.flatnonzero(vocabulary.masking.continuation).tolist() == [9]
    assert vocabulary.token_dtype == np.uint8
    for extra, dtype in (246, np.uint8), (247, np.uint16), (2**16, np.uint32):
        path = tmp_path / f"{extra}.txt"
        words = [f"x{number}\n" for number in range(extra)]
        path.write_text(
            pathlib.Path(stage_config.vocab_file).read_text() + "".join(words)
        )
        config = dataclasses.replace(stage_config, vocab_file=str(path))
        assert creation.load_vocabulary(config).token_dtype == dtype
    (tmp_path / "other.txt").write_text("[PAD]\n[UNK]\nwa\n")
    config = dataclasses.replace(
        stage_config, vocab_file=f"{tmp_path}/other.txt"
    )
    with pytest.raises(InputError, match=r"\[CLS\].*\[SEP\].*\[MASK\]"):
        creation.load_vocabulary(config)


@pytest.mark.parametrize("next_sentence", [True, False])
def test_pieces_are_cut_independently(stage_config, folder, next_sentence):
    config = dataclasses.replace(stage_config, next_sentence=next_sentence)
    whole = cut(config, folder, 0, 200)
    second, first = cut(config, folder, 98, 200), cut(config, folder, 0, 98)
    np.testing.assert_array_equal(np.concatenate([first, second]), whole)


def test_chunks_are_written_independently(stage_config, folder, tmp_path):
    whole = write(stage_config, folder, 50, 70)
    write(stage_config, folder, 0, 50)
    parts = [
        write(stage_config, folder, *bounds).data
        for bounds in [(50, 57), (57, 70)]
    ]
    assert b"".join(parts) == whole.data
    first = write(stage_config, folder, 0, 37)
    packed = write(stage_config, folder, 0, 37, is_compressed=True)
    assert first.num_instances == packed.num_instances == 37
    assert first.counts == packed.counts
    for name, data in ("chunk", first.data), ("chunk.gz", packed.data):
        path = tmp_path / name
        path.write_bytes(data)
        assert records.verify(str(path)) == 37
        assert records.check_first_record(str(path), stage_config.schema)
    # Only the first chunk has samples.
    assert first.samples["input_ids"].shape == (5, 13)
    assert first.samples["next_sentence_labels"].shape == (5, 1)
    assert whole.samples["input_ids"].shape == (0, 13)


def test_the_seed_affects_each_stage(stage_config, folder):
    other = dataclasses.replace(stage_config, random_seed=1)
    spans = [cut(config, folder, 0, 200) for config in (stage_config, other)]
    assert len(spans[0]) != len(spans[1]) or (spans[0] != spans[1]).any()
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


def test_chunks_hold_all_instances(stage_config, folder):
    spans = np.fromfile(f"{folder}/{creation.SPANS}", instances.SPAN)
    total = len(spans)
    first = write(stage_config, folder, 0, total // 3, total)
    second = write(stage_config, folder, total // 3, total, total)
    counts = first.counts + second.counts
    assert counts["random_next"] == spans["is_random_next"].sum()
    tokens = spans["a_length"].sum() + spans["b_length"].sum()
    assert counts["instance_tokens"] == tokens + 3 * total


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


def files_in(folder):
    return {
        path.relative_to(folder): path.read_bytes()
        for path in sorted(pathlib.Path(folder).rglob("*"))
        if path.is_file()
    }


def test_files_do_not_depend_on_the_number_of_workers(
    tmp_path, vocab_file, monkeypatch
):
    monkeypatch.setattr(text_module, "BLOCK_BYTES", 1500)
    write_text(tmp_path / "a.txt")
    write_text(tmp_path / "b.txt.gz", seed=1)
    text = f"{tmp_path}/a.txt,{tmp_path}/*.gz"
    written = []
    for num_workers in 1, 3:
        folder = tmp_path / f"{num_workers}_workers"
        output = f"{folder}/x.tfrecord,{folder}/y.tfrecord.gz"
        config = make_config(text, output, vocab_file)
        creation.create(config, num_workers, SMALL)
        written.append(files_in(folder))
        # The manifest names the folder.
        manifest = pathlib.Path("manifest.x.tfrecord.json")
        as_text = written[-1][manifest].decode()
        written[-1][manifest] = as_text.replace(str(folder), "")
    assert len(written[0]) == 3
    assert written[0] == written[1]


def test_json_lines_and_text_give_the_same_records(tmp_path, vocab_file):
    text = write_text(tmp_path / "text.txt")
    lines = [
        json.dumps({"title": "x", "body": document})
        for document in text.read_text().split("\n\n")
    ]
    jsonl = tmp_path / "lines.jsonl"
    jsonl.write_text("\n".join(lines))
    creation.create(make_config(text, tmp_path / "a", vocab_file), 1, SMALL)
    config = make_config(
        *(jsonl, tmp_path / "b", vocab_file),
        input_format="jsonl",
        jsonl_field="body",
    )
    creation.create(config, 1, SMALL)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_the_manifest_describes_the_records(tmp_path, vocab_file):
    text = write_text(tmp_path / "text.txt")
    paths = [tmp_path / "out" / f"{i}.tfrecord" for i in range(3)]
    output = ", ".join(map(str, paths))
    config = make_config(text, output, vocab_file)
    manifest = creation.create(config, 1, SMALL)
    on_disk = paths[0].with_name("manifest.0.tfrecord.json").read_text()
    assert json.loads(on_disk) == manifest
    sizes = [entry["records"] for entry in manifest["outputs"]]
    assert sizes == [records.verify(str(path)) for path in paths]
    assert max(sizes) - min(sizes) <= 1
    for path, entry in zip(paths, manifest["outputs"], strict=True):
        data = path.read_bytes()
        assert entry["path"] == str(path)
        assert entry["sha256"] == hashlib.sha256(data).hexdigest()
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


def test_remote_files(tmp_path, vocab_file):
    text = write_text(tmp_path / "text.txt.gz")
    tf.io.gfile.copy(str(text), "ram://folder/text.txt.gz", overwrite=True)
    local, remote = tmp_path / "out.gz", "ram://folder/out.gz"
    creation.create(make_config(text, local, vocab_file), 1)
    creation.create(make_config("ram://folder/*.gz", remote, vocab_file), 1)
    with tf.io.gfile.GFile(remote, "rb") as file:
        assert file.read() == local.read_bytes()
    assert sorted(tf.io.gfile.listdir("ram://folder")) == [
        "manifest.out.gz.json",
        "out.gz",
        "text.txt.gz",
    ]


def test_single_segments(tmp_path, vocab_file):
    text = tmp_path / "text.txt"
    text.write_text("wa wb wc\n" * 50)  # One document is enough.
    config = make_config(
        text, tmp_path / "out", vocab_file, next_sentence=False
    )
    counts = creation.create(config, 1)["counts"]
    rows = read([tmp_path / "out"], config)
    assert not rows["next_sentence_labels"].any()
    assert not rows["segment_ids"].any()
    cls, sep = SPECIALS.index("[CLS]"), SPECIALS.index("[SEP]")
    ids = unmasked(rows)
    assert (ids[:, 0] == cls).all()
    assert ((ids == sep).sum(axis=1) == 1).all()
    last = rows["input_mask"].sum(axis=1) - 1
    assert (ids[np.arange(len(ids)), last] == sep).all()
    specials = 2 * counts["instances"]
    assert counts["instance_tokens"] - specials == 3 * counts["tokens"]


def test_instances_of_all_documents_are_shuffled(tmp_path, vocab_file):
    text = tmp_path / "text.txt"
    text.write_text("wa wa wa wa\n" * 300 + "\n" + "wb wb wb wb\n" * 300)
    config = make_config(text, tmp_path / "out", vocab_file)
    creation.create(config, 1)
    ids = unmasked(read([tmp_path / "out"], config))
    is_a = ids[:, 1] == SPECIALS.index("[unused1]") + 1
    assert 0.3 < is_a.mean() < 0.7
    switches = (is_a[1:] != is_a[:-1]).mean()
    assert 0.4 < switches < 0.6


def test_statistics_are_close_to_the_originals(tmp_path, shared_data):
    """The original: 60 instances, 53 % random next, 922 masked of 60 x 20."""
    vocab_file = shared_data / "vocab" / "bert-base-uncased-vocab.txt"
    text = shared_data / "pretraining_text" / "sample_text.txt"
    totals = dict.fromkeys(["instances", "random_next", "masked"], 0)
    for seed in range(10):
        config = CreationConfig(
            *map(str, (text, tmp_path / "out", vocab_file)),
            dupe_factor=5,
            random_seed=seed,
        )
        counts = creation.create(config, 1)["counts"]
        totals["instances"] += counts["instances"]
        totals["random_next"] += counts["random_next"]
        totals["masked"] += sum(
            counts[f"masked_as_{kind}"] for kind in ("mask", "random", "kept")
        )
    assert 560 <= totals["instances"] <= 640
    assert 0.45 < totals["random_next"] / totals["instances"] < 0.61
    assert 14.5 < totals["masked"] / totals["instances"] < 16.2


@pytest.mark.parametrize(
    ("settings", "digest"),
    [
        ({}, "b2cc046f315980ce"),
        (
            {
                "next_sentence": False,
                "do_whole_word_mask": True,
                "short_seq_prob": 0.5,
            },
            "b5e16ec621207102",
        ),
    ],
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


def test_the_original_writes_the_same_features(shared_data):
    path = shared_data / "google_bert_outputs/pretraining/tf_examples.tfrecord"
    schema = make_config(max_seq_length=128).schema
    assert records.check_first_record(str(path), schema)


JSONL = {"input_format": "jsonl"}


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        ("\n \n", {}, "text.txt has only blank lines"),
        ("", {}, "only blank lines"),
        ("wa\nwb\n", {}, "1 document. Put blank lines .*--nonext_sentence"),
        ("wa\n\nwb\n\nwc\n", {}, "3 documents of 1 sentence. Put .*--nonext"),
        ("wa\nwb\n\nwc\xff\n", {}, r"text\.txt:4: byte 0xff"),
        ('{"text": "wa\\nwb"}', JSONL, r"1 document\. Pass --nonext_sentence"),
        (
            '{"text": "wa"}\n{"text": "wb"}',
            JSONL,
            r"End each sentence in 'text' with \\n or",
        ),
        ('{"text": "wa"}\n{"txt": 1}', JSONL, r"text\.txt:2: .*'text'"),
        (
            "wa\nwb\n\nwc\n",
            {"output": ",".join(f"{{}}/{i}" for i in range(99))},
            "instances for 99 files",
        ),
    ],
)
def test_unusable_texts_leave_existing_files(
    tmp_path, vocab_file, text, settings, message
):
    path = tmp_path / "text.txt"
    path.write_bytes(text.encode("latin-1"))
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "0").write_bytes(b"old")
    settings = {"output": "{}/0", **settings}
    settings["output"] = settings["output"].replace("{}", str(folder))
    config = make_config(path, vocab_file=vocab_file, **settings)
    with pytest.raises(InputError, match=message):
        creation.create(config, 1)
    assert files_in(folder) == {pathlib.Path("0"): b"old"}
    assert list(folder.iterdir()) == [folder / "0"]


def test_invalid_utf8_can_be_replaced(tmp_path, vocab_file):
    text = tmp_path / "text.txt"
    text.write_bytes(b"wa\nwb\n\nwc\xff\nwd\n")
    config = make_config(text, tmp_path / "out", vocab_file, errors="replace")
    assert creation.create(config, 1)["counts"]["tokens"] == 4


def test_paths_that_cannot_be_written(tmp_path, vocab_file):
    text = write_text(tmp_path / "text.txt")
    output = text / "not a folder" / "out"
    with pytest.raises(InputError, match="Cannot write"):
        creation.create(make_config(text, output, vocab_file), 1)


# Checks of the text and of the instances.

FINE = {
    "tokens": 1000,
    "sentences": 100,
    "unknown_tokens": 100,
    "sentences_longer_than_an_instance": 3,
    "tokens_beyond_an_instance": 50,
    "instances": 100,
    "random_next": 75,
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
        ("random_next", 76, "76 % of the instances have a random next"),
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


def test_suspicious_texts_are_warned_of(tmp_path, vocab_file, caplog):
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(["wa"] * 40 + ["zz\nzz"] * 9))
    creation.create(make_config(text, tmp_path / "out", vocab_file), 1)
    warnings = [r.message for r in caplog.records if r.levelname == "WARNING"]
    assert "31 % of the tokens are [UNK]" in warnings[0]
    assert "% of the instances have a random next sentence" in warnings[1]


# What other jobs read from the manifest.


def test_casing_and_next_sentences_are_read_from_manifests(tmp_path):
    paths = [str(tmp_path / name) for name in ("a", "b", "c")]
    assert creation.casing_of(paths) == {}
    cased = {"do_lower_case": False, "strip_accents": None}
    all_settings = [cased, {**cased, "next_sentence": True}, {**cased}]
    all_settings[2] |= {"do_lower_case": True, "next_sentence": False}
    for path, settings in zip(paths[:2], all_settings, strict=False):
        text = json.dumps({"settings": settings})
        files.write_text(files.manifest_path(path), text)
    assert creation.casing_of(paths) == cased
    creation.require_next_sentence(paths)
    text = json.dumps({"settings": all_settings[2]})
    files.write_text(files.manifest_path(paths[2]), text)
    assert creation.casing_of(paths) == {}
    with pytest.raises(InputError, match=f"{paths[2]} was made with --nonext"):
        creation.require_next_sentence(paths)
