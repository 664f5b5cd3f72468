"""Tests of BertConfig: values, files and the errors a user may meet."""

import dataclasses
import json
import re

import pytest

from bert_tf.config import ACTIVATIONS, ATTENTION_DIRECTIONS, BertConfig
from bert_tf.errors import InputError

GOOGLE_KEYS = {
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "hidden_act",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "max_position_embeddings",
    "type_vocab_size",
    "initializer_range",
}
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


def write(folder, text):
    path = folder / "bert_config.json"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_defaults_are_the_originals():
    config = BertConfig.from_dict({"vocab_size": 11})
    assert config == BertConfig(
        vocab_size=11,
        hidden_size=768,
        num_hidden_layers=12,
        num_attention_heads=12,
        intermediate_size=3072,
        hidden_act="gelu_tanh",
        hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.1,
        max_position_embeddings=512,
        type_vocab_size=16,
        initializer_range=0.02,
        attention_direction="bidirectional",
    )


def test_is_frozen_and_hashable():
    with pytest.raises(dataclasses.FrozenInstanceError):
        UNUSUAL.vocab_size = 3
    assert len({UNUSUAL, dataclasses.replace(UNUSUAL)}) == 1


@pytest.mark.parametrize("config", [UNUSUAL, LEFT_TO_RIGHT])
def test_every_field_survives_the_round_trip_through_a_file(tmp_path, config):
    path = write(tmp_path, config.to_json_string())
    assert BertConfig.from_json_file(path) == config
    assert BertConfig.from_json_file(str(path)) == config


def test_to_dict_has_googles_keys():
    assert set(UNUSUAL.to_dict()) == GOOGLE_KEYS


def test_what_google_has_no_key_for_is_told_where_it_is_unusual():
    told = LEFT_TO_RIGHT.to_dict()
    assert told.pop("attention_direction") == "left_to_right"
    assert told == UNUSUAL.to_dict()
    assert LEFT_TO_RIGHT.is_left_to_right
    assert not UNUSUAL.is_left_to_right


@pytest.mark.parametrize("value", ["right_to_left", "LEFT_TO_RIGHT", None, 1])
def test_an_unknown_direction_is_told_those_there_are(value):
    with pytest.raises(InputError) as error:
        dataclasses.replace(UNUSUAL, attention_direction=value)
    assert str(error.value) == (
        "attention_direction must be one of "
        f"{' or '.join(ATTENTION_DIRECTIONS)}; got {value!r}."
    )


def test_to_json_string_is_indented_sorted_and_ends_in_a_newline():
    text = UNUSUAL.to_json_string()
    assert text.startswith('{\n  "attention_probs_dropout_prob": 0.2,\n')
    assert text.endswith('"vocab_size": 97\n}\n')
    assert list(json.loads(text)) == sorted(GOOGLE_KEYS)


@pytest.mark.parametrize(
    ("word", "activation"),
    [
        ("gelu", "gelu_tanh"),
        ("GELU", "gelu_tanh"),
        ("gelu_tanh", "gelu_tanh"),
        ("gelu_erf", "gelu_erf"),
        ("ReLU", "relu"),
        ("tanh", "tanh"),
        ("linear", "linear"),
        ("", "linear"),
        (None, "linear"),
    ],
)
def test_reads_the_activations_of_googles_files(word, activation):
    config = BertConfig.from_dict({"vocab_size": 11, "hidden_act": word})
    assert config.hidden_act == activation


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_survive_the_round_trip(activation):
    config = dataclasses.replace(UNUSUAL, hidden_act=activation)
    assert BertConfig.from_dict(config.to_dict()) == config


def test_writes_the_tanh_gelu_as_google_calls_it():
    tanh = dataclasses.replace(UNUSUAL, hidden_act="gelu_tanh")
    erf = dataclasses.replace(UNUSUAL, hidden_act="gelu_erf")
    assert tanh.to_dict()["hidden_act"] == "gelu"
    assert erf.to_dict()["hidden_act"] == "gelu_erf"


def test_the_constructor_reads_gelu_as_google_does():
    config = BertConfig(11, hidden_act="gelu")
    assert config.hidden_act == "gelu_tanh"
    assert config == BertConfig(11)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (name, value)
        for name in (
            "vocab_size",
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "intermediate_size",
            "max_position_embeddings",
            "type_vocab_size",
        )
        for value in (0, -7, 2.0, "7", True, None)
    ]
    + [
        (name, value)
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob")
        for value in (-0.1, 1, 1.0, "0.1", True, None, float("nan"))
    ]
    + [
        ("initializer_range", value)
        for value in (0, -0.02, "0.02", None, float("inf"), float("nan"))
    ]
    + [("hidden_act", value) for value in ("gelo", 3, ["relu"])],
)
def test_refuses_a_wrong_value_and_names_field_and_value(name, value):
    with pytest.raises(InputError) as error:
        dataclasses.replace(UNUSUAL, **{name: value})
    assert str(error.value).startswith(f"{name} must be ")
    assert str(error.value).endswith(f"; got {value!r}.")
    assert "\n" not in str(error.value)


