"""How programs stop: Ctrl-C, SIGTERM and SIGHUP.

`stopping` turns each signal into an exception, so that every `finally` and
`with` runs and temporary files are removed. `deferred` notes the first signal
instead, so that a training can finish its step and save a checkpoint.
`passed_on` also stops child processes. `exit_at_once` is for the time before,
while a program imports its modules.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    import subprocess

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(SystemExit):
    """SIGTERM or SIGHUP was received; exits with 128 + its number."""

    def __init__(self, number: int):
        super().__init__(128 + number)
        self.number = number


def described(number: int) -> str:
    """Returns what a program prints before a signal ends it."""
    if number == signal.SIGINT:
        return "interrupted"
    return f"stopped by {signal.Signals(number).name}"


def exit_at_once() -> None:
    """Makes signals print one line and exit, until `stopping` takes over.

    Modules that are being imported may drop an exception or print a traceback.
    There are no results or temporary files yet that exiting would lose. Ignored
    signals stay ignored.
    """
    try:
        # Standard error is redirected while TensorFlow is imported.
        stderr = os.dup(2)
    except OSError:  # It is closed.
        return

    def leave(number: int, frame: object) -> NoReturn:
        line = f"{sys.argv[0]}: error: {described(number)}\n"
        with contextlib.suppress(OSError):
            os.write(stderr, os.fsencode(line))
        os._exit(128 + number)

    for number in STOP_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, leave)


@contextlib.contextmanager
def stopping() -> Iterator[None]:
    """Raises KeyboardInterrupt for SIGINT, `Stopped` for SIGTERM and SIGHUP.

    If a library swallows the exception or raises another one instead, it is
    raised at the end of the block. Ignored signals, as under `nohup`, stay
    ignored. Call it in the main thread, where Python runs signal handlers.
    """
    received: list[int] = []

    def stop(number: int, frame: object) -> None:
        received.append(number)
        raise _exception(number)

    with _handlers(stop, STOP_SIGNALS):
        try:
            yield
            if received:
                raise _exception(received[0])
        except Exception as error:
            if received:
                raise _exception(received[0]) from error
            raise


def _exception(number: int) -> BaseException:
    return KeyboardInterrupt() if number == signal.SIGINT else Stopped(number)


class StopRequest:
    """A request to stop at the next opportunity."""

    received = 0  # The number of the signal; 0 before one is received.


@contextlib.contextmanager
def deferred() -> Iterator[StopRequest]:
    """Notes the first SIGINT or SIGTERM; a second one has its usual effect."""
    request = StopRequest()

    def note(number: int, frame: object) -> None:
        request.received = number
        handlers.close()

    with contextlib.ExitStack() as handlers:
        handlers.enter_context(
            _handlers(note, (signal.SIGINT, signal.SIGTERM), ignored=True)
        )
        yield request


@contextlib.contextmanager
def passed_on(processes: "Iterable[subprocess.Popen]") -> Iterator[None]:
    """Passes signals on to child processes; waits until all of them end.

    Each needs its own process group, `Popen(..., process_group=0)`: otherwise
    the terminal also sends it Ctrl-C, and the second signal ends it before it
    has saved.
    """
    try:
        yield
    except (KeyboardInterrupt, Stopped) as stop:
        for process in processes:
            process.send_signal(getattr(stop, "number", signal.SIGINT))
        raise
    finally:
        # `timeout` sends a signal twice.
        with deferred():
            for process in processes:
                process.wait()


@contextlib.contextmanager
def _handlers(
    handler: Callable[[int, object], None],
    numbers: Iterable[int],
    ignored: bool = False,
) -> Iterator[None]:
    """Installs a handler; `ignored`: also for signals that are ignored."""
    before = {
        number: signal.signal(number, handler)
        for number in numbers
        if ignored or signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler_before in before.items():
            signal.signal(number, handler_before)


def reinstall_sigterm() -> None:
    """Installs Python's handler of SIGTERM again.

    TensorFlow's coordination service, which starts with several workers,
    replaces it by a handler that only notes the signal. Python does not notice:
    `getsignal` still returns the handler that it installed.
    """
    handler = signal.getsignal(signal.SIGTERM)
    is_main = threading.current_thread() is threading.main_thread()
    if handler is not None and is_main:
        signal.signal(signal.SIGTERM, handler)
