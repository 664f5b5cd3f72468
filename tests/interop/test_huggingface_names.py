import dataclasses

import numpy as np
import pytest

from bert_tf.interop.checkpoint import HEADS
from bert_tf.interop.huggingface_names import (
    PARTS_OF_HEAD,
    canonical,
    head_of_parts,
    rows,
)
from bert_tf.interop.keras_files import build_model
from bert_tf.modeling import checkpoint_variables
from tests.interop.small_models import CONFIG, pretrained

LAYERS = CONFIG.num_hidden_layers


def test_no_name_stands_in_the_table_twice():
    table = rows(CONFIG)
    assert len({row.ours for row in table}) == len(table)
    assert len({row.theirs for row in table}) == len(table)


@pytest.mark.parametrize("layers", [1, 2, 11])
def test_counts(layers):
    """Section 4.2 of the contract: 5 + 16 a layer + 2, and 7 for both heads."""
    config = dataclasses.replace(CONFIG, num_hidden_layers=layers)
    parts = [row.part for row in rows(config)]
    assert parts.count("encoder") == 5 + 16 * layers
    pretraining = [p for p in parts if p in PARTS_OF_HEAD["pretraining"]]
    assert len(pretraining) == 5 + 16 * layers + 2 + 7


@pytest.mark.parametrize("head", HEADS)
def test_our_column_is_what_our_models_are_made_of(head):
    variables = checkpoint_variables(build_model(pretrained(head)))
    table = {row.ours: row for row in rows(CONFIG)}
    for name, variable in variables.items():
        assert table[name].fits(variable.shape), name
    parts = {table[name].part for name in variables}
    assert parts >= set(PARTS_OF_HEAD[head])


def test_both_columns_mean_the_same_layer():
    for row in rows(CONFIG):
        for n in range(LAYERS):
            ours = f"/layer_{n}/" in row.ours
            assert ours == (f".layer.{n}." in row.theirs)


def test_only_kernels_are_turned():
    for row in rows(CONFIG):
        value = np.zeros([size or 5 for size in row.shape])
        turned = row.turned(value)
        assert turned.shape == row.turned_shape(value.shape)
        assert row.turned(turned).shape == value.shape
        is_turned = row.turned_shape((2, 3)) == (3, 2)
        assert is_turned == row.ours.endswith("kernel")
        assert turned.flags.c_contiguous


def test_a_row_knows_its_shape():
    table = {row.ours: row for row in rows(CONFIG)}
    kernel = table["bert/encoder/layer_1/intermediate/dense/kernel"]
    assert kernel.shape == (12, 17)
    assert kernel.fits((12, 17))
    assert not kernel.fits((17, 12))
    assert not kernel.fits((12, 17, 1))
    classes = table["output_weights"]
    assert classes.fits((1, 12))
    assert classes.fits((997, 12))
    assert not classes.fits((0, 12))
    assert not classes.fits((5, 13))


def test_bert_model_alone_has_no_scope():
    row = rows(CONFIG)[0]
    assert row.their_name("encoder") == "embeddings.word_embeddings.weight"
    assert row.their_name("token") == "bert.embeddings.word_embeddings.weight"
    head = next(row for row in rows(CONFIG) if row.part == "masked_lm")
    assert head.their_name("encoder") == head.theirs


@pytest.mark.parametrize("row", rows(CONFIG), ids=lambda row: row.theirs)
def test_the_names_of_the_table_are_canonical(row):
    assert canonical(row.theirs) == row.theirs
    assert canonical(row.their_name("encoder")) == row.theirs


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("embeddings.LayerNorm.gamma", "bert.embeddings.LayerNorm.weight"),
        ("bert.embeddings.LayerNorm.beta", "bert.embeddings.LayerNorm.bias"),
        ("encoder.layer.1.x", "bert.encoder.layer.1.x"),
        ("pooler.dense.bias", "bert.pooler.dense.bias"),
        ("embeddings.position_ids", "bert.embeddings.position_ids"),
        (
            "cls.predictions.decoder.weight",
            "bert.embeddings.word_embeddings.weight",
        ),
        ("cls.predictions.decoder.bias", "cls.predictions.bias"),
        ("encoders.x", "encoders.x"),
        ("x.encoder.layer", "x.encoder.layer"),
        ("gamma", "gamma"),
        ("Norm.gamma", "Norm.gamma"),
    ],
)
def test_other_spellings(name, expected):
    assert canonical(name) == expected


@pytest.mark.parametrize(
    ("parts", "head"),
    [
        ({"encoder"}, "encoder"),
        ({"encoder", "pooler"}, "encoder"),
        ({"encoder", "pooler", "masked_lm", "next_sentence"}, "pretraining"),
        ({"encoder", "masked_lm"}, "masked_lm"),
        ({"encoder", "pooler", "masked_lm"}, "masked_lm"),
        ({"encoder", "pooler", "next_sentence"}, "next_sentence"),
        ({"encoder", "span"}, "span"),
        ({"encoder", "pooler", "span"}, "span"),
        ({"encoder", "classes"}, "token"),
        ({"encoder", "pooler", "classes"}, None),
        ({"encoder", "pooler", "classes", "masked_lm"}, None),
    ],
)
def test_what_parts_tell(parts, head):
    assert head_of_parts(parts) == head


def test_every_head_has_its_parts():
    assert tuple(PARTS_OF_HEAD) == HEADS
    used = {part for parts in PARTS_OF_HEAD.values() for part in parts}
    assert used == {row.part for row in rows(CONFIG)}
