"""An export, loaded as TensorFlow Serving loads it and asked as by REST."""

import base64
import contextlib
import json
import logging
import os
import pathlib
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time

import absl.logging
import numpy as np
import pytest
import tensorflow as tf
from checkout import ROOT
from tensorflow.core.protobuf import saved_model_pb2

from bert_tf import files
from bert_tf.errors import InputError
from bert_tf.heads import BertClassifier
from bert_tf.modeling import checkpoint_variables
from bert_tf.serving import export as exporting
from bert_tf.serving.export import export
from bert_tf.serving.readme import WARM_UP_SIZES
from bert_tf.serving.served import Served
from tests.serving import small_served
from tests.serving.rest import Server
from tests.serving.small_served import (
    CONFIG,
    ENCODING,
    NASTY,
    VOCAB,
    random_weights,
)

LABELS = ("cat", "é", "none of them")
FILES = {
    "saved_model.pb",
    "fingerprint.pb",
    "variables/variables.index",
    "variables/variables.data-00000-of-00001",
    "assets/vocab.txt",
    "assets/labels.txt",
    "assets.extra/tf_serving_warmup_requests",
    "assets.extra/batching_parameters.txt",
    "assets.extra/model_card.json",
    "assets.extra/README.md",
}
SIGNATURES = {"serving_default", "tokens", "tokenize"}


class Chooser(Served):
    """One of a few labels for a text."""

    kind = "chooser"

    @property
    def inputs(self):
        return {"text": tf.TensorSpec([None], tf.string)}

    @property
    def example(self):
        return {"text": ["the cat's mat", "中文 é 🤗"]}

    def answer(self, texts):
        logits = self.answer_tokens(self.features(texts))["logits"]
        probabilities = tf.nn.softmax(logits)
        best = tf.argmax(probabilities, axis=1)
        return {"label": self.label_names(best), "probabilities": probabilities}

    def answer_tokens(self, features):
        return {"logits": self.model(features)["logits"]}


class Broken(Chooser):
    """Its answers come out wrong when it is traced."""

    def answer(self, texts):
        raise KeyError("label")


def chooser(kind=Chooser, **more):
    model = random_weights(BertClassifier(CONFIG, len(LABELS), **more))
    return kind(model, ENCODING, LABELS)


@pytest.fixture(scope="module")
def served():
    return chooser()


class Lines(logging.Handler):
    """Keeps what is logged, by TensorFlow too."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


@contextlib.contextmanager
def logged():
    """The lines that a script would show."""
    handler = Lines()
    logging.getLogger().addHandler(handler)
    before = absl.logging.get_verbosity()
    absl.logging.set_verbosity(absl.logging.INFO)
    yield handler.lines
    absl.logging.set_verbosity(before)
    logging.getLogger().removeHandler(handler)


@pytest.fixture(scope="module")
def exported(served, tmp_path_factory):
    """A version, of a model that has been compiled and trained; the log."""
    served.model.compile("adam", "sparse_categorical_crossentropy")
    served.model.optimizer.build(served.model.trainable_variables)
    folder = tmp_path_factory.mktemp("export") / "models"
    with logged() as lines:
        path = export(
            served,
            str(folder),
            name="mine",
            metrics={"accuracy": 0.5},
            source="a/model.ckpt-7",
        )
    return pathlib.Path(path), lines


@pytest.fixture(scope="module")
def path(exported):
    return exported[0]


@pytest.fixture(scope="module")
def server(path):
    with Server(path) as server:
        yield server


@pytest.fixture(scope="module")
def saved_model(path):
    content = (path / "saved_model.pb").read_bytes()
    return saved_model_pb2.SavedModel.FromString(content).meta_graphs[0]


def names_in(folder):
    return {
        str(file.relative_to(folder))
        for file in pathlib.Path(folder).rglob("*")
        if file.is_file()
    }


def test_files_of_a_version(path):
    assert names_in(path) == FILES
    assert os.listdir(path.parent) == [path.name]
    assert 0 <= time.time() - int(path.name) < 3600
    assets = path / "assets"
    assert (assets / "vocab.txt").read_text("utf-8").splitlines() == list(VOCAB)
    assert (assets / "labels.txt").read_text("utf-8").split("\n")[1] == "é"


def test_equal_models_give_equal_files(path, tmp_path, monkeypatch):
    """Elsewhere, later, and from a copy of the checkpoint."""
    monkeypatch.chdir(tmp_path)
    tf.function(lambda x: x + 1).get_concrete_function(tf.constant(1.0))
    again = export(
        chooser(),
        "models",
        name="mine",
        metrics={"accuracy": 0.5},
        source=f"{tmp_path}/copy/model.ckpt-7",
    )
    assert contents(again) == contents(path)


def test_no_file_contains_a_local_path(path):
    local = {tempfile.gettempdir(), os.getcwd(), str(path.parent)}
    for name, content in contents(path).items():
        assert not [
            folder for folder in local if folder.encode() in (content or b"")
        ], name


WRITE_EXPORTS = """
import sys
from tests.serving import small_exports
from bert_tf.serving.export import export
for number, kind in enumerate(sys.argv[2:], start=1):
    export(small_exports.served(kind), sys.argv[1], version=number)
