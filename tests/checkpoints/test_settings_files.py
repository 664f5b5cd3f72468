"""JSON files of downloaded models: malformed files are refused by name."""

import os

import pytest

from bert_tf.checkpoints.pretrained import open_pretrained
from tests.checkpoints.small_models import (
    VOCAB,
    refused,
    write_folder,
    write_json,
)

MODULES = "modules.json"
POOLING = "1_Pooling/config.json"
TRANSFORMER = "sentence_bert_config.json"
SETTINGS = "config_sentence_transformers.json"
TOKENIZER = "tokenizer_config.json"
WHOLE = "tokenizer.json"
METADATA = "bert_tf.json"
FILES = {
    MODULES: [{"type": "x.Transformer", "path": ""}],
    POOLING: {},
    TRANSFORMER: {},
    SETTINGS: {},
    TOKENIZER: {},
    WHOLE: {
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {"[UNK]": 0},
        }
    },
    "added_tokens.json": {},
    METADATA: {},
}


@pytest.fixture
def folder(tmp_path):
    """A folder of sentence-transformers with all files."""
    made = tmp_path / "hub" / "models" / "snapshots" / "1"
    made.mkdir(parents=True)
    write_folder(made, head="encoder")
    (made / "vocab.txt").write_text("\n".join(VOCAB))
    (made / "1_Pooling").mkdir()
    for name, values in FILES.items():
        write_json(made, name, values)
    modules = [{"type": "x.Pooling", "path": "1_Pooling"}]
    write_json(made, MODULES, FILES[MODULES] + modules)
    return made


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        (MODULES, {}, "expected a list; got {}"),
        (MODULES, [{"type": 7, "path": ""}], "expected a list of modules"),
        (POOLING, {"pooling_mode": []}, "pooling_mode must be a name or a"),
        (POOLING, {"pooling_mode_cls_token": "no"}, "must be true, false or"),
        (TRANSFORMER, {"max_seq_length": 1.5}, "must be a positive integer"),
        (TRANSFORMER, {"modality_config": 7}, "must be an object; got 7"),
        (SETTINGS, {"prompts": {"q": 5}}, "whose values are strings"),
        (SETTINGS, {"similarity_fn_name": []}, r"must be a string; got \[\]"),
        (TOKENIZER, {"model_max_length": 10**400}, "must be a positive int"),
        ("added_tokens.json", {"x": 1e30}, "strings with integer ids"),
        (METADATA, {"do_lower_case": "yes"}, "must be true, false or null"),
        (METADATA, {"labels": ["a", 1]}, "labels must be a list of strings"),
        (METADATA, {"labels": ["\ud800"]}, "half of a surrogate pair"),
        (METADATA, {"head": "hand"}, "head must be one of 'encoder'.*'hand'"),
    ],
)
def test_refuses_a_wrong_value(folder, name, values, message):
    write_json(folder, name, values)
    place = folder if name == "added_tokens.json" else name
    with refused(f"{place}: .*{message}"):
        open_pretrained(folder)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("content", [b"7", b"\xff", b"[" * 10_000])
def test_refuses_a_file_that_is_not_an_object(folder, name, content):
    (folder / name).write_bytes(content)
    with refused(f"{name}(: |:1: )"):
        open_pretrained(folder)


@pytest.mark.parametrize("length", [1e30, 10**30, None])
def test_a_huge_length_is_no_limit(folder, length):
    write_json(folder, TOKENIZER, {"model_max_length": length})
    assert open_pretrained(folder).max_seq_length == 19


@pytest.mark.parametrize(
    "path", ["../secret", "1_Pooling/../../s", "/etc", "..\\s", "ram://s"]
)
def test_modules_stay_in_the_folder(folder, path):
    secret = folder.parent / "secret"
    secret.mkdir()
    write_json(secret, "config.json", {"pooling_mode": "max"})
    entries = [{"type": "x.Pooling", "path": path}]
    write_json(folder, MODULES, FILES[MODULES] + entries)
    with refused(f"{folder}: '.*config.json' must be a path within this"):
        open_pretrained(folder)


@pytest.mark.parametrize(
    "name", [*FILES, "config.json", "vocab.txt", "model.safetensors"]
)
@pytest.mark.parametrize("kind", ["pipe", "directory", "device", "broken"])
def test_refuses_folders_and_pipes(folder, name, kind):
    path = folder / name
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero" if kind == "device" else "nowhere")
    with refused(str(path)):
        open_pretrained(folder)
