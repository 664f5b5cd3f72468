"""Which devices a run uses."""

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

from bert_tf import signals
from bert_tf.errors import InputError

# Which devices a run uses.


# From batches of predictions, in any order, to one array per quantity.


# The example of each row: where it stands in the data set, -1 for padding.
INDEX = "example_index"


def in_order(
    batches: Iterable[Mapping[str, np.ndarray]],
) -> dict[str, np.ndarray]:
    """Joins batches, in the order of their examples.

    Args:
      batches: Dicts from name to array [b, ...], any b, `example_index` [b]
        among them. Axes behind the first may differ in length from batch to
        batch, as those of tokens do.

    Returns:
      Dict from each other name to an array [n, ...], a row per example. Where
      a batch was shorter than another, zeros fill its rows up.

    Raises:
      InputError: There is no example.
      ValueError: An example is missing or comes more than once.
    """
    kept = [_real_rows(batch) for batch in batches]
    kept = [batch for batch in kept if batch[INDEX].size]
    if not kept:
        raise InputError("expected at least one example. Received: none")
    index = np.concatenate([batch.pop(INDEX) for batch in kept])
    order = np.argsort(index, kind="stable")
    wrong = np.flatnonzero(index[order] != np.arange(len(index)))
    if wrong.size:
        raise ValueError(
            "expected every example once. Received another number than one of "
            f"number {wrong[0]}"
        )
    # One quantity at a time, so that no more than one is there twice.
    return {
        name: _join([batch.pop(name) for batch in kept])[order]
        for name in list(kept[0])
    }


