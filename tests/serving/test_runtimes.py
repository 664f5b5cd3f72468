"""Exports for ONNX Runtime and LiteRT, from the command line to the folder."""

import importlib.util
import itertools
import json
import math
import os
import re
import subprocess
import sys

import in_process
import numpy as np
import pytest
from checkout import ROOT

from bert_tf.errors import MissingPackageError
from bert_tf.jobs.convert_saved_model import (
    PACKAGES,
    ConvertSavedModelConfig,
)
from bert_tf.serving import runtimes
from bert_tf.serving.runtimes import RUNTIMES, convert, difference, open_export
from tests.serving import small_exports
from tests.serving.small_served import LENGTH

# Extras, which the environment of TensorFlow 2.20 does without.
for package in ("onnxruntime", "tf2onnx", "ai_edge_litert"):
    pytest.importorskip(package)

SCRIPT = str(ROOT / "convert_saved_model.py")
CARD_FILE = "assets.extra/model_card.json"


def opened(kind):
    return open_export(str(small_exports.path_of(kind)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "name"),
    [*itertools.product(small_exports.KINDS, RUNTIMES)],
)
def test_converted_models_give_the_same_outputs(kind, name):
    export, runtime = opened(kind), RUNTIMES[name]
    batches = runtimes.random_rows(export)
    assert len(batches[0]["input_ids"]) == 1
    assert batches[-1]["input_ids"].shape[-1] == LENGTH
    expected = export.run(batches)
    model, int8 = convert(export, runtime, True).values()
    found = runtime.run(model, batches)
    for one, other in zip(expected, found, strict=True):
        types = {key: values.dtype for key, values in one.items()}
        assert types == {key: values.dtype for key, values in other.items()}
    assert difference(expected, found) < 1e-5
    # The weights of these models are large, and so are the errors of int8.
    assert 1e-6 < difference(expected, runtime.run(int8, batches)) < math.inf


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNTIMES)
def test_the_program(tmp_path, monkeypatch, name):
    """It prints only the table, and converters are silent.

    LiteRT writes one line past Python. The program in the README runs.
    """
    path = small_exports.path_of("pairs")
    words = [f"--export_dir={path.parent}", "--output_dir=out", "--int8"]
    done = subprocess.run(
        [sys.executable, SCRIPT, *words, f"--format={name}"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    for line in done.stderr.splitlines():
        ours = r"[IW]\d{4} .* convert_saved_model\.py:\d+\] "
        assert re.match(ours, line) or "XNNPACK delegate" in line, line
    rows = re.findall(r"\| (model\S+) \| \S+ \| (\S+) \|", done.stdout)
    assert len(done.stdout.splitlines()) == 4
    [(model, off), (int8, more)] = rows
    assert float(off) < 1e-5 < float(more) < 0.3
    folder = tmp_path / "out"
    others = {"README.md", "labels.txt", "model_card.json", "vocab.txt"}
    assert {*os.listdir(folder)} == others | {model, int8}
    sizes = [(folder / file).stat().st_size for file in (int8, model)]
    assert 0.2 < sizes[0] / sizes[1] < 0.4
    for asset in ("assets/vocab.txt", "assets/labels.txt", CARD_FILE):
        expected = (path / asset).read_bytes()
        assert (folder / os.path.basename(asset)).read_bytes() == expected
    readme = (folder / "README.md").read_text("utf-8")
    assert done.stdout in readme
    program, *_ = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    monkeypatch.chdir(folder)
    scope = {}
    exec(program, scope)
    [expected] = opened("pairs").run([scope["features"]])
    found = scope["answer"]["probabilities"]
    np.testing.assert_allclose(found, expected["probabilities"], atol=1e-5)


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("ids", [1, 2, 3], 0),
        ("ids", [1, 2, 0], 0.25),
        ("small", [0.5, 0.5], 0.25),
        # Relative to the largest value.
        ("large", [200.0, -401.0], 1 / 400),
        ("small", [math.nan, 0.25], math.nan),
        ("small", [math.inf, 0.25], math.inf),
        ("small", [0.5], math.inf),
    ],
)
def test_the_difference(name, values, expected):
    answers = [
        {"small": [0.5, 0.25], "large": [200.0, -400.0], "ids": [1, 2, 3]},
        {"small": [0.125, 1.0], "large": [8.0, 8.0], "ids": [4]},
    ]
    ours, theirs = (
        [{k: np.array(v) for k, v in batch.items()} for batch in batches]
        for batches in (answers, [{**answers[0], name: values}, answers[1]])
    )
    np.testing.assert_equal(difference(ours, theirs), expected)


@pytest.fixture(scope="module")
def launch():
    required = ["export_dir", "output_dir", "format"]
    with in_process.script("convert_saved_model", required) as launch:
        yield lambda *words: launch([*words])


@pytest.mark.slow
@pytest.mark.parametrize("error", [2e-2, math.nan])
def test_nothing_is_written_if_outputs_differ(
    launch, monkeypatch, tmp_path, capsys, error
):
    """The export itself, plus an error, replaces the converted model."""

    def run(content, batches):
        answers = opened("vectors").run(batches)
        return [{k: x + error for k, x in a.items()} for a in answers]

    fake = RUNTIMES["onnx"]._replace(
        to_models=lambda export, int8: {"model.onnx": b"x"}, run=run
    )
    monkeypatch.setitem(RUNTIMES, "onnx", fake)
    words = [f"--export_dir={small_exports.path_of('vectors')}"]
    words += ["--format=onnx", f"--output_dir={tmp_path}/out"]
    assert launch(*words) == 1
    line = in_process.the_error(capsys, "convert_saved_model")
    assert f"{tmp_path}/out was not written: the outputs of model.onnx" in line
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize(
    ("card", "message"),
    [
        (None, "Cannot read 7/assets.extra/model_card.json"),
        ({"dtype_policy": "mixed_bfloat16"}, "need an export in float32"),
        ({"kind": "masked language model"}, "have no strings"),
        ({}, "7: the SavedModel cannot be loaded"),
        ("versions", "versions: there is no saved_model.pb"),
    ],
)
def test_an_error_is_one_line(
    launch, tmp_path, capsys, monkeypatch, card, message
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "7/assets.extra").mkdir(parents=True)
    (tmp_path / "7/saved_model.pb").write_bytes(b"damaged")
    (tmp_path / "versions/8").mkdir(parents=True)
    path = card if isinstance(card, str) else "7"
    if isinstance(card, dict):
        card = {"dtype_policy": "float32", "kind": "classifier"} | card
        (tmp_path / "7" / CARD_FILE).write_text(json.dumps(card))
    words = [f"--export_dir={path}", "--output_dir=new", "--format=onnx"]
    assert launch(*words) == 1
    assert message in in_process.the_error(capsys, "convert_saved_model")
    assert {*os.listdir()} == {"7", "versions"}


def test_the_formats_are_those_of_the_option():
    assert PACKAGES.keys() == RUNTIMES.keys()


@pytest.mark.parametrize("name", PACKAGES)
def test_a_missing_package_is_named(monkeypatch, tmp_path, name):
    absent = PACKAGES[name][-1]
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda x: x != absent or None
    )
    config = ConvertSavedModelConfig(
        export_dir=str(tmp_path), output_dir="new", format=name
    )
    message = f"`format={name}` needs the package {absent}. Run, .*{name}"
    with pytest.raises(MissingPackageError, match=message):
        config.check()
