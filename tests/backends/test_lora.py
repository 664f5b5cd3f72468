"""LoRA adapters: what is trained, saved and merged, on every backend."""

import json
import re

import keras
import numpy as np
import pytest
import safetensors.numpy

import bert_tf
from bert_tf.checkpoints.huggingface_names import rows
from bert_tf.errors import InputError
from bert_tf.modeling.encoder import BertModel, resize_vocabulary
from bert_tf.modeling.heads import BertClassifier, BertPretrainer
from bert_tf.modeling.optimization import AdamWeightDecay
from bert_tf.modeling.variables import checkpoint_variables
from tests.backends import small_bert
from tests.backends.small_bert import (
    CONFIG,
    LABELS,
    V,
    compiled,
    moved_by_training,
)
from tests.backends.small_bert import trainable as trained

ADAPTERS = re.compile("bert/.*/(query|value)/lora_kernel_[ab]")
HEAD = {"output_weights", "output_bias"}


def fill_adapters(model):
    """Makes the adapters functions of their names, B not zero."""
    for name, variable in checkpoint_variables(model).items():
        if "/lora_kernel_" in name:
            variable.assign(small_bert.weight(name, tuple(variable.shape)))
    return model


def adapted(model_class=BertClassifier, rank=3, **options):
    model = small_bert.make(model_class)
    model.enable_lora(rank, **options)
    return fill_adapters(model)


def outputs(model, model_class=BertClassifier):
    inputs = small_bert.features(model_class)
    return small_bert.named(small_bert.call(model, inputs))


def assert_close(found, expected, rtol=1e-5):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(
            found[name], value, rtol=rtol, atol=rtol, err_msg=name
        )


@pytest.fixture(scope="module")
def plain():
    """A model without adapters; files that it refuses must not change it."""
    return small_bert.make(BertClassifier)


@pytest.fixture(scope="module")
def adapters_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("adapters") / "lora"
    adapted().save_lora_weights(path)
    return path


@pytest.mark.parametrize("model_class", small_bert.MODELS)
def test_adapters_and_head_are_trained(model_class):
    model = small_bert.make(model_class)
    before = outputs(model, model_class)
    names = set(checkpoint_variables(model))
    model.enable_lora(2)
    assert_close(outputs(model, model_class), before, 1e-6)
    adapters = {n for n in trained(model) if ADAPTERS.fullmatch(n)}
    assert len(adapters) == 8
    head = {n for n in names if not n.startswith("bert/")}
    assert trained(model) == adapters | head
    if model_class is BertModel:
        assert not head


@pytest.mark.parametrize(
    ("targets", "count"),
    [("key", 1), (["output", "intermediate"], 2), ("all", 6)],
)
def test_targets_alpha_and_merging(targets, count):
    model = adapted(target_layer_names=targets, lora_alpha=6)
    layers = model.adapters()
    assert [*layers.values()] == [[3, 6]] * count * 2
    weights = {n: v.numpy() for n, v in checkpoint_variables(model).items()}
    expected = outputs(model)
    plain = small_bert.make(BertClassifier)
    for name, variable in checkpoint_variables(plain).items():
        layer = name.removesuffix("/kernel")
        value = weights[name]
        if layer.removeprefix("bert/") in layers and layer != name:
            a, b = (weights[f"{layer}/lora_kernel_{x}"] for x in "ab")
            value = value + 6 / 3 * a @ b
        variable.assign(value)
    assert_close(outputs(plain), expected)
    model.merge_lora()
    assert_close(outputs(model), expected)
    assert set(checkpoint_variables(model)) == set(checkpoint_variables(plain))
    assert trained(model) == HEAD
    model.bert.freeze(0, embeddings=False)
    assert any("/query/kernel" in name for name in trained(model))
    model.merge_lora()


@pytest.mark.parametrize("arguments", [(1,), (2,), (0, False)])
def test_the_order_of_freezing_does_not_matter(arguments):
    before, after = (small_bert.make(BertClassifier) for _ in range(2))
    before.bert.freeze(*arguments)
    before.enable_lora(2)
    after.enable_lora(2)
    after.bert.freeze(*arguments)
    assert trained(before) == trained(after)
    assert len(trained(after)) == 8 + len(HEAD)


def test_a_training_step_moves_only_adapters_and_head():
    """In steps between two calls of `fit` too, with a used optimizer."""
    model = compiled(small_bert.make(BertClassifier))
    small_bert.train(model, 0, 1)
    model.enable_lora(2)
    assert moved_by_training(model, 1, 3) == trained(model)
    model.merge_lora()
    small_bert.train(model, 3, 4)


