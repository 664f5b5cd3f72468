"""Downloads from a server that is wrong, hostile or slow."""

import contextlib
import socket
import threading
import time

import pytest

from bert_tf.checkpoints import downloads
from tests.checkpoints.small_models import refused

BODY = bytes(range(256)) * 2
MOST_BYTES = 1000
LENGTH = f"Content-Length: {len(BODY)}"


def answer(*headers, status="200 OK", body=BODY):
    lines = [f"HTTP/1.1 {status}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


class Server:
    """Sends a raw answer to each connection and closes it.

    Attributes:
      url: The URL of a file.
      answers: The answers, the last of which is repeated.
      seconds: The time between two bytes of an answer's body, if any.
      asked: The requests.
    """

    def __init__(self):
        self._listening = socket.create_server(("127.0.0.1", 0))
        port = self._listening.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}/file.zip"
        self.answers = []
        self.seconds = 0
        self.asked = []
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self):
        while True:
            connection, _ = self._listening.accept()
            with connection, contextlib.suppress(ConnectionError):
                request = connection.recv(2**16)
                if not request:
                    return
                self.asked.append(request.decode())
                self._send(connection)

    def _send(self, connection):
        answers = self.answers
        content = answers.pop(0) if len(answers) > 1 else answers[0]
        if not self.seconds:
            connection.sendall(content)
            return
        head, _, body = content.partition(b"\r\n\r\n")
        connection.sendall(head + b"\r\n\r\n")
        for byte in body:
            time.sleep(self.seconds)
            connection.sendall(bytes([byte]))

    def close(self):
        socket.create_connection(self._listening.getsockname()).close()
        self._thread.join()
        self._listening.close()


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    served = Server()
    yield served
    served.close()


@pytest.fixture
def part(tmp_path):
    with open(tmp_path / "part", "a+b", buffering=0) as file:
        yield file


def content_of(part):
    part.seek(0)
    return part.read()


def fails(message, url, part):
    with refused(f"^Cannot download {url}: .*{message}.* Use a local file.$"):
        downloads.download(url, part, MOST_BYTES, "Use a local file.")


@pytest.mark.parametrize(
    "good", [answer(LENGTH), answer(), answer(LENGTH, body=BODY + b"more")]
)
def test_valid_answers_are_downloaded(server, part, good):
    server.answers = [good]
    downloads.download(server.url, part, MOST_BYTES, "")
    assert content_of(part) == BODY


def test_a_mirror_in_a_folder(part, tmp_path):
    (tmp_path / "file.zip").write_bytes(BODY)
    part.write(b"unfinished")
    url = f"file://{tmp_path}/file.zip"
    downloads.download(url, part, MOST_BYTES, "")
    assert content_of(part) == BODY
    (tmp_path / "file.zip").write_bytes(BODY * 2)
    fails("at most 1,000 bytes, found 1,024", url, part)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (answer("Content-Length: abc"), "a length of 'abc'"),
        (answer("Content-Length: -5"), "a length of '-5'"),
        (answer(f"Content-Length: {10**40}"), "a length of '1000"),
        (answer("Content-Length: 1001"), "at most 1,000 bytes, found 1,001"),
        (answer(body=BODY * 2), "at most 1,000 bytes, found more"),
        (answer("Content-Encoding: gzip"), "encodes the file as gzip"),
        (
            answer("Content-Range: bytes 5-9/10", status="206 Part"),
            "the range 'bytes 5-9/10' instead of bytes 0-",
        ),
        (answer(status="206 Part"), "the range None instead of bytes 0-"),
        (answer(status="503 \x1b[31m"), r"503 \[31m"),
        (b"", "closed connection without response"),
        (b"SSH-2.0-OpenSSH\r\n", "SSH-2.0-OpenSSH"),
        (b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 1000, "headers"),
    ],
)
def test_invalid_answers_are_refused(server, part, wrong, message):
    server.answers = [wrong]
    fails(message, server.url, part)
    assert len(server.asked) == 1
    assert content_of(part) == b""


@pytest.mark.parametrize("scheme", ["ftp", "file", "data", "gopher", ""])
def test_redirections_to_other_schemes_are_refused(
    server, part, scheme, tmp_path
):
    target = f"{scheme}://{tmp_path}/part"
    found = answer(f"Location: {target}", status="302 Found")
    server.answers = [found]
    fails("", server.url, part)
    assert len(server.asked) <= 11
    assert content_of(part) == b""


def test_redirections_are_followed(server, part):
    found = answer(f"Location: {server.url}2", LENGTH, status="302 Found")
    server.answers = [found, answer(LENGTH)]
    downloads.download(server.url, part, MOST_BYTES, "")
    assert content_of(part) == BODY
    server.answers = [found]
    part.truncate(0)
    fails("infinite loop", server.url, part)
    # HTTPS is never downgraded: an attacker in between could change the file.
    with pytest.raises(
        downloads._WrongAnswer, match="must be https; got 'http'"
    ):
        downloads._Redirections().redirect_request(
            downloads.urllib.request.Request("https://host/file"),
            *(None, 302, "Found", {}, "http://host/file"),
        )


@pytest.mark.parametrize(
    "url",
    [
        "http://[",
        "http://[::1",
        "data://x",
        "data:text/plain,hello",
        "nothing://here",
        "http://a b",
        "http://host:port",
        "http://host:99999999",
        "http://",
        "://",
        "http://127.0.0.1:9/\n",
    ],
)
def test_invalid_urls_are_errors(part, url):
    with refused("^Cannot download .* Use a local file.$"):
        downloads.download(url, part, MOST_BYTES, "Use a local file.")


def test_continues_only_with_the_missing_bytes(server, part):
    half = len(BODY) // 2
    rest = answer(
        f"Content-Range: bytes {half}-{len(BODY) - 1}/{len(BODY)}",
        f"Content-Length: {half}",
        status="206 Partial Content",
        body=BODY[half:],
    )
    server.answers = [answer(LENGTH, body=BODY[:half]), rest]
    downloads.download(server.url, part, MOST_BYTES, "")
    assert content_of(part) == BODY
    assert f"Range: bytes={half}-" in server.asked[1]
    part.truncate(half + 1)
    fails(f"instead of bytes {half + 1}-", server.url, part)
    assert content_of(part) == BODY[: half + 1]


def test_gives_up_after_several_connections_with_few_bytes(
    server, part, monkeypatch
):
    size = 7
    server.answers = [
        answer(
            f"Content-Range: bytes {start}-511/512",
            f"Content-Length: {len(BODY) - start}",
            status="206 Partial Content" if start else "200 OK",
            body=BODY[start : start + size],
        )
        for start in range(0, len(BODY), size)
    ]
    fails("closed too early. Rerun .* to resume", server.url, part)
    assert len(server.asked) == downloads._MOST_SHORT_ATTEMPTS
    assert content_of(part) == BODY[: 5 * size]
    # Connections that end after enough bytes may be as many as it takes.
    monkeypatch.setattr(downloads, "_LEAST_BYTES", size)
    downloads.download(server.url, part, MOST_BYTES, "")
    assert content_of(part) == BODY


def test_gives_up_if_bytes_arrive_slowly(server, part, monkeypatch):
    monkeypatch.setattr(downloads, "_TIMEOUT_SECONDS", 0.2)
    server.seconds = 0.01
    server.answers = [answer(LENGTH)]
    fails("only [0-9]+ bytes arrived in 0 seconds", server.url, part)
    assert len(server.asked) <= downloads._MOST_SHORT_ATTEMPTS
