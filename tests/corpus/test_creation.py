import hashlib
import json
import os
import pathlib
import re

import numpy as np
import pytest
import tensorflow as tf

from bert_tf import files
from bert_tf.corpus import creation
from bert_tf.corpus import text as text_module
from bert_tf.corpus.settings import CreationConfig, PieceSizes
from bert_tf.data import records
from bert_tf.errors import InputError
from tests.text_corpora import SPECIALS, WORDS, write_text

# They make many pieces of work of a small text.
SMALL = PieceSizes(sentences=11, instances=23)


def make_config(text, output, vocab_file, **settings):
    settings = {"max_seq_length": 31, "dupe_factor": 3, **settings}
    return CreationConfig(str(text), str(output), str(vocab_file), **settings)


def read(paths, config):
    """All records, parsed as the original does."""
    spec = {
        feature.name: tf.io.FixedLenFeature(feature.shape, feature.dtype)
        for feature in config.schema
    }
    rows = []
    for path in map(str, paths):
        kind = "GZIP" if path.endswith(".gz") else ""
        for record in tf.data.TFRecordDataset(path, kind):
            rows.append(tf.io.parse_single_example(record, spec))
    return {name: np.stack([row[name] for row in rows]) for name in spec}


def files_in(folder):
    return {
        path.relative_to(folder): path.read_bytes()
        for path in sorted(pathlib.Path(folder).rglob("*"))
        if path.is_file()
    }


def test_any_number_of_workers_writes_the_same(
    tmp_path, vocab_file, monkeypatch
):
    monkeypatch.setattr(text_module, "BLOCK_BYTES", 1500)
    write_text(tmp_path / "a.txt")
    write_text(tmp_path / "b.txt.gz", seed=1)
    text = f"{tmp_path}/a.txt,{tmp_path}/*.gz"
    written = []
    for num_workers in 1, 2, 7:
        folder = tmp_path / f"{num_workers}_workers"
        output = f"{folder}/x.tfrecord,{folder}/y.tfrecord.gz"
        config = make_config(text, output, vocab_file)
        creation.create(config, num_workers, SMALL)
        written.append(files_in(folder))
        # The manifest names the folder, which is another one each time.
        manifest = pathlib.Path("manifest.x.tfrecord.json")
        as_text = written[-1][manifest].decode()
        written[-1][manifest] = as_text.replace(str(folder), "")
    assert len(written[0]) == 3
    assert written[0] == written[1] == written[2]


def test_json_lines_make_the_records_of_their_text(tmp_path, vocab_file):
    text = write_text(tmp_path / "text.txt")
    lines = [
        json.dumps({"title": "x", "body": document})
        for document in text.read_text().split("\n\n")
    ]
    (tmp_path / "lines.jsonl").write_text("\n".join(lines))
    config = make_config(text, tmp_path / "a", vocab_file)
    creation.create(config, 1, SMALL)
    config = make_config(
        tmp_path / "lines.jsonl",
        tmp_path / "b",
        vocab_file,
        input_format="jsonl",
        jsonl_field="body",
    )
    creation.create(config, 1, SMALL)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_the_casing_of_records_is_in_their_manifest(tmp_path):
    paths = [str(tmp_path / name) for name in ("a", "b", "c")]
    assert creation.casing_of(paths) == {}
    cased = {"do_lower_case": False, "strip_accents": None}
    for path in paths[:2]:
        manifest = {"settings": {**cased, "random_seed": 3}}
        files.write_text(files.manifest_path(path), json.dumps(manifest))
    assert creation.casing_of(paths) == cased
    other = {"settings": {**cased, "do_lower_case": True}}
    files.write_text(files.manifest_path(paths[2]), json.dumps(other))
    assert creation.casing_of(paths) == {}


def test_records_without_next_sentences_are_known(tmp_path):
    paths = [str(tmp_path / name) for name in ("old", "with", "without")]
    for path, given in zip(paths, ({}, True, False), strict=True):
        settings = {} if given == {} else {"next_sentence": given}
        text = json.dumps({"settings": settings})
        files.write_text(files.manifest_path(path), text)
    creation.require_next_sentence([*paths[:2], str(tmp_path / "no manifest")])
    with pytest.raises(InputError, match=f"as {paths[2]} was made"):
        creation.require_next_sentence(paths)


def test_records_are_what_the_manifest_says(tmp_path, vocab_file):
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
        assert entry["sha256"] == hashlib.sha256(data).hexdigest()
    assert manifest["inputs"] == [
        {"path": str(text), "bytes": os.path.getsize(text)}
    ]
    counts = manifest["counts"]
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


