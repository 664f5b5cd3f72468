"""An export, loaded as TensorFlow Serving and Triton load it and asked."""

import base64
import collections
import hashlib
import json
import math
import os
import pathlib
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import time
import types
import unittest.mock
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf
from checkout import ROOT
from module_folders import importable
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow_serving.apis.prediction_log_pb2 import PredictionLog

from bert_tf.base import files
from bert_tf.errors import InputError
from bert_tf.kinds.tags.conll_files import TaggingEncoding
from bert_tf.kinds.tags.graph import ServedTagger
from bert_tf.modeling.heads import (
    BertPretrainer,
    BertTokenClassifier,
)
from bert_tf.serving import export as exporting
from bert_tf.serving.export import (
    BATCHING_PARAMETERS,
    MAX_BATCH_SIZE,
    WARM_UP_SIZES,
    WEIGHTS,
    StoredWeights,
    export,
    readme,
    write_warm_up,
)
from tests.serving import rest
from tests.serving.small_served import (
    CONFIG,
    LENGTH,
    NASTY,
    VOCAB,
    random_weights,
)

LABELS = ("O", "B-é", "none of them")
FILES = {
    "saved_model.pb",
    "fingerprint.pb",
    "variables/variables.index",
    WEIGHTS,
    "assets/vocab.txt",
    "assets/labels.txt",
    "assets.extra/tf_serving_warmup_requests",
    "assets.extra/batching_parameters.txt",
    "assets.extra/model_card.json",
    "assets.extra/README.md",
}


def tagger(**more):
    """Returns a model with tables, two assets and loops."""
    encoding = TaggingEncoding(VOCAB, True, None, LENGTH, LABELS)
    model = random_weights(BertTokenClassifier(CONFIG, len(LABELS), **more))
    return ServedTagger(model, encoding)