def test_the_bounds_themselves_are_allowed():
    config = dataclasses.replace(
        UNUSUAL, hidden_dropout_prob=0, attention_probs_dropout_prob=0.0
    )
    assert config.hidden_dropout_prob == 0
    assert BertConfig(1, hidden_size=1, num_attention_heads=1).vocab_size == 1


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("num_hidden_layers", 1_000),
        ("vocab_size", 10_000_000),
        ("hidden_size", 10_000_000),
        ("max_position_embeddings", 10_000_000),
    ],
)
def test_refuses_sizes_that_no_machine_has_room_for(tmp_path, name, most):
    path = write(tmp_path, json.dumps({"vocab_size": 11, name: most + 1}))
    place = rf"{path}: {name} must be at most {most:,}; got {most + 1}."
    with pytest.raises(InputError, match=f"^{place}"):
        BertConfig.from_json_file(path)


def test_refuses_sizes_that_are_too_large_together(tmp_path):
    sizes = {"vocab_size": 10_000_000, "hidden_size": 120_000}
    path = write(tmp_path, json.dumps(sizes))
    message = rf"{path}: .* at most 100,000,000,000 weights.*make [\d,]+"
    with pytest.raises(InputError, match=message):
        BertConfig.from_json_file(path)
    # As deep as a network was ever trained, and as large a vocabulary.
    BertConfig(1_000_000, 1024, num_hidden_layers=1_000, num_attention_heads=16)


def test_an_unknown_activation_is_told_the_list():
    with pytest.raises(InputError, match=", ".join(ACTIVATIONS[:-1])):
        BertConfig.from_dict({"vocab_size": 11, "hidden_act": "swish"})


def test_heads_must_divide_the_width():
    """In a file and in a model; the constructor alone takes it, as Google's."""
    config = BertConfig(vocab_size=99, hidden_size=37)
    message = r"hidden_size=37, num_attention_heads=12"
    with pytest.raises(InputError, match=message):
        config.check_heads()
    with pytest.raises(InputError, match=message):
        BertConfig.from_dict(config.to_dict())


def test_a_hugging_face_file_is_for_load_config(tmp_path):
    theirs = BertConfig(11).to_dict() | {"model_type": "bert"}
    path = write(tmp_path, json.dumps(theirs))
    with pytest.raises(InputError, match=r"Hugging Face.*load_config") as error:
        BertConfig.from_json_file(path)
    assert str(path) in str(error.value)


def test_an_unknown_key_is_an_error_with_a_hint():
    with pytest.raises(InputError, match="Did you mean 'num_hidden_layers'"):
        BertConfig.from_dict({"vocab_size": 11, "num_hiden_layers": 3})
    with pytest.raises(InputError, match=r"^'zzz' is not .* config\.$"):
        BertConfig.from_dict({"vocab_size": 11, "zzz": 3})


def test_the_unused_keys_of_published_files_are_ignored():
    values = {
        "directionality": "bidi",
        "pooler_fc_size": 768,
        "pooler_num_attention_heads": 12,
        "pooler_num_fc_layers": 3,
        "pooler_size_per_head": 128,
        "pooler_type": "first_token_transform",
    }
    config = BertConfig.from_dict(UNUSUAL.to_dict() | values)
    assert config == UNUSUAL


def test_vocab_size_has_no_default():
    with pytest.raises(InputError, match="'vocab_size'"):
        BertConfig.from_dict({"hidden_size": 768})


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path):
    path = write(tmp_path, "\ufeff" + UNUSUAL.to_json_string())
    assert BertConfig.from_json_file(path) == UNUSUAL


def test_a_missing_file_is_named(tmp_path):
    path = tmp_path / "absent.json"
    with pytest.raises(InputError, match=f"{re.escape(str(path))}: No such"):
        BertConfig.from_json_file(path)


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(InputError, match="Is a directory"):
        BertConfig.from_json_file(tmp_path)


def test_a_remote_path_goes_through_tensorflow(tmp_path):
    path = write(tmp_path, UNUSUAL.to_json_string())
    assert BertConfig.from_json_file(f"file://{path}") == UNUSUAL
    absent = f"file://{tmp_path}/absent.json"
    with pytest.raises(InputError, match=re.escape(absent)):
        BertConfig.from_json_file(absent)


def test_broken_json_is_reported_with_its_line(tmp_path):
    path = write(tmp_path, '{\n  "vocab_size": 11,\n  "hidden_size" 7\n}\n')
    place = re.escape(f"{path}:3: invalid JSON at column 17")
    with pytest.raises(InputError, match=place):
        BertConfig.from_json_file(path)


@pytest.mark.parametrize(("text", "kind"), [("[1]", "list"), ("3", "number")])
def test_json_that_is_no_object_is_refused(tmp_path, text, kind):
    path = write(tmp_path, text)
    place = re.escape(f"{path}: expected a JSON object, found a {kind}")
    with pytest.raises(InputError, match=place):
        BertConfig.from_json_file(path)


