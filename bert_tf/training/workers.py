"""Workers that are not as they should be: gone, or at different steps.

That one is gone the others learn from TensorFlow, which aborts the sum that all
wait for: some seconds after a process has died and its connections with it;
after about twenty where nothing is closed, since a host has lost its power or
its network, for then the heartbeat stops.
"""

import contextlib
import re
from collections.abc import Iterator

import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.training.distribution import agreement

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
