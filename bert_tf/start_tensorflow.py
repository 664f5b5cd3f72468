"""How programs start TensorFlow: fast, silently, with one heap.

`import bert_tf` calls `use_onednn`, and scripts call `quietly`. Heaps are only
changed on Linux with glibc.
"""

import contextlib
import ctypes
import os
import platform
import sys
from collections.abc import Iterator
from typing import IO

from bert_tf.errors import tensorflow_required

_M_ARENA_MAX = -8  # Of malloc.h.


def use_onednn() -> None:
    """Turns on oneDNN on x86, unless TF_ENABLE_ONEDNN_OPTS is set.

    On CPUs without AVX-512, TensorFlow leaves oneDNN off, and training takes a
    third longer.
    """
    if platform.machine() in ("x86_64", "AMD64"):
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")


def quietly() -> None:
    """Imports TensorFlow without messages, and limits glibc to one heap.

    About ten lines about oneDNN and missing GPU drivers would precede every
    error message. The log level alone does not hide them, since TensorFlow's
    C++ code writes them before it reads the level. Its Python code logs every
    all-reduce. Set TF_CPP_MIN_LOG_LEVEL=0 to see everything.

    By default glibc has up to 8 heaps for each core. The memory of a tensor
    then returns to the heap of the thread that allocated it, where other
    threads cannot use it. MALLOC_ARENA_MAX sets another number of heaps.
    """
    libc = _glibc()
    if libc and "MALLOC_ARENA_MAX" not in os.environ:
        libc.mallopt(_M_ARENA_MAX, 1)
    is_quiet = os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3") == "3"
    with (
        tensorflow_required(),
        open(os.devnull, "w") as nowhere,
        stderr_into(nowhere) if is_quiet else contextlib.nullcontext(),
    ):
        import tensorflow
    if is_quiet:
        tensorflow.get_logger().setLevel("WARNING")


@contextlib.contextmanager
def stderr_into(file: IO[str]) -> Iterator[None]:
    """Sends standard error to a file, including the messages of C++ code."""
    sys.stderr.flush()
    stderr = os.dup(2)
    os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


def release_memory() -> None:
    """Returns free memory within the heap to the system."""
    if libc := _glibc():
        libc.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    """Returns the C library if it is glibc."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "malloc_trim") else None
