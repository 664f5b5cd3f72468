"""Workers that are gone or elsewhere: one line, whatever TensorFlow says."""

import pytest
import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.training import workers
from bert_tf.training.workers import (
    WorkerLostError,
    by_chief,
    chief_first,
    lost_workers_told,
    require_same_step,
    require_shared,
    together,
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


# What they do together


def test_alone_nobody_is_asked(tmp_path):
    strategy = tf.distribute.get_strategy()
    for do in (together, chief_first):
        assert do(strategy, lambda: "done", "do it") == "done"
    require_shared(strategy, str(tmp_path))
    assert not list(tmp_path.iterdir())


@pytest.fixture
def worker(monkeypatch):
    """Makes this one of two workers; what is done and said, in order.

    Args:
      is_chief: Whether it is the chief.
      other: What the other says each time, 1 for success.
    """

    def make(is_chief, other=(1, 1)):
        events, answers = [], iter(other)

        def agree(numbers):
            events.append(*numbers)
            return [min(*numbers, next(answers))]

        monkeypatch.setattr(workers, "agreement", lambda strategy: agree)
        monkeypatch.setattr(workers, "num_processes", lambda strategy: 2)
        monkeypatch.setattr(workers, "is_chief", lambda _: is_chief)
        return events

    return make


def fail():
    raise InputError("expected a larger disk")


@pytest.mark.parametrize("chief", [True, False])
def test_all_do_it_and_say_so(worker, chief):
    events = worker(chief)
    assert together(None, lambda: events.append("act"), "do it") is None
    assert events == ["act", 1]


@pytest.mark.parametrize("chief", [True, False])
def test_who_fails_says_so_too(worker, chief):
    events = worker(chief)
    with pytest.raises(InputError, match="a larger disk"):
        together(None, fail, "do it")
    assert events == [0]


@pytest.mark.parametrize("chief", [True, False])
def test_all_end_with_the_one_that_fails(worker, chief):
    worker(chief, other=[0])
    with pytest.raises(InputError, match=r"every worker to do it. .* another"):
        together(None, lambda: None, "do it")


@pytest.mark.parametrize(
    ("chief", "expected"), [(True, ["act", 1]), (False, [1])]
)
def test_the_chief_does_it_for_all(worker, chief, expected):
    events = worker(chief)
    by_chief(None, lambda: events.append("act"), "do it")
    assert events == expected


@pytest.mark.parametrize(
    ("chief", "expected"), [(True, ["act", 1, 1]), (False, [1, "act", 1])]
)
def test_the_chief_goes_first(worker, chief, expected):
    events = worker(chief)
    assert chief_first(None, lambda: events.append("act") or 7, "do it") == 7
    assert events == expected


def test_nobody_follows_a_chief_that_fails(worker):
    events = worker(is_chief=False, other=[0])
    with pytest.raises(InputError, match="expected every worker to do it"):
        chief_first(None, lambda: events.append("act"), "do it")
    assert events == [1]


# Whether they share a folder


@pytest.mark.parametrize("chief", [True, False])
def test_a_folder_that_all_see(worker, tmp_path, chief):
    """The chief's number is 11; both find the file."""
    events = worker(chief, other=[11, 1, 1])
    probe = tmp_path / ".workers-11"
    if not chief:
        probe.touch()
    require_shared(None, str(tmp_path))
    assert events[1:] == [1, 1]
    assert probe.exists() is not chief


@pytest.mark.parametrize("chief", [True, False])
def test_a_folder_that_each_has_for_itself(worker, tmp_path, chief):
    worker(chief, other=[11, 1, 1 - chief])
    who = "another" if chief else "this"
    with pytest.raises(
        InputError, match=f"{tmp_path}, where {who} worker does not find"
    ):
        require_shared(None, str(tmp_path))
    assert not list(tmp_path.iterdir())