def contents(folder):
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in pathlib.Path(folder).rglob("*")
        if file.is_file()
    }


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Returns a model that has been compiled and trained."""
    temporary = tmp_path_factory.mktemp("export") / "qx-temporary"
    temporary.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(temporary))
        served = tagger()
        served.model.compile("adam", "sparse_categorical_crossentropy")
        served.model.optimizer.build(served.model.trainable_variables)
        yield served


@pytest.fixture(scope="module")
def path(served):
    """Returns an export that was written where all names are known."""
    folder = pathlib.Path(tempfile.tempdir).parent
    facts = {"metrics": {"accuracy": 0.5}, "source": "/qx-folder/model.ckpt-7"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "gethostname", lambda: "qx-host")
        patch.chdir(folder)
        return folder / export(served, "qx-place", name="mine", **facts)


# The files of a version ------------------------------------------------------


def test_files_of_a_version(path):
    written = contents(path)
    assert written.keys() == FILES
    assert os.listdir(path.parent) == [path.name]
    assert 0 <= time.time() - int(path.name) < 3600
    vocab = written["assets/vocab.txt"].decode()
    assert vocab.splitlines() == list(VOCAB)
    assert written["assets/labels.txt"].decode().split("\n")[1] == "B-é"
    assert b"part_1" not in written["variables/variables.index"]
    # A server is another user, and temporary folders are private.
    umask = os.umask(0o22)
    os.umask(umask)
    for file in (path, *path.rglob("*")):
        readable = 0o555 if file.is_dir() else 0o444
        assert file.stat().st_mode & readable == readable & ~umask


def test_the_model_card(path):
    written = contents(path)
    card = json.loads(written["assets.extra/model_card.json"])
    assert {"bert_tf", "tensorflow", "keras"} < card.pop("versions").keys()
    assert card.pop("parameters") > 1000
    checked = {"weights": WEIGHTS, "vocabulary": "assets/vocab.txt"}
    for name, file in checked.items():
        checksum = hashlib.sha256(written[file]).hexdigest()
        assert card.pop(name) == {"file": file, "sha256": checksum}
    assert card == {
        "name": "mine",
        "kind": "tagger",
        "source": "model.ckpt-7",
        "metrics": {"accuracy": 0.5},
        "labels": [*LABELS],
        "encoding": {
            "do_lower_case": True,
            "strip_accents": None,
            "max_seq_length": LENGTH,
        },
        "vocab_size": len(VOCAB),
        "dtype_policy": "float32",
    }


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("releases/uncased_L-2/", "uncased_L-2"),
        ("2020_02_20/uncased_L-2", "2020_02_20/uncased_L-2"),
        ("hf://google/bert-base@main", "hf://google/bert-base@main"),
        ("file:///home/me/bert_model.ckpt", "bert_model.ckpt"),
    ],
)
def test_the_source_contains_no_local_folder(path, served, source, expected):
    card = exporting.model_card(served, str(path), "mine", source=source)
    assert card["source"] == expected


def test_every_metric_is_valid_json(path, served):
    numbers = [np.float32(0.1), math.nan, -math.inf, np.int64(12), None]
    metrics = dict(zip("abcde", numbers, strict=True))
    card = exporting.model_card(served, str(path), "mine", metrics)
    assert json.loads(exporting.to_json(card)) == card
    assert [*card["metrics"].values()] == [0.1, None, None, 12, None]


def test_no_file_names_this_machine(path):
    """No local path, temporary name, user or host is in any file."""
    temporary = os.listdir(tempfile.tempdir)
    assert temporary
    folders = [str(path.parent.parent), str(ROOT), sys.prefix]
    names = ["qx", "export-", *temporary, *folders]
    for file, content in contents(path).items():
        assert not [name for name in names if name.encode() in content], file


@pytest.mark.slow
def test_exports_of_equal_models_have_the_same_checksums(
    path, tmp_path, caplog
):
    again = export(tagger(), str(tmp_path), name="mine")
    # TensorFlow's messages would name temporary folders.
    assert caplog.messages == [f"Exported mine as {again}"]
    first, second = (
        json.loads(contents(folder)["assets.extra/model_card.json"])
        for folder in (path, again)
    )
    for file in ("weights", "vocabulary"):
        assert first[file] == second[file]


def test_needs_nothing_of_keras_and_no_unknown_op(path, served):
    content = (path / "saved_model.pb").read_bytes()
    [meta_graph] = saved_model_pb2.SavedModel.FromString(content).meta_graphs
    nodes = list(meta_graph.graph_def.node)
    for function in meta_graph.graph_def.library.function:
        nodes += function.node_def
    foreign = {n.op for n in nodes if not hasattr(tf.raw_ops, n.op)}
    assert foreign == {"FastWordpieceTokenizeWithOffsets"}
    nodes = meta_graph.object_graph_def.nodes
    assert {n.user_object.identifier for n in nodes} <= {
        "",
        "_generic_user_object",
        "signature_map",
        "trackable_dict_wrapper",
        "trackable_tuple_wrapper",
    }
    [weights] = [x for x in nodes[0].children if x.local_name == "weights"]
    found = {
        child.local_name: nodes[child.node_id].variable.dtype
        for child in nodes[weights.node_id].children
    }
    names = StoredWeights(served.model).by_name
    assert found == dict.fromkeys(names, tf.float32.as_datatype_enum)
    assert len(nodes) < len(names) + 50


# The README, warm-up requests and batching parameters ------------------------

SIGNATURES = {
    "serving_default": (
        {"text": tf.TensorSpec([None], tf.string)},
        {
            "label": tf.TensorSpec([None], tf.string),
            "score": tf.TensorSpec([None, None, 3], tf.float32),
        },
    )
}


@pytest.mark.parametrize(
    ("example", "instance"),
    [
        ({"text": ["it's `ls` \\ é", "b"]}, "it's `ls` \\ é"),
        (
            {"text": ["a", "b"], "choices": [["c", "d"], ["e", "f"]]},
            {"text": "a", "choices": ["c", "d"]},
        ),
    ],
)
def test_the_readme(example, instance):
    """A shell reads the commands as they are meant; a single input is bare."""
    text = readme("mine", "classifier", SIGNATURES, example)
    assert text.startswith("# mine: classifier\n")
    blocks = re.findall(r"^```sh\n(.*?)\n```$", text, re.M | re.S)
    blocks = [block.replace("\\\n", "") for block in blocks]
    server, [*curl, request, url] = map(shlex.split, blocks)
    assert server[-3:] == ["-e", "MODEL_NAME=mine", "tensorflow/serving"]
    assert curl == ["curl", "-d"]
    assert json.loads(request) == {"instances": [instance]}
    assert url == "http://localhost:8501/v1/models/mine:predict"
    cells = "`text` string (None,) | `label` string (None,)<br>"
    assert f"| `serving_default` | {cells}`score` float32 (None" in text
    assert len(text.splitlines()) < 40


def test_warm_up_requests(tmp_path):
    """Several sizes, and a text longer than the maximum."""
    example = {"question": ["q", "é"], "choices": [["a", "b"], ["c", "d e"]]}
    served = types.SimpleNamespace(
        example=example,
        inputs=dict.fromkeys(example, tf.TensorSpec([None], tf.string)),
        encoding=types.SimpleNamespace(max_seq_length=13),
    )
    path = str(tmp_path / "requests")
    write_warm_up(path, served, "mine")
    columns = []
    for record in tf.data.TFRecordDataset(path).as_numpy_iterator():
        inputs = PredictionLog.FromString(record).predict_log.request.inputs
        columns.append([tf.make_ndarray(inputs[name]) for name in example])
    *sized, long = columns
    for size, (questions, choices) in zip(WARM_UP_SIZES, sized, strict=True):
        assert (len(questions), choices.shape) == (size, (size, 2))
        assert questions.tolist()[:2] == [b"q", "é".encode()][:size]
    assert long[0].tolist() == [b" ".join([b"q"] * 13)]
    assert long[1].shape == (1, 2)


def test_batching_parameters_are_valid():
    found = re.findall(r"(?m)^(\w+) \{ value: (\d+) \}$", BATCHING_PARAMETERS)
    values = {name: int(value) for name, value in found}
    assert len(values) == 4
    assert "\npad_variable_length_inputs: false\n" in BATCHING_PARAMETERS
    assert min(values.values()) > 0
    # A server does not load a model with larger warm-up requests.
    assert values["max_batch_size"] == MAX_BATCH_SIZE >= max(WARM_UP_SIZES)


# The server ------------------------------------------------------------------


def eager(method, **inputs):
    """Returns the outputs of a method of `Served`, as arrays."""
    tensors = {name: tf.constant(values) for name, values in inputs.items()}
    return {name: x.numpy() for name, x in method(tensors).items()}


@pytest.mark.parametrize(
    "serve", [rest.answer_all, pytest.param(rest.serve, marks=pytest.mark.slow)]
)
def test_a_server_answers_without_this_project(path, served, serve):
    """By columns and rows, from tokens, and as the README says."""
    short = [text for text in NASTY if len(text) < 40]
    nasty, few = (
        [{"b64": base64.b64encode(text).decode()} for text in texts]
        for texts in (NASTY, short)
    )
    seen = eager(served.tokenize, text=short)
    tokens = {name: seen[name][:, 0].tolist() for name in served.token_inputs}
    text = (path / "assets.extra" / "README.md").read_text("utf-8")
    [request] = re.findall(r"^curl -d '(.*)'", text, re.M)
    found = serve(
        path,
        [
            {"inputs": nasty},
            {"instances": nasty},
            {"inputs": []},
            {"signature_name": "tokenize", "inputs": few},
            {"signature_name": "tokens", "inputs": tokens},
            json.loads(request),
        ],
    )
    sizes = [*WARM_UP_SIZES, 1]
    assert found["warmed_up"] == [["mine", size] for size in sizes]
    columns, rows, nothing, windows, of_tokens, shown = found["answers"]
    expected = eager(served.answer, text=NASTY)
    columns, rows = columns["outputs"], rows["predictions"]
    assert columns == {name: [row[name] for row in rows] for name in columns}
    assert columns.keys() == expected.keys()
    assert columns["starts"] == expected["starts"].tolist()
    chances = expected["probabilities"]
    np.testing.assert_allclose(columns["probabilities"], chances, atol=1e-5)
    assert nothing["outputs"] == {name: [] for name in columns}
    for name in served.token_inputs:
        np.testing.assert_array_equal(windows["outputs"][name], seen[name])
    expected = eager(served.answer_tokens, **tokens)["probabilities"]
    chances = of_tokens["outputs"]["probabilities"]
    np.testing.assert_allclose(chances, expected, atol=1e-4)
    [answer] = shown["predictions"]
    [line] = re.findall(r"^\| `serving_default` .*", text, re.M)
    *_, outputs, _ = line.split(" |")
    assert answer.keys() == {*re.findall("`(.*?)`", outputs)}
    assert answer["words"][:2] == ["George", "Washington"]


# Triton: examples/triton/model.py, called as its Python backend calls it -----

Response = collections.namedtuple("Response", "tensors error", defaults=[None])


class Tensor(NamedTuple):
    name: str
    rows: np.ndarray

    def as_numpy(self):
        return self.rows


@pytest.fixture(scope="module")
def triton(path, tmp_path_factory):
    """Returns Triton's model of the export."""
    backend = types.ModuleType("triton_python_backend_utils")
    backend.Tensor, backend.InferenceResponse = Tensor, Response
    backend.TritonError = str
    backend.get_input_tensor_by_name = lambda request, name: request[name]
    version = tmp_path_factory.mktemp("triton") / "1"
    version.mkdir()
    (version / "saved_model").symlink_to(path)
    with (
        pytest.MonkeyPatch.context() as patch,
        importable(ROOT / "examples" / "triton") as load,
    ):
        patch.setitem(sys.modules, backend.__name__, backend)
        model = load("model").TritonPythonModel()
        place = {"model_repository": str(version.parent), "model_version": "1"}
        model.initialize(place)
        yield model


