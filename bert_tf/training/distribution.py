"""The devices of a run: one, several of a host, several hosts, or a TPU."""

import collections
import contextlib
import dataclasses
import functools
import json
import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf.base import signals
from bert_tf.errors import (
    InputError,
    reason,
    require_choice,
    shortened,
    wrong_value,
)
from bert_tf.modeling.kernels import runs_op_by_op
from bert_tf.training.settings import STRATEGIES

# The jobs of TF_CONFIG that train.
_JOBS = ("chief", "worker")
_TF_CONFIG = (
    '{"cluster": {"worker": ["HOST:PORT", "HOST:PORT"]}, '
    '"task": {"type": "worker", "index": 0}}'
)


@dataclasses.dataclass(frozen=True)
class DistributionConfig:
    """The devices that the user asks for.

    Attributes:
      strategy: One of STRATEGIES. "auto" takes a TPU if one is named, several
        workers if TF_CONFIG lists them, all GPUs if there are several, and
        one device otherwise.
      tpu_name: Name or grpc:// address of the TPU; "local" on a TPU VM.
      tpu_zone, gcp_project: Zone and project of the TPU.
    """

    strategy: str = "auto"
    tpu_name: str | None = None
    tpu_zone: str | None = None
    gcp_project: str | None = None


def make_strategy(config: DistributionConfig) -> tf.distribute.Strategy:
    """Connects to the devices; must be called before TensorFlow uses any.

    Several workers are described by the environment variable TF_CONFIG, as
    usual in TensorFlow; each runs the same command.

    Raises:
      InputError: The devices are not available.
    """
    name = _resolve(config)
    strategy = _MAKERS[name](config)
    signals.reinstall_sigterm()
    logging.info(
        "Devices: %s, %s, %d replica(s) in step",
        _device_kind(name),
        name,
        strategy.num_replicas_in_sync,
    )
    return strategy


def _device_kind(strategy_name: str) -> str:
    """Returns "CPU", "TPU" or "GPU" with the models of the GPUs in use."""
    if strategy_name == "tpu":
        return "TPU"
    gpus = tf.config.get_visible_devices("GPU")
    if not gpus:
        return "CPU"
    details = [tf.config.experimental.get_device_details(gpu) for gpu in gpus]
    names = [detail.get("device_name", "unknown") for detail in details]
    if strategy_name == "one_device":
        del names[1:]
    return f"GPU ({', '.join(dict.fromkeys(names))})"


def _resolve(config: DistributionConfig) -> str:
    name = config.strategy
    require_choice("`distribution_strategy`", name, STRATEGIES)
    if name in ("one_device", "mirrored") and number_of_workers() > 1:
        # Each worker would train alone and overwrite the others' files.
        raise wrong_value(
            "`distribution_strategy`",
            "auto or multi_worker_mirrored, as TF_CONFIG lists "
            f"{number_of_workers()} workers",
            name,
            "Unset TF_CONFIG to train on this host alone.",
        )
    if name != "auto":
        return name
    if config.tpu_name:
        return "tpu"
    if number_of_workers() > 1:
        return "multi_worker_mirrored"
    if len(tf.config.list_logical_devices("GPU")) > 1:
        return "mirrored"
    return "one_device"


def number_of_workers() -> int:
    """Returns the number of workers in TF_CONFIG; 1 without it."""
    return max(1, len(_read_tf_config()[0]))


def _read_tf_config() -> tuple[dict[str, str], str]:
    """Returns addresses by worker ("worker 0"), and this worker's name."""
    text = os.environ.get("TF_CONFIG", "{}")
    try:
        tf_config = json.loads(text)
        cluster, task = (tf_config.get(key, {}) for key in ("cluster", "task"))
        jobs = {job: cluster.get(job, []) for job in _JOBS}
        if not all(isinstance(addresses, list) for addresses in jobs.values()):
            raise TypeError("the addresses of a job are a list")
        workers = {
            f"{job} {index}": str(address)
            for job, addresses in jobs.items()
            for index, address in enumerate(addresses)
        }
        if cluster and not workers:
            raise ValueError("no worker trains")
        own = f"{task.get('type')} {task.get('index')}"
    except (ValueError, RecursionError, AttributeError, TypeError) as error:
        raise InputError(
            f"TF_CONFIG must be like {_TF_CONFIG}; got {shortened(text, 200)}."
        ) from error
    if task and workers:
        _require_task(own, workers)
    return workers, own


def _require_task(own: str, workers: Iterable[str]) -> None:
    require_choice("The task of TF_CONFIG", own, [*workers])


def _mirrored(config: DistributionConfig) -> tf.distribute.Strategy:
    devices = tf.config.list_logical_devices("GPU")
    if not devices:
        devices = tf.config.list_logical_devices("CPU")
        if len(devices) == 1:
            logging.warning(
                "`distribution_strategy=mirrored`: there is no GPU that "
                "TensorFlow can use; a single replica runs, on the CPU."
            )
    return tf.distribute.MirroredStrategy([device.name for device in devices])


