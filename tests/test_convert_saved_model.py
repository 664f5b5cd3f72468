"""convert_saved_model.py, as it is run."""

import dataclasses
import json
import os
import re
import subprocess
import sys

import in_process
import numpy as np
import pytest
import squad_files
import tensorflow as tf
from checkout import ROOT

from bert_tf import files, metrics
from bert_tf.data.conll import read_conll
from bert_tf.serving import runtimes
from tests.serving import small_exports
from tests.serving.small_served import NASTY, text_of

# Extras, which the environment of TensorFlow 2.20 does without.
for package in ("onnxruntime", "tf2onnx", "ai_edge_litert"):
    pytest.importorskip(package)

LABELS = small_exports.LABELS
FILES = {"README.md", "labels.txt", "vocab.txt"}


@pytest.fixture(scope="module")
def launch():
    required = ["export_dir", "output_dir", "format"]
    with in_process.script("convert_saved_model", required) as launch:
        yield launch


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """An export, its answers to pairs of texts, and a file of these."""
    path = small_exports.path_of("pairs")
    ask = tf.saved_model.load(str(path)).signatures["serving_default"]
    texts = [" ".join(text_of(t).split()) for t in NASTY if len(t) < 99]
    texts = [text for text in texts if '"' not in text]
    answer = ask(text_a=tf.constant(texts), text_b=tf.constant(texts[::-1]))
    found = answer["probabilities"].numpy().argmax(axis=1)
    # Every third is wrong.
    labels = [(n + (i % 3 == 0)) % len(LABELS) for i, n in enumerate(found)]
    rows = zip(texts, texts[::-1], (LABELS[n] for n in labels), strict=True)
    file = tmp_path_factory.mktemp("data") / "dev.jsonl"
    names = ("text_a", "text_b", "label")
    file.write_text(
        "".join(
            json.dumps(dict(zip(names, row, strict=True))) + "\n"
            for row in rows
        ),
        encoding="utf-8",
    )
    scores = metrics.compute(("accuracy", "macro_f1"), labels, found)
    return path, file, scores


def table_in(text):
    """The rows of the first table of a text, by file; dicts by column."""
    lines = re.search(r"(^\|.*\n)+", text, re.MULTILINE).group().splitlines()
    cells = [[c.strip() for c in line.split("|")[1:-1]] for line in lines]
    header, rule, *rows = cells
    assert set("".join(rule)) == {"-"}
    return {row[0]: dict(zip(header, row, strict=True)) for row in rows}


def run_readme(folder, monkeypatch):
    """Runs the program of a README where it stands; its answer and example."""
    text = (folder / "README.md").read_text("utf-8")
    program, *_ = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    monkeypatch.chdir(folder)
    scope = {}
    exec(program, scope)
    for name, values in scope["answer"].items():
        [shown] = re.findall(rf"^{name} = (.*)$", text, re.MULTILINE)
        np.testing.assert_allclose(values, json.loads(shown), atol=1e-5)
    [texts] = re.findall(r"^to `(.*)`\.", text, re.MULTILINE)
    return scope["answer"], json.loads(texts)


def check(folder, printed, pairs, monkeypatch, name):
    """All that is true of whatever was converted."""
    path, _, scores = pairs
    rows = table_in(printed)
    readme = (folder / "README.md").read_text("utf-8")
    assert table_in(readme)[name] == rows[name]
    size = sum(f.stat().st_size for f in path.rglob("*") if f.is_file())
    assert rows["SavedModel"]["MB"] == f"{size / 1e6:.1f}"
    assert rows[name]["MB"] == f"{(folder / name).stat().st_size / 1e6:.1f}"
    assert float(rows[name]["largest difference"]) < 1e-4
    for metric, value in scores.items():
        assert rows["SavedModel"][metric] == f"{value:.4f}"
        assert rows[name][metric] == f"{value:.4f} (+0.0000)"
    for asset in ("vocab.txt", "labels.txt"):
        expected = (path / "assets" / asset).read_bytes()
        assert (folder / asset).read_bytes() == expected
    answer, texts = run_readme(folder, monkeypatch)
    ask = tf.saved_model.load(str(path)).signatures["serving_default"]
    expected = ask(**{key: tf.constant([text]) for key, text in texts.items()})
    np.testing.assert_allclose(
        answer["probabilities"], expected["probabilities"], atol=1e-5
    )


