"""Our folders in Hugging Face's transformers, and theirs in our models.

Runs where torch and transformers are installed, on Keras's torch backend:

    KERAS_BACKEND=torch .venv-torch/bin/python -m pytest tests/backends
"""

import dataclasses
import json
import logging
import os
import pathlib
import re
import shlex
import subprocess
import sys

import numpy as np
import pytest

from bert_tf.errors import InputError
from bert_tf.interop import conversion, huggingface
from bert_tf.interop.checkpoint import HEADS, PROBLEM_TYPES
from bert_tf.interop.conversion import (
    probe_batch,
    run_transformers,
    verify,
)
from bert_tf.interop.huggingface import ARCHITECTURES
from bert_tf.interop.keras_files import build_model
from bert_tf.tokenization.wordpiece import FullTokenizer
from tests.interop.small_models import CONFIG, VOCAB, pretrained

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
save_pretrained = pytest.importorskip("tests.golden.make_transformers_layout")

ACTIVATIONS = {"gelu_tanh": "gelu_new", "gelu_erf": "gelu"}
AUTO = {
    "encoder": "AutoModel",
    "pretraining": "AutoModelForPreTraining",
    "masked_lm": "AutoModelForMaskedLM",
    "next_sentence": "AutoModelForNextSentencePrediction",
    "classifier": "AutoModelForSequenceClassification",
    "choice": "AutoModelForMultipleChoice",
    "token": "AutoModelForTokenClassification",
    "span": "AutoModelForQuestionAnswering",
}
GOLDEN = pathlib.Path(__file__).parent.parent / "golden"
TOLERANCE = 1e-5


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture
def warnings(caplog):
    """Lets transformers' log be seen; returns its warnings so far."""
    library = logging.getLogger("transformers")
    library.addHandler(caplog.handler)
    yield lambda: [
        r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING
    ]
    library.removeHandler(caplog.handler)


def outputs(checkpoint, probe):
    """What our model computes, as NumPy arrays."""
    computed = build_model(checkpoint)(dict(probe))
    return {name: x.detach().numpy() for name, x in computed.items()}


def gap(ours, theirs):
    return max(np.abs(ours[name] - theirs[name]).max() for name in theirs)