"""


@pytest.mark.slow
def test_processes_write_equal_files(tmp_path):
    """Hash seeds, and what was traced before, differ between the two."""
    kinds = ["choices", "lstms", "answers"]
    written = []
    for seed, order in (("1", kinds), ("2", kinds[::-1])):
        folder = tmp_path / seed
        folder.mkdir()
        subprocess.run(
            [sys.executable, "-c", WRITE_EXPORTS, "out", *order],
            check=True,
            cwd=folder,
            env={
                **os.environ,
                "CUDA_VISIBLE_DEVICES": "-1",
                "PYTHONHASHSEED": seed,
                "PYTHONPATH": str(ROOT),
            },
        )
        numbers = (order.index(kind) + 1 for kind in kinds)
        written.append([contents(folder / f"out/{n}") for n in numbers])
    assert written[0] == written[1]


def test_logs_one_line(exported):
    """What TensorFlow has to say is of folders that are gone by then."""
    path, lines = exported
    assert lines == [f"Exported mine as {path}"]


def test_other_users_may_read_it(path):
    """A server has a user of its own, and temporary folders are private."""
    umask = os.umask(0o22)
    os.umask(umask)
    for file in (path, *path.rglob("*")):
        readable = 0o555 if file.is_dir() else 0o444
        assert file.stat().st_mode & readable == readable & ~umask


def test_has_only_ops_that_servers_have(saved_model):
    nodes = list(saved_model.graph_def.node)
    for function in saved_model.graph_def.library.function:
        nodes += function.node_def
    foreign = {n.op for n in nodes if not hasattr(tf.raw_ops, n.op)}
    assert foreign == {"FastWordpieceTokenizeWithOffsets"}


def test_contains_nothing_of_keras(saved_model, served):
    nodes = saved_model.object_graph_def.nodes
    kinds = [node.WhichOneof("kind") for node in nodes]
    objects = {n.user_object.identifier for n in nodes} - {""}
    assert objects <= {
        "_generic_user_object",
        "signature_map",
        "trackable_dict_wrapper",
        "trackable_tuple_wrapper",
    }
    assert kinds.count("variable") == len(served.model.weights)
    assert kinds.count("function") == 2 * 3  # What makes and fills two tables.
    assert len(nodes) < len(served.model.weights) + 50
    assert not saved_model.object_graph_def.concrete_functions.keys() & {
        "train_function",
        "call",
    }


def test_loads_without_this_project(server, served):
    assert server.loaded["modules"] == []
    assert server.loaded["signatures"] == sorted(SIGNATURES)
    names = checkpoint_variables(served.model)
    assert server.loaded["weights"] == dict.fromkeys(names, "float32")


def test_warm_up_requests_are_answered(server):
    sizes = [*WARM_UP_SIZES, 1]
    assert server.loaded["warmed_up"] == [["mine", size] for size in sizes]


def test_saved_model_cli_shows_it(path):
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tensorflow.python.tools.saved_model_cli"),
            *("show", "--all", "--dir", path),
        ],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    shown = done.stdout
    assert {*re.findall(r"signature_def\['(\w+)'\]", shown)} == {
        "__saved_model_init_op",
        *SIGNATURES,
    }
    for line in (
        "inputs['text'] tensor_info",
        "inputs['input_ids'] tensor_info",
        "outputs['label'] tensor_info",
        "outputs['tokens'] tensor_info",
        "Method name is: tensorflow/serving/predict",
    ):
        assert line in shown


def as_json(texts):
    """Bytes as REST takes them."""
    return [{"b64": base64.b64encode(text).decode()} for text in texts]


@pytest.mark.parametrize("texts", [NASTY, NASTY[:1], NASTY[4:7], ()])
def test_texts_by_columns(server, served, texts):
    answer = server.predict({"inputs": as_json(texts)})["outputs"]
    expected = small_served.answer(served, {"text": list(texts)})
    assert answer["label"] == [label.decode() for label in expected["label"]]
    assert np.shape(answer["probabilities"]) in ((len(texts), 3), (0,))
    np.testing.assert_allclose(
        np.reshape(answer["probabilities"], (-1, 3)),
        expected["probabilities"],
        atol=1e-5,
    )


def test_rows_and_columns_give_the_same_answers(server):
    texts = ["the cat sat", "é 🤗\0\n", ""]
    rows = server.predict({"instances": texts})["predictions"]
    columns = server.predict({"inputs": {"text": texts}})["outputs"]
    assert columns.keys() == {"label", "probabilities"}
    assert columns == {name: [row[name] for row in rows] for name in columns}
    named = [{"text": text} for text in texts]
    assert server.predict({"instances": named})["predictions"] == rows


def test_tokens(server, served):
    texts = [text for text in NASTY if len(text) < 40]
    request = {"signature_name": "tokenize", "inputs": as_json(texts)}
    tokens = server.predict(request)["outputs"]
    expected = small_served.tokenize(served, {"text": texts})
    for name in ("input_ids", "input_mask", "segment_ids"):
        np.testing.assert_array_equal(tokens[name], expected[name])
    for names, ids in zip(
        tokens.pop("tokens"), tokens["input_ids"], strict=True
    ):
        assert names == [VOCAB[number] for number in ids]
    by_rows = [
        dict(zip(tokens, row, strict=True))
        for row in zip(*tokens.values(), strict=True)
    ]
    logits = small_served.answer_tokens(served, tokens)["logits"]
    # The only output goes without its name.
    for asked in ({"inputs": tokens}, {"instances": by_rows}):
        [answer] = server.predict(
            {"signature_name": "tokens", **asked}
        ).values()
        np.testing.assert_allclose(answer, logits, atol=1e-4)


@pytest.mark.parametrize(
    "body",
    [
        "{",
        {"instances": []},
        {"instances": ["a", ["b"]]},
        {"instances": [1]},
        {"instances": [{"texts": "a"}]},
        {"inputs": {"texts": ["a"]}},
        {"signature_name": "none", "inputs": ["a"]},
        {"signature_name": "tokens", "inputs": ["a"]},
        {"signature_name": "tokens", "instances": [{"input_ids": [1]}]},
    ],
)
def test_invalid_requests_get_an_error(server, body):
    assert list(server.predict(body)) == ["error"]
    assert list(server.predict({"instances": ["a"]})) == ["predictions"]


def test_the_answers_in_the_readme_are_correct(path, server):
    text = (path / "assets.extra" / "README.md").read_text("utf-8")
    blocks = re.findall(r"^```\n(.*?)\n```$", text, re.M | re.S)
    asked = [i for i, block in enumerate(blocks) if block.startswith("curl")]
    assert len(asked) == 3
    for index in asked:
        body = shlex.split(blocks[index])[2]
        assert_close(server.predict(body), json.loads(blocks[index + 1]))


def assert_close(answer, expected):
    """Two of JSON's values, but for the last digits of their numbers."""
    if isinstance(expected, dict):
        assert answer.keys() == expected.keys()
        for name, value in expected.items():
            assert_close(answer[name], value)
    elif isinstance(expected, list):
        for pair in zip(answer, expected, strict=True):
            assert_close(*pair)
    else:
        assert answer == pytest.approx(expected, abs=1e-5)


