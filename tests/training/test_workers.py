"""What workers compare and do together, and what happens if one fails."""

import threading
import types
from concurrent import futures

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.base import files
from bert_tf.errors import InputError
from bert_tf.training import workers
from bert_tf.training.workers import (
    WorkerLostError,
    by_chief,
    chief_first,
    on_all_workers,
    raise_worker_lost,
    require_shared,
)

# Messages of TensorFlow 2.21, shortened: a killed worker, a frozen one, and an
# operation that is not a collective.
KILLED = """Graph execution error:

Collective ops is aborted by: Socket closed
Additional GRPC error information from remote target /job:worker/task:1 while
:UNKNOWN:Error received from peer  {grpc_message:"Socket closed"}
The error could be from a previous operation. Restart your program to reset."""
FROZEN = """Collective ops is aborted by: Error reported from \
/job:worker/task:1: The following tasks are unhealthy (stopped sending \
heartbeats):
/job:worker/replica:0/task:1
The tasks have crashed."""
NO_COLLECTIVE = """Connection reset by peer
Additional GRPC error information from remote target /job:worker/task:0:
:UNKNOWN:Error received from peer"""


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (KILLED, "Socket closed"),
        (FROZEN, r"unhealthy \(stopped sending heartbeats\)"),
        (NO_COLLECTIVE, "Connection reset by peer"),
    ],
)
def test_a_lost_worker_is_one_line(message, reason):
    with (
        pytest.raises(WorkerLostError, match=rf"^[^\n]*{reason}\)[^\n]*$"),
        raise_worker_lost(),
    ):
        raise tf.errors.UnavailableError(None, None, message)


def test_other_errors_are_not_changed():
    full = tf.errors.ResourceExhaustedError(None, None, "no memory")
    for error in (full, ValueError("Collective ops is aborted by: me")):
        with pytest.raises(type(error)) as caught, raise_worker_lost():
            raise error
        assert caught.value is error


def test_a_single_process_is_not_compared(tmp_path):
    strategy = tf.distribute.get_strategy()
    workers.require_same_step(strategy, 4, "out")
    absent = {"`input_file`": [str(tmp_path / "absent")]}
    workers.require_same_settings(strategy, {}, absent)
    for do in (on_all_workers, chief_first):
        assert do(strategy, lambda: "done", "do it") == "done"
    require_shared(strategy, str(tmp_path))
    assert not list(tmp_path.iterdir())


@pytest.fixture
def compare(monkeypatch):
    """Compares two workers, which are threads; returns their common error.

    Worker 1 is slow to receive and fails if worker 0 has exited by then.
    """
    barrier, arrays = threading.Barrier(2, timeout=60), {}
    has_exited = threading.Event()

    def exchange(strategy):
        def share(values):
            index = strategy.cluster_resolver.task_id
            arrays[index] = values
            barrier.wait()
            rows = np.stack([arrays[index] for index in range(2)])
            barrier.wait()
            if index == 1 and has_exited.wait(0.02):
                raise tf.errors.UnavailableError(None, None, KILLED)
            return rows

        return share

    def agreement(strategy):
        share = exchange(strategy)
        return lambda numbers: share(np.array(numbers)).min(axis=0).tolist()

    monkeypatch.setattr(workers, "exchange", exchange)
    monkeypatch.setattr(workers, "agreement", agreement)
    monkeypatch.setattr(workers, "num_processes", lambda strategy: 2)

    def one(index, settings, inputs):
        resolver = types.SimpleNamespace(task_type="worker", task_id=index)
        strategy = types.SimpleNamespace(cluster_resolver=resolver)
        try:
            workers.require_same_settings(strategy, settings, inputs)
        except InputError as error:
            if index == 0:
                has_exited.set()
            return str(error)

    def both(settings, inputs=(None, None)):
        has_exited.clear()
        with futures.ThreadPoolExecutor(2) as pool:
            first, second = pool.map(one, range(2), settings, inputs)
        assert first == second
        return first

    return both


