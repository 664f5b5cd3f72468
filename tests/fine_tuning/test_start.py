"""What the flags name and what the checkpoint brings, put together."""

import json

import numpy as np
import pytest

from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.fine_tuning.start import (
    Start,
    casing_of_name,
    find_start,
    open_start,
    require_length,
)
from bert_tf.interop.companions import write_companions
from bert_tf.interop.pretrained import Pretrained
from bert_tf.training import checkpoints

VOCAB = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b")
CONFIG = BertConfig(
    vocab_size=7,
    hidden_size=4,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=5,
    max_position_embeddings=11,
)


@pytest.fixture
def release(tmp_path):
    """Makes a release: its weights are one table, which is all we look at."""

    def make(folder="release", rows=7, **facts):
        folder = tmp_path / folder
        folder.mkdir()
        prefix = str(folder / "bert_model.ckpt")
        table = {"bert/embeddings/word_embeddings": np.zeros([rows, 4], "f")}
        checkpoints.write(prefix, table)
        write_companions(str(folder), Pretrained(prefix, {}, **facts))
        return prefix

    return make


@pytest.fixture
def named(tmp_path):
    """A configuration and a vocabulary that the command line names."""
    config, vocab = tmp_path / "shape.json", tmp_path / "words.txt"
    config.write_text(CONFIG.to_json_string(), encoding="utf-8")
    vocab.write_text("\n".join(VOCAB), encoding="utf-8")
    return {"bert_config_file": str(config), "vocab_file": str(vocab)}


def test_a_release_brings_everything(release):
    prefix = release(
        config=CONFIG,
        vocab=VOCAB,
        do_lower_case=False,
        strip_accents=True,
        labels=("no", "yes"),
        head="classifier",
    )
    assert find_start(prefix) == Start(
        CONFIG, VOCAB, False, True, prefix, ("no", "yes"), "classifier"
    )


def test_old_command_lines_name_everything(release, named):
    prefix = release()
    assert find_start(prefix, do_lower_case=False, **named) == Start(
        CONFIG, VOCAB, False, None, prefix, head="encoder"
    )


def test_random_weights_need_no_checkpoint(named):
    assert find_start(None, **named) == Start(CONFIG, VOCAB, True, None, None)


def test_what_is_named_goes_before_what_is_brought(release, named):
    other = (*VOCAB[:-1], "c")
    start = find_start(release(config=CONFIG, vocab=other), **named)
    assert start.vocab == VOCAB


@pytest.mark.parametrize(
    ("missing", "flag"),
    [
        ("bert_config_file", "expected --bert_config_file, or --init_ch"),
        ("vocab_file", "expected --vocab_file, or --init_checkpoint"),
    ],
)
def test_says_what_is_nowhere(release, named, missing, flag):
    del named[missing]
    with pytest.raises(InputError, match=flag) as error:
        find_start(None, **named)
    assert str(error.value).endswith("Received: neither")
    with pytest.raises(InputError, match="which has none"):
        find_start(release(), **named)


def test_a_checkpoint_of_more_words_than_the_configuration(release, named):
    with pytest.raises(InputError, match=r"of 7 words.*release.*with 8;"):
        find_start(release(rows=8), **named)


def test_more_words_than_the_model_knows(named, tmp_path):
    longer = "\n".join([*VOCAB, "c"])
    (tmp_path / "words.txt").write_text(longer, encoding="utf-8")
    with pytest.raises(InputError, match=r"at most 7 tokens in .*words.txt"):
        find_start(None, **named)


@pytest.mark.parametrize("known", [True, False])
def test_casing_that_contradicts_the_checkpoint(release, known):
    prefix = release(config=CONFIG, vocab=VOCAB, do_lower_case=known)
    assert find_start(prefix).do_lower_case is known
    assert find_start(prefix, do_lower_case=known).do_lower_case is known
    with pytest.raises(InputError) as error:
        find_start(prefix, do_lower_case=not known)
    expected, received = str(known).lower(), str(not known).lower()
    assert f"expected --do_lower_case={expected}" in str(error.value)
    assert f"Received: --do_lower_case={received}" in str(error.value)


def test_casing_that_contradicts_the_name(release, named):
    prefix = release("cased_L-12_H-768_A-12")
    assert find_start(prefix, **named).do_lower_case is False
    with pytest.raises(InputError, match="is cased"):
        find_start(prefix, do_lower_case=True, **named)


def test_casing_of_a_huggingface_config(release, tmp_path):
    prefix = release(config=CONFIG, vocab=VOCAB)
    facts = {"do_lower_case": True}
    path = tmp_path / "release" / "bert_tf.json"
    path.write_text(json.dumps(facts), encoding="utf-8")
    with pytest.raises(InputError, match="is uncased"):
        find_start(prefix, do_lower_case=False)


