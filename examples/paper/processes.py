"""A script as a process: one at a time in a folder, and stopped with care."""

import contextlib
import fcntl
import subprocess
from collections.abc import Iterator, Sequence
from typing import TextIO

from bert_tf.errors import InputError


@contextlib.contextmanager
def only_one(log: TextIO, name: str) -> Iterator[None]:
    """Keeps other programs from a run.

    A script inherits the lock with its log: it holds also where this program
    was killed and the script goes on.

    Args:
      log: The run's log, opened.
      name: What the run is called.

    Raises:
      InputError: Another program has it.
    """
    try:
        fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise InputError(
            f"expected one program at a time to do {name}. Received: "
            f"{log.name}, which another one writes; wait for its end, or give "
            "another --output_dir"
        ) from error
    try:
        yield
    finally:
        # What a script has started may live a little longer than itself.
        fcntl.flock(log, fcntl.LOCK_UN)


def status_of(command: Sequence[str], log: TextIO) -> int:
    """Runs a command to its end; gives its exit status.

    A script saves a checkpoint when it is told to stop, and ends at once when
    it is told twice. In a session of its own it hears nothing from a terminal,
    and of each signal that this program gets once, from here.
    """
    child = subprocess.Popen(
        command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
    )
    return _end_of(child)


def _end_of(child: subprocess.Popen) -> int:
    """Waits for a process, whatever is raised meanwhile."""
    try:
        return child.wait()
    except BaseException:
        child.terminate()
        print("  stopped; the script may still save what it has", flush=True)
        _end_of(child)
        raise
