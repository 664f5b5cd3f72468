"""Google's models by name, which a local server provides."""

import hashlib
import io
import os
import pathlib
import re
import resource
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
import zipfile

import bert_tf.interop
import in_process
import numpy as np
import pytest
import small_release
import tensorflow as tf
from checkout import ROOT

from bert_tf.checkpoints import released, released_models
from bert_tf.checkpoints.pretrained import (
    load_checkpoint,
    load_config,
    open_pretrained,
)
from bert_tf.checkpoints.released_models import FILES, MODELS
from bert_tf.jobs import output_folder
from bert_tf.kinds.classification.job import ClassifierConfig
from bert_tf.modeling.heads import BertPretrainer
from bert_tf.modeling.variables import checkpoint_variables
from tests.checkpoints.fake_models import serving, zip_of
from tests.checkpoints.small_models import refused

NAME = "uncased_L-2_H-128_A-2"
MODEL = f"2020_02_20/{NAME}"
PATH = f"/models/{MODEL}.zip"
BASE = "uncased_L-12_H-768_A-12"
CONTENTS = {name: (name * 100).encode() + bytes(range(256)) for name in FILES}
VOCAB = "".join(f"{word}\n" for word in small_release.WORDS).encode()
CONFIG = small_release.config_of().to_json_string().encode()
RERUN = "Rerun the same command to download it again"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty cache; all tests run in an empty folder, without proxies."""
    monkeypatch.setenv("BERT_TF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("BERT_TF_MODELS_URL", "http://127.0.0.1:9/models")
    monkeypatch.setenv("no_proxy", "*")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "cache"


@pytest.fixture
def server(monkeypatch):
    """A server with one model, whose checksums are not known."""
    with serving() as models:
        models.contents[PATH] = zip_of(CONTENTS)
        monkeypatch.setenv("BERT_TF_MODELS_URL", models.url)
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


def download(name):
    """Downloads files that only have the names of a model's."""
    return released.download(name, lambda folder: None)


@pytest.fixture
def unzipped(release):
    """The files of the release."""
    with zipfile.ZipFile(io.BytesIO(release[0])) as zipped:
        return {name: zipped.read(name) for name in zipped.namelist()}


def contents_of(folder):
    return {p.name: p.read_bytes() for p in pathlib.Path(folder).iterdir()}


def fails(message, name=NAME):
    with refused(message):
        download(name)


def left_in(cache):
    """Returns the names of the files and folders next to the model."""
    return {path.name for path in cache.glob("*/*")}


# Names


