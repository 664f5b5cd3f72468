"""Workers of one run: what they do together, and what if one cannot.

That one is gone the others learn from TensorFlow, which aborts the sum that all
wait for: some seconds after a process has died and its connections with it;
after about twenty where nothing is closed, since a host has lost its power or
its network, for then the heartbeat stops.
"""

import contextlib
import os
import re
import secrets
from collections.abc import Callable, Iterator
from typing import TypeVar

import tensorflow as tf

from bert_tf import files
from bert_tf.errors import InputError
from bert_tf.training.distribution import agreement, is_chief, num_processes

_T = TypeVar("_T")

# The largest number of those that workers tell each other.
_MOST = 2**31 - 1

_ABORTED = re.compile(
    r"Collective ops is aborted by: (?P<reason>.*)"
    r"|(?P<told>.*)\s+Additional GRPC error information from remote target /job"
)


class WorkerLostError(InputError):
    """Another process of the run has ended, or does not answer."""


@contextlib.contextmanager
def lost_workers_told() -> Iterator[None]:
    """Tells a lost worker from other errors; a decorator as well.

    Raises:
      WorkerLostError: What is in the block waited for a worker that is gone.
    """
    try:
        yield
    except tf.errors.OpError as error:
        found = _ABORTED.search(error.message)
        if not found:
            raise
        reason = (found["reason"] or found["told"]).strip().rstrip(":.")
        raise WorkerLostError(
            "expected all workers to stay until the end. Received: one that "
            f"has ended or does not answer ({reason}); its own log says why. "
            "Start all with the same command again: they go on from the last "
            "checkpoint"
        ) from error


def require_same_step(
    strategy: tf.distribute.Strategy, step: int, folder: str
) -> None:
    """Compares the steps at which the workers stand.

    Args:
      strategy: The devices.
      step: That of this worker.
      folder: Where it looked for checkpoints.

    Raises:
      InputError: They differ. To go on would train a mixture.
    """
    first, last = agreement(strategy)([step, -step])
    if first != -last:
        raise InputError(
            "expected all workers to find the same newest checkpoint, in an "
            f"--output_dir that they share. Received: steps {first} to {-last} "
            f"on different workers, {step} in {folder} here"
        )


@lost_workers_told()
def together(
    strategy: tf.distribute.Strategy, act: Callable[[], _T], what: str
) -> _T:
    """Has every process do something; where one cannot, all end.

    Else the others would wait in their next step for one that is gone.

    Args:
      strategy: The devices.
      act: What this process does. It takes no part in a step meanwhile.
      what: That in words, as in "expected every worker to ...".

    Raises:
      InputError: This process could not do it, or another one.
    """
    agree = agreement(strategy)
    try:
        result = act()
    except (InputError, OSError):
        agree([0])
        raise
    if agree([1]) == [0]:
        raise InputError(
            f"expected every worker to {what}. Received: an error on another "
            "one, which tells it"
        )
    return result


def by_chief(
    strategy: tf.distribute.Strategy, act: Callable[[], None], what: str
) -> None:
    """The same for the chief alone; the others wait until it is done."""
    together(strategy, act if is_chief(strategy) else _do_nothing, what)


def chief_first(
    strategy: tf.distribute.Strategy, act: Callable[[], _T], what: str
) -> _T:
    """The same for the chief, and for the others once it is done.

    In a folder that they share they find what it has made, elsewhere they make
    it for themselves.
    """
    if num_processes(strategy) == 1:
        return act()
    if is_chief(strategy):
        result = together(strategy, act, what)
        together(strategy, _do_nothing, what)
        return result
    together(strategy, _do_nothing, what)
    return together(strategy, act, what)


def require_shared(strategy: tf.distribute.Strategy, folder: str) -> None:
    """Sees that all workers find what the chief writes.

    Args:
      strategy: The devices.
      folder: Where the chief will write what the others are to read.

    Raises:
      InputError: A worker has a folder of its own under this name.
    """
    if num_processes(strategy) == 1:
        return
    agree = agreement(strategy)
    number = secrets.randbelow(_MOST) if is_chief(strategy) else _MOST
    # A name of its own: no file system remembers that it was not there.
    probe = os.path.join(folder, f".workers-{agree([number])[0]}")
    by_chief(strategy, lambda: files.write_text(probe, ""), "write there")
    is_there = files.exists(probe)
    is_shared = agree([int(is_there)]) == [1]
    if is_chief(strategy):
        files.remove(probe)
    if not is_shared:
        raise InputError(
            "expected an --output_dir that all workers share, as a network "
            f"file system or gs:// is. Received: {folder}, where "
            f"{'another worker does' if is_there else 'this worker does'} not "
            "find what the chief writes"
        )


def _do_nothing() -> None:
    pass