def test_the_card(path):
    text = (path / "assets.extra" / "model_card.json").read_text("utf-8")
    card = json.loads(text)
    assert card["name"] == "mine"
    assert card["kind"] == "chooser"
    assert card["metrics"] == {"accuracy": 0.5}
    assert card["source"] == "model.ckpt-7"
    assert (path / card["weights"]["file"]).is_file()


@pytest.mark.slow
def test_two_replicas_and_bfloat16(tmp_path):
    """As a script has it: the variables are mirrored; kernels get smaller."""
    strategy = tf.distribute.MirroredStrategy(
        ["CPU:0", "CPU:1"],
        cross_device_ops=tf.distribute.ReductionToOneDevice(),
    )
    with strategy.scope():
        model = chooser(dtype="mixed_bfloat16")
    path = export(model, str(tmp_path), version=3)
    loaded = tf.saved_model.load(path)
    assert loaded.weights["bert/pooler/dense/kernel"].dtype == tf.bfloat16
    texts = ["the cat", "é"]
    answer = loaded.signatures["serving_default"](text=tf.constant(texts))
    expected = small_served.answer(model, {"text": texts})
    np.testing.assert_allclose(
        answer["probabilities"], expected["probabilities"], atol=1e-5
    )
    assert answer["probabilities"].dtype == tf.float32


