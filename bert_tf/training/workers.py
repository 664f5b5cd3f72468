"""Workers of one run: what they do together, and what if one cannot.

That one is gone the others learn from TensorFlow, which aborts the sum that all
wait for: some seconds after a process has died and its connections with it;
after about twenty where nothing is closed, since a host has lost its power or
its network, for then the heartbeat stops.
"""

import contextlib
import functools
import hashlib
import json
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent import futures
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from bert_tf import files
from bert_tf.errors import InputError
from bert_tf.training.distribution import (
    agreement,
    exchange,
    is_chief,
    num_processes,
)
from bert_tf.training.weights import checksum

_T = TypeVar("_T")

# The largest number of those that workers tell each other.
_MOST = 2**31 - 1

# What is read of the input files to compare them, all together and of each end
# of a file at least. Reading hundreds of gigabytes would take too long.
_BYTES_OF_ALL_FILES = 2**28
_LEAST_BYTES_OF_FILE = 2**16

_MOST_DIFFERENCES = 3
_MOST_CHARACTERS = 80

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


@lost_workers_told()
def require_same_settings(
    strategy: tf.distribute.Strategy,
    settings: Mapping[str, Any],
    inputs: Mapping[str, Iterable[str]] | None = None,
) -> None:
    """Compares the settings and the input files of all workers.

    The paths of input files may differ, as a folder may be a worker's own.
    Their order, names, sizes and contents have to be the same. Of large files
    the first and the last bytes are compared.

    Args:
      strategy: The devices.
      settings: JSON values by their names, such as `--learning_rate`. The
        entries of a mapping are compared one by one.
      inputs: Paths of files by the flag that names them, or by what they are.

    Raises:
      InputError: They differ. The workers would train a mixture, or wait for
        each other without an end.
    """
    if num_processes(strategy) == 1:
        return
    resolver = strategy.cluster_resolver
    own = {
        **_texts(settings),
        **_fingerprints({k: [*v] for k, v in (inputs or {}).items()}),
    }
    found = dict(
        _exchange_json(
            strategy, [f"{resolver.task_type} {resolver.task_id}", own]
        )
    )
    if differences := _differences(found):
        shown = "; ".join(differences[:_MOST_DIFFERENCES])
        if (more := len(differences) - _MOST_DIFFERENCES) > 0:
            shown += f"; and {more} more"
        raise InputError(
            "All workers of a run must have the same settings and data: "
            f"{shown}. Restart all workers with the same command, data and "
            "version of bert_tf."
        )


def require_same_weights(
    strategy: tf.distribute.Strategy, variables: Mapping[str, Any]
) -> None:
    """Compares the weights that the workers start from; see above."""
    if num_processes(strategy) > 1:
        weights = {"the SHA-256 of the initial weights": checksum(variables)}
        require_same_settings(strategy, weights)


