"""Runs a script on several devices: replicas, worker processes, two hosts.

    python benchmarks/layouts.py 4 run_pretraining.py \\
        --distribution_strategy=mirrored ...

runs a script with this number of logical CPU devices, which become replicas.
They compute the same as this number of GPUs, but no faster than one device.

Hosts are network namespaces of one machine with a virtual cable between them: a
process in one of them has its own network devices, addresses and ports. They
need Linux, root and `ip` (Debian: iproute2).
"""

import argparse
import contextlib
import json
import os
import pathlib
import runpy
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from sides import ROOT, failure

# The port of the workers on hosts.
PORT = 2222
# The time that the other workers have to end after one has failed.
_SECONDS_TO_END = 20.0


class Unavailable(Exception):
    """Hosts cannot be created here; the message says why."""


class Layout(NamedTuple):
    """Devices, and the processes that they belong to."""

    title: str  # On the page.
    strategy: str  # The value of --distribution_strategy.
    num_devices: int = 1  # CPU devices of each process.
    num_workers: int = 1  # Processes.
    has_hosts: bool = False  # Each process has its own host and output folder.

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


def run(
    layout: Layout,
    script: str,
    flags: Mapping[str, object],
    folder: pathlib.Path,
    output_flag: str = "output_dir",
    gpus: Sequence[str] = (),
) -> pathlib.Path:
    """Runs a script on all workers at once, to its end.

    Args:
      layout: The devices.
      script: The path of the script in the project.
      flags: All flags except --distribution_strategy and `output_flag`.
      folder: The folder for the output and the logs (`worker0.log` ...). A
        second run with the same folder resumes the first.
      output_flag: The flag for the output. The first worker's path is returned.
      gpus: The value of CUDA_VISIBLE_DEVICES for each worker; by default none
        sees a GPU.

    Raises:
      Unavailable: Hosts cannot be created here.
      InputError: A worker failed; the end of its log is printed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    outputs = [folder / "output"] * layout.num_workers
    if layout.has_hosts:
        outputs = [folder / f"host{n}" for n in range(layout.num_workers)]
    python = [sys.executable]
    if layout.num_devices > 1:
        python += [__file__, str(layout.num_devices)]
    workers = []
    with _hosts(layout) as hosts:
        for index, prefix in enumerate(hosts.values()):
            values = {
                **flags,
                output_flag: outputs[index],
                "distribution_strategy": layout.strategy,
            }
            words = [f"--{name}={value}" for name, value in values.items()]
            log = folder / f"worker{index}.log"
            with log.open("wb") as file:
                process = subprocess.Popen(
                    [*prefix, *python, str(ROOT / script), *words],
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    env=_environment([*hosts], index, [*gpus, "-1", "-1"]),
                )
            workers.append((process, log))
        _finish(workers)
    return outputs[0]


def _environment(
    addresses: Sequence[str], index: int, gpus: Sequence[str]
) -> dict[str, str]:
    """Returns the environment of a worker."""
    found = {**os.environ, "CUDA_VISIBLE_DEVICES": gpus[index]}
    for name in ("TF_CONFIG", "TF_CPP_MIN_LOG_LEVEL"):
        found.pop(name, None)
    if len(addresses) > 1:
        task = {"type": "worker", "index": index}
        cluster = {"worker": list(addresses)}
        found["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": task})
    return found


@contextlib.contextmanager
def _hosts(layout: Layout) -> Iterator[dict[str, list[str]]]:
    """Yields the address of each worker -> the start of its command line."""
    if not layout.has_hosts:
        with contextlib.ExitStack() as stack:
            # Each gets a port that nothing listens on.
            servers = [
                stack.enter_context(socket.create_server(("localhost", 0)))
                for _ in range(layout.num_workers)
            ]
            ports = [server.getsockname()[1] for server in servers]
        yield {f"localhost:{port}": [] for port in ports}
        return
    with two_hosts() as hosts:
        yield {
            f"{address}:{PORT}": ["ip", "netns", "exec", name]
            for name, address in hosts.items()
        }


@contextlib.contextmanager
def two_hosts() -> Iterator[dict[str, str]]:
    """Creates two network namespaces; yields their names and addresses.

    Raises:
      Unavailable: They cannot be created.
    """
    if shutil.which("ip") is None:
        raise Unavailable("there is no program `ip` (Debian: iproute2)")
    if os.geteuid() != 0:
        raise Unavailable("network namespaces need root")
    names = [f"bert-tf-{os.getpid()}-{number}" for number in (1, 2)]
    hosts = dict(zip(names, ("10.77.0.1", "10.77.0.2"), strict=True))
    with contextlib.ExitStack() as stack:
        for name in names:
            _ip("netns", "add", name)
            stack.callback(_ip, "netns", "delete", name)
        first, second = names
        _ip(
            *("link", "add", "name", "eth0", "netns", first, "type", "veth"),
            *("peer", "name", "eth0", "netns", second),
        )
        for name, address in hosts.items():
            inside = ("-netns", name)
            _ip(*inside, "address", "add", f"{address}/24", "dev", "eth0")
            for device in ("eth0", "lo"):
                _ip(*inside, "link", "set", device, "up")
        yield hosts


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    if done.returncode:
        message = done.stderr.strip()
        raise Unavailable(f"`ip {' '.join(words)}` failed: {message}")


def _finish(workers: Sequence[tuple[subprocess.Popen, pathlib.Path]]) -> None:
    """Waits for all workers; ends the others soon after one has failed."""
    try:
        while True:
            states = [process.poll() for process, _ in workers]
            if any(states) or None not in states:
                break
            time.sleep(0.05)
        for process, _ in workers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_SECONDS_TO_END)
    finally:
        for process, _ in workers:
            process.kill()
            process.wait()
    for (process, log), state in zip(workers, states, strict=True):
        if state:
            raise failure(process.args, state, log)


def main() -> None:
    """Runs a script as the main program on CPU devices."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("count", type=int, help="Number of devices.")
    parser.add_argument("script", help="Path of the script.")
    parser.add_argument("flags", nargs=argparse.REMAINDER, help="Its flags.")
    given = parser.parse_args()

    from bert_tf import start_tensorflow

    start_tensorflow.quietly()
    import tensorflow as tf

    [cpu] = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration()] * given.count
    )
    sys.argv = [given.script, *given.flags]
    sys.path[0] = str(pathlib.Path(given.script).resolve().parent)
    runpy.run_path(given.script, run_name="__main__")


if __name__ == "__main__":
    main()
