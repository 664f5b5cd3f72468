"""Imports TensorFlow, fast and without messages; scripts import this first.

About ten lines about oneDNN and missing GPU drivers would precede every error
message. The log level alone does not hide them, since TensorFlow's C++ code
writes them before it reads the level. Its Python code logs every sum over
several devices. Set TF_CPP_MIN_LOG_LEVEL=0 to see everything.
"""

import contextlib
import os
import sys
from collections.abc import Iterator

from bert_tf.base import memory
from bert_tf.base.packages import tensorflow_required


@contextlib.contextmanager
def _no_stderr() -> Iterator[None]:
    """Discards the standard error of C++ code."""
    sys.stderr.flush()
    stderr = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(nowhere)


memory.limit_heaps()
with tensorflow_required():
    if os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3") == "3":
        with _no_stderr():
            import tensorflow
        tensorflow.get_logger().setLevel("WARNING")
    else:
        import tensorflow
