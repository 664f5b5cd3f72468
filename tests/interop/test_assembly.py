"""The right class, with the right weights."""

import dataclasses

import pytest
from interop.small_models import (
    CONFIG,
    Arrays,
    arrays,
    assert_same_weights,
    pretrained,
)

from bert_tf import heads
from bert_tf.errors import InputError
from bert_tf.interop.checkpoint import HEADS
from bert_tf.interop.keras_files import (
    ModelWeights,
    build_model,
    head_of_model,
    num_labels,
)
from bert_tf.modeling import BertModel

CLASSES = {
    "encoder": BertModel,
    "pretraining": heads.BertPretrainer,
    "classifier": heads.BertClassifier,
    "choice": heads.BertMultipleChoice,
    "token": heads.BertTokenClassifier,
    "span": heads.BertSpanLabeler,
}


@pytest.mark.parametrize("head", CLASSES)
def test_each_head_has_its_class(head):
    whole = pretrained(head)
    model = build_model(whole)
    assert type(model) is CLASSES[head]
    assert head_of_model(model) == head
    assert_same_weights(ModelWeights(model, "here"), whole.weights)


@pytest.mark.parametrize("head", ["masked_lm", "next_sentence"])
def test_one_of_two_heads_makes_a_pretrainer(head):
    whole = pretrained(head)
    model = build_model(whole)
    assert type(model) is heads.BertPretrainer
    ours = ModelWeights(model, "here")
    same = Arrays({name: ours[name] for name in whole.weights})
    assert_same_weights(same, whole.weights)


def test_every_head_is_known():
    for head in HEADS:
        build_model(pretrained(head))


def test_labels_are_counted():
    assert num_labels(pretrained("classifier")) == 5
    assert num_labels(pretrained("token")) == 7
    with pytest.raises(InputError, match="output_weights in memory"):
        num_labels(pretrained("span"))


@pytest.mark.parametrize("fact", ["config", "head"])
def test_what_has_to_be_known(fact):
    whole = dataclasses.replace(pretrained("encoder"), **{fact: None})
    with pytest.raises(InputError, match=f"{fact}=None"):
        build_model(whole)


def test_half_an_encoder():
    weights = arrays("encoder")
    del weights["bert/encoder/layer_1/output/dense/bias"]
    with pytest.raises(InputError, match="layer_1/output/dense/bias"):
        build_model(pretrained("encoder", weights=weights))


def test_a_config_of_another_size():
    other = dataclasses.replace(CONFIG, intermediate_size=16)
    with pytest.raises(InputError, match="another configuration"):
        build_model(pretrained("encoder", config=other, weights=arrays("span")))
