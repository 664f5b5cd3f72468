import dataclasses

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from bert_tf.errors import InputError
from bert_tf.interop import huggingface_names
from bert_tf.interop.checkpoint import HEADS
from bert_tf.interop.huggingface_names import PARTS_OF_HEAD
from bert_tf.interop.huggingface_weights import (
    HuggingFaceWeights,
    TensorFiles,
    from_ours,
    parts_of,
    weights_of,
)
from tests.interop.huggingface_folders import their_tensors
from tests.interop.small_models import (
    CONFIG,
    Arrays,
    arrays,
    assert_same_weights,
    slots,
)

WORDS = "bert.embeddings.word_embeddings.weight"
BIAS = "cls.predictions.bias"
DECODER = "cls.predictions.decoder.weight"
DECODER_BIAS = "cls.predictions.decoder.bias"
QUERY = "bert.encoder.layer.1.attention.self.query.weight"


@pytest.fixture
def opened(tmp_path):
    """Writes tensors to a file and opens it."""

    def open_file(tensors, config=CONFIG):
        path = str(tmp_path / "x.safetensors")
        save_file(tensors, path)
        return HuggingFaceWeights(TensorFiles(path), config)

    return open_file


@pytest.fixture
def refused(opened):
    """Opens tensors that are at fault; returns the line that says so."""

    def open_file(tensors, config=CONFIG):
        with pytest.raises(InputError) as caught:
            opened(tensors, config)
        assert "\n" not in str(caught.value)
        assert "x.safetensors" in str(caught.value)
        return str(caught.value)

    return open_file


@pytest.mark.parametrize("head", HEADS)
def test_names_are_ours_and_kernels_turned(opened, head):
    weights = opened(their_tensors(head))
    stored = {n: x for n, x in arrays(head).items() if n in weights}
    assert_same_weights(Arrays(stored), weights)
    assert weights.parts == set(PARTS_OF_HEAD[head])
    assert "bert/encoder/layer_0/output/dense/kernel" in weights
    assert "bert.encoder.layer.0.output.dense.weight" not in weights
    for name, shape in weights.shapes.items():
        assert weights[name].shape == tuple(shape)


def test_a_kernel_is_the_transpose(opened):
    tensors = their_tensors()
    kernel = "bert/encoder/layer_1/intermediate/dense/kernel"
    np.testing.assert_array_equal(
        opened(tensors)[kernel],
        tensors["bert.encoder.layer.1.intermediate.dense.weight"].T,
    )


def rename(tensors, old, new):
    return {name.replace(old, new): value for name, value in tensors.items()}


@pytest.mark.parametrize(
    "change",
    [
        lambda t: rename(t, "LayerNorm.weight", "LayerNorm.gamma"),
        lambda t: rename(t, "LayerNorm.bias", "LayerNorm.beta"),
        lambda t: {n.removeprefix("bert."): x for n, x in t.items()},
        lambda t: t | {DECODER: t[WORDS]},
        lambda t: t | {DECODER_BIAS: t[BIAS]},
        lambda t: rename(t, WORDS, DECODER),
        lambda t: rename(t, BIAS, DECODER_BIAS),
        lambda t: t | {"bert.embeddings.position_ids": np.arange(19)[None]},
        lambda t: (
            t | {"bert.embeddings.token_type_ids": np.zeros((1, 19), int)}
        ),
        lambda t: dict(sorted(t.items(), reverse=True)),
    ],
)
def test_other_spellings_of_the_same(opened, change):
    tensors = their_tensors()
    assert_same_weights(opened(tensors), opened(change(tensors)))


@pytest.mark.parametrize("dtype", ["float16", ml_dtypes.bfloat16])
def test_widens_half_precision(opened, dtype):
    halves = {n: x.astype(dtype) for n, x in their_tensors().items()}
    wide = {n: x.astype("float32") for n, x in halves.items()}
    weights = opened(halves)
    assert_same_weights(opened(wide), weights)
    assert {weights[n].dtype for n in weights.shapes} == {np.dtype("float32")}


@pytest.mark.parametrize(
    ("tied", "to"),
    [
        (DECODER, WORDS),
        (DECODER_BIAS, BIAS),
        ("embeddings.word_embeddings.weight", WORDS),
    ],
)
def test_refuses_two_that_should_be_one(refused, tied, to):
    tensors = their_tensors()
    other = tensors[to].copy()
    other.flat[-1] += 1e-6
    message = refused(tensors | {tied: other})
    assert f"expected {tied} to be {to} once more" in message


def warned(caplog):
    """The one line that was logged since."""
    [record] = caplog.records
    caplog.clear()
    return record.getMessage()


