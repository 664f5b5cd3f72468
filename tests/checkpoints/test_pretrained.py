"""Opening checkpoints of every format and filling any model with them."""

import dataclasses

import keras
import numpy as np
import pytest

from bert_tf.checkpoints import huggingface, keras_files, tf1
from bert_tf.checkpoints.pretrained import (
    casing_of_name,
    compare_configs,
    load_checkpoint,
    load_config,
    open_pretrained,
)
from bert_tf.modeling import heads
from bert_tf.modeling.encoder import BertModel
from bert_tf.modeling.variables import checkpoint_variables
from tests.checkpoints.small_models import (
    CONFIG,
    NUM_LABELS,
    arrays,
    assert_same,
    pretrained,
    refused,
    slots,
)

FORMATS = {
    "google": tf1.write_pretrained,
    "huggingface": huggingface.write,
    "keras": keras_files.write,
}
FOUR_HEADS = dataclasses.replace(CONFIG, num_attention_heads=4)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A pre-trained model in each format."""
    folder = tmp_path_factory.mktemp("folders")
    for name, write in FORMATS.items():
        (folder / name).mkdir()
        write(str(folder / name), pretrained("pretraining"))
    return folder


@pytest.fixture(params=FORMATS)
def published(request, folders):
    """The folder of a pre-trained model, in each format."""
    return folders / request.param


def copy(folder, to, prefix="bert_model.ckpt"):
    for file in folder.iterdir():
        name = file.name.replace("bert_model.ckpt", prefix)
        (to / name).write_bytes(file.read_bytes())


@pytest.mark.parametrize(
    "path",
    [
        "google/",
        "google/bert_model.ckpt",
        "google/bert_model.ckpt.index",
        "google/bert_model.ckpt.data-00000-of-00001",
        "huggingface/model.safetensors",
        "keras/model.keras",
        "keras",
    ],
)
def test_opens_any_path_of_a_checkpoint(folders, path):
    for given in (f"{folders}/{path}", folders / path):
        assert_same(open_pretrained(given), pretrained("pretraining"))


def test_a_tf1_prefix_may_look_like_a_pickle(folders, tmp_path):
    copy(folders / "google", tmp_path, prefix="model.pt")
    weights = open_pretrained(tmp_path / "model.pt").weights
    assert "bert/pooler/dense/bias" in weights


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nowhere", "nowhere: there is no such checkpoint; expected a TF1"),
        ("", "No checkpoint found in"),
        ("text.keras", r"text\.keras: .*File is not a zip file"),
        ("none.safetensors", r"none\.safetensors"),
        ("model", "a pickle"),
        ("model/pytorch_model.bin", "a pickle"),
        ("https://huggingface.co/a/b", "Write hf://OWNER/NAME"),
    ],
)
def test_refuses_other_paths(tmp_path, path, message):
    (tmp_path / "text.keras").write_text("hello")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "model" / "pytorch_model.bin").write_bytes(b"\x80\x02cposix")
    with refused(message):
        open_pretrained(path if "//" in path else f"{tmp_path}/{path}")


def test_suggests_hf_for_names_as_in_transformers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "output").mkdir()
    for path, meant in (
        ("bert-base-uncased", "google-bert/bert-base-uncased"),
        ("some-one/Model_v1.0", "some-one/Model_v1.0"),
    ):
        with refused(rf"Did you mean 'hf://{meant}'\?$"):
            open_pretrained(path)
    # Mistyped paths.
    for path in ("output/release", "a/b/c", "./bert-base", "bert-base/x/y"):
        with refused(r"such as uncased_L-12_H-768_A-12\.$"):
            open_pretrained(path)


def test_ignores_a_damaged_list_of_checkpoints(folders, tmp_path):
    copy(folders / "google", tmp_path)
    for content in (b"\xff\xfe", b"cut: {", b"model_checkpoint_path: 3"):
        (tmp_path / "checkpoint").write_bytes(content)
        weights = open_pretrained(tmp_path).weights
        assert "bert/pooler/dense/bias" in weights


def test_compares_configurations(folders, caplog):
    found = open_pretrained(folders / "google")
    compare_configs(CONFIG, found)
    assert not caplog.text
    with refused(r"must be 3, as in .*; got 4\."):
        compare_configs(FOUR_HEADS, found)
    for name, value in (
        ("hidden_act", "relu"),
        ("attention_direction", "left_to_right"),
    ):
        compare_configs(dataclasses.replace(CONFIG, **{name: value}), found)
        assert f"{name}={value}, but" in caplog.text


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


def test_a_new_head_keeps_its_initial_values(folders):
    model = heads.BertClassifier(CONFIG, num_labels=3)
    model.build()
    head = checkpoint_variables(model)["output_weights"]
    before = head.numpy()
    report = load_checkpoint(model, str(folders / "google"))
    assert report.missing == ("output_weights", "output_bias")
    assert len(report.left_over) == 7
    assert_filled(model, arrays("encoder"))
    np.testing.assert_array_equal(head, before)
    with refused("2 of .*output_weights"):
        load_checkpoint(model, folders / "google", may_lack="")


def test_only_a_whole_head_may_be_new(tmp_path):
    weights = arrays("masked_lm")
    prefix = str(tmp_path / "model.ckpt")
    tf1.write(prefix, {**weights, **slots(weights)})
    report = load_checkpoint(heads.BertPretrainer(CONFIG), prefix)
    scope = "cls/seq_relationship"
    assert report.missing == (f"{scope}/output_weights", f"{scope}/output_bias")
    assert not report.left_over
    del weights["cls/predictions/output_bias"]
    tf1.write(prefix, weights)
    with refused("lacks 1 of .* 'cls/predictions/output_bias' first"):
        load_checkpoint(heads.BertPretrainer(CONFIG), prefix)


def test_a_loaded_model_has_the_same_new_head(folders):
    keras.utils.set_random_seed(2)
    model = heads.BertClassifier(CONFIG, num_labels=3)
    load_checkpoint(model, folders / "google")
    keras.utils.set_random_seed(2)
    # Its encoder starts as zeros instead of random values.
    loaded = heads.BertClassifier.from_pretrained(
        folders / "google", num_labels=3
    )
    ours, theirs = map(checkpoint_variables, (loaded, model))
    assert np.any(ours["output_weights"])
    for name in theirs:
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)


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


def test_fills_the_encoder_in_a_custom_model(folders):
    encoder = BertModel(CONFIG, name="my_encoder")
    report = load_checkpoint(functional(encoder), folders / "google")
    assert_filled(encoder, arrays("encoder"))
    assert report.missing == ("top/kernel", "top/bias")
    # With another number of heads, shapes are the same.
    with refused(r"must be 3, as in .*; got 4\."):
        load_checkpoint(functional(BertModel(FOUR_HEADS)), folders / "google")


def test_refuses_a_model_without_a_built_encoder(folders):
    with refused("no BertModel, or it is not built"):
        load_checkpoint(Own(BertModel(CONFIG)), folders / "google")


def test_two_encoders_are_filled_one_by_one(folders):
    model = Own(BertModel(CONFIG), BertModel(CONFIG))
    model({"input_ids": np.zeros((1, 2), "int32")})
    with refused("'own' has 2 encoders"):
        load_checkpoint(model, folders / "google")
    load_checkpoint(model.encoders[1], folders / "google")
    assert_filled(model.encoders[1], arrays("encoder"))


def test_ignores_a_head_of_another_kind(tmp_path, caplog):
    """Its weights have the same names and might have the same shapes."""
    tf1.write_pretrained(str(tmp_path), pretrained("classifier"))
    model = heads.BertTokenClassifier(CONFIG, NUM_LABELS["classifier"])
    report = load_checkpoint(model, tmp_path)
    assert report.missing == ("output_weights", "output_bias")
    assert "its head is classifier, not token" in caplog.text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": 3}, "layer_2"),
        ({"vocab_size": 24}, r"word_embeddings .*\[24, 12\]"),
    ],
)
def test_another_configuration_changes_nothing(folders, changes, message):
    model = BertModel(dataclasses.replace(CONFIG, **changes))
    model.build()
    before = [v.numpy() for v in model.weights]
    with refused(message):
        load_checkpoint(model, folders / "google")
    for variable, value in zip(model.weights, before, strict=True):
        np.testing.assert_array_equal(variable, value)


def test_arguments_of_other_types(folders):
    model = BertModel(CONFIG)
    path = folders / "google"
    with refused("path of the checkpoint is empty"):
        open_pretrained("")
    with refused("first argument must be the model to fill; got PosixPath"):
        load_checkpoint(path, model)
    with refused("second argument, the checkpoint, must be a string"):
        load_checkpoint(model, model)
    for use in (open_pretrained, BertModel.from_pretrained, load_config):
        with refused("path must be a string or a pathlib.Path; got None"):
            use(None)


def test_a_checkpoint_may_have_no_config(tmp_path):
    whole = dataclasses.replace(pretrained("encoder"), config=None)
    tf1.write_pretrained(str(tmp_path), whole)
    load_checkpoint(BertModel(CONFIG), tmp_path)
    with refused(r"no bert_config\.json beside"):
        load_config(tmp_path)


@pytest.mark.parametrize(
    ("path", "casing"),
    [
        ("uncased_L-12_H-768_A-12/bert_model.ckpt", True),
        ("multi_cased_L-12_H-768_A-12/bert_model.ckpt", False),
        ("multilingual_L-12_H-768_A-12/bert_model.ckpt", True),
        ("chinese_L-12_H-768_A-12/bert_model.ckpt", True),
        ("uncased/cased_L-12/bert_model.ckpt", False),
        ("models/bert-base-uncased/", True),
        ("showcased/bert_model.ckpt", None),
        ("bert_model.ckpt", None),
    ],
)
def test_casing_of_a_name(path, casing):
    assert casing_of_name(path) is casing