def _multi_worker(config: DistributionConfig) -> tf.distribute.Strategy:
    workers, own = _read_tf_config()
    if not workers:
        raise InputError(
            "`distribution_strategy=multi_worker_mirrored` needs the "
            f"environment variable TF_CONFIG, such as {_TF_CONFIG}."
        )
    _require_task(own, workers)
    wait_for_workers(workers.pop(own), workers)
    return tf.distribute.MultiWorkerMirroredStrategy()


def _tpu(config: DistributionConfig) -> tf.distribute.Strategy:
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(
            tpu=config.tpu_name or "local",
            zone=config.tpu_zone,
            project=config.gcp_project,
        )
        if config.tpu_name not in (None, "local"):
            _require_answers(resolver)
            tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except (tf.errors.OpError, OSError, ValueError, RuntimeError) as error:
        raise InputError(
            f"No TPU found at `tpu_name={config.tpu_name or 'local'}`: "
            f"{reason(error)}. A TPU needs the package tensorflow-tpu."
        ) from error
    return tf.distribute.TPUStrategy(resolver)


def _require_answers(
    resolver: tf.distribute.cluster_resolver.ClusterResolver,
) -> None:
    """Raises ConnectionError where TensorFlow would wait forever for a TPU."""
    for addresses in resolver.cluster_spec().as_dict().values():
        for address in addresses:
            if error := connection_error(address):
                raise ConnectionError(f"{address} does not answer: {error}")


_MAKERS = {
    # With the default strategy, unlike OneDeviceStrategy, TensorFlow places
    # each operation where it runs best.
    "one_device": lambda config: tf.distribute.get_strategy(),
    "mirrored": _mirrored,
    "multi_worker_mirrored": _multi_worker,
    "tpu": _tpu,
}


# ------------------------------------------------ properties of a strategy


def num_processes(strategy: tf.distribute.Strategy) -> int:
    """Returns the number of processes that run the program together."""
    return max(1, sum(len(tasks) for tasks in _jobs(strategy).values()))


def is_chief(strategy: tf.distribute.Strategy) -> bool:
    """Returns whether this process writes the files."""
    jobs = _jobs(strategy)
    if not jobs:
        return True
    resolver = strategy.cluster_resolver
    chief = "chief" if "chief" in jobs else "worker"
    return (resolver.task_type, resolver.task_id) == (chief, 0)


def _jobs(strategy: tf.distribute.Strategy) -> dict[str, list[str]]:
    """Returns the addresses of the workers by job; empty for one process."""
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return {}
    jobs = strategy.cluster_resolver.cluster_spec().as_dict()
    return {job: jobs[job] for job in _JOBS if job in jobs}


def is_plain(strategy: tf.distribute.Strategy) -> bool:
    """Returns whether the strategy is TensorFlow's default, for one device.

    A strategy for several replicas behaves differently even if it has one.
    """
    return not isinstance(
        strategy,
        tf.distribute.MirroredStrategy
        | tf.distribute.MultiWorkerMirroredStrategy
        | tf.distribute.TPUStrategy,
    )


def should_compile(strategy: tf.distribute.Strategy, wish: bool | None) -> bool:
    """Returns whether XLA compiles the step; by default where it is faster.

    On two CPU cores the step is 5 to 10 % faster without XLA in float32, and
    twice as fast in bfloat16, which oneDNN multiplies and XLA does not. A TPU
    compiles everything by itself.
    """
    if isinstance(strategy, tf.distribute.TPUStrategy):
        return False
    return not runs_on_cpus(strategy) if wish is None else wish


def runs_on_cpus(strategy: tf.distribute.Strategy) -> bool:
    """Returns whether there are neither GPUs nor a TPU."""
    is_tpu = isinstance(strategy, tf.distribute.TPUStrategy)
    return runs_op_by_op() and not is_tpu


# -------------------------------------------- exchange between processes


def agreement(
    strategy: tf.distribute.Strategy,
) -> Callable[[Sequence[int]], list[int]]:
    """Returns a function that computes the minimum over all processes.

    The function takes a list of integers, for example [1, 5] on one process and
    [2, 3] on another, and returns [1, 3] on both. All processes must call it
    equally often.
    """
    share = exchange(strategy)
    return lambda numbers: share(np.int32(numbers)).min(axis=0).tolist()


