"""Every variable is accounted for; every direction keeps every bit."""

import dataclasses

import numpy as np
import pytest
import safetensors.numpy
from interop.small_models import (
    CONFIG,
    VOCAB,
    Arrays,
    arrays,
    assert_same_weights,
    pretrained,
    slots,
)

from bert_tf.errors import InputError
from bert_tf.interop import conversion
from bert_tf.interop.checkpoint import HEADS, Pretrained
from bert_tf.pretrained import open_pretrained

WITH_POOLER = [h for h in HEADS if h not in ("masked_lm", "token", "span")]


def convert(source, folder, to, **how):
    """Converts into a new folder and opens what came out."""
    folder.mkdir(parents=True)
    conversion.write(conversion.plan(source, to, **how), str(folder))
    return open_pretrained(folder)


def assert_same(ours, theirs):
    assert_same_weights(ours.weights, theirs.weights)
    for field in dataclasses.fields(Pretrained):
        if field.name not in ("path", "weights", "strip_accents"):
            assert getattr(ours, field.name) == getattr(theirs, field.name)


@pytest.mark.parametrize("act", ["gelu_tanh", "gelu_erf"])
@pytest.mark.parametrize("head", WITH_POOLER)
def test_there_and_back_again_keeps_every_bit(tmp_path, head, act, fidelity):
    """TF1 -> Keras -> Hugging Face -> TF1 -> Hugging Face -> Keras -> TF1."""
    config = dataclasses.replace(CONFIG, hidden_act=act)
    first = now = convert(pretrained(head, config), tmp_path / "0", "google")
    path = ["huggingface", "google", "huggingface"]
    if head != "next_sentence":  # Keras's model has a masked-LM head as well.
        path = ["keras", *path, "keras"]
    for step, to in enumerate([*path, "google"], start=1):
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


@pytest.mark.parametrize("head", ["masked_lm", "token", "span"])
def test_a_pooler_that_nothing_looks_at_goes_no_further(tmp_path, head):
    """Hugging Face's classes for these have none."""
    first = pretrained(head)
    theirs = convert(first, tmp_path / "theirs", "huggingface")
    back = convert(theirs, tmp_path / "ours", "google", head=head)
    expected = Arrays(
        {k: v for k, v in first.weights.items() if "pooler" not in k}
    )
    assert_same_weights(back.weights, expected)
    assert str(conversion.plan(back, "google", head)).endswith(
        "missing     2: bert/pooler/dense/kernel, bert/pooler/dense/bias "
        f"(a model of kind {head} does without)"
    )


def test_the_optimizer_is_kept_if_asked_for(tmp_path):
    weights = arrays("pretraining")
    kept = slots(weights)
    source = pretrained("pretraining", weights=Arrays({**weights, **kept}))
    whole = convert(source, tmp_path / "a", "google", keep_optimizer=True)
    assert_same_weights(whole.weights, source.weights)
    again = convert(whole, tmp_path / "b", "google", keep_optimizer=True)
    assert_same_weights(again.weights, source.weights)
    bare = convert(whole, tmp_path / "c", "google")
    assert_same_weights(bare.weights, weights)
    report = str(conversion.plan(whole, "google"))
    assert f"left over   {len(kept)}: " in report
    assert "--keep_optimizer" in report


@pytest.mark.parametrize("to", ["huggingface", "keras"])
def test_only_google_holds_an_optimizer(to):
    with pytest.raises(InputError, match="--to=google with --keep_optimizer"):
        conversion.plan(pretrained("encoder"), to, keep_optimizer=True)


def test_an_optimizer_that_is_not_there():
    with pytest.raises(InputError, match="lacks 79 of them, global_step, b"):
        conversion.plan(pretrained("encoder"), "google", keep_optimizer=True)


@pytest.mark.parametrize(
    ("source", "head"),
    [
        ("pretraining", "encoder"),
        ("pretraining", "masked_lm"),
        ("classifier", "encoder"),
        ("classifier", "token"),
    ],
)
def test_a_smaller_model_of_a_larger(tmp_path, source, head):
    """What is left over is said, with the reason."""
    whole = pretrained(source)
    planned = conversion.plan(whole, "google", head)
    assert planned.target.head == head
    names = set(planned.target.weights.shapes)
    left = {name for names in planned.left_over.values() for name in names}
    assert names | left == set(whole.weights)
    assert not names & left
    assert (planned.target.labels is None) == (head != "token")


def test_a_report_in_words():
    planned = conversion.plan(pretrained("pretraining"), "keras", "encoder")
    first, second, third, fourth = str(planned).splitlines()
    count = len(arrays("pretraining"))
    assert first.startswith(f"read        {count} variables, ")
    assert second.startswith(f"written     {count - 7} variables, ")
    assert second.endswith("as encoder")
    assert third == (
        "left over   7: cls/predictions/transform/dense/kernel, "
        "cls/predictions/transform/dense/bias, "
        "cls/predictions/transform/LayerNorm/gamma, ... (no part of a model "
        "of kind encoder in the format keras)"
    )
    assert fourth == "missing     0"


def test_what_hugging_face_has_besides_is_said(tmp_path):
    """Counters, and the matrix that the words and their scores share."""
    convert(pretrained("masked_lm"), tmp_path / "theirs", "huggingface")
    file = tmp_path / "theirs" / "model.safetensors"
    tensors = safetensors.numpy.load_file(file)
    words = tensors["bert.embeddings.word_embeddings.weight"]
    tensors["cls.predictions.decoder.weight"] = words
    tensors["bert.embeddings.position_ids"] = np.arange(19)[None]
    safetensors.numpy.save_file(tensors, file)
    planned = conversion.plan(open_pretrained(tmp_path / "theirs"), "google")
    left = {n for names in planned.left_over.values() for n in names}
    assert "bert.embeddings.position_ids" in left
    assert "cls.predictions.decoder.weight" in left


