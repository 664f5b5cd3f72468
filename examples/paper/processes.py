"""A script as a process that ends with this one, and is stopped with care."""

import ctypes
import functools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import TextIO

# A constant of Linux, from sys/prctl.h.
_PR_SET_PDEATHSIG = 1


def status_of(command: Sequence[str], log: TextIO) -> int:
    """Runs a command to its end; gives its exit status.

    A script saves a checkpoint when it is told to stop, and ends at once when
    it is told twice. In a session of its own it hears nothing from a terminal,
    and of each signal that this program gets once, from here. If this program
    is killed, Linux kills the script, whose folder the next program needs.
    """
    child = subprocess.Popen(
        command,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=_end_with_parent() if sys.platform == "linux" else None,
    )
    return _end_of(child)


def _end_with_parent() -> Callable[[], None]:
    """Returns what a new process calls to be killed when this one is gone."""
    # A process that was just forked should load nothing.
    prctl = ctypes.CDLL(None).prctl
    return functools.partial(_set_death_signal, prctl, os.getpid())


def _set_death_signal(prctl: Callable[..., int], parent: int) -> None:
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # The parent ended before.


def _end_of(child: subprocess.Popen) -> int:
    """Waits for a process, whatever is raised meanwhile."""
    try:
        return child.wait()
    except BaseException:
        child.terminate()
        print("  stopped; the script may still save what it has", flush=True)
        _end_of(child)
        raise
