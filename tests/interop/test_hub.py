import builtins
import os
import pathlib
import re
import socket
import subprocess
import sys
import time

import pytest

from bert_tf.errors import InputError
from bert_tf.interop import hub, huggingface
from bert_tf.pretrained import open_pretrained
from tests.interop.fake_hub import COMMIT, Answer, refuses, serving
from tests.interop.huggingface_folders import (
    their_tensors,
    write_folder,
    write_json,
    write_shards,
)
from tests.interop.small_models import VOCAB, arrays, assert_same_weights

constants = pytest.importorskip("huggingface_hub.constants")

REFERENCE = "hf://owner/name"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache of its own, and nobody's token."""
    for name, value in (
        ("HF_HUB_CACHE", str(tmp_path / "cache")),
        ("HF_HUB_DISABLE_IMPLICIT_TOKEN", True),
        ("HF_HUB_OFFLINE", False),
    ):
        monkeypatch.setattr(constants, name, value)
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    return tmp_path / "cache"


@pytest.fixture
def repository(tmp_path):
    """The folder of a repository, with all that a published model has."""
    folder = tmp_path / "repository"
    write_folder(folder)
    (folder / "vocab.txt").write_text("\n".join(VOCAB))
    write_json(folder, "tokenizer_config.json", {"do_lower_case": True})
    write_json(folder, "added_tokens.json", {"[PAD]": 0})
    for name in ("pytorch_model.bin", "tf_model.h5", "README.md", "x.py"):
        (folder / name).write_bytes(b"not for us")
    for inner in ("onnx", "0_Transformer"):
        write_folder(folder / inner)
    return folder


@pytest.fixture
def endpoint(monkeypatch):
    """Sets what HF_ENDPOINT would, were it not read once and for all."""

    def set_to(url):
        template = url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "ENDPOINT", url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)

    return set_to


@pytest.fixture
def there(repository, cache, endpoint):
    """The Hub."""
    with serving(repository) as served:
        endpoint(served.url)
        yield served


def closed_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


@pytest.fixture
def unplugged(endpoint):
    """Call it, and the Hub cannot be reached any more."""
    return lambda: endpoint(f"http://127.0.0.1:{closed_port()}")


def refused(reference=REFERENCE):
    with pytest.raises(InputError) as caught:
        hub.download(reference)
    message = str(caught.value)
    assert "\n" not in message
    assert reference in message
    return message


NEEDED = {
    "added_tokens.json",
    "config.json",
    "model.safetensors",
    "tokenizer_config.json",
    "vocab.txt",
}


def test_downloads_what_it_reads_and_nothing_else(there, cache):
    folder = hub.download(REFERENCE)
    assert there.downloaded() == NEEDED
    assert set(os.listdir(folder)) == NEEDED
    assert pathlib.Path(folder).is_relative_to(cache)
    found = open_pretrained(REFERENCE)
    assert_same_weights(arrays("pretraining"), found.weights)
    assert (found.vocab, found.do_lower_case) == (VOCAB, True)


def test_downloads_shards(there, repository):
    (repository / "model.safetensors").unlink()
    write_shards(repository, their_tensors(), count=3)
    found = huggingface.read(hub.download(REFERENCE))
    assert_same_weights(arrays("pretraining"), found.weights)
    shards = {name for name in there.downloaded() if "-of-" in name}
    assert len(shards) == 3


@pytest.mark.parametrize("revision", ["main", "v1", COMMIT, "refs/pr/1"])
def test_takes_a_revision(there, revision):
    folder = hub.download(f"{REFERENCE}@{revision}")
    assert set(os.listdir(folder)) == NEEDED


@pytest.mark.parametrize("reference", [REFERENCE, f"{REFERENCE}@v1"])
def test_works_without_a_network_once_it_is_downloaded(
    there, unplugged, reference
):
    folder = hub.download(reference)
    there.asked.clear()
    assert hub.download(reference) == folder
    assert not there.downloaded()
    unplugged()
    assert hub.download(reference) == folder


def test_works_offline_by_wish(there, monkeypatch):
    folder = hub.download(REFERENCE)
    there.asked.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert hub.download(REFERENCE) == folder
    assert not there.asked


def test_uses_the_cache_while_the_hub_is_out_of_order(there):
    folder = hub.download(REFERENCE)
    there.answers["/api/"] = refuses(503)
    assert hub.download(REFERENCE) == folder


def test_says_within_seconds_that_there_is_no_network(cache, unplugged):
    unplugged()
    start = time.monotonic()
    assert "the Hub cannot be reached, and the cache" in refused()
    assert time.monotonic() - start < 5


