"""Opening checkpoints of every format and filling any model with them."""

import dataclasses
import json

import keras
import numpy as np
import pytest
from interop.small_models import (
    CONFIG,
    NUM_LABELS,
    arrays,
    assert_same_weights,
    pretrained,
)

from bert_tf import heads
from bert_tf.errors import InputError
from bert_tf.interop import google, huggingface, keras_files
from bert_tf.modeling import BertModel, checkpoint_variables
from bert_tf.pretrained import (
    load_checkpoint,
    load_config,
    open_pretrained,
    open_weights,
    read_config,
)

FORMATS = {
    "google": google.write,
    "huggingface": huggingface.write,
    "keras": keras_files.write,
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A classifier in each format, and a pre-trained model in each."""
    folder = tmp_path_factory.mktemp("folders")
    for name, write in FORMATS.items():
        for head in ("classifier", "pretraining"):
            place = folder / head / name
            place.mkdir(parents=True)
            write(str(place), pretrained(head))
    return folder


@pytest.fixture(params=FORMATS)
def published(request, folders):
    """The folder of a pre-trained model, in each format."""
    return folders / "pretraining" / request.param


# open_pretrained


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
def test_opens_any_path_of_a_checkpoint(folders, path):
    whole = pretrained("classifier")
    for given in (
        f"{folders}/classifier/{path}",
        folders / "classifier" / path,
    ):
        read = open_pretrained(given)
        assert_same_weights(read.weights, whole.weights)
        for fact in ("config", "vocab", "labels", "do_lower_case", "head"):
            assert getattr(read, fact) == getattr(whole, fact)


def test_refuses_pickles(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    path = tmp_path / "pytorch_model.bin"
    path.write_bytes(b"\x80\x02cposix\nsystem\n")
    for given in (tmp_path, path):
        with pytest.raises(InputError, match="a pickle") as raised:
            open_pretrained(given)
        assert "\n" not in str(raised.value)


def test_a_tf1_prefix_may_look_like_a_pickle(folders, tmp_path):
    for file in (folders / "classifier" / "google").iterdir():
        name = file.name.replace("bert_model.ckpt", "model.pt")
        (tmp_path / name).write_bytes(file.read_bytes())
    assert "output_bias" in open_weights(tmp_path / "model.pt")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nowhere", "nowhere: there is no such checkpoint; expected a TF1"),
        ("", "No checkpoint found in"),
        ("text.txt", r"text\.txt"),
        ("text.keras", r"text\.keras: this is not a \.keras file"),
        ("none.safetensors", r"none\.safetensors"),
        ("none.keras", r"none\.keras"),
    ],
)
def test_refuses_what_is_not_a_checkpoint(tmp_path, path, message):
    (tmp_path / "text.txt").write_text("hello")
    (tmp_path / "text.keras").write_text("hello")
    with pytest.raises(InputError, match=message) as raised:
        open_pretrained(f"{tmp_path}/{path}")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("path", ["https://huggingface.co/a/b", "HF://a/b"])
def test_refuses_web_pages(path):
    with pytest.raises(InputError, match="Write hf://OWNER/NAME"):
        open_pretrained(path)


def test_ignores_a_damaged_list_of_checkpoints(folders, tmp_path):
    for file in (folders / "classifier" / "google").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    for content in (b"\xff\xfe", b"cut: {", b"model_checkpoint_path: 3"):
        (tmp_path / "checkpoint").write_bytes(content)
        assert "output_bias" in open_weights(tmp_path)


def test_compares_configurations(folders, caplog):
    path = folders / "classifier" / "huggingface"
    open_weights(path, CONFIG)
    assert not caplog.text
    other = dataclasses.replace(CONFIG, num_attention_heads=4)
    with pytest.raises(InputError, match=r"must be 3, as in .*; got 4\."):
        open_weights(path, other)
    open_weights(path, dataclasses.replace(CONFIG, hidden_act="relu"))
    assert "hidden_act=relu, but" in caplog.text
    other = dataclasses.replace(CONFIG, attention_direction="left_to_right")
    open_weights(path, other)
    assert "attention_direction=left_to_right, but" in caplog.text


def test_gelu_has_different_meanings_in_two_formats(folders):
    theirs = folders / "classifier" / "huggingface" / "config.json"
    assert json.loads(theirs.read_text())["hidden_act"] == "gelu_new"
    ours = folders / "classifier" / "google" / "bert_config.json"
    assert json.loads(ours.read_text())["hidden_act"] == "gelu"
    assert read_config(theirs) == read_config(str(ours)) == CONFIG


# load_checkpoint


def assert_filled(model, weights):
    variables = checkpoint_variables(model)
    for name, value in weights.items():
        np.testing.assert_array_equal(variables[name], value, err_msg=name)


def test_fills_a_model_of_the_same_class(published):
    model = heads.BertPretrainer(CONFIG)
    report = load_checkpoint(model, published)
    assert_filled(model, arrays("pretraining"))
    assert report.missing == report.left_over == ()
    assert load_config(published) == CONFIG


def test_fills_an_encoder(published):
    model = BertModel(CONFIG, name="whatever")
    report = load_checkpoint(model, str(published))
    assert_filled(model, arrays("encoder"))
    assert len(report.left_over) == 7


def test_a_new_head_keeps_its_initial_values(published):
    model = heads.BertClassifier(CONFIG, num_labels=3)
    model.build()
    before = checkpoint_variables(model)["output_weights"].numpy()
    report = load_checkpoint(model, published)
    assert report.missing == ("output_weights", "output_bias")
    assert_filled(model, arrays("encoder"))
    after = checkpoint_variables(model)["output_weights"]
    np.testing.assert_array_equal(after, before)


class Own(keras.Model):
    def __init__(self, *encoders):
        super().__init__(name="own")
        self.encoders = list(encoders)

    def call(self, inputs):
        return [encoder(inputs)["pooled_output"] for encoder in self.encoders]


def functional(encoder):
    ids = keras.Input((None,), dtype="int32", name="input_ids")
    pooled = encoder({"input_ids": ids})["pooled_output"]
    return keras.Model(ids, keras.layers.Dense(2, name="top")(pooled))


def called(*encoders):
    model = Own(*encoders)
    model({"input_ids": np.zeros((1, 2), "int32")})
    return model


@pytest.mark.parametrize("around", [functional, called])
def test_fills_the_encoder_in_a_custom_model(published, around):
    encoder = BertModel(CONFIG, name="my_encoder")
    report = load_checkpoint(around(encoder), published)
    assert_filled(encoder, arrays("encoder"))
    expected = ("top/kernel", "top/bias") if around is functional else ()
    assert report.missing == expected
    # With another number of heads, shapes are the same.
    other = BertModel(dataclasses.replace(CONFIG, num_attention_heads=4))
    with pytest.raises(InputError, match=r"must be 3, as in .*; got 4\."):
        load_checkpoint(around(other), published)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Own(BertModel(CONFIG)),
        lambda: keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]),
        lambda: keras.Sequential([BertModel(CONFIG)]),
    ],
)
def test_refuses_a_model_without_a_built_encoder(folders, make):
    with pytest.raises(InputError, match="no BertModel, or it is not built"):
        load_checkpoint(make(), folders / "pretraining" / "google")


def test_two_encoders_are_filled_one_by_one(folders):
    path = folders / "pretraining" / "google"
    model = called(BertModel(CONFIG), BertModel(CONFIG))
    with pytest.raises(InputError, match="'own' has 2 encoders"):
        load_checkpoint(model, path)
    load_checkpoint(model.encoders[1], path)
    assert_filled(model.encoders[1], arrays("encoder"))


@pytest.mark.parametrize("theirs", ["classifier", "choice"])
def test_ignores_a_head_of_another_kind(tmp_path, caplog, theirs):
    """Its weights have the same names and might have the same shapes."""
    google.write(str(tmp_path), pretrained(theirs))
    model = heads.BertTokenClassifier(CONFIG, num_labels=NUM_LABELS[theirs])
    report = load_checkpoint(model, tmp_path)
    assert report.missing == ("output_weights", "output_bias")
    assert f"it is for {theirs}, the model's is for token" in caplog.text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 15, "num_attention_heads": 3}, "of shape"),
        ({"num_attention_heads": 4}, r"must be 3, as in .*; got 4\."),
        ({"num_hidden_layers": 3}, "layer_2"),
        ({"vocab_size": 24}, r"word_embeddings .*\[24, 12\]"),
    ],
)
def test_another_configuration_changes_nothing(folders, changes, message):
    model = BertModel(dataclasses.replace(CONFIG, **changes))
    model.build()
    before = [v.numpy() for v in model.weights]
    with pytest.raises(InputError, match=message) as raised:
        load_checkpoint(model, folders / "pretraining" / "google")
    assert "\n" not in str(raised.value)
    for variable, value in zip(model.weights, before, strict=True):
        np.testing.assert_array_equal(variable, value)


def test_logs_another_form_of_gelu(tmp_path, caplog):
    config = dataclasses.replace(CONFIG, hidden_act="gelu_erf")
    google.write(str(tmp_path), pretrained("encoder", config))
    load_checkpoint(BertModel(CONFIG), tmp_path)
    assert "hidden_act=gelu_tanh, but" in caplog.text


def test_may_require_all_variables(tmp_path):
    google.write(str(tmp_path), pretrained("encoder"))
    with pytest.raises(InputError, match=r"2 of .*output_weights"):
        load_checkpoint(heads.BertClassifier(CONFIG, 3), tmp_path, "")


# Configurations


def test_a_checkpoint_may_have_no_config(tmp_path):
    whole = dataclasses.replace(pretrained("encoder"), config=None)
    google.write(str(tmp_path), whole)
    load_checkpoint(BertModel(CONFIG), tmp_path)
    with pytest.raises(InputError, match=r"no bert_config\.json beside"):
        load_config(tmp_path)
