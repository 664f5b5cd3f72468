"""Hugging Face folders, compared with the library transformers.

Runs where torch and transformers are installed, on Keras's torch backend:

    KERAS_BACKEND=torch .venv-torch/bin/python -m pytest tests/backends
"""

import dataclasses
import json
import logging
import pathlib

import pytest

from bert_tf.checkpoints import huggingface
from bert_tf.checkpoints.conversion import random_batch
from bert_tf.checkpoints.huggingface_names import HEADS
from bert_tf.checkpoints.keras_files import build_model
from bert_tf.errors import InputError
from bert_tf.tokenization.wordpiece import FullTokenizer
from tests.checkpoints.small_models import (
    CONFIG,
    VOCAB,
    assert_same_weights,
    pretrained,
)

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
save_pretrained = pytest.importorskip("tests.golden.make_transformers_layout")

ACTIVATIONS = {"gelu_tanh": "gelu_new", "gelu_erf": "gelu"}
# The outputs of our models -> the outputs of transformers' models.
OUTPUTS = {
    "encoder": {
        "sequence_output": "last_hidden_state",
        "pooled_output": "pooler_output",
    },
    "pretraining": {
        "masked_lm_logits": "prediction_logits",
        "next_sentence_logits": "seq_relationship_logits",
    },
    "masked_lm": {"masked_lm_logits": "logits"},
    "next_sentence": {"next_sentence_logits": "logits"},
    "span": {"start_logits": "start_logits", "end_logits": "end_logits"},
}
GOLDEN = pathlib.Path(__file__).parent.parent / "golden"
TOLERANCE = 1e-5


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture
def warnings(caplog):
    """Captures the log of transformers; returns its warnings so far."""
    library = logging.getLogger("transformers")
    library.addHandler(caplog.handler)
    yield lambda: [
        r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING
    ]
    library.removeHandler(caplog.handler)


def gap(checkpoint, folder, head):
    """The largest difference from the outputs of transformers."""
    batch = random_batch(checkpoint.config, head)
    ours = build_model(checkpoint)(dict(batch))
    model = getattr(transformers, HEADS[head].architecture).from_pretrained(
        folder, dtype=torch.float32
    )
    names = {"attention_mask": "input_mask", "token_type_ids": "segment_ids"}
    names["input_ids"] = "input_ids"
    tensors = {n: torch.from_numpy(batch[x]).long() for n, x in names.items()}
    theirs = model.eval()(**tensors)
    return max(
        (ours[our_name] - theirs[name]).detach().abs().max().item()
        for our_name, name in OUTPUTS.get(head, {"logits": "logits"}).items()
    )


