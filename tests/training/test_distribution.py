"""The devices of a run, and errors where they are not available."""

import json
import re
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
def short_waits(monkeypatch):
    monkeypatch.setattr(distribution, "_SECONDS_BETWEEN_ATTEMPTS", 0.01)
    monkeypatch.setattr(distribution, "_SECONDS_BEFORE_MESSAGE", 0.0)


@pytest.fixture(autouse=True)
def set_tf_config(monkeypatch):
    """Returns a function that sets TF_CONFIG, which is absent at first."""
    monkeypatch.delenv("TF_CONFIG", raising=False)
    return lambda **values: monkeypatch.setenv("TF_CONFIG", json.dumps(values))


def test_the_choice_of_a_strategy(set_tf_config, monkeypatch):
    """By default a TPU, then several workers, then several GPUs."""
    chosen = []
    for name in distribution._MAKERS:

        def make(config, name=name):
            chosen.append(name)
            return tf.distribute.get_strategy()

        monkeypatch.setitem(distribution._MAKERS, name, make)
    for name in distribution.STRATEGIES:
        make_strategy(DistributionConfig(strategy=name))
    assert chosen == ["one_device", *distribution.STRATEGIES[1:]]
    chosen.clear()
    monkeypatch.setattr(
        tf.config, "list_logical_devices", lambda kind: [kind] * 2
    )
    make_strategy(DistributionConfig())
    set_tf_config(cluster=TWO_WORKERS)
    make_strategy(DistributionConfig())
    make_strategy(DistributionConfig(tpu_name="local"))
    assert chosen == ["mirrored", "multi_worker_mirrored", "tpu"]


def test_one_device_is_one_replica_and_the_chief():
    strategy = make_strategy(DistributionConfig("one_device"))
    assert strategy.num_replicas_in_sync == num_processes(strategy) == 1
    assert is_chief(strategy)
    assert should_compile(strategy, None) is False  # On a CPU.
    assert should_compile(strategy, True) is True
    assert agreement(strategy)([3, -1]) == [3, -1]
    assert exchange(strategy)(np.arange(3)).tolist() == [[0, 1, 2]]


@pytest.mark.parametrize(
    ("strategy", "names", "message"),
    [
        ("one_device", [], "Devices: CPU, one_device, 1 replica(s)"),
        ("one_device", ["H200", "T4"], "Devices: GPU (H200), one_device, 1"),
        (
            "mirrored",
            ["T4", "T4", None],
            "Devices: GPU (T4, unknown), mirrored",
        ),
        ("tpu", [], "Devices: TPU, tpu, 1 replica(s)"),
    ],
)
def test_the_log_names_the_devices(
    monkeypatch, caplog, strategy, names, message
):
    caplog.set_level("INFO")
    details = [{"device_name": name} if name else {} for name in names]
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: details)
    monkeypatch.setattr(
        tf.config.experimental, "get_device_details", lambda gpu: gpu
    )
    default = tf.distribute.get_strategy()
    monkeypatch.setitem(distribution._MAKERS, strategy, lambda config: default)
    make_strategy(DistributionConfig(strategy))
    assert message in caplog.text


def test_mirrored_without_gpus_takes_every_cpu(monkeypatch, caplog):
    strategy = make_strategy(DistributionConfig("mirrored"))
    assert strategy.num_replicas_in_sync == 2
    assert num_processes(strategy) == 1
    devices = {"CPU": tf.config.list_logical_devices("CPU")[:1]}
    monkeypatch.setattr(
        tf.config, "list_logical_devices", lambda kind: devices.get(kind, [])
    )
    strategy = make_strategy(DistributionConfig("mirrored"))
    assert strategy.num_replicas_in_sync == 1
    assert "no GPU that TensorFlow can use" in caplog.text


def test_without_a_tpu_the_error_is_one_line():
    expected = r"^No TPU found at `tpu_name=local`: [^\n{]*$"
    with pytest.raises(InputError, match=expected):
        make_strategy(DistributionConfig("tpu"))


def test_a_tpu_that_does_not_answer_is_not_waited_for(free, monkeypatch):
    monkeypatch.setattr(
        tf.config, "experimental_connect_to_cluster", pytest.fail
    )
    address = f"grpc://{free[0]}"
    expected = f"{address}`: {free[0]} does not answer: Connection refused"
    with pytest.raises(InputError, match=expected):
        make_strategy(DistributionConfig(tpu_name=address))


def test_workers_are_counted(set_tf_config):
    assert number_of_workers() == 1
    for cluster, count in (
        ({}, 1),
        ({"worker": ["a:1"]}, 1),
        (TWO_WORKERS, 2),
        ({"chief": ["c:1"], **TWO_WORKERS, "evaluator": ["e:1"]}, 3),
    ):
        set_tf_config(cluster=cluster)
        assert number_of_workers() == count