def _real_rows(batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    is_real = batch[INDEX] >= 0
    if is_real.all():
        return dict(batch)
    return {name: rows[is_real] for name, rows in batch.items()}


def _join(arrays: list[np.ndarray]) -> np.ndarray:
    """Concatenates [b, ...] along the first axis, filled up in the others."""
    longest = np.max([rows.shape[1:] for rows in arrays], axis=0)
    return np.concatenate([_fill_up(rows, longest) for rows in arrays])


def _fill_up(rows: np.ndarray, shape: np.ndarray) -> np.ndarray:
    if rows.shape[1:] == tuple(shape):
        return rows
    missing = [(0, 0), *((0, n) for n in shape - rows.shape[1:])]
    return np.pad(rows, missing)


# Which devices a run uses.


STRATEGIES = (
    "auto",
    "one_device",
    "mirrored",
    "multi_worker_mirrored",
    "tpu",
)

# Kinds of processes that train; TensorFlow knows others, which do not.
_JOBS = ("chief", "worker")
_TF_CONFIG = (
    '{"cluster": {"worker": ["HOST:PORT", "HOST:PORT"]}, '
    '"task": {"type": "worker", "index": 0}}'
)

# Characters of a wrong TF_CONFIG that an error message quotes.
_MOST_SHOWN = 200


@dataclasses.dataclass(frozen=True)
class DistributionConfig:
    """The devices that a user asked for.

    Attributes:
      strategy: One of STRATEGIES. "auto" takes a TPU if one is named, several
        workers if TF_CONFIG lists them, all GPUs if there are several, and
        one device otherwise.
      tpu_name: Name or grpc:// address of the TPU; "local" on a TPU VM.
      tpu_zone: Zone of the TPU.
      gcp_project: Project of the TPU.
    """

    strategy: str = "auto"
    tpu_name: str | None = None
    tpu_zone: str | None = None
    gcp_project: str | None = None


def make_strategy(config: DistributionConfig) -> tf.distribute.Strategy:
    """Connects to the devices; the first thing that a program does.

    Several workers are described by the environment variable TF_CONFIG, as
    everywhere in TensorFlow; each runs the same command.

    Raises:
      InputError: The devices are not there.
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
    if config.strategy not in STRATEGIES:
        raise InputError(
            f"expected --distribution_strategy to be one of "
            f"{', '.join(STRATEGIES)}. Received: {config.strategy!r}"
        )
    if config.strategy in ("one_device", "mirrored"):
        _require_alone(config.strategy)
    if config.strategy != "auto":
        return config.strategy
    if config.tpu_name:
        return "tpu"
    if number_of_workers() > 1:
        return "multi_worker_mirrored"
    if len(tf.config.list_logical_devices("GPU")) > 1:
        return "mirrored"
    return "one_device"


def _require_alone(name: str) -> None:
    """Several workers that know nothing of each other write the same files."""
    if (count := number_of_workers()) > 1:
        raise InputError(
            "expected --distribution_strategy=auto or multi_worker_mirrored, "
            f"as TF_CONFIG lists {count} workers. Received: {name}; unset "
            "TF_CONFIG to train on this host alone"
        )


def number_of_workers() -> int:
    """How many workers TF_CONFIG lists; 1 without it."""
    return max(1, len(_read_tf_config()[0]))


def _read_tf_config() -> tuple[dict[str, str], str]:
    """Reads the environment variable TF_CONFIG.

    Returns:
      The workers, such as "worker 0", with their addresses; and which of them
      this process is.

    Raises:
      InputError: It is set and cannot be understood.
    """
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
        return workers, f"{task.get('type')} {task.get('index')}"
    except (ValueError, RecursionError, AttributeError, TypeError) as error:
        raise InputError(
            f"expected TF_CONFIG such as {_TF_CONFIG}. Received: "
            f"{text[:_MOST_SHOWN]!r}"
        ) from error


def _one_device(config: DistributionConfig) -> tf.distribute.Strategy:
    # The default strategy and not OneDeviceStrategy: TensorFlow then puts
    # each operation where it runs best, and nothing stands between.
    return tf.distribute.get_strategy()


def _mirrored(config: DistributionConfig) -> tf.distribute.Strategy:
    devices = tf.config.list_logical_devices("GPU")
    if not devices:
        devices = tf.config.list_logical_devices("CPU")
        if len(devices) == 1:
            # GPUs were meant: on without them it may take months.
            logging.warning(
                "--distribution_strategy=mirrored: there is no GPU that "
                "TensorFlow can use; a single replica runs, on the CPU."
            )
    return tf.distribute.MirroredStrategy([device.name for device in devices])


def _multi_worker(config: DistributionConfig) -> tf.distribute.Strategy:
    workers, own = _read_tf_config()
    if not workers:
        raise InputError(
            "expected the environment variable TF_CONFIG to list the workers "
            f"and this one's place among them: {_TF_CONFIG}. Received: "
            f"{os.environ.get('TF_CONFIG')}"
        )
    if own not in workers:
        raise InputError(
            f"expected the task of TF_CONFIG among {', '.join(workers)}. "
            f"Received: {own}"
        )
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
        reason = str(error).split("\n")[0].partition(" used by {{")[0]
        raise InputError(
            f"expected a TPU at --tpu_name={config.tpu_name or 'local'}. "
            f"Received: {reason} (a TPU needs the package tensorflow-tpu)"
        ) from error
    return tf.distribute.TPUStrategy(resolver)


def _require_answers(
    resolver: tf.distribute.cluster_resolver.ClusterResolver,
) -> None:
    """TensorFlow would wait for ever for a TPU that is not there."""
    for addresses in resolver.cluster_spec().as_dict().values():
        for address in addresses:
            if reason := connection_error(address):
                raise ConnectionError(f"nobody answers at {address}: {reason}")


_MAKERS = {
    "one_device": _one_device,
    "mirrored": _mirrored,
    "multi_worker_mirrored": _multi_worker,
    "tpu": _tpu,
}


def num_processes(strategy: tf.distribute.Strategy) -> int:
    """How many processes run this program in step."""
    return max(1, sum(len(tasks) for tasks in _jobs(strategy).values()))


def is_plain(strategy: tf.distribute.Strategy) -> bool:
    """Whether nothing stands between the program and its one device.

    A strategy of several replicas takes its own ways even if it has one only.
    """
    return not isinstance(
        strategy,
        tf.distribute.MirroredStrategy
        | tf.distribute.MultiWorkerMirroredStrategy
        | tf.distribute.TPUStrategy,
    )


def agreement(
    strategy: tf.distribute.Strategy,
) -> Callable[[Sequence[int]], list[int]]:
    """Makes the means by which several processes come to the same numbers.

    Returns:
      A function from some integers to the smallest that any process gave in
      each place. All processes have to call it equally often.
    """
    if num_processes(strategy) == 1:
        return list
    share = exchange(strategy)
    return lambda numbers: (
        share(np.asarray(numbers, np.int32)).min(axis=0).tolist()
    )


def exchange(
    strategy: tf.distribute.Strategy,
) -> Callable[[np.ndarray], np.ndarray]:
    """Makes the means by which each process learns what all others have.

    Returns:
      A function from this process's array [...] to those of all, in the order
      of their replicas, [processes, ...]. All processes have to call it equally
      often, with arrays of one shape.
    """
    count = num_processes(strategy)
    if count == 1:
        return lambda values: values[np.newaxis]
    gather = _gather_from_replicas(strategy)

    def share(values: np.ndarray) -> np.ndarray:
        # Flat arrays of any length share a trace.
        found = gather(tf.constant(values.ravel())).numpy()  # [replicas, n]
        return found[:: len(found) // count].reshape(count, *values.shape)

    return share


@functools.lru_cache(maxsize=1)
def _gather_from_replicas(strategy: tf.distribute.Strategy) -> Any:
    """Returns a function from an array [n] to those of all replicas.

    The function is made once: TensorFlow would trace each new one, which takes
    time, and warn of it.
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
    """What all replicas have: [replicas * b, ...] of [b, ...], in a replica.

    Floats travel as their bits. On a TPU rows are gathered by a sum, in which
    each replica has 0 times its own in the place of the others': NaN, where
    its own are infinite.
    """
    replica = tf.distribute.get_replica_context()
    if value.dtype != tf.float32:
        return replica.all_gather(value, axis=0)
    bits = replica.all_gather(tf.bitcast(value, tf.int32), axis=0)
    return tf.bitcast(bits, tf.float32)


def is_chief(strategy: tf.distribute.Strategy) -> bool:
    """Whether this process is the one that writes files."""
    jobs = _jobs(strategy)
    if not jobs:
        return True
    resolver = strategy.cluster_resolver
    chief = "chief" if "chief" in jobs else "worker"
    return (resolver.task_type, resolver.task_id) == (chief, 0)


def _jobs(strategy: tf.distribute.Strategy) -> dict[str, list[str]]:
    """The processes of several workers, by job; empty for a single one."""
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return {}
    jobs = strategy.cluster_resolver.cluster_spec().as_dict()
    return {job: jobs[job] for job in _JOBS if job in jobs}


def should_compile(strategy: tf.distribute.Strategy, wish: bool | None) -> bool:
    """Whether XLA compiles the step; None as a wish takes what is faster.

    On two CPU cores the step is 5 to 10 % faster without XLA in float32, and
    twice as fast in bfloat16, which oneDNN multiplies and XLA does not. A TPU
    always compiles, by itself.
    """
    if isinstance(strategy, tf.distribute.TPUStrategy):
        return False
    return not runs_on_cpus(strategy) if wish is None else wish


def runs_on_cpus(strategy: tf.distribute.Strategy) -> bool:
    """Whether there is nothing faster to run on."""
    if isinstance(strategy, tf.distribute.TPUStrategy):
        return False
    return not tf.config.list_logical_devices("GPU")


# Waits until all workers are there, before TensorFlow does.


# As long as TensorFlow waits.
MOST_SECONDS = 3600.0

_SECONDS_TO_CONNECT = 1.0
_SECONDS_TO_CONNECT_ONCE = 10.0
_SECONDS_BETWEEN_LOOKS = 0.2
# Workers are started one after another: that much is nothing to tell.
_SECONDS_UNTIL_TOLD = 10.0
_SECONDS_UNTIL_TOLD_AGAIN = 60.0


def wait_for_workers(
    own: str, others: Mapping[str, str], most_seconds: float = MOST_SECONDS
) -> None:
    """Returns when all other workers have started.

    Args:
      own: Where this process will listen, HOST:PORT.
      others: Their names, to be told of, and where they will listen.
      most_seconds: How long to wait.

    Raises:
      InputError: This process cannot listen there, an address is none, or
        somebody has not come.
    """
    _, port = _parse_address(own)
    places = {name: _parse_address(address) for name, address in others.items()}
    if not places:
        return
    with _listening(own, port):
        _wait_for(places, others, most_seconds)


def connection_error(address: str) -> str | None:
    """Why nobody answers at HOST:PORT; None if somebody does."""
    host, _, port = address.rpartition(":")
    return _try_to_connect(
        (host.strip("[]"), int(port)), _SECONDS_TO_CONNECT_ONCE
    )


def _parse_address(address: str) -> tuple[str, int]:
    """HOST:PORT -> (HOST, PORT)."""
    host, _, port = address.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()):
        raise InputError(
            "expected addresses HOST:PORT in the workers of TF_CONFIG. "
            f"Received: {address!r}"
        )
    return host.strip("[]"), int(port)


