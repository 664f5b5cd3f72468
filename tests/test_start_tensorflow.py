"""TensorFlow starts silently; memory returns to the system."""

import os
import platform
import subprocess

import pytest
from checkout import ROOT, python

needs_glibc = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="needs glibc"
)


def run(code: str, **variables: str) -> subprocess.CompletedProcess:
    done = python("-c", code, without=("TF_", "MALLOC_ARENA_MAX"), **variables)
    assert done.returncode == 0, done.stderr
    return done


@needs_glibc
def test_release_returns_free_memory_to_the_system():
    code = """
import re
from bert_tf import start_tensorflow

def resident():
    with open("/proc/self/status") as file:
        return int(re.search(r"RssAnon:\\s*([0-9]+) kB", file.read())[1])

# Small enough for the heap; every second one stays.
blocks = [bytearray(100_000) for _ in range(1000)]
del blocks[::2]
before = resident()
start_tensorflow.release_memory()
print(before - resident(), len(blocks))
"""
    assert int(run(code).stdout.split()[0]) > 40_000


@pytest.mark.slow
@needs_glibc
@pytest.mark.parametrize(
    ("variables", "heaps"), [({}, 1), ({"MALLOC_ARENA_MAX": "3"}, 3)]
)
def test_threads_share_the_heap(variables, heaps):
    code = """
import ctypes, threading
from bert_tf import start_tensorflow

start_tensorflow.quietly()
barrier = threading.Barrier(6)
kept = []

def allocate():
    kept.append(bytearray(100_000))
    barrier.wait()

for _ in range(5):
    threading.Thread(target=allocate).start()
allocate()
ctypes.CDLL(None).malloc_stats()
"""
    assert run(code, **variables).stderr.count("Arena ") == heaps


@pytest.mark.slow
@needs_glibc
def test_fit_lets_the_heap_keep_the_memory_of_large_tensors():
    """TensorFlow's generators return it at once, for the whole process."""
    code = """
import ctypes
import bert_tf

config = bert_tf.BertConfig.from_name("L-1_H-32_A-2", 6)
words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "good", "bad"]
model = bert_tf.TextClassifier(
    bert_tf.BertClassifier(config, 2), bert_tf.FullTokenizer(words)
)
model.fit(["good", "bad"], [1, 0], epochs=1, verbose=0)
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
# glibc then takes smaller blocks from the heap, unless it was told otherwise.
libc.free(libc.malloc(8 << 20))
size_and_flags = ctypes.c_size_t.from_address(libc.malloc(4 << 20) - 8).value
print("outside" if size_and_flags & 2 else "heap")
"""
    assert run(code).stdout.split()[-1] == "heap"


CODE = """
import sys
from absl import logging
from bert_tf import start_tensorflow
start_tensorflow.quietly()
import tensorflow as tf
logging.set_verbosity(logging.INFO)
tf.distribute.MirroredStrategy(["CPU:0"])
print("ours", file=sys.stderr)
"""


def test_start_up_messages_are_hidden():
    assert run(CODE).stderr == "ours\n"


@pytest.mark.slow
def test_the_users_variables_are_kept():
    log = {"TF_CPP_MIN_LOG_LEVEL": "0"}
    assert "oneDNN" in run(CODE, **log).stderr
    without = run(CODE, **log, TF_ENABLE_ONEDNN_OPTS="0").stderr
    assert "oneDNN" not in without


def test_a_missing_tensorflow_is_one_line(tmp_path):
    """The script and `bert-tf` say which command installs it."""
    (tmp_path / "tensorflow.py").write_text(
        "raise ModuleNotFoundError('No TensorFlow', name='tensorflow')"
    )
    script = str(ROOT / "fill_mask.py")
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    words = [script, f"--init_checkpoint={tmp_path}"]
    done = python(*words, PYTHONPATH=path)
    assert done.returncode == 1
    assert done.stderr == (
        f"{script}: error: This program needs the package tensorflow. Run, in "
        "the checkout of bert_tf: pip install '.[tensorflow]'\n"
    )
