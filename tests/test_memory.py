"""Memory returns to the system, and programs go on."""

import os
import platform
import subprocess
import sys

import pytest
from checkout import ROOT

pytestmark = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="needs glibc"
)


def run(code: str, **variables: str) -> subprocess.CompletedProcess:
    outer = {k: v for k, v in os.environ.items() if k != "MALLOC_ARENA_MAX"}
    return subprocess.run(
        [sys.executable, "-c", code],
        env=outer | {"PYTHONPATH": str(ROOT)} | variables,
        capture_output=True,
        text=True,
        check=True,
    )


def test_release_returns_free_memory_to_the_system():
    done = run(
        """
import re
from bert_tf import memory

def resident():
    with open("/proc/self/status") as file:
        return int(re.search(r"RssAnon:\\s*([0-9]+) kB", file.read())[1])

# Small enough for the heap; every second one stays.
blocks = [bytearray(100_000) for _ in range(1000)]
del blocks[::2]
before = resident()
memory.release()
print(before - resident(), sum(map(sum, blocks)))
"""
    )
    kilobytes, total = map(int, done.stdout.split())
    assert kilobytes > 40_000
    assert total == 0


@pytest.mark.parametrize(
    ("variables", "heaps"), [({}, 1), ({"MALLOC_ARENA_MAX": "3"}, 3)]
)
def test_threads_share_the_heap(variables, heaps):
    code = """
import ctypes, threading
from bert_tf import memory

memory.limit_heaps()
barrier = threading.Barrier(6)
kept = []

def allocate():
    kept.append(bytearray(100_000))
    barrier.wait()

threads = [threading.Thread(target=allocate) for _ in range(6)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
ctypes.CDLL(None).malloc_stats()
"""
    assert run(code, **variables).stderr.count("Arena ") == heaps
