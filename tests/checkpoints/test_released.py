"""Google's models by name, which a local server provides."""

import hashlib
import io
import os
import pathlib
import re
import sys
import threading
import zipfile

import in_process
import numpy as np
import pytest
import small_release
import tensorflow as tf

import bert_tf.checkpoints
from bert_tf.checkpoints import released
from bert_tf.checkpoints.pretrained import (
    load_checkpoint,
    load_config,
    open_pretrained,
)
from bert_tf.checkpoints.released import FILES, MODELS
from bert_tf.jobs import output_folder
from bert_tf.kinds.classification.job import ClassifierConfig
from bert_tf.modeling.heads import BertPretrainer
from bert_tf.modeling.variables import checkpoint_variables
from tests.checkpoints.fake_hub import Answer, http_server
from tests.checkpoints.small_models import refused

NAME = "uncased_L-2_H-128_A-2"
MODEL = f"2020_02_20/{NAME}"
PATH = f"/models/{MODEL}.zip"
BASE = "uncased_L-12_H-768_A-12"
NOWHERE = "http://127.0.0.1:9/models"
CONTENTS = {name: (name * 100).encode() + bytes(range(256)) for name in FILES}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty cache; all tests run in an empty folder, without proxies."""
    monkeypatch.setenv("BERT_TF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("BERT_TF_MODELS_URL", NOWHERE)
    monkeypatch.setenv("no_proxy", "*")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "cache"


def zip_of(members):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as zipped:
        for name, data in members.items():
            zipped.writestr(name, data)
    return content.getvalue()


class Models:
    """Files on a web server, and what was asked of it."""

    def __init__(self):
        self.contents = {PATH: zip_of(CONTENTS)}
        self.asked = 0
        self.cut = None  # Bytes after which a connection is closed.

    def answer(self, path):
        self.asked += 1
        body = self.contents.get(path)
        return Answer(404 if body is None else 200, {}, body or b"")


@pytest.fixture
def server(monkeypatch):
    """A server with one model, whose checksums are not known."""
    models = Models()
    with http_server(models.answer, lambda: models.cut) as url:
        monkeypatch.setenv("BERT_TF_MODELS_URL", f"{url}/models")
        yield models


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    """The zip of a model that TensorFlow can read, and its weights."""
    folder = tmp_path_factory.mktemp("release")
    model = small_release.write(
        folder, BertPretrainer, small_release.config_of()
    )
    return zip_of(contents_of(folder)), checkpoint_variables(model)


@pytest.fixture
def readable(server, release):
    """Serves the release under the name."""
    server.contents[PATH], variables = release
    return variables


def contents_of(folder):
    return {p.name: p.read_bytes() for p in pathlib.Path(folder).iterdir()}


def fails(message, name=NAME):
    with refused(message):
        released.download(name)


def left_in(cache):
    """Returns the names of the files and folders next to the model."""
    return {path.name for path in cache.glob("*/*")}


def test_there_are_33_models_and_one_name_has_two():
    assert len({*MODELS.values()}) == 33
    assert len(MODELS) == 2 * 33 - 1
    assert MODELS[BASE] == f"2018_10_18/{BASE}"
    assert MODELS[f"2020_02_20/{BASE}"] == f"2020_02_20/{BASE}"
    assert {*released.SHA256} < {*MODELS.values()}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"BERT_TF_CACHE": "~/a", "XDG_CACHE_HOME": "/x"}, "/h/a"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/bert_tf"),
        ({"BERT_TF_CACHE": ""}, "/h/.cache/bert_tf"),
    ],
)
def test_place_of_the_cache(monkeypatch, variables, expected):
    monkeypatch.delenv("BERT_TF_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    for name, value in {"HOME": "/h", **variables}.items():
        monkeypatch.setenv(name, value)
    assert released._cache() == expected


def test_every_function_that_takes_a_checkpoint_takes_a_name(server, readable):
    found = open_pretrained(NAME).weights
    assert {*found.shapes} == {*readable}
    for name, variable in readable.items():
        np.testing.assert_array_equal(found[name], variable)
    assert load_config(NAME) == small_release.config_of()
    model = BertPretrainer(small_release.config_of())
    report = load_checkpoint(model, NAME)
    assert {*report.filled} == {*readable}
    model = BertPretrainer.from_pretrained(NAME)
    assert model.config == small_release.config_of()
    assert bert_tf.BertTokenizer.from_pretrained(NAME).do_lower_case is True
    assert server.asked == 1


def test_a_local_path_takes_precedence(readable):
    pathlib.Path(NAME).mkdir()
    with refused(f"No checkpoint found in {NAME}"):
        open_pretrained(NAME)
    pathlib.Path(NAME).rmdir()
    # A prefix that has the name of a model.
    for path in pathlib.Path(released.download(MODEL)).iterdir():
        prefix = path.name.replace("bert_model.ckpt", NAME)
        pathlib.Path(prefix).write_bytes(path.read_bytes())
    assert open_pretrained(NAME).path == NAME


@pytest.mark.parametrize(
    ("path", "suggestion"),
    [
        ("uncased_L-2_H-128_A-4", f" Did you mean '{NAME}'?"),
        (f"{BASE}/bert_model.ckpt", f" Did you mean '{BASE}'?"),
        (f"2020_02_21/{BASE}", f" Did you mean '2020_02_20/{BASE}'?"),
        (f"/nowhere/{NAME}", ""),
        ("out/model.ckpt-10", ""),
    ],
)
def test_other_paths_are_not_downloaded(server, path, suggestion):
    end = re.escape(f"such as {BASE}.{suggestion}")
    with refused(f"^{re.escape(path)}: there is no such .*{end}$"):
        open_pretrained(path)
    assert not server.asked


def test_nothing_is_downloaded_without_tensorflow(server, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    monkeypatch.delitem(sys.modules, "bert_tf.checkpoints.tf1", raising=False)
    monkeypatch.delattr(bert_tf.checkpoints, "tf1", raising=False)
    with refused(f"{NAME}: a TF1 checkpoint needs the package tensorflow"):
        open_pretrained(NAME)
    assert not server.asked


def test_scripts_accept_the_names(readable, capsys):
    with in_process.script("fill_mask", ["init_checkpoint"]) as launch:
        assert launch(["--text=a [MASK]", f"--init_checkpoint={NAME}"]) == 0
        assert capsys.readouterr().out.startswith("a [MASK]\n  [MASK] 1: ")


def test_a_name_is_not_a_path_in_the_output_folder(readable):
    """`--output_dir=.` would contain the folder of this name."""
    config = ClassifierConfig(
        task_name="cola", do_train=True, output_dir=".", init_checkpoint=NAME
    ).with_fallbacks()
    with output_folder.claimed(config, tf.distribute.get_strategy(), {}, []):
        pass
    assert os.listdir() == [output_folder.FACTS]


@pytest.mark.parametrize("inside", ["", "other/"])
def test_extracts_what_a_model_needs(server, cache, inside):
    """The files are at the top of the zip or in a folder."""
    members = {f"{inside}{name}": data for name, data in CONTENTS.items()}
    others = {f"{inside}bert_model.ckpt.meta": b"graph", "README": b"hello"}
    server.contents[PATH] = zip_of({**members, **others})
    folder = released.download(NAME)
    assert folder == str(cache / MODEL)
    assert contents_of(folder) == CONTENTS
    assert left_in(cache) == {NAME}


def test_the_cache_needs_no_server(server, capsys):
    folder = released.download(NAME)
    # A program's answers are not mixed with the progress.
    assert not capsys.readouterr().out
    assert released.download(NAME) == released.download(MODEL) == folder
    assert server.asked == 1


def test_a_mirror_in_a_folder(tmp_path, monkeypatch):
    path = tmp_path / "mirror" / f"{MODEL}.zip"
    path.parent.mkdir(parents=True)
    path.write_bytes(zip_of(CONTENTS))
    monkeypatch.setenv("BERT_TF_MODELS_URL", f"file://{tmp_path}/mirror/")
    assert contents_of(released.download(NAME)) == CONTENTS


def test_a_name_that_was_published_twice(server):
    for date in ("2018_10_18", "2020_02_20"):
        members = {**CONTENTS, "vocab.txt": date.encode()}
        server.contents[f"/models/{date}/{BASE}.zip"] = zip_of(members)
    later = released.download(f"2020_02_20/{BASE}")
    assert contents_of(later)["vocab.txt"] == b"2020_02_20"
    fails("/2018_10_18/.* the SHA-256 of bert_config.json is", BASE)


def test_an_interrupted_download_leaves_nothing(server, cache):
    server.cut = len(server.contents[PATH]) // 3
    fails(f"^Cannot get {NAME} from .*retrieval incomplete")
    assert not left_in(cache)
    server.cut = None
    assert contents_of(released.download(NAME)) == CONTENTS


def test_several_processes_may_download_the_same_model(server):
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(released.download(NAME)))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3
    assert len({*found}) == 1
    assert contents_of(found[0]) == CONTENTS


DAMAGED = bytearray(zip_of(CONTENTS))
DAMAGED[DAMAGED.index(FILES[2].encode()) + 40] ^= 1
REFUSED = [
    (b"<html>Log in to the network</html>", "File is not a zip file"),
    (bytes(DAMAGED), "Bad CRC-32"),
    (zip_of({}), "the zip has no bert_config.json"),
    (None, "URL fetch failure on .* 404"),
]


@pytest.mark.parametrize(("content", "message"), REFUSED)
def test_wrong_zips_do_not_enter_the_cache(server, cache, content, message):
    good = server.contents.pop(PATH)
    if content is not None:
        server.contents[PATH] = content
    advice = "Set BERT_TF_MODELS_URL to a mirror or BERT_TF_CACHE to a writable"
    fails(f"^Cannot get {NAME} from .*/{MODEL}.zip: {message}.*{advice}")
    assert not left_in(cache)
    server.contents[PATH] = good
    assert contents_of(released.download(NAME)) == CONTENTS


def test_known_checksums(server, monkeypatch):
    digests = [hashlib.sha256(CONTENTS[name]).hexdigest() for name in FILES]
    known = {MODEL: (*digests[:3], "0" * 64)}
    monkeypatch.setattr(released, "SHA256", known)
    fails(f"the SHA-256 of {FILES[3]} is {digests[3]} instead of {'0' * 64}")
    known[MODEL] = tuple(digests)
    assert contents_of(released.download(NAME)) == CONTENTS


def test_members_cannot_leave_the_folder(server, cache):
    outside = {
        f"{start}evil.txt": b"evil" for start in ("../", "../../", "/", "a/../")
    }
    moved = {f"../../{name}": data for name, data in CONTENTS.items()}
    server.contents[PATH] = zip_of({**moved, **outside})
    assert contents_of(released.download(NAME)) == CONTENTS
    found = [path.name for path in cache.parent.rglob("*.txt")]
    assert found == ["vocab.txt"]


def test_a_cache_that_cannot_be_written(server, cache):
    cache.write_text("a file")
    fails("Cannot write .* or BERT_TF_CACHE to a writable folder")
