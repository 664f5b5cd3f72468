"""Models from anywhere, alone or inside another model: saved and exported."""

import dataclasses
import itertools

import keras
import pytest

from bert_tf.checkpoints.pretrained import load_checkpoint
from bert_tf.data.records import INPUTS
from bert_tf.modeling.encoder import BertModel
from bert_tf.modeling.heads import BertClassifier
from tests.backends import small_bert
from tests.backends.small_bert import assert_close, outputs

CONFIG = dataclasses.replace(small_bert.CONFIG, num_hidden_layers=1)
OPTIONS = small_bert.ARGUMENTS | {BertModel: {}}
ON_TENSORFLOW = keras.backend.backend() == "tensorflow"


@keras.saving.register_keras_serializable("tests")
class Around(keras.Model):
    """A subclass of `keras.Model` around another model."""

    def __init__(self, inner, **kwargs):
        super().__init__(**kwargs)
        self.inner = inner

    def call(self, inputs):
        return self.inner(inputs)

    def get_config(self):
        inner = keras.saving.serialize_keras_object(self.inner)
        return {**super().get_config(), "inner": inner}

    @classmethod
    def from_config(cls, config):
        inner = keras.saving.deserialize_keras_object(config.pop("inner"))
        return cls(inner, **config)


def features(model_class, batch=3):
    values = small_bert.features(model_class)
    return {name: values[name][:batch] for name in INPUTS}


def made(model_class, origin, folder):
    """Returns a model, made in one of the ways of `ORIGINS`."""
    options = OPTIONS[model_class]
    if origin in ("config", "load_checkpoint"):
        model = model_class(CONFIG, **options)
        if origin == "load_checkpoint":
            load_checkpoint(model, folder / "encoder")
        return model
    model = model_class.from_pretrained(folder / "encoder", **options)
    if origin == "load_model":
        model.save(folder / "loaded.keras")
        model = keras.models.load_model(folder / "loaded.keras")
    return model


ORIGINS = ("config", "from_pretrained", "load_checkpoint", "load_model")


def wrapped(model, around):
    """Returns a model as it is, in a functional model or in a subclass."""
    if around == "functional":
        axes = (None,) * (model.input_rank - 1)
        symbols = {n: keras.Input(axes, dtype="int32", name=n) for n in INPUTS}
        return keras.Model(symbols, model(symbols))
    return Around(model) if around == "subclass" else model


AROUND = ("alone", "functional", "subclass")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("nested")
    small_bert.make(BertModel, CONFIG).save_pretrained(path / "encoder")
    return path


def table(*quick):
    """Marks all combinations as slow, except for those that are passed."""
    return [
        row if row in quick else pytest.param(*row, marks=pytest.mark.slow)
        for row in itertools.product(OPTIONS, ORIGINS, AROUND)
    ]


@pytest.mark.parametrize(
    ("model_class", "origin", "around"),
    table(
        (BertModel, "from_pretrained", "functional"),
        (BertClassifier, "load_checkpoint", "subclass"),
    ),
)
def test_saved(model_class, origin, around, folder, tmp_path):
    model = wrapped(made(model_class, origin, folder), around)
    inputs = features(model_class)

    expected = outputs(model, inputs)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert_close(outputs(loaded, inputs), expected)


def run_saved_model(path, inputs):
    import tensorflow as tf

    exported = tf.saved_model.load(path)
    return dict(exported.serve(inputs))


def run_onnx(path, inputs):
    session = pytest.importorskip("onnxruntime").InferenceSession(path)
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, inputs), strict=True))


@pytest.mark.skipif(not ON_TENSORFLOW, reason="exports need TensorFlow")
@pytest.mark.parametrize(
    ("format", "run", "package"),
    [
        ("tf_saved_model", run_saved_model, "tensorflow"),
        pytest.param("onnx", run_onnx, "tf2onnx", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(
    ("model_class", "origin", "around"),
    table((BertClassifier, "load_checkpoint", "subclass")),
)
def test_exported(
    model_class, origin, around, format, run, package, folder, tmp_path
):
    pytest.importorskip(package)
    model = wrapped(made(model_class, origin, folder), around)
    inputs = features(model_class)
    expected = outputs(model, inputs)
    signature = None
    if around == "subclass":
        # By default Keras takes floats, without names in ONNX.
        axes = (None,) * inputs["input_ids"].ndim
        signature = [
            {n: keras.InputSpec("int32", axes, name=n) for n in inputs}
        ]
    path = tmp_path / "model"
    model.export(path, format=format, verbose=False, input_signature=signature)
    assert_close(small_bert.named(run(path, inputs)), expected)
    one = features(model_class, 1)
    first = {name: value[:1] for name, value in expected.items()}
    assert_close(small_bert.named(run(path, one)), first)
