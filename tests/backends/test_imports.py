"""Imports: TensorFlow is optional on other backends."""

import importlib.util
import os
import subprocess
import sys

import keras
import pytest

from tests.checkout import ROOT

BACKEND = os.environ.get("KERAS_BACKEND", "tensorflow")

IMPORT_ALL = """
import sys
import bert_tf

for name in set(bert_tf.__all__) - {"BertTokenizer"}:
    getattr(bert_tf, name)
print(sorted({"tensorflow", "jax", "torch"} & sys.modules.keys()))
"""


def test_the_backend_is_that_of_the_environment():
    assert keras.config.backend() == BACKEND


@pytest.mark.skipif(BACKEND == "tensorflow", reason="about the others")
def test_public_names_need_no_tensorflow():
    """Except for the tokenizer that is part of a TensorFlow graph."""
    assert importlib.util.find_spec("tensorflow") is None
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == repr([BACKEND])


LOAD = """
{imports}
model = keras.saving.load_model("tests/golden/tensorflow.keras")
print(type(model).__name__, type(model.optimizer).__name__)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "imports",
    ["import keras, bert_tf", "from bert_tf import BertModel; import keras"],
)
def test_keras_finds_the_classes_after_import(imports):
    done = subprocess.run(
        [sys.executable, "-c", LOAD.format(imports=imports)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "BertClassifier AdamWeightDecay"
