"""Conversions keep every bit, report every variable and are verified."""

import dataclasses

import numpy as np
import pytest

from bert_tf.checkpoints import conversion
from bert_tf.checkpoints.checkpoint import WRITTEN_FORMATS
from bert_tf.checkpoints.conversion import random_batch
from bert_tf.checkpoints.huggingface_names import HEADS
from bert_tf.checkpoints.pretrained import open_pretrained
from tests.checkpoints.small_models import (
    CONFIG,
    Arrays,
    arrays,
    assert_same,
    assert_same_weights,
    pretrained,
    refused,
    slots,
    their_tensors,
    write_folder,
)


def convert(source, folder, to, **options):
    """Converts into a new folder and opens the result."""
    folder.mkdir(parents=True)
    conversion.write(conversion.plan(source, to, **options), str(folder))
    return open_pretrained(folder)


# Hugging Face drops a pooler that the head does not use.
@pytest.mark.parametrize(
    ("head", "act", "pooler"),
    [
        *(
            # test_correct_files_pass has every head.
            pytest.param(
                *(h, "gelu_tanh", "pooler" in HEADS[h].parts),
                marks=() if h == "classifier" else pytest.mark.slow,
            )
            for h in HEADS
        ),
        ("pretraining", "gelu_erf", True),
        pytest.param("encoder", "gelu_tanh", False, marks=pytest.mark.slow),
    ],
)
def test_a_round_trip_keeps_every_bit(tmp_path, head, act, pooler, fidelity):
    """TF1 -> Keras -> Hugging Face -> TF1 -> Hugging Face -> Keras -> TF1."""
    config = dataclasses.replace(CONFIG, hidden_act=act)
    source = pretrained(head, config, weights=arrays(head, pooler=pooler))
    first = now = convert(source, tmp_path / "0", "google")
    assert_same(first, source)
    path = ("keras", "huggingface", "google", "huggingface", "keras", "google")
    for step, to in enumerate(path, start=1):
        now = convert(now, tmp_path / str(step), to, head=head)
    assert_same(now, first)
    different = sum(
        first.weights[name].tobytes() != now.weights[name].tobytes()
        for name in first.weights.shapes
    )
    fidelity(
        "conversions: variables that differ after TF1 -> ours -> Hugging "
        "Face -> ours -> TF1, every head",
        different,
        0,
    )


def test_reports_a_pooler_that_is_missing():
    source = pretrained("span", weights=arrays("span", pooler=False))
    assert str(conversion.plan(source, "google")).endswith(
        "missing     2: bert/pooler/dense/kernel and bert/pooler/dense/bias "
        "(optional)"
    )
    del source.weights["bert/embeddings/LayerNorm/beta"]
    with refused("missing: bert/embeddings/LayerNorm/beta"):
        conversion.plan(source, "google")


def test_keeps_the_optimizer_only_if_asked(tmp_path):
    weights = arrays("pretraining")
    kept = slots(weights)
    source = pretrained("pretraining", weights=Arrays({**weights, **kept}))
    planned = conversion.plan(source, "google", keep_optimizer=True)
    assert f"\nkept        {len(kept)}: " in str(planned)
    whole = convert(source, tmp_path / "a", "google", keep_optimizer=True)
    assert_same_weights(whole.weights, source.weights)
    assert (tmp_path / "a" / "model.ckpt-11.index").exists()
    bare = convert(whole, tmp_path / "c", "google")
    assert_same_weights(bare.weights, weights)
    report = str(conversion.plan(whole, "google"))
    assert f"left over   {len(kept)}: " in report
    assert "keep_optimizer" in report
    # Slots of other weights are left out.
    planned = conversion.plan(source, "google", "encoder", keep_optimizer=True)
    encoder = {k: v for k, v in weights.items() if k.startswith("bert/")}
    assert set(planned.bookkeeping) == set(slots(encoder))
    assert len(planned.left_over) == 7 + 2 * 7


@pytest.mark.parametrize(
    ("source", "head"),
    [
        ("pretraining", "masked_lm"),
        ("classifier", "encoder"),
        ("classifier", "token"),
    ],
)
def test_reports_what_a_smaller_model_leaves_out(source, head):
    planned = conversion.plan(pretrained(source), "google", head)
    assert planned.target.head == head
    names = [*planned.target.weights.shapes, *planned.left_over]
    assert sorted(names) == sorted(arrays(source))
    assert (planned.target.labels is None) == (head != "token")


