"""A server of Google's published models on this machine."""

import contextlib
import io
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
    """Files on a web server.

    Attributes:
      url: The value of BERT_TF_MODELS_URL.
      contents: The files by their paths, such as `/DATE/NAME.zip`.
      asked: The number of requests.
      cut: The number of bytes after which a connection is closed, if any.
    """

    def __init__(self, url: str):
        self.url = url
        self.contents: dict[str, bytes] = {}
        self.asked = 0
        self.cut: int | None = None


@contextlib.contextmanager
def serving() -> Iterator[FakeModels]:
    """Serves models until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            models.asked += 1
            body = models.contents.get(self.path)
            self.send_response(404 if body is None else 200)
            body = body or b""
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
            server.shutdown()
            thread.join()
