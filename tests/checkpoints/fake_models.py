"""A server of Google's published models on this machine."""

import contextlib
import io
import zipfile
from collections.abc import Iterator, Mapping

from tests.checkpoints.fake_hub import Answer, http_server


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

    def answer(path: str) -> Answer:
        models.asked += 1
        body = models.contents.get(path)
        return Answer(404 if body is None else 200, {}, body or b"")

    with http_server(answer, lambda: models.cut) as url:
        models = FakeModels(f"{url}/models")
        yield models
