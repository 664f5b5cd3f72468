"""Which format a path means; and what is said of one that means none."""

import dataclasses
import json

import pytest
from interop.small_models import CONFIG, assert_same_weights, pretrained

from bert_tf.errors import InputError
from bert_tf.interop import google, huggingface, keras_files
from bert_tf.pretrained import open_pretrained, open_weights, read_config


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """A folder of every format."""
    folder = tmp_path_factory.mktemp("places")
    for name, write in [
        ("google", google.write),
        ("huggingface", huggingface.write),
        ("keras", keras_files.write),
    ]:
        (folder / name).mkdir()
        write(str(folder / name), pretrained("classifier"))
    return folder


@pytest.mark.parametrize(
    "path",
    [
        "google",
        "google/",
        "google/bert_model.ckpt",
        "google/bert_model.ckpt.index",
        "google/bert_model.ckpt.data-00000-of-00001",
        "huggingface",
        "huggingface/",
        "huggingface/model.safetensors",
        "keras/model.keras",
        "keras",
    ],
)
def test_every_way_to_name_one(places, path):
    whole = pretrained("classifier")
    for given in (f"{places}/{path}", places / path):
        read = open_pretrained(given)
        assert_same_weights(read.weights, whole.weights)
        assert read.config == CONFIG
        assert read.vocab == whole.vocab
        assert read.labels == whole.labels
        assert read.do_lower_case is True
        assert read.head == "classifier"
    assert_same_weights(open_weights(places / path), whole.weights)


def test_pickles_are_refused_where_they_lie(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    path = tmp_path / "pytorch_model.bin"
    path.write_bytes(b"\x80\x02cposix\nsystem\n")
    for given in (tmp_path, path):
        with pytest.raises(InputError, match="a pickle") as raised:
            open_pretrained(given)
        assert "\n" not in str(raised.value)


def test_a_tf1_prefix_may_end_as_a_pickle_does(places, tmp_path):
    for file in (places / "google").iterdir():
        name = file.name.replace("bert_model.ckpt", "model.pt")
        (tmp_path / name).write_bytes(file.read_bytes())
    assert "output_bias" in open_weights(tmp_path / "model.pt")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nowhere", "expected a TF1 .* nothing of that name"),
        ("", r"expected one checkpoint in .* Received: 0"),
        ("text.txt", "text.txt"),
        ("text.keras", r"text\.keras, which is none"),
        ("none.safetensors", "none.safetensors"),
        ("none.keras", "none.keras"),
    ],
)
def test_what_is_none(tmp_path, path, message):
    (tmp_path / "text.txt").write_text("hello")
    (tmp_path / "text.keras").write_text("hello")
    with pytest.raises(InputError, match=message) as raised:
        open_pretrained(f"{tmp_path}/{path}")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("path", ["https://huggingface.co/a/b", "HF://a/b"])
def test_a_page_is_no_path(path):
    with pytest.raises(InputError, match="write hf://OWNER/NAME"):
        open_pretrained(path)


def test_a_damaged_list_of_checkpoints(places, tmp_path):
    """The file `checkpoint`; what is listed in it is there all the same."""
    for file in (places / "google").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    for content in (b"\xff\xfe", b"cut: {", b"model_checkpoint_path: 3"):
        (tmp_path / "checkpoint").write_bytes(content)
        assert "output_bias" in open_weights(tmp_path)


def test_weights_are_for_a_configuration(places, caplog):
    path = places / "huggingface"
    open_weights(path, CONFIG)
    other = dataclasses.replace(CONFIG, num_attention_heads=4)
    with pytest.raises(InputError, match=r"4 attention heads.* with 3"):
        open_weights(path, other)
    assert "computes" not in caplog.text
    open_weights(path, dataclasses.replace(CONFIG, hidden_act="relu"))
    assert "computes relu where" in caplog.text
    other = dataclasses.replace(CONFIG, attention_direction="left_to_right")
    open_weights(path, other)
    assert "computes left_to_right where" in caplog.text


def test_the_same_word_in_two_configs(places):
    theirs = places / "huggingface" / "config.json"
    assert json.loads(theirs.read_text())["hidden_act"] == "gelu_new"
    ours = places / "google" / "bert_config.json"
    assert json.loads(ours.read_text())["hidden_act"] == "gelu"
    assert read_config(theirs) == read_config(str(ours)) == CONFIG