def test_there_are_33_models_and_one_name_has_two():
    assert len({*MODELS.values()}) == 33
    assert len(MODELS) == 2 * 33 - 1
    assert MODELS[BASE] == f"2018_10_18/{BASE}"
    assert MODELS[f"2020_02_20/{BASE}"] == f"2020_02_20/{BASE}"
    known = [
        model for model in MODELS if released_models.known_checksums(model)
    ]
    assert len(known) == 7
    assert {*known} < {*MODELS.values()}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"BERT_TF_CACHE": "a", "XDG_CACHE_HOME": "/x"}, "HERE/a"),
        ({"BERT_TF_CACHE": "~/a", "HOME": "/home/me"}, "/home/me/a"),
        ({"XDG_CACHE_HOME": "/x", "HOME": "/home/me"}, "/x/bert_tf"),
        ({"HOME": "/home/me"}, "/home/me/.cache/bert_tf"),
        ({"BERT_TF_CACHE": "", "HOME": "/h"}, "/h/.cache/bert_tf"),
    ],
)
def test_place_of_the_cache(monkeypatch, variables, expected):
    for name in ("BERT_TF_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert released._cache() == expected.replace("HERE", os.getcwd())


def test_invalid_environment_variables_are_errors(monkeypatch):
    monkeypatch.setenv("BERT_TF_CACHE", "gs://bucket/cache")
    fails("BERT_TF_CACHE must be a local folder; got 'gs://bucket/cache'")
    monkeypatch.delenv("BERT_TF_CACHE")
    monkeypatch.setenv("BERT_TF_MODELS_URL", "mirror/models")
    fails("BERT_TF_MODELS_URL must be a URL such as https://storage")


# Opening checkpoints


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
    assert server.asked == [None]


def test_a_local_path_takes_precedence(server, readable, tmp_path):
    pathlib.Path(NAME).mkdir()
    with refused(f"No checkpoint found in {NAME}"):
        open_pretrained(NAME)
    pathlib.Path(NAME).rmdir()
    folder = download(MODEL)
    for name in (NAME, MODEL):
        here = pathlib.Path(name)
        here.parent.mkdir(exist_ok=True)
        here.symlink_to(folder)
        assert open_pretrained(name).path == f"{name}/bert_model.ckpt"
        here.unlink()
    # A prefix that has the name of a model.
    for path in pathlib.Path(folder).iterdir():
        prefix = path.name.replace("bert_model.ckpt", NAME)
        pathlib.Path(prefix).write_bytes(path.read_bytes())
    assert open_pretrained(NAME).path == NAME


@pytest.mark.parametrize(
    ("path", "suggestion"),
    [
        ("uncased_L-2_H-128_A-4", f" Did you mean '{NAME}'?"),
        (NAME.lower(), f" Did you mean '{NAME}'?"),
        (f"{NAME}/", f" Did you mean '{NAME}'?"),
        (f"{BASE}/bert_model.ckpt", f" Did you mean '{BASE}'?"),
        (f"2020_02_21/{BASE}", f" Did you mean '2020_02_20/{BASE}'?"),
        (f"./{NAME}", ""),
        (f"/nowhere/{NAME}", ""),
        ("out/model.ckpt-10", ""),
        ("nowhere", ""),
    ],
)
def test_other_paths_are_not_downloaded(server, path, suggestion):
    end = re.escape(f"such as {BASE}.{suggestion}")
    with refused(f"^{re.escape(path)}: there is no such .*{end}$"):
        open_pretrained(path)
    assert not server.asked


def test_nothing_is_downloaded_without_tensorflow(server, monkeypatch):
    monkeypatch.setitem(sys.modules, "bert_tf.checkpoints.google", None)
    monkeypatch.delattr(bert_tf.interop, "google", raising=False)
    with refused(f"{NAME}: reading a TF1 checkpoint needs TensorFlow"):
        open_pretrained(NAME)
    assert not server.asked


@pytest.mark.parametrize(
    ("name", "is_uncased"),
    [
        (BASE, True),
        (f"2020_02_20/{BASE}", True),
        ("cased_L-12_H-768_A-12", False),
        ("multi_cased_L-12_H-768_A-12", False),
        ("multilingual_L-12_H-768_A-12", True),
        ("chinese_L-12_H-768_A-12", True),
        ("wwm_cased_L-24_H-1024_A-16", False),
    ],
)
def test_the_casing_of_a_name(server, release, monkeypatch, name, is_uncased):
    monkeypatch.setattr(released_models, "_SHA256", {})
    server.contents[f"/models/{MODELS[name]}.zip"] = release[0]
    assert open_pretrained(name).do_lower_case is is_uncased


def test_scripts_accept_the_names(readable, capsys):
    with in_process.script("fill_mask", ["init_checkpoint"]) as launch:
        words = ["--text=a [MASK]", f"--init_checkpoint={NAME}"]
        assert launch(words) == 0
        assert capsys.readouterr().out.startswith("a [MASK]\n  [MASK] 1: ")
        words[1] += "0"
        assert launch(words) == 1
        error = in_process.the_error(capsys, "fill_mask")
    assert error.endswith(f"Did you mean '{NAME}'?")


def test_a_name_is_not_a_path_in_the_output_folder(readable):
    """`--output_dir=.` would contain the folder of this name."""
    config = ClassifierConfig(
        task_name="cola", do_train=True, output_dir=".", init_checkpoint=NAME
    ).with_fallbacks()
    with output_folder.claimed(config, tf.distribute.get_strategy(), {}, []):
        pass
    assert os.listdir() == [output_folder.FACTS]


# Downloads


@pytest.mark.parametrize("inside", ["", f"{NAME}/", "other/"])
def test_extracts_what_a_model_needs(server, cache, inside):
    """The files are at the top of the zip or in a folder."""
    members = {f"{inside}{name}": data for name, data in CONTENTS.items()}
    others = {f"{inside}bert_model.ckpt.meta": b"graph", "README": b"hello"}
    server.contents[PATH] = zip_of({**members, **others})
    folder = download(NAME)
    assert folder == str(cache / MODEL)
    assert contents_of(folder) == CONTENTS
    assert left_in(cache) == {NAME, f"{NAME}.sha256"}
    done = subprocess.run(
        ["sha256sum", "-c", f"{NAME}.sha256"], cwd=cache / "2020_02_20"
    )
    assert done.returncode == 0


def test_the_cache_needs_no_server_and_no_write(server, cache, monkeypatch):
    folder = download(NAME)
    monkeypatch.setenv("BERT_TF_MODELS_URL", "http://127.0.0.1:9/models")
    monkeypatch.setattr(released, "_locked", None)
    assert download(NAME) == download(MODEL) == folder
    assert server.asked == [None]


def test_a_name_that_was_published_twice(server):
    for date in ("2018_10_18", "2020_02_20"):
        members = {**CONTENTS, "vocab.txt": date.encode()}
        server.contents[f"/models/{date}/{BASE}.zip"] = zip_of(members)
    later = download(f"2020_02_20/{BASE}")
    assert contents_of(later)["vocab.txt"] == b"2020_02_20"
    fails("/2018_10_18/.* the SHA-256 of bert_config.json", BASE)


@pytest.mark.parametrize("has_ranges", [True, False])
def test_resumes_an_interrupted_download(server, has_ranges):
    """Several interruptions in one run, and one that ends a run."""
    size = len(server.contents[PATH])
    server.cut = size // 3
    server.has_ranges = has_ranges
    if not has_ranges:
        fails(r"the connection was closed too early\. Rerun .* to resume")
        assert server.asked == [None, f"bytes={size // 3}-"]
        server.cut = None
    assert contents_of(download(NAME)) == CONTENTS
    if has_ranges:
        thirds = [size // 3 * n for n in range(1, 4)]
        assert server.asked == [None, *(f"bytes={n}-" for n in thirds)]


def test_resumes_after_the_process_was_killed(server, cache):
    server.cut = 100
    program = subprocess.Popen(
        [
            *(sys.executable, "-c"),
            "import os, signal\n"
            "from bert_tf.checkpoints import downloads, released\n"
            "write = downloads._write\n"
            "def write_and_die(*arguments):\n"
            "    write(*arguments)\n"
            "    os.kill(os.getpid(), signal.SIGKILL)\n"
            "downloads._write = write_and_die\n"
            f"released.download('{NAME}', print)",
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert program.wait() == -signal.SIGKILL
    assert left_in(cache) == {f"{NAME}.zip.part"}
    server.cut = None
    assert contents_of(download(NAME)) == CONTENTS
    assert server.asked == [None, "bytes=100-"]


def test_a_complete_download_is_only_extracted(server, cache):
    (cache / "2020_02_20").mkdir(parents=True)
    (cache / f"{MODEL}.zip.part").write_bytes(server.contents[PATH])
    assert contents_of(download(NAME)) == CONTENTS


def test_one_process_downloads_and_the_others_wait(server, monkeypatch):
    server.may_answer.clear()
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(download(NAME)))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    while not server.asked:
        time.sleep(0.01)
    time.sleep(0.05)
    server.may_answer.set()
    for thread in threads:
        thread.join()
    assert len(found) == 3
    assert len({*found}) == 1
    assert server.asked == [None]


def test_file_systems_without_locks(server, monkeypatch):
    def flock(*_):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(released.fcntl, "flock", flock)
    assert contents_of(download(NAME)) == CONTENTS


def test_extracts_a_zip_that_the_user_put_into_the_cache(cache):
    path = cache / f"{MODEL}.zip"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"not a zip")
    fails(f"{path}: the zip is damaged: .* Remove or replace the file")
    path.write_bytes(zip_of(CONTENTS))
    assert contents_of(download(NAME)) == CONTENTS
    assert left_in(cache) == {NAME, f"{NAME}.sha256", f"{NAME}.zip"}


# What goes wrong


def test_a_missing_network_is_reported(cache, monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setenv("BERT_TF_MODELS_URL", url)
        fails(
            f"Cannot download {url}/{MODEL}.zip: Connection refused. Copy the "
            f"file from another machine to {cache}/{MODEL}.zip, set BERT_TF_M"
        )
    monkeypatch.setenv("BERT_TF_MODELS_URL", "http://no.such.host.invalid")
    monkeypatch.setattr(
        socket,
        "getaddrinfo",
        lambda *_, **__: fail(socket.gaierror(-2, "Name")),
    )
    fails("invalid/.*: Name. Copy")


def fail(error):
    raise error


def test_a_server_that_does_not_answer(server, monkeypatch):
    monkeypatch.setattr(released.downloads, "_TIMEOUT_SECONDS", 0.1)
    server.may_answer.clear()
    fails("timed out. Copy the file from another machine")


@pytest.mark.parametrize("status", [403, 404, 503])
def test_refusals_of_the_server(server, status):
    server.status = status
    fails(f"{MODEL}.zip: {status} .* set BERT_TF_MODELS_URL to a mirror")


def test_wrong_url(monkeypatch):
    for url in ("nothing://here", "http://a b", "http://host:port"):
        monkeypatch.setenv("BERT_TF_MODELS_URL", url)
        fails(f"Cannot download {url}")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"<html>Log in to the network</html>", "the zip is damaged"),
        (b"", "the zip is damaged"),
        (zip_of(CONTENTS)[:-30], "the zip is damaged"),
        (zip_of({}), "expected one bert_config.json in the zip, found 0"),
        (
            zip_of({**CONTENTS, f"a/{FILES[1]}": b"again"}),
            "expected one vocab.txt in the zip, found 2",
        ),
    ],
)
def test_wrong_zips_are_downloaded_again(server, cache, content, message):
    good = server.contents[PATH]
    server.contents[PATH] = content
    fails(f"{MODEL}.zip: {message}.*{RERUN}")
    assert left_in(cache) == {f"{NAME}.zip.part"}
    server.contents[PATH] = good
    assert contents_of(download(NAME)) == CONTENTS


