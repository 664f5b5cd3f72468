"""Imports TensorFlow without its greetings; scripts import this first.

Ten lines about oneDNN and missing GPU drivers would stand above every error
message of ours. The log level alone does not hide them: TensorFlow's C++ code
writes them before it has read the level. Its Python code tells of every sum
over several devices. TF_CPP_MIN_LOG_LEVEL=0 in the environment brings
everything back.
"""

import contextlib
import os
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def _no_stderr() -> Iterator[None]:
    """Sends what C++ code writes to standard error nowhere."""
    sys.stderr.flush()
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


if os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3") == "3":
    with _no_stderr():
        import tensorflow
    tensorflow.get_logger().setLevel("WARNING")
