import errno
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import time
from multiprocessing import synchronize

import pytest
from checkout import ROOT

from bert_tf.base import processes
from bert_tf.base.processes import Faults
from bert_tf.errors import InputError


@pytest.fixture(scope="module")
def pool():
    with processes.Pool(2) as pool:
        yield pool


def slow_square(number):
    time.sleep(0.02 * (number % 3 == 0))
    return number**2


def process_id(_):
    return os.getpid()


def has_tensorflow(_):
    import bert_tf.corpus.creation  # noqa: F401

    return [name for name in ("tensorflow", "keras") if name in sys.modules]


def refuse_odd(number):
    if number % 2:
        raise InputError(f"The number must be even; got {number}.")
    return number


def kill_self(_):
    os.kill(os.getpid(), signal.SIGKILL)


def sleep_long(_):
    time.sleep(0.5)


@pytest.mark.parametrize("num_tasks", [0, 1, 37])
def test_results_are_in_the_order_of_the_tasks(pool, num_tasks):
    results = list(pool.run(range(num_tasks), slow_square))
    assert results == [number**2 for number in range(num_tasks)]


def test_one_worker_or_one_task_needs_no_process(pool):
    with processes.Pool(1) as alone:
        assert set(alone.run(range(3), process_id)) == {os.getpid()}
    assert set(pool.run(range(1), process_id)) == {os.getpid()}
    assert os.getpid() not in set(pool.run(range(5), process_id))


def test_workers_do_not_import_tensorflow(pool):
    assert list(pool.run(range(2), has_tensorflow)) == [[], []]


def test_few_tasks_are_read_ahead(pool):
    read = []
    tasks = (read.append(number) or number for number in range(1000))
    results = pool.run(tasks, slow_square)
    for _ in range(5):
        next(results)
    assert len(read) <= 5 + 2 * processes.TASKS_PER_WORKER
    results.close()


@pytest.mark.parametrize("num_workers", [1, 2])
def test_errors_of_workers_are_raised(num_workers):
    with processes.Pool(num_workers) as pool:
        results = pool.run([2, 4, 5, 6], refuse_odd)
        assert [next(results), next(results)] == [2, 4]
        with pytest.raises(InputError, match="got 5"):
            next(results)


def test_killed_workers_are_reported():
    with (
        processes.Pool(2) as pool,
        pytest.raises(InputError, match="Use fewer than 2 workers"),
    ):
        list(pool.run(range(4), kill_self))


def test_without_semaphores_one_process_works(monkeypatch, caplog):
    """A read-only or missing /dev/shm."""

    def refuse(*_, **__):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(synchronize.SemLock, "__init__", refuse)
    with processes.Pool(3) as pool:
        for _ in range(2):
            assert set(pool.run(range(3), process_id)) == {os.getpid()}
    [message] = caplog.messages
    assert message.startswith("Working in 1 process instead of 3")


SCRIPT = """
import test_processes
from bert_tf import cli
from bert_tf.base import processes
with open(__file__ + ".log", "a") as log:
    log.write("imported\\n")
def main():
    with processes.Pool(2) as pool:
        workers = set(pool.run(range(8), test_processes.process_id))
        print(*workers, flush=True)
        for _ in pool.run(range(100), test_processes.sleep_long):
            pass
if __name__ == "__main__":
    cli._start(main, ())
"""


def is_alive(process):
    try:
        state = pathlib.Path(f"/proc/{process}/stat").read_text()
    except FileNotFoundError:
        return False
    return state.rsplit(")", 1)[1].split()[0] != "Z"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_workers_end_when_the_program_is_stopped(tmp_path, number):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    path = os.pathsep.join(
        map(str, (ROOT, ROOT / "tests", ROOT / "tests/base"))
    )
    program = subprocess.Popen(
        [sys.executable, script],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    workers = list(map(int, program.stdout.readline().split()))
    assert workers
    assert all(map(is_alive, workers))
    if number == signal.SIGKILL:
        program.kill()
    else:  # A terminal sends it to the whole group.
        os.killpg(program.pid, number)
    start = time.monotonic()
    _, stderr = program.communicate(timeout=20)
    while any(map(is_alive, workers)) and time.monotonic() < start + 5:
        time.sleep(0.02)
    assert not any(map(is_alive, workers))
    if number != signal.SIGKILL:
        assert program.returncode == 128 + number
        assert stderr.count("\n") == 1
    # Workers do not import the script.
    log = tmp_path / "script.py.log"
    assert log.read_text() == "imported\n"


def test_progress_is_logged_or_a_bar_on_a_terminal(monkeypatch, caplog, capsys):
    """Ten tasks of three lines, ten seconds each."""
    clock = iter(range(0, 1000, 10))
    monkeypatch.setattr(processes.time, "monotonic", lambda: next(clock))
    for is_terminal in (True, False):
        monkeypatch.setattr(sys.stderr, "isatty", lambda x=is_terminal: x)
        tasks = processes.track(range(10), lambda _: 3, "Writing", "lines", 30)
        assert list(tasks) == list(range(10))
        assert bool(caplog.records) != is_terminal
    assert "Writing: " in capsys.readouterr().err
    assert caplog.messages[1] == "Writing: 24 of 30 lines, 0 a second"


def test_faults_of_parts_are_logged_once_in_order(caplog):
    faults, other = Faults(), Faults()
    faults.add("a", "1")
    for kind, example in (("b", "2"), ("a", "3"), ("b", "4")):
        other.add(kind, example)
    faults.update(pickle.loads(pickle.dumps(other)))
    faults.log()
    assert caplog.messages == ["a: 2; the first: 1", "b: 2; the first: 2"]
