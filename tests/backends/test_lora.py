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
from tests.backends.small_bert import CONFIG, LABELS, V, outputs
from tests.backends.small_bert import trainable as trained

ADAPTERS = re.compile("bert/.*/(query|value)/lora_kernel_[ab]")
HEAD = {"output_weights", "output_bias"}


def adapted(model_class=BertClassifier, rank=3, **options):
    model = small_bert.make(model_class)
    model.enable_lora(rank, **options)
    return small_bert.fill(model, "/lora_kernel_")


@pytest.fixture(scope="module")
def plain():
    """A model without adapters; files that it refuses must not change it."""
    return small_bert.make(BertClassifier)


@pytest.fixture(scope="module")
def default_adapters():
    return adapted()


@pytest.mark.parametrize("model_class", small_bert.MODELS)
def test_adapters_and_head_are_trained(model_class):
    model = small_bert.make(model_class)
    before = outputs(model)
    names = set(checkpoint_variables(model))
    model.enable_lora(2)
    small_bert.assert_close(outputs(model), before, 1e-6)
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
    weights = small_bert.arrays(model)
    expected = outputs(model)
    plain = small_bert.make(BertClassifier)
    for name, variable in checkpoint_variables(plain).items():
        layer = name.removesuffix("/kernel")
        value = weights[name]
        if layer.removeprefix("bert/") in layers and layer != name:
            a, b = (weights[f"{layer}/lora_kernel_{x}"] for x in "ab")
            value = value + 6 / 3 * a @ b
        variable.assign(value)
    small_bert.assert_close(outputs(plain), expected)
    model.merge_lora()
    small_bert.assert_close(outputs(model), expected)
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


def test_only_adapters_and_head_are_trained(tmp_path):
    """With a used optimizer, and after saving and merging, too."""
    model = small_bert.make(
        BertClassifier, small_bert.WITHOUT_DROPOUT, dropout=0.0
    )
    small_bert.train(small_bert.compiled(model), 0, 1)
    model.enable_lora(2)
    assert small_bert.moved_by_training(model, 1, 3) == trained(model)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    for each in (model, loaded):
        small_bert.train(each, 3, 4)
    found, expected = map(small_bert.named_weights, (loaded, model))
    small_bert.assert_close(found, expected)
    model.merge_lora()
    small_bert.train(model, 4, 5)


def test_gradients_of_two_dtypes_are_clipped():
    """The adapters are float32, the head has the dtype of the model."""
    model = small_bert.make(BertClassifier, dtype="bfloat16")
    model.enable_lora(2)
    assert len({v.dtype for v in model.trainable_variables}) == 2
    small_bert.compiled(model, AdamWeightDecay(0.01, global_clipnorm=1.0))
    assert small_bert.moved_by_training(model, 0, 2) == trained(model)


def test_keras_files_keep_the_adapters(tmp_path):
    model = adapted(BertPretrainer, lora_alpha=7)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.get_config() == model.get_config()
    assert trained(loaded) == trained(model)
    expected = outputs(model)
    small_bert.assert_close(outputs(loaded), expected, 1e-6)
    # The words are resized in two layers.
    assert trained(resize_vocabulary(model, V + 1)) == trained(model)
    loaded.merge_lora()
    loaded.save(tmp_path / "merged.keras")
    again = keras.models.load_model(tmp_path / "merged.keras")
    small_bert.assert_close(outputs(again), expected)


def test_plain_weights_reset_the_adapters(tmp_path):
    plain, model = small_bert.make(BertClassifier), adapted()
    plain.save_weights(tmp_path / "plain.weights.h5")
    halves = {
        k: v for k, v in small_bert.arrays(model).items() if "kernel_a" in k
    }
    model.load_weights(tmp_path / "plain.weights.h5")
    small_bert.assert_close(outputs(model), outputs(plain))
    after = small_bert.arrays(model)
    for name, value in halves.items():
        np.testing.assert_array_equal(after[name], value)
        assert value.any()


def test_checkpoints_are_merged(tmp_path):
    model = adapted()
    expected = outputs(model)
    model.save_pretrained(tmp_path / "saved")
    model.save(tmp_path / "model.keras")
    for path in ("saved", "model.keras"):
        again = BertClassifier.from_pretrained(tmp_path / path)
        assert not again.adapters()
        small_bert.assert_close(outputs(again), expected)
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
        (lambda: small_bert.make(BertModel), "has in .* none; got"),
        (
            lambda: small_bert.fill(BertClassifier(CONFIG, num_labels=2)),
            rf"output_bias must have .* \(2,\); got \({LABELS},\)",
        ),
    ],
)
def test_files_of_other_models_change_nothing(
    make, message, default_adapters, tmp_path
):
    default_adapters.save_lora_weights(tmp_path)
    model = make()
    before = small_bert.arrays(model)
    with pytest.raises(InputError, match=message):
        model.load_lora_weights(tmp_path)
    small_bert.assert_close(small_bert.arrays(model), before, 0)


def test_files_of_earlier_versions(plain, tmp_path):
    expected, path = adapted(lora_alpha=7), tmp_path / "lora.safetensors"
    tensors = {n: small_bert.arrays(expected)[n] for n in trained(expected)}

    def load(model, **record):
        metadata = {"bert_tf_lora": json.dumps(record)}
        safetensors.numpy.save_file(tensors, path, metadata)
        model.load_lora_weights(path)

    for record, message in (
        ({}, "there are no LoRA adapters in it"),
        ({"layers": {"x": [3, 7]}}, "lora_kernel_a must have .* none"),
        ({"facts": 7}, "facts must be an object; got 7"),
    ):
        with pytest.raises(InputError, match=message):
            load(plain, **record)
        assert not plain.adapters()
    model = small_bert.make(BertClassifier)
    load(model, layers=expected.adapters(), facts={})
    small_bert.assert_close(outputs(model), outputs(expected), 1e-6)


