"""Runs run_pretraining.py in new processes without importing TensorFlow again.

They are forked from a process that has imported it:

    program = programs.start(["--do_train", ...], tmp_path / "log")
    program.wait_for("step 8 of ")
    program.send(signal.SIGKILL)
    assert program.end() == -signal.SIGKILL
"""

import dataclasses
import json
import multiprocessing
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from checkout import ROOT

SCRIPT = "run_pretraining"

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["bert_tf.kinds.pretraining.job"])
_SECONDS = 100


@dataclasses.dataclass
class Program:
    """A process that runs the script.

    `wait` waits some seconds for its end; it returns the exit status, minus the
    signal that ended it, or None while it runs.
    """

    pid: int
    log: pathlib.Path  # Its output.
    wait: Callable[[float], int | None]

    @property
    def said(self) -> list[str]:
        """The lines of its output so far."""
        return self.log.read_text().splitlines()

    def wait_for(self, text: str) -> None:
        """Waits until its output contains a text."""
        stop = time.monotonic() + _SECONDS
        while text not in self.log.read_text():
            assert self.wait(0.005) is None, self.log.read_text()
            assert time.monotonic() < stop, self.log.read_text()

    def send(self, number: int) -> None:
        """Sends a signal."""
        os.kill(self.pid, number)

    def end(self) -> int:
        """Waits for the end; returns the status, or minus the final signal."""
        status = self.wait(_SECONDS)
        assert status is not None, self.log.read_text()
        assert "Traceback" not in self.log.read_text(), self.log.read_text()
        return status


def fork(function: Callable[..., None], *arguments: Any) -> Any:
    """Starts a process that calls a function, with TensorFlow imported."""
    process = _CONTEXT.Process(target=function, args=arguments, daemon=True)
    process.start()
    return process


def start(
    words: Sequence[str],
    log: pathlib.Path,
    environment: Mapping[str, str] | None = None,
    before: Callable[[], None] | None = None,
) -> Program:
    """Runs the script; the process first calls `before`, which is pickled."""
    log.touch()
    process = fork(_run, list(words), str(log), dict(environment or {}), before)

    def wait(seconds: float) -> int | None:
        process.join(seconds)
        return process.exitcode

    return Program(process.pid, log, wait)


def start_as_users_do(
    words: Sequence[str],
    log: pathlib.Path,
    environment: Mapping[str, str] | None = None,
) -> Program:
    """Runs the script in a new Python interpreter, as users do."""
    # conftest.py sets it, and it turns TensorFlow's start-up messages on again.
    inherited = {**os.environ}
    inherited.pop("TF_CPP_MIN_LOG_LEVEL", None)
    with log.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, str(ROOT / f"{SCRIPT}.py"), *words],
            stderr=file,
            env=inherited | dict(environment or {}),
        )

    def wait(seconds: float) -> int | None:
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    return Program(process.pid, log, wait)


def places_of_workers(count: int = 2) -> list[dict[str, str]]:
    """Returns the TF_CONFIG of each worker on this machine, the chief first."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("localhost", 0))
    hosts = [f"localhost:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()
    cluster = {"worker": hosts}
    places = [{"type": "worker", "index": index} for index in range(count)]
    return [
        {"TF_CONFIG": json.dumps({"cluster": cluster, "task": place})}
        for place in places
    ]


@dataclasses.dataclass
class DiesInRename:
    """Kills a process just before a file gets its final name."""

    ending: str

    def __call__(self) -> None:
        import tensorflow as tf

        rename = tf.io.gfile.rename

        def rename_or_die(source, target, overwrite=False):
            if target.endswith(self.ending):
                os.kill(os.getpid(), signal.SIGKILL)
            rename(source, target, overwrite)

        tf.io.gfile.rename = rename_or_die


def _run(
    words: list[str],
    log: str,
    environment: dict[str, str],
    before: Callable[[], None] | None,
) -> None:
    """Runs in the new process."""
    from bert_tf import cli
    from bert_tf.kinds.pretraining import job as pretraining

    os.environ.update(environment)
    file = os.open(log, os.O_WRONLY | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(file, stream)
    sys.argv = [f"{SCRIPT}.py", *words]
    if before is not None:
        before()
    cli.main(pretraining.run)
