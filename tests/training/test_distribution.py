"""Which devices a run uses, and what is said of those that are not there."""

import ctypes
import json
import pathlib
import re
import signal
import socket
import types

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.training import distribution
from bert_tf.training.distribution import (
    DistributionConfig,
    agreement,
    exchange,
    is_chief,
    make_strategy,
    num_processes,
    number_of_workers,
    should_compile,
)
from tests.training import toy_task

TWO_WORKERS = {"worker": ["a:1", "b:2"]}


@pytest.fixture(autouse=True)
def no_tf_config(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)


def describe(monkeypatch, **tf_config):
    monkeypatch.setenv("TF_CONFIG", json.dumps(tf_config))


@pytest.fixture
def chosen(monkeypatch):
    """Names what is made instead of making it."""
    for name in distribution._MAKERS:

        def make(config, name=name):
            strategy = tf.distribute.get_strategy()
            made.append(name)
            return strategy

        monkeypatch.setitem(distribution._MAKERS, name, make)
    made = []
    return made


def test_auto_is_one_device_where_there_is_nothing_else(chosen):
    make_strategy(DistributionConfig())
    assert chosen == ["one_device"]


def test_auto_takes_workers_and_before_them_a_tpu(chosen, monkeypatch):
    describe(monkeypatch, cluster=TWO_WORKERS)
    make_strategy(DistributionConfig())
    make_strategy(DistributionConfig(tpu_name="local"))
    assert chosen == ["multi_worker_mirrored", "tpu"]


def test_auto_takes_all_gpus_if_there_are_several(chosen, monkeypatch):
    monkeypatch.setattr(
        tf.config, "list_logical_devices", lambda kind: [kind] * 2
    )
    make_strategy(DistributionConfig())
    assert chosen == ["mirrored"]


@pytest.mark.parametrize("name", distribution.STRATEGIES[1:])
def test_what_is_asked_for_is_taken(chosen, name):
    make_strategy(DistributionConfig(strategy=name))
    assert chosen == [name]


def test_an_unknown_strategy():
    with pytest.raises(InputError, match=r"one of auto, .*Received: 'horovod'"):
        make_strategy(DistributionConfig(strategy="horovod"))


def test_one_device_is_one_replica_and_the_chief():
    strategy = make_strategy(DistributionConfig("one_device"))
    assert strategy.num_replicas_in_sync == 1
    assert num_processes(strategy) == 1
    assert is_chief(strategy)


@pytest.mark.parametrize(
    ("strategy", "names", "message"),
    [
        ("one_device", [], "Devices: CPU, one_device, 1 replica(s)"),
        ("one_device", ["H200", "T4"], "Devices: GPU (H200), one_device, 1"),
        ("mirrored", ["T4", "T4"], "Devices: GPU (T4), mirrored, 2 replica(s)"),
        ("mirrored", ["H200", None], "Devices: GPU (H200, unknown), mirrored"),
        ("tpu", [], "Devices: TPU, tpu, 1 replica(s)"),
    ],
)
def test_the_log_names_the_devices(
    monkeypatch, caplog, strategy, names, message
):
    monkeypatch.setattr(
        tf.config,
        "get_visible_devices",
        lambda kind: list(range(len(names))) if kind == "GPU" else ["cpu"],
    )
    monkeypatch.setattr(
        tf.config.experimental,
        "get_device_details",
        lambda number: {"device_name": names[number]} if names[number] else {},
    )
    made = types.SimpleNamespace(num_replicas_in_sync=max(1, len(names)))
    if strategy == "one_device":
        made = tf.distribute.get_strategy()
    monkeypatch.setitem(distribution._MAKERS, strategy, lambda config: made)
    with caplog.at_level("INFO"):
        make_strategy(DistributionConfig(strategy))
    assert message in caplog.text


def test_mirrored_takes_every_cpu_where_there_is_no_gpu():
    strategy = make_strategy(DistributionConfig("mirrored"))
    assert strategy.num_replicas_in_sync == 2
    assert num_processes(strategy) == 1
    assert is_chief(strategy)


def test_mirrored_on_one_cpu_is_told(monkeypatch, caplog):
    devices = {"CPU": tf.config.list_logical_devices("CPU")[:1]}
    monkeypatch.setattr(
        tf.config, "list_logical_devices", lambda kind: devices.get(kind, [])
    )
    strategy = make_strategy(DistributionConfig("mirrored"))
    assert strategy.num_replicas_in_sync == 1
    assert "no GPU that TensorFlow can use" in caplog.text