def test_bfloat16_keeps_small_changes():
    """bfloat16 would round the sum of kernel and product to the kernel."""
    model = adapted(BertModel)
    expected = outputs(model, BertModel)["pooled_output"]
    half = BertModel(CONFIG, dtype="mixed_bfloat16")
    half.build()
    half.enable_lora(3)
    half.set_weights(model.get_weights())
    found = outputs(half, BertModel)["pooled_output"]
    np.testing.assert_allclose(found, expected, atol=0.05)


def test_gradients_of_two_dtypes_are_clipped():
    """The adapters are float32, the head has the dtype of the model."""
    model = small_bert.make(BertClassifier, dtype="bfloat16")
    model.enable_lora(2)
    assert len({v.dtype for v in model.trainable_variables}) == 2
    compiled(model, AdamWeightDecay(0.01, global_clipnorm=1.0))
    assert moved_by_training(model, 0, 2) == trained(model)


@pytest.mark.parametrize("model_class", [BertModel, BertPretrainer])
def test_keras_files_keep_the_adapters(model_class, tmp_path):
    model = adapted(model_class, lora_alpha=7)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.get_config() == model.get_config()
    assert trained(loaded) == trained(model)
    expected = outputs(model, model_class)
    assert_close(outputs(loaded, model_class), expected, 1e-6)
    if model_class is not BertPretrainer:
        return
    # The words are resized in two layers.
    larger = resize_vocabulary(model, V + 1)
    assert trained(larger) == trained(model)
    loaded.merge_lora()
    loaded.save(tmp_path / "merged.keras")
    again = keras.models.load_model(tmp_path / "merged.keras")
    assert_close(outputs(again, model_class), expected)


def test_a_compiled_model_continues(tmp_path):
    model = small_bert.make(
        BertClassifier, small_bert.WITHOUT_DROPOUT, dropout=0.0
    )
    compiled(model)
    model.enable_lora(2)
    small_bert.train(model, 0, 2)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    for each in (model, loaded):
        small_bert.train(each, 2, 3)
    found, expected = map(small_bert.named_weights, (loaded, model))
    assert_close(found, expected)


def test_plain_weights_reset_the_adapters(tmp_path):
    plain, model = small_bert.make(BertClassifier), adapted()
    plain.save_weights(tmp_path / "plain.weights.h5")
    a = model.bert.encoder.blocks[
        0
    ].attention.self_attention.query.lora_kernel_a
    before = a.numpy()
    model.load_weights(tmp_path / "plain.weights.h5")
    assert_close(outputs(model), outputs(plain))
    np.testing.assert_array_equal(a, before)
    assert before.any()


def test_checkpoints_are_merged(tmp_path):
    model = adapted()
    expected = outputs(model)
    model.save_pretrained(tmp_path / "saved")
    model.save(tmp_path / "model.keras")
    for path in ("saved", "model.keras"):
        again = BertClassifier.from_pretrained(tmp_path / path)
        assert not again.adapters()
        assert_close(outputs(again), expected)
    with pytest.raises(InputError, match="Load the checkpoint before you"):
        bert_tf.load_checkpoint(model, tmp_path / "saved")


def other_base():
    model = small_bert.make(BertClassifier)
    variable = checkpoint_variables(model)["bert/pooler/dense/bias"]
    variable.assign(variable + 0.1)
    return model


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (other_base, "trained with weights that"),
        (lambda: adapted(rank=2), "other layers, or with another rank"),
        (lambda: adapted(target_layer_names="key"), "without adapters"),
        (lambda: small_bert.make(BertModel), "has in .* none; got"),
        (
            lambda: small_bert.fill(BertClassifier(CONFIG, num_labels=2)),
            rf"output_bias must have .* \(2,\); got \({LABELS},\)",
        ),
    ],
)
def test_files_of_other_models_change_nothing(make, message, adapters_file):
    model = make()
    before = small_bert.numbers(checkpoint_variables(model))
    with pytest.raises(InputError, match=message):
        model.load_lora_weights(adapters_file)
    after = small_bert.numbers(checkpoint_variables(model))
    assert_close(after, before, 0)


@pytest.fixture(scope="module")
def old_file(tmp_path_factory):
    """Returns a function that writes a file of an earlier version."""
    model = adapted(lora_alpha=7)
    trained = {
        name: keras.ops.convert_to_numpy(variable)
        for name, variable in checkpoint_variables(model).items()
        if variable.trainable
    }
    path = tmp_path_factory.mktemp("old") / "lora.safetensors"

    def write(tensors=None, **changes):
        record = {"layers": model.adapters(), "facts": {}, **changes}
        metadata = {"bert_tf_lora": json.dumps(record)}
        tensors = trained | (tensors or {})
        kept = {n: x for n, x in tensors.items() if x is not None}
        safetensors.numpy.save_file(kept, path, metadata)
        return path

    return write


