"""BertConfig: values, Google's files, and errors for wrong ones."""

import dataclasses
import re

import pytest

from bert_tf.config import ACTIVATIONS, BertConfig
from bert_tf.errors import InputError

# No value is a default, so that a forgotten field shows.
UNUSUAL = BertConfig(
    vocab_size=97,
    hidden_size=21,
    num_hidden_layers=5,
    num_attention_heads=7,
    intermediate_size=37,
    hidden_act="relu",
    hidden_dropout_prob=0.3,
    attention_probs_dropout_prob=0.2,
    max_position_embeddings=61,
    type_vocab_size=3,
    initializer_range=0.05,
)
LEFT_TO_RIGHT = dataclasses.replace(
    UNUSUAL, attention_direction="left_to_right"
)


def test_defaults_and_keys_are_googles():
    assert BertConfig.from_dict({"vocab_size": 11}).to_dict() == {
        "vocab_size": 11,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
        "max_position_embeddings": 512,
        "type_vocab_size": 16,
        "initializer_range": 0.02,
    }


def test_round_trip_through_a_file(write):
    acts = [dataclasses.replace(UNUSUAL, hidden_act=a) for a in ACTIVATIONS]
    for config in (LEFT_TO_RIGHT, *acts):
        text = config.to_json_string()
        assert text.startswith('{\n  "attention_')
        assert text.endswith('"vocab_size": 97\n}\n')
        path = write("\ufeff" + text)
        assert BertConfig.from_json_file(f"file://{path}") == config


def test_only_left_to_right_models_have_a_direction():
    values = LEFT_TO_RIGHT.to_dict()
    assert values.pop("attention_direction") == "left_to_right"
    assert values == UNUSUAL.to_dict()
    assert LEFT_TO_RIGHT.is_left_to_right
    assert not UNUSUAL.is_left_to_right


@pytest.mark.parametrize(
    ("word", "activation", "written"),
    [
        ("gelu", "gelu_tanh", "gelu"),
        ("GELU", "gelu_tanh", "gelu"),
        ("gelu_erf", "gelu_erf", "gelu_erf"),
        ("ReLU", "relu", "relu"),
        (None, "linear", "linear"),
    ],
)
def test_activations_have_googles_names(word, activation, written):
    config = BertConfig(11, hidden_act=word)
    assert config.hidden_act == activation
    assert config.to_dict()["hidden_act"] == written
    assert config == BertConfig.from_dict({"vocab_size": 11} | config.to_dict())


WRONG = {
    int: (0, 2.0, "7", True, None),
    float: (-0.1, 1, "0.1", True, None, float("nan")),
    str: ("gelo", 3, ["relu"]),
}


def test_wrong_values():
    """Of every field; the bounds are allowed."""
    for field in dataclasses.fields(BertConfig):
        for value in WRONG[field.type]:
            if (field.name, value) == ("initializer_range", 1):
                continue
            message = f"^{field.name} must be .*; got {re.escape(repr(value))}."
            with pytest.raises(InputError, match=message):
                dataclasses.replace(UNUSUAL, **{field.name: value})
    BertConfig(1, hidden_size=1, num_attention_heads=1, hidden_dropout_prob=0)
    BertConfig(10_000_000, 1024, num_attention_heads=16)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '{"vocab_size": 10000001}',
            ": vocab_size must be at most 10,000,000; got 10000001",
        ),
        (
            '{"vocab_size": 9, "hidden_size": 37}',
            "hidden_size=37, num_attention_heads=12",
        ),
        (
            '{"vocab_size": 11, "num_hiden_layers": 3}',
            "Did you mean 'num_hidden_layers'",
        ),
        ('{"hidden_size": 768}', "'vocab_size'"),
        (
            '{"vocab_size": 11, "model_type": "bert"}',
            "Hugging Face.*load_config",
        ),
        ('{\n  "hidden_size" 7\n}\n', ":2: invalid JSON at column 17"),
        (None, ": No such"),
    ],
)
def test_wrong_files_are_named(write, tmp_path, text, message):
    path = tmp_path / "absent.json" if text is None else write(text)
    with pytest.raises(InputError, match=f"{path}.*{message}"):
        BertConfig.from_json_file(path)


def test_unused_keys_of_published_files_are_ignored():
    unused = {"directionality": "bidi", "pooler_fc_size": 768}
    assert BertConfig.from_dict(UNUSUAL.to_dict() | unused) == UNUSUAL


def test_published_files(shared_data):
    path = shared_data / "google_bert_outputs" / "bert_config.json"
    tiny = BertConfig.from_json_file(path)
    assert tiny == BertConfig.from_name("tiny", vocab_size=30522)
    for path in shared_data.glob("**/bert_config.json"):
        assert BertConfig.from_json_file(path).type_vocab_size == 2


SIZES = {
    "tiny": (2, 128, 2),
    "mini": (4, 256, 4),
    "small": (4, 512, 8),
    "medium": (8, 512, 8),
    "base": (12, 768, 12),
    "large": (24, 1024, 16),
    # A small model, and a row of table 6.
    "L-10_H-256": (10, 256, 4),
    "L-6_H-768_A-3": (6, 768, 3),
}


def test_sizes_by_name():
    for name, (layers, width, heads) in SIZES.items():
        config = BertConfig.from_name(name, 101)
        found = dataclasses.astuple(config)[:5]
        assert found == (101, width, layers, heads, 4 * width)
        assert config.type_vocab_size == 2
    for name in ("bas", "L-0_H-128_A-2", "L-2_A-2", "", None):
        with pytest.raises(InputError, match=f"medium, base.*got {name!r}"):
            BertConfig.from_name(name, vocab_size=11)
    with pytest.raises(InputError, match=r"multiple of 64.*L-2_H-100_A-2"):
        BertConfig.from_name("L-2_H-100", vocab_size=11)