def test_has_what_it_does_not_know_under_its_own_name(opened, caplog):
    tensors = their_tensors()
    more = {f"bert.adapter.{n}.weight": np.ones(3, "float32") for n in range(7)}
    more["counts"] = np.arange(3)
    more["half"] = np.arange(3, dtype=ml_dtypes.bfloat16)
    weights = opened(tensors | more)
    assert_same_weights(Arrays(arrays("pretraining") | more), weights)
    assert weights["counts"].dtype == np.int64
    assert weights["half"].dtype == np.float32
    assert weights.parts == set(PARTS_OF_HEAD["pretraining"])
    with pytest.raises(KeyError):
        weights["bert.pooler.dense.bias"]
    assert not weights.explained


def test_warns_in_one_line_of_what_it_does_not_know(opened, caplog):
    more = {f"bert.adapter.{n}.weight": np.ones(3, "float32") for n in range(7)}
    opened(their_tensors() | more)
    message = warned(caplog)
    assert (
        "7 tensors ('bert.adapter.0.weight', 'bert.adapter.1.weight'" in message
    )
    assert "..." in message
    assert "adapter.4" not in message
    opened(their_tensors() | {"lone": np.ones(3, "float32")})
    assert "holds 1 tensor ('lone') beside the" in warned(caplog)
    hostile = "a\nb\x1b[31m" + 10**4 * "c"
    opened(their_tensors() | {hostile: np.ones(3, "float32")})
    message = warned(caplog)
    assert len(message) < 400
    assert "\n" not in message
    assert "\x1b" not in message


@pytest.mark.parametrize("name", ["output_bias", "bert/pooler/dense/bias"])
def test_refuses_what_borrows_a_name_of_ours(refused, name):
    message = refused(their_tensors() | {name: np.ones(3, "float32")})
    assert f"Received: 1 tensor ({name!r}) as well" in message


def test_explains_what_it_leaves_out(opened):
    tensors = their_tensors()
    counter = "embeddings.position_ids"
    weights = opened(
        tensors
        | {counter: np.arange(19)[None]}
        | {DECODER: tensors[WORDS], DECODER_BIAS: tensors[BIAS]}
    )
    assert weights.explained == {
        counter: "a counter, which nothing reads",
        DECODER: f"{WORDS} once more",
        DECODER_BIAS: f"{BIAS} once more",
    }


@pytest.mark.parametrize("layers", [1, 3, 1000])
def test_refuses_another_number_of_layers(refused, layers):
    config = dataclasses.replace(CONFIG, num_hidden_layers=layers)
    message = refused(their_tensors(), config)
    assert "layer" in message


@pytest.mark.parametrize(
    "name",
    [
        WORDS,
        QUERY,
        "bert.encoder.layer.0.output.LayerNorm.bias",
        "bert.pooler.dense.bias",
        "cls.predictions.transform.dense.weight",
        "cls.seq_relationship.bias",
    ],
)
def test_refuses_half_a_part(refused, name):
    tensors = their_tensors()
    del tensors[name]
    assert f"without 1 tensor ({name!r})" in refused(tensors)


@pytest.mark.parametrize("gone", ["pooler", "cls.predictions", "cls.seq_rel"])
def test_a_whole_part_may_be_missing(opened, gone):
    tensors = their_tensors()
    rest = {n: x for n, x in tensors.items() if gone not in n}
    assert len(opened(tensors).parts - opened(rest).parts) == 1


def test_the_encoder_may_not_be_missing(refused):
    heads = {n: x for n, x in their_tensors().items() if n[:4] == "cls."}
    message = refused(heads)
    assert "layers" in message or "encoder" in message


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        (WORDS, (24, 12), "[23, 12]"),
        (WORDS, (12, 23), "[23, 12]"),
        (QUERY, (12, 13), "[12, 12]"),
        (QUERY, (144,), "[12, 12]"),
        ("bert.encoder.layer.1.output.dense.weight", (17, 12), "[12, 17]"),
        ("bert.pooler.dense.bias", (12, 1), "[12]"),
        ("cls.seq_relationship.weight", (3, 12), "[2, 12]"),
        ("cls.predictions.bias", (0,), "[23]"),
    ],
)
def test_refuses_another_shape(refused, name, shape, expected):
    message = refused(their_tensors() | {name: np.ones(shape, "float32")})
    assert f"expected {name} of shape {expected}, as" in message
    assert f"Received: {list(shape)} in " in message


def test_refuses_no_classes(refused):
    tensors = their_tensors("classifier")
    tensors["classifier.bias"] = np.ones(0, "float32")
    assert "classifier.bias of shape [classes]" in refused(tensors)