def test_files_of_earlier_versions(old_file):
    model = small_bert.make(BertClassifier)
    model.load_lora_weights(old_file())
    assert_close(outputs(model), outputs(adapted(lora_alpha=7)), 1e-6)


LAST = "bert/encoder/layer_1/attention/self/value/lora_kernel_b"
BAD_OLD_FILES = [
    ({"layers": None}, "there are no LoRA adapters in it"),
    ({"layers": {}}, "there are no LoRA adapters in it"),
    ({"layers": {"pooler/dense": [3, 7]}}, "_kernel_a must have .* none; got"),
    ({"layers": {"x": [3, 7]}}, "lora_kernel_a must have .* none"),
    ({"facts": 7}, "facts must be an object; got 7"),
    ({"other_weights": 7}, "other_weights must be a string"),
    ({"tensors": {LAST: None}}, f"{LAST} must have .*; got none"),
    ({"tensors": {LAST: np.ones((2, 3))}}, f"{LAST} must have the shape"),
]


@pytest.mark.parametrize(("changes", "message"), BAD_OLD_FILES)
def test_malformed_files_change_nothing(changes, message, old_file, plain):
    with pytest.raises(InputError, match=message):
        plain.load_lora_weights(old_file(**changes))
    assert not plain.adapters()


@pytest.fixture(scope="module")
def default_adapters():
    return adapted()


@pytest.fixture
def peft_folder(tmp_path):
    """Returns a function that writes a model's adapters as PEFT does."""

    def write(model, **options):
        theirs = {row.ours: row.theirs for row in rows(model.config)}
        tensors = {}
        for name, variable in checkpoint_variables(model).items():
            if not variable.trainable:
                continue
            value = keras.ops.convert_to_numpy(variable)
            layer, _, part = name.partition("/lora_kernel_")
            if part:
                name = theirs[f"{layer}/kernel"].removesuffix(".weight")
                name += f".lora_{part.upper()}.weight"
                value = value.T.copy()
            else:
                value = value.T.copy() if name.endswith("/kernel") else value
                name = theirs[name]
            tensors[f"base_model.model.{name}"] = value
        config = {
            "base_model_name_or_path": "base",
            "bias": "none",
            "init_lora_weights": True,
            "lora_alpha": 7,
            "lora_dropout": 0.1,
            "peft_type": "LORA",
            "r": 3,
            "rank_pattern": {},
            "target_modules": ["query", "value"],
            "use_dora": False,
            "use_rslora": False,
        }
        folder = tmp_path / "peft"
        folder.mkdir(exist_ok=True)
        path = folder / "adapter_model.safetensors"
        safetensors.numpy.save_file(tensors, path, {"format": "pt"})
        text = json.dumps(config | options)
        (folder / "adapter_config.json").write_text(text)
        return folder

    return write


@pytest.mark.parametrize(
    "model_class", [BertModel, BertPretrainer, BertClassifier]
)
def test_adapter_files_round_trip(model_class, peft_folder, tmp_path):
    path = tmp_path / "lora"
    model = adapted(model_class, lora_alpha=7)
    for _ in range(2):
        model.save_lora_weights(path)
    for again in (
        small_bert.make(model_class),
        adapted(model_class, lora_alpha=7),
    ):
        again.load_lora_weights(path)
        assert trained(again) == trained(model)
        found, expected = (outputs(m, model_class) for m in (again, model))
        assert_close(found, expected, 1e-6)
    found, expected = (
        safetensors.numpy.load_file(folder / "adapter_model.safetensors")
        for folder in (path, peft_folder(model))
    )
    if model_class is BertModel:
        expected = {n.replace(".bert.", "."): x for n, x in expected.items()}
    assert_close(found, expected, 0)


def test_layers_with_other_ranks_and_alphas(tmp_path):
    model = small_bert.make(BertClassifier)
    layers = [f"encoder/layer_{n}/output/dense" for n in (0, 1)]
    model.add_adapters({layers[0]: (2, 4), layers[1]: (3, 12)})
    fill_adapters(model).save_lora_weights(tmp_path / "lora")
    again = small_bert.make(BertClassifier)
    again.load_lora_weights(tmp_path / "lora")
    assert again.adapters() == {layers[0]: [2, 4], layers[1]: [3, 4]}
    assert_close(outputs(again), outputs(model))