@pytest.mark.parametrize(
    ("path", "casing"),
    [
        ("uncased_L-12_H-768_A-12/bert_model.ckpt", True),
        ("/models/cased_L-24_H-1024_A-16/bert_model.ckpt", False),
        ("wwm_uncased_L-24_H-1024_A-16/bert_model.ckpt", True),
        ("wwm_cased_L-24_H-1024_A-16/bert_model.ckpt", False),
        ("multi_cased_L-12_H-768_A-12/bert_model.ckpt", False),
        ("multilingual_L-12_H-768_A-12/bert_model.ckpt", True),
        ("chinese_L-12_H-768_A-12/bert_model.ckpt", True),
        ("uncased_L-2_H-128_A-2/bert_model.ckpt", True),
        ("uncased/cased_L-12/bert_model.ckpt", False),
        ("models/bert-base-cased", False),
        ("models/bert-base-uncased/", True),
        ("gs://bucket/uncased_L-4_H-256_A-4/bert_model.ckpt", True),
        ("showcased/bert_model.ckpt", None),
        ("release/bert_model.ckpt", None),
        ("bert_model.ckpt", None),
    ],
)
def test_casing_of_a_name(path, casing):
    assert casing_of_name(path) is casing


def test_too_long_for_the_positions():
    require_length(11, CONFIG)
    with pytest.raises(InputError, match=r"at most 11.*Received: 12"):
        require_length(12, CONFIG)


# The head of a checkpoint.


class Task:
    head = "classifier"
    bilstm_head = False
    problem_type = "single_label_classification"
    labels = ("no", "yes", "maybe")


@pytest.fixture
def classifier(tmp_path):
    """A checkpoint with a head of three outputs, and what is known of it."""

    def make(bilstm=False, **facts):
        prefix = str(tmp_path / "bert_model.ckpt")
        tensors = {
            "bert/pooler/dense/bias": np.zeros(4, "f"),
            "output_weights": np.zeros([3, 4], "f"),
            "output_bias": np.zeros(3, "f"),
        }
        if bilstm:
            tensors["bilstm/forward_lstm/lstm_cell/bias"] = np.zeros(16, "f")
        checkpoints.write(prefix, tensors)
        facts = {"labels": Task.labels, **facts}
        write_companions(str(tmp_path), Pretrained(prefix, {}, **facts))
        return prefix

    return make


def opened(path, **changes):
    task = type("Other", (Task,), changes)
    return [
        open_start(path, config=CONFIG, task=task, is_trained=is_trained)
        for is_trained in (True, False)
    ]


@pytest.mark.parametrize(
    "labels", [("no", "yes", "maybe"), ("maybe", "no", "yes"), None]
)
def test_a_head_of_the_same_task_is_taken(classifier, labels):
    for weights in opened(classifier(labels=labels)):
        assert "output_weights" in weights.shapes


def test_a_bilstm_goes_with_its_head(classifier):
    path = classifier(bilstm=True)
    for weights in opened(path, bilstm_head=True):
        assert "bilstm/forward_lstm/lstm_cell/bias" in weights.shapes
    task = type("Other", (Task,), {"bilstm_head": True, "labels": ("a", "b")})
    weights = open_start(path, config=CONFIG, task=task, is_trained=True)
    assert [*weights.shapes] == ["bert/pooler/dense/bias"]


def test_labels_without_names_are_anybodys(classifier):
    numbers = ("LABEL_0", "LABEL_1", "LABEL_2")
    for weights in opened(classifier(labels=numbers)):
        assert "output_bias" in weights.shapes


def test_labels_of_other_names_are_learned_anew(classifier, caplog):
    caplog.set_level("WARNING", "absl")
    path = classifier(labels=("a", "b", "c"))
    trained, used = opened(path)
    assert list(trained.shapes) == ["bert/pooler/dense/bias"]
    assert "a new one is trained: whose labels are a, b, c" in caplog.text
    assert "output_weights" in used.shapes


@pytest.mark.parametrize(
    ("facts", "changes", "words"),
    [
        ({}, {"labels": ("a", "b")}, "a head of 3 outputs, not 2"),
        ({}, {"labels": ()}, "a head of 3 outputs, not 1"),
        ({"head": "token"}, {}, "whose head is token, not classifier"),
        ({}, {"bilstm_head": True}, "which has no BiLSTM below it"),
        ({"bilstm": True}, {}, "which has a BiLSTM below it"),
        (
            {"problem_type": "multi_label_classification"},
            {},
            "whose problem type is multi_label_classification, not single_",
        ),
    ],
)
def test_a_head_of_another_task(classifier, facts, changes, words):
    path = classifier(**facts)
    with pytest.raises(InputError, match=words) as error:
        opened(path, **changes)
    assert "or give --do_train" in str(error.value)
    task = type("Other", (Task,), changes)
    weights = open_start(path, config=CONFIG, task=task, is_trained=True)
    assert [*weights.shapes] == ["bert/pooler/dense/bias"]
