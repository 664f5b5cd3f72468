"""`load_checkpoint`: whatever the format, whatever the model around it."""

import dataclasses

import keras
import numpy as np
import pytest
from interop.small_models import CONFIG, NUM_LABELS, arrays, pretrained

import bert_tf
from bert_tf import heads
from bert_tf.errors import InputError
from bert_tf.interop import google, huggingface, keras_files
from bert_tf.modeling import BertModel, checkpoint_variables
from bert_tf.pretrained import (
    find_config,
    load_checkpoint,
    load_config,
)

FORMATS = {
    "google": google.write,
    "huggingface": huggingface.write,
    "keras": keras_files.write,
}


@pytest.fixture(params=FORMATS)
def published(request, tmp_path):
    """A pre-trained model in each format: its path."""
    FORMATS[request.param](str(tmp_path), pretrained("pretraining"))
    return tmp_path


def assert_filled(model, weights):
    variables = checkpoint_variables(model)
    for name, value in weights.items():
        np.testing.assert_array_equal(variables[name], value, err_msg=name)


def test_the_same_model(published):
    model = heads.BertPretrainer(CONFIG)
    report = load_checkpoint(model, published)
    assert_filled(model, arrays("pretraining"))
    assert report.missing == report.left_over == ()
    assert load_config(published) == CONFIG


def test_an_encoder_takes_no_head(published):
    model = BertModel(CONFIG, name="whatever")
    report = load_checkpoint(model, str(published))
    assert_filled(model, arrays("encoder"))
    assert len(report.left_over) == 7


def test_a_new_head_stays_random(published, caplog):
    model = heads.BertClassifier(CONFIG, num_labels=3)
    model.build()
    before = checkpoint_variables(model)["output_weights"].numpy()
    report = load_checkpoint(model, published)
    assert report.missing == ("output_weights", "output_bias")
    assert_filled(model, arrays("encoder"))
    np.testing.assert_array_equal(
        checkpoint_variables(model)["output_weights"], before
    )


def test_a_model_around_it(published):
    ids = keras.Input((None,), dtype="int32", name="input_ids")
    encoder = bert_tf.BertModel(CONFIG, name="my_encoder")
    pooled = encoder({"input_ids": ids})["pooled_output"]
    model = keras.Model(ids, keras.layers.Dense(2, name="top")(pooled))
    report = load_checkpoint(model, published)
    assert report.missing == ("top/kernel", "top/bias")
    assert_filled(encoder, arrays("encoder"))


class Own(keras.Model):
    def __init__(self, encoders=1):
        super().__init__(name="own")
        self.encoders = [BertModel(CONFIG) for _ in range(encoders)]

    def call(self, inputs):
        return [encoder(inputs)["pooled_output"] for encoder in self.encoders]


def test_a_model_of_the_users_own_class(published):
    model = Own()
    model({"input_ids": np.zeros((1, 2), "int32")})
    load_checkpoint(model, published)
    assert_filled(model, arrays("encoder"))


def nothing_of_bert():
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])


@pytest.mark.parametrize(
    "make",
    [Own, nothing_of_bert, lambda: keras.Sequential([BertModel(CONFIG)])],
)
def test_a_model_without_an_encoder_in_it_yet(published, make):
    with pytest.raises(InputError, match="built, as it is once it was called"):
        load_checkpoint(make(), published)


@pytest.mark.parametrize("around", ["functional", "own class"])
def test_an_encoder_inside_is_compared_as_well(published, around):
    """Shapes are the same with another number of heads."""
    encoder = BertModel(dataclasses.replace(CONFIG, num_attention_heads=4))
    ids = keras.Input((None,), dtype="int32", name="input_ids")
    model = keras.Model(ids, encoder({"input_ids": ids})["pooled_output"])
    if around == "own class":
        model = Own(encoders=0)
        model.encoders.append(encoder)
        model({"input_ids": np.zeros((1, 2), "int32")})
    with pytest.raises(InputError, match=r"4 attention heads.* with 3"):
        load_checkpoint(model, published)


