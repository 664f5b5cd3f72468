"""Signals become exceptions, or wait until a training has saved."""

import contextlib
import os
import signal
import time

import pytest

from bert_tf import signals

STOPPED = {
    signal.SIGINT: KeyboardInterrupt,
    signal.SIGTERM: signals.Stopped,
    signal.SIGHUP: signals.Stopped,
}


@pytest.fixture(autouse=True)
def handlers():
    """Every test gives the handlers back, and none is ignored (`nohup`)."""
    ours = {n: signal.signal(n, signal.default_int_handler) for n in STOPPED}
    yield
    for number, handler in ours.items():
        found = signal.signal(number, handler)
        assert found is signal.default_int_handler


def send(number):
    os.kill(os.getpid(), number)
    time.sleep(0.1)


def send_and_clean_up(number, cleaned):
    try:
        send(number)
    finally:
        cleaned.append(number)


@pytest.mark.parametrize("number", STOPPED)
def test_a_signal_is_raised_so_that_work_can_clean_up(number):
    cleaned = []
    with pytest.raises(STOPPED[number]) as caught, signals.stopping():
        send_and_clean_up(number, cleaned)
    assert cleaned == [number]
    if number != signal.SIGINT:
        assert caught.value.code == 128 + number


def swallow(number):
    with contextlib.suppress(STOPPED[number]):
        send(number)


def replace(number):
    try:
        send(number)
    except STOPPED[number] as error:
        raise RuntimeError("a worker failed") from error


@pytest.mark.parametrize("number", STOPPED)
@pytest.mark.parametrize("library", [swallow, replace])
def test_libraries_cannot_hide_a_signal(number, library):
    with pytest.raises(STOPPED[number]), signals.stopping():
        library(number)
    with pytest.raises(RuntimeError), signals.stopping():
        raise RuntimeError("without a signal")


def test_ignored_signals_stay_ignored():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with signals.stopping():
        send(signal.SIGHUP)
    signal.signal(signal.SIGHUP, signal.default_int_handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_deferred_signal_is_noted_and_the_second_one_raised(number):
    with signals.deferred() as stop:
        assert stop.received == 0
        send(number)
        assert stop.received == number
        for second in (signal.SIGTERM, signal.SIGINT):
            with pytest.raises(KeyboardInterrupt):
                send(second)
        assert stop.received == number
    with signals.deferred() as stop:
        assert stop.received == 0
    with pytest.raises(ZeroDivisionError), signals.deferred():
        raise ZeroDivisionError
