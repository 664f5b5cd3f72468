"""The devices of a run, and errors where they are not available."""

import contextlib
import ctypes
import json
import logging
import pathlib
import re
import signal
import socket
import threading
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
    wait_for_workers,
)
from tests.training import toy_task

TWO_WORKERS = {"worker": ["a:1", "b:2"]}


@pytest.fixture(autouse=True)
def no_tf_config(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)


def set_tf_config(monkeypatch, **tf_config):
    monkeypatch.setenv("TF_CONFIG", json.dumps(tf_config))


@pytest.fixture
def chosen(monkeypatch):
    """Lists the names of strategies instead of making them."""
    for name in distribution._MAKERS:

        def make(config, name=name):
            made.append(name)
            return tf.distribute.get_strategy()

        monkeypatch.setitem(distribution._MAKERS, name, make)
    made = []
    return made


def test_auto_prefers_a_tpu_then_workers_then_several_gpus(chosen, monkeypatch):
    make_strategy(DistributionConfig())
    monkeypatch.setattr(
        tf.config, "list_logical_devices", lambda kind: [kind] * 2
    )
    make_strategy(DistributionConfig())
    set_tf_config(monkeypatch, cluster=TWO_WORKERS)
    make_strategy(DistributionConfig())
    make_strategy(DistributionConfig(tpu_name="local"))
    assert chosen == ["one_device", "mirrored", "multi_worker_mirrored", "tpu"]


def test_a_named_strategy_is_made(chosen):
    for name in distribution.STRATEGIES[1:]:
        make_strategy(DistributionConfig(strategy=name))
    assert chosen == [*distribution.STRATEGIES[1:]]
    with pytest.raises(InputError, match=r"one of auto, .*; got 'horovod'"):
        make_strategy(DistributionConfig(strategy="horovod"))


def test_one_device_is_one_replica_and_the_chief():
    strategy = make_strategy(DistributionConfig("one_device"))
    assert strategy.num_replicas_in_sync == 1
    assert num_processes(strategy) == 1
    assert is_chief(strategy)
    assert should_compile(strategy, None) is False  # On a CPU.
    assert should_compile(strategy, True) is True
    assert should_compile(strategy, False) is False


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


def test_mirrored_without_gpus_takes_every_cpu(monkeypatch, caplog):
    strategy = make_strategy(DistributionConfig("mirrored"))
    assert strategy.num_replicas_in_sync == 2
    assert num_processes(strategy) == 1
    assert is_chief(strategy)
    devices = {"CPU": tf.config.list_logical_devices("CPU")[:1]}
    monkeypatch.setattr(
        tf.config, "list_logical_devices", lambda kind: devices.get(kind, [])
    )
    strategy = make_strategy(DistributionConfig("mirrored"))
    assert strategy.num_replicas_in_sync == 1
    assert "no GPU that TensorFlow can use" in caplog.text


# -------------------------------------------------------------------- TPU


def test_without_a_tpu_the_error_is_one_line():
    with pytest.raises(InputError) as error:
        make_strategy(DistributionConfig("tpu"))
    assert "No TPU found at --tpu_name=local: " in str(error.value)
    assert "\n" not in str(error.value)
    assert "{{node" not in str(error.value)


def test_a_tpu_that_does_not_answer_is_not_waited_for(monkeypatch):
    with socket.create_server(("localhost", 0)) as server:
        port = server.getsockname()[1]
    monkeypatch.setattr(
        tf.config, "experimental_connect_to_cluster", pytest.fail
    )
    address = f"grpc://localhost:{port}"
    expected = f"{address}: localhost:{port} does not answer: Connection ref"
    with pytest.raises(InputError, match=expected):
        make_strategy(DistributionConfig(tpu_name=address))


def test_an_unknown_name_of_a_tpu(monkeypatch):
    def look_up(**arguments):
        assert arguments["tpu"] == "mine"
        raise ConnectionRefusedError("no such TPU\nat all")

    monkeypatch.setattr(
        tf.distribute.cluster_resolver, "TPUClusterResolver", look_up
    )
    with pytest.raises(InputError, match=r"tpu_name=mine: no such TPU\. A TPU"):
        make_strategy(DistributionConfig(tpu_name="mine"))