def test_wrong_bytes_in_the_zip(server):
    content = bytearray(server.contents[PATH])
    content[content.index(FILES[2].encode()) + 40] ^= 1
    server.contents[PATH] = bytes(content)
    fails("the zip is damaged")


def test_known_checksums(server, monkeypatch):
    digests = [hashlib.sha256(CONTENTS[name]).hexdigest() for name in FILES]
    known = {MODEL: (*digests[:3], "0" * 64)}
    monkeypatch.setattr(released_models, "_SHA256", known)
    fails(
        f"{MODEL}.zip: the SHA-256 of {FILES[3]} is {digests[3]}, but bert_tf "
        f"has {'0' * 64}. {RERUN}"
    )
    known[MODEL] = tuple(digests)
    assert contents_of(download(NAME)) == CONTENTS


def test_later_downloads_are_compared_with_the_first(server, cache):
    folder = pathlib.Path(download(NAME))
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    changed = {**CONTENTS, "vocab.txt": b"changed"}
    server.contents[PATH] = zip_of(changed)
    fails(f"the SHA-256 of vocab.txt is .*, but {folder}.sha256 has")
    assert not folder.exists()
    pathlib.Path(f"{folder}.sha256").unlink()
    assert contents_of(download(NAME)) == changed


def test_members_cannot_leave_the_folder(server, cache):
    outside = {
        f"{start}evil.txt": b"evil" for start in ("../", "../../", "/", "a/../")
    }
    server.contents[PATH] = zip_of({**CONTENTS, **outside})
    assert contents_of(download(NAME)) == CONTENTS
    moved = dict(CONTENTS)
    moved["../../vocab.txt"] = moved.pop("vocab.txt")
    name = "uncased_L-4_H-128_A-2"
    server.contents[f"/models/2020_02_20/{name}.zip"] = zip_of(moved)
    fails("expected one vocab.txt in the zip, found 0", name)
    found = {path.name for path in cache.parent.rglob("*.txt")}
    assert found == {"vocab.txt"}
    assert len([*cache.parent.rglob("vocab.txt")]) == 1