# Where a version goes, and what becomes of it if something goes wrong. The
# model itself is small and quick to write here.


@pytest.fixture
def quick(monkeypatch):
    """Lets the model be a file, which nobody asks or looks into."""

    def save(served, folder, place):
        pathlib.Path(folder, "saved_model.pb").write_text("a model", "utf-8")
        pathlib.Path(folder, "variables").mkdir()
        pathlib.Path(folder, "variables", "data").write_text("1", "utf-8")
        return {}

    monkeypatch.setattr(exporting, "save", save)
    monkeypatch.setattr(exporting, "_answers", lambda *unused: {})
    monkeypatch.setattr(exporting, "model_card", lambda *unused: {})
    monkeypatch.setattr(exporting, "readme", lambda *unused: "read me")
    return monkeypatch


def contents(folder):
    return {
        str(file.relative_to(folder)): file.is_file() and file.read_bytes()
        for file in sorted(pathlib.Path(folder).rglob("*"))
    }


def test_the_version_is_the_time_or_the_next_number(quick, served, tmp_path):
    folder = str(tmp_path / "deep" / "models")
    quick.setattr(time, "time", lambda: 1234.5)
    paths = [export(served, folder) for _ in range(3)]
    numbers = [os.path.basename(path) for path in paths]
    assert numbers == ["1234", "1235", "1236"]
    assert export(served, folder, version=7) == os.path.join(folder, "7")
    assert sorted(os.listdir(folder)) == [*numbers, "7"]


def test_another_export_takes_the_number_first(quick, served, tmp_path):
    quick.setattr(time, "time", lambda: 5.0)
    rename = os.rename

    def late(source, target):
        """Another export is done right before."""
        if target.endswith("5"):
            os.makedirs(os.path.join(target, "variables"))
        rename(source, target)

    quick.setattr(os, "rename", late)
    assert export(served, str(tmp_path)) == str(tmp_path / "6")
    os.rmdir(tmp_path / "5" / "variables")
    os.rmdir(tmp_path / "5")
    with pytest.raises(InputError, match="this version exists already"):
        export(served, str(tmp_path), version=5)
    assert sorted(os.listdir(tmp_path)) == ["5", "6"]


@pytest.mark.parametrize("kind", ["folder", "empty folder", "file", "remote"])
def test_refuses_an_existing_version(quick, served, tmp_path, kind):
    folder = "ram://there" if kind == "remote" else str(tmp_path)
    if kind == "file":
        (tmp_path / "3").write_text("3")
    elif kind == "empty folder":
        (tmp_path / "3").mkdir()
    else:
        export(served, folder, version=3)
    before = contents(tmp_path)
    with pytest.raises(InputError, match="/3: this version exists") as told:
        export(served, folder, version=3)
    assert "\n" not in str(told.value)
    assert contents(tmp_path) == before


def fail_with(error):
    def fail(*unused, **also_unused):
        raise error

    return fail


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (KeyError("ours"), KeyError),
        (KeyboardInterrupt(), KeyboardInterrupt),
        (SystemExit(143), SystemExit),
        (tf.errors.ResourceExhaustedError(None, None, "disk full"), InputError),
        (OSError(28, "No space left on device"), InputError),
    ],
)
@pytest.mark.parametrize("remote", [False, True])
def test_a_failure_leaves_nothing_behind(
    quick, served, tmp_path, error, expected, remote
):
    folder = f"ram://{tmp_path.name}" if remote else str(tmp_path)
    first = export(served, folder, version=1)
    before = contents(tmp_path)
    step = tf.io.gfile if remote else exporting
    name = "copy" if remote else "write_warm_up"
    quick.setattr(step, name, fail_with(error))
    with pytest.raises(expected) as told:
        export(served, folder)
    if expected is InputError:
        assert str(told.value).startswith("Cannot write the export to ")
        assert "\n" not in str(told.value)
    assert contents(tmp_path) == before
    assert [name.strip("/") for name in tf.io.gfile.listdir(folder)] == ["1"]
    assert tf.io.gfile.exists(f"{first}/saved_model.pb")