def test_onnx(launch, pairs, tmp_path, capsys, monkeypatch):
    path, file, _ = pairs
    words = [f"--export_dir={path.parent}", f"--output_dir={tmp_path}/out"]
    words += ["--format=onnx", "--int8", f"--eval_file={file}"]
    assert launch(words) == 0
    printed = capsys.readouterr().out
    folder = tmp_path / "out"
    assert {*os.listdir(folder)} == FILES | {"model.onnx", "model.int8.onnx"}
    check(folder, printed, pairs, monkeypatch, "model.onnx")
    row = table_in(printed)["model.int8.onnx"]
    assert float(row["largest difference"]) > 1e-4
    assert re.fullmatch(r"0\.\d{4} \([+-]0\.\d{4}\)", row["accuracy"])


def test_litert(launch, pairs, tmp_path, capsys, monkeypatch):
    path, file, _ = pairs
    words = [f"--export_dir={path}", f"--output_dir={tmp_path}/out"]
    words += ["--format=litert", f"--eval_file={file}"]
    assert launch(words) == 0
    folder = tmp_path / "out"
    assert {*os.listdir(folder)} == FILES | {"model.tflite"}
    printed = capsys.readouterr().out
    check(folder, printed, pairs, monkeypatch, "model.tflite")


@pytest.mark.slow
def test_as_it_is_run(tmp_path):
    """What it prints is the table, and no word of those it works with."""
    done = subprocess.run(
        [
            sys.executable,
            str(ROOT / "convert_saved_model.py"),
            f"--export_dir={small_exports.path_of('pairs')}",
            f"--output_dir={tmp_path}/out",
            "--format=onnx",
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert [*table_in(done.stdout)] == ["SavedModel", "model.onnx"]
    assert len(done.stdout.splitlines()) == 4
    for line in done.stderr.splitlines():
        assert re.match(r"I\d{4} .* convert_saved_model\.py:\d+\] ", line), line


@pytest.mark.slow
def test_tags_are_scored(launch, tmp_path, capsys):
    """By tags that the export itself gave, but for one."""
    path = small_exports.path_of("tags")
    words = ["the", "cat", "sat", "on", "xyzé", "mat", "b"] * 3
    ask = tf.saved_model.load(str(path)).signatures["serving_default"]
    answer = ask(text=tf.constant([" ".join(words)]))
    found = [tag.decode() for tag in answer["tags"].numpy()[0]]
    tags = [*found]
    tags[4] = "B-Y" if tags[4] == "O" else "O"
    file = tmp_path / "dev.txt"
    lines = [f"{w} {t}\n" for w, t in zip(words, tags, strict=True)]
    file.write_text("".join(lines), encoding="utf-8")
    # They are read as the tags of IOB2 that they mean.
    gold = read_conll(str(file)).sentences[0].tags
    share = np.mean([a == b for a, b in zip(gold, found, strict=True)])
    assert 0 < share < 1
    given = [f"--export_dir={path}", f"--output_dir={tmp_path}/out"]
    assert launch([*given, "--format=onnx", f"--eval_file={file}"]) == 0
    row = table_in(capsys.readouterr().out)["model.onnx"]
    assert row["accuracy"] == f"{share:.4f} (+0.0000)"
    assert [*row][3:] == ["f1", "precision", "recall", "accuracy"]


@pytest.mark.slow
def test_answers_are_scored(launch, tmp_path, capsys):
    """By the answers that the export itself gave, but for one."""
    path = small_exports.path_of("answers")
    ask = tf.saved_model.load(str(path)).signatures["serving_default"]
    asked = squad_files.questions(5, seed=3)
    found = ask(
        question=tf.constant([question.question for question in asked]),
        context=tf.constant([question.context for question in asked]),
    )
    articles = json.loads(squad_files.write(tmp_path / "a", asked).read_text())
    [article] = articles["data"]
    for row, paragraph in enumerate(article["paragraphs"]):
        start = int(found["start"][row])
        text = found["answer"].numpy()[row].decode()
        if row == 2:
            start, text = (0, article["paragraphs"][2]["context"])
        paragraph["qas"][0]["answers"] = [{"text": text, "answer_start": start}]
    file = tmp_path / "dev.json"
    file.write_text(json.dumps(articles))
    given = [f"--export_dir={path}", f"--output_dir={tmp_path}/out"]
    assert launch([*given, "--format=onnx", f"--eval_file={file}"]) == 0
    row = table_in(capsys.readouterr().out)["model.onnx"]
    assert row["exact_match"] == "80.0000 (+0.0000)"
    assert 80 <= float(row["f1"].split()[0]) < 100


MISTAKES = [
    (["--export_dir=nowhere"], "Cannot read nowhere"),
    (["--export_dir=full"], "full, which is neither"),
    (["--output_dir=full"], "new or empty. Received: 'full'"),
]
# Of what is to be scored; the export is opened before.
MORE_MISTAKES = [
    (["--eval_file=nowhere.tsv"], "nowhere.tsv"),
    (["--eval_file=full/mine.tsv"], "Expected a column 'text_a'"),
    (
        ["--eval_file=full/mine.tsv", "--text_a_column=mine"],
        "Expected a column 'text_b'",
    ),
    (
        ["--eval_file=full/mine.tsv", "--task_name=mrpc"],
        "a --task_name of single_label with 3 labels, as the export has. "
        "Received: mrpc, single_label with 2",
    ),
    (["--eval_file=full/mine.tsv", "--task_name=mrcp"], "did you mean 'mrpc'"),
]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *MISTAKES,
        *(pytest.param(*m, marks=pytest.mark.slow) for m in MORE_MISTAKES),
    ],
)
def test_a_mistake_is_one_line_and_makes_nothing(
    launch, pairs, tmp_path, capsys, monkeypatch, arguments, message
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.tsv").write_text("mine\tlabel\na\tcat\n")
    words = [f"--export_dir={pairs[0]}", "--output_dir=new", "--format=onnx"]
    assert launch([*words, *arguments]) == 1
    assert message in in_process.the_error(capsys, "convert_saved_model")
    assert os.listdir(tmp_path) == ["full"]
    assert os.listdir(tmp_path / "full") == ["mine.tsv"]


@pytest.mark.slow
def test_an_encoder_has_no_score(launch, pairs, tmp_path, capsys, monkeypatch):
    """Nor what a newer version of this project may export."""
    read_json = files.read_json
    monkeypatch.setattr(
        files, "read_json", lambda path: {**read_json(path), "kind": "encoder"}
    )
    words = [f"--export_dir={pairs[0]}", f"--output_dir={tmp_path}/out"]
    assert launch([*words, "--format=onnx", "--eval_file=a.tsv"]) == 1
    said = in_process.the_error(capsys, "convert_saved_model")
    assert "an export that has a task. Received: " in said
    assert said.endswith(", an encoder")


@pytest.mark.parametrize(
    "wrong", [2e-4, pytest.param(float("nan"), marks=pytest.mark.slow)]
)
def test_a_model_that_is_off_makes_nothing(
    launch, pairs, tmp_path, capsys, monkeypatch, wrong
):
    converted = []

    def convert(exported):
        """Stands in for a converter that is at fault."""
        converted.append(exported)
        return b"x"

    def run(features):
        answer = converted[-1].answer_tokens(features)
        return {k: values + np.float32(wrong) for k, values in answer.items()}

    broken = dataclasses.replace(
        runtimes.RUNTIMES["onnx"], convert=convert, load=lambda content: run
    )
    monkeypatch.setitem(runtimes.RUNTIMES, "onnx", broken)
    words = [f"--export_dir={pairs[0]}", f"--output_dir={tmp_path}/out"]
    assert launch([*words, "--format=onnx"]) == 1
    said = in_process.the_error(capsys, "convert_saved_model")
    assert "expected model.onnx to compute what" in said
    assert f"{tmp_path}/out is not made" in said
    assert not os.listdir(tmp_path)