def _listening(own: str, port: int) -> contextlib.closing[socket.socket]:
    """A socket that answers whoever looks for this process."""
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    try:
        return contextlib.closing(
            # Nobody is accepted: to be in the queue is to have been answered.
            socket.create_server(
                ("", port), family=family, backlog=128, dualstack_ipv6=dual
            )
        )
    except (OSError, OverflowError) as error:
        raise InputError(
            f"expected to listen at {own}, this worker's address in "
            f"TF_CONFIG. Received: {_reason(error)}; is it another host's, or "
            "does an earlier run still use it?"
        ) from error


def _wait_for(
    places: Mapping[str, tuple[str, int]],
    addresses: Mapping[str, str],
    most_seconds: float,
) -> None:
    started = time.monotonic()
    tell_at = started + _SECONDS_UNTIL_TOLD
    missing = dict.fromkeys(places, "")
    while missing:
        for name in list(missing):
            reason = _try_to_connect(places[name])
            if reason is None:
                del missing[name]
            else:
                missing[name] = reason
        now = time.monotonic()
        told = ", ".join(
            f"{name} at {addresses[name]} ({reason})"
            for name, reason in missing.items()
        )
        if missing and now - started > most_seconds:
            raise InputError(
                f"expected all workers of TF_CONFIG within {most_seconds:.0f} "
                f"seconds. Received: none of {told}; start the same command "
                "there, and see that this host can reach it"
            )
        if missing and now > tell_at:
            logging.info("Waiting for %s", told)
            tell_at = now + _SECONDS_UNTIL_TOLD_AGAIN
        if missing:
            time.sleep(_SECONDS_BETWEEN_LOOKS)


def _try_to_connect(
    place: tuple[str, int], seconds: float = _SECONDS_TO_CONNECT
) -> str | None:
    """Why nobody answers; None if somebody does."""
    try:
        with socket.create_connection(place, seconds):
            return None
    except (OSError, OverflowError) as error:
        return _reason(error)


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)
