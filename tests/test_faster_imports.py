"""Some imports wait until they are needed; settings stay as they were."""

import gc
import subprocess
import sys

import pytest

from bert_tf.faster_imports import without_garbage_collection

DELAYED = """
import gc, inspect, sys
import bert_tf
bert_tf.BertModel
import keras
assert gc.isenabled()
# AutoGraph asks all modules for their file, as `inspect.getmodule` does.
modules = [*sys.modules.values()]
files = [getattr(module, "__file__", None) for module in modules]
assert keras.wrappers.__file__ in files
assert inspect.getmodule(keras.Model.fit)
assert keras.wrappers.__spec__.name == "keras.wrappers"
print("sklearn" in sys.modules, "matplotlib" in sys.modules)
assert "SKLearnClassifier" in dir(keras.wrappers)
from keras.visualization import plot_image_gallery
assert callable(plot_image_gallery)
print("sklearn" in sys.modules, type(keras.wrappers).__name__)
try:
    keras.wrappers.NoSuchName
except AttributeError as error:
    print(error)
"""


def test_keras_imports_what_it_rarely_needs_when_it_is_used():
    done = subprocess.run(
        [sys.executable, "-c", DELAYED], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "False False",
        "True module",
        "module 'keras.wrappers' has no attribute 'NoSuchName'",
    ]


def test_garbage_collection_is_off_in_the_block_only():
    assert gc.isenabled()
    with without_garbage_collection():
        assert not gc.isenabled()
        with without_garbage_collection():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(KeyError), without_garbage_collection():
        raise KeyError
    assert gc.isenabled()


def test_what_the_user_set_is_kept():
    gc.disable()
    try:
        with without_garbage_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        with without_garbage_collection():
            pass
        assert gc.get_freeze_count() == frozen > 0
    finally:
        gc.unfreeze()