def test_places_that_tensorflow_reaches(tmp_path, vocab_file):
    text = write_text(tmp_path / "text.txt.gz")
    tf.io.gfile.copy(str(text), "ram://folder/text.txt.gz", overwrite=True)
    local, remote = tmp_path / "out.gz", "ram://folder/out.gz"
    creation.create(make_config(text, local, vocab_file), 1)
    creation.create(make_config("ram://folder/*.gz", remote, vocab_file), 2)
    with tf.io.gfile.GFile(remote, "rb") as file:
        assert file.read() == local.read_bytes()
    assert sorted(tf.io.gfile.listdir("ram://folder")) == [
        "manifest.out.gz.json",
        "out.gz",
        "text.txt.gz",
    ]


def unmasked(rows):
    """The input ids before masking."""
    ids = rows["input_ids"].copy()
    line, slot = np.nonzero(rows["masked_lm_weights"])
    ids[line, rows["masked_lm_positions"][line, slot]] = rows["masked_lm_ids"][
        line, slot
    ]
    return ids


def test_segments_are_runs_of_the_text(tmp_path, vocab_file):
    text = write_text(tmp_path / "text.txt")
    config = make_config(text, tmp_path / "out", vocab_file)
    creation.create(config, 1)
    rows = read([tmp_path / "out"], config)
    vocab = SPECIALS + WORDS
    whole = text.read_text().replace("\n\n", " | ").split()
    pieces = " ".join(
        " ".join([word[:2], *(f"##{digit}" for digit in word[2:])])
        for word in whole
    )
    for ids, mask in zip(unmasked(rows), rows["input_mask"], strict=True):
        tokens = " ".join(vocab[i] for i in ids[mask.astype(bool)])
        assert tokens.startswith("[CLS] ")
        a, b = tokens.removesuffix(" [SEP]")[6:].split(" [SEP] ")
        assert a in pieces
        assert b in pieces


def test_single_segments(tmp_path, vocab_file):
    text = tmp_path / "text.txt"
    text.write_text("wa wb wc\n" * 50)  # One document will do.
    config = make_config(
        text, tmp_path / "out", vocab_file, next_sentence=False
    )
    manifest = creation.create(config, 1)
    rows = read([tmp_path / "out"], config)
    assert not rows["next_sentence_labels"].any()
    assert not rows["segment_ids"].any()
    cls, sep = SPECIALS.index("[CLS]"), SPECIALS.index("[SEP]")
    ids = unmasked(rows)
    assert (ids[:, 0] == cls).all()
    assert ((ids == sep).sum(axis=1) == 1).all()
    last = rows["input_mask"].sum(axis=1) - 1
    assert (ids[np.arange(len(ids)), last] == sep).all()
    counts = manifest["counts"]
    specials = 2 * counts["instances"]
    assert counts["instance_tokens"] - specials == 3 * counts["tokens"]


def test_the_seed_decides(tmp_path, vocab_file):
    text = write_text(tmp_path / "text.txt")
    data = []
    for name, seed in ("a", 1), ("b", 1), ("c", 2):
        output = tmp_path / name
        creation.create(
            make_config(text, output, vocab_file, random_seed=seed), 1
        )
        data.append(output.read_bytes())
    assert data[0] == data[1] != data[2]


def test_instances_of_all_documents_are_mixed(tmp_path, vocab_file):
    text = tmp_path / "text.txt"
    text.write_text("wa wa wa wa\n" * 300 + "\n" + "wb wb wb wb\n" * 300)
    config = make_config(text, tmp_path / "out", vocab_file)
    creation.create(config, 1)
    ids = unmasked(read([tmp_path / "out"], config))
    is_a = ids[:, 1] == SPECIALS.index("[unused1]") + 1
    assert 0.3 < is_a.mean() < 0.7
    switches = (is_a[1:] != is_a[:-1]).mean()
    assert 0.4 < switches < 0.6