@pytest.mark.parametrize(
    ("use_rslora", "name"), [(False, ""), (True, "adapter_model.safetensors")]
)
def test_adapters_of_peft(peft_folder, use_rslora, name, caplog):
    scale = 3**0.5 if use_rslora else 1
    expected = adapted(target_layer_names="all", lora_alpha=7 * scale)
    checkpoint_variables(expected)["output_bias"].assign(np.arange(LABELS))
    folder = peft_folder(expected, use_rslora=use_rslora)
    model = small_bert.make(BertClassifier)
    model.load_lora_weights(folder / name)
    assert "does not record which weights" in caplog.text
    assert trained(model) == trained(expected)
    assert_close(outputs(model), outputs(expected), 1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"peft_type": "LOHA"}, "peft_type must be 'LORA'; got 'LOHA'"),
        ({"use_dora": True}, "use_dora must be False; got True"),
        ({"bias": "all"}, "bias must be 'none'; got 'all'"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out must be False"),
        ({"alpha_pattern": {"key": 2}}, "alpha_pattern must be {}"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights must be one"),
        ({"lora_alpha": np.nan}, "lora_alpha must be a positive number"),
        ({"lora_alpha": 1e300}, "lora_alpha must be a positive number"),
    ],
)
def test_other_adapters_of_peft_are_refused(
    peft_folder, default_adapters, plain, options, message
):
    folder = peft_folder(default_adapters, **options)
    with pytest.raises(InputError, match=message):
        plain.load_lora_weights(folder)
    assert not plain.adapters()


def test_files_of_peft_without_adapters_are_refused(
    peft_folder, default_adapters, plain
):
    folder = peft_folder(default_adapters)
    path = folder / "adapter_model.safetensors"
    safetensors.numpy.save_file({}, path, {"format": "pt"})
    with pytest.raises(InputError, match="there are no LoRA adapters in it"):
        plain.load_lora_weights(folder)
    assert not plain.adapters()
    path.unlink()
    path = folder / "adapter_model.bin"
    path.write_bytes(b"PK")
    for name in (folder, path):
        with pytest.raises(InputError, match=r"adapter_model\.bin is a pickle"):
            plain.load_lora_weights(name)


@pytest.mark.parametrize("model_class", [BertClassifier, BertPretrainer])
def test_word_embeddings_trained_with_adapters_of_peft(
    peft_folder, model_class
):
    """In PEFT the output matrix of masked words keeps the old values."""
    expected = adapted(model_class, lora_alpha=7)
    table = checkpoint_variables(expected)["bert/embeddings/word_embeddings"]
    expected.bert.embeddings.trainable = True
    table.assign(table + 1)
    folder = peft_folder(expected, modules_to_save=["word_embeddings"])
    model = small_bert.make(model_class)
    if model_class is BertPretrainer:
        with pytest.raises(InputError, match="output matrix of masked words"):
            model.load_lora_weights(folder)
        return
    model.load_lora_weights(folder)
    assert_close(outputs(model), outputs(expected), 1e-5)


def test_adapters_that_are_not_finite_change_nothing(
    peft_folder, plain, tmp_path
):
    model = adapted()
    variable = checkpoint_variables(model)["output_bias"]
    variable.assign(np.full(LABELS, np.nan))
    model.save_lora_weights(tmp_path / "lora")
    for path in (tmp_path / "lora", peft_folder(model)):
        with pytest.raises(InputError, match="has numbers that are NaN"):
            plain.load_lora_weights(path)
        assert not plain.adapters()


def test_adapters_of_peft_are_not_a_model(peft_folder, default_adapters, plain):
    folder = peft_folder(default_adapters)
    with pytest.raises(InputError, match="PEFT adapters, not a model"):
        BertClassifier.from_pretrained(folder)
    (folder / "adapter_model.safetensors").unlink()
    with pytest.raises(InputError, match="there is no such safetensors file"):
        plain.load_lora_weights(folder)


def test_wrong_calls_are_errors(tmp_path):
    model = small_bert.make(BertModel)
    with pytest.raises(InputError, match="Call enable_lora first"):
        model.save_lora_weights(tmp_path / "lora")
    for rank in (0, 1.5):
        with pytest.raises(InputError, match="rank must be a positive integer"):
            model.enable_lora(rank)
    with pytest.raises(
        InputError, match=f"rank must be at most {small_bert.H}; got"
    ):
        model.enable_lora(10**9)
    for alpha in (0, -1, "8", np.nan, np.inf, 3e38, 1e300, True):
        with pytest.raises(InputError, match="lora_alpha must be a positive"):
            model.enable_lora(2, lora_alpha=alpha)
    for targets in ("dense", ["query", "q"], []):
        with pytest.raises(InputError, match="target_layer_names must be one"):
            model.enable_lora(2, targets)
    model.save_pretrained(tmp_path / "saved")
    with pytest.raises(InputError, match="there are no LoRA adapters"):
        model.load_lora_weights(tmp_path / "saved" / "model.safetensors")
    model.enable_lora(2)
    with pytest.raises(InputError, match="Call merge_lora first"):
        model.enable_lora(2)
    with pytest.raises(InputError, match="Call merge_lora before quantize"):
        model.quantize("int8")
    model.merge_lora()
    model.quantize("int8")
    with pytest.raises(InputError, match="Call enable_lora before quantize"):
        model.enable_lora(2)
