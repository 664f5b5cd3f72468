"""Processes find each other before TensorFlow looks for them."""

import contextlib
import logging
import socket
import threading

import pytest

from bert_tf.errors import InputError
from bert_tf.training import distribution


@contextlib.contextmanager
def listening():
    """Somebody who answers; the address."""
    with socket.create_server(("localhost", 0)) as server:
        yield f"localhost:{server.getsockname()[1]}"


@pytest.fixture
def free():
    """Two addresses at which nobody listens."""
    with listening() as one, listening() as other:
        pass
    return one, other


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(distribution, "_SECONDS_BETWEEN_LOOKS", 0.01)
    monkeypatch.setattr(distribution, "_SECONDS_UNTIL_TOLD", 0.0)


def test_alone_there_is_nobody_to_wait_for(free):
    distribution.wait_for_workers(free[0], {})


def test_whoever_answers_is_there(free):
    """Be it TensorFlow, which has taken the address over already."""
    with listening() as other:
        distribution.wait_for_workers(
            free[0], {"worker 1": other}, most_seconds=0
        )


def test_why_somebody_is_silent(free):
    with listening() as other:
        assert distribution.connection_error(other) is None
    assert distribution.connection_error(free[0]) == "Connection refused"


def test_two_meet_whoever_comes_first(free):
    one, other = free
    waiting = threading.Thread(
        target=distribution.wait_for_workers, args=(one, {"worker 1": other})
    )
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive()
    # The second leaves when it has seen the first, maybe before that looks.
    with socket.create_server(("localhost", int(other.split(":")[1]))):
        distribution._try_to_connect(distribution._parse_address(one))
        waiting.join(10)
    assert not waiting.is_alive()


def test_the_address_is_free_for_tensorflow_then(free):
    with listening() as other:
        distribution.wait_for_workers(free[0], {"worker 1": other})
    with socket.create_server(("", int(free[0].split(":")[1]))):
        pass


def test_those_who_are_missing_are_named(free, caplog):
    caplog.set_level(logging.INFO, "absl")
    with listening() as there:
        others = {"worker 1": there, "worker 2": free[1]}
        with pytest.raises(InputError) as error:
            distribution.wait_for_workers(free[0], others, most_seconds=0.05)
    missing = f"worker 2 at {free[1]} (Connection refused)"
    assert f"Waiting for {missing}" in caplog.text
    assert "within 0 seconds. Received: none of worker 2 at" in str(error.value)
    assert missing in str(error.value)


def test_a_host_that_nobody_knows(free):
    with pytest.raises(InputError, match=r"worker 1 at nowhere.invalid:1 \("):
        distribution.wait_for_workers(
            free[0], {"worker 1": "nowhere.invalid:1"}, most_seconds=0
        )


def test_an_address_that_is_taken(free):
    with listening() as own, pytest.raises(InputError) as error:
        distribution.wait_for_workers(own, {"worker 1": free[0]})
    assert f"expected to listen at {own}, this worker's" in str(error.value)
    assert "Address already in use" in str(error.value)


@pytest.mark.parametrize("address", ["", "host", "host:", ":1", "host:http"])
def test_what_is_no_address(free, address):
    for own, other in ((address, free[0]), (free[0], address)):
        with pytest.raises(InputError, match=f"HOST:PORT .*: '{address}'$"):
            distribution.wait_for_workers(own, {"worker 1": other})


def test_a_port_that_cannot_be(free):
    with pytest.raises(InputError, match="expected to listen at here:70000"):
        distribution.wait_for_workers("here:70000", {"worker 1": free[0]})


def test_an_address_of_ipv6():
    assert distribution._parse_address("[::1]:22") == ("::1", 22)