def random_model(name, **settings):
    """A model of transformers whose biases are not 0 and norms not 1."""
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
    checkpoint = pretrained(head, dataclasses.replace(CONFIG, hidden_act=act))
    huggingface.write(str(tmp_path), checkpoint)
    name = HEADS[head].architecture
    auto = "AutoModel" + name.removeprefix("Bert").removeprefix("Model")
    model, info = getattr(transformers, auto).from_pretrained(
        tmp_path, output_loading_info=True
    )
    assert type(model).__name__ == name
    assert not any(info.values()), info
    assert not warnings()
    if checkpoint.labels:
        assert model.config.id2label == dict(enumerate(checkpoint.labels))
    fidelity(
        "conversions: what we write, in transformers, all heads, both GELUs",
        gap(checkpoint, tmp_path, head),
        TOLERANCE,
    )


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("act", ACTIVATIONS)
def test_fidelity_of_what_is_read(tmp_path, fidelity, act, head):
    model = random_model(HEADS[head].architecture, hidden_act=ACTIVATIONS[act])
    model.save_pretrained(tmp_path)
    checkpoint = huggingface.read(str(tmp_path))
    assert checkpoint.head == head
    assert checkpoint.config == dataclasses.replace(CONFIG, hidden_act=act)
    fidelity(
        "conversions: what transformers writes, in our models, all heads, "
        "both GELUs",
        gap(checkpoint, tmp_path, head),
        TOLERANCE,
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_in_shards(tmp_path, dtype):
    model = random_model("BertForPreTraining").to(getattr(torch, dtype))
    model.save_pretrained(tmp_path, max_shard_size="2KB")
    assert len([*tmp_path.glob("model-*.safetensors")]) > 2
    checkpoint = huggingface.read(str(tmp_path))
    model.float().save_pretrained(tmp_path / "whole")
    assert gap(checkpoint, tmp_path / "whole", "pretraining") <= TOLERANCE


def test_words_added_to_a_vocabulary(tmp_path):
    huggingface.write(str(tmp_path), pretrained("encoder", vocab=VOCAB[:20]))
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    tokenizer.add_tokens(["[E1]", "new"])
    tokenizer.add_special_tokens({"additional_special_tokens": ["<e2>"]})
    tokenizer.save_pretrained(tmp_path)
    found = huggingface.read(str(tmp_path)).vocab
    assert found == (*VOCAB[:20], "[E1]", "new", "<e2>")
    assert tokenizer.convert_tokens_to_ids(list(found)) == [*range(23)]


@pytest.mark.parametrize("do_lower_case", [True, False])
@pytest.mark.parametrize("strip_accents", [True, False, None])
def test_the_tokenizer_is_the_same(
    tmp_path, warnings, do_lower_case, strip_accents
):
    """Except for the differences in huggingface_tokenizer.py."""
    words = ["the", "cat", "##s", "É", "é", "##e", "e", "The", "中", "文", ","]
    vocab = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words)
    casing = {"do_lower_case": do_lower_case, "strip_accents": strip_accents}
    huggingface.write(
        str(tmp_path), pretrained("encoder", vocab=vocab, **casing)
    )
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = FullTokenizer(tmp_path / "vocab.txt", **casing)
    text = "The cats, the Cat: É é E\u0301 ée 中文 \u200bthe\tunknown"
    assert theirs.encode(text, add_special_tokens=False) == ours.encode(text)
    assert theirs.encode("the")[0] == ours.vocab["[CLS]"]
    assert theirs.pad_token_id == 0
    assert theirs.model_max_length == CONFIG.max_position_embeddings
    assert not warnings()
    theirs.save_pretrained(tmp_path)
    again = huggingface.read(str(tmp_path))
    assert again.vocab == vocab
    assert again.do_lower_case == do_lower_case
    assert again.strip_accents == strip_accents


def test_transformers_converts_a_pickle(tmp_path):
    """As docs/guide/checkpoints.md says."""
    model = random_model("BertForMaskedLM")
    model.save_pretrained(tmp_path / "expected")
    expected = huggingface.read(str(tmp_path / "expected"))
    model.config.save_pretrained(tmp_path)
    # Old files have the tied tensors and this buffer.
    buffer = {"bert.embeddings.position_ids": torch.arange(19)[None]}
    state = model.state_dict() | buffer
    torch.save(state, tmp_path / "pytorch_model.bin")
    with pytest.raises(InputError, match="save_pretrained of transformers"):
        huggingface.read(str(tmp_path))
    again = transformers.BertForMaskedLM.from_pretrained(tmp_path)
    again.save_pretrained(tmp_path / "converted")
    found = huggingface.read(str(tmp_path / "converted"))
    assert found.head == "masked_lm"
    assert_same_weights(found.weights, expected.weights)


def test_the_golden_layout(tmp_path):
    golden = json.loads((GOLDEN / "transformers_layout.json").read_text())
    if transformers.__version__.split(".")[0] != "5":
        pytest.skip("made by transformers 5")
    for name, expected in golden.items():
        folder = tmp_path / name
        folder.mkdir()
        assert save_pretrained.layout(name, folder) == expected
