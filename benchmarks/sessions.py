"""Commands of several processes, with the memory of all of them together."""

import contextlib
import dataclasses
import os
import pathlib
import resource
import subprocess
import time
from collections.abc import Sequence

SAMPLING_SECONDS = 0.05


@dataclasses.dataclass(frozen=True)
class SessionUsage:
    """What a command and its processes took.

    Attributes:
      seconds: From its start to its end, imports and all.
      cpu_seconds: Of all cores, of all its processes.
      peak_bytes: Resident memory of all its processes when that was largest,
        of which pages that they share count for each; sampled.
    """

    seconds: float
    cpu_seconds: float
    peak_bytes: int


def run(command: Sequence[str]) -> SessionUsage:
    """Runs a command, whatever it says.

    Raises:
      subprocess.CalledProcessError: It failed.
    """
    start, cpu_start = time.monotonic(), _children_cpu_seconds()
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    peak = 0
    while process.poll() is None:
        peak = max(peak, resident_bytes(process.pid))
        time.sleep(SAMPLING_SECONDS)
    seconds = time.monotonic() - start
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return SessionUsage(seconds, _children_cpu_seconds() - cpu_start, peak)


def _children_cpu_seconds() -> float:
    """The CPU time of all processes that were started from here and ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def resident_bytes(session: int) -> int:
    """The memory of all processes of a session."""
    pages = 0
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        # A process may end while it is looked at.
        with contextlib.suppress(OSError):
            if os.getsid(int(folder.name)) == session:
                pages += int((folder / "statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
