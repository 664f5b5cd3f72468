"""convert_saved_model.py from its command line to its folder."""

import dataclasses
import importlib.util
import json
import os
import re
import subprocess
import sys
import types

import in_process
import numpy as np
import pytest
import squad_files
import tensorflow as tf
from checkout import ROOT

from bert_tf import files, metrics
from bert_tf.contrib import convert_saved_model, runtimes
from bert_tf.contrib.convert_saved_model import ConvertSavedModelConfig
from bert_tf.contrib.exported import open_export
from bert_tf.contrib.options.convert_saved_model import PACKAGES
from bert_tf.errors import InputError
from bert_tf.packages import MissingPackageError
from tests.contrib.opened_exports import opened
from tests.serving import small_exports
from tests.serving.small_served import ENCODING, NASTY, VOCAB, text_of

# Extras, which the environment of TensorFlow 2.20 does without.
for package in ("onnxruntime", "tf2onnx", "ai_edge_litert"):
    pytest.importorskip(package)

LABELS = small_exports.LABELS
FILES = {"README.md", "labels.txt", "vocab.txt"}


@pytest.fixture(scope="module")
def launch():
    required = ["export_dir", "output_dir", "format"]
    with in_process.script("convert_saved_model", required) as launch:
        yield lambda *words: launch([*words])


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """An export, a file of labelled pairs, and the scores for them."""
    path = small_exports.path_of("pairs")
    ask = tf.saved_model.load(str(path)).signatures["serving_default"]
    texts = [" ".join(text_of(t).split()) for t in NASTY if len(t) < 99]
    texts = [text for text in texts if '"' not in text]
    answer = ask(text_a=tf.constant(texts), text_b=tf.constant(texts[::-1]))
    found = answer["probabilities"].numpy().argmax(axis=1)
    # Every third label is wrong.
    labels = [(n + (i % 3 == 0)) % len(LABELS) for i, n in enumerate(found)]
    rows = zip(texts, texts[::-1], labels, strict=True)
    file = tmp_path_factory.mktemp("data") / "dev.jsonl"
    with file.open("w", encoding="utf-8") as lines:
        for a, b, label in rows:
            row = {"text_a": a, "text_b": b, "label": LABELS[label]}
            lines.write(json.dumps(row) + "\n")
    return path, file, metrics.compute(("accuracy", "macro_f1"), labels, found)


def table_in(text):
    """The rows of the first table of a text, by file; dicts by column."""
    lines = re.search(r"(^\|.*\n)+", text, re.MULTILINE).group().splitlines()
    cells = [[c.strip() for c in line.split("|")[1:-1]] for line in lines]
    header, rule, *rows = cells
    assert set("".join(rule)) == {"-"}
    return {row[0]: dict(zip(header, row, strict=True)) for row in rows}


def check(folder, printed, pairs, monkeypatch):
    """Checks a folder with a float32 and an int8 model."""
    path, _, scores = pairs
    rows = table_in(printed)
    readme = (folder / "README.md").read_text("utf-8")
    assert table_in(readme) == rows
    export, name, int8 = rows
    assert export == "SavedModel"
    assert {*os.listdir(folder)} == FILES | {name, int8}
    size = sum(f.stat().st_size for f in path.rglob("*") if f.is_file())
    assert rows[export]["MB"] == f"{size / 1e6:.1f}"
    assert float(rows[name]["largest difference"]) < 1e-4
    for metric, value in scores.items():
        assert rows[export][metric] == f"{value:.4f}"
        assert rows[name][metric] == f"{value:.4f} (+0.0000)"
    sizes = [(folder / file).stat().st_size for file in (name, int8)]
    assert 0.2 < sizes[1] / sizes[0] < 0.4
    assert 1e-4 < float(rows[int8]["largest difference"]) < 0.3
    for asset in ("vocab.txt", "labels.txt"):
        expected = (path / "assets" / asset).read_bytes()
        assert (folder / asset).read_bytes() == expected
    # The program in the README runs in its folder.
    program, *_ = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    monkeypatch.chdir(folder)
    scope = {}
    exec(program, scope)
    found = scope["answer"]["probabilities"]
    # It asks for the first text of the warm-up requests.
    exported = open_export(str(path))
    texts = {k: tf.constant(v) for k, v in exported.example().items()}
    ask = exported.model.signatures["serving_default"]
    expected = ask(**texts)["probabilities"]
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.slow
def test_onnx(launch, pairs, tmp_path, capsys, monkeypatch):
    path, file, _ = pairs
    folder = tmp_path / "out"
    words = [f"--export_dir={path.parent}", f"--output_dir={folder}"]
    assert launch(*words, "--format=onnx", "--int8", f"--eval_file={file}") == 0
    check(folder, capsys.readouterr().out, pairs, monkeypatch)