def _texts(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Flattens nested mappings, {"config": {"a": 1}} -> {"config.a": "1"}."""
    texts: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            texts |= _texts(value, f"{prefix}{name}.")
            continue
        text = value if isinstance(value, str) else json.dumps(value)
        if len(text) > _MOST_CHARACTERS:
            digest = hashlib.sha256(text.encode()).hexdigest()
            text = f"{text[:_MOST_CHARACTERS]}... (SHA-256 {digest[:8]})"
        texts[f"{prefix}{name}"] = text
    return texts


def _fingerprints(inputs: Mapping[str, list[str]]) -> dict[str, str]:
    """Describes input files by all but their folders."""
    paths = {
        f"file {number} of {name}": path
        for name, found in inputs.items()
        for number, path in enumerate(found, start=1)
    }
    share = _BYTES_OF_ALL_FILES // max(1, len(paths)) // 2
    describe = functools.partial(
        _fingerprint, most=max(share, _LEAST_BYTES_OF_FILE)
    )
    # Remote files take a while to answer.
    with futures.ThreadPoolExecutor() as pool:
        return dict(zip(paths, pool.map(describe, paths.values()), strict=True))


def _fingerprint(path: str, most: int) -> str:
    """Returns a file's name, size and checksum.

    Args:
      path: The file, local or remote.
      most: How many bytes are read of its beginning, and of its end.
    """
    with (
        files.blaming("read", path, tf.errors.OpError),
        tf.io.gfile.GFile(path, "rb") as file,
    ):
        size = file.size()
        seen = hashlib.sha256(file.read(most))
        if size > most:
            file.seek(max(most, size - most))
            seen.update(file.read(most))
    name = os.path.basename(path)
    return f"{name}, {size:,} bytes, SHA-256 {seen.hexdigest()[:8]}"


def _exchange_json(strategy: tf.distribute.Strategy, value: Any) -> list[Any]:
    """Returns a JSON value of every worker, in the order of the workers."""
    own = np.frombuffer(json.dumps(value).encode(), np.uint8).astype(np.int32)
    [length] = agreement(strategy)([-len(own)])
    # Spaces after a JSON value have no meaning.
    padded = np.pad(own, (0, -length - len(own)), constant_values=ord(" "))
    rows = exchange(strategy)(padded)  # [workers, n]
    return [json.loads(row.astype(np.uint8).tobytes()) for row in rows]


def _differences(found: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Compares the settings of each worker with those of the first.

    Args:
      found: Settings by the name of the worker.

    Returns:
      A clause for each setting that differs, with two workers' values.
    """
    (first, expected), *others = found.items()
    names = dict.fromkeys(
        name for settings in found.values() for name in settings
    )
    clauses = []
    for name in names:
        value = expected.get(name, "absent")
        for other, settings in others:
            received = settings.get(name, "absent")
            if received != value:
                clauses.append(
                    f"{name} is {value} on {first} and {received} on {other}"
                )
                break
    return clauses


@lost_workers_told()
def together(
    strategy: tf.distribute.Strategy, act: Callable[[], _T], what: str
) -> _T:
    """Has every process do something; where one cannot, all end.

    Else the others would wait in their next step for one that is gone.

    Args:
      strategy: The devices.
      act: What this process does. It takes no part in a step meanwhile.
      what: That in words, as in "expected every worker to ...".

    Raises:
      InputError: This process could not do it, or another one.
    """
    agree = agreement(strategy)
    try:
        result = act()
    except (InputError, OSError):
        agree([0])
        raise
    if agree([1]) == [0]:
        raise InputError(
            f"expected every worker to {what}. Received: an error on another "
            "one, which tells it"
        )
    return result


def by_chief(
    strategy: tf.distribute.Strategy, act: Callable[[], None], what: str
) -> None:
    """The same for the chief alone; the others wait until it is done."""
    together(strategy, act if is_chief(strategy) else _do_nothing, what)


def chief_first(
    strategy: tf.distribute.Strategy, act: Callable[[], _T], what: str
) -> _T:
    """The same for the chief, and for the others once it is done.

    In a folder that they share they find what it has made, elsewhere they make
    it for themselves.
    """
    if num_processes(strategy) == 1:
        return act()
    if is_chief(strategy):
        result = together(strategy, act, what)
        together(strategy, _do_nothing, what)
        return result
    together(strategy, _do_nothing, what)
    return together(strategy, act, what)


def require_shared(strategy: tf.distribute.Strategy, folder: str) -> None:
    """Sees that all workers find what the chief writes.

    Args:
      strategy: The devices.
      folder: Where the chief will write what the others are to read.

    Raises:
      InputError: A worker has a folder of its own under this name.
    """
    if num_processes(strategy) == 1:
        return
    agree = agreement(strategy)
    number = secrets.randbelow(_MOST) if is_chief(strategy) else _MOST
    # A name of its own: no file system remembers that it was not there.
    probe = os.path.join(folder, f".workers-{agree([number])[0]}")
    by_chief(strategy, lambda: files.write_text(probe, ""), "write there")
    is_there = files.exists(probe)
    is_shared = agree([int(is_there)]) == [1]
    if is_chief(strategy):
        files.remove(probe)
    if not is_shared:
        raise InputError(
            "expected an --output_dir that all workers share, as a network "
            f"file system or gs:// is. Received: {folder}, where "
            f"{'another worker does' if is_there else 'this worker does'} not "
            "find what the chief writes"
        )


def _do_nothing() -> None:
    pass