SETTINGS = {
    "bert_tf": "2.0.0",
    "`learning_rate`": 1e-3,
    "`save_best`": None,
    "config": {"hidden_size": 13, "num_hidden_layers": 2},
    "labels": ["some label"] * 20,
}


@pytest.mark.parametrize(
    ("change", "clause"),
    [
        ({"`learning_rate`": 2e-3}, "`learning_rate` is 0.001 on worker 0 and"),
        (
            {"config": {"hidden_size": 13, "num_hidden_layers": 3}},
            "config.num_hidden_layers is 2 on worker 0 and 3 on worker 1. Re",
        ),
        ({"labels": [*SETTINGS["labels"][:-1], "other"]}, "labels is "),
        ({"new": 1}, "new is absent on worker 0 and 1 on worker 1. Restart"),
        # The configuration has two entries, which the other worker lacks.
        (dict.fromkeys(SETTINGS, 7), "; and 4 more. "),
    ],
)
def test_workers_with_other_settings_all_raise(compare, change, clause):
    assert compare([SETTINGS, SETTINGS]) is None
    found = compare([SETTINGS, SETTINGS | change])
    assert "the same settings and data: " in found
    assert clause in found
    assert "\n" not in found


@pytest.mark.parametrize("most", [2**28, 10])
@pytest.mark.parametrize(
    ("others", "clause"),
    [
        (["copy/a.txt", "b.txt"], None),
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
    for name, text in {
        "a.txt": "a" * 30,
        "copy/a.txt": "a" * 30,
        "b.txt": "b" * 30,
        "end/b.txt": "b" * 29 + "c",
        "long/b.txt": "b" * 31,
    }.items():
        files.write_text(str(tmp_path / name), text)
    inputs = [
        {"it": [str(tmp_path / name) for name in names]}
        for names in (["a.txt", "b.txt"], others)
    ]
    found = compare([{}, {}], inputs)
    assert (found is None) is (clause is None)
    assert clause is None or clause in found


@pytest.fixture
def worker(monkeypatch):
    """Makes this process one of two workers; lists what it does and sends.

    `other` is what the other worker sends each time, 1 for success.
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


@pytest.mark.parametrize(
    ("do", "is_chief", "expected"),
    [
        (on_all_workers, True, ["act", 1]),
        (on_all_workers, False, ["act", 1]),
        (by_chief, True, ["act", 1]),
        (by_chief, False, [1]),
        (chief_first, True, ["act", 1, 1]),
        (chief_first, False, [1, "act", 1]),
    ],
)
def test_workers_act_in_the_documented_order(worker, do, is_chief, expected):
    events = worker(is_chief)
    do(None, lambda: events.append("act"), "do it")
    assert events == expected


def test_all_raise_if_one_fails(worker):
    events = worker(is_chief=True)
    with pytest.raises(InputError, match="a larger disk"):
        on_all_workers(None, fail, "do it")
    assert events == [0, 0]
    # No worker acts after a chief that fails.
    events = worker(is_chief=False, other=[0, 0])
    with pytest.raises(InputError, match="Another worker failed to do it;"):
        chief_first(None, lambda: events.append("act"), "do it")
    assert events == [1, 0]


@pytest.mark.parametrize("chief", [True, False])
@pytest.mark.parametrize("is_shared", [True, False])
def test_a_folder_that_should_be_shared(worker, tmp_path, chief, is_shared):
    events = worker(chief, other=[11, 1, int(is_shared or not chief), 0])
    probe = tmp_path / ".workers-11"
    if not chief and is_shared:
        probe.touch()
    if is_shared:
        require_shared(None, str(tmp_path))
        assert events[1:] == [1, 1]
    else:
        who = "Another" if chief else "This"
        with pytest.raises(InputError, match=f"{who} worker cannot read .* to"):
            require_shared(None, str(tmp_path))
    assert probe.exists() is (is_shared and not chief)
