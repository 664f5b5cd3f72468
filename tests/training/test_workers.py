"""What workers compare and do together, and what happens if one fails."""

import threading
import types
from concurrent import futures

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.training import workers
from bert_tf.training.workers import (
    WorkerLostError,
    by_chief,
    chief_first,
    on_all_workers,
    raise_worker_lost,
    require_same_step,
    require_shared,
)

# Messages of TensorFlow 2.21, shortened: a killed worker, a frozen one, a
# frozen chief, and an operation that is not a collective.
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
def test_a_lost_worker_is_one_line(message, reason):
    @raise_worker_lost()
    def step():
        raise tf.errors.UnavailableError(None, None, message)

    for _ in range(2):
        with pytest.raises(WorkerLostError) as error:
            step()
    assert f"{reason})" in str(error.value)
    assert "\n" not in str(error.value)
    assert "same command" in str(error.value)


def test_other_errors_are_not_changed():
    full = tf.errors.ResourceExhaustedError(None, None, "no memory")
    for error in (full, ValueError("Collective ops is aborted by: me")):
        with pytest.raises(type(error)) as caught, raise_worker_lost():
            raise error
        assert caught.value is error


@pytest.mark.parametrize(("here", "there"), [(4, 0), (0, 4), (4, 4)])
def test_all_resume_from_the_same_step(monkeypatch, here, there):

    def agreement(strategy):
        return lambda numbers: list(map(min, numbers, [there, -there]))

    monkeypatch.setattr(workers, "agreement", agreement)
    if here == there:
        require_same_step(None, here, "out")
        return
    with pytest.raises(InputError) as error:
        require_same_step(None, here, "out")
    assert f"steps 0 to 4, on this worker {here} in out" in str(error.value)


def test_a_single_process_is_not_compared(tmp_path):
    strategy = tf.distribute.get_strategy()
    require_same_step(strategy, 4, "out")
    absent = {"--input_file": [str(tmp_path / "absent")]}
    workers.require_same_settings(strategy, {}, absent)
    for do in (on_all_workers, chief_first):
        assert do(strategy, lambda: "done", "do it") == "done"
    require_shared(strategy, str(tmp_path))
    assert not list(tmp_path.iterdir())


# -------------------------------------------------------------- settings


class Meeting:
    """Exchanges the arrays of two workers in threads."""

    def __init__(self):
        self.barrier = threading.Barrier(2, timeout=60)
        self.arrays = {}

    def exchange(self, strategy):
        def share(values):
            self.arrays[strategy.cluster_resolver.task_id] = values
            self.barrier.wait()
            rows = np.stack([self.arrays[index] for index in range(2)])
            self.barrier.wait()
            return rows

        return share

    def agreement(self, strategy):
        share = self.exchange(strategy)
        return lambda numbers: share(np.array(numbers)).min(axis=0).tolist()


@pytest.fixture
def compare(monkeypatch):
    """Compares two workers; returns the error of each, or None."""
    meeting = Meeting()
    monkeypatch.setattr(workers, "exchange", meeting.exchange)
    monkeypatch.setattr(workers, "agreement", meeting.agreement)
    monkeypatch.setattr(workers, "num_processes", lambda strategy: 2)

    def one(index, settings, inputs):
        resolver = types.SimpleNamespace(task_type="worker", task_id=index)
        strategy = types.SimpleNamespace(cluster_resolver=resolver)
        try:
            workers.require_same_settings(strategy, settings, inputs)
        except InputError as error:
            return str(error)

    def both(*given):
        with futures.ThreadPoolExecutor(2) as pool:
            found = [
                pool.submit(one, index, settings, inputs)
                for index, (settings, inputs) in enumerate(given)
            ]
            return [future.result() for future in found]

    return both


SETTINGS = {
    "bert_tf": "2.0.0",
    "--learning_rate": 1e-3,
    "--save_best": None,
    "config": {"hidden_size": 13, "num_hidden_layers": 2},
    "labels": [f"label {number}" for number in range(20)],
}


def test_workers_with_equal_settings(compare, tmp_path):
    paths = [tmp_path / name / "a.txt" for name in ("one", "two")]
    for path in paths:
        path.parent.mkdir()
        path.write_text("equal")
    given = [(SETTINGS, {"--input_file": [str(path)]}) for path in paths]
    assert compare(*given) == [None, None]
    assert compare((SETTINGS, None), (SETTINGS, None)) == [None, None]


