import dataclasses
import json
import os
import re
import shlex
import subprocess

import pytest
from interop.small_models import CONFIG, pretrained

from bert_tf import files
from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.interop.checkpoint import (
    Pretrained,
    find_unsupported,
    local_file,
    unsupported_format,
    with_metadata,
    write_metadata,
)

EMPTY = Pretrained("there", {})


# Pretrained


@pytest.mark.parametrize("field", ["head", "problem_type", "objective"])
def test_refuses_an_unknown_name(field):
    message = rf"there: {field} must be one of .*; got 'tail'\."
    with pytest.raises(InputError, match=message):
        Pretrained("there", {}, **{field: "tail"})


def test_trained_with_contains_known_values_only():
    assert EMPTY.trained_with == {}
    known = {"max_seq_length": 7, "version_2_with_negative": False}
    assert Pretrained("there", {}, **known).trained_with == known


# The files beside a checkpoint


@pytest.mark.parametrize("act", ["gelu_tanh", "gelu_erf", "relu"])
def test_metadata_is_read_as_it_was_written(tmp_path, act):
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
    write_metadata(str(tmp_path), whole)
    read = with_metadata(EMPTY, str(tmp_path))
    assert dataclasses.replace(whole, path="there", weights={}) == read
    assert read.config.hidden_act == act


def test_config_and_vocabulary_have_googles_format(tmp_path):
    write_metadata(str(tmp_path), pretrained("encoder"))
    config = json.loads((tmp_path / "bert_config.json").read_text())
    assert config["hidden_act"] == "gelu"
    assert BertConfig.from_dict(config) == CONFIG
    lines = (tmp_path / "vocab.txt").read_text().split("\n")
    assert lines[:3] == ["[PAD]", "[UNK]", "[CLS]"]
    assert lines[-1] == ""


def test_unknown_values_are_not_written(tmp_path):
    write_metadata(str(tmp_path), EMPTY)
    assert list(tmp_path.iterdir()) == []
    assert with_metadata(EMPTY, str(tmp_path)) == EMPTY


def test_reads_a_published_config_with_other_keys(tmp_path):
    values = CONFIG.to_dict() | {"directionality": "bidi", "pooler_type": "x"}
    (tmp_path / "bert_config.json").write_text(json.dumps(values))
    assert with_metadata(EMPTY, str(tmp_path)).config == CONFIG


def test_reads_a_vocabulary_as_editors_save_it(tmp_path):
    (tmp_path / "vocab.txt").write_bytes("\ufeffa\r\n b \r\n".encode())
    assert with_metadata(EMPTY, str(tmp_path)).vocab == ("a", "b")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"do_lower_case": "yes"}, "do_lower_case must be bool; got 'yes'"),
        ({"labels": "abc"}, "labels must be a list of strings; got 'abc'"),
        ({"labels": ["a", 1]}, "labels must be a list of strings"),
        ({"head": "hand"}, r"one of encoder.*'hand'"),
        ({"problem_type": 1}, "problem_type must be str"),
        ({"classifier_dropout": "0"}, "classifier_dropout must be float"),
        ({"max_seq_length": True}, "max_seq_length must be int; got True"),
        ([1], "a JSON object"),
    ],
)
def test_refuses_wrong_metadata(tmp_path, values, message):
    (tmp_path / "bert_tf.json").write_text(json.dumps(values))
    with pytest.raises(InputError, match=message) as raised:
        with_metadata(EMPTY, str(tmp_path))
    assert "\n" not in str(raised.value)


def test_logs_unknown_keys_with_the_nearest_known(tmp_path, caplog):
    values = {"do_lowercase": False, "mood": 3, "head": "span"}
    path = tmp_path / "bert_tf.json"
    path.write_text(json.dumps(values))
    read = with_metadata(EMPTY, str(tmp_path))
    assert read == dataclasses.replace(EMPTY, head="span")
    assert [record.getMessage() for record in caplog.records] == [
        f"{path}: ignoring the unknown key 'do_lowercase'. Did you mean "
        "'do_lower_case'?",
        f"{path}: ignoring the unknown key 'mood'.",
    ]


# Local copies