def test_a_tpu_that_is_not_there():
    with pytest.raises(InputError) as error:
        make_strategy(DistributionConfig("tpu"))
    assert "expected a TPU at --tpu_name=local. Rec" in str(error.value)
    assert "\n" not in str(error.value)
    assert "{{node" not in str(error.value)


def test_a_tpu_that_does_not_answer(monkeypatch):
    """TensorFlow would wait for it without an end."""
    with socket.create_server(("localhost", 0)) as server:
        port = server.getsockname()[1]
    monkeypatch.setattr(
        tf.config, "experimental_connect_to_cluster", pytest.fail
    )
    address = f"grpc://localhost:{port}"
    expected = rf"{address}\. Received: nobody answers at localhost:{port}: "
    with pytest.raises(InputError, match=expected):
        make_strategy(DistributionConfig(tpu_name=address))


def test_a_tpus_name_that_nobody_knows(monkeypatch):
    def look_up(**arguments):
        assert arguments["tpu"] == "mine"
        raise ConnectionRefusedError("nobody answers\nat all")

    monkeypatch.setattr(
        tf.distribute.cluster_resolver, "TPUClusterResolver", look_up
    )
    with pytest.raises(
        InputError, match=r"--tpu_name=mine. Received: nobody answers \(a TPU"
    ):
        make_strategy(DistributionConfig(tpu_name="mine"))


# TF_CONFIG


@pytest.mark.parametrize(
    ("cluster", "count"),
    [
        ({}, 1),
        ({"worker": ["a:1"]}, 1),
        (TWO_WORKERS, 2),
        ({"chief": ["c:1"], **TWO_WORKERS, "evaluator": ["e:1"]}, 3),
    ],
)
def test_workers_are_counted(monkeypatch, cluster, count):
    assert number_of_workers() == 1
    describe(monkeypatch, cluster=cluster)
    assert number_of_workers() == count


@pytest.mark.parametrize(
    "text",
    [
        "worker",
        "{",
        "[]",
        '"text"',
        '{"cluster": ["a:1"]}',
        '{"cluster": {"worker": 2}}',
        '{"cluster": {"worker": "abc"}}',
        "[" * 100_000,
        '{"cluster": {"worker": ["a:1", "b:1"]}, "task": ["worker", 0]}',
    ],
)
def test_a_tf_config_that_cannot_be_understood(monkeypatch, text):
    monkeypatch.setenv("TF_CONFIG", text)
    for strategy in ("auto", "multi_worker_mirrored"):
        with pytest.raises(InputError) as error:
            make_strategy(DistributionConfig(strategy))
        assert "expected TF_CONFIG such as {" in str(error.value)
        assert len(str(error.value)) < 500


@pytest.mark.parametrize(
    ("task", "received"),
    [
        ({}, "None None"),
        ({"type": "worker"}, "worker None"),
        ({"type": "worker", "index": 2}, "worker 2"),
        ({"type": "evaluator", "index": 0}, "evaluator 0"),
        ({"type": "chief", "index": 0}, "chief 0"),
    ],
)
def test_a_place_that_is_not_in_the_cluster(monkeypatch, task, received):
    describe(monkeypatch, cluster=TWO_WORKERS, task=task)
    with pytest.raises(
        InputError, match=f"among worker 0, worker 1. Received: {received}$"
    ):
        make_strategy(DistributionConfig())


@pytest.mark.parametrize("name", ["one_device", "mirrored"])
def test_workers_that_would_not_work_together(monkeypatch, name):
    """Each would train alone and write over what the others write."""
    describe(monkeypatch, cluster=TWO_WORKERS)
    with pytest.raises(InputError, match=f"2 workers. Received: {name}; unset"):
        make_strategy(DistributionConfig(name))


def test_workers_meet_before_tensorflow_starts(monkeypatch):
    told = []
    monkeypatch.setattr(
        distribution,
        "wait_for_workers",
        lambda own, others: told.append((own, others)),
    )
    monkeypatch.setattr(
        tf.distribute, "MultiWorkerMirroredStrategy", tf.distribute.get_strategy
    )
    cluster = {"chief": ["c:1"], **TWO_WORKERS}
    task = {"type": "worker", "index": 1}
    describe(monkeypatch, cluster=cluster, task=task)
    make_strategy(DistributionConfig("multi_worker_mirrored"))
    assert told == [("b:2", {"chief 0": "c:1", "worker 0": "a:1"})]