def exchange(
    strategy: tf.distribute.Strategy,
) -> Callable[[np.ndarray], np.ndarray]:
    """Returns a function that gathers an array from all processes.

    The function takes this process's array [...] and returns the arrays of all
    processes, in the order of their replicas, [processes, ...]. All processes
    must call it equally often, with arrays of the same shape.
    """
    count = num_processes(strategy)
    if count == 1:
        return lambda values: values[np.newaxis]
    gather = _gather_from_replicas(strategy)

    def share(values: np.ndarray) -> np.ndarray:
        # Flat arrays of any length share a trace.
        gathered = gather(tf.constant(values.ravel())).numpy()  # [replicas, n]
        return gathered[:: len(gathered) // count].reshape(count, *values.shape)

    return share


@functools.lru_cache(maxsize=1)
def _gather_from_replicas(strategy: tf.distribute.Strategy) -> Any:
    """Returns a function that gathers arrays [n] from all replicas.

    Cached, since TensorFlow would trace each new one and log a warning.
    """

    def in_replica(values: tf.Tensor) -> tf.Tensor:
        replica = tf.distribute.get_replica_context()
        return replica.all_gather(tf.identity(values)[tf.newaxis], axis=0)

    @tf.function(reduce_retracing=True)
    def gather(values: tf.Tensor) -> tf.Tensor:  # [n]
        gathered = strategy.run(in_replica, (values,))
        return strategy.experimental_local_results(gathered)[0]

    return gather


def all_rows(value: tf.Tensor) -> tf.Tensor:
    """Gathers the rows of all replicas, in a replica: [b, ...] -> [r * b, ...].

    Floats are gathered as their bits, because a TPU gathers by a sum. Each
    replica adds its rows and, at the places of other rows, 0 times its rows,
    which is NaN for an infinite value.
    """
    replica = tf.distribute.get_replica_context()
    if value.dtype != tf.float32:
        return replica.all_gather(value, axis=0)
    bits = replica.all_gather(tf.bitcast(value, tf.int32), axis=0)
    return tf.bitcast(bits, tf.float32)


# ---------------------------------------------- waiting for other workers

# TensorFlow waits for an hour without a message, ignores Ctrl-C meanwhile and
# fails with a long traceback. So each process first listens at its own
# address until it has connected to all others. Then it leaves the address to
# TensorFlow's server, and processes that still wait connect to that server
# instead.

_LARGEST_PORT = 2**16 - 1

_SECONDS_TO_CONNECT = 1.0
_SECONDS_TO_CONNECT_ONCE = 10.0
_SECONDS_BETWEEN_ATTEMPTS = 0.2
# Workers are started one after another, so the first message can wait.
_SECONDS_BEFORE_MESSAGE = 10.0
_SECONDS_BETWEEN_MESSAGES = 60.0


def wait_for_workers(
    own: str, others: Mapping[str, str], most_seconds: float = 3600.0
) -> None:
    """Returns when all other workers have started.

    Args:
      own: The address at which this process will listen, HOST:PORT.
      others: The addresses of the other workers by their names.
      most_seconds: The longest time to wait.

    Raises:
      InputError: This process cannot listen at its address, an address is
        invalid or occurs twice, or a worker did not start.
    """
    places = [_parse_address(address) for address in (own, *others.values())]
    (host, port), count = collections.Counter(places).most_common(1)[0]
    if count > 1:
        raise wrong_value(
            "Each worker of TF_CONFIG",
            "at a different address",
            f"{host}:{port}",
            "Change the host or port of one.",
        )
    if not others:
        return
    started = time.monotonic()
    next_message = started + _SECONDS_BEFORE_MESSAGE
    missing: Iterable[str] = others
    with _listening(own, places[0][1]):
        while True:
            errors = {
                name: connection_error(others[name], _SECONDS_TO_CONNECT)
                for name in missing
            }
            missing = [name for name, error in errors.items() if error]
            if not missing:
                return
            now = time.monotonic()
            names = ", ".join(
                f"{name} at {others[name]} ({errors[name]})" for name in missing
            )
            if now - started > most_seconds:
                raise InputError(
                    f"Workers of TF_CONFIG did not start within "
                    f"{most_seconds:.0f} seconds: {names}. Start the same "
                    "command there, and check that this host can reach them."
                )
            if now > next_message:
                logging.info("Waiting for %s", names)
                next_message = now + _SECONDS_BETWEEN_MESSAGES
            time.sleep(_SECONDS_BETWEEN_ATTEMPTS)


def connection_error(
    address: str, seconds: float = _SECONDS_TO_CONNECT_ONCE
) -> str | None:
    """Returns why HOST:PORT does not answer; None if it does."""
    host, _, port = address.rpartition(":")
    place = host.strip("[]"), int(port)
    try:
        with socket.create_connection(place, seconds):
            return None
    except (OSError, OverflowError) as error:
        return reason(error)


def _parse_address(address: str) -> tuple[str, int]:
    """Splits HOST:PORT; raises InputError if it is invalid."""
    host, _, port = address.rpartition(":")
    is_number = port.isascii() and port.isdigit()
    if not host or not is_number or not 0 < int(port[:9]) <= _LARGEST_PORT:
        raise wrong_value("Each worker of TF_CONFIG", "HOST:PORT", address)
    return host.strip("[]"), int(port)


def _listening(own: str, port: int) -> contextlib.closing[socket.socket]:
    """Returns a socket to which other processes can connect."""
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    try:
        return contextlib.closing(
            # Never accepts: a connection succeeds once it is queued.
            socket.create_server(
                ("", port), family=family, backlog=128, dualstack_ipv6=dual
            )
        )
    except (OSError, OverflowError) as error:
        raise InputError(
            f"Cannot listen at {own}, this worker's address in TF_CONFIG: "
            f"{reason(error)}. It may be the address of another host, or an "
            "earlier run may still use it."
        ) from error
