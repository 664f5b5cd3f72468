"""Commands with their time and memory, and the machine that they ran on."""

import dataclasses
import os
import pathlib
import platform
import subprocess
import time
from collections.abc import Mapping, Sequence

# Of a command that failed, the end of what it said.
LAST_CHARACTERS = 2000
BYTES_PER_MIB = 2**20


@dataclasses.dataclass(frozen=True)
class Usage:
    """What a command took.

    Attributes:
      seconds: From its start to its end, imports and all.
      cpu_seconds: Of all cores, of all its processes.
      other_cpu_seconds: What other programs took meanwhile. It should be next
        to nothing: they also slow down a command that shares no core with
        them, and more so one whose threads wait for each other.
      peak_bytes: Memory of its largest process when that was largest.
    """

    seconds: float
    cpu_seconds: float
    other_cpu_seconds: float
    peak_bytes: int


def run(
    command: Sequence[str],
    folder: pathlib.Path,
    environment: Mapping[str, str],
) -> Usage:
    """Runs a command alone.

    Whoever calls has to be small: Linux counts the memory of a process from
    before it became the command, when it still was its parent's.

    Args:
      command: Its words.
      folder: Where what it says is put, into `stdout` and `stderr`.
      environment: Variables beside those of this process.

    Raises:
      SystemExit: It failed; with the end of what it said.
    """
    said = folder / "stderr"
    with (folder / "stdout").open("wb") as out, said.open("wb") as error:
        start, busy = time.monotonic(), busy_seconds()
        process = subprocess.Popen(
            command, stdout=out, stderr=error, env={**os.environ, **environment}
        )
        _, status, usage = os.wait4(process.pid, 0)
        seconds, busy = time.monotonic() - start, busy_seconds() - busy
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise failure(command, process.returncode, said)
    cpu_seconds = usage.ru_utime + usage.ru_stime
    return Usage(
        seconds,
        cpu_seconds,
        max(0.0, busy - cpu_seconds),
        usage.ru_maxrss * 1024,
    )


def failure(
    command: Sequence[str], status: int, said: pathlib.Path
) -> SystemExit:
    """What to raise if a command has failed: the end of what it said."""
    end = said.read_text(encoding="utf-8", errors="replace")
    return SystemExit(
        f"{end[-LAST_CHARACTERS:]}\nerror: exit status {status} of "
        f"{' '.join(map(str, command))}"
    )


def busy_seconds(stat: pathlib.Path = pathlib.Path("/proc/stat")) -> float:
    """CPU time of everything since the machine started, of all cores.

    What a hypervisor gave to other machines counts as well.
    """
    ticks = [int(word) for word in stat.read_text().split("\n")[0].split()[1:]]
    # user, nice, system, idle, iowait, irq, softirq, steal; guests are in user.
    return (sum(ticks[:8]) - sum(ticks[3:5])) / os.sysconf("SC_CLK_TCK")


def hold_to_cpus(num_threads: int) -> dict[str, str]:
    """Leaves so many cores to this process and to what it starts.

    Libraries count the cores that they may use when they are loaded, and some
    look at variables.

    Returns:
      These variables.

    Raises:
      SystemExit: There are not so many.
    """
    cpus = sorted(os.sched_getaffinity(0))
    if not 1 <= num_threads <= len(cpus):
        raise SystemExit(
            f"error: expected --num_threads from 1 to {len(cpus)}, the cores "
            f"that there are. Received: {num_threads}"
        )
    os.sched_setaffinity(0, cpus[:num_threads])
    return {
        "OMP_NUM_THREADS": str(num_threads),
        "TF_NUM_INTRAOP_THREADS": str(num_threads),
    }


def machine() -> dict[str, str]:
    """The machine, for people to read."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": processor(pathlib.Path("/proc/cpuinfo")),
        "cores": str(os.cpu_count()),
        "memory": f"{memory / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
    }


def processor(cpuinfo: pathlib.Path) -> str:
    """Its name, and the widest vectors that it computes with."""
    if not cpuinfo.exists():
        return platform.processor() or platform.machine()
    lines = cpuinfo.read_text().splitlines()
    facts = {
        name.strip(): value.strip()
        for name, _, value in (line.partition(":") for line in lines)
    }
    known = facts.get("flags", "").split()
    vectors = {"avx512f": "AVX-512", "avx2": "AVX2"}
    widest = [name for flag, name in vectors.items() if flag in known][:1]
    return ", ".join([facts.get("model name", platform.machine()), *widest])
