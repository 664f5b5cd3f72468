"""What sides do that are asked to work for some time."""

import os
import sys
import time

import pytest
from benchmark_modules import PEERS, importable


@pytest.fixture(scope="module")
def timing():
    with importable(PEERS) as module_of:
        yield module_of("timing")


def test_work_is_done_until_the_time_is_over(timing):
    done = []

    def work():
        time.sleep(0.01)
        done.append(len(done))
        return done[-1]

    told, last = timing.repeat(work, 0.05)
    assert 1 <= told["times"] == len(done) == last + 1 <= 5
    assert told["seconds"] >= 0.05
    assert told["cpu_seconds"] < 0.05


def test_work_is_done_as_often_as_is_asked(timing):
    told, last = timing.repeat(lambda: "done", 0.0, least_times=3)
    assert (told["times"], last) == (3, "done")


def test_a_side_keeps_to_its_cores(timing, monkeypatch):
    kept = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {5, 2, 3})
    monkeypatch.setattr(
        os, "sched_setaffinity", lambda pid, cpus: kept.append(cpus)
    )
    monkeypatch.setattr(sys, "argv", ["side.py", "--num_threads=2"])
    assert timing.threads() == 2
    assert kept == [[2, 3]]
