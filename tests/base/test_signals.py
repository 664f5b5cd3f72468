"""Signals become exceptions, or are deferred until a training has saved."""

import contextlib
import ctypes
import os
import signal
import time

import pytest

from bert_tf.base import signals

STOPPED = {
    signal.SIGINT: KeyboardInterrupt,
    signal.SIGTERM: signals.Stopped,
    signal.SIGHUP: signals.Stopped,
}


@pytest.fixture(autouse=True)
def handlers():
    """Tests restore the handlers, and no signal is ignored (`nohup`)."""
    ours = {n: signal.signal(n, signal.default_int_handler) for n in STOPPED}
    yield
    for number, handler in ours.items():
        found = signal.signal(number, handler)
        assert found is signal.default_int_handler


def send(number):
    os.kill(os.getpid(), number)
    time.sleep(0.1)


def swallow(number):
    with contextlib.suppress(STOPPED[number]):
        send(number)


def replace(number):
    try:
        send(number)
    except STOPPED[number] as error:
        raise RuntimeError("a worker failed") from error


@pytest.mark.parametrize("number", STOPPED)
@pytest.mark.parametrize("library", [send, swallow, replace])
def test_a_signal_is_raised_and_libraries_cannot_hide_it(number, library):
    with pytest.raises(STOPPED[number]) as caught, signals.stopping():
        library(number)
    if number != signal.SIGINT:
        assert caught.value.code == 128 + number
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
    with pytest.raises(ZeroDivisionError), signals.deferred():
        raise ZeroDivisionError


def test_a_handler_of_sigterm_that_tensorflow_replaced_is_installed_again():
    replace = ctypes.CDLL(None).signal
    noted = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda number: None)
    received = []
    signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    replace(int(signal.SIGTERM), noted)
    signals.reinstall_sigterm()
    signal.raise_signal(signal.SIGTERM)
    assert received == [signal.SIGTERM]
    signal.signal(signal.SIGTERM, signal.default_int_handler)