def test_errors_of_the_model_are_raised_unchanged(tmp_path):
    with pytest.raises(KeyError, match="label"):
        export(chooser(Broken), str(tmp_path))
    assert not os.listdir(tmp_path)


def test_a_full_disk_while_saving(served, tmp_path, monkeypatch):
    said = (
        "{{function_node __wrapped__SaveV2_dtypes_47_device_/job:localhost/"
        "replica:0/task:0/device:CPU:0}} /x/variables/part-0.tempstate7; No "
        "space left on device [Op:SaveV2]\nand more"
    )
    error = tf.errors.ResourceExhaustedError(None, None, said)
    monkeypatch.setattr(exporting, "_concrete", lambda *unused: None)
    monkeypatch.setattr(tf.saved_model, "save", fail_with(error))
    message = (
        f"Cannot write the export to {tmp_path}: /x/variables/part-0.tempstate7"
        "; No space left on device."
    )
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        export(served, str(tmp_path))
    assert not os.listdir(tmp_path)


def test_a_file_instead_of_the_folder(served, tmp_path):
    (tmp_path / "file").write_text("mine")
    for place in ("file", "file/models"):
        folder = str(tmp_path / place)
        with pytest.raises(InputError, match=f"export to {folder}: ") as told:
            export(served, folder)
        assert "\n" not in str(told.value)
    assert contents(tmp_path) == {"file": b"mine"}


@contextlib.contextmanager
def without_privileges():
    """What is forbidden is allowed to root."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)


def test_a_read_only_folder(served):
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o555)
        with (
            without_privileges(),
            pytest.raises(InputError, match=f"export to {folder}: Permission"),
        ):
            export(served, folder)
        assert not os.listdir(folder)


@pytest.mark.parametrize("name", ["", "a/b", "a b", "é", "-a", "a:b", "a\n"])
def test_refuses_invalid_names(served, tmp_path, name):
    with pytest.raises(
        InputError, match="The model's name on the server must be"
    ):
        export(served, str(tmp_path / "models"), name=name)
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("version", [0, -1, 2**63])
def test_refuses_invalid_versions(served, tmp_path, version):
    with pytest.raises(InputError, match=f"64-bit integer; got {version}"):
        export(served, str(tmp_path / "models"), version=version)
    assert not os.listdir(tmp_path)


def test_removes_leftovers_of_dead_processes(quick, served, tmp_path):
    child = subprocess.Popen(["sleep", "1000"])
    host = re.sub(r"\W", "_", socket.gethostname())
    dead = tmp_path / f"export-{host}.tmp-{child.pid}-abcd_123"
    kept = [
        tmp_path / f"export-{host}.tmp-{os.getpid()}-abcd_123",
        # Nobody can tell what lives on another machine.
        tmp_path / f"export-{host}x.tmp-{child.pid}-abcd_123",
        tmp_path / "1.tmp-mine",
    ]
    for folder in (dead, *kept):
        (folder / "version").mkdir(parents=True)
    export(served, str(tmp_path), version=1)
    assert dead.exists()
    child.send_signal(signal.SIGKILL)
    child.wait()
    export(served, str(tmp_path), version=2)
    expected = {"1", "2", *(folder.name for folder in kept)}
    assert set(os.listdir(tmp_path)) == expected


def test_a_server_sees_no_number_before_the_end(quick, served, tmp_path):
    seen = []

    def look(path, *unused):
        seen.extend(os.listdir(tmp_path))
        pathlib.Path(path).touch()

    quick.setattr(exporting, "write_warm_up", look)
    export(served, str(tmp_path))
    assert seen
    assert not any(name.lstrip("+-").isdigit() for name in seen)


def test_remote_folders_get_the_model_last(quick, served):
    copied = []
    copy = tf.io.gfile.copy

    def watch(source, target):
        copied.append(target)
        copy(source, target)

    quick.setattr(tf.io.gfile, "copy", watch)
    path = export(served, "ram://bucket/models", version=3)
    assert path == "ram://bucket/models/3"
    assert copied[-1] == f"{path}/saved_model.pb"
    assert len(copied) == len(set(copied)) == 6
    assert files.read_text(f"{path}/variables/data") == "1"
    assert files.read_text(f"{path}/assets.extra/README.md") == "read me"
