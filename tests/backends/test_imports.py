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
model = {library}.load_model("tests/golden/tensorflow.keras")
print(type(model).__name__, type(model.optimizer).__name__)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("imports", "library"),
    [
        ("import bert_tf", "bert_tf"),
        (
            "from bert_tf import AdamWeightDecay, BertClassifier; import keras",
            "keras.saving",
        ),
    ],
)
def test_the_classes_of_a_file_are_found(imports, library):
    """Keras finds classes that are imported, `bert_tf` imports them."""
    done = subprocess.run(
        [sys.executable, "-c", LOAD.format(imports=imports, library=library)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "BertClassifier AdamWeightDecay"
