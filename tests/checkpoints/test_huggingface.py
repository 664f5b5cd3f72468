"""Hugging Face folders and their config.json."""

import dataclasses
import json
import os

import numpy as np
import pytest

from bert_tf.base import files
from bert_tf.checkpoints import huggingface
from bert_tf.checkpoints.huggingface import config_values
from bert_tf.checkpoints.huggingface_names import DECODER, HEADS
from bert_tf.checkpoints.huggingface_weights import INDEX, WHOLE, TensorFiles
from bert_tf.config import ACTIVATIONS, BertConfig
from tests.checkpoints.small_models import (
    CONFIG,
    VOCAB,
    Arrays,
    arrays,
    assert_same,
    config_dict,
    pretrained,
    refused,
    slots,
    their_tensors,
    write_folder,
    write_json,
    write_shards,
)

LEFT_TO_RIGHT = dataclasses.replace(CONFIG, attention_direction="left_to_right")
WORDS = "bert.embeddings.word_embeddings.weight"


@pytest.mark.parametrize("head", HEADS)
def test_writes_and_reads_what_transformers_writes(tmp_path, golden, head):
    layouts = json.loads((golden / "transformers_layout.json").read_text())
    theirs = layouts[HEADS[head].architecture]
    labels = None if head == "classifier" else pretrained(head).labels
    huggingface.write(str(tmp_path), pretrained(head, labels=labels))
    assert {path.name for path in tmp_path.iterdir()} == {
        *("config.json", "model.safetensors"),
        *("tokenizer_config.json", "vocab.txt"),
    }
    tensors = TensorFiles(str(tmp_path / "model.safetensors"))
    shapes = {n: "x".join(map(str, s)) for n, s in tensors.shapes.items()}
    assert shapes == theirs["tensors"]
    assert {tensors.dtype(name) for name in shapes} == {"F32"}
    config = json.loads((tmp_path / "config.json").read_text())
    assert list(config) == sorted(config)
    # A key that only older versions read, and settings of text generation.
    more = {"position_embedding_type": "absolute"}
    generation = {"bos_token_id": None, "eos_token_id": None, "use_cache": True}
    assert config | generation == theirs["config"] | more
    values = theirs["config"]
    assert read(tmp_path, values) == CONFIG
    assert huggingface._labels(values) == labels
    parts = {*HEADS[head].parts, "pooler"}
    assert huggingface._head(values, parts, "there") == head


def test_reads_the_files_in_any_form(tmp_path, monkeypatch):
    folder = write_folder(tmp_path)
    expected = pretrained("pretraining", vocab=None, do_lower_case=None)
    monkeypatch.chdir(tmp_path)
    for path in (folder, ".", "model.safetensors"):
        assert_same(huggingface.read(path), expected)
    os.rename("model.safetensors", "other.safetensors")
    assert_same(huggingface.read(f"{folder}/other.safetensors"), expected)
    write_shards(tmp_path, their_tensors(), count=7)
    for path in (folder, f"{folder}/model.safetensors.index.json"):
        assert_same(huggingface.read(path), expected)


def test_reads_remote_folders():
    before = pretrained("classifier")
    files.makedirs("ram://huggingface")
    huggingface.write("ram://huggingface", before)
    assert huggingface.find_weights("ram://huggingface")
    assert_same(huggingface.read("ram://huggingface"), before)


def test_weights_are_read_on_access_and_never_shared(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.delattr(TensorFiles, "read")
        weights = huggingface.read(write_folder(tmp_path)).weights
    weights["bert/pooler/dense/kernel"][:] = 0
    assert weights["bert/pooler/dense/kernel"].any()


def test_writes_neither_an_optimizer_nor_other_heads(tmp_path):
    weights = Arrays(arrays("pretraining") | arrays("token"))
    weights = Arrays(weights | slots(weights))
    given = pretrained("masked_lm", weights=weights, labels=("a", "b"))
    huggingface.write(str(tmp_path), given)
    assert "id2label" not in (tmp_path / "config.json").read_text()
    written = TensorFiles(str(tmp_path / "model.safetensors")).shapes
    assert written.keys() == their_tensors("masked_lm").keys()


@pytest.mark.parametrize(
    ("vocab", "expected"),
    [(None, 0), ((*VOCAB[1:], "[PAD]"), 22), (VOCAB[1:], None)],
)
def test_writes_the_id_of_padding(tmp_path, vocab, expected):
    huggingface.write(str(tmp_path), pretrained("encoder", vocab=vocab))
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["pad_token_id"] == expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": ("a", "b")}, "has 5 elements, .* needs 2"),
        ({"config": LEFT_TO_RIGHT}, "'bidirectional'; got 'left_to_right'"),
        (
            {"weights": Arrays(output_bias=np.full(5, 0.1))},
            "float32 cannot represent",
        ),
    ],
)
def test_writes_nothing_if_a_model_is_invalid(tmp_path, change, message):
    given = dataclasses.replace(pretrained("classifier"), **change)
    with refused(message):
        huggingface.write(str(tmp_path), given)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("names", "found", "message"),
    [
        (["x.index", WHOLE], WHOLE, "config.json: No such"),
        ([INDEX], INDEX, "config.json: No such"),
        (["pytorch_model.bin"], "pytorch_model.bin", "is a pickle"),
        (["config.json", "tf_model.h5", "x.index"], None, "config.json:1"),
        (["adapter_config.json"], "adapter_config.json", "PEFT adapters, not"),
    ],
)
def test_recognizes_a_folder(tmp_path, names, found, message):
    for name in names:
        (tmp_path / name).touch()
    expected = found and f"{tmp_path}/{found}"
    assert huggingface.find_weights(str(tmp_path)) == expected
    with refused(message):
        huggingface.read(str(tmp_path))