def test_reports_copies_and_counters_of_hugging_face(tmp_path):
    tensors = their_tensors("masked_lm")
    words = tensors["bert.embeddings.word_embeddings.weight"]
    tensors["cls.predictions.decoder.weight"] = words
    tensors["bert.embeddings.position_ids"] = np.arange(19)[None]
    folder = write_folder(tmp_path, tensors, head="masked_lm")
    planned = conversion.plan(open_pretrained(folder), "google")
    copy = "a copy of bert.embeddings.word_embeddings.weight"
    assert planned.left_over == {
        "bert.embeddings.position_ids": "a counter, which nothing reads",
        "cls.predictions.decoder.weight": copy,
    }


def with_weights(changes):
    """A classifier with other weights; None removes one."""
    weights = arrays("classifier") | changes
    weights = {n: x for n, x in weights.items() if x is not None}
    return pretrained("classifier", weights=Arrays(weights))


LAYER_2 = "bert/encoder/layer_2/output/dense/bias"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("output_bias", None, "missing: output_bias"),
        ("my/own", np.ones(3), "variables are not BERT's: my/own.*`drop`"),
        (LAYER_2, np.ones(12), f"not BERT's: {LAYER_2}"),
        ("output_weights", np.ones((5, 3)), r"\[5, 12\], found \[5, 3\]"),
    ],
)
def test_refuses_unexplained_variables(name, value, message):
    with refused(message):
        conversion.plan(with_weights({name: value}), "google")


def test_drops_foreign_variables_only():
    source = with_weights({"my/own": np.ones(3), "my/other": np.ones(2)})
    for drop in (["my/own", "my/other"], ["*/o*"]):
        planned = conversion.plan(source, "google", drop=drop)
        assert planned.left_over == {"my/other": "drop", "my/own": "drop"}
        assert set(planned.target.weights.shapes) == set(arrays("classifier"))
    with refused("not BERT's: my/other"):
        conversion.plan(source, "google", drop=["my/own"])


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({"config": None}, {}, "Pass `bert_config"),
        ({"head": None}, {}, "Pass `head`"),
        ({"vocab": ("[PAD]", "a", "a")}, {}, "of memory:3: .* on line 2"),
        ({}, {"keep_optimizer": True}, "79 variables of Adam's state"),
    ],
)
def test_refuses_a_conversion(change, options, message):
    source = dataclasses.replace(pretrained("encoder"), **change)
    with refused(message):
        conversion.plan(source, **{"to": "google"} | options)


@pytest.mark.parametrize("head", ["masked_lm", "next_sentence"])
def test_extra_parts_of_keras_are_zero_and_not_read(tmp_path, head):
    """Keras's class has more parts than the checkpoint."""
    pooler = head == "next_sentence"
    whole = pretrained(head, weights=arrays(head, pooler=pooler))
    convert(whole, tmp_path / "a", "keras")
    (tmp_path / "a" / "bert_tf.json").unlink()
    assert {*open_pretrained(tmp_path / "a").weights.shapes} == {*whole.weights}


@pytest.mark.parametrize("to", WRITTEN_FORMATS)
def test_every_format_keeps_every_fact(tmp_path, to):
    source = pretrained(
        "classifier",
        strip_accents=False,
        problem_type="regression",
        classifier_dropout=0.5,
        activation_fn="torch.nn.modules.activation.Sigmoid",
    )
    assert_same(convert(source, tmp_path / "out", to), source)


@pytest.mark.parametrize("head", HEADS)
def test_correct_files_pass(tmp_path, head):
    planned = conversion.plan(pretrained(head), "huggingface")
    conversion.write(planned, str(tmp_path))
    line = conversion.verify(planned, open_pretrained(tmp_path))
    assert line.endswith("outputs differ by 0 (at most 0.0001)")


def test_another_weight_is_found(tmp_path):
    planned = conversion.plan(pretrained("classifier"), "google")
    other = pretrained("classifier")
    other.weights["output_bias"][3] += 1
    with refused("outputs of the converted model differ .* by 1, more than 0."):
        conversion.verify(planned, other)


def test_the_batch_has_padding_and_two_segments():
    batch = random_batch(CONFIG, "encoder")
    assert {x.shape for x in batch.values()} == {(3, 19)}
    lengths = batch["input_mask"].sum(axis=1)
    assert lengths.min() >= 1
    assert lengths.min() < 19
    assert batch["input_ids"].max() < CONFIG.vocab_size
    assert np.unique(batch["segment_ids"]).tolist() == [0, 1]
