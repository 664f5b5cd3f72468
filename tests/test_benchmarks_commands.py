"""Commands as sides of a benchmark, and the versions that they run with."""

import os
import subprocess
import sys

import pytest

WRITE = """
import pathlib, sys, time
pathlib.Path(sys.argv[1], "lines").write_text("a\\nb\\n")
print("not heard")
time.sleep(0.2)
"""


def test_a_command_writes_into_a_folder_that_goes(benchmarks, capfd):
    folders = []

    def count(folder):
        folders.append(folder)
        with open(os.path.join(folder, "lines"), encoding="utf-8") as lines:
            return len(list(lines))

    side = benchmarks("commands").Command(
        [sys.executable, "-c"], {"a": "1"}, count
    )
    reply = side.ask([WRITE, "{folder}"])
    assert reply["times"] == 2
    assert 0 < reply["cpu_seconds"] == reply["request_cpu_seconds"]
    assert reply["seconds"] > 0.01
    assert reply["peak_bytes"] > 1e6
    assert not os.path.exists(folders[0])
    assert capfd.readouterr().out == ""


def test_a_command_that_fails(benchmarks):
    side = benchmarks("commands").Command([sys.executable], {})
    with pytest.raises(subprocess.CalledProcessError, match="status 3"):
        side.ask(["-c", "raise SystemExit(3)"])


def test_versions_are_those_of_the_interpreter(benchmarks):
    versions_of = benchmarks("peer_environment").versions_of
    versions = versions_of(sys.executable, "pytest")
    assert versions == {"pytest": pytest.__version__}
