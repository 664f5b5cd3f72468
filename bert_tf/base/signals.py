"""How programs stop: Ctrl-C, SIGTERM and SIGHUP.

`stopping` turns each signal into an exception, so that every `finally` and
`with` runs and temporary files are removed. `deferred` notes the first Ctrl-C
or SIGTERM instead, so a training can finish its step and save a checkpoint.
"""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterable, Iterator

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


@contextlib.contextmanager
def stopping() -> Iterator[None]:
    """Raises KeyboardInterrupt for SIGINT, `Stopped` for SIGTERM and SIGHUP.

    If a library swallows the exception or raises another one instead, the end
    of the block raises the exception again. Call `stopping` in the main thread,
    where Python runs signal handlers.
    """
    received: list[BaseException] = []

    def stop(number: int, frame: object) -> None:
        is_interrupt = number == signal.SIGINT
        received.append(
            KeyboardInterrupt() if is_interrupt else Stopped(number)
        )
        raise received[-1]

    with _handlers(stop, STOP_SIGNALS):
        try:
            yield
        except Exception as error:
            if received:
                raise received[0] from error
            raise
        if received:
            raise received[0]


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
        handlers.enter_context(_handlers(note, (signal.SIGINT, signal.SIGTERM)))
        yield request


@contextlib.contextmanager
def _handlers(
    handler: Callable[[int, object], None], numbers: Iterable[int]
) -> Iterator[None]:
    """Installs a handler. Ignored signals, as under `nohup`, stay ignored."""
    before = {
        number: signal.signal(number, handler)
        for number in numbers
        if signal.getsignal(number) is not signal.SIG_IGN
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
    `getsignal` still returns Python's handler.
    """
    handler = signal.getsignal(signal.SIGTERM)
    is_main = threading.current_thread() is threading.main_thread()
    if handler is not None and is_main:
        signal.signal(signal.SIGTERM, handler)