def request(*texts):
    """Returns a request: its input, [rows, 1]."""
    rows = np.array([[text.encode()] for text in texts], object)
    return {"text": Tensor("text", rows)}


def test_requests_that_arrive_together_are_answered_as_alone(triton):
    """An error is one line and fails no other request."""
    requests = [request("a b c"), request("a" * 100_001), request("a", "b a")]
    for asked in (requests[::2], requests):
        first, *_, last = together = triton.execute(asked)
        message = "Expected text of at most 100,000 bytes. Split longer texts."
        assert together[1:-1] == [Response([], message)] * (len(asked) - 2)
        for alone, response in ((requests[0], first), (requests[2], last)):
            [expected] = triton.execute([alone])
            assert response.error is None
            for ours, theirs in zip(
                expected.tensors, response.tensors, strict=True
            ):
                assert ours.name == theirs.name
                assert len(theirs.rows) == len(alone["text"].rows)
                assert ours.rows.ndim == theirs.rows.ndim > 1
                # Rows of tags are as long as the most words of a batch.
                rows = theirs.rows[:, : ours.rows.shape[1]]
                if ours.rows.dtype == object:
                    np.testing.assert_array_equal(ours.rows, rows)
                else:
                    np.testing.assert_allclose(ours.rows, rows, rtol=1e-4)