def test_does_not_wait_for_a_hub_that_says_nothing(
    cache, endpoint, monkeypatch
):
    monkeypatch.setattr(hub, "_SECONDS_TO_ANSWER", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint(f"http://127.0.0.1:{silent.getsockname()[1]}")
        start = time.monotonic()
        assert "the Hub cannot be reached" in refused()
        assert time.monotonic() - start < 5


@pytest.mark.parametrize(
    ("text", "answer", "complaint"),
    [
        ("/api/", refuses(404, "RepoNotFound"), "no such repository, or it"),
        ("/api/", refuses(401, "RepoNotFound"), "no such repository, or it"),
        ("/api/", refuses(403, "GatedRepo"), "its owner lets in who has ask"),
        ("/resolve/", refuses(403, "GatedRepo"), "its owner lets in who has"),
        ("/api/", refuses(404, "RevisionNotFound"), "no such revision"),
        ("/api/", refuses(403), "403 Forbidden"),
        ("/api/", refuses(503), "the Hub cannot be reached"),
        ("/api/", Answer(200, {}, b"<html>Log in to the network"), "JSON"),
    ],
)
def test_says_why_it_gets_nothing(there, text, answer, complaint):
    there.answers[text] = answer
    assert complaint in refused()


def test_says_that_there_is_no_such_revision(there):
    message = refused(f"{REFERENCE}@v2")
    assert "the repository has no such revision" in message


def test_says_that_there_is_no_such_repository(there):
    assert "no such repository" in refused("hf://owner/other")


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("pytorch_model.bin", "to open one is to run what its author wrote"),
        (
            "pytorch_model.bin",
            'hf download owner/name --local-dir name && python -c .*" name/',
        ),
        ("tf_model.h5", "of transformers before 5"),
        ("README.md", "none of them weights"),
    ],
)
def test_downloads_nothing_where_there_is_nothing_to_read(
    there, repository, name, complaint
):
    for path in repository.iterdir():
        if path.is_file() and path.name not in (name, "config.json"):
            path.unlink()
    with pytest.raises(InputError, match=complaint) as caught:
        hub.download(REFERENCE)
    assert "\n" not in str(caught.value)
    assert not there.downloaded()


def test_a_file_that_the_hub_has_but_half(there, repository):
    path = "model.safetensors"
    content = (repository / path).read_bytes()
    headers = {"ETag": '"0"', "X-Repo-Commit": COMMIT}
    there.answers[path] = Answer(200, headers, content[:100])
    with pytest.raises(InputError, match="damaged, cut off or of another"):
        open_pretrained(REFERENCE)


@pytest.mark.parametrize(
    "reference",
    [
        "hf://",
        "hf://name",
        "hf://owner/name/file",
        "hf://owner/name@",
        "hf://owner/name@a@b",
        "hf://owner/na me",
        "hf://owner/../name",
        "hf://owner/name@../../main",
        "hf://öwner/name",
        "hf:/owner/name",
        "https://huggingface.co/owner/name",
    ],
)
def test_refuses_a_malformed_reference_without_a_word_to_the_hub(
    there, reference
):
    assert refused(reference).startswith("expected hf://OWNER/NAME or hf://")
    assert not there.asked


@pytest.mark.parametrize("name", ["o/n.git", "-o/n", "o/n--m", f"o/{'n' * 97}"])
def test_passes_on_what_the_hub_says_of_a_name(there, name):
    assert name.split("/")[1] in refused(f"hf://{name}")
    assert not there.asked


def test_says_what_to_install(monkeypatch):
    imported = builtins.__import__

    def without_hub(name, *arguments, **keywords):
        if name.startswith("huggingface_hub"):
            raise ModuleNotFoundError(f"No module named {name!r}")
        return imported(name, *arguments, **keywords)

    monkeypatch.setattr(builtins, "__import__", without_hub)
    with pytest.raises(InputError) as caught:
        hub.download(REFERENCE)
    assert re.search(
        r"pip install 'bert-tf\[huggingface\]'$", str(caught.value)
    )


def test_heeds_the_environment(repository, tmp_path):
    """HF_ENDPOINT and HF_HOME, which huggingface_hub reads as it starts."""
    code = "from bert_tf.interop import hub; print(hub.download('hf://owner/name'))"
    root = pathlib.Path(hub.__file__).parents[2]
    home = tmp_path / "home"
    with serving(repository) as served:
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=root,
            env={
                "PATH": os.environ["PATH"],
                "HF_ENDPOINT": served.url,
                "HF_HOME": str(home),
            },
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stderr
    assert set(os.listdir(done.stdout.strip())) == NEEDED
    assert pathlib.Path(done.stdout.strip()).is_relative_to(home)