@pytest.mark.parametrize("name", FILES)
def test_zips_that_would_fill_the_disk(server, cache, monkeypatch, name):
    """Each kind of file has its own limit."""
    size = len(CONTENTS[name])
    monkeypatch.setitem(released_models.MOST_BYTES, name, size - 1)
    fails(
        f"{name} in the zip has {size:,} bytes; expected at most {size - 1:,}"
        f".*{RERUN}"
    )
    assert left_in(cache) == {f"{NAME}.zip.part"}
    for other in FILES:
        monkeypatch.setitem(released_models.MOST_BYTES, other, 1)
    fails("expected a file of at most 4 bytes")
    assert (cache / f"{MODEL}.zip.part").stat().st_size == 0


def test_zips_whose_files_are_larger_than_their_directory_says(server, cache):
    content = zip_of({**CONTENTS, "vocab.txt": b"a" * 1_000_003})
    size = struct.pack("<L", 1_000_003)
    assert content.count(size) == 2
    server.contents[PATH] = content.replace(size, struct.pack("<L", 5))
    fails("the zip is damaged: Bad CRC-32 for file 'vocab.txt'")
    assert left_in(cache) == {f"{NAME}.zip.part"}


def test_links_and_zips_in_zips_are_not_followed(server, cache, tmp_path):
    """A link in a zip is a file whose content is a path."""
    (tmp_path / "secret").write_text("secret")
    link = zipfile.ZipInfo("vocab.txt")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    others = {name: CONTENTS[name] for name in FILES if name != "vocab.txt"}
    content = io.BytesIO(zip_of(others))
    with zipfile.ZipFile(content, "a") as zipped:
        zipped.writestr(link, str(tmp_path / "secret"))
    server.contents[PATH] = content.getvalue()
    vocabulary = pathlib.Path(download(NAME), "vocab.txt")
    assert not vocabulary.is_symlink()
    assert vocabulary.read_text() == str(tmp_path / "secret")
    name = "uncased_L-4_H-128_A-2"
    inner = zip_of({f"{name}.zip": zip_of(CONTENTS)})
    server.contents[f"/models/2020_02_20/{name}.zip"] = inner
    fails("expected one bert_config.json in the zip, found 0", name)