def test_inputs_and_outputs_are_described_for_triton(triton, monkeypatch):
    module = sys.modules[triton.__module__]
    monkeypatch.setattr(module, "load", lambda version: triton.model)
    config = unittest.mock.Mock()
    assert triton.auto_complete_config(config) is config
    config.set_max_batch_size.assert_called_once_with(32)
    config.set_dynamic_batching.assert_called_once_with()
    text = {"name": "text", "data_type": "TYPE_STRING", "dims": [1]}
    config.add_input.assert_called_once_with(text)
    outputs = [call.args[0] for call in config.add_output.call_args_list]
    found = {row["name"]: (row["data_type"], row["dims"]) for row in outputs}
    assert found["num_words"] == ("TYPE_INT32", [1])
    assert found["words"] == ("TYPE_STRING", [-1])


# Versions, with a model that is quick to write -------------------------------


@pytest.fixture
def quick(monkeypatch):
    """Replaces the model by two small files."""

    def save(served, folder):
        pathlib.Path(folder, "saved_model.pb").write_text("a model", "utf-8")
        pathlib.Path(folder, "variables").mkdir()
        pathlib.Path(folder, "variables", "data").write_text("1", "utf-8")
        return {}

    monkeypatch.setattr(exporting, "save", save)
    monkeypatch.setattr(exporting, "model_card", lambda *unused: {})
    monkeypatch.setattr(exporting, "readme", lambda *unused: "read me")
    return monkeypatch


def test_the_version_is_the_time_or_the_next_number(
    quick, served, tmp_path, caplog
):
    folder = str(tmp_path / "deep" / "models")
    counts = []

    def count_versions(path, *unused):
        counts.append(sum(map(str.isdigit, os.listdir(folder))))
        pathlib.Path(path).touch()

    quick.setattr(exporting, "write_warm_up", count_versions)
    quick.setattr(time, "time", lambda: 1234.5)
    paths = [export(served, folder) for _ in range(3)]
    numbers = [os.path.basename(path) for path in paths]
    assert numbers == ["1234", "1235", "1236"]
    with caplog.at_level("WARNING"):
        assert export(served, folder, version=7) == os.path.join(folder, "7")
    [warning] = [r.message for r in caplog.records if r.levelname == "WARNING"]
    assert "1236, which a server loads rather than version 7" in warning
    assert sorted(os.listdir(folder)) == [*numbers, "7"]
    # A server sees no version that is incomplete.
    assert counts == [0, 1, 2, 3]
    # It would keep a higher number, such as a date.
    os.mkdir(os.path.join(folder, "2026112701"))
    assert os.path.basename(export(served, folder)) == "2026112702"


