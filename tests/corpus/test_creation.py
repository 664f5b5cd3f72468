import dataclasses
import gzip
import hashlib
import json
import os
import re

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.base import files
from bert_tf.corpus import creation
from bert_tf.corpus import text as text_module
from bert_tf.corpus.settings import (
    CLUSTER_SIZES,
    DEFAULT_SIZES,
    CreationConfig,
    PieceSizes,
)
from bert_tf.data import pipeline, records
from bert_tf.errors import InputError
from tests.corpus import engine_checks
from tests.text_corpora import SPECIALS, WORDS, write_text

# They divide a small text into many pieces of work.
SMALL = PieceSizes(sentences=11, instances=23)


def make_config(text="a", output="b", vocab_file="c", **settings):
    settings = {"max_seq_length": 31, "dupe_factor": 3, **settings}
    return CreationConfig(str(text), str(output), str(vocab_file), **settings)


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
        ("x,y, ./x", "output ./x would overwrite the output x"),
        ("q/x,q/manifest.x.json", "manifest q/manifest.x.json would overwrite"),
    ]:
        with pytest.raises(InputError, match=re.escape(message)):
            make_config(output=output).output_paths(["a"])


def test_the_vocabulary_of_a_job(write):
    for size, dtype in (256, np.uint8), (257, np.uint16), (2**17, np.uint32):
        words = [*SPECIALS, *(f"x{number}" for number in range(size - 6))]
        config = make_config(vocab_file=write("\n".join(words), f"{size}.txt"))
        assert creation.load_vocabulary(config).token_dtype == dtype
    config = make_config(vocab_file=write("[PAD]\n[UNK]\nwa\n"))
    with pytest.raises(InputError, match=r"\[CLS\].*\[SEP\].*\[MASK\]"):
        creation.load_vocabulary(config)


def read(paths, config):
    """All records of several files."""
    parts = [pipeline.load(str(path), config.schema).arrays for path in paths]
    return {k: np.concatenate([part[k] for part in parts]) for k in parts[0]}


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
    masked = [counts[f"masked_as_{how}"] for how in ("mask", "random", "kept")]
    assert sum(masked) == rows["masked_lm_weights"].sum()
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
    [
        ({}, "b2cc046f315980ce"),
        ({"random_seed": 1}, "372e9179c6b7ac43"),
        (SINGLE, "b5e16ec621207102"),
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


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        (b"\n \n", {}, "text.txt` has only blank lines"),
        (b"wa\n\nwb\n\nwc\n", {}, r"3 document\(s\), 3 .*Put .*`next_"),
        (
            b'{"text": "wa\\nwb"}',
            {"input_format": "jsonl"},
            r"1 document\(s\), 2 .*End each sentence in 'text' with \\n or",
        ),
    ],
)
def test_texts_without_pairs(write, vocab_file, text, settings, message):
    path = write(text, "text.txt")
    config = make_config(path, f"{path}.out", vocab_file, **settings)
    with pytest.raises(InputError, match=message):
        creation.create(config, 1)


@engine_checks.UNUSABLE
def test_unusable_texts_leave_existing_files(
    tmp_path, vocab_file, text, outputs, message
):
    engine_checks.assert_existing_files_are_left(
        lambda config: creation.create(config, 1),
        make_config(vocab_file=vocab_file),
        tmp_path,
        text,
        outputs,
        message,
    )


@pytest.mark.parametrize(
    ("line", "counts", "warning"),
    [
        ("wa " * 29, (2, 41, 1, 1, 1), None),
        ("wa " * 31, (2, 43, 1, 1, 3), "1 of 4 lines are longer"),
        ("zz " * 5, (2, 17, 6, 0, 0), "35 % of the tokens are [UNK]"),
    ],
)
def test_suspicious_texts_are_warned_of(
    write, vocab_file, warnings, line, counts, warning
):
    """An instance has 28 tokens; a single segment loses none."""
    path = write(f"wa wa wa\n{line}\n\nwa wa wa wa wa zz\nwa wa wa\n")
    config = make_config(path, f"{path}.out", vocab_file)
    found = creation.create(config, 1)["counts"]
    names = (
        "documents",
        "tokens",
        "unknown_tokens",
        "sentences_longer_than_an_instance",
        "tokens_beyond_an_instance",
    )
    assert tuple(found[name] for name in names) == counts
    assert [warning in line for line in warnings] == [True] * bool(warning)
    warnings.clear()
    creation.create(dataclasses.replace(config, next_sentence=False), 1)
    assert len(warnings) == ("[UNK]" in str(warning))


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