def random_model(name, **settings):
    """A model of transformers, in which no bias is 0 and no norm is 1."""
    torch.manual_seed(7)
    config = transformers.BertConfig(
        **save_pretrained.CONFIG | save_pretrained.CLASSES[name] | settings
    )
    model = getattr(transformers, name)(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("act", ACTIVATIONS)
def test_fidelity_of_what_is_written(tmp_path, warnings, fidelity, act, head):
    config = dataclasses.replace(CONFIG, hidden_act=act)
    checkpoint = pretrained(head, config)
    huggingface.write(str(tmp_path), checkpoint)
    model, info = getattr(transformers, AUTO[head]).from_pretrained(
        tmp_path, output_loading_info=True
    )
    assert type(model).__name__ == ARCHITECTURES[head]
    assert not any(info.values()), info
    assert not warnings()
    if checkpoint.labels:
        assert model.config.id2label == dict(enumerate(checkpoint.labels))
    probe = probe_batch(config, head)
    fidelity(
        "conversions: what we write, in transformers, all heads, both GELUs",
        gap(
            outputs(checkpoint, probe),
            run_transformers(str(tmp_path), head, probe),
        ),
        TOLERANCE,
    )


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("act", ACTIVATIONS)
def test_fidelity_of_what_is_read(tmp_path, fidelity, act, head):
    name = ARCHITECTURES[head]
    model = random_model(name, hidden_act=ACTIVATIONS[act])
    model.save_pretrained(tmp_path)
    checkpoint = huggingface.read(str(tmp_path))
    assert checkpoint.head == head
    assert checkpoint.config == dataclasses.replace(CONFIG, hidden_act=act)
    probe = probe_batch(checkpoint.config, head)
    fidelity(
        "conversions: what transformers writes, in our models, all heads, "
        "both GELUs",
        gap(
            outputs(checkpoint, probe),
            run_transformers(str(tmp_path), head, probe),
        ),
        TOLERANCE,
    )


def test_the_comparison_would_see_the_other_gelu(tmp_path):
    checkpoint = pretrained("encoder")
    huggingface.write(str(tmp_path), checkpoint)
    probe = probe_batch(CONFIG, "encoder")
    theirs = run_transformers(str(tmp_path), "encoder", probe)
    other = dataclasses.replace(CONFIG, hidden_act="gelu_erf")
    wrong = outputs(pretrained("encoder", other), probe)
    assert gap(wrong, theirs) > 10 * TOLERANCE


@pytest.mark.parametrize("head", ["pretraining", "token"])
def test_reads_shards_and_half_precision(tmp_path, head):
    model = random_model(ARCHITECTURES[head]).to(torch.bfloat16)
    model.save_pretrained(tmp_path, max_shard_size="2KB")
    shards = list(tmp_path.glob("model-*.safetensors"))
    assert len(shards) > 2
    probe = probe_batch(CONFIG, head)
    model.float().save_pretrained(tmp_path / "whole")
    theirs = run_transformers(str(tmp_path / "whole"), head, probe)
    ours = outputs(huggingface.read(str(tmp_path)), probe)
    assert gap(ours, theirs) <= TOLERANCE


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_verifies_half_precision(tmp_path, dtype):
    """In float32, as it is computed here."""
    model = random_model("BertForPreTraining").to(getattr(torch, dtype))
    model.save_pretrained(tmp_path)
    checks = checks_of(huggingface.read(str(tmp_path)), tmp_path / "out")
    assert len(checks) == 5
    assert all(check.holds for check in checks), [*map(str, checks)]


def checks_of(source, folder):
    """What --verify prints of a conversion into Hugging Face's format."""
    folder.mkdir()
    planned = conversion.plan(source, "huggingface")
    conversion.write(planned, str(folder))
    return verify(planned, huggingface.read(str(folder)))


@pytest.mark.parametrize(
    "change",
    [
        {"initializer_range": "wide"},
        {"pad_token_id": 99},
        {"id2label": {"0": 7, "1": 8}, "num_labels": "x"},
    ],
)
def test_what_transformers_cannot_run_is_skipped(tmp_path, change):
    checkpoint = pretrained("encoder")
    huggingface.write(str(tmp_path), checkpoint)
    values = json.loads((tmp_path / "config.json").read_text())
    source = huggingface.read(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps(values | change))
    read, written = checks_of(source, tmp_path / "out")[-2:]
    assert "skipped, transformers itself cannot run" in str(read)
    assert "\n" not in str(read)
    assert read.holds
    assert "ok" in str(written)


def test_what_was_added_to_a_vocabulary(tmp_path):
    """The ids of transformers' own files, old and new."""
    huggingface.write(str(tmp_path), pretrained("encoder", vocab=VOCAB[:20]))
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    tokenizer.add_tokens(["[E1]", "new"])
    tokenizer.add_special_tokens({"additional_special_tokens": ["<e2>"]})
    tokenizer.save_pretrained(tmp_path)
    found = huggingface.read(str(tmp_path)).vocab
    assert found == (*VOCAB[:20], "[E1]", "new", "<e2>")
    assert tokenizer.convert_tokens_to_ids(list(found)) == [*range(23)]


@pytest.mark.parametrize("problem_type", PROBLEM_TYPES)
def test_what_the_labels_mean(tmp_path, problem_type):
    checkpoint = pretrained(
        "classifier", problem_type=problem_type, classifier_dropout=0.25
    )
    huggingface.write(str(tmp_path), checkpoint)
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    assert config.problem_type == problem_type
    assert config.classifier_dropout == 0.25


@pytest.mark.parametrize("do_lower_case", [True, False])
@pytest.mark.parametrize("strip_accents", [True, False, None])
def test_the_tokenizer_is_the_same(
    tmp_path, warnings, do_lower_case, strip_accents
):
    """Except for the differences in huggingface_tokenizer.py."""
    words = ["the", "cat", "##s", "É", "é", "##e", "e", "The", "中", "文", ","]
    vocab = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words)
    huggingface.write(
        str(tmp_path),
        pretrained(
            "encoder",
            vocab=vocab,
            do_lower_case=do_lower_case,
            strip_accents=strip_accents,
        ),
    )
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = FullTokenizer(tmp_path / "vocab.txt", do_lower_case, strip_accents)
    text = (
        "The cats, the Cat: É é E\u0301 ée 中文 \u200bthe\tunknown" + 99 * "e"
    )
    assert theirs.encode(text, add_special_tokens=False) == ours.encode(text)
    assert theirs.encode("the")[0] == ours.vocab["[CLS]"]
    assert theirs.pad_token_id == 0
    assert theirs.model_max_length == CONFIG.max_position_embeddings
    assert not warnings()
    theirs.save_pretrained(tmp_path / "saved")
    model = random_model("BertModel")
    model.save_pretrained(tmp_path / "saved")
    again = huggingface.read(str(tmp_path / "saved"))
    assert again.vocab == vocab
    assert again.do_lower_case == do_lower_case
    assert again.strip_accents == strip_accents


def test_the_remedy_for_a_pickle(tmp_path):
    model = random_model("BertForMaskedLM")
    model.save_pretrained(tmp_path)
    expected = huggingface.read(str(tmp_path)).weights
    arrays = {name: expected[name] for name in expected.shapes}
    (tmp_path / "model.safetensors").unlink()
    # As of old, with the tied tensors and the buffer.
    buffer = {"bert.embeddings.position_ids": torch.arange(19)[None]}
    state = model.state_dict() | buffer
    torch.save(state, tmp_path / "pytorch_model.bin")
    with pytest.raises(InputError) as caught:
        huggingface.read(str(tmp_path))
    [command] = re.findall("python -c .*$", str(caught.value))
    _, *arguments = shlex.split(command)
    subprocess.run([sys.executable, *arguments], check=True)
    found = huggingface.read(str(tmp_path))
    assert found.head == "masked_lm"
    assert found.weights.shapes.keys() == arrays.keys()
    for name, value in arrays.items():
        np.testing.assert_array_equal(found.weights[name], value)


def test_the_golden_layout_is_still_true(tmp_path):
    golden = json.loads((GOLDEN / "transformers_layout.json").read_text())
    if transformers.__version__.split(".")[0] != "5":
        pytest.skip("made by transformers 5")
    for name, expected in golden.items():
        folder = tmp_path / name
        os.makedirs(folder)
        assert save_pretrained.layout(name, folder) == expected