# -------------------------------------------------------------- TF_CONFIG


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
    set_tf_config(monkeypatch, cluster=cluster)
    assert number_of_workers() == count


@pytest.mark.parametrize(
    "text",
    [
        "worker",
        "[]",
        '"text"',
        '{"cluster": ["a:1"]}',
        '{"cluster": {"worker": 2}}',
        '{"cluster": {"worker": "abc"}}',
        "[" * 100_000,
        '{"cluster": {"worker": ["a:1", "b:1"]}, "task": ["worker", 0]}',
    ],
)
def test_an_invalid_tf_config(monkeypatch, text):
    monkeypatch.setenv("TF_CONFIG", text)
    for strategy in ("auto", "multi_worker_mirrored"):
        with pytest.raises(InputError) as error:
            make_strategy(DistributionConfig(strategy))
        assert "TF_CONFIG must be like {" in str(error.value)
        assert len(str(error.value)) < 500


@pytest.mark.parametrize(
    ("task", "own"),
    [
        ({}, "None None"),
        ({"type": "worker", "index": 2}, "worker 2"),
        ({"type": "evaluator", "index": 0}, "evaluator 0"),
        ({"type": "chief", "index": 0}, "chief 0"),
    ],
)
def test_a_task_that_is_not_in_the_cluster(monkeypatch, task, own):
    set_tf_config(monkeypatch, cluster=TWO_WORKERS, task=task)
    with pytest.raises(
        InputError, match=f"one of worker 0 or worker 1; got '{own}'"
    ):
        make_strategy(DistributionConfig())


@pytest.mark.parametrize("name", ["one_device", "mirrored"])
def test_workers_must_not_train_independently(monkeypatch, name):
    set_tf_config(monkeypatch, cluster=TWO_WORKERS)
    with pytest.raises(InputError, match=f"2 workers; got '{name}'. Unset"):
        make_strategy(DistributionConfig(name))
    monkeypatch.delenv("TF_CONFIG")
    with pytest.raises(InputError, match="needs the environment var"):
        make_strategy(DistributionConfig("multi_worker_mirrored"))


@pytest.mark.parametrize(
    ("jobs", "place", "chief"),
    [
        (TWO_WORKERS, ("worker", 0), True),
        (TWO_WORKERS, ("worker", 1), False),
        ({"worker": ["a:1"], "chief": ["b:1"]}, ("worker", 0), False),
        ({"worker": ["a:1"], "chief": ["b:1"]}, ("chief", 0), True),
    ],
)
def test_the_chief_of_several_processes(monkeypatch, jobs, place, chief):
    class Resolver:
        task_type, task_id = place

        def cluster_spec(self):
            return tf.train.ClusterSpec(jobs)

    class Strategy:
        cluster_resolver = Resolver()

    monkeypatch.setattr(tf.distribute, "MultiWorkerMirroredStrategy", Strategy)
    assert num_processes(Strategy()) == 2
    assert is_chief(Strategy()) is chief


# ---------------------------------------------------------------- signals


@pytest.fixture
def replaced_sigterm(monkeypatch):
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


def test_pythons_handler_of_sigterm_is_restored(replaced_sigterm):
    received = []
    signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    make_strategy(DistributionConfig("one_device"))
    signal.raise_signal(signal.SIGTERM)
    assert received == [signal.SIGTERM]
    # Under nohup it is ignored, and stays so.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    make_strategy(DistributionConfig("one_device"))
    status = pathlib.Path("/proc/self/status").read_text()
    [mask] = re.findall(r"SigIgn:\s+(\w+)", status)
    assert int(mask, 16) >> (signal.SIGTERM - 1) & 1


# --------------------------------------------- exchange between processes


def test_one_process_agrees_with_itself():
    strategy = tf.distribute.get_strategy()
    assert agreement(strategy)([3, -1]) == [3, -1]
    values = np.arange(6).reshape(2, 3)
    np.testing.assert_array_equal(exchange(strategy)(values), [values])


