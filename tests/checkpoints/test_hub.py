"""Models on the Hugging Face Hub, which a local server represents."""

import pathlib
import socket
import sys

import pytest

from bert_tf.checkpoints import hub
from bert_tf.checkpoints.pretrained import open_pretrained
from tests.checkpoints.fake_hub import COMMIT, Answer, refuses, serving
from tests.checkpoints.small_models import (
    VOCAB,
    arrays,
    assert_same_weights,
    refused,
    their_tensors,
    write_folder,
    write_json,
    write_shards,
)

constants = pytest.importorskip("huggingface_hub.constants")

REFERENCE = "hf://owner/name"
NOWHERE = "http://127.0.0.1:9"
POOL = "1_Pooling"
NEEDED = {
    f"{POOL}/config.json",
    "added_tokens.json",
    "bert_tf.json",
    "config.json",
    "model.safetensors",
    "modules.json",
    "tokenizer_config.json",
    "vocab.txt",
}


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
    write_json(folder, "bert_tf.json", {"doc_stride": 5})
    for name in ("pytorch_model.bin", "README.md", "x.py"):
        (folder / name).write_bytes(b"not for us")
    write_folder(folder / "onnx")
    modules = [("a.Transformer", ""), ("a.Pooling", POOL)]
    entries = [{"type": kind, "path": path} for kind, path in modules]
    write_json(folder, "modules.json", entries)
    (folder / POOL).mkdir()
    write_json(folder / POOL, "config.json", {"pooling_mode": "cls"})
    write_folder(folder / "2_Dense")
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


def fails(message, reference=REFERENCE):
    with refused(f"{reference}.*{message}"):
        hub.download(reference)


def files_in(folder):
    folder = pathlib.Path(folder)
    found = (x for x in folder.rglob("*") if not x.is_dir())
    return {x.relative_to(folder).as_posix() for x in found}


def test_downloads_only_the_files_that_it_reads(there, cache):
    folder = hub.download(REFERENCE)
    assert there.downloaded() == NEEDED
    assert files_in(folder) == NEEDED
    assert pathlib.Path(folder).is_relative_to(cache)
    found = open_pretrained(REFERENCE)
    assert_same_weights(arrays("pretraining"), found.weights)
    assert (found.vocab, found.do_lower_case) == (VOCAB, True)
    assert found.doc_stride == 5
    assert found.pooling == "cls"


def test_downloads_shards(there, repository):
    (repository / "model.safetensors").unlink()
    write_shards(repository, their_tensors(), count=3)
    found = open_pretrained(REFERENCE)
    assert_same_weights(arrays("pretraining"), found.weights)
    shards = {name for name in there.downloaded() if "-of-" in name}
    assert len(shards) == 3


@pytest.mark.parametrize("revision", ["", "@v1", f"@{COMMIT}", "@refs/pr/1"])
def test_needs_no_network_after_a_download(
    there, endpoint, monkeypatch, revision
):
    folder = hub.download(REFERENCE + revision)
    assert files_in(folder) == NEEDED
    there.asked.clear()
    assert hub.download(REFERENCE + revision) == folder
    assert not there.downloaded()
    there.answers["/api/"] = refuses(503)
    assert hub.download(REFERENCE + revision) == folder
    endpoint(NOWHERE)
    assert hub.download(REFERENCE + revision) == folder
    endpoint(there.url)
    there.asked.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert hub.download(REFERENCE + revision) == folder
    assert not there.asked


def test_reports_a_missing_or_silent_hub(cache, endpoint, monkeypatch):
    monkeypatch.setattr(hub, "_TIMEOUT_SECONDS", 0.2)
    endpoint(NOWHERE)
    fails("the Hub cannot be reached, and the cache")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint(f"http://127.0.0.1:{silent.getsockname()[1]}")
        fails("the Hub cannot be reached")


@pytest.mark.parametrize(
    ("text", "answer", "complaint"),
    [
        ("/api/", refuses(401, "RepoNotFound"), "Repository Not Found"),
        ("/resolve/", refuses(403, "GatedRepo"), "gated repo"),
        ("/api/", refuses(403), "403 Forbidden"),
        ("/api/", refuses(503), "the Hub cannot be reached"),
        (
            "/api/",
            Answer(200, {}, b"<html>Log in to the network"),
            "Check the name and the network",
        ),
    ],
)
def test_reports_why_a_download_failed(there, text, answer, complaint):
    there.answers[text] = answer
    fails(complaint)


def test_unknown_revisions_and_repositories(there):
    fails("Revision Not Found", f"{REFERENCE}@v2")
    fails("Repository Not Found", "hf://owner/other")


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("pytorch_model.bin", "owner/name has no .* a pickle"),
        ("README.md", "among the 2 files at its root"),
    ],
)
def test_downloads_nothing_without_safetensors(
    there, repository, name, complaint
):
    for path in repository.iterdir():
        if path.is_file() and path.name not in (name, "config.json"):
            path.unlink()
    with refused(complaint):
        hub.download(REFERENCE)
    assert not there.downloaded()


@pytest.mark.parametrize(
    "reference",
    [
        "hf://owner/name/file",
        "hf://owner/name@a@b",
        "hf://owner/name@../../main",
        "https://huggingface.co/owner/name",
    ],
)
def test_refuses_a_malformed_reference_without_a_request(there, reference):
    with refused(f"hf://OWNER/NAME or hf://OWNER/NAME@REV.*{reference}"):
        hub.download(reference)
    # huggingface_hub itself refuses this name.
    fails("n.git", "hf://owner/n.git")
    assert not there.asked


def test_suggests_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    fails(r"pip install '\.\[huggingface\]'$")
