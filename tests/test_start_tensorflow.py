"""TensorFlow starts silently; memory returns to the system."""

import os
import platform
import subprocess
import sys

import pytest
from checkout import ROOT

needs_glibc = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="needs glibc"
)


def run(code: str, **variables: str) -> subprocess.CompletedProcess:
    outer = {k: v for k, v in os.environ.items() if k != "MALLOC_ARENA_MAX"}
    return subprocess.run(
        [sys.executable, "-c", code],
        env=outer | {"PYTHONPATH": str(ROOT)} | variables,
        capture_output=True,
        text=True,
        check=True,
    )


@needs_glibc
def test_release_returns_free_memory_to_the_system():
    done = run(
        """
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
print(before - resident(), sum(map(sum, blocks)))
"""
    )
    kilobytes, total = map(int, done.stdout.split())
    assert kilobytes > 40_000
    assert total == 0


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

threads = [threading.Thread(target=allocate) for _ in range(6)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
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


def messages(**variables: str) -> str:
    outer = {k: v for k, v in os.environ.items() if not k.startswith("TF_")}
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        env=outer | variables,
        stderr=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stderr


def test_start_up_messages_are_hidden():
    assert messages() == "ours\n"


@pytest.mark.slow
def test_the_users_log_level_is_kept():
    assert "oneDNN" in messages(TF_CPP_MIN_LOG_LEVEL="0")


@pytest.mark.slow
def test_onednn_can_be_turned_off():
    said = messages(TF_CPP_MIN_LOG_LEVEL="0", TF_ENABLE_ONEDNN_OPTS="0")
    assert "oneDNN" not in said


def test_a_missing_tensorflow_is_one_line(tmp_path):
    """The script and `bert-tf` say which command installs it."""
    (tmp_path / "tensorflow.py").write_text(
        "raise ModuleNotFoundError('No TensorFlow', name='tensorflow')"
    )
    script = str(ROOT / "fill_mask.py")
    done = subprocess.run(
        [sys.executable, script, f"--init_checkpoint={tmp_path}"],
        env=os.environ
        | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert done.returncode == 1
    assert done.stderr == (
        f"{script}: error: This program needs the package tensorflow. Run, in "
        "the checkout of bert_tf: pip install '.[tensorflow]'\n"
    )