def test_remote_files_are_copied_for_the_block(tmp_path):
    with local_file(str(tmp_path / "a.keras")) as local:
        assert local == str(tmp_path / "a.keras")
    path = "ram://copies/a.keras"
    with files.atomic_writer(path) as file:
        file.write(b"abc" * 99)
    with local_file(path) as local:
        assert local.endswith(".keras")
        with open(local, "rb") as copy:
            assert copy.read() == b"abc" * 99
    assert not os.path.exists(local)
    with pytest.raises(InputError, match="ram://copies/none"):
        local_file("ram://copies/none").__enter__()


# Weight files that are never opened


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ([], None),
        (["config.json", "vocab.txt", "model.safetensors"], None),
        (["bert_model.ckpt.index", "bert_model.ckpt.data-00000-of-1"], None),
        (["optimizer.pt", "pytorch_model.bin", "a.bin"], "pytorch_model.bin"),
        (["tf_model.h5", "flax_model.msgpack"], "tf_model.h5"),
        (["flax_model.msgpack", "config.json"], "flax_model.msgpack"),
        (["b.pt", "a.ckpt"], "a.ckpt"),
        (["pytorch_model.bin.index.json", "b-1-of-1.bin"], "b-1-of-1.bin"),
    ],
)
def test_finds_the_most_likely_weight_file(names, found):
    assert find_unsupported(names) == found


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("pytorch_model.bin", "is a pickle, and opening one runs code"),
        ("model.ckpt", "is a pickle, and opening one runs code"),
        ("tf_model.h5", "is the TensorFlow format"),
        ("tf_model-00001-of-00002.h5", "is the TensorFlow format"),
        ("flax_model.msgpack", "is the Flax format"),
    ],
)
def test_says_why_a_file_is_refused_and_how_to_convert_it(name, reason):
    """tests/backends/test_transformers.py runs the command for pickles."""
    message = str(unsupported_format(f"some folder/{name}"))
    assert "\n" not in message
    assert message.startswith("some folder has no model.safetensors; ")
    assert f"{name} {reason}" in message
    [command] = re.findall("python -c .*$", message)
    _, _, code, *arguments = shlex.split(command)
    compile(code, "command", "exec")
    assert arguments[0].startswith("some folder")


@pytest.mark.parametrize(
    "name", ["pytorch_model.bin", "tf_model.h5", "flax_model.msgpack"]
)
def test_the_command_never_executes_a_path(tmp_path, name):
    """Shell and Python pass the path on, whatever characters are in it."""
    folder = f"{tmp_path}/$(touch a)`touch b`\"';touch c;'\\"
    path = f"{folder}/{name.replace('.', '$(touch d).')}"
    message = str(unsupported_format(path, "owner/name"))
    [_, command] = message.split(" environment with ", 1)[1].split(": ", 1)
    # Stand-ins for the programs print their arguments.
    shell = 'hf() { printf "%s\\n" "$@"; }; python() { hf "$@"; }; ' + command
    done = subprocess.run(
        ["sh", "-c", shell], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.iterdir())
    words = done.stdout.splitlines()
    option = words.index("-c")
    assert words[:option] == ["download", "owner/name", "--local-dir", folder]
    code, argument = words[option + 1 : option + 3]
    assert str(tmp_path) not in code
    assert argument == (path if name.endswith(".bin") else folder)


@pytest.mark.parametrize(
    ("content", "is_pickle"),
    [
        (b"\x80\x02}q\x00.", True),
        (b"PK\x03\x04", True),
        (b"", False),
        (b"model_checkpoint_path: 7", False),
        (b"\0P", False),
    ],
)
@pytest.mark.parametrize("name", ["model.ckpt", "pytorch_model.bin"])
def test_reads_the_first_bytes_of_a_pickle(tmp_path, name, content, is_pickle):
    path = tmp_path / name
    path.write_bytes(content)
    message = str(unsupported_format(str(path)))
    assert ("is a pickle" in message) == is_pickle
    assert (f"{path}: not a TF1 checkpoint" in message) == (not is_pickle)


def test_an_unknown_hdf5_file_is_not_transformers(tmp_path):
    message = str(unsupported_format("folder/weights.h5"))
    assert message.startswith("folder/weights.h5: this HDF5 file is from an")
    assert "transformers" not in message
