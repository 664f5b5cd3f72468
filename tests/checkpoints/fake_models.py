"""A server of Google's published models on this machine."""

import contextlib
import io
import re
import threading
import zipfile
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def zip_of(members: Mapping[str, bytes]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as zipped:
        for name, data in members.items():
            zipped.writestr(name, data)
    return content.getvalue()


class FakeModels:
    """Files that support `Range: bytes=N-`.

    Attributes:
      url: The value of BERT_TF_MODELS_URL.
      contents: The files by their paths, such as `/DATE/NAME.zip`.
      asked: The value of `Range`, or None, of each request.
      cut: The number of bytes after which a connection is closed, if any.
      has_ranges: Whether `Range` is supported.
      status: The status of all answers; None for the usual one.
      may_answer: Answers wait for this event.
    """

    def __init__(self, url: str):
        self.url = url
        self.contents: dict[str, bytes] = {}
        self.asked: list[str | None] = []
        self.cut: int | None = None
        self.has_ranges = True
        self.status: int | None = None
        self.may_answer = threading.Event()
        self.may_answer.set()

    def answer(
        self, path: str, wanted: str | None
    ) -> tuple[int, dict[str, str], bytes]:
        """Returns the status, the headers and the body of an answer."""
        self.asked.append(wanted)
        self.may_answer.wait(10)
        if self.status or path not in self.contents:
            return self.status or 404, {}, b""
        content = self.contents[path]
        if not wanted or not self.has_ranges:
            return 200, {}, content
        start = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1])
        size = len(content)
        if start >= size:
            return 416, {"Content-Range": f"bytes */{size}"}, b""
        place = f"bytes {start}-{size - 1}/{size}"
        return 206, {"Content-Range": place}, content[start:]


@contextlib.contextmanager
def serving() -> Iterator[FakeModels]:
    """Serves models until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            status, headers, body = models.answer(
                self.path, self.headers["Range"]
            )
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: models.cut])

        def log_message(self, *arguments):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        models = FakeModels(f"http://127.0.0.1:{server.server_port}/models")
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield models
        finally:
            models.may_answer.set()
            server.shutdown()
            thread.join()