@pytest.mark.parametrize(
    "text",
    [
        "worker",
        "[]",
        '{"cluster": ["a:1"]}',
        '{"cluster": {"worker": "abc"}}',
        '{"cluster": {"ps": ["a:1"]}}',
        "[" * 100_000,
    ],
)
def test_an_invalid_tf_config(monkeypatch, text):
    monkeypatch.setenv("TF_CONFIG", text)
    for strategy in ("auto", "multi_worker_mirrored"):
        with pytest.raises(InputError, match="TF_CONFIG must be like") as e:
            make_strategy(DistributionConfig(strategy))
        assert len(str(e.value)) < 500


@pytest.mark.parametrize(
    ("strategy", "tf_config", "message"),
    [
        ("horovod", {}, r"one of auto, .*; got 'horovod'"),
        ("multi_worker_mirrored", {}, "needs the environment variable TF_C"),
        # Workers must not train independently.
        ("one_device", {"cluster": TWO_WORKERS}, "2 w.*'one_device'. Unset"),
        # The task is not in the cluster.
        ("auto", {"cluster": TWO_WORKERS}, "0 or worker 1; got 'None None'"),
        (
            "auto",
            {"cluster": TWO_WORKERS, "task": {"type": "worker", "index": 2}},
            "one of worker 0 or worker 1; got 'worker 2'",
        ),
        # A lone worker, too, is the one that the cluster lists.
        (
            "auto",
            {
                "cluster": {"chief": ["a:1"], "evaluator": ["b:1"]},
                "task": {"type": "evaluator", "index": 0},
            },
            "one of chief 0; got 'evaluator 0'",
        ),
        # Workers with one address would wait for each other.
        (
            "auto",
            {
                "cluster": {"chief": ["a:1"], "worker": ["b:1", "a:1"]},
                "task": {"type": "worker", "index": 0},
            },
            "must be at a different address; got 'a:1'. Change the",
        ),
    ],
)
def test_a_strategy_that_does_not_fit(
    set_tf_config, strategy, tf_config, message
):
    if tf_config:
        set_tf_config(**tf_config)
    with pytest.raises(InputError, match=message):
        make_strategy(DistributionConfig(strategy))


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
    class Strategy:
        cluster_resolver = types.SimpleNamespace(
            task_type=place[0],
            task_id=place[1],
            cluster_spec=lambda: tf.train.ClusterSpec(jobs),
        )

    monkeypatch.setattr(tf.distribute, "MultiWorkerMirroredStrategy", Strategy)
    assert num_processes(Strategy()) == 2
    assert is_chief(Strategy()) is chief


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


@pytest.fixture
def there():
    """The address of a server that answers."""
    with socket.create_server(("localhost", 0)) as server:
        yield f"localhost:{server.getsockname()[1]}"


@pytest.fixture
def free():
    """Two addresses at which nothing listens."""
    with (
        socket.create_server(("localhost", 0)) as one,
        socket.create_server(("localhost", 0)) as other,
    ):
        ports = [server.getsockname()[1] for server in (one, other)]
    return [f"localhost:{port}" for port in ports]


def test_workers_wait_before_tensorflow_starts(set_tf_config, monkeypatch):
    calls = []
    monkeypatch.setattr(
        distribution, "wait_for_workers", lambda *names: calls.append(names)
    )
    monkeypatch.setattr(
        tf.distribute, "MultiWorkerMirroredStrategy", tf.distribute.get_strategy
    )
    cluster = {"chief": ["c:1"], **TWO_WORKERS}
    set_tf_config(cluster=cluster, task={"type": "worker", "index": 1})
    make_strategy(DistributionConfig("multi_worker_mirrored"))
    assert calls == [("b:2", {"chief 0": "c:1", "worker 0": "a:1"})]


def test_a_server_that_answers_is_not_waited_for(free, there):
    """The server may be TensorFlow's, which has taken the address over."""
    wait_for_workers(free[0], {})
    wait_for_workers(free[0], {"worker 1": there}, most_seconds=0)
    assert distribution.connection_error(there) is None
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
        assert distribution.connection_error(one) is None
        waiting.join(10)
    assert not waiting.is_alive()


def test_missing_workers_are_named(free, there, caplog):
    caplog.set_level("INFO", "absl")
    others = {"worker 1": there, "worker 2": free[1]}
    missing = f"worker 2 at {free[1]} (Connection refused)"
    expected = re.escape(f"within 0 seconds: {missing}. Start")
    with pytest.raises(InputError, match=expected):
        wait_for_workers(free[0], others, most_seconds=0.4)
    assert f"Waiting for {missing}" in caplog.text


def test_a_worker_reports_an_unusable_address(free, there):
    expected = f"Cannot listen at {there}, this worker's .*: Address already in"
    with pytest.raises(InputError, match=expected):
        wait_for_workers(there, {"worker 1": free[0]})


@pytest.mark.parametrize(
    "address", ["host", ":1", "host:http", "host:0", "host:70000"]
)
def test_an_invalid_address(free, address):
    assert distribution._parse_address("[::1]:22") == ("::1", 22)
    for own, other in ((address, free[0]), (free[0], address)):
        with pytest.raises(InputError, match=f"HOST:PORT; got '{address}'"):
            wait_for_workers(own, {"worker 1": other})