def test_several_workers_without_a_tf_config():
    with pytest.raises(InputError, match=r"TF_CONFIG to list .*Received: None"):
        make_strategy(DistributionConfig("multi_worker_mirrored"))


# Signals


def ignored_signals():
    [line] = re.findall(
        r"SigIgn:\s+(\w+)", pathlib.Path("/proc/self/status").read_text()
    )
    mask = int(line, 16)
    return {number for number in range(1, 32) if mask >> (number - 1) & 1}


@pytest.fixture
def replacing_sigterm(monkeypatch):
    """A strategy whose creation replaces the handler, as TensorFlow does."""
    before = signal.getsignal(signal.SIGTERM)
    libc = ctypes.CDLL(None)
    noted = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda number: None)

    def make(config):
        libc.signal(int(signal.SIGTERM), noted)
        return tf.distribute.get_strategy()

    monkeypatch.setitem(distribution._MAKERS, "one_device", make)
    yield
    signal.signal(signal.SIGTERM, before)


def test_sigterm_is_handled_once_there_is_a_strategy(replacing_sigterm):
    received = []
    signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    make_strategy(DistributionConfig("one_device"))
    signal.raise_signal(signal.SIGTERM)
    assert received == [signal.SIGTERM]


def test_an_ignored_sigterm_stays_ignored(replacing_sigterm):
    """As under nohup."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    make_strategy(DistributionConfig("one_device"))
    assert signal.SIGTERM in ignored_signals()


# The chief


@pytest.mark.parametrize(
    ("jobs", "place", "chief"),
    [
        ({"worker": ["a:1", "b:1"]}, ("worker", 0), True),
        ({"worker": ["a:1", "b:1"]}, ("worker", 1), False),
        ({"worker": ["a:1"], "chief": ["b:1"]}, ("worker", 0), False),
        ({"worker": ["a:1"], "chief": ["b:1"]}, ("chief", 0), True),
    ],
)
def test_one_of_several_processes_writes(monkeypatch, jobs, place, chief):
    """Without the processes: what the strategy's resolver says is enough."""

    class Resolver:
        task_type, task_id = place

        def cluster_spec(self):
            return tf.train.ClusterSpec(jobs)

    class Strategy:
        cluster_resolver = Resolver()

    monkeypatch.setattr(tf.distribute, "MultiWorkerMirroredStrategy", Strategy)
    assert num_processes(Strategy()) == 2
    assert is_chief(Strategy()) is chief


# What processes tell each other


def test_one_process_agrees_with_itself():
    strategy = tf.distribute.get_strategy()
    assert agreement(strategy)([3, -1]) == [3, -1]
    values = np.arange(6).reshape(2, 3)
    np.testing.assert_array_equal(exchange(strategy)(values), [values])


def test_agreements_of_several_processes_share_a_trace(monkeypatch, caplog):
    """TensorFlow warns of functions that it traces again and again."""
    strategy = toy_task.two_devices()
    monkeypatch.setattr(distribution, "num_processes", lambda strategy: 2)
    for number in range(9):
        assert agreement(strategy)([number]) == [number]
        assert agreement(strategy)([-number, 3]) == [-number, 3]
    rows = np.arange(6, dtype="float32").reshape(2, 3)
    np.testing.assert_array_equal(exchange(strategy)(rows), [rows, rows])
    assert "retracing" not in caplog.text


def test_what_is_compiled():
    strategy = tf.distribute.get_strategy()
    assert should_compile(strategy, None) is False  # on a CPU
    assert should_compile(strategy, True) is True
    assert should_compile(strategy, False) is False


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_rows_of_all_replicas_are_what_they_were(dtype):
    """To the bit: no sum over replicas, which a TPU gathers by, changes it."""
    bits = [0x7F800000, -0x80000000, 0x7FC00001, -0x00800000, 3, 0x3F800000]
    rows = np.array(bits, "int64").astype("int32").view(dtype).reshape(2, 3)
    strategy = toy_task.two_devices()

    @tf.function
    def gather():
        def in_replica():
            replica = tf.distribute.get_replica_context()
            number = replica.replica_id_in_sync_group
            return distribution.all_rows(tf.constant(rows)[number][tf.newaxis])

        return strategy.experimental_local_results(strategy.run(in_replica))

    for found in gather():
        np.testing.assert_array_equal(found.numpy().view("int32").ravel(), bits)