def broken(**changes):
    weights = arrays("classifier")
    for name, value in changes.items():
        name = name.replace("__", "/")
        if value is None:
            del weights[name]
        else:
            weights[name] = value
    return pretrained("classifier", weights=weights)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"bert__pooler__dense__bias": None},
            "lacks 1 of them, bert/pooler",
        ),
        ({"output_bias": None}, "lacks 1 of them, output_bias"),
        ({"my__own": np.ones(3)}, r"1 others, my/own; --drop leaves"),
        (
            {"bert__encoder__layer_2__output__dense__bias": np.ones(12)},
            "1 others, bert/encoder/layer_2/output/dense/bias",
        ),
        (
            {"bert__pooler__dense__bias": np.ones(13, "f4")},
            r"bert/pooler/dense/bias of shape \[12\].* \[13\] in memory",
        ),
        ({"output_weights": np.ones((2, 3), "f4")}, r"\[any, 12\].*\[2, 3\]"),
    ],
)
def test_what_nobody_can_explain_is_an_error(changes, message):
    with pytest.raises(InputError, match=message) as raised:
        conversion.plan(broken(**changes), "google")
    assert "\n" not in str(raised.value)


def test_what_may_be_dropped():
    source = broken(my__own=np.ones(3), my__other=np.ones(2))
    for drop in (["my/own", "my/other"], ["*/o*"]):
        planned = conversion.plan(source, "google", drop=drop)
        assert planned.left_over == {"--drop": ("my/other", "my/own")}
        assert set(planned.target.weights.shapes) == set(arrays("classifier"))
    with pytest.raises(InputError, match="1 others, my/other"):
        conversion.plan(source, "google", drop=["my/own"])


@pytest.mark.parametrize("pattern", ["yours", "bert/pooler/*"])
def test_nothing_else_may_be_dropped(pattern):
    with pytest.raises(InputError, match="which matches none"):
        conversion.plan(broken(), "google", drop=[pattern])


@pytest.mark.parametrize("fact", ["config", "head"])
def test_what_has_to_be_known(fact):
    source = dataclasses.replace(pretrained("encoder"), **{fact: None})
    with pytest.raises(InputError, match=f"--(bert_)?{fact}"):
        conversion.plan(source, "google")


def test_slots_of_what_is_left_out_are_left_out_too(tmp_path):
    weights = arrays("pretraining")
    source = pretrained(
        "pretraining", weights=Arrays({**weights, **slots(weights)})
    )
    planned = conversion.plan(source, "google", "encoder", keep_optimizer=True)
    encoder = Arrays(
        {k: v for k, v in weights.items() if k.startswith("bert/")}
    )
    assert set(planned.bookkeeping) == set(slots(encoder))
    left = [n for names in planned.left_over.values() for n in names]
    assert len(left) == 7 + 2 * 7


def test_an_encoder_without_a_pooler(tmp_path):
    """And a masked-LM model's encoder, which has none."""
    for number, head in enumerate(["encoder", "masked_lm"]):
        bare = arrays(head, pooler=False)
        expected = arrays(head, pooler=False)
        for name in list(expected):
            if name.startswith("cls/"):
                del expected[name]
        now = pretrained(head, weights=bare)
        for to in ("google", "keras", "huggingface", "google"):
            folder = tmp_path / f"{number}" / to / "0"
            while folder.exists():
                folder = folder.with_name(folder.name + "0")
            now = convert(now, folder, to, head="encoder")
            assert_same_weights(now.weights, expected)


@pytest.mark.parametrize("head", ["masked_lm", "next_sentence", "span"])
def test_what_keras_has_besides_is_zero_and_not_read(tmp_path, head):
    """Its class has more parts than the checkpoint: no random ones."""
    whole = pretrained(head, weights=arrays(head, pooler=False))
    if head == "next_sentence":
        whole = pretrained(head)
    planned = conversion.plan(whole, "keras")
    [(reason, names)] = planned.missing.items()
    assert reason.endswith("zeros in the file")
    model = convert(whole, tmp_path / "a", "keras")
    assert model.head == head
    assert_same_weights(model.weights, whole.weights)
    (tmp_path / "a" / "bert_tf.json").unlink()
    assert not set(names) & set(open_pretrained(tmp_path / "a").weights.shapes)


@pytest.mark.parametrize(
    ("vocab", "message"),
    [
        (
            ("[PAD]", "a", "a"),
            "'a' on lines 2 and 3 of the vocabulary of memory;",
        ),
        (tuple(map(str, range(24))), "at most 23 words .* Received: 24"),
    ],
)
def test_a_vocabulary_that_cannot_be_the_models(vocab, message):
    with pytest.raises(InputError, match=message):
        conversion.plan(pretrained("encoder", vocab=vocab), "keras")


def test_a_vocabulary_that_was_cut_short_is_logged(caplog):
    conversion.plan(pretrained("encoder"), "keras")
    assert not caplog.records
    conversion.plan(pretrained("encoder", vocab=VOCAB[:-2]), "keras")
    [record] = caplog.records
    assert record.getMessage() == (
        "the vocabulary of memory has 21 tokens, and the model's vocab_size is "
        "23; if the file was cut short, copy it again"
    )


def test_half_a_pooler():
    weights = arrays("span")
    del weights["bert/pooler/dense/bias"]
    with pytest.raises(InputError, match="lacks 1 of them, bert/pooler"):
        conversion.plan(pretrained("span", weights=weights), "keras")
