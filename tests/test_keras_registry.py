"""A `.keras` file is loaded where no class of it was used before."""

import importlib
import subprocess
import sys

import keras
import numpy as np
import tensorflow as tf

import bert_tf
from bert_tf import keras_registry
from tests.backends.small_bert import CONFIG

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "word"]
LOAD = """
import tensorflow as tf
model = bert_tf.load_model({path!r})
print(type(model.optimizer).__name__)
print(model(tf.constant(["word"]))["logits"].numpy().tolist())
"""
# Keras is found as without the package: the loader that registers the classes
# must not change anything else.
FIND_KERAS = """
import importlib.resources
import importlib.util

def location(spec):
    return spec.origin, spec.cached, list(spec.submodule_search_locations)

without = location(importlib.util.find_spec("keras"))
import bert_tf
import keras
assert location(keras.__spec__) == without, (keras.__spec__, without)
assert keras.__file__ == without[0], keras.__file__
assert (importlib.resources.files(keras) / "__init__.py").is_file()
"""


def run(code):
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_new_process_loads_model_tokenizer_and_optimizer(tmp_path):
    text = keras.Input((), dtype="string")
    features = bert_tf.BertTokenizer(VOCABULARY)(text)
    model = keras.Model(text, bert_tf.BertClassifier(CONFIG, 3)(features))
    schedule = bert_tf.WarmupLinearDecay(1e-3, 10)
    model.compile(bert_tf.Lamb(schedule), "mse")
    path = str(tmp_path / "model.keras")
    model.save(path)
    *_, optimizer, logits = run(FIND_KERAS + LOAD.format(path=path))
    assert optimizer == "Lamb"
    expected = np.array(model(tf.constant(["word"]))["logits"]).tolist()
    assert logits == str(expected)
    assert not bert_tf.load_model(path, compile=False).compiled


def test_every_registered_class_is_in_the_table():
    for name in keras_registry.REGISTERED:
        importlib.import_module(name)
    found = {
        (value.__module__, value.__name__)
        for key, value in keras.saving.get_custom_objects().items()
        if key.startswith("bert_tf>")
    }
    assert found == {
        (module, name)
        for module, names in keras_registry.REGISTERED.items()
        for name in names
    }