def test_agreements_of_several_processes_share_a_trace(monkeypatch, caplog):
    strategy = toy_task.two_devices()
    monkeypatch.setattr(distribution, "num_processes", lambda strategy: 2)
    for number in range(9):
        assert agreement(strategy)([number]) == [number]
        assert agreement(strategy)([-number, 3]) == [-number, 3]
    rows = np.arange(6, dtype="float32").reshape(2, 3)
    np.testing.assert_array_equal(exchange(strategy)(rows), [rows, rows])
    assert "retracing" not in caplog.text


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_gathered_rows_keep_their_bits(dtype):
    """Infinities and NaN too, which a TPU's sum would change."""
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


# ---------------------------------------------- waiting for other workers


@contextlib.contextmanager
def listening():
    """A server that answers; yields its address."""
    with socket.create_server(("localhost", 0)) as server:
        yield f"localhost:{server.getsockname()[1]}"


@pytest.fixture
def free():
    """Two addresses at which nothing listens."""
    with listening() as one, listening() as other:
        pass
    return one, other


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(distribution, "_SECONDS_BETWEEN_ATTEMPTS", 0.01)
    monkeypatch.setattr(distribution, "_SECONDS_BEFORE_MESSAGE", 0.0)


def test_workers_wait_before_tensorflow_starts(monkeypatch):
    calls = []
    monkeypatch.setattr(
        distribution,
        "wait_for_workers",
        lambda own, others: calls.append((own, others)),
    )
    monkeypatch.setattr(
        tf.distribute, "MultiWorkerMirroredStrategy", tf.distribute.get_strategy
    )
    cluster = {"chief": ["c:1"], **TWO_WORKERS}
    task = {"type": "worker", "index": 1}
    set_tf_config(monkeypatch, cluster=cluster, task=task)
    make_strategy(DistributionConfig("multi_worker_mirrored"))
    assert calls == [("b:2", {"chief 0": "c:1", "worker 0": "a:1"})]


def test_a_server_that_answers_is_not_waited_for(free):
    """The server may be TensorFlow's, which has taken the address over."""
    wait_for_workers(free[0], {})
    with listening() as other:
        wait_for_workers(free[0], {"worker 1": other}, most_seconds=0)
        assert distribution.connection_error(other) is None
    assert distribution.connection_error(free[0]) == "Connection refused"
    # Now TensorFlow can use this address.
    with socket.create_server(("", int(free[0].split(":")[1]))):
        pass


def test_two_workers_find_each_other(free):
    one, other = free
    waiting = threading.Thread(
        target=wait_for_workers, args=(one, {"worker 1": other})
    )
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive()
    # The second stops waiting when it has found the first, which may not have
    # found the second yet.
    with socket.create_server(("localhost", int(other.split(":")[1]))):
        distribution._try_to_connect(distribution._parse_address(one))
        waiting.join(10)
    assert not waiting.is_alive()


def test_missing_workers_are_named(free, caplog):
    caplog.set_level(logging.INFO, "absl")
    with listening() as there:
        others = {
            "worker 1": there,
            "worker 2": free[1],
            "worker 3": "nowhere.invalid:1",
        }
        with pytest.raises(InputError) as error:
            wait_for_workers(free[0], others, most_seconds=0.05)
    missing = f"worker 2 at {free[1]} (Connection refused), worker 3 at nowhere"
    assert f"Waiting for {missing}" in caplog.text
    assert f"within 0 seconds: {missing}" in str(error.value)


def test_an_own_address_that_cannot_be_used(free):
    with listening() as own, pytest.raises(InputError) as error:
        wait_for_workers(own, {"worker 1": free[0]})
    assert f"Cannot listen at {own}, this worker's" in str(error.value)
    assert "Address already in use" in str(error.value)
    with pytest.raises(InputError, match="Cannot listen at here:70000"):
        wait_for_workers("here:70000", {"worker 1": free[0]})


@pytest.mark.parametrize("address", ["", "host", "host:", ":1", "host:http"])
def test_an_invalid_address(free, address):
    assert distribution._parse_address("[::1]:22") == ("::1", 22)
    for own, other in ((address, free[0]), (free[0], address)):
        with pytest.raises(InputError, match=f"HOST:PORT; got '{address}'"):
            wait_for_workers(own, {"worker 1": other})