@pytest.mark.parametrize("theirs", ["classifier", "choice"])
def test_a_head_of_another_kind_is_not_taken(tmp_path, caplog, theirs):
    """Though its weights have the same names and might fit."""
    google.write(str(tmp_path), pretrained(theirs))
    model = heads.BertTokenClassifier(CONFIG, num_labels=NUM_LABELS[theirs])
    report = load_checkpoint(model, tmp_path)
    assert report.missing == ("output_weights", "output_bias")
    assert f"of kind {theirs}, the model's of kind token" in caplog.text


def test_two_encoders_are_filled_one_by_one(published):
    model = Own(encoders=2)
    model({"input_ids": np.zeros((1, 2), "int32")})
    with pytest.raises(InputError, match="2 of them in 'own'"):
        load_checkpoint(model, published)
    load_checkpoint(model.encoders[1], published)
    assert_filled(model.encoders[1], arrays("encoder"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 15, "num_attention_heads": 3}, "of shape"),
        ({"num_attention_heads": 4}, "4 attention heads.* with 3"),
        ({"num_hidden_layers": 3}, "layer_2"),
        ({"vocab_size": 24}, r"word_embeddings of shape \[24, 12\]"),
    ],
)
def test_another_configuration_changes_nothing(tmp_path, changes, message):
    google.write(str(tmp_path), pretrained("pretraining"))
    model = BertModel(dataclasses.replace(CONFIG, **changes))
    model.build()
    before = [v.numpy() for v in model.weights]
    with pytest.raises(InputError, match=message) as raised:
        load_checkpoint(model, tmp_path)
    assert "\n" not in str(raised.value)
    for variable, value in zip(model.weights, before, strict=True):
        np.testing.assert_array_equal(variable, value)


def test_another_gelu_is_remarked_on(tmp_path, caplog):
    config = dataclasses.replace(CONFIG, hidden_act="gelu_erf")
    google.write(str(tmp_path), pretrained("encoder", config))
    load_checkpoint(BertModel(CONFIG), tmp_path)
    assert "computes gelu_tanh where" in caplog.text


def test_nothing_may_be_missing_if_so_it_is_asked(tmp_path):
    google.write(str(tmp_path), pretrained("encoder"))
    with pytest.raises(InputError, match=r"lacks 2 of .*output_weights"):
        load_checkpoint(heads.BertClassifier(CONFIG, 3), tmp_path, "")


def test_a_checkpoint_without_a_config(tmp_path):
    whole = dataclasses.replace(pretrained("encoder"), config=None)
    google.write(str(tmp_path), whole)
    load_checkpoint(BertModel(CONFIG), tmp_path)
    with pytest.raises(InputError, match=r"bert_config\.json beside"):
        load_config(tmp_path)


def test_a_configuration_is_found_by_what_is_named(published, tmp_path):
    path = tmp_path / "named.json"
    path.write_text(bert_tf.BertConfig(13).to_json_string())
    vocab = tmp_path / "words.txt"
    vocab.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nword\n")
    release = str(published)
    assert find_config(str(path), None, release, None).vocab_size == 13
    assert find_config(None, None, release, str(vocab)) == CONFIG
    found = find_config(None, "L-2_H-128", release, str(vocab))
    assert found == bert_tf.BertConfig.from_name("tiny", vocab_size=6)


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ((None, None, None, "v"), "--model_size, or --init_.*none of them"),
        (("c", "tiny", None, "v"), "or --bert_config_file. Received: both"),
        ((None, "tiny", None, None), "--vocab_file with --model_size=tiny"),
    ],
)
def test_no_configuration_or_two(named, words):
    with pytest.raises(InputError, match=words) as error:
        find_config(*named)
    assert "\n" not in str(error.value)