@pytest.fixture
def peft_folder(tmp_path):
    """Returns a function that writes a model's adapters as PEFT does."""

    def write(model, **options):
        theirs = {row.ours: row.theirs for row in rows(model.config)}
        tensors = {}
        for name, value in small_bert.arrays(model).items():
            if name not in trained(model):
                continue
            layer, _, part = name.partition("/lora_kernel_")
            if part or name.endswith("/kernel"):
                value = value.T.copy()
            name = theirs[f"{layer}/kernel" if part else name]
            if part:
                name = name.removesuffix("weight")
                name += f"lora_{part.upper()}.weight"
            tensors[f"base_model.model.{name}"] = value
        config = {
            "bias": "none",
            "init_lora_weights": True,
            "lora_alpha": 7,
            "peft_type": "LORA",
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
    for again in (small_bert.make(model_class), model):
        again.load_lora_weights(path)
        assert trained(again) == trained(model)
        small_bert.assert_close(outputs(again), outputs(model), 1e-6)
    found, expected = (
        safetensors.numpy.load_file(folder / "adapter_model.safetensors")
        for folder in (path, peft_folder(model))
    )
    if model_class is BertModel:
        expected = {n.replace(".bert.", "."): x for n, x in expected.items()}
    small_bert.assert_close(found, expected, 0)


def test_layers_with_other_ranks_and_alphas(tmp_path):
    model = small_bert.make(BertClassifier)
    layers = [f"encoder/layer_{n}/output/dense" for n in (0, 1)]
    model.add_adapters({layers[0]: (2, 4), layers[1]: (3, 12)})
    small_bert.fill(model, "/lora_kernel_").save_lora_weights(tmp_path / "lora")
    again = small_bert.make(BertClassifier)
    again.load_lora_weights(tmp_path / "lora")
    assert again.adapters() == {layers[0]: [2, 4], layers[1]: [3, 4]}
    small_bert.assert_close(outputs(again), outputs(model))


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
    small_bert.assert_close(outputs(model), outputs(expected), 1e-5)


def test_other_files_of_peft_are_refused(peft_folder, default_adapters, plain):
    def refuses(path, message):
        with pytest.raises(InputError, match=message):
            plain.load_lora_weights(path)
        assert not plain.adapters()

    for options, message in (
        ({"peft_type": "LOHA"}, "peft_type must be 'LORA'; got 'LOHA'"),
        ({"use_dora": True}, "use_dora must be False; got True"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights must be one"),
        ({"lora_alpha": 1e300}, "lora_alpha must be a positive number"),
    ):
        refuses(peft_folder(default_adapters, **options), message)
    folder = peft_folder(default_adapters)
    path = folder / "adapter_model.safetensors"
    with pytest.raises(InputError, match="PEFT adapters, not a model"):
        BertClassifier.from_pretrained(folder)
    safetensors.numpy.save_file({}, path, {"format": "pt"})
    refuses(folder, "there are no LoRA adapters in it")
    path.unlink()
    refuses(folder, "there is no such safetensors file")
    path = folder / "adapter_model.bin"
    path.write_bytes(b"PK")
    refuses(folder, r"adapter_model\.bin is a pickle")
    refuses(path, r"adapter_model\.bin is a pickle")


@pytest.mark.parametrize("model_class", [BertClassifier, BertPretrainer])
def test_word_embeddings_trained_with_adapters_of_peft(
    peft_folder, model_class
):
    """In PEFT the output matrix of masked words keeps the old values."""
    expected = adapted(model_class, lora_alpha=7)
    table = checkpoint_variables(expected)["bert/embeddings/word_embeddings"]
    expected.bert.embeddings.trainable = True
    table.assign(table + 1)
    folder = peft_folder(expected)
    model = small_bert.make(model_class)
    if model_class is BertPretrainer:
        with pytest.raises(InputError, match="output matrix of masked words"):
            model.load_lora_weights(folder)
        return
    model.load_lora_weights(folder)
    small_bert.assert_close(outputs(model), outputs(expected), 1e-5)


def test_adapters_that_are_not_finite_change_nothing(
    peft_folder, plain, tmp_path
):
    model = adapted()
    model.output_bias.assign(np.full(LABELS, np.nan))
    model.save_lora_weights(tmp_path / "lora")
    for path in (tmp_path / "lora", peft_folder(model)):
        with pytest.raises(InputError, match="has numbers that are NaN"):
            plain.load_lora_weights(path)
        assert not plain.adapters()


def test_wrong_calls_are_errors(tmp_path):
    model = small_bert.make(BertModel)
    with pytest.raises(InputError, match="Call enable_lora first"):
        model.save_lora_weights(tmp_path / "lora")
    for arguments, message in (
        ((1.5,), "rank must be a positive integer"),
        ((10**9,), f"rank must be at most {small_bert.H}; got"),
        ((2, ["query", "q"]), "target_layer_names must be one"),
        ((2, []), "target_layer_names must be one"),
        ((2, "key", 0), "lora_alpha must be a positive"),
        ((2, "key", np.nan), "lora_alpha must be a positive"),
        ((2, "key", 3e38), "lora_alpha must be a positive"),
    ):
        with pytest.raises(InputError, match=message):
            model.enable_lora(*arguments)
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