@pytest.mark.parametrize(
    ("head", "difference", "message"),
    [
        ("encoder", None, None),
        ("masked_lm", 0, None),
        ("masked_lm", 1, "differs from"),
        ("masked_lm", None, "tie_word_embeddings is false"),
    ],
)
def test_an_untied_matrix_must_be_the_embeddings(
    tmp_path, head, difference, message
):
    tensors = their_tensors(head)
    if difference is not None:
        tensors[DECODER] = tensors[WORDS] + difference
    values = config_dict(head, tie_word_embeddings=False)
    folder = write_folder(tmp_path, tensors, values)
    if message is None:
        assert huggingface.read(folder).head == head
    else:
        with refused(f"{tmp_path}.*{message}"):
            huggingface.read(folder)


def read(tmp_path, values):
    write_json(tmp_path, "config.json", values)
    return huggingface.read_config(str(tmp_path / "config.json"))


def test_reads_the_oldest_configs(tmp_path):
    """They are Google's. Absent keys have the defaults of transformers."""
    found = read(tmp_path, {"vocab_size": 7, "directionality": "bidi"})
    assert found == BertConfig(7, hidden_act="gelu_erf", type_vocab_size=2)


def test_reads_and_writes_activations(tmp_path):
    other_names = {"gelu_python": "gelu_erf", "gelu_fast": "gelu_tanh"}
    for theirs, ours in other_names.items():
        values = config_dict(hidden_act=theirs)
        assert read(tmp_path, values).hidden_act == ours
    for act in ACTIVATIONS:
        config = dataclasses.replace(CONFIG, hidden_act=act)
        values = config_values(pretrained("encoder", config))
        assert read(tmp_path, values) == config
        theirs = {"gelu_tanh": "gelu_new", "gelu_erf": "gelu"}
        assert values["hidden_act"] == theirs.get(act, act)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("model_type", "roberta", "model_type must be 'bert'; got 'roberta'"),
        ("hidden_act", "silu", "hidden_act must be one of .*; got 'silu'"),
        ("layer_norm_eps", 1e-5, "layer_norm_eps must be 1e-12; got 1e-05"),
        ("position_embedding_type", "relative_key", "'relative_key'"),
        ("is_decoder", True, "is_decoder must be False; got True"),
        ("classifier_dropout", "0.1", "classifier_dropout must be a number"),
        ("id2label", {"0": "a", "2": "b"}, "id2label must be an object"),
        ("architectures", ["BertLMHeadModel"], "without BertLMHeadModel"),
        ("hidden_size", 127, "hidden_size"),
    ],
)
def test_refuses_configs_of_other_models(tmp_path, key, value, message):
    with refused(rf"{tmp_path}/config\.json.*{message}"):
        read(tmp_path, config_dict() | {key: value})


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({"0": "LABEL_0", "1": "LABEL_1"}, None),
        ({"0": "LABEL_1", "1": "LABEL_0"}, ("LABEL_1", "LABEL_0")),
        ({str(n): n for n in range(10, -1, -1)}, (*"0123456789", "10")),
        ({}, None),
    ],
)
def test_reads_labels_in_the_order_of_their_numbers(labels, expected):
    """LABEL_0, LABEL_1 and so on are not names."""
    assert huggingface._labels({"id2label": labels}) == expected


def test_the_config_has_to_fit_the_weights(tmp_path):
    for change, message in (
        ({"id2label": {"0": "a", "1": "b"}}, "5 elements, .* needs 2"),
        ({"architectures": ["BertForMaskedLM"]}, "no masked_lm, which is part"),
        ({"architectures": ["BertForMultipleChoice"]}, "5 elements, .* 1"),
    ):
        values = config_dict("classifier") | change
        folder = write_folder(tmp_path, config=values, head="classifier")
        with refused(f"{tmp_path}.*{message}"):
            huggingface.read(folder)


def test_an_unknown_class_is_ignored(tmp_path):
    tensors = their_tensors("encoder") | {"crf.end": np.ones(7, "float32")}
    values = config_dict("encoder", architectures=["BertCRF"])
    found = huggingface.read(write_folder(tmp_path, tensors, values))
    assert found.head == "encoder"
    assert found.weights.shapes["crf.end"] == (7,)


@pytest.mark.parametrize(
    ("architectures", "parts", "head"),
    [
        (None, {"encoder"}, "encoder"),
        ([], HEADS["pretraining"].parts, "pretraining"),
        (None, {"encoder", "masked_lm"}, "masked_lm"),
        (None, {"encoder", "span"}, "span"),
        (None, {"encoder", "classes"}, "token"),
        (None, {"encoder", "pooler", "classes"}, None),
        (None, {"encoder", "pooler", "classes", "masked_lm"}, None),
        (["BertModel"], {"encoder"}, "encoder"),
        # bert-base-uncased is published as a BertForMaskedLM.
        (["BertForMaskedLM"], HEADS["pretraining"].parts, "pretraining"),
    ],
)
def test_class_and_weights_determine_the_head(architectures, parts, head):
    values = {"architectures": architectures}
    assert huggingface._head(values, parts, "there") == head
