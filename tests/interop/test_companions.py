"""What lies beside a checkpoint: written, read, and read with suspicion."""

import dataclasses
import json

import pytest
from interop.small_models import CONFIG, pretrained

from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.interop.checkpoint import (
    Pretrained,
    with_companions,
    write_companions,
)

NOTHING = Pretrained("there", {})


@pytest.mark.parametrize("act", ["gelu_tanh", "gelu_erf", "relu"])
def test_what_was_written_is_read(tmp_path, act):
    config = dataclasses.replace(CONFIG, hidden_act=act)
    whole = pretrained(
        "classifier",
        config,
        do_lower_case=False,
        strip_accents=True,
        problem_type="multi_label_classification",
        classifier_dropout=0.25,
        max_seq_length=7,
        version_2_with_negative=False,
    )
    write_companions(str(tmp_path), whole)
    read = with_companions(NOTHING, str(tmp_path))
    assert dataclasses.replace(whole, path="there", weights={}) == read
    assert read.config.hidden_act == act


def test_the_config_and_the_vocabulary_are_googles(tmp_path):
    write_companions(str(tmp_path), pretrained("encoder"))
    config = json.loads((tmp_path / "bert_config.json").read_text())
    assert config["hidden_act"] == "gelu"
    assert BertConfig.from_dict(config) == CONFIG
    lines = (tmp_path / "vocab.txt").read_text().split("\n")
    assert lines[:3] == ["[PAD]", "[UNK]", "[CLS]"]
    assert lines[-1] == ""


def test_what_is_not_known_is_not_written(tmp_path):
    write_companions(str(tmp_path), NOTHING)
    assert list(tmp_path.iterdir()) == []
    assert with_companions(NOTHING, str(tmp_path)) == NOTHING


def test_a_published_config_with_other_keys(tmp_path):
    values = CONFIG.to_dict() | {"directionality": "bidi", "pooler_type": "x"}
    (tmp_path / "bert_config.json").write_text(json.dumps(values))
    assert with_companions(NOTHING, str(tmp_path)).config == CONFIG


@pytest.mark.parametrize("text", ["a\nb", "a\nb\n", "\ufeffa\r\n b \r\n"])
def test_a_vocabulary_as_editors_leave_it(tmp_path, text):
    (tmp_path / "vocab.txt").write_text(text, encoding="utf-8", newline="")
    assert with_companions(NOTHING, str(tmp_path)).vocab == ("a", "b")


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"do_lower_case": "yes"}, r"do_lower_case to be bool.*'yes'"),
        ({"labels": "abc"}, r"labels to be a list of words.*'abc'"),
        ({"labels": ["a", 1]}, r"labels to be a list of words"),
        ({"head": "hand"}, r"one of encoder.*'hand'"),
        ({"problem_type": "x"}, r"as problem_type. Received: 'x'"),
        ({"problem_type": 1}, "problem_type to be str"),
        ({"classifier_dropout": "0"}, "classifier_dropout to be float"),
        ({"max_seq_length": True}, "max_seq_length to be int.*True"),
        ({"version_2_with_negative": 1}, "version_2_with_negative to be bool"),
        ([1], "a JSON object"),
    ],
)
def test_facts_that_cannot_be(tmp_path, facts, message):
    (tmp_path / "bert_tf.json").write_text(json.dumps(facts))
    with pytest.raises(InputError, match=message) as raised:
        with_companions(NOTHING, str(tmp_path))
    assert "\n" not in str(raised.value)


def test_unknown_facts_are_logged_with_the_name_that_was_meant(
    tmp_path, caplog
):
    facts = {"do_lowercase": False, "mood": 3, "head": "span"}
    (tmp_path / "bert_tf.json").write_text(json.dumps(facts))
    read = with_companions(NOTHING, str(tmp_path))
    assert read == dataclasses.replace(NOTHING, head="span")
    path = tmp_path / "bert_tf.json"
    assert [record.getMessage() for record in caplog.records] == [
        f"{path}: ignoring the unknown key 'do_lowercase'; did you mean "
        "'do_lower_case'?",
        f"{path}: ignoring the unknown key 'mood'",
    ]