@pytest.mark.slow
def test_litert_as_a_program(pairs, tmp_path, monkeypatch):
    """It prints only the table, and converters are silent.

    LiteRT writes one line past Python.
    """
    path, file, _ = pairs
    folder = tmp_path / "out"
    words = [f"--export_dir={path}", f"--output_dir={folder}"]
    words += ["--format=litert", "--int8", f"--eval_file={file}"]
    done = subprocess.run(
        [sys.executable, str(ROOT / "convert_saved_model.py"), *words],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 5
    check(folder, done.stdout, pairs, monkeypatch)
    ours = r"[IW]\d{4} .* (convert_saved_model|examples)\.py:\d+\] "
    for line in done.stderr.splitlines():
        assert re.match(ours, line) or "XNNPACK delegate" in line, line


def score_of(kind, encoding, tmp_path, eval_file, outputs=()):
    """Returns the scores for a kind of export, without a model."""
    vocab = tmp_path / "vocab.txt"
    vocab.write_text("".join(f"{word}\n" for word in VOCAB), encoding="utf-8")
    card = dataclasses.asdict(encoding)
    signature = types.SimpleNamespace(structured_outputs=dict.fromkeys(outputs))
    exported = types.SimpleNamespace(
        path="a/7",
        assets={"vocab.txt": str(vocab)},
        card={
            "kind": kind,
            "labels": list(card.pop("labels", ())),
            "encoding": {k: v for k, v in card.items() if k != "vocab"},
        },
        model=types.SimpleNamespace(signatures={"serving_default": signature}),
    )
    config = ConvertSavedModelConfig(
        export_dir="", output_dir="", format="onnx", eval_file=eval_file
    )
    return convert_saved_model._score(config, exported)


def test_tags_are_scored(launch, tmp_path, write):
    """The model says that no word is an entity."""
    lines = ["the O", "cat B-X", "sat O", "on B-Y", "mat I-Y", "b O", "c O"]
    file = write("\n".join(lines) + "\n", "dev.txt")
    score = score_of("tagger", small_exports.TAGGING, tmp_path, file)
    scores = score(lambda rows: {"tag_ids": np.zeros_like(rows["input_ids"])})
    assert scores["accuracy"] == pytest.approx(4 / 7)
    assert scores["recall"] == 0


@pytest.mark.parametrize(
    ("version", "outputs", "exact"),
    [
        ("1.1", ["answer"], "exact_match"),
        ("v2.0", ["answer", "null_odds"], "exact"),
    ],
)
def test_answers_are_scored(launch, tmp_path, version, outputs, exact):
    """The outputs say whether there may be no answer."""
    asked = squad_files.questions(5, 3, impossible=2 * (version != "1.1"))
    file = squad_files.write(tmp_path / "dev.json", asked, version)
    kind = "question answering"
    score = score_of(kind, small_exports.SPANS, tmp_path, file, outputs)

    def ask(rows):
        logits = rows["input_ids"].astype(np.float32)
        return {"start_logits": logits, "end_logits": -logits}

    assert [*score(ask)] == ["f1", exact]


def test_an_encoder_cannot_be_scored(launch, tmp_path):
    message = "`eval_file` needs an export with a task; a/7 is an encoder"
    with pytest.raises(InputError, match=message):
        score_of("encoder", ENCODING, tmp_path, "a.tsv")


def replace_converter(monkeypatch, kind="pairs", error=0.0):
    """Lets the export itself, plus an error, replace the converted model."""
    exported = opened(kind)

    def run(features):
        answer = exported.answer_tokens(features)
        return {k: values + np.float32(error) for k, values in answer.items()}

    runtime = dataclasses.replace(
        runtimes.RUNTIMES["onnx"],
        convert=lambda exported: b"x",
        load=lambda content: run,
    )
    monkeypatch.setitem(runtimes.RUNTIMES, "onnx", runtime)


@pytest.mark.slow
def test_embeddings_in_a_remote_folder(launch, capsys, monkeypatch):
    """ram:// is accessed like gs://; the table has cosine similarities."""
    replace_converter(monkeypatch, "vectors")
    folder = "ram://converted/here"
    words = [f"--export_dir={small_exports.path_of('vectors')}"]
    words += [f"--output_dir={folder}", "--format=onnx"]
    assert launch(*words) == 0
    table = table_in(capsys.readouterr().out)
    assert {row["lowest cosine"][:6] for row in table.values()} == {"1.0000"}
    names = {"README.md", "vocab.txt", "model.onnx"}
    assert {*files.listdir(folder)} == names
    assert files.listdir("ram://converted") == ["here"]
    assert table_in(files.read_text(f"{folder}/README.md")) == table
    assert files.read_text(f"{folder}/model.onnx") == "x"
    assert launch(*words) == 1
    line = in_process.the_error(capsys, "convert_saved_model")
    assert f"{folder}: expected a new or empty directory" in line


@pytest.mark.slow
@pytest.mark.parametrize("error", [2e-4, float("nan")])
def test_nothing_is_written_if_outputs_differ(
    launch, tmp_path, capsys, monkeypatch, error
):
    replace_converter(monkeypatch, error=error)
    path = small_exports.path_of("pairs")
    words = [f"--export_dir={path}", f"--output_dir={tmp_path}/out"]
    assert launch(*words, "--format=onnx") == 1
    line = in_process.the_error(capsys, "convert_saved_model")
    assert f"{tmp_path}/out was not written: model.onnx differs from" in line
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("number", [0, -1])
@pytest.mark.parametrize("name", PACKAGES)
def test_a_missing_package_is_named(monkeypatch, tmp_path, name, number):
    absent = PACKAGES[name][number]
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda x: x != absent or None
    )
    config = ConvertSavedModelConfig(
        export_dir=str(tmp_path), output_dir="new", format=name
    )
    message = f"`format={name}` needs the package {absent}. Run, .*{name}"
    with pytest.raises(MissingPackageError, match=message):
        config.check()
    absent = None
    config.check()


