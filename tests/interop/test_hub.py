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
    """An empty cache, and no token."""
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
    """The folder of a repository with all files of a published model."""
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
    """Sets HF_ENDPOINT, which huggingface_hub reads at import."""

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
    """A function after which the Hub cannot be reached."""
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
def test_downloads_a_revision(there, revision):
    folder = hub.download(f"{REFERENCE}@{revision}")
    assert set(os.listdir(folder)) == NEEDED


@pytest.mark.parametrize("reference", [REFERENCE, f"{REFERENCE}@v1"])
def test_works_without_a_network_after_a_download(there, unplugged, reference):
    folder = hub.download(reference)
    there.asked.clear()
    assert hub.download(reference) == folder
    assert not there.downloaded()
    unplugged()
    assert hub.download(reference) == folder


def test_asks_nothing_if_offline(there, monkeypatch):
    folder = hub.download(REFERENCE)
    there.asked.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert hub.download(REFERENCE) == folder
    assert not there.asked


def test_uses_the_cache_if_the_hub_fails(there):
    folder = hub.download(REFERENCE)
    there.answers["/api/"] = refuses(503)
    assert hub.download(REFERENCE) == folder


def test_reports_a_missing_network_within_seconds(cache, unplugged):
    unplugged()
    start = time.monotonic()
    assert "the Hub cannot be reached and the cache" in refused()
    assert time.monotonic() - start < 5


def test_does_not_wait_for_a_silent_hub(cache, endpoint, monkeypatch):
    monkeypatch.setattr(hub, "_TIMEOUT_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint(f"http://127.0.0.1:{silent.getsockname()[1]}")
        start = time.monotonic()
        assert "the Hub cannot be reached" in refused()
        assert time.monotonic() - start < 5


@pytest.mark.parametrize(
    ("text", "answer", "complaint"),
    [
        ("/api/", refuses(404, "RepoNotFound"), "does not exist or is private"),
        ("/api/", refuses(401, "RepoNotFound"), "does not exist or is private"),
        ("/api/", refuses(403, "GatedRepo"), "the model is gated"),
        ("/resolve/", refuses(403, "GatedRepo"), "the model is gated"),
        ("/api/", refuses(404, "RevisionNotFound"), "no such revision"),
        ("/api/", refuses(403), "403 Forbidden"),
        ("/api/", refuses(503), "the Hub cannot be reached"),
        ("/api/", Answer(200, {}, b"<html>Log in to the network"), "JSON"),
    ],
)
def test_reports_why_a_download_failed(there, text, answer, complaint):
    there.answers[text] = answer
    assert complaint in refused()


def test_unknown_revisions_and_repositories(there):
    assert "no such revision" in refused(f"{REFERENCE}@v2")
    assert "does not exist" in refused("hf://owner/other")


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        (
            "pytorch_model.bin",
            "a pickle, and opening one runs code of its author",
        ),
        (
            "pytorch_model.bin",
            'hf download owner/name --local-dir name && python -c .*" name/',
        ),
        ("tf_model.h5", "the TensorFlow format"),
        ("README.md", "none of its 2 files is one"),
    ],
)
def test_downloads_nothing_without_safetensors(
    there, repository, name, complaint
):
    for path in repository.iterdir():
        if path.is_file() and path.name not in (name, "config.json"):
            path.unlink()
    with pytest.raises(InputError, match=complaint) as caught:
        hub.download(REFERENCE)
    assert "\n" not in str(caught.value)
    assert not there.downloaded()


def test_a_truncated_file(there, repository):
    path = "model.safetensors"
    content = (repository / path).read_bytes()
    headers = {"ETag": '"0"', "X-Repo-Commit": COMMIT}
    there.answers[path] = Answer(200, headers, content[:100])
    with pytest.raises(InputError, match="damaged or cut off"):
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
def test_refuses_a_malformed_reference_without_asking(there, reference):
    assert "must be hf://OWNER/NAME or hf://OWNER/NAME@REV" in refused(
        reference
    )
    assert not there.asked


@pytest.mark.parametrize("name", ["o/n.git", "-o/n", "o/n--m", f"o/{'n' * 97}"])
def test_passes_on_what_the_library_says_about_a_name(there, name):
    assert name.split("/")[1] in refused(f"hf://{name}")
    assert not there.asked


def test_suggests_what_to_install(monkeypatch):
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


def test_uses_environment_variables(repository, tmp_path):
    """HF_ENDPOINT and HF_HOME, which huggingface_hub reads at import."""
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