# Models that cannot be opened, and caches that were changed


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("vocab.txt", b"<html>", r"vocab\.txt has 1 tokens, but not \[PAD\]"),
        ("vocab.txt", b"\xff", r"vocab\.txt:1: byte 0xff is not UTF-8"),
        ("vocab.txt", b"", "the vocabulary is empty"),
        ("vocab.txt", VOCAB * 2, r"vocab\.txt:15: the token '\[PAD\]' is also"),
        (
            "vocab.txt",
            VOCAB + b"z",
            "has 15 tokens, more than .* vocab_size of",
        ),
        ("bert_config.json", b"{", r"bert_config\.json:1: invalid JSON"),
        ("bert_config.json", b"{}", "vocab_size"),
        (
            "bert_config.json",
            CONFIG.replace(
                b'"num_hidden_layers": 1', b'"num_hidden_layers": 2'
            ),
            "expected an encoder of [0-9,]* weights, as bert_config.json says",
        ),
        (FILES[2], b"index", "Cannot read checkpoint bert_model.ckpt"),
        (FILES[3], b"data", "Cannot read checkpoint bert_model.ckpt"),
    ],
)
def test_only_models_that_open_enter_the_cache(
    server, readable, cache, unzipped, name, change, message
):
    server.contents[PATH] = zip_of({**unzipped, name: change})
    with refused(f"{PATH}: the zip has no valid model: .*{message}.*{RERUN}"):
        open_pretrained(NAME)
    assert left_in(cache) == {f"{NAME}.zip.part"}
    server.contents[PATH] = zip_of(unzipped)
    assert open_pretrained(NAME).vocab == tuple(small_release.WORDS)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("change", ["cut", "other", "removed"])
def test_changes_of_the_cache_are_found(readable, name, change, monkeypatch):
    """At each use; checksums of weights are compared when they are read."""

    def read():
        weights = open_pretrained(NAME).weights
        return {n: weights[n] for n in weights.shapes}

    read()
    path = pathlib.Path(os.environ["BERT_TF_CACHE"], MODEL, name)
    good = path.read_bytes()
    changed = {"cut": good[:-3], "other": good[:-1] + b"?"}
    path.unlink()
    if change in changed:
        path.write_bytes(changed[change])
    advice = f"Remove the folder {path.parent} to download the model again"
    if name == FILES[3]:
        advice = "The file is damaged"
    with refused(advice):
        read()
    path.write_bytes(good)
    read()


@pytest.mark.parametrize("limit", [1000, 30_000])
def test_a_full_disk(server, cache, limit):
    """While the zip is written, or its files."""
    server.contents[PATH] = zip_of({**CONTENTS, "vocab.txt": b"a" * 50_000})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limits[1]))
    try:
        fails(r"Cannot write .*: File too large\. Set BERT_TF_CACHE to a")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert left_in(cache) == {f"{NAME}.zip.part"}
    assert len(contents_of(download(NAME))["vocab.txt"]) == 50_000


def test_a_cache_that_cannot_be_written(server, cache):
    cache.write_text("a file")
    fails(r"Cannot write .*\. Set BERT_TF_CACHE to a writable folder")
