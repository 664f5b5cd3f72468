"""Workers that are gone or elsewhere: one line, whatever TensorFlow says."""

import pytest
import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.training import workers
from bert_tf.training.workers import (
    WorkerLostError,
    lost_workers_told,
    require_same_step,
)

# As TensorFlow 2.21 said it, shortened: killed, frozen, frozen chief, and what
# an operation that is no collective says.
KILLED = """Graph execution error:

Detected at node while/CollectiveReduceV2_2 defined at (most recent call last):
  File "run_pretraining.py", line 339, in <module>

Collective ops is aborted by: Socket closed
Additional GRPC error information from remote target /job:worker/task:1 while
:UNKNOWN:Error received from peer  {grpc_message:"Socket closed"}
The error could be from a previous operation. Restart your program to reset."""
FROZEN = """Graph execution error:

Collective ops is aborted by: Error reported from /job:worker/task:1: The \
following tasks are unhealthy (stopped sending heartbeats):
/job:worker/replica:0/task:1
The tasks have crashed."""
FROZEN_CHIEF = """Collective ops is aborted by: Deadline Exceeded

RPC: /tensorflow.CoordinationService/Heartbeat"""
NO_COLLECTIVE = """Connection reset by peer
Additional GRPC error information from remote target /job:worker/task:0:
:UNKNOWN:Error received from peer"""


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (KILLED, "Socket closed"),
        (FROZEN, "unhealthy (stopped sending heartbeats)"),
        (FROZEN_CHIEF, "Deadline Exceeded"),
        (NO_COLLECTIVE, "Connection reset by peer"),
    ],
)
def test_one_line_of_what_tensorflow_says(message, reason):
    with pytest.raises(WorkerLostError) as error, lost_workers_told():
        raise tf.errors.UnavailableError(None, None, message)
    said = str(error.value)
    assert f"{reason})" in said
    assert "\n" not in said
    assert "same command" in said


def test_it_decorates():
    @lost_workers_told()
    def step():
        raise tf.errors.AbortedError(None, None, KILLED)

    for _ in range(2):
        with pytest.raises(InputError, match="Socket closed"):
            step()


def test_other_errors_stay_what_they_are():
    full = tf.errors.ResourceExhaustedError(None, None, "no memory")
    for error in (full, ValueError("Collective ops is aborted by: me")):
        with pytest.raises(type(error)) as caught, lost_workers_told():
            raise error
        assert caught.value is error


@pytest.mark.parametrize(("here", "there"), [(4, 0), (0, 4), (4, 4)])
def test_all_stand_at_the_same_step(monkeypatch, here, there):
    """As where each has a folder of its own, and one of them checkpoints."""

    def agreement(strategy):
        return lambda numbers: list(map(min, numbers, [there, -there]))

    monkeypatch.setattr(workers, "agreement", agreement)
    if here == there:
        require_same_step(None, here, "out")
        return
    with pytest.raises(InputError) as error:
        require_same_step(None, here, "out")
    assert f"steps 0 to 4 on different workers, {here} in out" in str(
        error.value
    )


def test_alone_there_is_nobody_to_compare_with():
    require_same_step(tf.distribute.get_strategy(), 4, "out")