def test_much_like_the_original_on_its_sample(tmp_path, shared_data):
    """The original: 60 instances, 53 % random next, 922 masked of 60 x 20."""
    vocab_file = shared_data / "vocab" / "bert-base-uncased-vocab.txt"
    text = shared_data / "pretraining_text" / "sample_text.txt"
    output = tmp_path / "out"
    totals = dict.fromkeys(["instances", "random_next", "masked"], 0)
    for seed in range(10):
        config = CreationConfig(
            *map(str, (text, output, vocab_file)),
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


def test_the_original_writes_the_same_features(shared_data):
    theirs = (
        shared_data / "google_bert_outputs/pretraining/tf_examples.tfrecord"
    )
    config = make_config("", "", "", max_seq_length=128)
    assert records.check_first_record(str(theirs), config.schema)


JSONL = {"input_format": "jsonl"}


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        ("\n \n", {}, "nothing but blank lines"),
        ("", {}, "nothing but blank lines"),
        ("wa\nwb\n", {}, "Received: 1 document.*--nonext_sentence"),
        ("wa\n\nwb\n\nwc\n", {}, "3 documents of 1 sentence.*--nonext"),
        ("wa\nwb\n\nwc\xff\n", {}, r"0xff at .*text\.txt:4"),
        ('{"text": "wa\\nwb"}', JSONL, r"1 document; pass --nonext_sentence"),
        (
            '{"text": "wa"}\n{"text": "wb"}',
            JSONL,
            r"end each sentence in 'text' with \\n, or",
        ),
        ('{"text": "wa"}\n{"txt": 1}', JSONL, r"'txt' at .*text\.txt:2"),
    ],
)
def test_texts_of_which_nothing_can_be_made(
    tmp_path, vocab_file, text, settings, message
):
    path = tmp_path / "text.txt"
    path.write_bytes(text.encode("latin-1"))
    output = tmp_path / "out" / "old"
    output.parent.mkdir()
    output.write_bytes(b"old")
    with pytest.raises(InputError, match=message):
        creation.create(make_config(path, output, vocab_file, **settings), 1)
    assert files_in(output.parent) == {pathlib.Path("old"): b"old"}
    assert list(output.parent.iterdir()) == [output]


def test_bytes_that_are_not_utf8_can_be_replaced(tmp_path, vocab_file):
    text = tmp_path / "text.txt"
    text.write_bytes(b"wa\nwb\n\nwc\xff\nwd\n")
    config = make_config(text, tmp_path / "out", vocab_file, errors="replace")
    assert creation.create(config, 1)["counts"]["tokens"] == 4


def test_more_files_than_instances_are_refused(tmp_path, vocab_file):
    text = tmp_path / "text.txt"
    text.write_text("wa\nwb\n\nwc\n")
    output = ",".join(f"{tmp_path}/out/{i}" for i in range(99))
    config = make_config(text, output, vocab_file)
    with pytest.raises(InputError, match="instances for 99 files"):
        creation.create(config, 1)
    assert not files_in(tmp_path / "out")


def test_a_vocabulary_without_mask_is_refused(tmp_path):
    text = write_text(tmp_path / "text.txt")
    vocab_file = tmp_path / "vocab.txt"
    vocab_file.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\nwa\n")
    with pytest.raises(InputError, match=r"\[MASK\]"):
        creation.create(make_config(text, tmp_path / "o", vocab_file), 1)


def test_places_that_cannot_be_written_are_told(tmp_path, vocab_file):
    text = write_text(tmp_path / "text.txt")
    output = text / "is_no_folder" / "out"
    with pytest.raises(InputError, match="Cannot write"):
        creation.create(make_config(text, output, vocab_file), 1)


@pytest.mark.parametrize(
    ("words", "next_sentence", "warning"),
    [
        # 28 fit, beside 40 lines of one word: 12 of 80 tokens are lost ...
        (40, True, "1 of 41 lines are longer .* 15 % of all tokens: is"),
        (30, True, None),  # ... 2 of 70 tokens.
        (40, False, None),
    ],
)
def test_lines_that_are_no_sentences_are_warned_of(
    tmp_path, vocab_file, caplog, words, next_sentence, warning
):
    text = tmp_path / "text.txt"
    text.write_text("wa\n" * 40 + "\n" + "wb " * words)
    creation.create(
        make_config(
            text, tmp_path / "out", vocab_file, next_sentence=next_sentence
        ),
        1,
    )
    said = [r.message for r in caplog.records if "longer" in r.message]
    assert len(said) == bool(warning)
    assert all(re.search(warning, line) for line in said)


def test_suspicious_texts_are_warned_of(tmp_path, vocab_file, caplog):
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(["wa"] * 40 + ["zz\nzz"] * 9))
    creation.create(make_config(text, tmp_path / "out", vocab_file), 1)
    warnings = [r.message for r in caplog.records if r.levelname == "WARNING"]
    assert "31 % of the tokens are [UNK]" in warnings[0]
    assert "% of the instances have a random next sentence" in warnings[1]
