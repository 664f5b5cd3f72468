"""Without TensorFlow in the room, unless the backend is TensorFlow."""

import importlib.util
import os
import pathlib
import subprocess
import sys

import keras
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BACKEND = os.environ.get("KERAS_BACKEND", "tensorflow")

IMPORT_ALL = """
import sys
import bert_tf

for name in set(bert_tf.__all__) - {"BertTokenizer"}:
    getattr(bert_tf, name)
print(sorted({"tensorflow", "jax", "torch"} & sys.modules.keys()))
"""


def test_the_backend_is_the_one_that_was_asked_for():
    assert keras.config.backend() == BACKEND


@pytest.mark.skipif(BACKEND == "tensorflow", reason="about the others")
def test_every_public_name_can_be_had_without_tensorflow():
    """But the tokenizer that is a part of a TensorFlow graph."""
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


# On the other backends one order of each kind: the order decides what Keras
# registers, whatever it computes on.
ON_EVERY_BACKEND = ["import bert_tf, keras", "import keras, bert_tf"]
ON_TENSORFLOW = [
    "import keras; from bert_tf import BertModel",
    "from bert_tf import BertModel; import keras",
]


@pytest.mark.parametrize(
    "imports",
    ON_EVERY_BACKEND + (ON_TENSORFLOW if BACKEND == "tensorflow" else []),
)
def test_keras_finds_the_classes_once_the_package_is_imported(imports):
    done = subprocess.run(
        [sys.executable, "-c", LOAD.format(imports=imports)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "BertClassifier AdamWeightDecay"
