"""What `import bert_tf` changes, and files whose classes are not imported."""

import platform
import subprocess
import sys

import keras
import numpy as np
import tensorflow as tf

import bert_tf
from tests.backends.small_bert import CONFIG

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "word"]
LOAD = """
import tensorflow as tf
model = bert_tf.load_model({path!r})
print(type(model.optimizer).__name__)
print(model(tf.constant(["word"]))["logits"].numpy().tolist())
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
    *_, optimizer, logits = run("import bert_tf" + LOAD.format(path=path))
    assert optimizer == "Lamb"
    expected = np.array(model(tf.constant(["word"]))["logits"]).tolist()
    assert logits == str(expected)
    assert not bert_tf.load_model(path, compile=False).compiled


UNTOUCHED = """
import gc, os, sys
os.environ.pop("TF_ENABLE_ONEDNN_OPTS", None)
import keras
hooks = sys.excepthook, sys.unraisablehook, [*sys.meta_path]
gc_before = gc.isenabled(), gc.get_freeze_count(), gc.get_threshold()
environment = dict(os.environ)
registry = dict(keras.saving.get_custom_objects())
import bert_tf
assert hooks == (sys.excepthook, sys.unraisablehook, sys.meta_path)
assert gc_before == (gc.isenabled(), gc.get_freeze_count(), gc.get_threshold())
assert registry == keras.saving.get_custom_objects()
changed = {n for n, x in os.environ.items() if environment.get(n) != x}
print(*changed)
bert_tf.BertClassifier
print("bert_tf>BertClassifier" in keras.saving.get_custom_objects())
"""


def test_importing_changes_nothing():
    name, is_registered = run(UNTOUCHED)
    is_x86 = platform.machine() in ("x86_64", "AMD64")
    assert name == ("TF_ENABLE_ONEDNN_OPTS" if is_x86 else "")
    assert is_registered == "True"