@pytest.mark.parametrize("dtype", ["int8", "int64", "bool"])
def test_refuses_another_dtype(refused, dtype):
    message = refused(their_tensors() | {QUERY: np.ones((12, 12), dtype)})
    assert f"expected {QUERY} in one of float32, float16, bfloat16" in message


def test_makes_float64_narrower_where_nothing_changes(opened):
    tensors = their_tensors()
    wide = {name: x.astype("float64") for name, x in tensors.items()}
    weights = opened(wide)
    assert_same_weights(opened(tensors), weights)
    wide["cls.predictions.bias"][3] = 0.1
    weights = opened(wide)
    with pytest.raises(InputError, match="float64 with others in "):
        weights["cls/predictions/output_bias"]


@pytest.mark.parametrize("head", HEADS)
def test_gives_a_class_what_it_has(head):
    weights = arrays("pretraining") | arrays("span") | arrays("token")
    if head == "choice":
        weights |= arrays("choice")
    parts = {row.part for row in from_ours(Arrays(weights), CONFIG, head)}
    assert parts == set(PARTS_OF_HEAD[head])


def test_passes_over_what_an_optimizer_holds():
    weights = arrays("pretraining")
    more = Arrays(weights | slots(weights))
    assert set(weights_of(more)) == set(weights)
    assert (
        from_ours(more, CONFIG, "pretraining").keys()
        == from_ours(weights, CONFIG, "pretraining").keys()
    )


def test_an_encoder_may_have_no_pooler():
    tensors = from_ours(arrays("token", pooler=False), CONFIG, "encoder")
    assert {row.part for row in tensors} == {"encoder"}


@pytest.mark.parametrize(
    ("change", "head", "complaint"),
    [
        ({"bert/extra": (3,)}, "encoder", r"1 tensor \('bert/extra'\) as well"),
        ({"bert/pooler/dense/bias": None}, "encoder", "bert.pooler.dense.bias"),
        (
            {"bert/embeddings/LayerNorm/beta": None},
            "encoder",
            "embeddings.LayerNorm.bias",
        ),
        ({"bert/pooler/dense/bias": (13,)}, "encoder", r"shape \[12\]"),
        ({}, "span", "qa_outputs.weight"),
        ({}, "classifier", "classifier.weight"),
    ],
)
def test_refuses_weights_that_make_no_such_model(change, head, complaint):
    weights = arrays("pretraining")
    for name, shape in change.items():
        weights.pop(name, None)
        if shape:
            weights[name] = np.ones(shape, "float32")
    with pytest.raises(InputError, match=complaint) as caught:
        from_ours(weights, CONFIG, head)
    assert "in memory" in str(caught.value) or "memory with" in str(
        caught.value
    )


def test_refuses_to_write_what_is_no_weight():
    weights = arrays("encoder")
    name = "bert/pooler/dense/bias"
    weights[name] = weights[name].astype("int32")
    with pytest.raises(InputError, match=f"{name} in one of .*: int32"):
        from_ours(weights, CONFIG, "encoder")


def test_writes_float64_where_nothing_changes():
    weights = arrays("encoder")
    wide = Arrays({n: x.astype("float64") for n, x in weights.items()})
    expected = from_ours(weights, CONFIG, "encoder")
    for row, value in from_ours(wide, CONFIG, "encoder").items():
        np.testing.assert_array_equal(value, expected[row])
        assert value.dtype == np.float32
    wide["bert/pooler/dense/bias"][3] = 0.1
    with pytest.raises(InputError, match="dense/bias in numbers that float32"):
        from_ours(wide, CONFIG, "encoder")


def test_writes_half_precision_as_float32():
    weights = Arrays(
        {n: x.astype(ml_dtypes.bfloat16) for n, x in arrays("encoder").items()}
    )
    tensors = from_ours(weights, CONFIG, "encoder")
    assert {x.dtype for x in tensors.values()} == {np.dtype("float32")}


@pytest.mark.parametrize("head", HEADS)
def test_sees_the_parts(head):
    expected = {*PARTS_OF_HEAD[head], "pooler"}
    assert parts_of(arrays(head), CONFIG) == expected


def test_no_more_rows_than_a_file_can_have(opened, monkeypatch):
    """Names are not made for a thousand layers that no file has."""
    tensors = their_tensors()
    monkeypatch.setattr(huggingface_names, "rows", None)
    config = dataclasses.replace(CONFIG, num_hidden_layers=1000)
    with pytest.raises(InputError, match="expected 1000 layers"):
        opened(tensors, config)
