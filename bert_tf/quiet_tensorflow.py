"""Imports TensorFlow without its greetings; scripts import this first.

Ten lines about oneDNN and missing GPU drivers would stand above every error
message of ours. The log level alone does not hide them: TensorFlow's C++ code
writes them before it has read the level. Its Python code tells of every sum
over several devices. TF_CPP_MIN_LOG_LEVEL=0 in the environment brings
everything back.

Ctrl-C during the seconds that imports take ends a script with one line, as it
does later, in `flags.run`.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from types import TracebackType


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


def _report_interrupt(
    kind: type[BaseException],
    error: BaseException,
    traceback: TracebackType | None,
) -> None:
    """Reports an uncaught KeyboardInterrupt in one line, as `flags.run`."""
    if not issubclass(kind, KeyboardInterrupt):
        return _excepthook_before(kind, error, traceback)
    print(f"{sys.argv[0]}: error: interrupted", file=sys.stderr)
    sys.exit(128 + signal.SIGINT)


_excepthook_before, sys.excepthook = sys.excepthook, _report_interrupt
if os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3") == "3":
    with _no_stderr():
        import tensorflow
    tensorflow.get_logger().setLevel("WARNING")