MINE = "--eval_file=full/mine.tsv"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--export_dir=nowhere"], "Cannot read nowhere"),
        (["--export_dir=full"], "full: there is no saved_model.pb"),
        *(
            pytest.param(*mistake, marks=pytest.mark.slow)
            for mistake in (
                (["--output_dir=full"], "full: expected a new or empty"),
                (["--output_dir=nowhere://x"], "scheme 'nowhere'"),
                (["--eval_file=nowhere.tsv"], "nowhere.tsv"),
                ([MINE], "no column 'text_a'"),
                ([MINE, "--text_a_column=mine"], "no column 'text_b'"),
                (
                    [MINE, "--task_name=mrpc"],
                    "mrpc is single_label with 2 labels, but the export is "
                    "single_label with 3",
                ),
                ([MINE, "--task_name=mnli"], "; mnli has contradiction, en"),
                ([MINE, "--task_name=mrcp"], "Did you mean 'mrpc'"),
            )
        ),
    ],
)
def test_an_error_is_one_line_and_nothing_is_written(
    launch, tmp_path, capsys, monkeypatch, words, message
):
    if "--export_dir" not in words[0]:
        words = [f"--export_dir={small_exports.path_of('pairs')}", *words]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.tsv").write_text("mine\tlabel\na\tcat\n")
    assert launch("--output_dir=new", "--format=onnx", *words) == 1
    assert message in in_process.the_error(capsys, "convert_saved_model")
    assert os.listdir(tmp_path) == ["full"]
    assert os.listdir(tmp_path / "full") == ["mine.tsv"]
