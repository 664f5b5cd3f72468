"""One script on any devices: replicas, worker processes, hosts."""

import contextlib
import dataclasses
import json
import os
import pathlib
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from measured import failure
from places import ROOT
from two_hosts import two_hosts

PORT = 2222  # On hosts, whose ports are all their own.

# What the others of a worker that has failed are given to end by themselves.
_SECONDS_TO_END = 20.0


@dataclasses.dataclass(frozen=True)
class Layout:
    """Devices, and the processes that they belong to.

    Attributes:
      title: For people.
      strategy: As --distribution_strategy has it.
      num_devices: CPU devices of each process.
      num_workers: Processes.
      has_hosts: Whether each of two processes has a host of its own, and there
        a folder. Others share their folder.
    """

    title: str
    strategy: str
    num_devices: int = 1
    num_workers: int = 1
    has_hosts: bool = False

    @property
    def replicas(self) -> int:
        return self.num_devices * self.num_workers


WORKERS = "multi_worker_mirrored"
LAYOUTS = {
    "one_device": Layout("one device", "one_device"),
    "two_replicas": Layout("two replicas", "mirrored", num_devices=2),
    "four_replicas": Layout("four replicas", "mirrored", num_devices=4),
    "two_workers": Layout("two worker processes", WORKERS, num_workers=2),
    "two_hosts": Layout("two hosts", WORKERS, num_workers=2, has_hosts=True),
}

# An address, and what makes a command line run there.
_Place = tuple[str, Callable[[Sequence[str]], list[str]]]


def run(
    layout: Layout,
    script: str,
    flags: Mapping[str, object],
    folder: pathlib.Path,
    output_flag: str = "output_dir",
) -> pathlib.Path:
    """Runs a script to its end, on all workers at once.

    Args:
      layout: On what.
      script: Its path below the root of the project.
      flags: All but --distribution_strategy and `output_flag`.
      folder: A new one, for logs (`worker0.log` ...) and what the script
        writes.
      output_flag: What tells the script where to write.

    Returns:
      What the chief had for `output_flag`.

    Raises:
      Unavailable: There can be no hosts here.
      SystemExit: A worker failed; with the end of what it said.
    """
    folder.mkdir(parents=True)
    started: list[tuple[subprocess.Popen, pathlib.Path]] = []
    with _places(layout) as places:
        cluster = {"worker": [address for address, _ in places]}
        for index, (_, command) in enumerate(places):
            task = {"cluster": cluster, "task": {"type": "worker"}}
            task["task"]["index"] = index
            log = folder / f"worker{index}.log"
            place = {output_flag: _output(layout, folder, index)}
            words = command(_words(layout, script, {**flags, **place}))
            with log.open("wb") as file:
                process = subprocess.Popen(
                    words,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    env=_environment(task if len(places) > 1 else None),
                )
            started.append((process, log))
        _finish(started)
    return _output(layout, folder, 0)


def _output(layout: Layout, folder: pathlib.Path, index: int) -> pathlib.Path:
    return folder / (f"host{index}" if layout.has_hosts else "output")


def _words(
    layout: Layout, script: str, flags: Mapping[str, object]
) -> list[str]:
    """A worker's command line."""
    python = [sys.executable]
    if layout.num_devices > 1:
        launcher = ROOT / "benchmarks" / "cpu_devices.py"
        python += [str(launcher), str(layout.num_devices)]
    values = {**flags, "distribution_strategy": layout.strategy}
    words = [f"--{name}={value}" for name, value in values.items()]
    return [*python, str(ROOT / script), *words]


def _environment(tf_config: Mapping | None) -> dict[str, str]:
    """Of a user, who has no GPU."""
    inherited = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}
    for name in ("TF_CONFIG", "TF_CPP_MIN_LOG_LEVEL"):
        inherited.pop(name, None)
    if tf_config is None:
        return inherited
    return {**inherited, "TF_CONFIG": json.dumps(tf_config)}


@contextlib.contextmanager
def _places(layout: Layout) -> Iterator[list[_Place]]:
    """Where the workers run, for as long as the block does."""
    if layout.has_hosts:
        with two_hosts() as hosts:
            yield [(f"{host.address}:{PORT}", host.command) for host in hosts]
    else:
        ports = free_ports(layout.num_workers)
        yield [(f"localhost:{port}", list) for port in ports]


def free_ports(count: int) -> list[int]:
    """Ports of this host at which nobody listens."""
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(socket.create_server(("localhost", 0)))
            for _ in range(count)
        ]
        return [server.getsockname()[1] for server in servers]


def _finish(started: Sequence[tuple[subprocess.Popen, pathlib.Path]]) -> None:
    """Waits for all; if one fails the others do not outlive it by much."""
    try:
        while True:
            states = [process.poll() for process, _ in started]
            if any(states) or None not in states:
                break
            time.sleep(0.05)
        for process, _ in started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_SECONDS_TO_END)
    finally:
        for process, _ in started:
            process.kill()
            process.wait()
    for (process, log), state in zip(started, states, strict=True):
        if state:
            raise failure(process.args, state, log)
