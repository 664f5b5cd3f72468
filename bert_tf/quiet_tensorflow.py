"""Imports TensorFlow without its start-up messages; scripts import this first.

About ten lines about oneDNN and missing GPU drivers would precede every error
message. The log level alone does not hide them, since TensorFlow's C++ code
writes them before it reads the level. Its Python code logs every sum over
several devices. Set TF_CPP_MIN_LOG_LEVEL=0 to see everything.

Ctrl-C during the import, which takes seconds, ends a script with one line, as
it does later.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from types import TracebackType


@contextlib.contextmanager
def _no_stderr() -> Iterator[None]:
    """Discards the standard error of C++ code."""
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


def _report_interrupt(
    kind: type[BaseException],
    error: BaseException,
    traceback: TracebackType | None,
) -> None:
    """Reports KeyboardInterrupt in one line, as `cli.main` does."""
    if not issubclass(kind, KeyboardInterrupt):
        return _excepthook_before(kind, error, traceback)
    print(f"{sys.argv[0]}: error: interrupted", file=sys.stderr)
    sys.exit(128 + signal.SIGINT)


_excepthook_before, sys.excepthook = sys.excepthook, _report_interrupt
if os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3") == "3":
    with _no_stderr():
        import tensorflow
    tensorflow.get_logger().setLevel("WARNING")
