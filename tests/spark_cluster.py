"""A Spark cluster of two workers on this machine, and ways to break it.

The workers have different addresses, 127.0.0.1 and 127.0.0.2: Spark never runs
a speculative task on the host of the first attempt.

`python -m tests.spark_cluster PAUSE --flag=value ...` is
create_pretraining_data.py with small pieces of work. PAUSE is a JSON object:
in the `stage`, a worker writes the file `marker` in the middle of its work,
then waits.
"""

import contextlib
import functools
import importlib
import itertools
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from unittest import mock

from checkout import ROOT

from bert_tf import command
from bert_tf.base import files
from bert_tf.corpus import cluster
from bert_tf.corpus.engines import pipeline, spark
from bert_tf.corpus.settings import PieceSizes

SIZES = PieceSizes(sentences=50, instances=800, text_bytes=20_000)
# Longer than anything takes on a busy machine.
PATIENCE = 120
# Java compiles little: its processes end after seconds.
JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SETTINGS = {
    "spark.driver.extraJavaOptions": JAVA,
    "spark.driver.memory": "512m",
    "spark.executor.cores": "1",
    "spark.executor.extraJavaOptions": JAVA,
    "spark.executor.memory": "512m",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.ui.enabled": "false",
}


def wait_for(condition, what):
    end = time.monotonic() + PATIENCE
    while not (result := condition()):
        assert time.monotonic() < end, f"{what} has not happened"
        time.sleep(0.05)
    return result


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Cluster(contextlib.ExitStack):
    """A master and two workers with one core each."""

    def __init__(self, folder):
        import pyspark

        super().__init__()
        self.home = pathlib.Path(pyspark.__file__).parent
        self.folder = folder
        self.port, self.web_port = free_port(), free_port()
        self.url = f"spark://127.0.0.1:{self.port}"
        self.workers = {}

    def __enter__(self):
        try:
            self.start("Master", "127.0.0.1", self.port, self.web_port)
            wait_for(self.state, "the start of the master")
            self.restore()
        except BaseException:
            self.close()
            raise
        return self

    def start(self, kind, host, port, web_port, *words):
        """Starts a master or a worker, which ends with the cluster."""
        name = f"org.apache.spark.deploy.{kind.lower()}.{kind}"
        place = ["--host", host, "--port", str(port)]
        place += ["--webui-port", str(web_port)]
        with open(self.folder / f"{kind}-{port}.log", "w") as log:
            process = self.run(
                [self.home / "bin/spark-class", name, *place, *words],
                {
                    "SPARK_HOME": str(self.home),
                    "SPARK_LOCAL_IP": host,
                    "SPARK_DAEMON_JAVA_OPTS": JAVA,
                    "SPARK_DAEMON_MEMORY": "256m",
                    "SPARK_WORKER_DIR": str(self.folder / "work"),
                },
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        return process

    def restore(self):
        """Replaces killed workers; waits until both are idle."""
        for host in "127.0.0.1", "127.0.0.2":
            worker = self.workers.get(host)
            if worker is None or worker.poll() is not None:
                words = ["--cores", "1", "--memory", "1g", self.url]
                self.workers[host] = self.start(
                    "Worker", host, free_port(), free_port(), *words
                )
        wait_for(self.is_idle, "two idle workers")

    def state(self):
        """Returns what the master reports, or None if it does not answer."""
        address = f"http://127.0.0.1:{self.web_port}/json/"
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(address) as answer,
        ):
            return json.load(answer)

    def is_idle(self):
        state = self.state()
        alive = [w for w in state["workers"] if w["state"] == "ALIVE"]
        is_busy = state["activeapps"] or any(w["coresused"] for w in alive)
        return len(alive) == len(self.workers) and not is_busy

    def launch(self, flags, pause=None, settings=(), cwd=None):
        """Starts create_pretraining_data.py with small pieces of work."""
        confs = {**SETTINGS, **dict(settings)}
        words = [f"--conf {name}='{value}'" for name, value in confs.items()]
        program = [sys.executable, "-m", "tests.spark_cluster"]
        runner = ["--runner=spark", f"--spark_master={self.url}"]
        return self.run(
            [*program, json.dumps(pause), *flags, *runner],
            {"PYSPARK_SUBMIT_ARGS": " ".join([*words, "pyspark-shell"])},
            cwd=cwd,
        )

    def submit(self, flags):
        """Starts create_pretraining_data.py with `spark-submit`."""
        words = [self.home / "bin/spark-submit", "--master", self.url]
        for name, value in SETTINGS.items():
            words += ["--conf", f"{name}={value}"]
        script = ROOT / "create_pretraining_data.py"
        return self.run([*words, script, *flags, "--runner=spark"])

    def run(self, command, variables=(), **options):
        """Starts a program, which ends with the cluster."""
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(self.folder / "local"),
            **dict(variables),
        }
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen(
            command,
            env=environment,
            text=True,
            start_new_session=True,
            **{**pipes, **options},
        )
        self.callback(process.wait)
        self.callback(kill, process)
        return process


def kill(process):
    """Kills a process that this program has started, and its children."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def parent_of(pid):
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"PPid:\s*(\d+)", status)[1])


def pause_at(pause):
    """Notes this process in the marker and waits; only the first one does."""
    from pyspark import TaskContext

    marker = pathlib.Path(pause["marker"])
    task = TaskContext.get()
    attempt = [task.stageId(), task.partitionId(), task.attemptNumber()]
    try:
        os.close(os.open(f"{marker}.lock", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        wait_for(marker.exists, "the first pause")
        first = json.loads(marker.read_text())["attempt"]
        if attempt[:2] == first[:2] and attempt != first:
            marker.with_suffix(".other").touch()
        return
    note = {"pid": os.getpid(), "attempt": attempt}
    pathlib.Path(f"{marker}.new").write_text(json.dumps(note))
    os.rename(f"{marker}.new", marker)
    wait_for(marker.with_suffix(".other").exists, "another attempt")


def original(module, name):
    return getattr(importlib.import_module(module), name)


def in_items(function, pause, *arguments):
    """Pauses between the first two items that a function yields."""
    items = iter(original(*function)(*arguments))
    yield from itertools.islice(items, 1)
    pause_at(pause)
    yield from items


def after_call(function, pause, *arguments):
    """Pauses when a function has its result."""
    result = original(*function)(*arguments)
    pause_at(pause)
    return result


def before_rename(function, pause, *arguments):
    """Pauses when a file is complete but does not have its name."""
    rename = files.rename

    def paused(*names):
        pause_at(pause)
        rename(*names)

    with mock.patch.object(files, "rename", paused):
        return original(*function)(*arguments)


STAGES = {
    "read": (pipeline, "read_task", in_items),
    "cut": (cluster, "cut_section", after_call),
    "pairs": (cluster, "complete_pairs", in_items),
    "chunks": (cluster, "write_chunk", before_rename),
    "join": (pipeline, "join_chunks", before_rename),
}


def main():
    pause = json.loads(sys.argv.pop(1))
    if pause:
        module, name, way = STAGES[pause["stage"]]
        # Workers find the function in its module, where it is not replaced.
        paused = functools.partial(way, (module.__name__, name), pause)
        setattr(module, name, paused)
    spark.create = functools.partial(spark.create, sizes=SIZES)
    command.run_job("pretraining_data")


if __name__ == "__main__":
    # Workers cannot import names from `__main__`.
    from tests import spark_cluster

    spark_cluster.main()
