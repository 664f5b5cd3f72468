"""What the workers of a run do together, and what happens if one fails.

Workers learn from TensorFlow that another one is gone: it aborts the collective
operation that all wait for. This takes some seconds if the process died, as its
connections are closed, and about twenty if its host lost power or network.
"""

import contextlib
import hashlib
import itertools
import json
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent import futures
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from bert_tf.base import files
from bert_tf.checkpoints.weights import checksum
from bert_tf.errors import InputError
from bert_tf.training.distribution import (
    agreement,
    exchange,
    is_chief,
    num_processes,
)

_T = TypeVar("_T")

# The largest number that workers exchange, an int32.
_MAX_NUMBER = 2**31 - 1

# Bytes that are read to compare input files: of all files together, and the
# minimum at each end of a file. Reading a whole corpus would take too long.
_BYTES_OF_ALL_FILES = 2**28
_LEAST_BYTES_OF_FILE = 2**16

_MOST_DIFFERENCES = 3
_MOST_CHARACTERS = 80

_ABORTED = re.compile(
    r"Collective ops is aborted by: (?P<reason>.*)"
    r"|(?P<rpc>.*)\s+Additional GRPC error information from remote target /job"
)


class WorkerLostError(InputError):
    """Another process of the run has exited, or does not answer."""


@contextlib.contextmanager
def raise_worker_lost() -> Iterator[None]:
    """Raises WorkerLostError for TensorFlow's errors about lost workers."""
    try:
        yield
    except tf.errors.OpError as error:
        match = _ABORTED.search(error.message)
        if not match:
            raise
        reason = (match["reason"] or match["rpc"]).strip().rstrip(":.")
        raise WorkerLostError(
            f"A worker exited or does not answer ({reason}); its log says why. "
            "Restart all workers with the same command to resume from the last "
            "checkpoint."
        ) from error


def wait_for_all(strategy: tf.distribute.Strategy) -> None:
    """Waits until all workers are about to raise the same error.

    If a worker exited while another still waited for its numbers, the other one
    would report it as lost.
    """
    with contextlib.suppress(tf.errors.OpError):
        agreement(strategy)([0])


# ------------------------------------------------------ the same start for all


def require_same_step(
    strategy: tf.distribute.Strategy, step: int, folder: str
) -> None:
    """Checks that all workers found checkpoints of the same step in `folder`.

    Raises:
      InputError: The steps differ.
    """
    smallest, negated = agreement(strategy)([step, -step])
    if smallest != -negated:
        wait_for_all(strategy)
        raise InputError(
            "Workers found different newest checkpoints: steps "
            f"{smallest} to {-negated}, on this worker {step} in {folder}. "
            "Use an `output_dir` that all workers share."
        )


@raise_worker_lost()
def require_same_settings(
    strategy: tf.distribute.Strategy,
    settings: Mapping[str, Any],
    inputs: Mapping[str, Iterable[str]] | None = None,
) -> None:
    """Compares the settings and the input files of all workers.

    The paths of input files may differ, since each worker may have its own
    folder. The order, names, sizes and contents of the files must be the same.
    Of large files the first and the last bytes are compared.

    Args:
      strategy: The devices.
      settings: JSON values by their names, such as "`learning_rate`". The
        entries of a mapping are compared one by one.
      inputs: Paths of files, by the name of an argument or by a noun phrase.

    Raises:
      InputError: The settings or files differ. Training would mix them, or the
        workers would wait for each other forever.
    """
    if num_processes(strategy) == 1:
        return
    resolver = strategy.cluster_resolver
    own = {**_texts(settings), **_fingerprints(inputs or {})}
    name = f"{resolver.task_type} {resolver.task_id}"
    if differences := _differences(dict(_exchange_json(strategy, [name, own]))):
        text = "; ".join(differences[:_MOST_DIFFERENCES])
        if (more := len(differences) - _MOST_DIFFERENCES) > 0:
            text += f"; and {more} more"
        wait_for_all(strategy)
        raise InputError(
            "All workers of a run must have the same settings and data: "
            f"{text}. Restart all workers with the same command, data and "
            "version of bert_tf."
        )


def require_same_weights(
    strategy: tf.distribute.Strategy, variables: Mapping[str, Any]
) -> None:
    """Compares the initial weights of the workers, like their settings."""
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