@pytest.mark.parametrize("is_remote", [False, True])
def test_refuses_an_existing_version(quick, served, tmp_path, is_remote):
    folder = "ram://there" if is_remote else str(tmp_path)
    export(served, folder, version=3)
    before = contents(tmp_path)
    with pytest.raises(InputError, match="/3: this version exists already"):
        export(served, folder, version=3)
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (SystemExit(143), SystemExit),
        (tf.errors.ResourceExhaustedError(None, None, "disk full"), InputError),
        (OSError(28, "No space left on device"), InputError),
    ],
)
@pytest.mark.parametrize("is_remote", [False, True])
def test_a_failure_leaves_nothing_behind(
    quick, served, tmp_path, error, expected, is_remote
):
    folder = f"ram://{tmp_path.name}" if is_remote else str(tmp_path)
    export(served, folder, version=1)
    before = contents(tmp_path)

    def fail(*unused, **also_unused):
        raise error

    if is_remote:
        quick.setattr(tf.io.gfile, "copy", fail)
    else:
        quick.setattr(exporting, "write_warm_up", fail)
    with pytest.raises(expected) as caught:
        export(served, folder)
    if expected is InputError:
        assert str(caught.value).startswith("Cannot write the export to ")
    assert contents(tmp_path) == before
    assert [name.strip("/") for name in tf.io.gfile.listdir(folder)] == ["1"]


def test_a_file_instead_of_the_folder(served, write):
    folder = os.path.join(write("mine", "file"), "models")
    with pytest.raises(InputError, match=f"export to {folder}: "):
        export(served, folder)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "a/b"}, "The model's name on the server must be"),
        ({"name": "a\n"}, "The model's name on the server must be"),
        ({"version": 0}, "version must be .*; got 0"),
        ({"version": 2**63}, "version must be .*; got 9223372036854775808"),
    ],
)
def test_refuses_invalid_names_and_versions(served, tmp_path, options, message):
    with pytest.raises(InputError, match=message):
        export(served, str(tmp_path / "models"), **options)
    assert not os.listdir(tmp_path)


def test_removes_leftovers_of_dead_processes(quick, served, tmp_path):
    child = subprocess.Popen(["true"])
    child.wait()
    host = re.sub(r"\W", "_", socket.gethostname())
    names = [
        f"export-{host}.tmp-{child.pid}-abcd_123",
        f"export-{host}.tmp-{os.getpid()}-abcd_123",
        # Processes of other machines may be alive.
        f"export-{host}x.tmp-{child.pid}-abcd_123",
    ]
    for name in names:
        (tmp_path / name / "version").mkdir(parents=True)
    export(served, str(tmp_path), version=1)
    assert set(os.listdir(tmp_path)) == {"1", *names[1:]}


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


# Weights in the precision in which they are used -----------------------------

IDS = np.array([[2, 7, 11, 3, 0], [2, 5, 3, 0, 0]], np.int32)
FEATURES = {"input_ids": IDS, "input_mask": (IDS > 0).astype(np.int32)}


def test_outputs_are_equal_bit_for_bit():
    model = random_weights(BertPretrainer(CONFIG, dtype="mixed_bfloat16"))
    stored = StoredWeights(model)
    expected = model(FEATURES)
    with stored.scope():
        found = model(FEATURES)
    for name, values in found.items():
        np.testing.assert_array_equal(values, expected[name])
    for name, variable in stored.by_name.items():
        is_wide = name.split("/")[-1] in ("gamma", "beta", "output_bias")
        assert variable.dtype == ("float32" if is_wide else "bfloat16"), name
    kernel = stored.by_name["bert/embeddings/word_embeddings"]
    kernel.assign_add(tf.random.normal(kernel.shape, dtype=kernel.dtype))
    with stored.scope():
        found = model(FEATURES)
    for name, values in found.items():
        assert np.abs(values - expected[name]).max() > 0.1
