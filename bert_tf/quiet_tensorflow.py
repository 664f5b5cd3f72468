"""Imports TensorFlow, fast and without messages; scripts import this first.

About ten lines about oneDNN and missing GPU drivers would precede every error
message. The log level alone does not hide them, since TensorFlow's C++ code
writes them before it reads the level. Its Python code logs every sum over
several devices. Set TF_CPP_MIN_LOG_LEVEL=0 to see everything.

During the import, which takes seconds, Ctrl-C ends any program with one line,
not only the scripts. So does a missing TensorFlow.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from types import TracebackType

from bert_tf import faster_imports, memory, signals
from bert_tf.packages import MissingPackageError, tensorflow_required


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


def _report_in_one_line(
    kind: type[BaseException],
    error: BaseException,
    traceback: TracebackType | None,
) -> None:
    """Reports Ctrl-C and missing packages in one line, as `cli.main` does."""
    if issubclass(kind, KeyboardInterrupt):
        line = signals.described(signal.SIGINT)
        print(f"{sys.argv[0]}: error: {line}", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)
    if issubclass(kind, MissingPackageError):
        print(f"{sys.argv[0]}: error: {error}", file=sys.stderr)
        sys.exit(1)
    _excepthook_before(kind, error, traceback)


_excepthook_before, sys.excepthook = sys.excepthook, _report_in_one_line
memory.limit_heaps()
with tensorflow_required(), faster_imports.without_garbage_collection():
    if os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3") == "3":
        with _no_stderr():
            import tensorflow
        tensorflow.get_logger().setLevel("WARNING")
    else:
        import tensorflow