def _fingerprints(inputs: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """Describes input files by everything except their folders."""
    paths = {
        f"file {number} of {name}": path
        for name, input_paths in inputs.items()
        for number, path in enumerate(input_paths, start=1)
    }
    share = _BYTES_OF_ALL_FILES // max(1, len(paths)) // 2
    most = itertools.repeat(max(share, _LEAST_BYTES_OF_FILE))
    # Threads hide the latency of remote files.
    with futures.ThreadPoolExecutor() as pool:
        texts = pool.map(_fingerprint, paths.values(), most)
        return dict(zip(paths, texts, strict=True))


def _fingerprint(path: str, most: int) -> str:
    """Returns name, size, and checksum of up to `most` bytes at each end."""
    with (
        files.input_errors("read", path, tf.errors.OpError),
        tf.io.gfile.GFile(path, "rb") as file,
    ):
        size = file.size()
        digest = hashlib.sha256(file.read(most))
        if size > most:
            file.seek(max(most, size - most))
            digest.update(file.read(most))
    name = os.path.basename(path)
    return f"{name}, {size:,} bytes, SHA-256 {digest.hexdigest()[:8]}"


def _exchange_json(strategy: tf.distribute.Strategy, value: Any) -> list[Any]:
    """Returns a JSON value of every worker, in the order of the workers."""
    own = np.frombuffer(json.dumps(value).encode(), np.uint8).astype(np.int32)
    [length] = agreement(strategy)([-len(own)])
    # Spaces after a JSON value have no meaning.
    padded = np.pad(own, (0, -length - len(own)), constant_values=ord(" "))
    rows = exchange(strategy)(padded)  # [workers, n]
    return [json.loads(row.astype(np.uint8).tobytes()) for row in rows]


def _differences(fingerprints: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Returns a clause for each setting that differs between workers."""
    (first, expected), *others = fingerprints.items()
    clauses: dict[str, str] = {}
    for other, settings in others:
        for name in {**expected, **settings}:
            value = expected.get(name, "absent")
            received = settings.get(name, "absent")
            if received != value:
                text = f"{name} is {value} on {first} and {received} on {other}"
                clauses.setdefault(name, text)
    return [*clauses.values()]


# ------------------------------------------------------- acting on all workers


@raise_worker_lost()
def on_all_workers(
    strategy: tf.distribute.Strategy, act: Callable[[], _T], what: str
) -> _T:
    """Runs `act` on every process; if it fails on one, all raise.

    Otherwise the others would wait in their next step for the one that failed.

    Args:
      strategy: The devices.
      act: The function. It must not run any steps.
      what: What it does, a verb phrase, for the error message.
    """
    agree = agreement(strategy)
    try:
        result = act()
    except (InputError, OSError):
        agree([0])
        wait_for_all(strategy)
        raise
    if agree([1]) == [0]:
        wait_for_all(strategy)
        raise InputError(f"Another worker failed to {what}; its log says why.")
    return result


def by_chief(
    strategy: tf.distribute.Strategy, act: Callable[[], None], what: str
) -> None:
    """Runs `act` on the chief while others wait; if it fails, all raise."""
    on_all_workers(strategy, act if is_chief(strategy) else lambda: None, what)


def chief_first(
    strategy: tf.distribute.Strategy, act: Callable[[], _T], what: str
) -> _T:
    """Runs `act` on the chief, then on the others; if it fails, all raise.

    In a shared folder the others find what the chief has written; otherwise
    they write it themselves.
    """
    if is_chief(strategy):
        result = on_all_workers(strategy, act, what)
        on_all_workers(strategy, lambda: None, what)
        return result
    on_all_workers(strategy, lambda: None, what)
    return on_all_workers(strategy, act, what)


def require_shared(strategy: tf.distribute.Strategy, folder: str) -> None:
    """Checks that all workers can read what the chief writes to a folder.

    Raises:
      InputError: A worker has another folder of this name.
    """
    if num_processes(strategy) == 1:
        return
    agree = agreement(strategy)
    number = (
        secrets.randbelow(_MAX_NUMBER) if is_chief(strategy) else _MAX_NUMBER
    )
    # A new name: network file systems may have cached that an old one is
    # absent.
    probe = os.path.join(folder, f".workers-{agree([number])[0]}")
    by_chief(
        strategy, lambda: files.write_text(probe, ""), f"write to {folder}"
    )
    is_there = files.exists(probe)
    is_shared = agree([int(is_there)]) == [1]
    if is_chief(strategy):
        files.remove(probe)
    if not is_shared:
        wait_for_all(strategy)
        who = "Another worker" if is_there else "This worker"
        raise InputError(
            f"{who} cannot read the files that the chief writes to {folder}. "
            "Use an `output_dir` that all workers share, such as a network "
            "file system or gs://."
        )