def test_bytes_that_are_no_text_are_refused(tmp_path):
    path = tmp_path / "bert_config.json"
    path.write_bytes(b'{"vocab_size": \xff}')
    with pytest.raises(InputError, match=r"expected UTF-8.*0xff"):
        BertConfig.from_json_file(path)


def test_a_wrong_value_in_a_file_names_the_file(tmp_path):
    path = write(tmp_path, '{"vocab_size": -11}')
    with pytest.raises(InputError, match=re.escape(f"{path}: vocab_size")):
        BertConfig.from_json_file(path)


def test_reads_published_files(shared_data):
    tiny = BertConfig.from_json_file(
        shared_data / "google_bert_outputs" / "bert_config.json"
    )
    assert tiny == BertConfig.from_name("tiny", vocab_size=30522)
    for path in shared_data.glob("**/bert_config.json"):
        assert BertConfig.from_json_file(path).type_vocab_size == 2


@pytest.mark.parametrize(
    ("name", "grid_name"),
    [
        ("tiny", "L-2_H-128_A-2"),
        ("mini", "L-4_H-256_A-4"),
        ("small", "L-4_H-512_A-8"),
        ("medium", "L-8_H-512_A-8"),
        ("base", "L-12_H-768_A-12"),
        ("large", "L-24_H-1024_A-16"),
    ],
)
def test_named_sizes(name, grid_name):
    config = BertConfig.from_name(name, 101)
    assert config == BertConfig.from_name(grid_name, 101)
    assert config.intermediate_size == 4 * config.hidden_size
    assert config.type_vocab_size == 2
    assert config.vocab_size == 101


@pytest.mark.parametrize("layers", [2, 4, 6, 8, 10, 12])
@pytest.mark.parametrize("hidden_size", [128, 256, 512, 768])
def test_the_small_models_need_no_heads_in_their_names(layers, hidden_size):
    name = f"L-{layers}_H-{hidden_size}"
    config = BertConfig.from_name(name, vocab_size=30522)
    assert config.num_attention_heads == hidden_size // 64
    assert config == BertConfig.from_name(
        f"{name}_A-{hidden_size // 64}", 30522
    )


def test_a_width_without_heads_of_64_needs_them_in_the_name():
    with pytest.raises(InputError, match="not a multiple of 64") as error:
        BertConfig.from_name("L-2_H-100", vocab_size=11)
    assert "L-2_H-100_A-2" in str(error.value)
    assert BertConfig.from_name("L-2_H-100_A-2", 11).num_attention_heads == 2


@pytest.mark.parametrize(
    "row",
    [
        (3, 768, 12),
        (6, 768, 3),
        (6, 768, 12),
        (12, 768, 12),
        (12, 1024, 16),
        (24, 1024, 16),
    ],
)
def test_the_papers_ablation_sizes(row):
    layers, hidden_size, heads = row
    name = f"L-{layers}_H-{hidden_size}_A-{heads}"
    config = BertConfig.from_name(name, vocab_size=30522)
    assert config.num_hidden_layers == layers
    assert config.hidden_size == hidden_size
    assert config.num_attention_heads == heads


@pytest.mark.parametrize(
    "name", ["bas", "L-0_H-128_A-2", "L-2_A-2", "uncased_L-2_H-128_A-2", ""]
)
def test_an_unknown_size_is_told_the_names(name):
    with pytest.raises(InputError, match=f"medium, base.*got '{name}'"):
        BertConfig.from_name(name, vocab_size=11)


@pytest.mark.parametrize(
    ("name", "vocab_size", "encoder", "with_heads"),
    [
        ("base", 30522, 109_482_240, 110_106_428),
        ("base", 28996, 108_310_272, 108_932_934),
        ("large", 30522, 335_141_888, 336_226_108),
        ("large", 28996, 333_579_264, 334_661_958),
        ("tiny", 30522, 4_385_920, None),
        ("mini", 30522, 11_170_560, None),
        ("small", 30522, 28_763_648, None),
        ("medium", 30522, 41_373_184, None),
        ("base", 21128, 102_267_648, None),
        ("base", 119547, 177_853_440, None),
        ("base", 105879, 167_356_416, None),
    ],
)
def test_num_parameters(name, vocab_size, encoder, with_heads):
    config = BertConfig.from_name(name, vocab_size)
    assert config.num_parameters() == encoder
    if with_heads:
        assert config.num_parameters(with_pretraining_heads=True) == with_heads


def test_num_parameters_by_hand():
    """One of everything: V 5, S 3, T 2, H 2, I 7, one layer."""
    config = BertConfig(
        5,
        hidden_size=2,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=7,
        max_position_embeddings=3,
        type_vocab_size=2,
    )
    embeddings = 5 * 2 + 3 * 2 + 2 * 2 + 4
    layer = 4 * (4 + 2) + 4 + (2 * 7 + 7) + (7 * 2 + 2) + 4
    pooler = 4 + 2
    heads = (4 + 2) + 4 + 5 + (2 * 2 + 2)
    assert config.num_parameters() == embeddings + layer + pooler
    both = config.num_parameters(with_pretraining_heads=True)
    assert both == embeddings + layer + pooler + heads
