"""A small Hugging Face Hub on this machine."""

import contextlib
import hashlib
import json
import pathlib
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REVISIONS = ("main", "v1", "refs%2Fpr%2F1", COMMIT)
API = "/api/models/owner/name"
FILES = f"/owner/name/resolve/{COMMIT}/"


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


def says(value: object) -> Answer:
    return Answer(200, {}, json.dumps(value).encode())


def digest_of(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


def refuses(status: int, code: str = "") -> Answer:
    return Answer(status, {"X-Error-Code": code}, b"")


class FakeHub:
    """One repository, `owner/name`, with the files of a folder."""

    def __init__(self, folder: pathlib.Path, url: str):
        self.folder = folder
        self.url = url  # The value of HF_ENDPOINT.
        # Answers to paths that contain a text, instead of the real ones.
        self.answers: dict[str, Answer] = {}
        self.asked: list[str] = []  # The paths of all requests.

    def answer(self, path: str) -> Answer:
        path = path.partition("?")[0]
        self.asked.append(path)
        for text, answer in self.answers.items():
            if text in path:
                return answer
        if path.startswith(FILES):
            return self._content(path.removeprefix(FILES))
        if path.startswith(f"{API}/tree/"):
            return says([self._entry(name) for name in self._names()])
        if path.startswith(API):
            revision = path.removeprefix(API).removeprefix("/revision/")
            return self._describe(revision or "main")
        return refuses(404, "RepoNotFound")

    def downloaded(self) -> set[str]:
        """The files that were asked for."""
        asked = [path for path in self.asked if path.startswith(FILES)]
        return {path.removeprefix(FILES) for path in asked}

    def _names(self) -> list[str]:
        paths = [path for path in self.folder.rglob("*") if path.is_file()]
        return sorted(p.relative_to(self.folder).as_posix() for p in paths)

    def _describe(self, revision: str) -> Answer:
        if revision not in REVISIONS:
            return refuses(404, "RevisionNotFound")
        siblings = [{"rfilename": name} for name in self._names()]
        return says({"id": "owner/name", "sha": COMMIT, "siblings": siblings})

    def _entry(self, name: str) -> dict:
        content = (self.folder / name).read_bytes()
        facts = {"oid": digest_of(content), "size": len(content)}
        return {"type": "file", "path": name, **facts}

    def _content(self, name: str) -> Answer:
        body = (self.folder / name).read_bytes()
        etag = f'"{digest_of(body)}"'
        return Answer(200, {"ETag": etag, "X-Repo-Commit": COMMIT}, body)


@contextlib.contextmanager
def http_server(
    answer: Callable[[str], Answer],
    cut: Callable[[], int | None] = lambda: None,
) -> Iterator[str]:
    """Yields the URL of a server that answers paths until the block ends.

    Bodies end after `cut()` bytes, as if the connection was lost.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            status, headers, body = answer(self.path)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body[: cut()])

        do_HEAD = do_GET

        def log_message(self, *arguments):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def serving(folder: pathlib.Path) -> Iterator[FakeHub]:
    """Serves a folder until the block ends."""
    with http_server(lambda path: hub.answer(path)) as url:
        hub = FakeHub(folder, url)
        yield hub
