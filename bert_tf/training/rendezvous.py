"""Waits until all workers are there, before TensorFlow does.

TensorFlow waits for an hour without a word, deaf to Ctrl-C, and fails with a
page of its own code. Here each process listens at its address until it has
found all others listening at theirs. Then it leaves the address to
TensorFlow's server, which those who are still looking take for it: to them,
whoever answers is there. A TPU, for which it would wait without an end, is
looked for likewise.
"""

import contextlib
import socket
import time
from collections.abc import Mapping

from absl import logging

from bert_tf.errors import InputError

# As long as TensorFlow waits.
MOST_SECONDS = 3600.0

_SECONDS_TO_CONNECT = 1.0
_SECONDS_TO_CONNECT_ONCE = 10.0
_SECONDS_BETWEEN_LOOKS = 0.2
# Workers are started one after another: that much is nothing to tell.
_SECONDS_UNTIL_TOLD = 10.0
_SECONDS_UNTIL_TOLD_AGAIN = 60.0


def meet(
    own: str, others: Mapping[str, str], most_seconds: float = MOST_SECONDS
) -> None:
    """Returns when all other workers have started.

    Args:
      own: Where this process will listen, HOST:PORT.
      others: Their names, to be told of, and where they will listen.
      most_seconds: How long to wait.

    Raises:
      InputError: This process cannot listen there, an address is none, or
        somebody has not come.
    """
    _, port = _parse(own)
    places = {name: _parse(address) for name, address in others.items()}
    if not places:
        return
    with _listening(own, port):
        _wait_for(places, others, most_seconds)


def why_silent(address: str) -> str | None:
    """Why nobody answers at HOST:PORT; None if somebody does."""
    host, _, port = address.rpartition(":")
    return _look((host.strip("[]"), int(port)), _SECONDS_TO_CONNECT_ONCE)


def _parse(address: str) -> tuple[str, int]:
    """HOST:PORT -> (HOST, PORT)."""
    host, _, port = address.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()):
        raise InputError(
            "expected addresses HOST:PORT in the workers of TF_CONFIG. "
            f"Received: {address!r}"
        )
    return host.strip("[]"), int(port)


def _listening(own: str, port: int) -> contextlib.closing[socket.socket]:
    """A socket that answers whoever looks for this process."""
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    try:
        return contextlib.closing(
            # Nobody is accepted: to be in the queue is to have been answered.
            socket.create_server(
                ("", port), family=family, backlog=128, dualstack_ipv6=dual
            )
        )
    except (OSError, OverflowError) as error:
        raise InputError(
            f"expected to listen at {own}, this worker's address in "
            f"TF_CONFIG. Received: {_reason(error)}; is it another host's, or "
            "does an earlier run still use it?"
        ) from error


def _wait_for(
    places: Mapping[str, tuple[str, int]],
    addresses: Mapping[str, str],
    most_seconds: float,
) -> None:
    started = time.monotonic()
    tell_at = started + _SECONDS_UNTIL_TOLD
    missing = dict.fromkeys(places, "")
    while missing:
        for name in list(missing):
            reason = _look(places[name])
            if reason is None:
                del missing[name]
            else:
                missing[name] = reason
        now = time.monotonic()
        told = ", ".join(
            f"{name} at {addresses[name]} ({reason})"
            for name, reason in missing.items()
        )
        if missing and now - started > most_seconds:
            raise InputError(
                f"expected all workers of TF_CONFIG within {most_seconds:.0f} "
                f"seconds. Received: none of {told}; start the same command "
                "there, and see that this host can reach it"
            )
        if missing and now > tell_at:
            logging.info("Waiting for %s", told)
            tell_at = now + _SECONDS_UNTIL_TOLD_AGAIN
        if missing:
            time.sleep(_SECONDS_BETWEEN_LOOKS)


def _look(
    place: tuple[str, int], seconds: float = _SECONDS_TO_CONNECT
) -> str | None:
    """Why nobody answers; None if somebody does."""
    try:
        with socket.create_connection(place, seconds):
            return None
    except (OSError, OverflowError) as error:
        return _reason(error)


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)