@pytest.mark.parametrize(
    ("change", "clause"),
    [
        (
            {"--learning_rate": 2e-3},
            "--learning_rate is 0.001 on worker 0 and 0.002 on worker 1. Re",
        ),
        ({"bert_tf": "2.0.1"}, "bert_tf is 2.0.0 on worker 0 and 2.0.1 on w"),
        ({"--save_best": "f1"}, "--save_best is null on worker 0 and f1 on"),
        (
            {"config": {"hidden_size": 13, "num_hidden_layers": 3}},
            "config.num_hidden_layers is 2 on worker 0 and 3 on worker 1. Re",
        ),
        ({"labels": [*SETTINGS["labels"][:-1], "other"]}, "labels is "),
        ({"new": 1}, "new is absent on worker 0 and 1 on worker 1. Restart"),
    ],
)
def test_workers_with_other_settings_all_raise(compare, change, clause):
    first, second = compare((SETTINGS, None), (SETTINGS | change, None))
    assert first == second
    assert f"the same settings and data: {clause}" in first
    assert "\n" not in first


def test_all_differences_are_counted(compare):
    other = dict.fromkeys(SETTINGS, 7)
    first, _ = compare((SETTINGS, None), (other, None))
    assert first.count(" on worker 0") == 3
    # The configuration has two entries, which the other worker lacks.
    assert "; and 4 more. " in first


@pytest.mark.parametrize("most", [2**28, 10])
@pytest.mark.parametrize(
    ("others", "clause"),
    [
        (["a.txt", "b.txt"], None),
        (["a.txt"], "file 2 of it is b.txt, 30 bytes, SHA-256 "),
        (["b.txt", "a.txt"], "file 1 of it is a.txt, 30 bytes, SHA-256 "),
        (["a.txt", "end/b.txt"], "file 2 of it is b.txt, 30 bytes, SHA-256 "),
        (["a.txt", "long/b.txt"], "b.txt, 30 bytes, SHA-256 "),
    ],
)
def test_workers_with_other_data_all_raise(
    compare, tmp_path, monkeypatch, most, others, clause
):
    """Of large files, here over 20 bytes, both ends are compared."""
    monkeypatch.setattr(workers, "_BYTES_OF_ALL_FILES", most)
    monkeypatch.setattr(workers, "_LEAST_BYTES_OF_FILE", 10)
    contents = {
        "a.txt": "a" * 30,
        "b.txt": "b" * 30,
        "end/b.txt": "b" * 29 + "c",
        "long/b.txt": "b" * 31,
    }
    for name, text in contents.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    given = [
        ({}, {"it": [str(tmp_path / name) for name in names]})
        for names in (["a.txt", "b.txt"], others)
    ]
    first, second = compare(*given)
    assert first == second
    assert clause is None if first is None else clause in first


# ------------------------------------------------------ acting together


@pytest.fixture
def worker(monkeypatch):
    """Makes this process one of two workers; lists what it does and sends.

    Args:
      is_chief: Whether it is the chief.
      other: What the other worker sends each time, 1 for success.
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
def test_all_workers_act_or_raise(worker, chief):
    events = worker(chief)
    assert on_all_workers(None, lambda: events.append("act"), "do it") is None
    assert events == ["act", 1]
    events = worker(chief)
    with pytest.raises(InputError, match="a larger disk"):
        on_all_workers(None, fail, "do it")
    assert events == [0]
    worker(chief, other=[0])
    with pytest.raises(InputError, match="Another worker failed to do it;"):
        on_all_workers(None, lambda: None, "do it")


@pytest.mark.parametrize(
    ("chief", "expected"), [(True, ["act", 1]), (False, [1])]
)
def test_the_chief_acts_for_all(worker, chief, expected):
    events = worker(chief)
    by_chief(None, lambda: events.append("act"), "do it")
    assert events == expected


@pytest.mark.parametrize(
    ("chief", "expected"), [(True, ["act", 1, 1]), (False, [1, "act", 1])]
)
def test_the_chief_acts_first(worker, chief, expected):
    events = worker(chief)
    assert chief_first(None, lambda: events.append("act") or 7, "do it") == 7
    assert events == expected


def test_no_worker_acts_after_a_chief_that_fails(worker):
    events = worker(is_chief=False, other=[0])
    with pytest.raises(InputError, match="Another worker failed to do it"):
        chief_first(None, lambda: events.append("act"), "do it")
    assert events == [1]


# ------------------------------------------------------ shared folders


@pytest.mark.parametrize("chief", [True, False])
def test_a_shared_folder(worker, tmp_path, chief):
    events = worker(chief, other=[11, 1, 1])
    probe = tmp_path / ".workers-11"
    if not chief:
        probe.touch()
    require_shared(None, str(tmp_path))
    assert events[1:] == [1, 1]
    assert probe.exists() is not chief


@pytest.mark.parametrize("chief", [True, False])
def test_a_folder_that_is_not_shared(worker, tmp_path, chief):
    worker(chief, other=[11, 1, 1 - chief])
    who = "Another" if chief else "This"
    with pytest.raises(
        InputError, match=f"{who} worker cannot read .* writes to {tmp_path}"
    ):
        require_shared(None, str(tmp_path))
    assert not list(tmp_path.iterdir())
