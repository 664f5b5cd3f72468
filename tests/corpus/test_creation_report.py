import logging

import numpy as np
import pytest

from bert_tf.corpus import creation as report
from bert_tf.corpus.settings import CreationConfig
from bert_tf.corpus.text import EncodedBlock
from bert_tf.errors import InputError

FINE = {
    "documents": 7,
    "sentences": 100,
    "tokens": 1000,
    "unknown_tokens": 100,
    "sentences_longer_than_an_instance": 3,
    "tokens_beyond_an_instance": 50,
    "instances": 100,
    "random_next": 75,
}


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nwa\n")
    return CreationConfig("in.txt", "out", str(path), max_seq_length=7)


def test_tokens_are_counted(config):
    block = EncodedBlock(
        "a.txt",
        20,
        tokens=np.array([5, 1, 5, 5, 5, 5, 5, 1]),
        lengths=np.array([1, 6, 1]),
        breaks=np.array([0]),
    )
    assert report.token_counts(config, block) == {
        "tokens": 8,
        "sentences": 3,
        "unknown_tokens": 2,
        "sentences_longer_than_an_instance": 1,
        "tokens_beyond_an_instance": 2,
    }


@pytest.mark.parametrize(
    ("counts", "settings", "message"),
    [
        ({"sentences": 0}, {}, "blank lines in --input_file=in.txt"),
        ({"documents": 1}, {}, "1 document; put blank lines"),
        ({"documents": 1}, {"input_format": "jsonl"}, "document; pass --non"),
        ({"documents": 100}, {}, "100 documents of 1 sentence; leave blank"),
    ],
)
def test_texts_without_pairs_are_refused(config, counts, settings, message):
    settings = {"input_file": "in.txt", **settings}
    config = CreationConfig(
        output_file="out", vocab_file=config.vocab_file, **settings
    )
    report.check_text(config, FINE)
    with pytest.raises(InputError, match=message):
        report.check_text(config, {**FINE, **counts})


def test_single_segments_need_one_sentence_only(config):
    config = CreationConfig("in", "out", "vocab", next_sentence=False)
    report.check_text(config, {"documents": 1, "sentences": 1})


@pytest.mark.parametrize(
    ("name", "value", "warning"),
    [
        ("unknown_tokens", 101, "10 % of the tokens are [UNK]"),
        ("tokens_beyond_an_instance", 51, "3 of 100 lines are longer"),
        ("random_next", 76, "76 % of the instances have a random next"),
    ],
)
def test_what_is_seldom_meant_is_warned_of(
    config, caplog, name, value, warning
):
    caplog.set_level(logging.WARNING)
    report.check_instances(config, FINE)
    assert not caplog.records
    report.check_instances(config, {**FINE, name: value})
    [record] = caplog.records
    assert warning in record.message


def test_the_manifest_names_what_it_is_told(config):
    vocabulary = report.vocabulary_entry(config)
    assert vocabulary["size"] == 6
    shard = report.shard_entry("out", 3, "ab")
    manifest = report.manifest(
        config, vocabulary, {"b": 2, "a": 1}, [shard], FINE
    )
    assert manifest["inputs"] == [
        {"path": "b", "bytes": 2},
        {"path": "a", "bytes": 1},
    ]
    assert manifest["outputs"] == [
        {"path": "out", "records": 3, "sha256": "ab"}
    ]
    assert list(manifest["counts"]) == sorted(FINE)
    assert manifest["settings"]["max_seq_length"] == 7
