"""What `import bert_tf` changes, and files whose classes are not imported."""

import json
import platform

import keras
import numpy as np
import tensorflow as tf
from checkout import python

import bert_tf
from tests.backends.small_bert import CONFIG

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "word"]
CODE = """
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
model = bert_tf.load_model(sys.argv[1])
print(type(model.optimizer).__name__)
import tensorflow as tf
print(model(tf.constant(["word"]))["logits"].numpy().tolist())
"""


def test_an_import_changes_nothing_and_loads_classes_when_needed(tmp_path):
    text = keras.Input((), dtype="string")
    features = bert_tf.BertTokenizer(VOCABULARY)(text)
    model = keras.Model(text, bert_tf.BertClassifier(CONFIG, 3)(features))
    schedule = bert_tf.WarmupLinearDecay(1e-3, 10)
    model.compile(bert_tf.Lamb(schedule), "mse")
    path = str(tmp_path / "model.keras")
    model.save(path)
    done = python("-c", CODE, path)
    assert done.returncode == 0, done.stderr
    name, *_, optimizer, logits = done.stdout.splitlines()
    is_x86 = platform.machine() in ("x86_64", "AMD64")
    assert name == ("TF_ENABLE_ONEDNN_OPTS" if is_x86 else "")
    assert optimizer == "Lamb"
    expected = model(tf.constant(["word"]))["logits"]
    np.testing.assert_allclose(json.loads(logits), expected, rtol=1e-5)
    assert not bert_tf.load_model(path, compile=False).compiled
